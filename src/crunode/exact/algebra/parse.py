"""Polynomials from text. The text is read by a grammar of its own and never run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

from crunode.errors import InputError
from crunode.exact.algebra.polynomials import Polynomial, natural_order

__all__ = ["Formula", "Product", "parse", "read"]

LONGEST = 10_000
DEEPEST = 40
LARGEST_POWER = 2_000
MOST_VARIABLES = 60

_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<sign>\*\*|[-+*/^()]))",
    re.ASCII,
)

Product = list[tuple[Polynomial, int]]
"""Factors with their powers."""


@dataclass(frozen=True)
class Formula:
    """A polynomial as it was written: a sum of products of powers.

    Attributes:
        variables: Names in the order of the exponents.
        addends: The products; none is zero.
    """

    variables: tuple[str, ...]
    addends: tuple[Product, ...]

    def expanded(self) -> Polynomial:
        """The sum, multiplied out."""
        total = Polynomial(self.variables, {})
        for product in self.addends:
            total = total + _multiplied(product, self.variables)
        return total


def parse(text: str, variables: Sequence[str] | None = None) -> Formula:
    """Read a polynomial with rational coefficients.

    Known are numbers (2, 1/2, 0.5, 1e-3: taken exactly), names, `+ - *`, `/` by a number, `**` or `^` with a
    non-negative whole number, and parentheses. Products need their `*`.

    Args:
        text: The polynomial.
        variables: Names in the wanted order; by default those that occur, in alphabetical order (x2 before x10).

    Returns:
        Its products and powers, as written.

    Raises:
        InputError: The text is not such a polynomial, or too long, too deep or too large when multiplied out.

    Example:
        >>> formula = parse("(x^2 - y**3)**2 + z/2")
        >>> formula.variables
        ('x', 'y', 'z')
        >>> print(formula.expanded())
        y**6 - 2*x**2*y**3 + x**4 + 1/2*z
    """
    if not isinstance(text, str):
        raise InputError(f"expected a polynomial as text such as '(x**2 - y**3)**2', got {type(text).__name__}")
    if len(text) > LONGEST:
        raise InputError(f"expected at most {LONGEST} characters, got {len(text)}")
    tokens = _tokens(text)
    found = natural_order({value for kind, value, _ in tokens if kind == "name"})
    names = _names(variables, found)
    if len(names) > MOST_VARIABLES:
        raise InputError(f"expected at most {MOST_VARIABLES} variables, got {len(names)}")
    return Formula(tuple(names), tuple(_Reader(text, tokens, tuple(names)).whole()))


def read(value: Any, variables: Sequence[str] | None = None) -> Formula:
    """A `Formula` from text, from a `Polynomial` or from a sympy expression (by the text it prints as).

    Example:
        >>> read("x*y").variables
        ('x', 'y')
    """
    if isinstance(value, Formula):
        return value
    if isinstance(value, Polynomial):
        names = tuple(_names(variables, value.variables))
        places = [names.index(name) for name in value.variables]
        terms = {}
        for exponent, coefficient in value.terms.items():
            moved = [0] * len(names)
            for place, entry in zip(places, exponent, strict=True):
                moved[place] = entry
            terms[tuple(moved)] = coefficient
        return Formula(names, ([(Polynomial(names, terms), 1)],) if terms else ())
    if type(value).__module__.split(".")[0] == "sympy":
        return parse(str(value), variables)
    return parse(value, variables)


def _names(variables: Sequence[str] | None, found: Sequence[str]) -> list[str]:
    if variables is None:
        return list(found)
    if isinstance(variables, str) or not all(isinstance(name, str) for name in variables):
        raise InputError(f"expected variables as a list of names, got {variables!r}")
    names = list(variables)
    if len(set(names)) != len(names):
        raise InputError(f"expected different names, got {names}")
    missing = [name for name in found if name not in names]
    if missing:
        raise InputError(f"expected only the variables {', '.join(names) or '(none)'}, got also {', '.join(missing)}")
    return names


def _tokens(text: str) -> list[tuple[str, str, int]]:
    tokens, place, end = [], 0, len(text.rstrip(" \t\r\n"))
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            while text[place] in " \t\r\n":
                place += 1
            raise InputError(
                f"expected numbers, names and + - * / ** ^ ( ), got {text[place]!a} at character {place + 1} "
                f"of {_shown(text)}"
            )
        kind = str(match.lastgroup)
        tokens.append((kind, match.group(kind), match.start(kind)))
        place = match.end()
    if not tokens:
        raise InputError("expected a polynomial such as 'x**2 + y**2', got empty text")
    return tokens


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 60 else text[:57] + "...")


class _Reader:
    """Recursive descent; sums and products are loops, so only parentheses and powers nest."""

    def __init__(self, text: str, tokens: list[tuple[str, str, int]], variables: tuple[str, ...]) -> None:
        self.text, self.tokens, self.variables = text, tokens, variables
        self.place = 0
        self.depth = 0

    def fail(self, expected: str) -> NoReturn:
        if self.place < len(self.tokens):
            _, value, start = self.tokens[self.place]
            shown = value if len(value) <= 40 else value[:37] + "..."
            got = f"{shown!r} at character {start + 1}"
        else:
            got = "the end of the text"
        raise InputError(f"expected {expected}, got {got} in {_shown(self.text)}")

    def take(self, *signs: str) -> str | None:
        if self.place < len(self.tokens):
            kind, value, _ = self.tokens[self.place]
            if kind == "sign" and value in signs:
                self.place += 1
                return value
        return None

    def whole(self) -> list[Product]:
        addends = self.sum()
        if self.place < len(self.tokens):
            self.fail("an operator (products are written with *)")
        return addends

    def sum(self) -> list[Product]:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses and powers")
        addends = [self.product()]
        while sign := self.take("+", "-"):
            addend = self.product()
            addends.append([(self.constant(-1), 1), *addend] if sign == "-" else addend)
        self.depth -= 1
        return [addend for addend in addends if all(factor for factor, _ in addend)]

    def product(self) -> Product:
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        found = self.power()
        while sign := self.take("*", "/"):
            flips = False
            while unary := self.take("+", "-"):
                flips ^= unary == "-"
            negative ^= flips
            factor = self.power()
            if sign == "/":
                value = self.number_of(factor, "a number after /")
                if not value:
                    self.fail("a number other than 0 after /")
                factor = [(self.constant(1 / value), 1)]
            found = _joined(found, factor)
        return _joined([(self.constant(-1), 1)], found) if negative else found

    def power(self) -> Product:
        base = self.atom()
        if not self.take("**", "^"):
            return base
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"at most {DEEPEST} levels of parentheses and powers")
        negative = False
        while sign := self.take("+", "-"):
            negative ^= sign == "-"
        exponent = self.number_of(self.power(), "a number as the power")
        self.depth -= 1
        if negative:
            exponent = -exponent
        if exponent.denominator != 1 or not 0 <= exponent <= LARGEST_POWER:
            raise InputError(f"expected powers as whole numbers from 0 to {LARGEST_POWER}, got {_short(exponent)}")
        power = int(exponent)
        if not power:
            return []
        if any(power * before > LARGEST_POWER for _, before in base):
            raise InputError(f"expected powers up to {LARGEST_POWER}, got a power of a power beyond it")
        return [
            (factor**power, 1) if len(factor.terms) == 1 else (factor, before * power)
            for factor, before in ((f**b, 1) if len(f.terms) == 1 else (f, b) for f, b in base)
        ]

    def atom(self) -> Product:
        if self.take("("):
            addends = self.sum()
            if not self.take(")"):
                self.fail("a closing parenthesis or an operator")
            if len(addends) == 1:
                return addends[0]
            return [(Formula(self.variables, tuple(addends)).expanded(), 1)]
        if self.place >= len(self.tokens) or self.tokens[self.place][0] == "sign":
            self.fail("a number, a name or a parenthesis")
        kind, value, _ = self.tokens[self.place]
        self.place += 1
        if kind == "name":
            unit = tuple(int(name == value) for name in self.variables)
            return [(Polynomial(self.variables, {unit: 1}), 1)]
        return [(self.constant(_number(value)), 1)]

    def number_of(self, product: Product, expected: str) -> Fraction:
        value = _multiplied(product, self.variables)
        if value.used:
            self.place -= 1
            self.fail(expected)
        return value.at_origin

    def constant(self, value: Fraction | int) -> Polynomial:
        return Polynomial.constant(value, self.variables)


def _joined(one: Product, two: Product) -> Product:
    """The product, with single terms drawn together so that long products stay short."""
    found = [*one, *two]
    single = [(f, p) for f, p in found if len(f.terms) <= 1]
    if len(single) < 2:
        return found
    total = single[0][0] ** single[0][1]
    for factor, power in single[1:]:
        total = total * factor**power
    return [(total, 1), *((f, p) for f, p in found if len(f.terms) > 1)]


def _multiplied(product: Product, variables: tuple[str, ...]) -> Polynomial:
    total = Polynomial.constant(1, variables)
    for factor, power in product:
        total = total * factor**power
    return total


def _number(text: str) -> Fraction:
    mantissa, _, power = text.lower().partition("e")
    if len(mantissa) > 1000 or len(power.lstrip("+-0")) > 3:
        raise InputError(f"expected numbers of at most 1000 digits and powers of ten up to 999, got {text[:40]}...")
    return Fraction(text)


def _short(value: Fraction) -> str:
    if value.numerator.bit_length() + value.denominator.bit_length() > 200:
        return "a number with more than 50 digits"
    return str(value)
