"""The linear part of the outputs by products with vectors alone: steps by conjugate gradients, ranks by Lanczos.

The rank of J is the number of eigenvalues of JB(JB)ᵀ that are not zero, for any invertible B; with the scaling of
`Kronecker` these lie within some orders of magnitude, and Lanczos steps tell them from zero after some tens. From a
random vector u of n entries, the squared first entries of the eigenvectors of the tridiagonal matrix are weights at its
eigenvalues that represent how |u|² is shared among the eigenvectors of JB(JB)ᵀ (Gauss-Radau quadrature, with a node at
zero), so that n times the weight above a gap estimates the rank r, with standard deviation √(2r(1 − r/n)). Where that
is much, r being small, all eigenvalues are worked out (`crunode.curvature.low_rank`).

References:
    Golub & Meurant 2010; Ubaru, Chen & Saad 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.curvature.captured import captured
from crunode.curvature.jacobian import Evaluation
from crunode.curvature.kronecker import Kronecker
from crunode.curvature.low_rank import low_rank_spectrum
from crunode.curvature.outputs import SCALED_CUT, Dense, DenseMap, OutputMap, Random, counted
from crunode.curvature.product_basis import ProductBasis

__all__ = ["Krylov", "KrylovMap"]

# Eigenvalues are counted above this times their mean; those within this factor of it may be on the wrong side.
_LIMIT, _NEAR = 1e-3, 10.0
_LANCZOS, _CHECK, _SETTLED = 240, 10, 1e-3
_PROBES, _PRECISE = 6, 0.005
# Vectors up to which all eigenvalues are worked out, where probes would leave more than 2 %, and how many beyond what a
# probe finds: so many of its errors, and a few.
_FEW, _SIGMAS, _SPARE = 1000, 3.0, 16
_SOLVE_STEPS, _SOLVE_TO, _KERNEL_TO = 400, 0.03, 1e-3
_LOOK = 10
# Probes for the product basis, and how many where there are so many rows that each counts for many.
_BASIS_PROBES, _FEWER_PROBES, _MANY_ROWS = 64, 24, 50_000
# τ of the scaling where it is to be strong but not to lift rounding.
_STRONG = 1e-12
# Bytes for intermediate results that are kept, and for Lanczos vectors.
_KEPT, _SHARE = 1 << 28, 0.2
_POWER = 12


class KrylovMap(OutputMap):
    """With products Jv and Jᵀu alone."""

    method = "krylov"
    resolution = 1e-12
    missed = 5e-3
    flat = 1e-13
    chords = 0

    def __init__(
        self, seen: Evaluation, examples: Tensor, exact: bool = False, scaling: type[Kronecker] = Kronecker
    ) -> None:
        super().__init__(seen, examples)
        self.exact, self._given = exact, examples  # by matrices at the end
        self.scaling = scaling
        self._last: tuple[Tensor, Krylov] | None = None

    def dense(self, w: Tensor) -> Dense:
        """The linear part at w by matrices."""
        matrices = DenseMap(self.seen, self._given)
        found = matrices.at(w)
        self.gradients += matrices.gradients
        return found

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
        self._sizes = [len(t) * (t.numel() // max(len(t), 1)) for t in outputs.origin]
        self._kept: list[Callable[[Tensor], Tensor]] = []
        self._pushing: list[Callable[[Tensor], Tensor]] = []
        land = outputs.seen.landscape
        if 3 * 8 * land.activations * outputs.examples <= _bytes(land):
            for k in range(len(self._sizes)):
                self._keep(k)
            outputs.gradients += 2
        self._chance = torch.Generator(self._w.device).manual_seed(0)
        self._scaling: Kronecker | None = None
        self._basis: ProductBasis | None = None
        self._tops: dict[float, float] = {}

    def _keep(self, k: int) -> None:
        """Hold all that Jᵀu and Jv need on a batch: uᵀJ is linear in u and has the derivative J in it."""
        with torch.enable_grad():
            free = self._w.clone().requires_grad_()
            value = self._map.part(k, free)
            at = torch.zeros_like(value, requires_grad=True)
            try:
                (pulled,) = torch.autograd.grad(value, free, at, create_graph=True)
                torch.autograd.grad(pulled, at, self._w, retain_graph=True)
            except RuntimeError:  # an operation whose derivative has none
                pulled = None
        self._kept.append(lambda u: torch.autograd.grad(value, free, u, retain_graph=True)[0])
        if pulled is not None:
            self._pushing.append(lambda v: torch.autograd.grad(pulled, at, v, retain_graph=True)[0])

    def _pulling(self, k: int) -> Callable[[Tensor], Tensor]:
        with torch.enable_grad():
            free = self._w.clone().requires_grad_()
            value = self._map.part(k, free)
        return lambda u: torch.autograd.grad(value, free, u, retain_graph=True)[0]

    def back(self, u: Tensor) -> Tensor:
        """Jᵀu."""
        self._map.gradients += 1 if self._kept else 2
        found = torch.zeros_like(self._w)
        for k, part in enumerate(torch.split(u, self._sizes)):
            found += (self._kept[k] if self._kept else self._pulling(k))(part)
        return found

    def push(self, v: Tensor) -> Tensor:
        """Jv."""
        if not self._pushing or len(self._pushing) < len(self._sizes):
            return self._map.pushed(self._w, v)
        self._map.gradients += 2
        return torch.cat([push(v) for push in self._pushing])

    @property
    def scaling(self) -> Kronecker:
        """What B is made from."""
        if self._scaling is None:
            shapes = self._map.seen.landscape.packing.shapes
            self._scaling = self._map.scaling(shapes, lambda: self.back(self._random(self._map.rows)))
        return self._scaling

    def _random(self, size: int) -> Tensor:
        return torch.randn(size, generator=self._chance, dtype=torch.float64, device=self._w.device)

    @property
    def top(self) -> float:
        """The largest eigenvalue of JJᵀ, by power iteration."""
        return self._top(0.0)

    def _top(self, least: float) -> float:
        if least not in self._tops:
            u = self._random(self._map.rows)
            for _ in range(_POWER):
                u = self.gram(u / u.norm().clamp(min=1e-300), least)
            self._tops[least] = float(u.norm())
        return self._tops[least]

    def gram(self, u: Tensor, least: float = 0.0) -> Tensor:
        """JB(JB)ᵀu; B = 1 for `least` = 0."""
        v = self.back(u)
        if least:
            v = self.scaling.push(self.scaling.pull(v, least), least)
        return self.push(v)

    def _inverse(self, right: Tensor, least: float, mu: float, to: float) -> Tensor:
        """(JB(JB)ᵀ + μ)⁻¹ times a vector by conjugate gradients."""
        return self._gradients(right, lambda u: self.gram(u, least).add_(u, alpha=mu), torch.clone, to)

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ F, for μ relative to the largest eigenvalue.

        The scaling has no part in it: a shorter step in scaled weights is not the shortest one, and leads to other
        pieces of the valley.
        """
        return self.back(self._plain_inverse(residual, max(damping * self.top, 1e-300)))

    def _plain_inverse(self, right: Tensor, mu: float) -> Tensor:
        """(JJᵀ + μ)⁻¹ times a vector by preconditioned conjugate gradients."""
        basis = self._product_basis()
        return self._gradients(
            right, lambda u: self.gram(u).add_(u, alpha=mu), lambda rest: basis.solve(rest, mu), _SOLVE_TO
        )

    @staticmethod
    def _gradients(
        right: Tensor, product: Callable[[Tensor], Tensor], nearer: Callable[[Tensor], Tensor], to: float
    ) -> Tensor:
        """The inverse of a product times a vector by conjugate gradients, until `to` of the vector is left."""
        u, rest, along, last = torch.zeros_like(right), right.clone(), right, None
        goal, least, kept = to * float(right.norm()), math.inf, u
        if not goal > 0:
            return u
        for step in range(1, _SOLVE_STEPS + 1):
            guess = nearer(rest)
            size = rest @ guess
            along = guess if last is None else guess.addcmul_(along, size / last)
            moved = product(along)
            share = size / (along @ moved).clamp(min=1e-300)
            u.addcmul_(along, share)
            rest.addcmul_(moved, share, value=-1)
            last = size
            # What is left is not looked at each time: a graphics card would have to be waited for.
            if step < _LOOK or step % _LOOK == 0:
                left = float(rest.norm())
                if not math.isfinite(left):
                    break
                if left < least:
                    least, kept = left, u.clone()
                if left <= goal:
                    break
        return kept

    def _product_basis(self) -> ProductBasis:
        if self._basis is None:
            outputs = self._map
            probes = _BASIS_PROBES if outputs.rows <= _MANY_ROWS else _FEWER_PROBES
            parts = captured(outputs.seen, self._w, outputs.batches, outputs.roots)
            outputs.gradients += 2
            self._basis = ProductBasis(lambda: self.push(self._random(len(self._w))), outputs.examples, probes, parts)
        return self._basis

    def _weights(self, u: Tensor, least: float) -> Tensor:
        return self.scaling.push(self.scaling.pull(self.back(u), least), least)

    def kernel(self, step: Tensor) -> Tensor:
        """What is left of a step without what J sees."""
        for _ in range(2):
            pushed = self.push(step)
            step = step - self._weights(self._inverse(pushed, _STRONG, 1e-6 * self._top(_STRONG), _KERNEL_TO), _STRONG)
        return step

    def beyond(self, outputs: Tensor) -> Tensor:
        """What is left of outputs without what a step gives to first order."""
        for _ in range(2):
            inverse = self._inverse(outputs, _STRONG, 1e-6 * self._top(_STRONG), _KERNEL_TO)
            outputs = outputs - self.gram(inverse, _STRONG)
        return outputs

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
        if self._map.exact:
            return self._map.dense(self._w).rank(cut, band)
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
        for probe in range(_PROBES):
            share, doubt = counted_share(product, random(side), room)
            few = _all_counted(product, side, share, band, room, random) if probe == 0 else None
            if few is not None:
                return few
            shares.append(share)
            doubts.append(doubt)
            mean = sum(shares) / len(shares)
            error = math.sqrt(2 * side * mean * (1 - mean) / len(shares)) if 0 < mean < 1 else 0.0
            if error <= max(_PRECISE * side * mean, 0.5):
                break
        return side * mean, math.hypot(error, side * sum(doubts) / len(doubts))


