"""Many points of one landscape at once: losses, gradients, Hessians, and steps toward points with no gradient.

The steps minimize half the squared gradient norm ½‖g(w)‖² inside a trust region. With the Hessian H the gradient at
w + s is g + Hs to first order, so that the step is s = −(H² + μ)⁻¹Hg with the smallest μ ≥ 0 for which s is inside the
region: the Newton step where it fits, and gradient descent on ½‖g‖² in a small region. Saddles attract as minima do.

References:
    Conn, Gould & Toint 2000, Trust-Region Methods; Pennington & Bahri 2017, section 5 (critical points of networks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import preserved_rng
from crunode.curvature.jacobian import Evaluation

__all__ = ["Ends", "PointBatch", "moved_to_level", "search"]

# Numbers held at once; the widest landscape whose steps come from whole Hessians, and Krylov directions beyond that.
_CHUNK = 1 << 23
_DENSE = 512
_KRYLOV = 100
# Eigenvalues below this, relative to the largest, do not enter steps where the gradient too is no more than rounding.
_ROUNDING = 1e-12
# Rounding of a gradient, as a multiple of that of the dtype.
_NOISE = 4.0
_ACCEPT, _POOR, _GOOD = 1e-4, 0.25, 0.75


class PointBatch:
    """Losses and derivatives of a landscape at many points at once, in double precision where the model allows.

    Points are the leading axis of one batched evaluation; a model that cannot be batched is evaluated point by point.

    Args:
        land: The landscape.

    Attributes:
        dtype: In which everything is evaluated.
        dim: Number of free parameters.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 - w[1] ** 2, torch.zeros(2))
        >>> points = PointBatch(land)
        >>> losses, gradients = points.gradients(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> losses.tolist(), gradients.tolist()
        ([1.0, -1.0], [[2.0, 0.0], [0.0, -2.0]])
        >>> points.hessians(torch.zeros(1, 2)).tolist()
        [[[2.0, 0.0], [0.0, -2.0]]]
    """

    def __init__(self, land: Landscape) -> None:
        self._seen, self.land, self.dim = Evaluation(land), land, land.dim
        self.dtype = self._seen.dtype
        self._batched = True

    def gradients(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and gradients, of shapes (points,) and (points, dim)."""

        def one(w: Tensor, batch: Any) -> Tensor:
            gradient, loss = torch.func.grad_and_value(self._loss)(w, batch)
            return torch.cat([loss[None], gradient])

        def plain(w: Tensor, batch: Any) -> Tensor:
            loss, gradient, _ = self._graph(w, batch)
            return torch.cat([loss[None], gradient]).detach()

        both = self._mean(one, plain, (self._placed(at),), self.land.activations)
        return both[:, 0], both[:, 1:]

    def products(self, at: Tensor, vectors: Tensor) -> Tensor:
        """The Hessian at each point times its vector, of shape (points, dim)."""

        def one(w: Tensor, v: Tensor, batch: Any) -> Tensor:
            found: Tensor = torch.func.grad(lambda u: torch.func.grad(self._loss)(u, batch) @ v)(w)
            return found

        def plain(w: Tensor, v: Tensor, batch: Any) -> Tensor:
            _, gradient, free = self._graph(w, batch)
            return _derivative(gradient, free, v)

        return self._mean(one, plain, (self._placed(at), self._placed(vectors)), 2 * self.land.activations)

    def hessians(self, at: Tensor) -> Tensor:
        """The Hessian at each point, of shape (points, dim, dim)."""

        def one(w: Tensor, batch: Any) -> Tensor:
            width = max(1, _CHUNK // (2 * self.land.activations * leaves(batch)[0].shape[0]))
            found: Tensor = torch.func.jacrev(torch.func.grad(self._loss), chunk_size=min(width, self.dim))(w, batch)
            return found

        def plain(w: Tensor, batch: Any) -> Tensor:
            _, gradient, free = self._graph(w, batch)
            eye = torch.eye(self.dim, dtype=w.dtype, device=w.device)
            return torch.stack([_derivative(gradient, free, v) for v in eye])

        size = max(self.dim * self.land.activations, self.dim**2)
        found = self._mean(one, plain, (self._placed(at),), size)
        return (found + found.transpose(1, 2)) / 2

    def _placed(self, at: Tensor) -> Tensor:
        return at.to(self._seen.center)

    def _loss(self, w: Tensor, batch: Any) -> Tensor:
        return self._seen.losses(w, batch).mean()

    def _graph(self, w: Tensor, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            free = w.detach().clone().requires_grad_()
            loss = self._loss(free, batch)
            (gradient,) = torch.autograd.grad(loss, free, create_graph=True)
        return loss, gradient, free

    def _mean(
        self, one: Callable[..., Tensor], plain: Callable[..., Tensor], args: tuple[Tensor, ...], size: int
    ) -> Tensor:
        """The mean over the data of what `one` gives for each row of `args`; `size` numbers an example and point."""
        parts = []
        most = max(1, _CHUNK // (size * min(self.land.data.rows, 16)))
        for group in zip(*(torch.split(a, most) for a in args), strict=True):
            total: Tensor | None = None
            for batch in self.land.passes(max(16, _CHUNK // (size * len(group[0])))):
                share = leaves(batch)[0].shape[0] / self.land.data.rows
                found = self._applied(one, plain, group, batch).double() * share
                total = found if total is None else total + found
            assert total is not None
            parts.append(total)
        return torch.cat(parts)

    def _applied(
        self, one: Callable[..., Tensor], plain: Callable[..., Tensor], group: tuple[Tensor, ...], batch: Any
    ) -> Tensor:
        with preserved_rng():
            if self._batched:
                try:
                    found: Tensor = torch.func.vmap(lambda *rows: one(*rows, batch))(*group)
                    return found.detach()
                except Exception:  # an operation that torch.func cannot batch
                    self._batched = False
            return torch.stack([plain(*rows, batch).detach() for rows in zip(*group, strict=True)])


def _derivative(gradient: Tensor, free: Tensor, v: Tensor) -> Tensor:
    if not gradient.requires_grad:
        return torch.zeros_like(free)
    (found,) = torch.autograd.grad(gradient, free, v, retain_graph=True, allow_unused=True)
    return torch.zeros_like(free) if found is None else found


@dataclass
class Ends:
    """Where searches ended, one row for each start.

    Attributes:
        weights: The points.
        losses: Their losses.
        gradients: Their gradient norms.
        scales: What gradient norms are to be held against: ‖g‖ + ‖H‖ max(1, ‖w‖) at the start.
        remaining: The step that would come next, at most as long as the last one that was taken.
        last: Length of the last step that was taken, infinite where none was.
        shrank: By which factor it changed the gradient norm, 0 where none was taken.
        steps: Steps that were taken.
        stalled: Whether no step made the gradient smaller.
    """

    weights: Tensor
    losses: Tensor
    gradients: Tensor
    scales: Tensor
    remaining: Tensor
    last: Tensor
    shrank: Tensor
    steps: Tensor
    stalled: Tensor

    @classmethod
    def joined(cls, parts: list[Ends]) -> Ends:
        """Several as one."""
        return cls(*(torch.cat([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


def search(points: PointBatch, start: Tensor, steps: int) -> Ends:
    """Minimize ½‖g‖² from each start by Newton-type steps in a trust region.

    Steps go on to the rounding of the gradient: what is left of them then tells how well the point is known. The region
    is a tenth of the weights at first. A step that does less than a quarter of what was promised leaves a quarter of
    its length; one to the edge that does more than three quarters doubles the region.

    Args:
        points: The landscape.
        start: Starts, shape (starts, dim), with finite losses.
        steps: Most steps from each.

    Example:
        >>> land = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2 + w[1] ** 2, torch.zeros(2))
        >>> ends = search(PointBatch(land), torch.tensor([[0.8, 0.3], [0.1, 0.3]]), 50)
        >>> (ends.weights.round(decimals=9) + 0.0).tolist()
        [[1.0, 0.0], [0.0, 0.0]]
    """
    held = points.dim if points.dim <= _DENSE else 2 * _KRYLOV
    groups = torch.split(start.double(), max(1, 2 * _CHUNK // (points.dim * held)))
    with Progress(len(groups) * steps, "critical points") as bar:
        return Ends.joined([_searched(points, group, steps, bar) for group in groups])


def _searched(points: PointBatch, start: Tensor, steps: int, bar: Progress) -> Ends:
    w = start.clone()
    losses, g = points.gradients(w)
    model = _Model.at(points, w, g)
    length = w.norm(dim=1).clamp(min=1.0)
    norms = g.norm(dim=1)
    scales = norms + model.values.abs().amax(1) * length
    floor = _NOISE * torch.finfo(points.dtype).eps * scales
    radius, last = 0.1 * length, torch.full_like(norms, torch.inf)
    taken, shrank = torch.zeros_like(norms), torch.zeros_like(norms)
    stalled = torch.zeros_like(norms, dtype=torch.bool)
    for _ in range(steps):
        active = ((norms > floor) & ~stalled).nonzero().flatten()
        if not len(active):
            break
        step, promised = model.rows(active).step(radius[active])
        sizes = step.norm(dim=1)
        new_losses, new_g = points.gradients(w[active] + step)
        new_norms = new_g.norm(dim=1)
        gain = (norms[active].square() - new_norms.square()) / 2 / promised.clamp(min=1e-300)
        gain = torch.where(torch.isfinite(new_norms + new_losses), gain, -torch.inf)
        poor, good = gain < _POOR, (gain > _GOOD) & (sizes > 0.9 * radius[active])
        shrunk = torch.where(poor, 0.25 * sizes, radius[active])
        radius[active] = torch.where(good, 2 * radius[active], shrunk)
        better = gain > _ACCEPT
        moved = active[better]
        if len(moved):
            w[moved], g[moved], losses[moved] = w[moved] + step[better], new_g[better], new_losses[better]
            shrank[moved] = new_norms[better] / norms[moved]
            norms[moved], last[moved] = new_norms[better], sizes[better]
            taken[moved] += 1
            model.replace(moved, _Model.at(points, w[moved], g[moved]))
        here = w[active].norm(dim=1).clamp(min=1.0)
        small = torch.finfo(torch.float64).eps * here
        # A step that can hardly change ‖g‖ means Hg = 0: a point where ‖g‖ is least without being zero.
        stalled[active] = (sizes <= small) | (radius[active] <= small) | (promised <= 1e-14 * norms[active].square())
        bar.advance()
    remaining, _ = model.step(last)
    return Ends(w, losses, norms, scales, remaining, last, shrank, taken, stalled)


@dataclass
class _Model:
    """The gradient around points as g + Hs = B(r + v c) for steps s = Bc, where B has orthonormal columns.

    Attributes:
        values: v, shape (points, directions).
        right: r.
        basis: B, shape (points, dim, directions).
        noise: Rounding of the entries of r, shape (points, 1).
    """

    values: Tensor
    right: Tensor
    basis: Tensor
    noise: Tensor

    @classmethod
    def at(cls, points: PointBatch, w: Tensor, g: Tensor) -> _Model:
        if points.dim <= _DENSE:
            # A Hessian that is not finite gives no step.
            values, basis = torch.linalg.eigh(points.hessians(w).nan_to_num(0.0, 0.0, 0.0))
            right = (basis.transpose(1, 2) @ g[:, :, None])[..., 0]
        else:
            values, right, basis = cls._krylov(points, w, g)
        size = g.norm(dim=1) + values.abs().amax(1) * w.norm(dim=1).clamp(min=1.0)
        return cls(values, right, basis, _NOISE * torch.finfo(points.dtype).eps * size[:, None])

    @staticmethod
    def _krylov(points: PointBatch, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """In the Krylov space of H and g: HV = V₊T with T tridiagonal, by its singular values."""
        many = min(_KRYLOV, points.dim)
        space = g.new_zeros(len(g), many + 1, points.dim)
        narrow = g.new_zeros(len(g), many + 1, many)
        size = g.norm(dim=1)
        space[:, 0] = g / size.clamp(min=1e-300)[:, None]
        for k in range(many):
            image = points.products(w, space[:, k]).nan_to_num(0.0, 0.0, 0.0)
            top = image.norm(dim=1)
            for _ in range(2):  # the second time takes away what rounding left
                along = (space[:, : k + 1] @ image[:, :, None])[..., 0]
                narrow[:, : k + 1, k] += along
                image = image - (space[:, : k + 1].transpose(1, 2) @ along[:, :, None])[..., 0]
            rest = image.norm(dim=1)
            rest = torch.where(rest > _ROUNDING * top, rest, torch.zeros_like(rest))
            narrow[:, k + 1, k] = rest
            space[:, k + 1] = torch.where(rest > 0, 1 / rest.clamp(min=1e-300), torch.zeros_like(rest))[:, None] * image
        left, values, right = torch.linalg.svd(narrow, full_matrices=False)
        return values, size[:, None] * left[:, 0], space[:, :many].transpose(1, 2) @ right.transpose(1, 2)

    def rows(self, chosen: Tensor) -> _Model:
        return _Model(self.values[chosen], self.right[chosen], self.basis[chosen], self.noise[chosen])

    def replace(self, chosen: Tensor, other: _Model) -> None:
        self.values[chosen], self.right[chosen] = other.values, other.right
        self.basis[chosen], self.noise[chosen] = other.basis, other.noise

    def step(self, radius: Tensor) -> tuple[Tensor, Tensor]:
        """The best step no longer than `radius`, and by how much ½‖g‖² is to fall with it."""
        top = self.values.abs().amax(1, keepdim=True)
        real = (self.values.abs() > _ROUNDING * top) | (self.right.abs() > self.noise)
        values = torch.where(real, self.values, torch.zeros_like(self.values))
        squares = values.square()

        def amounts(mu: Tensor) -> Tensor:
            return -values * self.right / (squares + mu).clamp(min=1e-300)

        limit = radius[:, None]
        low = torch.full_like(top, 1e-30) * top.square()
        high = (top * self.right.norm(dim=1, keepdim=True) / limit.clamp(min=1e-300)).maximum(low)
        for _ in range(50):
            middle = (low * high).sqrt()
            inside = amounts(middle).norm(dim=1, keepdim=True) <= limit
            low, high = torch.where(inside, low, middle), torch.where(inside, middle, high)
        fits = amounts(torch.zeros_like(top)).norm(dim=1, keepdim=True) <= limit
        mu = torch.where(fits, torch.zeros_like(high), high)
        found = amounts(mu)
        promised = (self.right.square() - (self.right + values * found).square()).sum(1) / 2
        return (self.basis @ found[:, :, None])[..., 0], promised


def moved_to_level(points: PointBatch, start: Tensor, level: float, steps: int) -> tuple[Tensor, Tensor]:
    """Points at a given loss on the way down from each start along the gradient, or up from starts below.

    Steps along −g (or g) double after each success and halve after each failure; the last one is cut where it crosses
    the level.

    Args:
        points: The landscape.
        start: Starts, shape (starts, dim).
        level: The loss to come to.
        steps: Most steps.

    Returns:
        The points, and their losses; a start that did not come to the level has another loss.

    Example:
        >>> land = Landscape.of_function(lambda w: w @ w, torch.zeros(2))
        >>> _, losses = moved_to_level(PointBatch(land), torch.tensor([[2.0, 0.0], [0.1, 0.1]]), 1.0, 100)
        >>> losses.round(decimals=5).tolist()
        [1.0, 1.0]
    """
    w = start.double().clone()
    losses, g = points.gradients(w)
    down = losses > level
    rate = 0.1 * w.norm(dim=1).clamp(min=1.0) / g.norm(dim=1).clamp(min=1e-300)
    open_ = torch.isfinite(losses) & ((losses - level).abs() > _close(level, points))
    for _ in range(steps):
        active = open_.nonzero().flatten()
        if not len(active):
            break
        sign = torch.where(down[active], -1.0, 1.0).to(w)
        step = (sign * rate[active])[:, None] * g[active]
        new_losses, new_g = points.gradients(w[active] + step)
        gain = sign * (new_losses - losses[active])
        # As in Armijo's rule, a tenth of what the slope promises.
        better = gain >= 0.1 * rate[active] * g[active].square().sum(1)
        across = better & ((new_losses > level) != down[active])
        moved = active[better & ~across]
        w[moved], g[moved] = w[moved] + step[better & ~across], new_g[better & ~across]
        losses[moved] = new_losses[better & ~across]
        rate[active] *= torch.where(better & ~across, 2.0, 0.5).to(w)
        at_level = (losses - level).abs() <= _close(level, points)
        resting = rate * g.norm(dim=1) <= torch.finfo(w.dtype).eps * w.norm(dim=1).clamp(min=1.0)
        open_ &= ~at_level & ~resting
    return w, losses


def _close(level: float, points: PointBatch) -> float:
    return max(1e-6, 1e2 * torch.finfo(points.dtype).eps) * max(abs(level), 1e-12)
