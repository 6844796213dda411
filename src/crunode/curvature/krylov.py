"""Linear parts by products with vectors alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from crunode.curvature.outputs import OutputMap, Random

__all__ = ["KrylovMap"]

_LANCZOS, _CHECK, _SETTLED = 1500, 100, 1e-3
_PROBES = 2
_SOLVE_STEPS, _SOLVE_TO = 300, 0.05


class KrylovMap(OutputMap):
    """With products Jv and Jᵀu alone."""

    method = "krylov"
    resolution = 1e-4

    def at(self, w: Tensor) -> _Krylov:
        """The products at w."""
        return _Krylov(self, w)


class _Krylov:
    def __init__(self, outputs: KrylovMap, w: Tensor) -> None:
        self._map, self._w = outputs, w.detach()
        self._pull: list[Callable[[Tensor], Tensor]] = []
        self._sizes = []
        for k in range(len(outputs._batches)):
            value, pull = torch.func.vjp(lambda v, k=k: outputs.part(k, v), self._w)
            self._pull.append(lambda u, pull=pull: pull(u)[0])
            self._sizes.append(value.numel())
        self._top = 0.0

    @property
    def top(self) -> float:
        """The largest eigenvalue of JJᵀ, by power iteration."""
        if not self._top:
            u = torch.ones(self._map.rows, dtype=torch.float64, device=self._w.device)
            for _ in range(12):
                u = self.gram(u / u.norm())
            self._top = float(u.norm())
        return self._top

    def back(self, u: Tensor) -> Tensor:
        """Jᵀu."""
        self._map.gradients += 1
        parts = [pull(v) for pull, v in zip(self._pull, u.split(self._sizes), strict=True)]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def gram(self, u: Tensor) -> Tensor:
        """JJᵀu."""
        v = self.back(u)
        self._map.gradients += 1
        found = [
            torch.func.jvp(lambda x, k=k: self._map.part(k, x), (self._w,), (v,))[1] for k in range(len(self._pull))
        ]
        return torch.cat(found)

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ F by conjugate gradients, for μ relative to the largest eigenvalue."""
        mu, u, rest = damping * self.top, torch.zeros_like(residual), residual.clone()
        along, size = rest.clone(), float(rest @ rest)
        goal = _SOLVE_TO**2 * size
        for _ in range(_SOLVE_STEPS):
            if size <= goal:
                break
            product = self.gram(along).add_(along, alpha=mu)
            share = size / float(along @ product)
            u.add_(along, alpha=share)
            rest.sub_(product, alpha=share)
            last, size = size, float(rest @ rest)
            along = rest + (size / last) * along
        return self.back(u)

    def rank(self, cut: float, band: float, random: Random) -> tuple[float, float]:
        """Weight of the spectrum above `cut`, from Lanczos steps on random vectors, and its statistical error."""
        rows = self._map.rows
        if not self.top > 0:
            return 0.0, 0.0
        shares = [self._weight(random(rows), cut) for _ in range(_PROBES)]
        share = sum(shares) / _PROBES
        return rows * share, math.sqrt(max(2 * rows * share * (1 - share), 0.0) / _PROBES)

    def _weight(self, u: Tensor, cut: float) -> float:
        """The share of ‖u‖² in eigenvectors of JJᵀ with eigenvalues above cut² times the largest."""
        diagonal: list[float] = []
        beside: list[float] = []
        before, now, last = torch.zeros_like(u), u / u.norm(), math.nan
        for step in range(1, _LANCZOS + 1):
            product = self.gram(now)
            diagonal.append(float(product @ now))
            product.sub_(now, alpha=diagonal[-1])
            if beside:
                product.sub_(before, alpha=beside[-1])
            size = float(product.norm())
            done = size <= 1e-12 * self.top
            if done or step % _CHECK == 0:
                share = _above(diagonal, beside, cut)
                if done or abs(share - last) <= _SETTLED * share:
                    return share
                last = share
            beside.append(size)
            before, now = now, product / size
        return last


def _above(diagonal: list[float], beside: list[float], cut: float) -> float:
    """Weight of Ritz values above cut² times the largest: squares of the first entries of the eigenvectors."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), 1) if beside else 0.0
    matrix += torch.diag(torch.tensor(beside, dtype=torch.float64), -1) if beside else 0.0
    values, axes = torch.linalg.eigh(matrix)
    return float(axes[0].square()[values > cut**2 * float(values[-1])].sum())
