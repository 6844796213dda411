"""Polynomials in several variables with exact coefficients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import comb, gcd, lcm
from typing import Any

from crunode.errors import InputError

__all__ = ["Exponent", "Polynomial", "Terms", "TooLarge", "natural_order"]

Exponent = tuple[int, ...]
Terms = Mapping[Exponent, Any]

MOST_TERMS = 20_000
MOST_PRODUCTS = 300_000
MOST_BITS = 13_000  # below the length from which Python refuses to print an integer


class TooLarge(InputError):
    """A polynomial has too many terms, or too large coefficients, to be worked out."""


class Polynomial:
    """A polynomial with rational coefficients.

    Attributes:
        variables: Names, in the order of the exponents.
        terms: Coefficients by exponents; none is zero.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print((x - y) ** 2)
        x**2 - 2*x*y + y**2
    """

    def __init__(self, variables: Sequence[str], terms: Terms) -> None:
        self.variables = tuple(variables)
        self.terms: dict[Exponent, Fraction] = {e: Fraction(c) for e, c in terms.items() if c}

    @classmethod
    def unknowns(cls, *names: str) -> list[Polynomial]:
        """The variables themselves, as polynomials in all of them."""
        size = len(names)
        return [cls(names, {tuple(int(i == j) for i in range(size)): 1}) for j in range(size)]

    @classmethod
    def constant(cls, value: Fraction | int, variables: Sequence[str] = ()) -> Polynomial:
        """A constant."""
        return cls(variables, {(0,) * len(variables): value})

    def like(self, terms: Terms) -> Polynomial:
        """Other terms in the same variables."""
        return Polynomial(self.variables, terms)

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Polynomial):
            return NotImplemented
        return self.variables == other.variables and self.terms == other.terms

    def __hash__(self) -> int:
        return hash((self.variables, frozenset(self.terms.items())))

    def _other(self, value: Any) -> Polynomial:
        if isinstance(value, Polynomial):
            if value.variables != self.variables:
                raise InputError(f"expected polynomials in {self.variables}, got one in {value.variables}")
            return value
        return Polynomial.constant(value, self.variables)

    def __add__(self, value: Any) -> Polynomial:
        found = dict(self.terms)
        for exponent, coefficient in self._other(value).terms.items():
            found[exponent] = found.get(exponent, 0) + coefficient
        return self.like(found)

    def __neg__(self) -> Polynomial:
        return self.like({e: -c for e, c in self.terms.items()})

    def __sub__(self, value: Any) -> Polynomial:
        return self + (-self._other(value))

    def __mul__(self, value: Any) -> Polynomial:
        other = self._other(value)
        if len(self.terms) * len(other.terms) > MOST_PRODUCTS:
            raise TooLarge(
                "expected a polynomial that can be multiplied out, got a product of "
                f"{len(self.terms)} by {len(other.terms)} terms"
            )
        if self.bits + other.bits > MOST_BITS:
            raise TooLarge(f"expected coefficients below {MOST_BITS} bits, got a product of larger ones")
        # Integers over one denominator: sums of fractions would look for common divisors at every step.
        scale = lcm(*(c.denominator for c in self.terms.values()))
        other_scale = lcm(*(c.denominator for c in other.terms.values()))
        left = [(e, int(c * scale)) for e, c in self.terms.items()]
        right = [(e, int(c * other_scale)) for e, c in other.terms.items()]
        found: dict[Exponent, int] = {}
        for one, a in left:
            for two, b in right:
                exponent = tuple(map(int.__add__, one, two))
                found[exponent] = found.get(exponent, 0) + a * b
        if len(found) > MOST_TERMS:
            raise TooLarge(f"expected at most {MOST_TERMS} terms after expansion, got {len(found)}")
        scale *= other_scale
        return self.like({e: Fraction(c, scale) for e, c in found.items()} if scale > 1 else found)

    __radd__ = __add__
    __rmul__ = __mul__

    def __pow__(self, power: int) -> Polynomial:
        if power and self.terms:
            spread = comb(min(power, MOST_TERMS) + len(self.terms) - 1, len(self.terms) - 1)
            box = 1
            for j in range(len(self.variables)):
                box *= power * (self.degree(j) - min(e[j] for e in self.terms)) + 1
            if min(spread, box) > MOST_TERMS:
                raise TooLarge(f"expected at most {MOST_TERMS} terms after expansion, got a power {power} with more")
            if power * self.bits > MOST_BITS:
                raise TooLarge(f"expected coefficients below {MOST_BITS} bits, got a power {power} of larger ones")
        if len(self.terms) == 1:
            ((exponent, coefficient),) = self.terms.items()
            return self.like({tuple(power * entry for entry in exponent): coefficient**power})
        found, square = Polynomial.constant(1, self.variables), self
        while power:
            if power & 1:
                found = found * square
            power >>= 1
            if power:
                square = square * square
        return found

    @property
    def bits(self) -> int:
        """Size of the largest coefficient."""
        return max((c.numerator.bit_length() + c.denominator.bit_length() for c in self.terms.values()), default=0)

    @cached_property
    def order(self) -> int:
        """The lowest total degree: the multiplicity at the origin."""
        return min(map(sum, self.terms))

    def degree(self, j: int | None = None) -> int:
        """The highest total degree, or the highest in one variable."""
        if j is None:
            return max(map(sum, self.terms), default=0)
        return max((e[j] for e in self.terms), default=0)

    @cached_property
    def at_origin(self) -> Fraction:
        """The constant term."""
        return self.terms.get((0,) * len(self.variables), Fraction(0))

    @cached_property
    def used(self) -> tuple[int, ...]:
        """Indices of the variables that occur."""
        return tuple(j for j in range(len(self.variables)) if any(e[j] for e in self.terms))

    def __call__(self, point: Sequence[Any]) -> Any:
        """The value at a point."""
        powers: list[dict[int, Any]] = [{} for _ in point]
        total: Any = 0
        for exponent, coefficient in self.terms.items():
            for known, value, entry in zip(powers, point, exponent, strict=True):
                if entry:
                    if entry not in known:
                        known[entry] = value**entry
                    coefficient = coefficient * known[entry]
            total = total + coefficient
        return total

    def derivative(self, j: int) -> Polynomial:
        """∂/∂x_j."""
        return self.like({(*e[:j], e[j] - 1, *e[j + 1 :]): c * e[j] for e, c in self.terms.items() if e[j]})

    def shifted(self, point: Sequence[Fraction]) -> Polynomial:
        """The polynomial x ↦ f(point + x)."""
        found: dict[Exponent, Fraction] = dict(self.terms)
        for j, value in enumerate(point):
            if not value:
                continue
            step: dict[Exponent, Fraction] = {}
            for exponent, coefficient in found.items():
                power = exponent[j]
                for k in range(power + 1):
                    key = (*exponent[:j], k, *exponent[j + 1 :])
                    step[key] = step.get(key, Fraction(0)) + coefficient * comb(power, k) * value ** (power - k)
            found = {e: c for e, c in step.items() if c}
            if len(found) > MOST_TERMS:
                raise TooLarge(f"expected at most {MOST_TERMS} terms after moving the point, got {len(found)}")
        return self.like(found)

    def composed(self, images: Sequence[Polynomial], keep: Callable[[Exponent], bool] | None = None) -> Polynomial:
        """Put polynomials in place of the variables; `keep` picks the exponents of the result that are wanted."""
        target = images[0]
        powers: list[list[Polynomial]] = [[Polynomial.constant(1, target.variables)] for _ in images]

        def cut(value: Polynomial) -> Polynomial:
            return value if keep is None else value.like({e: c for e, c in value.terms.items() if keep(e)})

        total = target.like({})
        for exponent, coefficient in self.terms.items():
            part = Polynomial.constant(coefficient, target.variables)
            for known, image, entry in zip(powers, images, exponent, strict=True):
                while len(known) <= entry:
                    known.append(cut(known[-1] * image))
                if entry:
                    part = cut(part * known[entry])
            total = total + part
        return total

    def primitive(self) -> Polynomial:
        """The positive multiple with coprime integer coefficients."""
        if not self.terms:
            return self
        scale = lcm(*(c.denominator for c in self.terms.values()))
        common = gcd(*(int(c * scale) for c in self.terms.values()))
        return self * Fraction(scale, common)

    def restricted(self, kept: Sequence[int]) -> Polynomial:
        """The same polynomial in a part of the variables; the others must not occur."""
        names = [self.variables[j] for j in kept]
        return Polynomial(names, {tuple(e[j] for j in kept): c for e, c in self.terms.items()})

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for exponent, coefficient in sorted(
            self.terms.items(), key=lambda item: (-sum(item[0]), [-e for e in item[0]])
        ):
            names = [
                name if entry == 1 else f"{name}**{entry}"
                for name, entry in zip(self.variables, exponent, strict=True)
                if entry
            ]
            size = abs(coefficient)
            shown = "*".join([*([] if size == 1 and names else [str(size)]), *names])
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} {shown}" if text else (f"-{shown}" if sign == "-" else shown)
        return text

    def __repr__(self) -> str:
        return f"Polynomial({', '.join(self.variables)}: {self})"


def natural_order(names: Iterable[str]) -> list[str]:
    """Names in alphabetical order, numbers inside them by size.

    Example:
        >>> natural_order(["x10", "y", "x2"])
        ['x2', 'x10', 'y']
    """

    def key(name: str) -> list[tuple[int, int, str]]:
        parts, digits = [], ""
        for letter in [*name, ""]:
            if letter.isdigit():
                digits += letter
                continue
            if digits:
                parts.append((0, int(digits), digits))
                digits = ""
            parts.append((1, 0, letter))
        return parts

    return sorted(names, key=key)
