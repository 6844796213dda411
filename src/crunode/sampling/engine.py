"""Losses and gradients of many chains at once: the inner loop behind every kernel."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import BatchStream
from crunode.sampling.posterior import Posterior

__all__ = ["Engine", "choose_layout"]

Evaluate = Callable[[Tensor, Any], tuple[Tensor, Tensor]]


class Engine:
    """Gradient of U(w) = nβ (L(w) − L(w*)) + (γ/2)‖w − μ‖² for a set of chains, on minibatches or all data.

    Loss differences are paired: the losses at w* of the very same examples are subtracted. Where the loss gives one
    value per example, those at w* are computed once; otherwise each batch is evaluated at w* too.

    Args:
        posterior: The target, with prior resolved.
        chains: Identity numbers of the chains, in row order.
        nbeta: Inverse temperature of each chain.
        seed: The run's seed.
        batch: Examples per minibatch; None for all data.
        layout: "batched" (all chains as one `torch.func.vmap`) or "sequential" (a single chain, without it).
        compiled: Compile the gradient with `torch.compile`.
    """

    def __init__(
        self,
        posterior: Posterior,
        chains: Sequence[int],
        nbeta: Tensor,
        *,
        seed: int,
        batch: int | None,
        layout: str,
        compiled: bool = False,
    ) -> None:
        land = posterior.landscape
        self.land, self.layout = land, layout
        self.nbeta = nbeta.to(land.device, land.packing.dtype).reshape(-1, 1)
        self.center, self.mean, self.precision = land.center, posterior.mean, posterior.precision
        self.batch = None if batch is None or batch >= land.data.rows else batch
        self._rows = land.data.rows
        size = self.batch if land.data.stacked else 1
        self._batches = (
            BatchStream(seed, chains, n=self._rows, batch=size, device=land.device) if self.batch and size else None
        )
        self._base = land.losses() if land.pointwise else None
        self._step = 0
        function = grad_and_value(self._objective)
        self._chunk = land.chunk_rows(len(chains))
        self._evaluate: Evaluate = function if layout == "sequential" else vmap(function, in_dims=(0, 0))
        self._evaluate_shared: Evaluate = function if layout == "sequential" else vmap(function, in_dims=(0, None))
        if compiled:
            self._evaluate = torch.compile(self._evaluate)
            self._evaluate_shared = torch.compile(self._evaluate_shared)

    def _objective(self, w: Tensor, content: tuple[Any, Tensor | None]) -> Tensor:
        batch, base = content
        losses = self.land.batch_losses(w, batch)
        return losses.mean() if base is None else (losses - base).mean()

    def at_step(self, step: int) -> Engine:
        """Move on to the minibatch of `step`."""
        self._step = step
        return self

    def __call__(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """(∇U, excess) for positions `w` (chain, dim): gradients (chain, dim) and loss differences (chain,)."""
        gradient, excess = self._full(w) if self._batches is None else self._minibatch(w)
        gradient = gradient.mul(self.nbeta)
        if self.precision:
            gradient.add_(w, alpha=self.precision).sub_(self.mean, alpha=self.precision)
        return gradient, excess

    def energy(self, w: Tensor, excess: Tensor) -> Tensor:
        """U(w) up to a constant, in float64 so that differences survive."""
        loss_part = self.nbeta[:, 0].double() * excess.double()
        if not self.precision:
            return loss_part
        return loss_part + 0.5 * self.precision * (w - self.mean).square().sum(1, dtype=torch.float64)

    def _minibatch(self, w: Tensor) -> tuple[Tensor, Tensor]:
        assert self._batches is not None
        index = self._batches.at(self._step)
        if self.layout == "batched":
            content = (self.land.data.take(index), None if self._base is None else self._base[index])
            return self._paired(w, content, self._evaluate)
        data = self.land.data
        base = self._base[index[0]] if self._base is not None and data.stacked else None
        gradient, value = self._paired(w[0], (data.take(index[0]), base), self._evaluate)
        return gradient[None], value[None]

    def _paired(self, w: Tensor, content: tuple[Any, Tensor | None], evaluate: Evaluate) -> tuple[Tensor, Tensor]:
        gradient, value = evaluate(w, content)
        if content[1] is None:
            with torch.no_grad():
                base = self._objective if w.ndim == 1 else vmap(self._objective, in_dims=(None, 0))
                value = value - base(self.center, content)
        return gradient, value

    def _full(self, w: Tensor) -> tuple[Tensor, Tensor]:
        if self.layout == "batched":
            return self._full_pass(w, self._evaluate_shared)
        gradient, value = self._full_pass(w[0], self._evaluate_shared)
        return gradient[None], value[None]

    def _full_pass(self, w: Tensor, evaluate: Evaluate) -> tuple[Tensor, Tensor]:
        gradient, excess, start = None, None, 0
        for batch in self.land.data.passes(self._chunk):
            size = leaves(batch)[0].shape[0]
            base = None if self._base is None else self._base[start : start + size]
            g, e = evaluate(w, (batch, base))
            if base is None:
                with torch.no_grad():
                    e = e - self._objective(self.center, (batch, None))
            start += size
            if size == self._rows:
                return g, e
            share = size / self._rows
            gradient = g * share if gradient is None else gradient.add_(g, alpha=share)
            excess = e * share if excess is None else excess + e * share
        assert gradient is not None
        assert excess is not None
        return gradient, excess


def choose_layout(land: Landscape, chains: int, batch: int | None) -> tuple[str, str]:
    """Pick a layout by memory and by timing one gradient each way; returns (layout, why).

    Batching pays on small models, where it spares the overhead of a call per chain. It does not where an operation
    has no batching rule (attention on CPUs) or a slow one (convolutions over per-chain weights on CPUs).
    """
    if not land.data.stacked:
        return "sequential", "batches have unlike shapes"
    if chains == 1:
        return "sequential", "one chain"
    rows = min(batch or land.chunk_rows(chains), land.data.rows)
    need = 4.0 * chains * (8 * land.dim + 4 * rows * land.activations)
    free = torch.cuda.mem_get_info(land.device)[0] if land.device.type == "cuda" else 4e9
    if need > 0.8 * free:
        return "sequential", f"batched would need about {need / 1e9:.1f} GB"
    content = next(iter(land.data.passes(rows)))
    points = land.center.expand(chains, -1).clone()
    gradient = grad_and_value(land.batch_loss)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batched = _seconds(lambda: vmap(gradient, in_dims=(0, None))(points, content), land.device)
    except Exception as error:
        return (
            "sequential",
            f"the model does not batch ({type(error).__name__}: {str(error).splitlines()[0][:100]})",
        )
    single = _seconds(lambda: gradient(points[0], content), land.device)
    if batched > chains * single:
        return (
            "sequential",
            f"faster in a trial: {chains * single:.2g} s a step against {batched:.2g} s batched",
        )
    return "batched", f"faster in a trial: {batched:.2g} s a step against {chains * single:.2g} s one by one"


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Time of the second call; the first one warms up."""
    spent = 0.0
    for _ in range(2):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent = time.perf_counter() - start
    return spent
