"""Running one group of chains from where it stands to its end: the unit of work of every executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.deadline import check_deadline
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import NoiseStream, preserved_rng
from crunode.sampling.engine import Engine
from crunode.sampling.kernel import Kernel
from crunode.sampling.native.step import NativeStep
from crunode.sampling.posterior import Posterior, Rung
from crunode.sampling.stochastic import SGHMC, SGLD
from crunode.store.run_store import RunStore

__all__ = ["Group", "Outcome", "run_group"]

Observable = Callable[[Landscape, Tensor], Any]
CHUNK = 50


@dataclass(frozen=True)
class Group:
    """Everything needed to run some chains: picklable when the landscape is.

    Attributes:
        posterior: The target, resolved.
        kernel: The kernel, resolved.
        index: Number of this group in the run.
        chains: Identity numbers of its chains.
        rungs: Inverse temperature, precision and step of each chain.
        warmup: Steps discarded first.
        draws: Steps kept.
        seed: The run's seed.
        layout: "batched", or "sequential" for a single chain.
        keep: Further arrays to keep: "positions", "pointwise".
        observe: Functions of (landscape, w) to record at every kept draw.
        store: Where to write chunks, if anywhere.
        compiled: Compile the gradient.
        chunk: Draws between two writes.
        native: Make steps in C where that can be done.
        each: The landscape of each chain, where they differ; all have the model of the posterior's.
    """

    posterior: Posterior
    kernel: Kernel
    index: int
    chains: Sequence[int]
    rungs: Sequence[Rung]
    warmup: int
    draws: int
    seed: int
    layout: str
    keep: tuple[str, ...] = ()
    observe: Mapping[str, Observable] = field(default_factory=dict)
    store: RunStore | None = None
    compiled: bool = False
    chunk: int = CHUNK
    native: bool = True
    each: Sequence[Landscape] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a group gave: arrays unless they went to a store, and which chains failed (with the step)."""

    arrays: dict[str, np.ndarray]
    warmup: dict[str, np.ndarray]
    failed: tuple[tuple[int, int], ...] = ()


def run_group(group: Group) -> Outcome:
    """Run a group to its end, writing a chunk at a time; stops early when a chain turns non-finite."""
    with preserved_rng(), torch.no_grad():
        return _Runner(group).run()


class _Runner:
    def __init__(self, group: Group) -> None:
        self.group = group
        land = group.posterior.landscape
        self.land = land
        place: dict[str, Any] = {"device": land.device, "dtype": land.packing.dtype}
        self.engine = Engine(
            group.posterior,
            group.chains,
            torch.tensor([r.nbeta for r in group.rungs], dtype=torch.float64),
            precision=torch.tensor([r.precision for r in group.rungs], dtype=torch.float64),
            seed=group.seed,
            batch=group.kernel.batch,
            layout=group.layout,
            compiled=group.compiled,
            overwrite=group.kernel.one_gradient,
            control=bool(group.kernel.control),
            each=group.each,
        )
        self.lands = group.each or [land] * len(group.chains)
        self.step = torch.tensor([r.step for r in group.rungs], dtype=torch.float64).to(**place).reshape(-1, 1)
        kind = "normal" if group.kernel.metropolis else "grid"  # a Metropolis test takes the density for exact
        self.normal = NoiseStream(group.seed, group.chains, land.dim, stream=0, kind=kind, **place)
        width = group.kernel.uniforms
        self.uniform = NoiseStream(group.seed, group.chains, width, stream=1, kind="uniform", **place)
        self.native: NativeStep | None = None
        kernel = group.kernel
        if group.native and type(kernel) in (SGLD, SGHMC) and self.engine.mean is land.center:
            friction = kernel.friction if isinstance(kernel, SGHMC) else None
            settings = (land.center, self.step, self.engine.precision, friction)
            self.native = NativeStep.of(group.seed, group.chains, *settings)
        self.blocks: dict[str, list[dict[str, np.ndarray]]] = {"warmup": [], "draws": []}

    def run(self) -> Outcome:
        group = self.group
        state, done = self._start()
        total = group.warmup + group.draws
        with Progress(total, f"sampling {len(group.chains)} chains", done) as bar:
            while done < total:
                warming = done < group.warmup
                end = min(done + group.chunk, group.warmup if warming else total)
                rows = [self._advance(state, s, warming) for s in range(done, end)]
                block = {name: torch.stack([r[name] for r in rows], 1).cpu().numpy() for name in rows[0]}
                done = end
                self._write("warmup" if warming else "draws", block, state, done)
                bad = ~np.isfinite(block["excess"]).all(1) | ~torch.isfinite(state["w"]).all(1).cpu().numpy()
                if bad.any():
                    return self._outcome(tuple((group.chains[k], done) for k in np.flatnonzero(bad).tolist()))
                bar.advance(len(rows))
                if group.store is not None and done < total:
                    check_deadline()  # all until here is stored
        return self._outcome()

    def _start(self) -> tuple[dict[str, Tensor], int]:
        stored = self.group.store.resume(self.group.index) if self.group.store is not None else None
        if stored is not None:
            arrays, meta = stored
            return {name: torch.from_numpy(a.copy()).to(self.land.device) for name, a in arrays.items()}, meta["step"]
        w = self.engine.center.expand(len(self.group.chains), -1).clone()
        return {"w": w, **self.group.kernel.init(w, self.engine.at_step(0))}, 0

    def _advance(self, state: dict[str, Tensor], step: int, warming: bool) -> dict[str, Tensor]:
        uniform = self.uniform.at(step) if self.group.kernel.metropolis else self.step
        # Unadjusted kernels report the loss of the position they leave, Metropolis kernels of the one they reach;
        # everything else recorded must belong to the same position.
        before = {} if self.group.kernel.metropolis else self._observed(state["w"], warming)
        if self.native is not None:
            slope, excess = self.engine.at_step(step).likelihood(state["w"])
            distance2 = self.native(state["w"], slope, step, state.get("velocity"))
            return {"excess": excess, **before, "distance2": distance2}
        row = self.group.kernel.advance(
            state, self.engine.at_step(step), self.step, self.normal.at(step), uniform, warming
        )
        return {**row, **(before or self._observed(state["w"], warming))}

    def _observed(self, w: Tensor, warming: bool) -> dict[str, Tensor]:
        seen = {}
        if self.native is None:  # which finds it on its way
            seen["distance2"] = torch.linalg.vector_norm(self.engine.offset(w), dim=1).square_()
        if warming:
            return seen
        if "positions" in self.group.keep:
            seen["positions"] = w.clone()
        if "pointwise" in self.group.keep:
            seen["pointwise"] = torch.stack([land.losses(row) for land, row in zip(self.lands, w, strict=True)])
        for name, fn in self.group.observe.items():
            rows = zip(self.lands, w, strict=True)
            seen[name] = torch.stack([torch.as_tensor(fn(land, row)) for land, row in rows])
        return seen

    def _write(self, kind: str, block: dict[str, np.ndarray], state: dict[str, Tensor], done: int) -> None:
        if self.group.store is None:
            self.blocks[kind].append(block)
            return
        arrays = {name: tensor.cpu().numpy() for name, tensor in state.items()}
        self.group.store.append(self.group.index, kind, block, arrays, {"step": done})  # type: ignore[arg-type]

    def _outcome(self, failed: tuple[tuple[int, int], ...] = ()) -> Outcome:
        return Outcome(_join(self.blocks["draws"]), _join(self.blocks["warmup"]), failed)


def _join(blocks: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([b[name] for b in blocks], axis=1) for name in blocks[0]} if blocks else {}
