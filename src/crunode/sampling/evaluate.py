"""nβ∇L and loss differences of one chain or many, as a function that is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from crunode.core.data import leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.sampling.replay.capture import Captured
from crunode.sampling.replay.sparse import sparse_tensors
from crunode.sampling.replay.tape import NARROW, Untapeable, record

__all__ = ["Evaluator", "feature_major", "flatten", "is_narrow"]

Pair = tuple[Tensor, Tensor]
# Bytes up to which a step is recorded: recording holds all its intermediate values, and a step that large has
# nothing to gain.
_LARGEST = {"cpu": 1 << 30, "cuda": 1 << 33}
_FEW = 16


class Evaluator:
    """Maps points and examples to (nβ∇L, L(w) − L(w*)) for each chain; both are new tensors.

    Examples are given as a flat list: the tensors of a batch in order and, with per-example losses, the losses at the
    center of the same examples.

    Args:
        land: The landscape.
        nbeta: Inverse temperature of each chain, shape (chain,).
        layout: "batched": points (chain, dim), all chains as one `torch.func.vmap`; "sequential": one point (dim,).
        shared: All chains see the same examples; otherwise these have a leading chain axis too.
        paired: The losses at the center are given; otherwise they are computed.
        compiled: Compile with `torch.compile` in place of recording.
        overwrite: A gradient may be overwritten by the next one.
        halved: Large products are computed in half precision, in three parts, where the step is recorded.

    Attributes:
        template: A batch, for the structure to put tensors back into.
        why: Why the operations are not replayed; empty when they are, or when nothing was evaluated yet.
        why_not_captured: Why they are not replayed as a CUDA graph, on a GPU.
    """

    def __init__(
        self,
        land: Landscape,
        nbeta: Tensor,
        layout: str,
        *,
        shared: bool,
        paired: bool,
        compiled: bool = False,
        overwrite: bool = False,
        halved: bool = False,
    ) -> None:
        self.overwrite, self.halved = overwrite, halved
        self.land, self.nbeta, self.layout = land, nbeta, layout
        self.shared, self.paired, self.compiled = shared, paired, compiled
        self.template = next(iter(land.data.passes(land.data.rows)))
        self.row_axis = 0 if shared or layout == "sequential" else 1
        self.why, self.why_not_captured = "compiled" if compiled else "", ""
        plain = self._function()
        self._plain: Callable[..., Pair] = torch.compile(plain, dynamic=False) if compiled else plain
        self._replays: dict[int, Callable[..., Pair] | None] = {}

    def prepare(self, w: Tensor, tensors: Sequence[Tensor]) -> bool:
        """Record the operations for batches of this size; True if they will be replayed.

        Replaying is fastest on tensors arranged by `feature_major`.
        """
        rows = tensors[0].shape[self.row_axis]
        if rows not in self._replays:
            self._replays[rows] = None if self.compiled else self._recorded(w, tensors)
        return self._replays[rows] is not None

    def __call__(self, w: Tensor, tensors: Sequence[Tensor]) -> Pair:
        """Gradients and loss differences at `w`."""
        replay = self._replays.get(tensors[0].shape[self.row_axis])
        if replay is not None:
            return replay(w, *tensors)
        gradient, excess = self._plain(w, *tensors)
        # It may be an expanded tensor, which nobody could change in place.
        return gradient.clone(memory_format=torch.contiguous_format), excess

    def _function(self) -> Callable[..., Pair]:
        """The evaluation as a function of the point and of flat tensors."""
        if self.layout == "sequential":
            return lambda w, *tensors: self._single(w, self.nbeta[0], *tensors)
        axis = None if self.shared else 0
        return lambda w, *tensors: vmap(self._member, in_dims=(0, 0, *[axis] * len(tensors)))(w, self.nbeta, *tensors)

    def _member(self, w: Tensor, nbeta: Tensor, *tensors: Tensor) -> Pair:
        gradient, value = grad(lambda v: self._objective(v, nbeta, tensors), has_aux=True)(w)
        return self._completed(gradient, value, nbeta, tensors)

    def _single(self, w: Tensor, nbeta: Tensor, *tensors: Tensor) -> Pair:
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            scaled, value = self._objective(leaf, nbeta, tensors)
            (gradient,) = torch.autograd.grad(scaled, leaf)
        return self._completed(gradient, value.detach(), nbeta, tensors)

    def _objective(self, w: Tensor, nbeta: Tensor, tensors: Sequence[Tensor]) -> Pair:
        """The loss difference times nβ, to be differentiated, and as it is."""
        parts = iter(tensors)
        losses = self.land.batch_losses(w, map_tree(lambda _: next(parts), self.template))
        value = (losses - next(parts)).mean() if self.paired else losses.mean()
        # In a lower precision than that of the parameters nβ would be rounded: it is then applied afterwards.
        return (nbeta * value if value.dtype == nbeta.dtype else value), value

    def _completed(self, gradient: Tensor, value: Tensor, nbeta: Tensor, tensors: Sequence[Tensor]) -> Pair:
        if not self.paired:
            value = value - self._objective(self.land.center, nbeta, tensors)[1]
        return (gradient if value.dtype == nbeta.dtype else nbeta * gradient), value

    def _recorded(self, w: Tensor, tensors: Sequence[Tensor]) -> Callable[..., Any] | None:
        if not self.land.data.stacked:
            self.why = "batches have unlike shapes"
            return None
        rows = tensors[0].shape[self.row_axis]
        if 4 * len(self.nbeta) * (4 * self.land.dim + 3 * rows * self.land.activations) > _LARGEST.get(
            w.device.type, 1 << 30
        ):
            self.why = "a step is large"
            return None
        narrow = NARROW if w.device.type == "cpu" else 0
        try:
            arranged = [w, *self._arranged(tensors)]
            sparse = {1 + k: most for k, most in sparse_tensors(tensors, leaves(self.template)).items()}
            taped = partial(
                record,
                self._plain,
                w,
                *tensors,
                narrow=narrow,
                strided=arranged,
                sparse=sparse,
                overwrite=self.overwrite,
            )
            replay = taped()
            if not self._agrees(replay, self._plain, w, tensors):
                self.why = "replayed operations give another result"
                return None
            if self.halved:  # the same operations, so that they need no other check
                replay = taped(halved=True)
        except (Untapeable, RuntimeError) as error:
            self.why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return None
        return replay if w.device.type != "cuda" else self._captured(replay, w, tensors)

    def _captured(self, replay: Callable[..., Any], w: Tensor, tensors: Sequence[Tensor]) -> Callable[..., Any]:
        """The operations as a CUDA graph where that works."""
        try:
            captured = Captured(replay, [w, *tensors], overwrite=self.overwrite)
            if self._agrees(captured, replay, w, tensors):
                return captured
            self.why_not_captured = "captured operations give another result"
        except RuntimeError as error:
            self.why_not_captured = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return replay

    def _agrees(
        self, replay: Callable[..., Any], original: Callable[..., Any], w: Tensor, tensors: Sequence[Tensor]
    ) -> bool:
        """Once more elsewhere and on the examples in another order: was any value taken for a constant?"""
        far = 1.0 if self.halved else 0.01  # close to a minimum products in halves are mostly rounding
        elsewhere = w + far * (w.square().mean().sqrt() + 0.1) * torch.linspace(-1, 1, w.shape[-1]).to(w)
        other = [tensor.flip(self.row_axis) for tensor in tensors]
        pairs = zip(replay(elsewhere, *self._arranged(other)), original(elsewhere, *other), strict=True)
        # A difference of losses that is next to nothing is known no better than the losses are.
        losses = float(tensors[-1].abs().max()) if self.paired else 0.0
        return all(_close(a, b, least) for (a, b), least in zip(pairs, (0.0, losses), strict=True))

    def _arranged(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [feature_major(tensor, self.row_axis) for tensor in tensors]


def is_narrow(tensor: Tensor, row_axis: int) -> bool:
    """True for examples of few features each, which are best kept feature by feature."""
    wide = tensor.ndim != row_axis + 2 or not 1 < tensor.shape[-1] <= _FEW
    return tensor.device.type == "cpu" and tensor.is_floating_point() and not wide


def feature_major(tensor: Tensor, row_axis: int) -> Tensor:
    """The same tensor with examples next to each other in memory, if they are narrow."""
    return tensor.mT.contiguous().mT if is_narrow(tensor, row_axis) else tensor


def flatten(batch: Any, base: Tensor | None) -> list[Tensor]:
    """The tensors of a batch and, where there are any, the losses of its examples at the center."""
    return [*leaves(batch), *([] if base is None else [base])]


def _close(a: Tensor, b: Tensor, least: float) -> bool:
    """Equal but for rounding; gradients chain by chain, as those of hot chains are small beside those of cold ones."""
    if a.shape != b.shape or a.dtype != b.dtype or not b.numel():
        return a.shape == b.shape and a.dtype == b.dtype
    size = torch.nan_to_num(b.detach(), posinf=0, neginf=0).abs()
    scale = size.flatten(1).amax(1).reshape(-1, *[1] * (b.ndim - 1)) if b.ndim > 1 else size.amax()
    tolerance = torch.finfo(b.dtype).eps * (1e4 * scale + size.amax() + 4 * least)
    return bool((((a - b).abs() <= tolerance) | (a == b) | (a.isnan() & b.isnan())).all())
