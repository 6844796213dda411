"""Networks with one hidden layer, n inputs, units and outputs, on m examples: ratio φ = 2n²/(mn) = 2n/m, no biases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from crunode import Landscape
from crunode.curvature import ggn, residual_part
from crunode.jobs import place

__all__ = [
    "KINDS",
    "OneHidden",
    "examples_of",
    "hessian_parts",
    "initial",
    "inputs_of",
    "landscape",
    "trained",
]

# Activation, and the variance of weights times n for which both blocks of H0 have about the mean eigenvalue 1.
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "linear": (lambda z: z, 1.0),
    "relu": (torch.relu, 2.0),
    "tanh": (torch.tanh, 1.0),
}
"""Kinds of hidden units."""


def examples_of(width: int, ratio: float) -> int:
    """Examples m = 2n/φ for a width n."""
    return round(2 * width / ratio)


class OneHidden(nn.Module):
    """ŷ = W₂ φ(W₁ x).

    Args:
        kind: One of `KINDS`.
        first: W₁, shape (n, n).
        second: W₂, shape (n, n).
    """

    def __init__(self, kind: str, first: Tensor, second: Tensor) -> None:
        super().__init__()
        self.act = KINDS[kind][0]
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs for rows of inputs."""
        return self.act(x @ self.first.T) @ self.second.T


def inputs_of(width: int, many: int, generator: torch.Generator) -> Tensor:
    """Normal inputs of variance 1, shape (many, width), in double precision."""
    return torch.randn(many, width, generator=generator, dtype=torch.float64)


def initial(kind: str, width: int, generator: torch.Generator) -> OneHidden:
    """A network with normal weights, of a size that gives H0 the mean eigenvalue 1 (less for tanh)."""
    scale = math.sqrt(KINDS[kind][1] / width)
    first, second = (scale * inputs_of(width, width, generator) for _ in range(2))
    return OneHidden(kind, first, second)


def landscape(net: OneHidden, x: Tensor, y: Tensor) -> Landscape:
    """L = (1/2m) Σ (ŷ − y)², so that the energy is ε = L/n."""
    there = place()
    return Landscape(net, (x.to(there), y.to(there)), "gaussian", device=there)


def hessian_parts(land: Landscape) -> tuple[np.ndarray, np.ndarray]:
    """H0 and H1 at the center."""
    return tuple(part(land).dense().cpu().double().numpy() for part in (ggn, residual_part))  # type: ignore[return-value]


def trained(kind: str, nets: Sequence[OneHidden], x: Tensor, y: Tensor, steps: int) -> tuple[list[OneHidden], Tensor]:
    """Adam on all data for several networks at once, the rate falling to nothing; also their energies at the end.

    Args:
        kind: One of `KINDS`.
        nets: Networks of one width; they are left as they were.
        x: Inputs of each network, shape (nets, m, n).
        y: Their targets.
        steps: How many.
    """
    there = place()
    act, (many, examples, width) = KINDS[kind][0], x.shape
    x, y = x.to(there), y.to(there)
    layers = [torch.stack([getattr(net, name).detach() for net in nets]).to(there) for name in ("first", "second")]
    free = [layer.clone().requires_grad_() for layer in layers]

    def energies() -> Tensor:
        outputs = act(x @ free[0].mT) @ free[1].mT
        return (outputs - y).square().sum((1, 2)) / (2 * examples * width)

    rate = 0.3 / math.sqrt(width)
    first, second = ([torch.zeros_like(layer) for layer in layers] for _ in range(2))
    for step in range(steps):
        now = 0.5 * rate * (1 + math.cos(math.pi * step / steps))
        with torch.enable_grad():
            gradients = torch.autograd.grad(energies().sum(), free)
        with torch.no_grad():
            for w, g, m, v in zip(free, gradients, first, second, strict=True):
                m.lerp_(g, 0.1)
                v.lerp_(g * g, 0.01)
                mean, square = m / (1 - 0.9 ** (step + 1)), v / (1 - 0.99 ** (step + 1))
                w.sub_(now * mean / (square.sqrt() + 1e-12))
    with torch.no_grad():
        found = energies().cpu()
    ends = [OneHidden(kind, *(layer[k].detach().cpu().clone() for layer in free)) for k in range(many)]
    return ends, found
