"""Real algebraic numbers: exact arithmetic, zero test and sign, in towers of extensions of the rationals."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from crunode.exact.algebra.univariate import Interval, divided, greatest_common_divisor, normalized, value_at

__all__ = ["AlgebraicNumber", "RealRoot", "enclosure", "refine"]


class RealRoot:
    """The one root of a square-free polynomial in an interval; the polynomial need not be irreducible.

    When arithmetic finds a proper factor, the polynomial is replaced by the part that has the root.

    `above` is the depth of the numbers that the root shall mix with, where its coefficients do not show it.

    Attributes:
        polynomial: Coefficients, rationals or numbers of lower depth.
        low: Rational below the root.
        high: Rational above it.
        depth: Height in the tower of extensions.
    """

    def __init__(self, polynomial: Sequence[Any], interval: Interval, above: int = 0) -> None:
        self.polynomial = normalized(polynomial)
        self.low, self.high = interval
        found = [c.root.depth for c in polynomial if isinstance(c, AlgebraicNumber)]
        self.depth: int = 1 + max([above, *found])

    def number(self) -> AlgebraicNumber:
        """The root as a number.

        Example:
            >>> root = RealRoot([-2, 0, 1], (Fraction(1), Fraction(2))).number()
            >>> root * root == 2, root > Fraction(7, 5)
            (True, True)
        """
        return AlgebraicNumber(self, (Fraction(0), Fraction(1)))

    def halve(self) -> None:
        """Make the interval shorter."""
        middle = (self.low + self.high) / 2
        at = value_at(self.polynomial, middle)
        if not at:
            width = (self.high - self.low) / 8
            self.low, self.high = middle - width, middle + width
        elif (at > 0) == (value_at(self.polynomial, self.low) > 0):
            self.low = middle
        else:
            self.high = middle

    def holds(self, p: Sequence[Any]) -> bool:
        """Whether a divisor p of the polynomial vanishes at the root."""
        return bool((value_at(p, self.low) > 0) != (value_at(p, self.high) > 0))


class AlgebraicNumber:
    """A polynomial in a `RealRoot`. Mixes with integers, fractions and numbers of lower depth."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, root: RealRoot, coefficients: Sequence[Any]) -> None:
        found = list(coefficients)
        if len(found) >= len(root.polynomial):
            found = divided(found, root.polynomial)[1]
        while found and not found[-1]:
            found.pop()
        self.root = root
        self.coefficients = found

    def _pair(self, other: Any) -> tuple[AlgebraicNumber, AlgebraicNumber] | None:
        """Both over the root of greater depth; Python asks only one side of an operation between equal types."""
        if isinstance(other, AlgebraicNumber):
            if other.root is self.root:
                return self, other
            if other.root.depth > self.root.depth:
                return AlgebraicNumber(other.root, [self]), other
            if other.root.depth == self.root.depth:
                return None
        elif not isinstance(other, int | Fraction):
            return None
        return self, AlgebraicNumber(self.root, [other])

    def __add__(self, other: Any) -> Any:
        pair = self._pair(other)
        if pair is None:
            return NotImplemented
        one, two = pair[0].coefficients, pair[1].coefficients
        size = max(len(one), len(two))
        zero = Fraction(0)
        padded = zip([*one, *[zero] * (size - len(one))], [*two, *[zero] * (size - len(two))], strict=True)
        return AlgebraicNumber(pair[0].root, [a + b for a, b in padded])

    def __neg__(self) -> AlgebraicNumber:
        return AlgebraicNumber(self.root, [-c for c in self.coefficients])

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        pair = self._pair(other)
        if pair is None:
            return NotImplemented
        one, two = pair[0].coefficients, pair[1].coefficients
        found: list[Any] = [Fraction(0)] * max(len(one) + len(two) - 1, 0)
        for i, a in enumerate(one):
            for k, b in enumerate(two):
                found[i + k] = found[i + k] + a * b
        return AlgebraicNumber(pair[0].root, found)

    __radd__ = __add__
    __rmul__ = __mul__

    def __pow__(self, power: int) -> AlgebraicNumber:
        found = AlgebraicNumber(self.root, [Fraction(1)])
        for _ in range(power):
            found = found * self
        return found

    def __bool__(self) -> bool:
        """Whether it differs from zero; settles which factor of the polynomial has the root, if need be."""
        if len(self.coefficients) >= len(self.root.polynomial):
            self.coefficients = AlgebraicNumber(self.root, self.coefficients).coefficients
        if len(self.coefficients) < 2:
            return bool(self.coefficients)
        common = greatest_common_divisor(self.root.polynomial, self.coefficients)
        if len(common) == 1:
            return True
        if self.root.holds(common):
            self.root.polynomial = common
            return False
        self.root.polynomial = normalized(divided(self.root.polynomial, common)[0])
        return True

    def inverse(self) -> AlgebraicNumber:
        """1 / self, by the extended Euclidean algorithm."""
        if not self:
            raise ZeroDivisionError("division by an algebraic number that is zero")
        # The zero test has made the polynomial coprime to this number.
        one, two = list(self.root.polynomial), divided(self.coefficients, self.root.polynomial)[1]
        first: list[Any] = []
        second: list[Any] = [Fraction(1)]
        while len(two) > 1:
            factor, rest = divided(one, two)
            product: list[Any] = [Fraction(0)] * (len(factor) + len(second) - 1)
            for i, a in enumerate(factor):
                for k, b in enumerate(second):
                    product[i + k] = product[i + k] + a * b
            size = max(len(first), len(product))
            zero = Fraction(0)
            padded = zip(
                [*first, *[zero] * (size - len(first))], [*product, *[zero] * (size - len(product))], strict=True
            )
            first, second = second, [a - b for a, b in padded]
            one, two = two, rest
        return AlgebraicNumber(self.root, [c / two[0] for c in second])

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, int | Fraction):
            return AlgebraicNumber(self.root, [c / Fraction(other) for c in self.coefficients])
        if not isinstance(other, AlgebraicNumber):
            return NotImplemented
        return self * other.inverse()

    def __rtruediv__(self, other: Any) -> Any:
        return self.inverse() * other

    def sign(self) -> int:
        """−1, 0 or 1."""
        if not self:
            return 0
        while True:
            low, high = enclosure(self)
            if low > 0 or high < 0:
                return 1 if low > 0 else -1
            refine(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AlgebraicNumber | int | Fraction):
            return NotImplemented
        return not (self - other)

    def __gt__(self, other: Any) -> bool:
        return bool((self - other).sign() > 0)

    def __lt__(self, other: Any) -> bool:
        return bool((self - other).sign() < 0)

    def __ge__(self, other: Any) -> bool:
        return bool((self - other).sign() >= 0)

    def __le__(self, other: Any) -> bool:
        return bool((self - other).sign() <= 0)

    def __abs__(self) -> AlgebraicNumber:
        return self if self.sign() >= 0 else -self


def enclosure(value: Any) -> Interval:
    """Rational bounds of a number.

    Example:
        >>> enclosure(Fraction(1, 2))
        (Fraction(1, 2), Fraction(1, 2))
    """
    if not isinstance(value, AlgebraicNumber):
        return Fraction(value), Fraction(value)
    low = high = Fraction(0)
    for c in reversed(value.coefficients):
        ends = [low * value.root.low, low * value.root.high, high * value.root.low, high * value.root.high]
        bottom, top = enclosure(c)
        low, high = min(ends) + bottom, max(ends) + top
    return low, high


def refine(value: Any) -> None:
    """Shorten the intervals of every root that a number is made of."""
    if isinstance(value, AlgebraicNumber):
        for _ in range(4):
            value.root.halve()
        for c in (*value.coefficients, *value.root.polynomial):
            refine(c)
