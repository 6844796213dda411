"""Small nonlinear least-squares problems, by Levenberg-Marquardt steps with difference quotients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Minimum", "jacobian_at", "least_squares"]

_STEPS = 200


@dataclass(frozen=True)
class Minimum:
    """Where a sum of squares is least.

    Attributes:
        at: The parameters.
        residuals: The residuals there.
        jacobian: Their derivatives, shape (residuals, parameters).
        converged: Whether steps became too small to matter.
    """

    at: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    converged: bool

    @property
    def covariance(self) -> np.ndarray:
        """(JᵀJ)⁻¹: covariance of the parameters for residuals of variance 1; not a number at an edge of the domain."""
        if not np.isfinite(self.jacobian).all():
            return np.full((len(self.at), len(self.at)), np.nan)
        return np.linalg.pinv(self.jacobian.T @ self.jacobian)


def jacobian_at(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """Central difference quotients, shape (values, parameters).

    Example:
        >>> jacobian_at(lambda p: p**2, np.array([1.0, 3.0])).round(6)
        array([[2., 0.],
               [0., 6.]])
    """
    steps = 1e-6 * np.maximum(np.abs(at), 1.0)
    columns = [
        (function(at + h * e) - function(at - h * e)) / (2 * h) for h, e in zip(steps, np.eye(len(at)), strict=True)
    ]
    return np.stack(columns, axis=1)


def least_squares(residuals: Callable[[np.ndarray], np.ndarray], start: np.ndarray) -> Minimum:
    """The parameters with the least sum of squares, from a start; residuals that are not finite are never accepted.

    At most 200 steps are made.

    Example:
        >>> found = least_squares(lambda p: np.array([p[0] - 2, p[0] * p[1] - 6]), np.array([1.0, 1.0]))
        >>> found.at.round(6), found.converged
        (array([2., 3.]), True)
    """
    at, rest = start, residuals(start)
    slope, damping = jacobian_at(residuals, at), 1e-3
    for _ in range(_STEPS):
        normal, gradient = slope.T @ slope, slope.T @ rest
        size = np.trace(normal)
        if not size:
            return Minimum(at, rest, slope, False)
        try:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12 * size), -gradient)
        except np.linalg.LinAlgError:  # a parameter that shows nowhere, and damping that has become too small
            damping *= 10
            continue
        new = residuals(at + step)
        if new @ new <= rest @ rest:  # never with what is not finite
            small = np.abs(step).max() <= 1e-9 * max(1.0, np.abs(at).max())
            at, rest, damping = at + step, new, damping / 10
            if small:
                return Minimum(at, rest, jacobian_at(residuals, at), True)
            slope = jacobian_at(residuals, at)
        else:
            damping *= 10
            if damping > 1e12:  # no shorter step helps either: as low as rounding allows
                return Minimum(at, rest, slope, True)
    return Minimum(at, rest, slope, False)