def _all_counted(
    product: Callable[[Tensor], Tensor], side: int, share: float, band: float, room: int, random: Random
) -> tuple[float, float] | None:
    """The rank by all eigenvalues, where a probe found that there are few; None where there are too many."""
    spread = math.sqrt(2 * side * share * max(1 - share, 0.0))
    columns = min(math.ceil(side * share + _SIGMAS * spread) + _SPARE, side)
    if columns > min(_FEW, room // 2):
        return None
    values = low_rank_spectrum(product, torch.stack([random(side) for _ in range(columns)], 1)).sqrt().cpu()
    found = counted(values, SCALED_CUT, band, 3 * math.sqrt(side * torch.finfo(values.dtype).eps))
    return found if found[0] <= columns - _SPARE // 2 or columns == side else None


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
    now = u / u.norm()
    held = [now[None]]  # blocks of vectors
    last, found, doubt = math.nan, 0.0, 1.0
    for step in range(1, _LANCZOS + 1):
        v = product(now)
        along = v @ now
        for _ in range(2):
            for block in held:
                v = v - block.T @ (block @ v)
        size = v.norm()
        now = v / size
        both = torch.stack([along, size]).tolist()
        diagonal.append(both[0])
        beside.append(both[1])
        done = beside[-1] <= 1e-13 * max(max(diagonal), 1e-300)
        if done or step % _CHECK == 0:
            found, doubt = _above(diagonal, beside)
            settled = abs(found - last)
            if done or (settled <= _SETTLED and doubt <= _SETTLED):
                return found, doubt
            doubt, last = max(doubt, settled), found
        if len(held[-1]) < _CHECK:
            held[-1] = torch.cat([held[-1], now[None]])
        else:
            held.append(now[None])
        while len(held) > 2 and sum(map(len, held)) > room:
            held.pop(0)
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
