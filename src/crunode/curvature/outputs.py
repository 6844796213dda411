"""Outputs of a model on some examples as a map from weights, and its linear part at a point as a matrix.

The map is F(w) = R (f(w) − f(w*)), rows of R the square root of the second derivative of the loss in the outputs at w*,
so that ‖F‖²/2 is the loss above its least value to second order, and F = 0 where the model predicts what it does at w*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import Evaluation, output_jacobian, output_roots, selected
from crunode.curvature.kronecker import Kronecker

__all__ = ["Dense", "DenseMap", "Linear", "OutputMap", "Random", "counted", "counted_rows", "dense_rows", "largest"]

Random = Callable[[int], Tensor]

# Entries of J, and the side of JJᵀ or JᵀJ, up to which matrices are held on a processor: about 0.8 GB with a factor.
_ENTRIES, _SIDE = 1 << 25, 3000
# On a graphics card: the share of its free memory that they may take together, and the side.
_SHARE, _SIDE_CUDA = 0.4, 16_000
# From this side up eigenvalues are counted by triangular factors there, which are products of blocks.
_SLOW_EIGEN = 3000
_BLOCK = 512
# Rows up to which singular values are taken twice.
FEW = 800
# How many rows are looked at for being outer products, and what they may be off by.
_LOOKED_AT, _RANK_ONE = 64, 1e-10
_POWER = 12
_WIDER = 30.0
# Between singular values that count and those that do not, where that is to be clear.
_GAP = 10.0
# How far below the cut noise begins.
_NOISE = 1e-2
# τ of the scaling, above the squares of what steps into the valley leave, and the cut for what is scaled.
STRONG, SCALED_CUT = 1e-12, 1e-3


class Linear(Protocol):
    """The linear part J of F at a point."""

    @property
    def top(self) -> float:
        """The largest eigenvalue of JJᵀ."""

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ F, for μ relative to the largest eigenvalue `top` of JJᵀ."""

    def kernel(self, step: Tensor) -> Tensor:
        """The part of a step that J does not see."""

    def misses(self, others: OutputMap, step: Tensor) -> float:
        """How much other rows show in directions that these do not see, relative to what they show in all."""

    def rank(self, cut: float, band: float, random: Random) -> tuple[float, float]:
        """How many singular values are above `cut` times the largest, and how far that is uncertain."""


class OutputMap:
    """F on the given examples.

    Args:
        seen: The evaluation of a landscape.
        examples: Indices of examples, ascending.

    Attributes:
        examples: Their number.
        rows: Values of F.
        gradients: Passes over the examples so far, forward or backward.
        resolution: A relative residual that steps can reach.
        missed: What `Linear.misses` may be where the examples are enough.
        flat: A damping that hardly damps.
        chords: Further steps by the same linear part that are worth while.
        exact: Ranks are whole numbers.
    """

    method = ""
    resolution = 0.0
    missed = 0.0
    flat = 1e-12
    chords = 4
    exact = True

    def __init__(self, seen: Evaluation, examples: Tensor) -> None:
        self.seen, self.examples, self.gradients = seen, len(examples), 0
        self.batches = list(selected(seen.landscape, examples, self._chunk(seen)))
        self.roots = [output_roots(seen, batch) for batch in self.batches]
        with torch.no_grad():
            self.origin = [seen.outputs(seen.center, batch) for batch in self.batches]
        self.rows = sum(t.numel() for t in self.origin)

    def _chunk(self, seen: Evaluation) -> int:
        return seen.landscape.chunk_rows()

    def part(self, k: int, w: Tensor) -> Tensor:
        """F on the batch `k`."""
        moved = self.seen.outputs(w, self.batches[k]) - self.origin[k]
        root = self.roots[k]
        if root.ndim == 0:
            return root * moved.reshape(-1)
        return (root @ moved.reshape(len(moved), -1, 1)).reshape(-1)

    def residual(self, w: Tensor) -> Tensor:
        """F(w)."""
        self.gradients += 1
        with torch.no_grad():
            return torch.cat([self.part(k, w) for k in range(len(self.batches))])

    def pushed(self, w: Tensor, step: Tensor) -> Tensor:
        """J(w) times a step."""
        self.gradients += 2
        return torch.cat([pushed(partial(self.part, k), w, step) for k in range(len(self.batches))])

    def pulled(self, w: Tensor, u: Tensor) -> Tensor:
        """J(w)ᵀ times a vector of outputs."""
        self.gradients += 2
        found = torch.zeros_like(w)
        for k, part in enumerate(torch.split(u, [t.numel() for t in self.origin])):
            with torch.enable_grad():
                free = w.detach().clone().requires_grad_()
                found += torch.autograd.grad(self.part(k, free), free, part)[0]
        return found

    def at(self, w: Tensor) -> Linear:
        """The linear part at w."""
        raise NotImplementedError


