"""The equations f(w) = y behind a landscape of squared errors, and steps that solve them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Finding
from crunode.core.rng import preserved_rng
from crunode.curvature.jacobian import Evaluation, output_jacobian
from crunode.curvature.linearized import linearize
from crunode.curvature.piecewise import operations
from crunode.curvature.rank import NumericRank, numeric_rank
from crunode.errors import InputError

__all__ = ["Factors", "SquaredErrors", "positive", "solved"]

# Entries of J that are held at once.
_ENTRIES = 1 << 25
# Damping to begin with, relative to the largest eigenvalue of JJᵀ; and by how much it grows or falls.
_DAMPING, _FACTOR = 1e-3, 10.0


def positive(value: Any) -> bool:
    """Whether a value is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class Factors:
    """J = U diag(s) Vᵀ without what is zero to rounding."""

    left: Tensor
    values: Tensor
    right: Tensor
    rank: NumericRank

    def tangent(self, v: Tensor) -> Tensor:
        """The part of v in the null space of J."""
        for _ in range(2):  # the second time takes away what rounding left
            v = v - self.right.T @ (self.right @ v)
        return v

    def back(self, residual: Tensor, damping: float = 0.0) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ times a residual; J⁺ without damping."""
        amounts = self.values / (self.values.square() + damping) * (self.left.T @ residual)
        return self.right.T @ amounts


class SquaredErrors:
    """The equations f(w) = y of a landscape of squared errors, scaled so that its loss is half the mean square."""

    def __init__(self, land: Landscape) -> None:
        self._seen = Evaluation(land)
        linear = linearize(land)
        loss = linear.output_loss()
        if not loss.squared:
            raise InputError(
                f"expected a loss of squared errors, which is zero where all outputs are right, got {land.loss_name}; "
                'use "gaussian" or mse_loss'
            )
        self.shape = linear.shape
        if self.shape[0] * self.shape[1] > _ENTRIES:
            raise InputError(
                f"expected a Jacobian of at most {_ENTRIES} entries, got {self.shape[0]} × {self.shape[1]}; take fewer "
                "examples, or restrict the landscape to some parameters"
            )
        self._root, self._land = float(loss.root), land
        self._target = linear.outputs - loss.slope / self._root**2
        self._scale = self._root * max(float(self._target.abs().max()), float(linear.outputs.abs().max()), 1e-30)
        self.center = self._seen.center.double()
        self._rows = max(1, (1 << 22) // (linear.width * max(land.dim, land.activations)))
        with torch.enable_grad(), preserved_rng():
            batch = next(iter(land.passes(2)))
            value = self._seen.outputs(self._seen.center.clone().requires_grad_(), batch)
        kinked = operations(value).kinked
        self.findings = (Finding.of("TOPO1108", ", ".join(kinked)),) if kinked else ()

    def limit(self, tolerance: Any) -> float:
        """The tolerance, or what rounding leaves of the loss."""
        if not positive(tolerance):
            raise InputError(f"expected tolerance as a positive loss, got {tolerance!r}")
        return max(float(tolerance), (30 * torch.finfo(self._seen.dtype).eps * self._scale) ** 2)

    def residual(self, w: Tensor) -> Tensor:
        """Outputs minus targets, c (f(w) − y), where the loss is half its square over the examples."""
        point = w.to(self._seen.center)
        with torch.no_grad(), preserved_rng():
            parts = [self._seen.outputs(point, batch).reshape(-1) for batch in self._land.passes()]
        return self._root * (torch.cat(parts).double() - self._target)

    def loss(self, residual: Tensor) -> float:
        """Half the squared residual, mean over examples."""
        return float(residual @ residual) / (2 * self._land.data.rows)

    def factors(self, w: Tensor) -> Factors:
        """The factors of c J(w)."""
        point = w.to(self._seen.center)
        with preserved_rng():
            rows = [output_jacobian(self._seen, point, batch) for batch in self._land.passes(self._rows)]
        left, values, right = torch.linalg.svd(self._root * torch.cat(rows), full_matrices=False)
        resolution = 30 * torch.finfo(self._seen.dtype).eps
        rank = numeric_rank(values.cpu().numpy(), max(self.shape), resolution)
        keep = rank.rank
        return Factors(left[:, :keep], values[:keep], right[:keep], rank)


def solved(fit: SquaredErrors, steps: int, limit: float) -> tuple[Tensor, float, int]:
    """A point of zero loss by Levenberg-Marquardt steps from the center, its loss, and the steps taken."""
    w = fit.center.clone()
    residual = fit.residual(w)
    loss, mu, taken = fit.loss(residual), _DAMPING, 0
    factors = fit.factors(w)
    while loss > limit and taken < steps and factors.rank.rank and mu < 1e12:
        taken += 1
        trial = w - factors.back(residual, mu * float(factors.values[0]) ** 2)
        new = fit.residual(trial)
        if fit.loss(new) < loss:
            w, residual, loss = trial, new, fit.loss(new)
            factors, mu = fit.factors(w), max(mu / _FACTOR, 1e-16)
        else:
            mu *= _FACTOR
    if loss <= limit and factors.rank.rank:  # one step more costs little and brings the loss down to rounding
        trial = w - factors.back(residual)
        if fit.loss(fit.residual(trial)) < loss:
            w, loss, taken = trial, fit.loss(fit.residual(trial)), taken + 1
    return w, loss, taken
