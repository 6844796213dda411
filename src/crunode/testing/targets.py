"""Landscapes whose posteriors are known exactly: Gaussian ones, as a bare function and as a module with data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.sampling.posterior import Flat, Gaussian, Posterior

__all__ = ["Target", "function_target", "module_target"]

CURVATURES = (1.0, 2.0, 3.0, 4.0)
LEVELS = (50.0, 200.0)
PRECISION = 20.0
ROWS = 60


@dataclass(frozen=True)
class Target:
    """A posterior with, at each level of nbeta, the mean and the precision matrix it has by theory.

    Attributes:
        name: What to call it in messages.
        posterior: What is sampled.
        means: Exact mean at each level.
        precisions: Exact inverse covariance at each level.
        excess: Exact mean of the excess loss at each level.
    """

    name: str
    posterior: Posterior
    means: tuple[Tensor, ...]
    precisions: tuple[Tensor, ...]
    excess: tuple[float, ...]

    def stiffest(self, level: int) -> float:
        """The largest curvature of the potential at a level."""
        return float(torch.linalg.eigvalsh(self.precisions[level])[-1])


def function_target() -> Target:
    """L(w) = ½ (w − m)ᵀ H (w − m) without a prior, on two levels of nbeta, seen from a point that is not m.

    The posterior has mean m and covariance H⁻¹/nβ, and E[L] = d/(2nβ).

    Example:
        >>> target = function_target()
        >>> target.posterior.levels, len(target.means[0])
        ((50.0, 200.0), 4)
    """
    generator = torch.Generator().manual_seed(17)
    dim = len(CURVATURES)
    axes, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    hessian = axes @ torch.diag(torch.tensor(CURVATURES, dtype=torch.float64)) @ axes.T
    minimum = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    start = minimum + 0.1
    land = Landscape.of_function(partial(_quadratic, hessian=hessian, minimum=minimum), start, n=1000)
    depth = float(_quadratic(start, hessian, minimum))
    return Target(
        "function",
        Posterior(land, LEVELS, Flat()),
        (minimum,) * len(LEVELS),
        tuple(level * hessian for level in LEVELS),
        tuple(dim / (2 * level) - depth for level in LEVELS),
    )


def module_target(scale: float = 1.0) -> Target:
    """Linear regression with a Gaussian prior and part of the weights frozen.

    With H the Hessian among the free weights and g the gradient at the center, the posterior has precision nβ H + γ
    and mean w* − nβ (nβ H + γ)⁻¹ g: the covariance given the frozen weights, not the marginal one.

    Args:
        scale: Factor on the loss; nbeta is divided by it, so that the posterior stays the same.

    Example:
        >>> module_target().posterior.landscape.packing.names
        ('moving',)
    """
    generator = torch.Generator().manual_seed(18)
    model = _Regression()
    x = torch.randn(ROWS, 5, generator=generator, dtype=torch.float64) @ torch.diag(
        torch.tensor([0.8, 1.0, 1.2, 1.0, 1.0], dtype=torch.float64)
    )
    x[:, 3:] += 0.7 * x[:, :2]
    noise = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64)
    y = x @ torch.cat([model.moving, model.still]).detach()[:, None] + 0.5 + 0.3 * noise
    land = Landscape(model, (x, y), partial(_scaled_loss, scale=scale)).restrict("moving")
    nbeta = 100.0
    center = land.center
    residual = x @ torch.cat([model.moving, model.still]).detach()[:, None] - y
    free = x[:, :3]
    slope = (free.T @ residual)[:, 0] / ROWS
    hessian = free.T @ free / ROWS
    precision = nbeta * hessian + PRECISION * torch.eye(3, dtype=torch.float64)
    shift = -nbeta * torch.linalg.solve(precision, slope)
    spread = torch.linalg.inv(precision)
    excess = float(slope @ shift + 0.5 * shift @ hessian @ shift + 0.5 * torch.trace(hessian @ spread))
    return Target(
        "module",
        Posterior(land, nbeta / scale, Gaussian(PRECISION)),
        (center + shift,),
        (precision,),
        (scale * excess,),
    )


class _Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.moving = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
        self.still = nn.Parameter(torch.tensor([1.5, -0.5], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.moving, self.still])[:, None]


def _quadratic(w: Tensor, hessian: Tensor, minimum: Tensor) -> Tensor:
    return 0.5 * (w - minimum) @ hessian @ (w - minimum)


def _scaled_loss(model: nn.Module, batch: Any, scale: float) -> Tensor:
    x, y = batch
    return torch.mul((model(x) - y).square().sum(1), 0.5 * scale)