class DenseMap(OutputMap):
    """With J as a matrix; where it has more rows than columns only JᵀJ is held."""

    method = "dense"
    resolution = 1e-12
    missed = 1e-6

    def __init__(self, seen: Evaluation, examples: Tensor) -> None:
        super().__init__(seen, examples)
        self._last: tuple[Tensor, Dense] | None = None

    def _chunk(self, seen: Evaluation) -> int:
        # A quarter of what J may take is held beside it while its rows are made.
        width = seen.outputs_per_example()
        return max(1, min(seen.landscape.chunk_rows(), _ENTRIES // (4 * width * seen.dim)))

    def jacobian(self, k: int, w: Tensor) -> Tensor:
        """Rows of J of the batch `k`."""
        rows, root = output_jacobian(self.seen, w, self.batches[k]), self.roots[k]
        if root.ndim == 0:
            return rows.mul_(root)
        count = leaves(self.batches[k])[0].shape[0]
        return (root @ rows.reshape(count, -1, rows.shape[-1])).reshape(rows.shape)

    def at(self, w: Tensor) -> Dense:
        """J and its products with itself at w; those of the last point are kept."""
        if self._last is None or not torch.equal(self._last[0], w):
            self._last = None  # the memory is needed
            self._last = (w, Dense(self, w))
            self.gradients += 1 + self.rows // max(self.examples, 1)
        return self._last[1]


class Dense:
    """The linear part of F at a point by matrices: J and JJᵀ, or JᵀJ where that is smaller."""

    def __init__(self, outputs: DenseMap, w: Tensor) -> None:
        self._outputs, self._w = outputs, w
        self.tall = outputs.rows > outputs.seen.dim
        dim, count = outputs.seen.dim, len(outputs.batches)
        if self.tall:
            self.gram = w.new_zeros(dim, dim)
            for k in range(count):
                rows = outputs.jacobian(k, w)
                self.gram.addmm_(rows.T, rows)
        else:
            self.rows = w.new_empty(outputs.rows, dim)
            start = 0
            for k in range(count):
                rows = outputs.jacobian(k, w)
                self.rows[start : start + len(rows)] = rows
                start += len(rows)
            self.gram = _row_products(self.rows, outputs.seen.landscape.packing.shapes)
        self.top = largest(self.gram)
        self._factor: tuple[float, Tensor] | None = None

    def _inverse(self, right: Tensor, damping: float) -> Tensor:
        if self._factor is None or self._factor[0] != damping:
            self._factor, given = None, damping
            for _ in range(6):
                damped = self.gram.clone()
                damped.diagonal().add_(max(given * self.top, 1e-300))
                factor, failed = torch.linalg.cholesky_ex(damped)
                if not int(failed):
                    break
                given *= _WIDER  # rounding made it indefinite
            else:
                raise torch.linalg.LinAlgError("expected a positive definite matrix, got none at any damping")  # type: ignore[attr-defined]
            self._factor = (damping, factor)
        return torch.cholesky_solve(right[:, None], self._factor[1])[:, 0]

    def solve(self, residual: Tensor, damping: float) -> Tensor:
        """Jᵀ(JJᵀ + μ)⁻¹ F, for μ relative to the largest eigenvalue."""
        if not self.tall:
            return self.rows.T @ self._inverse(residual, damping)
        outputs = self._outputs
        outputs.gradients += 1
        start, pulled = 0, torch.zeros_like(self._w)
        for k in range(len(outputs.batches)):
            with torch.enable_grad():
                free = self._w.detach().clone().requires_grad_()
                value = outputs.part(k, free)
                pulled += torch.autograd.grad(value, free, residual[start : start + len(value)])[0]
            start += len(value)
        return self._inverse(pulled, damping)

    def kernel(self, step: Tensor) -> Tensor:
        """The part of a step that J does not see."""
        for _ in range(2):  # the second time takes away what rounding left
            if self.tall:
                step = step - self._inverse(self.gram @ step, 1e-12)
            else:
                step = step - self.rows.T @ self._inverse(self.rows @ step, 1e-12)
        return step

    def misses(self, others: OutputMap, step: Tensor) -> float:
        """How much other rows show in directions that these do not see, relative to the largest singular value."""
        rest = self.kernel(step)
        if not float(rest.norm()) > 1e-6 * float(step.norm()) or not self.top > 0:
            return 0.0
        size = math.sqrt(self.top * others.rows / self._outputs.rows) * float(rest.norm())
        return float(others.pushed(self._w, rest).norm()) / size

    def rank(self, cut: float, band: float, random: Random | None = None) -> tuple[float, float]:
        """Singular values of JB that stand above a gap, and how far that is uncertain.

        B is the scaling of `Kronecker`, which leaves the rank as it is and brings what is small by nature up to the
        rest. Where that shows no gap, it is looked for near `cut` times the largest singular value of J.
        """
        if not self.top > 0:
            return 0.0, 0.0
        rows = self._root()
        scaled = Kronecker.of_rows(self._outputs.seen.landscape.packing.shapes, rows).pull(rows, STRONG)
        gram = _outer(scaled) if len(scaled) <= scaled.shape[1] else scaled.T @ scaled
        del scaled
        if gram.is_cuda and len(gram) > _SLOW_EIGEN:
            found = _smoothly_counted(gram, SCALED_CUT, band)
        else:
            values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0).cpu()
            found = counted(values, SCALED_CUT, band, 3 * math.sqrt(len(values) * torch.finfo(values.dtype).eps))
        if found[1] and len(gram) <= FEW:
            found = min(found, counted_rows(rows, cut, band), key=lambda pair: pair[1])
        return found

    def _root(self) -> Tensor:
        """J, or a square matrix with the same JᵀJ."""
        if not self.tall:
            return self.rows
        found = self._w.new_zeros(0, len(self._w))
        for k in range(len(self._outputs.batches)):
            found = torch.linalg.qr(torch.cat([found, self._outputs.jacobian(k, self._w)]), mode="r").R
        return found


def pushed(function: Callable[[Tensor], Tensor], w: Tensor, step: Tensor) -> Tensor:
    try:
        return torch.detach(torch.func.jvp(function, (w,), (step,))[1])
    except Exception:  # an operation without a forward derivative: uᵀJ is linear in u and has the derivative J in it
        with torch.enable_grad():
            free = w.detach().clone().requires_grad_()
            value = function(free)
            weights = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, free, weights, create_graph=True)
            return torch.autograd.grad(pulled @ step, weights)[0]


