"""nβ∇L and loss differences of one chain or many, as a function that is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from crunode.core.data import leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.sampling.tape import NARROW, Untapeable, record

__all__ = ["Evaluator"]

Pair = tuple[Tensor, Tensor]
# Bytes up to which a step is recorded: recording holds all its intermediate values, and a step that large has
# nothing to gain.
_LARGEST = 2**30


class Evaluator:
    """Maps points and examples to (nβ∇L, L(w) − L(w*)) for each chain; both are new tensors.

    Args:
        land: The landscape.
        nbeta: Inverse temperature of each chain, shape (chain,).
        layout: "batched": points (chain, dim), all chains as one `torch.func.vmap`; "sequential": one point (dim,).
        shared: All chains see the same examples; otherwise these have a leading chain axis too.
        compiled: Compile with `torch.compile` in place of recording.

    Attributes:
        why: Why the operations are not replayed; empty when they are, or when nothing was evaluated yet.
    """

    def __init__(self, land: Landscape, nbeta: Tensor, layout: str, *, shared: bool, compiled: bool = False) -> None:
        self.land, self.nbeta, self.layout, self.shared = land, nbeta, layout, shared
        self.why = "compiled" if compiled else ""
        self._compiled: Callable[..., Pair] | None = None
        self._compile = compiled
        self._replays: dict[int, Callable[..., Any] | None] = {}

    def __call__(self, w: Tensor, batch: Any, base: Tensor | None) -> Pair:
        """Evaluate at `w`; `base` holds the losses of the examples at the center, None to have them computed."""
        tensors = leaves(batch)
        if base is not None:
            tensors.append(base)
        if self._compile:
            self._compiled = self._compiled or torch.compile(self._plain(batch, base is not None))
            return _fresh(self._compiled(w, *tensors))
        rows = tensors[0].shape[0 if self.shared or self.layout == "sequential" else 1]
        if rows not in self._replays:
            self._replays[rows] = self._recorded(self._plain(batch, base is not None), rows, w, tensors)
        replay = self._replays[rows]
        if replay is not None:
            gradient, excess = replay(w, *tensors)
            return gradient, excess
        return _fresh(self._plain(batch, base is not None)(w, *tensors))

    def _plain(self, batch: Any, paired: bool) -> Callable[..., Pair]:
        """The evaluation as a function of the point and of flat tensors: the leaves of `batch`, then its base."""

        def one(w: Tensor, nbeta: Tensor, *tensors: Tensor) -> Pair:
            parts = iter(tensors)
            content = map_tree(lambda _: next(parts), batch)
            base = next(parts) if paired else None
            if self.layout == "batched":
                gradient, value = grad(lambda v: self._objective(v, nbeta, content, base), has_aux=True)(w)
            else:
                with torch.enable_grad():
                    leaf = w.detach().requires_grad_()
                    scaled, value = self._objective(leaf, nbeta, content, base)
                    (gradient,) = torch.autograd.grad(scaled, leaf)
                value = value.detach()
            if base is None:
                value = value - self._objective(self.land.center, nbeta, content, None)[1]
            if value.dtype != nbeta.dtype:
                gradient = nbeta * gradient
            return gradient, value

        if self.layout == "sequential":
            return lambda w, *tensors: one(w, self.nbeta[0], *tensors)
        axis = None if self.shared else 0
        return lambda w, *tensors: vmap(one, in_dims=(0, 0, *[axis] * len(tensors)))(w, self.nbeta, *tensors)

    def _objective(self, w: Tensor, nbeta: Tensor, batch: Any, base: Tensor | None) -> Pair:
        """The loss difference times nβ, to be differentiated, and as it is."""
        losses = self.land.batch_losses(w, batch)
        value = losses.mean() if base is None else (losses - base).mean()
        # In a lower precision than that of the parameters nβ would be rounded: it is then applied afterwards.
        return (nbeta * value if value.dtype == nbeta.dtype else value), value

    def _recorded(
        self, plain: Callable[..., Pair], rows: int, w: Tensor, tensors: Sequence[Tensor]
    ) -> Callable[..., Any] | None:
        if not self.land.data.stacked:
            self.why = "batches have unlike shapes"
            return None
        chains = len(self.nbeta)
        if 4 * chains * (4 * self.land.dim + 3 * rows * self.land.activations) > _LARGEST:
            self.why = "a step is large"
            return None
        try:
            replay = record(plain, w, *tensors, narrow=NARROW if w.device.type == "cpu" else 0)
            # Elsewhere and on the examples in another order, to be sure that no value was taken for a constant.
            elsewhere = w + 0.01 * w.square().mean().sqrt() * torch.linspace(-1, 1, w.shape[-1]).to(w)
            axis = 0 if self.shared or self.layout == "sequential" else 1
            other = [tensor.flip(axis) for tensor in tensors]
            pairs = zip(replay(elsewhere, *other), plain(elsewhere, *other), strict=True)
            if all(_close(a, b) for a, b in pairs):
                return replay
            self.why = "replayed operations give another result"
        except (Untapeable, RuntimeError) as error:
            self.why = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return None


def _close(a: Tensor, b: Tensor) -> bool:
    scale = float(torch.nan_to_num(b.detach(), posinf=0, neginf=0).abs().max()) if b.numel() else 0.0
    tolerance = 1e4 * torch.finfo(b.dtype).eps * scale
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=True)


def _fresh(pair: Pair) -> Pair:
    """The gradient may be an expanded or constant tensor, which nobody should change in place."""
    gradient, value = pair
    return gradient.clone(memory_format=torch.contiguous_format), value
