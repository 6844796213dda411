"""The two-layer networks of Murfet et al. 2020, section 6, and the true networks s_m in them.

f(x, w) = c + Σ_i q_i σ(⟨w_i, x⟩ + b_i) with H = 5 units on [−1, 1]², 4H + 1 parameters, σ the ReLU or the SiLU
x/(1 + e^(−τx)) with τ = 100. The true network s_m has m units that look in the directions of the m-th roots of unity,
turned by half an angle, with b = −1/3 and q = 1; its other units are zero.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from crunode import InputError, Landscape
from crunode.core import derived_seed

__all__ = ["HIDDEN", "TwoLayer", "live_units", "sampled", "true_network"]

HIDDEN, SHARPNESS = 5, 100.0


class TwoLayer(nn.Module):
    """f(x, w) for inputs of shape (examples, 2); outputs have shape (examples, 1).

    Args:
        hidden: H.
        activation: "relu" or "silu".

    Example:
        >>> sum(p.numel() for p in TwoLayer(5).parameters())
        21
    """

    def __init__(self, hidden: int = HIDDEN, activation: str = "relu") -> None:
        super().__init__()
        if activation not in ("relu", "silu"):
            raise InputError(f"expected activation as 'relu' or 'silu', got {activation!r}")
        self.activation = activation
        self.w = nn.Parameter(torch.zeros(hidden, 2))
        self.b = nn.Parameter(torch.zeros(hidden))
        self.q = nn.Parameter(torch.zeros(hidden))
        self.c = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs at `x`."""
        # Two multiplications rather than a product of matrices: with as few features that is faster in batches.
        before = x[:, :1] * self.w[:, 0] + x[:, 1:] * self.w[:, 1] + self.b
        after = torch.relu(before) if self.activation == "relu" else before * torch.sigmoid(SHARPNESS * before)
        return (after * self.q).sum(1, keepdim=True) + self.c


def true_network(m: int, hidden: int = HIDDEN, activation: str = "relu") -> TwoLayer:
    """The network s_m.

    Example:
        >>> net = true_network(3)
        >>> [round(v, 3) for v in net.w[0].tolist()]  # (cos π/3, sin π/3)
        [0.5, 0.866]
    """
    if not 1 <= m <= hidden:
        raise InputError(f"expected m from 1 to {hidden} units, got {m}")
    net = TwoLayer(hidden, activation)
    with torch.no_grad():
        for i in range(m):
            angle = 2 * math.pi * (i + 0.5) / m
            net.w[i] = torch.tensor([math.cos(angle), math.sin(angle)])
            net.b[i], net.q[i] = -1 / 3, 1.0
    return net


def sampled(
    m: int,
    n: int,
    *,
    noise: float = 1.0,
    activation: str = "relu",
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Landscape:
    """The landscape of n examples of the truth s_m at s_m: inputs uniform on [−1, 1]², labels with normal noise.

    The loss is ½ (y − f(x))², the negative logarithm of the likelihood but for a constant.

    Example:
        >>> sampled(3, 50, noise=0.0).n
        50
    """
    generator = torch.Generator().manual_seed(derived_seed(seed, 81))
    x = (2 * torch.rand(n, 2, generator=generator) - 1).to(dtype)
    net = true_network(m, activation=activation).to(dtype)
    with torch.no_grad():
        y = net(x) + noise * torch.randn(n, 1, generator=generator).to(dtype)
    return Landscape(net, (x, y), "gaussian", device=device)


def live_units(land: Landscape, positions: np.ndarray) -> np.ndarray:
    """How many hidden units are positive at some example, for parameter vectors along the last axis.

    Args:
        land: A landscape of `sampled`.
        positions: Parameter vectors, shape (..., dim).

    Example:
        >>> land = sampled(4, 100)
        >>> int(live_units(land, land.center.cpu().numpy()))
        4
    """
    hidden = land.packing.shapes[0][0]
    w, b = positions[..., : 2 * hidden], positions[..., 2 * hidden : 3 * hidden]
    w = w.reshape(*positions.shape[:-1], hidden, 2).astype(np.float64)
    # The largest value of a linear function over points is at a corner of their hull.
    highest = np.full(b.shape, -np.inf)
    for corner in _hull(land.data.tensors()[0].double().cpu().numpy()):
        np.maximum(highest, w @ corner, out=highest)
    found: np.ndarray = (highest + b > 0).sum(-1)
    return found


def _hull(points: np.ndarray) -> np.ndarray:
    """Corners of the convex hull of points in the plane (Andrew 1979)."""
    ordered = points[np.lexsort((points[:, 1], points[:, 0]))]
    found: list[np.ndarray] = []
    for way in (ordered, ordered[::-1]):
        side: list[np.ndarray] = []
        for point in way:
            while len(side) > 1 and _turn(side[-2], side[-1], point) <= 0:
                side.pop()
            side.append(point)
        found += side[:-1]
    return np.array(found)


def _turn(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))
