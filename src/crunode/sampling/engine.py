"""Losses and gradients of many chains at once: the inner loop behind every kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import BatchStream
from crunode.sampling.control import ControlledBatches
from crunode.sampling.evaluate import Evaluator, feature_major, flatten, is_narrow
from crunode.sampling.posterior import Posterior

__all__ = ["Engine"]


class Engine:
    """Gradient of U(w) = nβ (L(w) − L(w*)) + (γ/2)‖w − μ‖² for a set of chains, on minibatches or all data.

    A prior given as a density φ has −log φ(w) in place of the last term.

    Loss differences are paired: the losses at w* of the very same examples are subtracted. Where the loss gives one
    value per example, those at w* are computed once; otherwise each batch is evaluated at w* too.

    Args:
        posterior: The target, with prior resolved.
        chains: Identity numbers of the chains, in row order.
        nbeta: Inverse temperature of each chain.
        precision: γ of each chain; None for that of the posterior.
        seed: The run's seed.
        batch: Examples per minibatch; None for all data.
        layout: "batched" (all chains as one `torch.func.vmap`) or "sequential" (a single chain, without it).
        compiled: Compile the gradient with `torch.compile`.
        overwrite: A gradient may be overwritten by the next one.
        halved: Large products are computed in half precision, in three parts, where the gradient is recorded: on a GPU
            several times as fast, and off by a few parts in a million.
        control: Take the noise that minibatch gradients have at the center away (see `ControlledBatches`).
        each: The landscape of each chain, where they differ in data and center: the same model on other examples, as
            many for all. The posterior's landscape then stands for the model alone.
    """

    def __init__(
        self,
        posterior: Posterior,
        chains: Sequence[int],
        nbeta: Tensor,
        *,
        precision: Tensor | None = None,
        seed: int,
        batch: int | None,
        layout: str,
        compiled: bool = False,
        overwrite: bool = False,
        halved: bool = False,
        control: bool = False,
        each: Sequence[Landscape] | None = None,
    ) -> None:
        land = posterior.landscape
        self.land, self.layout = land, layout
        self.nbeta = nbeta.to(land.device, land.packing.dtype).reshape(-1)
        self._term = posterior.term()
        # Steps in C know Gaussian priors around the center only, and tell them by this being the center.
        self.center, self.mean = land.center, posterior.mean if self._term is None else land.center.clone()
        if each is not None:
            self.center = torch.stack([one.center for one in each])
            self.mean = self.center if posterior.mean is land.center and self._term is None else self.mean
        wide = torch.as_tensor(posterior.precision if precision is None else precision, dtype=torch.float64)
        self._wide_precision = wide.to(land.device).expand(len(self.nbeta)).clone()
        self.precision = self._wide_precision.to(land.packing.dtype)[:, None]
        self._prior = bool((wide > 0).any())
        self._same = float(wide.reshape(-1)[0]) if wide.numel() == 1 or bool((wide == wide[0]).all()) else None
        self.batch = None if batch is None or batch >= land.data.rows else batch
        self._base = land.losses() if land.pointwise else None
        size = self.batch if land.data.stacked else 1
        self._batches: BatchStream | ControlledBatches | None = None
        self._own = None if each is None else _own_examples(each)
        if self.batch and size and control and land.data.stacked:
            self._batches = ControlledBatches(land, seed, chains, size)
        elif self.batch and size:
            self._batches = BatchStream(seed, chains, n=land.data.rows, batch=size, device=land.device)
        paired = self._base is not None and (land.data.stacked or self._batches is None)
        shared = self._batches is None and self._own is None
        self._evaluate = Evaluator(
            land,
            self.nbeta,
            layout,
            shared=shared,
            paired=paired,
            compiled=compiled,
            overwrite=overwrite,
            halved=halved,
        )
        self._chunks: list[list[Tensor]] = []
        self._gather = _Gather(land, self._base, layout)
        self._step, self._prepared = 0, False
        self._offset: tuple[Tensor, int, Tensor] | None = None
        self._into = torch.empty(len(chains), land.dim, device=land.device, dtype=land.packing.dtype)

    @property
    def why_not_replayed(self) -> str:
        """Why the gradient runs without being recorded; empty when it is replayed."""
        return self._evaluate.why

    def at_step(self, step: int) -> Engine:
        """Move on to the minibatch of `step`."""
        self._step = step
        return self

    def likelihood(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(nβ∇L, excess) for positions `w` (chain, dim): gradients (chain, dim) and loss differences (chain,)."""
        point = w if self.layout == "batched" else w[0]
        gradient, excess = self._full(point) if self._batches is None else self._minibatch(point)
        if self.layout != "batched":
            gradient, excess = gradient[None], excess[None]
        if isinstance(self._batches, ControlledBatches):
            gradient = gradient.addcmul_(self._batches.correction(self._step), self.nbeta[:, None])
        return gradient, excess

    def __call__(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(∇U, excess) for positions `w` (chain, dim)."""
        gradient, excess = self.likelihood(w)
        if self._prior:
            offset = self.offset(w) if self.mean is self.center else w - self.mean
            if self._same is not None:
                gradient.add_(offset, alpha=self._same)
            else:
                gradient.addcmul_(offset, self.precision)
        if self._term is not None:
            gradient.add_(self._term.gradient(w))
        return gradient, excess

    def offset(self, w: Tensor) -> Tensor:
        """The offset w − w*, computed once for as long as `w` does not change; valid until the next call."""
        if self._offset is None or self._offset[0] is not w or self._offset[1] != w._version:
            self._offset = (w, w._version, torch.sub(w, self.center, out=self._into))
        return self._offset[2]

    def prior_slope(self, w: Tensor) -> Tensor:
        """The prior's part of ∇U at positions `w` (chain, dim)."""
        return self.precision * (w - self.mean) if self._term is None else self._term.gradient(w)

    def energy(self, w: Tensor, excess: Tensor) -> Tensor:
        """U(w) up to a constant, in float64 so that differences survive."""
        loss_part = self.nbeta.double() * excess.double()
        if self._term is not None:
            return loss_part + self._term.energy(w)
        if not self._prior:
            return loss_part
        return loss_part + 0.5 * self._wide_precision * (w - self.mean).square().sum(1, dtype=torch.float64)

    def _minibatch(self, w: Tensor) -> tuple[Tensor, Tensor]:
        assert self._batches is not None
        index = self._batches.at(self._step)
        if not self.land.data.stacked:
            self._evaluate.template = self.land.data.take(index[0])
            return self._evaluate(w, leaves(self._evaluate.template))
        if not self._prepared:
            self._gather.by_feature = self._evaluate.prepare(w, self._gather(index))
            self._prepared = True
        return self._evaluate(w, self._gather(index))

    def _full(self, w: Tensor) -> tuple[Tensor, Tensor]:
        if not self._prepared:
            self._chunks = [self._arranged(w, chunk) for chunk in ([self._own] if self._own else self._split())]
            self._prepared = True
        if len(self._chunks) == 1:
            return self._evaluate(w, self._chunks[0])
        gradient, excess, rows = None, None, self.land.data.rows
        for tensors in self._chunks:
            g, e = self._evaluate(w, tensors)
            share = tensors[0].shape[0] / rows
            # Not in place: the next chunk may overwrite this one's gradient.
            gradient = g * share if gradient is None else gradient.add_(g, alpha=share)
            excess = e * share if excess is None else excess + e * share
        assert gradient is not None
        assert excess is not None
        return gradient, excess

    def _split(self) -> list[list[Tensor]]:
        chunks: list[list[Tensor]] = []
        start, rows, most = 0, self.land.data.rows, self.land.chunk_rows(len(self.nbeta))
        for batch in self.land.data.passes(-(-rows // -(-rows // most))):  # of nearly equal size
            end = start + leaves(batch)[0].shape[0]
            chunks.append(flatten(batch, None if self._base is None else self._base[start:end]))
            start = end
        return chunks

    def _arranged(self, w: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        axis = self._evaluate.row_axis
        return [feature_major(t, axis) for t in tensors] if self._evaluate.prepare(w, tensors) else tensors


def _own_examples(each: Sequence[Landscape]) -> list[Tensor]:
    """The examples of each chain with their losses at its center, one behind the other along a leading axis."""
    found: dict[int, list[Tensor]] = {}
    for land in each:
        if id(land) not in found:
            found[id(land)] = flatten(next(iter(land.data.passes(land.data.rows))), land.losses())
    return [torch.stack(tensors) for tensors in zip(*(found[id(land)] for land in each), strict=True)]


class _Gather:
    """Examples of minibatches, and their losses at the center, copied into memory that is used again at each step."""

    def __init__(self, land: Landscape, base: Tensor | None, layout: str) -> None:
        self.tensors = flatten(next(iter(land.data.passes(land.data.rows))), base)
        self.batched, self.by_feature = layout == "batched", False
        self._into: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}

    def __call__(self, index: Tensor) -> list[Tensor]:
        """The examples at `index` (chain, batch); without the chain axis unless chains are batched."""
        shape = index.shape if self.batched else index.shape[1:]
        flat = index.reshape(-1)
        return [self._rows(k, flat, shape) for k in range(len(self.tensors))]

    def _rows(self, k: int, index: Tensor, shape: torch.Size) -> Tensor:
        tensor = self.tensors[k]
        columns = self.by_feature and is_narrow(tensor, 0)
        if (k, columns) not in self._into:
            source = tensor.T.contiguous() if columns else tensor
            size = (tensor.shape[1], len(index)) if columns else (len(index), *tensor.shape[1:])
            self._into[k, columns] = source, tensor.new_empty(size)
        source, into = self._into[k, columns]
        torch.index_select(source, int(columns), index, out=into)
        return into.view(-1, *shape).movedim(0, -1) if columns else into.view(*shape, *tensor.shape[1:])
