r"""Spectral laws that can be added freely: Marchenko-Pastur, semicircle, free Poisson laws and all their sums.

A law is given by its R-transform in the form

    R(z) = a + σ² z + Σ_i r_i t_i / (1 − t_i z),

a shift a, a semicircle of variance σ², and jumps t_i that come at rates r_i ≥ 0 (matrices t_i X Xᵀ/n with X of shape
n × r_i n). Under free addition R-transforms add, so that the form is kept. With w = 1/G, the equation
R(G) + 1/G = z for the Stieltjes transform G(z) reads

    z = H(w) = w + m + Σ_j c_j / (w − t_j),    m = a + Σ r_i t_i,   c_i = r_i t_i²,   and c = σ² at t = 0.

The roots w of H(w) = z are the eigenvalues of an arrowhead matrix, and for Im z > 0 exactly one of them has Im w > 0,
since Im H(u + iv) = v (1 − Σ c_j/((u − t_j)² + v²)) has the sign of its bracket, which grows with v. So no path has to
be followed from far up in the plane down to the axis, and there is no choice between branches. Edges are the values
of H where H'(w) = 0 on the real line, and the distribution function has a closed form in w.

References:
    Voiculescu 1986; Bercovici & Voiculescu 1993 (free infinitely divisible laws); Biane 1997; Marchenko & Pastur 1967.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from crunode.errors import InputError
from crunode.spectra.checks import checked_number
from crunode.spectra.rational_inverse import RationalInverse, bisected

__all__ = ["Law", "free_poisson", "marchenko_pastur", "point_mass", "semicircle"]


@dataclass(frozen=True)
class Law:
    """A spectral law with R(z) = shift + variance·z + Σ rate·jump/(1 − jump·z).

    `law + law` is the free sum: the spectrum of A + B for large matrices A and B in general position. `law + number`
    shifts, `number * law` scales.

    Attributes:
        shift: a.
        semicircular: σ², the variance of the semicircle in the sum.
        rates: r_i, one for each jump.
        jumps: t_i, none of them 0, all different.

    Raises:
        InputError: A number is not finite, a variance or rate is negative, or rates and jumps do not pair.

    Example:
        >>> law = marchenko_pastur(0.5) + semicircle(0.3)
        >>> law.edges.round(4)
        array([[-0.1763,  2.9881]])
        >>> law.density([0.5, 5.0]).round(4)
        array([0.5305, 0.    ])
        >>> round(float(law.cdf(0.0)), 5)
        0.0569
        >>> (2 * marchenko_pastur(4.0)).atoms
        ((0.0, 0.75),)
    """

    shift: float = 0.0
    semicircular: float = 0.0
    rates: tuple[float, ...] = ()
    jumps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.jumps):
            raise InputError(f"expected one rate for each jump, got {len(self.rates)} rates, {len(self.jumps)} jumps")
        total: dict[float, float] = {}
        for rate, jump in zip(self.rates, self.jumps, strict=True):
            at = checked_number(jump, "jump")
            total[at] = total.get(at, 0.0) + checked_number(rate, "rate", least=0.0)
        kept = sorted((jump, rate) for jump, rate in total.items() if rate > 0 and jump * jump > 0)
        object.__setattr__(self, "shift", checked_number(self.shift, "shift"))
        object.__setattr__(self, "semicircular", checked_number(self.semicircular, "variance", least=0.0))
        object.__setattr__(self, "rates", tuple(rate for _, rate in kept))
        object.__setattr__(self, "jumps", tuple(jump for jump, _ in kept))
        if not math.isfinite(self.mean) or not math.isfinite(self.variance):
            raise InputError(f"expected numbers whose squares are finite, got {self!r}; scale the law down")

    def __add__(self, other: Law | float) -> Law:
        if isinstance(other, Law):
            rates, jumps = self.rates + other.rates, self.jumps + other.jumps
            return Law(self.shift + other.shift, self.semicircular + other.semicircular, rates, jumps)
        by = checked_number(other, "what is added to a law", advice="a law, or a number to shift it by")
        return Law(self.shift + by, self.semicircular, self.rates, self.jumps)

    __radd__ = __add__

    def __sub__(self, other: Law | float) -> Law:
        return self + (-1.0) * other

    def __mul__(self, factor: float) -> Law:
        s = checked_number(factor, "the factor of a law")
        return Law(s * self.shift, s * s * self.semicircular, self.rates, tuple(s * jump for jump in self.jumps))

    __rmul__ = __mul__

    def __neg__(self) -> Law:
        return -1.0 * self

    @property
    def mean(self) -> float:
        """The mean, m = a + Σ r_i t_i."""
        return self.shift + sum(r * t for r, t in zip(self.rates, self.jumps, strict=True))

    @property
    def variance(self) -> float:
        """σ² + Σ r_i t_i²."""
        return self.semicircular + sum(r * t * t for r, t in zip(self.rates, self.jumps, strict=True))

    def cumulant(self, order: int) -> float:
        """The free cumulant κ_k of an order: R(z) = Σ κ_k z^(k−1).

        Example:
            >>> [marchenko_pastur(0.5).cumulant(k) for k in (1, 2, 3)]
            [1.0, 0.5, 0.25]
        """
        if isinstance(order, bool) or not isinstance(order, int) or order < 1:
            raise InputError(f"expected the order of a cumulant as a whole number from 1 up, got {order!r}")
        if order < 3:
            return self.mean if order == 1 else self.variance
        return float(sum(r * t**order for r, t in zip(self.rates, self.jumps, strict=True)))

    def moments(self, order: int) -> np.ndarray:
        """The moments ∫ x^k dρ for k = 1, ..., `order`, by the free moment-cumulant recursion (Speicher 1994).

        Example:
            >>> semicircle(1.0).moments(6)
            array([0., 1., 0., 2., 0., 5.])
        """
        cumulants = [self.cumulant(k) for k in range(1, order + 1)]
        series = np.zeros(order + 1)
        series[0] = 1.0
        for k in range(1, order + 1):
            # M(z) = 1 + Σ κ_s (z M(z))^s: the coefficient of z^k needs lower ones only.
            power, total = np.eye(1, k + 1)[0], 0.0
            for s in range(1, k + 1):
                power = np.convolve(power, series[: k + 1])[: k + 1]
                total += cumulants[s - 1] * power[k - s]
            series[k] = total
        return series[1:]

    @cached_property
    def _inverse(self) -> RationalInverse:
        pairs = [(t, r * t * t) for r, t in zip(self.rates, self.jumps, strict=True)]
        if self.semicircular:
            pairs.append((0.0, self.semicircular))
        found = np.array(sorted(pairs), dtype=np.float64).reshape(-1, 2)
        return RationalInverse(self.mean, found[:, 0], found[:, 1])

    def inverse(self, w: Any) -> np.ndarray:
        """H(w) = 1/G + R(G) at G = 1/w: the point that has 1/w for its Stieltjes transform, R that of free sums.

        Example:
            >>> float(semicircle(0.5).inverse(2.0))  # w + σ²/w
            2.125
        """
        return self._inverse(np.asarray(w))

    @cached_property
    def turns(self) -> np.ndarray:
        """Where H' = 0 on the real line, ascending: pairs between which the law has its density."""
        return self._inverse.turns()

    @cached_property
    def edges(self) -> np.ndarray:
        """Ends of the intervals that carry a density, shape (intervals, 2), ascending.

        Edges are values of H where H' = 0, so that an error of 1e-8 in w is one of 1e-16 in the edge.
        """
        return self.inverse(self.turns).reshape(-1, 2)

    @cached_property
    def edge_slopes(self) -> np.ndarray:
        """Slopes s with ρ(x) ≈ s·√d/π at a distance d from each edge, shape as `edges`: s = √(2/abs(H''(w)))/w².

        The extreme eigenvalues of n there spread by (s n)^(−2/3) times a Tracy-Widom number. Infinite at an edge where
        the density has no bound.

        Example:
            >>> semicircle(1.0).edge_slopes
            array([[1., 1.]])
        """
        bend = 2 * (self._inverse.weight / (self.turns[:, None] - self._inverse.at) ** 3).sum(1)
        with np.errstate(divide="ignore"):
            found: np.ndarray = (np.sqrt(2 / np.abs(bend)) / self.turns**2).reshape(-1, 2)
        return found

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """Positions and masses of the atoms: one at `shift` of 1 − Σ r_i where that is positive and σ² = 0."""
        mass = 1 - math.fsum(self.rates)
        return ((self.shift, mass),) if self.semicircular == 0 and mass > 0 else ()

    def _inside(self, x: np.ndarray) -> np.ndarray:
        within = (x[..., None] > self.edges[:, 0]) & (x[..., None] < self.edges[:, 1])
        return np.asarray(within.any(-1))

    def density(self, x: Any) -> np.ndarray:
        """ρ(x) of the part that has a density; atoms are left out.

        Raises:
            InputError: A point is not finite.

        Example:
            >>> float(semicircle(1.0).density(0.0) * np.pi)
            1.0
        """
        x = _points(x)
        found = np.zeros(x.shape)
        inside = self._inside(x)
        if inside.any():
            found[inside] = -(1 / self._inverse.upper_roots(x[inside])).imag / math.pi
        # At the ends the density is 0, or without bound where w = 0 is a root there.
        ends = self.edges[np.abs(self.turns.reshape(-1, 2)) < 1e-12]
        found[np.isin(x, ends)] = math.inf
        return found

    @cached_property
    def masses(self) -> np.ndarray:
        """Mass of each interval of `edges`: Σ r_i over jumps within, in w, and 1 − Σ r_i where 0 is within."""
        turns = self.turns.reshape(-1, 2)
        jumps, rates = np.array([*self.jumps, 0.0]), np.array([*self.rates, 1 - math.fsum(self.rates)])
        found: np.ndarray = (((turns[:, :1] < jumps) & (jumps < turns[:, 1:])) * rates).sum(1)
        return found

    def cdf(self, x: Any) -> np.ndarray:
        """ρ((−∞, x]), atoms included, in closed form at the root w of H(w) = x.

        With θ(w) = 1 − arg(w)/π, it is θ(w) + Σ r_i (θ(w − t_i) − θ(w) − Im(t_i/(w − t_i))/π) − σ² Im(1/w²)/2π, the
        integral of −Im(H'(w)/w)/π along the curve of roots.

        Raises:
            InputError: A point is not finite.

        Example:
            >>> marchenko_pastur(4.0).cdf([-1.0, 0.0, 9.0])
            array([0.  , 0.75, 1.  ])
        """
        x = _points(x)
        found: np.ndarray = ((x[..., None] >= self.edges[:, 1]) * self.masses).sum(-1)
        for at, mass in self.atoms:
            found = found + mass * (x >= at)
        inside = self._inside(x)
        if inside.any():
            w, rates, jumps = self._inverse.upper_roots(x[inside]), np.array(self.rates), np.array(self.jumps)
            off = w[..., None] - jumps
            parts = rates * (_turned(off) - _turned(w)[..., None] - (jumps / off).imag / math.pi)
            found = np.array(found)
            found[inside] = _turned(w) + parts.sum(-1) - self.semicircular * (1 / w**2).imag / (2 * math.pi)
        return found.clip(0.0, 1.0)

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest x with cdf(x) ≥ p, by bisection.

        Raises:
            InputError: A share is outside 0 to 1.

        Example:
            >>> abs(float(semicircle(1.0).quantile(0.5))) < 1e-12
            True
        """
        p = _points(p)
        if (p < 0).any() or (p > 1).any():
            raise InputError("expected shares p from 0 to 1, got some outside")
        ends = np.concatenate([self.edges.ravel(), [at for at, _ in self.atoms]])
        return bisected(lambda x: self.cdf(x) < p, np.full(p.shape, ends.min()), np.full(p.shape, ends.max()))


def _points(x: Any) -> np.ndarray:
    try:
        points = np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected real points, got {type(x).__name__} ({error})") from error
    if not np.isfinite(points).all():
        raise InputError("expected finite points, got some that are not")
    return points


def _turned(w: np.ndarray) -> np.ndarray:
    """1 − arg(w)/π for Im w ≥ 0, exact also where it is small."""
    found: np.ndarray = np.arctan2(w.imag, -w.real) / math.pi
    return found


def marchenko_pastur(ratio: float, variance: float = 1.0) -> Law:
    """The law of XᵀX/m, X of shape (m, d) with entries of the given variance, for ratio d/m.

    Density √((x − x₋)(x₊ − x))/(2πσ²φx) between x± = σ²(1 ± √φ)², and an atom of 1 − 1/φ at 0 for φ > 1. It is the free
    Poisson law of rate 1/φ and jump σ²φ: R(z) = σ²/(1 − σ²φz).

    Args:
        ratio: φ = d/m: parameters over data, for the Jacobian of a network.
        variance: σ², the variance of the entries and the mean of the law.

    Raises:
        InputError: A ratio or variance that is not above 0.

    References:
        Marchenko & Pastur 1967.

    Example:
        >>> marchenko_pastur(0.25).edges
        array([[0.25, 2.25]])
    """
    phi = checked_number(ratio, "ratio", least=0.0, above=True, advice="it is the number of columns over that of rows")
    return free_poisson(1 / phi, checked_number(variance, "variance", least=0.0, above=True) * phi)


def semicircle(sigma: float, center: float = 0.0) -> Law:
    """The law of a symmetric matrix whose n² entries have variance σ²/n: density √(4σ² − x²)/(2πσ²), R(z) = σ² z.

    Args:
        sigma: Standard deviation; the radius is 2σ. At 0 it is a point mass.
        center: Its middle.

    References:
        Wigner 1958.

    Example:
        >>> semicircle(0.5).edges
        array([[-1.,  1.]])
    """
    return Law(checked_number(center, "center"), checked_number(sigma, "sigma", least=0.0) ** 2)


def free_poisson(rate: float, jump: float) -> Law:
    """The law of jump · XᵀX, X of shape (rate·n, n) with entries of variance 1/n: R(z) = rate·jump/(1 − jump·z).

    Args:
        rate: Number of rows over number of columns.
        jump: Size and sign of each term; at 0 the law is a point mass.

    Example:
        >>> free_poisson(0.25, -2.0).atoms
        ((0.0, 0.75),)
    """
    return Law(rates=(rate,), jumps=(jump,))


def point_mass(at: float) -> Law:
    """All eigenvalues at one place: the law that shifts others.

    Example:
        >>> point_mass(2.0).cdf([1.0, 2.0])
        array([0., 1.])
    """
    return Law(shift=at)