def dense_rows(land: Landscape) -> int:
    """The most rows of J for which matrices are affordable."""
    if land.device.type == "cpu":
        entries, side = _ENTRIES, _SIDE
    elif land.device.type == "cuda":
        free = torch.cuda.mem_get_info(land.device)[0]
        # J beside the rows that are being made, and JJᵀ beside its factor and a copy.
        entries = int(_SHARE * free / 8 / 1.5)
        side = min(_SIDE_CUDA, int((_SHARE * free / 8 / 3) ** 0.5))
    else:
        return 0
    return 1 << 40 if land.dim <= side else min(side, entries // land.dim)


def counted(values: Tensor, cut: float, band: float, floor: float) -> tuple[float, float]:
    """How many of descending singular values stand above a gap near `cut` times the first, and the doubt in that.

    The gap is a factor of ten or more, with nothing below it but what rounding leaves: a tenth of the cut at most.
    Without one these are the number above the cut, and half of how many are within a factor `band` of it.

    Args:
        values: Singular values, descending.
        cut: Relative to the first.
        band: What counts as near, as a factor.
        floor: Below this, relative to the first, values are not told from zero.

    Example:
        >>> counted(torch.tensor([1.0, 0.1, 1e-4, 1e-9]), 1e-5, 10.0, 1e-7)
        (3.0, 0.0)
        >>> counted(torch.tensor([1.0, 2e-5, 7e-6, 1e-6, 2e-7]), 1e-5, 10.0, 1e-7)
        (2.0, 1.0)
    """
    top = float(values[0]) if len(values) else 0.0
    if not top > 0:
        return 0.0, 0.0
    padded = torch.cat([values / top, values.new_zeros(1)]).clamp(min=floor)
    empty = padded[1:] <= max(cut / 10, 1.001 * floor)
    gaps = torch.where(empty, padded[:-1] / padded[1:], torch.zeros_like(padded[1:]))
    best = int(gaps.argmax())
    if float(gaps[best]) >= _GAP:
        return float(best + 1), 0.0
    low, found, high = (int((padded > max(cut * f, 1.001 * floor)).sum()) for f in (band, 1.0, 1 / band))
    return float(found), (high - low) / 2


def counted_rows(rows: Tensor, cut: float, band: float) -> tuple[float, float]:
    """The same from the rows of a matrix, which may be more or less than its columns, with noise far below the cut.

    Example:
        >>> counted_rows(torch.diag(torch.tensor([1.0, 0.1, 1e-9])), 1e-5, 10.0)
        (2.0, 0.0)
    """
    small = rows if len(rows) <= rows.shape[1] else rows.T
    values = torch.linalg.svdvals(torch.linalg.qr(small.T, mode="r").R).cpu()
    return counted(values, cut, band, cut * _NOISE)


def _smoothly_counted(gram: Tensor, cut: float, band: float) -> tuple[float, float]:
    """The same by Σ λ/(λ + μ) for μ = cut² times the largest: a Cholesky factor and its inverse."""
    top, size = largest(gram), len(gram)
    if not top > 0:
        return 0.0, 0.0
    found = []
    for f in (band, 1.0, 1 / band):
        damped = gram.clone()
        mu = (cut * f) ** 2 * top
        damped.diagonal().add_(mu)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if int(failed):
            raise torch.linalg.LinAlgError("expected a positive definite matrix, got none")  # type: ignore[attr-defined]
        # In place: the identity is overwritten by the inverse of the factor.
        whole = torch.eye(size, dtype=gram.dtype, device=gram.device)
        inverse = torch.linalg.solve_triangular(factor, whole, upper=False, out=damped)
        found.append(size - mu * float(inverse.square_().sum()))
    return float(round(found[1])), (found[2] - found[0]) / 2


def largest(gram: Tensor) -> float:
    """The largest eigenvalue, by power iteration."""
    if not len(gram):
        return 0.0
    start = gram.diagonal().abs().sqrt() + 1e-3 * gram.diagonal().abs().max().sqrt()
    signs = torch.where(gram[int(gram.diagonal().argmax())] < 0, -1.0, 1.0).to(gram.dtype)
    u, size = start * signs, 0.0
    for _ in range(_POWER):
        length = float(u.norm())
        if not length > 0 or not math.isfinite(length):
            break
        u = gram @ (u / length)
        size = float(u.norm())
    return size


def _row_products(rows: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """JJᵀ, by the factors of rows that are outer products, as those of the weights of a linear layer are."""
    found, start = rows.new_zeros(len(rows), len(rows)), 0
    rest = []
    for shape in shapes:
        size = math.prod(shape)
        part = rows[:, start : start + size]
        start += size
        pair = _outer_factors(part.reshape(len(rows), shape[0], -1)) if len(shape) > 1 and min(shape) > 1 else None
        if pair is None:
            rest.append(part)
        else:
            left, right = pair
            found += (left @ left.T).mul_(right @ right.T)
    return found.add_(_outer(torch.cat(rest, dim=1))) if rest else found


def _outer_factors(blocks: Tensor) -> tuple[Tensor, Tensor] | None:
    """Vectors u and v with uvᵀ each of the matrices; None where they are not of rank one."""
    sizes = blocks.abs().amax(dim=2)
    count = torch.arange(len(blocks), device=blocks.device)
    right = blocks[count, sizes.argmax(dim=1)]
    largest, column = right.abs().max(dim=1)
    left = blocks[count, :, column] / torch.where(largest > 0, right[count, column], 1.0)[:, None]
    few = slice(None) if len(blocks) <= _LOOKED_AT else torch.linspace(0, len(blocks) - 1, _LOOKED_AT).long()
    off = torch.einsum("ra,rb->rab", left[few], right[few]).sub_(blocks[few]).abs().amax(dim=(1, 2))
    return (left, right) if bool((off <= _RANK_ONE * largest[few]).all()) else None


def _outer(rows: Tensor) -> Tensor:
    """A Aᵀ, each pair of blocks once."""
    size = len(rows)
    if size <= 2 * _BLOCK or rows.is_cuda:
        return rows @ rows.T
    gram = rows.new_empty(size, size)
    for start in range(0, size, _BLOCK):
        stop = min(size, start + _BLOCK)
        torch.mm(rows[start:stop], rows[:stop].T, out=gram[start:stop, :stop])
        gram[:start, start:stop] = gram[start:stop, :start].T
    return gram
