"""The linear part of the outputs by products with vectors alone: steps by conjugate gradients, ranks by Lanczos.

The rank of J is the number of eigenvalues of JB(JB)ᵀ that are not zero, for any invertible B; with the scaling of
`Kronecker` these lie within some orders of magnitude, and Lanczos steps tell them from zero after some tens. From a
random vector u of n entries, the squared first entries of the eigenvectors of the tridiagonal matrix are weights at its
eigenvalues that represent how |u|² is shared among the eigenvectors of JB(JB)ᵀ (Gauss-Radau quadrature, with a node at
zero), so that n times the weight above a gap estimates the rank r, with standard deviation √(2r(1 − r/n)).

References:
    Golub & Meurant 2010; Ubaru, Chen & Saad 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.kronecker import Kronecker
from crunode.curvature.outputs import OutputMap, Random

__all__ = ["Krylov", "KrylovMap"]

# Eigenvalues are counted above this times their mean; those within this factor of it may be on the wrong side.
_LIMIT, _NEAR = 1e-3, 10.0
_LANCZOS, _CHECK, _SETTLED = 240, 10, 1e-3
_PROBES, _PRECISE = 6, 0.005
_SOLVE_STEPS, _SOLVE_TO, _KERNEL_TO = 200, 0.03, 1e-3
# τ of the scaling: for ranks, where it is to be strong but not to lift rounding; for long steps, which are to be about
# as short as can be; for directions that J does not see.
_STRONG, _MILD, _KERNEL = 1e-9, 0.02, 1e-4
# Bytes for intermediate results that are kept, and for Lanczos vectors.
_KEPT, _SHARE = 1 << 28, 0.2
_POWER = 12


class KrylovMap(OutputMap):
    """With products Jv and Jᵀu alone."""

    method = "krylov"
    resolution = 1e-7
    missed = 5e-3
    flat = 1e-6
    chords = 0

    def __init__(self, seen: Evaluation, examples: Tensor) -> None:
        super().__init__(seen, examples)
        self._last: tuple[Tensor, Krylov] | None = None

    def at(self, w: Tensor) -> Krylov:
        """The products at w; those of the last point are kept."""
        if self._last is None or not torch.equal(self._last[0], w):
            self._last = None
            self._last = (w, Krylov(self, w))
        return self._last[1]


class Krylov:
    """The linear part of F at a point by products."""

    def __init__(self, outputs: KrylovMap, w: Tensor) -> None:
        self._map, self._w = outputs, w.detach()
        self._sizes = [len(t) * (t.numel() // max(len(t), 1)) for t in outputs._origin]
        self._kept: list[Callable[[Tensor], Tensor]] = []
        land = outputs.seen.landscape
        if 8 * land.activations * outputs.examples <= _bytes(land):
            self._kept = [self._pulling(k) for k in range(len(self._sizes))]
            outputs.gradients += 1
        self._chance = torch.Generator().manual_seed(0)
        self._scaling: Kronecker | None = None
        self._tops: dict[float, float] = {}

    def _pulling(self, k: int) -> Callable[[Tensor], Tensor]:
        with torch.enable_grad():
            free = self._w.clone().requires_grad_()
            value = self._map.part(k, free)
        return lambda u: torch.autograd.grad(value, free, u, retain_graph=True)[0]

    def back(self, u: Tensor) -> Tensor:
        """Jᵀu."""
        self._map.gradients += 1 if self._kept else 2
        found = torch.zeros_like(self._w)
        for k, part in enumerate(u.split(self._sizes)):
            found += (self._kept[k] if self._kept else self._pulling(k))(part)
        return found

    def push(self, v: Tensor) -> Tensor:
        """Jv."""
        return self._map.pushed(self._w, v)

    @property
    def scaling(self) -> Kronecker:
        """What B is made from."""
        if self._scaling is None:
            shapes = self._map.seen.landscape.packing.shapes
            self._scaling = Kronecker(shapes, lambda: self.back(self._random(self._map.rows)))
        return self._scaling

    def _random(self, size: int) -> Tensor:
        return torch.randn(size, generator=self._chance, dtype=torch.float64).to(self._w.device)

    @property
    def top(self) -> float:
        """The largest eigenvalue of JJᵀ, by power iteration."""
        return self._top(0.0)

    def _top(self, least: float) -> float:
        if least not in self._tops:
            u, size = self._random(self._map.rows), 0.0
            for _ in range(_POWER):
                length = float(u.norm())
                if not length > 0:
                    break
                u = self.gram(u / length, least)
                size = float(u.norm())
            self._tops[least] = size
        return self._tops[least]

    def gram(self, u: Tensor, least: float = 0.0) -> Tensor:
        """JB(JB)ᵀu; B = 1 for `least` = 0."""
        v = self.back(u)
        if least:
            v = self.scaling.push(self.scaling.pull(v, least), least)
        return self.push(v)

    def _inverse(self, right: Tensor, least: float, mu: float, to: float) -> Tensor:
        """(JB(JB)ᵀ + μ)⁻¹ times a vector by conjugate gradients."""
        u, rest = torch.zeros_like(right), right.clone()
        along, size = rest.clone(), float(rest @ rest)
        goal, best, kept = to**2 * size, math.inf, u
        for _ in range(_SOLVE_STEPS):
            if size <= goal:
                return u
            if size < best:
                best, kept = size, u.clone()
            product = self.gram(along, least).add_(along, alpha=mu)
            share = size / max(float(along @ product), 1e-300)
            u.add_(along, alpha=share)
            rest.sub_(product, alpha=share)
            last, size = size, float(rest @ rest)
            along = rest + (size / last) * along
        return kept

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """BBᵀJᵀ(JB(JB)ᵀ + μ)⁻¹ F, for μ relative to the largest eigenvalue.

        With B = 1 that is the shortest step, for which the equations are hard to solve. The scaling, which makes them
        easy, grows stronger as the damping goes, when steps have become short.
        """
        least = min(max(damping ** (2 / 3), _STRONG), _MILD)
        return self._weights(self._inverse(residual, least, damping * self._top(least), _SOLVE_TO), least)

    def _weights(self, u: Tensor, least: float) -> Tensor:
        return self.scaling.push(self.scaling.pull(self.back(u), least), least)

    def kernel(self, step: Tensor) -> Tensor:
        """What is left of a step without what J sees."""
        for _ in range(2):
            pushed = self.push(step)
            step = step - self._weights(self._inverse(pushed, _KERNEL, 1e-9 * self._top(_KERNEL), _KERNEL_TO), _KERNEL)
        return step

    def misses(self, others: OutputMap, step: Tensor) -> float:
        """How much other rows show in directions that these do not see, as a number of directions for each of these.

        A random vector z, less its part in the row space of JB, is left with one unit for each direction not seen.
        """
        pulled = self.scaling.push(step, _STRONG)
        for _ in range(2):
            seen = self._inverse(self.push(pulled), _STRONG, 1e-6 * self._top(_STRONG), _KERNEL_TO)
            pulled = pulled - self._weights(seen, _STRONG)
        there = float(others.pushed(self._w, pulled).square().sum()) / others.rows
        before = float(self.push(self.scaling.push(step, _STRONG)).square().sum()) / self._map.rows
        return there / before if before > 0 else 0.0

    def rank(self, cut: float, band: float, random: Random) -> tuple[float, float]:
        """Singular values of JB that are not zero, and the error of that: random probes, values near the limit."""
        tall = self._map.rows > len(self._w)
        side = len(self._w) if tall else self._map.rows
        if not self.top > 0:
            return 0.0, 0.0
        least = _STRONG

        def product(u: Tensor) -> Tensor:
            if tall:
                return self.scaling.pull(self.back(self.push(self.scaling.push(u, least))), least)
            return self.gram(u, least)

        room = int(_bytes(self._map.seen.landscape) // (8 * side))
        shares, doubts = [], []
        for _ in range(_PROBES):
            share, doubt = counted_share(product, random(side), room)
            shares.append(share)
            doubts.append(doubt)
            mean = sum(shares) / len(shares)
            error = math.sqrt(2 * side * mean * (1 - mean) / len(shares)) if 0 < mean < 1 else 0.0
            if error <= max(_PRECISE * side * mean, 0.5):
                break
        return side * mean, math.hypot(error, side * sum(doubts) / len(doubts))


def counted_share(product: Callable[[Tensor], Tensor], u: Tensor, room: int) -> tuple[float, float]:
    """The share of |u|² in eigenvectors of a positive semidefinite matrix with eigenvalues that are not zero.

    Args:
        product: Multiplies a vector by the matrix.
        u: The vector.
        room: How many vectors may be held; all steps are orthogonalised against as many of the last.

    Returns:
        The share, and how much of it lies at eigenvalues near the limit, or has not settled.

    Example:
        >>> values = torch.cat([torch.linspace(0.1, 1, 30), torch.full((20,), 1e-9)]).double()
        >>> u = torch.ones(50, dtype=torch.float64)
        >>> share, doubt = counted_share(lambda v: values * v, u, 100)
        >>> round(share, 6), doubt < 1e-3
        (0.6, True)
    """
    diagonal: list[float] = []
    beside: list[float] = []
    basis = [u / u.norm()]
    last, found, doubt = math.nan, 0.0, 1.0
    for step in range(1, _LANCZOS + 1):
        now = basis[-1]
        v = product(now)
        diagonal.append(float(v @ now))
        for _ in range(2):
            for other in basis[-max(room, 2) :]:
                v = v - float(v @ other) * other
        size = float(v.norm())
        beside.append(size)
        done = size <= 1e-13 * max(max(diagonal), 1e-300)
        if done or step % _CHECK == 0:
            found, doubt = _above(diagonal, beside)
            settled = abs(found - last)
            if done or (settled <= _SETTLED and doubt <= _SETTLED):
                return found, doubt
            doubt, last = max(doubt, settled), found
        basis.append(v / size)
    return found, doubt


def _above(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """The weight of nodes above the limit, and of those near it, in the Gauss-Radau quadrature with a node at zero."""
    ends, pivot = [*diagonal], diagonal[0]
    for a, b in zip(diagonal[1:], beside, strict=False):
        pivot = a - b**2 / pivot if pivot > 0 else 0.0
    if pivot > 0:  # otherwise there is a node at zero
        ends.append(beside[-1] ** 2 / pivot)
    matrix = torch.diag(torch.tensor(ends, dtype=torch.float64))
    off = torch.tensor(beside[: len(ends) - 1], dtype=torch.float64)
    matrix += torch.diag(off, 1) + torch.diag(off, -1)
    values, axes = torch.linalg.eigh(matrix)
    weights = axes[0].square()
    # The limit is relative to the geometric mean of what is above it, in which single large eigenvalues count little.
    limit = _LIMIT * float(values[-1])
    for _ in range(3):
        counts = values > limit
        limit = _LIMIT * math.exp(float((weights[counts] * values[counts].log()).sum() / weights[counts].sum()))
    near = (values > limit / _NEAR) & (values < limit * _NEAR)
    return float(weights[values > limit].sum()), float(weights[near].sum())


def _bytes(land: Landscape) -> float:
    """What may be kept of one kind."""
    if land.device.type == "cuda":
        return _SHARE * float(torch.cuda.mem_get_info(land.device)[0])
    return float(_KEPT)
