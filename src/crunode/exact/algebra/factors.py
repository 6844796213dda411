"""Greatest common divisors and square-free factors of polynomials in several variables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from math import comb, gcd, isqrt

from crunode.exact.algebra.parse import Product
from crunode.exact.algebra.polynomials import Exponent, Polynomial, TooLarge

__all__ = ["Factored", "common_divisor", "quotient", "squarefree"]

_PRIME = 2_147_483_647
_MOST_BITS = 400_000

Integers = dict[Exponent, int]


@dataclass(frozen=True)
class Factored:
    """c · x^a · ∏ f_i^e_i with square-free f_i that share no factor, none divisible by a variable.

    Attributes:
        constant: c, with the constants of the f_i so that each has coprime integer coefficients.
        monomial: a.
        factors: The f_i and e_i.
    """

    constant: Fraction
    monomial: Exponent
    factors: tuple[tuple[Polynomial, int], ...]

    def expanded(self) -> Polynomial:
        """The product, multiplied out."""
        return _product(self.constant, self.monomial, self.factors)


def _product(constant: Fraction, monomial: Exponent, factors: Sequence[tuple[Polynomial, int]]) -> Polynomial:
    variables = factors[0][0].variables if factors else tuple(f"x{j}" for j in range(len(monomial)))
    total = Polynomial(variables, {monomial: constant})
    for factor, power in factors:
        total = total * factor**power
    return total


def squarefree(product: Product, size: int) -> Factored:
    """The square-free factors of a product of powers, in `size` variables.

    Factors of equal power that were not written apart are split only where one of them lacks a variable.

    Raises:
        TooLarge: The divisors could not be found within the limits.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> found = squarefree([((x - y) ** 4 * (x + y) ** 2 * x * 3, 1)], 2)
        >>> found.constant, found.monomial, [(str(f), e) for f, e in found.factors]
        (Fraction(3, 1), (1, 0), [('x - y', 4), ('x + y', 2)])
    """
    constant = Fraction(1)
    monomial = [0] * size
    coprime: list[tuple[Polynomial, int]] = []
    for factor, power in product:
        least = [min(e[j] for e in factor.terms) for j in range(size)]
        monomial = [a + power * b for a, b in zip(monomial, least, strict=True)]
        lead = max(factor.terms)
        rest = factor.like({tuple(map(int.__sub__, e, least)): c for e, c in factor.terms.items()}).primitive()
        if rest.terms[tuple(map(int.__sub__, lead, least))] < 0:
            rest = -rest
        ratio = factor.terms[lead] / rest.terms[tuple(map(int.__sub__, lead, least))]
        constant *= ratio**power
        if rest.used:
            for part, multiplicity in _by_multiplicity(rest):
                _insert(coprime, part, multiplicity * power)
    split = [(part, power) for factor, power in coprime for part in _by_variable(factor)]
    split.sort(key=lambda item: (-item[1], len(item[0].terms), str(item[0])))
    return Factored(constant, tuple(monomial), tuple(split))


def _insert(coprime: list[tuple[Polynomial, int]], new: Polynomial, power: int) -> None:
    """Add new^power to a list of coprime square-free factors and keep it one."""
    for place, (old, before) in enumerate(coprime):
        if not new.used:
            return
        common = common_divisor(old, new)
        if not common.used:
            continue
        rest = quotient(old, common)
        coprime[place] = (common, before + power)
        if rest.used:
            coprime.append((rest, before))
        new = quotient(new, common)
    if new.used:
        coprime.append((new, power))


def _by_multiplicity(f: Polynomial) -> list[tuple[Polynomial, int]]:
    """Square-free factors of a primitive polynomial by multiplicity, after Musser."""
    if _clearly_squarefree(f):
        return [(f, 1)]
    repeated = f
    for j in f.used:
        repeated = common_divisor(repeated, f.derivative(j))
        if not repeated.used:
            return [(f, 1)]
    found = []
    radical, multiplicity = quotient(f, repeated), 1
    while radical.used:
        common = common_divisor(radical, repeated) if repeated.used else Polynomial.constant(1, f.variables)
        simple = quotient(radical, common)
        if simple.used:
            found.append((simple, multiplicity))
        if common.used:
            repeated = quotient(repeated, common)
        radical, multiplicity = common, multiplicity + 1
    return found


def _by_variable(f: Polynomial) -> list[Polynomial]:
    """Split off the factors that lack one of the variables."""
    if len(f.used) < 2:
        return [f]
    for j in f.used:
        parts: dict[int, dict[Exponent, Fraction]] = {}
        for exponent, coefficient in f.terms.items():
            parts.setdefault(exponent[j], {})[(*exponent[:j], 0, *exponent[j + 1 :])] = coefficient
        content = f.like({})
        for terms in sorted(parts.values(), key=len):
            content = common_divisor(content, f.like(terms)) if content else f.like(terms).primitive()
            if not content.used:
                break
        if content.used:
            return [*_by_variable(content), *_by_variable(quotient(f, content))]
    return [f]


def _clearly_squarefree(f: Polynomial) -> bool:
    """Whether f is square-free on a random line modulo a prime, with its degree kept: then f is square-free."""
    source = random.Random(0)
    degree = f.degree()
    if degree >= 200:
        return False
    start = [source.randrange(_PRIME) for _ in f.variables]
    slope = [source.randrange(1, _PRIME) for _ in f.variables]
    line = [0] * (degree + 1)
    # f(start + t slope): values at degree + 1 points are not needed, since powers of lines expand by binomials.
    powers: list[list[list[int]]] = [[[1]] for _ in f.variables]
    for j in range(len(f.variables)):
        for power in range(1, f.degree(j) + 1):
            powers[j].append(
                [
                    comb(power, k) % _PRIME * pow(start[j], power - k, _PRIME) * pow(slope[j], k, _PRIME) % _PRIME
                    for k in range(power + 1)
                ]
            )
    for exponent, coefficient in f.terms.items():
        part = [int(coefficient) % _PRIME]
        for j, entry in enumerate(exponent):
            if entry:
                part = _times(part, powers[j][entry])
        for k, value in enumerate(part):
            line[k] = (line[k] + value) % _PRIME
    if not line[-1]:
        return False
    one, two = line, [k * value % _PRIME for k, value in enumerate(line)][1:]
    while two:
        one, two = two, _remainder(one, two)
    return len(one) == 1


def _times(one: list[int], two: list[int]) -> list[int]:
    found = [0] * (len(one) + len(two) - 1)
    for i, a in enumerate(one):
        for k, b in enumerate(two):
            found[i + k] = (found[i + k] + a * b) % _PRIME
    return found


def _remainder(one: list[int], two: list[int]) -> list[int]:
    one = list(one)
    inverse = pow(two[-1], -1, _PRIME)
    while len(one) >= len(two):
        factor = one[-1] * inverse % _PRIME
        offset = len(one) - len(two)
        for k, value in enumerate(two):
            one[offset + k] = (one[offset + k] - factor * value) % _PRIME
        while one and not one[-1]:
            one.pop()
    return one


def common_divisor(f: Polynomial, g: Polynomial) -> Polynomial:
    """The greatest common divisor, with coprime integer coefficients.

    Both are evaluated at a large integer, variable by variable, down to a greatest common divisor of integers, which
    is read back in that base; a division proves the result (the heuristic method of Char, Geddes and Gonnet).

    Raises:
        TooLarge: No divisor was found within the limits.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print(common_divisor((x - y) ** 2 * (x + 1), (x - y) * y))
        x - y
    """
    one = {e: int(c) for e, c in f.primitive().terms.items()}
    two = {e: int(c) for e, c in g.primitive().terms.items()}
    if not one or not two:
        return (f or g).primitive()
    found = f.like(_heuristic(one, two, len(f.variables))).primitive()
    return -found if found.terms[max(found.terms)] < 0 else found


def _heuristic(f: Integers, g: Integers, depth: int) -> Integers:
    common = gcd(*f.values(), *g.values())
    if depth == 0:
        return {(): common}
    f = {e: c // common for e, c in f.items()}
    g = {e: c // common for e, c in g.items()}
    if len(f) == 1 or len(g) == 1:
        least = tuple(min(e[j] for e in (*f, *g)) for j in range(depth))
        return {least: common}
    base = 2 * min(max(map(abs, f.values())), max(map(abs, g.values()))) + 29
    size = max(e[-1] for e in (*f, *g))
    for _ in range(6):
        if base.bit_length() * (size + 1) > _MOST_BITS:
            break
        one, two = _at(f, base), _at(g, base)
        if one and two:
            digits = _heuristic(one, two, depth - 1)
            candidate = _read_back(digits, base)
            content = gcd(*candidate.values())
            candidate = {e: c // content for e, c in candidate.items()}
            if _divides(candidate, f) is not None and _divides(candidate, g) is not None:
                return {e: c * common for e, c in candidate.items()}
        base = 73794 * base * isqrt(isqrt(base)) // 27011
    raise TooLarge("the common factors of this polynomial could not be found within the limits")


def _at(f: Integers, base: int) -> Integers:
    found: Integers = {}
    powers: dict[int, int] = {}
    for exponent, coefficient in f.items():
        entry = exponent[-1]
        if entry not in powers:
            powers[entry] = base**entry
        key = exponent[:-1]
        found[key] = found.get(key, 0) + coefficient * powers[entry]
    return {e: c for e, c in found.items() if c}


def _read_back(f: Integers, base: int) -> Integers:
    found: Integers = {}
    power = 0
    while f:
        rest: Integers = {}
        for exponent, coefficient in f.items():
            digit = coefficient % base
            if digit > base // 2:
                digit -= base
            if digit:
                found[(*exponent, power)] = digit
            left = (coefficient - digit) // base
            if left:
                rest[exponent] = left
        f, power = rest, power + 1
    return found


def _divides(divisor: Integers, f: Integers) -> Integers | None:
    """Quotient f / divisor, or None where it does not divide."""
    lead = max(divisor)
    value = divisor[lead]
    others = [(e, c) for e, c in divisor.items() if e != lead]
    rest = dict(f)
    waiting = [tuple(-entry for entry in e) for e in rest]
    heapify(waiting)
    found: Integers = {}
    while waiting:
        top = tuple(-entry for entry in heappop(waiting))
        coefficient = rest.pop(top, 0)
        if not coefficient:
            continue
        step = tuple(map(int.__sub__, top, lead))
        factor, left = divmod(coefficient, value)
        if left or min(step, default=0) < 0:
            return None
        found[step] = factor
        for exponent, entry in others:
            key = tuple(map(int.__add__, exponent, step))
            if key not in rest:
                heappush(waiting, tuple(-part for part in key))
            rest[key] = rest.get(key, 0) - factor * entry
    return found


def quotient(f: Polynomial, divisor: Polynomial) -> Polynomial:
    """Quotient f / divisor up to a positive constant, where it divides.

    Example:
        >>> x, y = Polynomial.unknowns("x", "y")
        >>> print(quotient(x * x - y * y, x - y))
        x + y
    """
    found = _divides(
        {e: int(c) for e, c in divisor.primitive().terms.items()}, {e: int(c) for e, c in f.primitive().terms.items()}
    )
    assert found is not None
    return f.like(found)
