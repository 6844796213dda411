"""Roots and turns of H(w) = w + m + Σ_j c_j / (w − t_j), the inverse of 1/G for the laws of `crunode.spectra.laws`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["RationalInverse", "bisected"]

_POLISH = 3


@dataclass(frozen=True)
class RationalInverse:
    """H, a function of real or complex points.

    Attributes:
        mean: m.
        at: t_j, ascending.
        weight: c_j.
    """

    mean: float
    at: np.ndarray
    weight: np.ndarray

    def __call__(self, w: np.ndarray) -> np.ndarray:
        """H(w)."""
        found: np.ndarray = w + self.mean + (self.weight / (w[..., None] - self.at)).sum(-1)
        return found

    def slope(self, w: np.ndarray) -> np.ndarray:
        """H'."""
        found: np.ndarray = 1 - (self.weight / (w[..., None] - self.at) ** 2).sum(-1)
        return found

    def turns(self) -> np.ndarray:
        """Where H' = 0 on the real line, ascending."""
        at, weight = self.at, self.weight
        if len(at) == 0:
            return np.empty(0)
        inner, outer = np.sqrt(weight[[0, -1]]), math.sqrt(weight.sum())
        low, high = [at[0] - outer, at[-1] + inner[1]], [at[0] - inner[0], at[-1] + outer]
        up = [True, False]  # whether H rises on the left of the turn
        left, right = at[:-1], at[1:]
        middle = bisected(lambda u: (weight / (u[:, None] - at) ** 3).sum(1) > 0, left, right)
        for a, b, c in zip(left, middle, right, strict=True):
            if self.slope(np.array(b)) > 0:  # a gap between two parts of the support
                low, high, up = [*low, a, b], [*high, b, c], [*up, False, True]
        rising = np.array(up)
        return np.sort(bisected(lambda u: (self.slope(u) > 0) == rising, np.array(low), np.array(high)))

    def roots(self, z: np.ndarray) -> np.ndarray:
        """All roots w of H(w) = z, along a last axis."""
        at, weight = self.at, self.weight
        size = len(at) + 1
        arrow = np.zeros((*z.shape, size, size), dtype=z.dtype)
        arrow[..., 0, 0] = z - self.mean
        arrow[..., 0, 1:], arrow[..., 1:, 0] = np.sqrt(weight), -np.sqrt(weight)
        arrow[..., range(1, size), range(1, size)] = at
        return np.linalg.eigvals(arrow)

    def _polished(self, w: np.ndarray, z: np.ndarray) -> np.ndarray:
        for _ in range(_POLISH):
            with np.errstate(all="ignore"):
                step = (self(w) - z) / self.slope(w)
                better = np.abs(self(w - step) - z) < np.abs(self(w) - z)
            w = np.where(better, w - step, w)
        return w

    def upper_roots(self, z: np.ndarray) -> np.ndarray:
        """The root w with Im w > 0, at points of the upper half-plane or within the support."""
        roots = self.roots(z).astype(np.complex128)
        with np.errstate(all="ignore"):
            double = np.abs(self.slope(roots)).argmin(-1)
        # Next to an edge rounding can leave the pair of roots real: then it is the one where H' is closest to 0.
        pick = np.where(roots.imag.max(-1) > 0, roots.imag.argmax(-1), double)
        best = np.take_along_axis(roots, pick[..., None], -1)[..., 0]
        polished = self._polished(best, z)
        return np.where(polished.imag > 0, polished, best)


def bisected(goes_up: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Where `goes_up` turns from true to false between `low` and `high`, to the last digit."""
    for _ in range(120):
        middle = 0.5 * (low + high)
        if ((middle <= low) | (middle >= high)).all():
            break
        up = goes_up(middle)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return high
