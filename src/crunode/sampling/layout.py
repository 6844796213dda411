"""How chains are laid out: together or one by one, in groups that caches and memory hold."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling.evaluate import Evaluator, feature_major

__all__ = ["check_memory", "choose_layout", "free_memory", "split_chains", "step_memory"]

# Bytes of a step that are best worked on at a time: several times a processor's second-level cache. Below, chains share
# the overhead of fewer operations; above, each operation finds what the last one left in slower memory.
_AT_A_TIME = 12e6
# Of the free memory, what a step may take: other things live beside it, and the forecast is rough.
_SHARE = 0.6
_UNKNOWN = 4e9


def free_memory(device: torch.device) -> float:
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return _UNKNOWN


def step_memory(land: Landscape, chains: int, batch: int | None) -> float:
    """Bytes that a step of so many chains together takes, by a rough forecast.

    Eight vectors of the parameters for each chain (position, gradient, noise, what a kernel keeps) and four times the
    activations of the examples that are evaluated at once.

    Example:
        >>> land = Landscape(torch.nn.Linear(10, 1), (torch.ones(50, 10), torch.ones(50, 1)), "gaussian")
        >>> step_memory(land, 2, 5) == 2 * step_memory(land, 1, 5)
        True
    """
    rows = min(batch or land.chunk_rows(chains), land.data.rows)
    return float(land.center.element_size() * chains * (8 * land.dim + 4 * rows * land.activations))


def check_memory(land: Landscape, batch: int | None) -> None:
    """Refuse what does not fit with a single chain, before anything is started.

    Raises:
        InputError: It needs more memory than is free; the message says how much and what helps.
    """
    need, free = step_memory(land, 1, batch), free_memory(land.device)
    if need > free:
        rows = min(batch or land.chunk_rows(), land.data.rows)
        raise InputError(
            f"expected a step of one chain to fit the memory of {land.device}, got about {need / 1e9:.3g} GB for "
            f"{land.dim} parameters and {rows} examples at once against {free / 1e9:.3g} GB free; give a kernel with a "
            "smaller batch, restrict the landscape to fewer parameters, or use another device"
        )


def choose_layout(land: Landscape, chains: int, batch: int | None) -> tuple[str, str]:
    """Pick a layout by memory and by timing one gradient each way; returns (layout, why).

    Batching pays on small models, where it spares the overhead of a call per chain. It does not where an operation
    has no batching rule (attention on CPUs) or a slow one (convolutions over per-chain weights on CPUs).
    """
    if not land.data.stacked:
        return "sequential", "batches have unlike shapes"
    if chains == 1:
        return "sequential", "one chain"
    check_memory(land, batch)
    chains_then = len(split_chains(land, range(chains), batch)[0])
    if chains_then == 1:
        need = step_memory(land, 2, batch)
        return "sequential", f"two chains together would need about {need / 1e9:.1f} GB"
    rows = min(batch or land.chunk_rows(chains_then), land.data.rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            batched = chains * _trial(land, chains_then, rows, shared=batch is None) / chains_then
    except Exception as error:
        return (
            "sequential",
            f"the model does not batch ({type(error).__name__}: {str(error).splitlines()[0][:100]})",
        )
    single = chains * _trial(land, 1, rows, shared=batch is None)
    if batched > single:
        return "sequential", f"faster in a trial: {single:.2g} s a step against {batched:.2g} s batched"
    return "batched", f"faster in a trial: {batched:.2g} s a step against {single:.2g} s one by one"


def split_chains(land: Landscape, chains: Sequence[int], batch: int | None, workers: int = 1) -> list[list[int]]:
    """Chains in groups to be batched, of nearly equal size: at least one for each worker.

    With minibatches on a CPU, a group is no larger than what caches hold of a step, but of two chains or more. No group
    takes more than its share of the memory that is free.
    """
    parts = workers = min(workers, len(chains))
    if batch is not None and batch < land.data.rows and land.device.type == "cpu":
        size = 4 * (4 * land.dim + 3 * batch * land.activations)
        most = max(2, int(_AT_A_TIME * torch.get_num_threads() / size))
        parts = max(1, min(-(-len(chains) // (most * workers)), len(chains) // (2 * workers))) * workers
    room = _SHARE * free_memory(land.device) / workers
    fit = next((k for k in range(len(chains), 1, -1) if step_memory(land, k, batch) <= room), 1)
    parts = min(max(parts, -(-len(chains) // (fit * workers)) * workers), len(chains))
    ends = [len(chains) * k // parts for k in range(parts + 1)]
    return [list(chains[start:end]) for start, end in itertools.pairwise(ends)]


def _trial(land: Landscape, chains: int, rows: int, *, shared: bool) -> float:
    """Seconds that a gradient of all chains takes: the better one of two calls after one to warm up."""
    layout = "batched" if chains > 1 else "sequential"
    unit = torch.ones_like(land.center[:1]).expand(chains)
    evaluate = Evaluator(land, unit, layout, shared=shared, paired=False)
    points = land.center.expand(chains, -1).clone() if chains > 1 else land.center
    tensors = leaves(next(iter(land.data.passes(rows))))
    if chains > 1 and not shared:
        tensors = [t.expand(chains, *t.shape).clone() for t in tensors]
    best = math.inf
    with torch.no_grad():
        if evaluate.prepare(points, tensors):
            tensors = [feature_major(t, evaluate.row_axis) for t in tensors]
        for _ in range(3):
            start = time.perf_counter()
            evaluate(points, tensors)
            if land.device.type == "cuda":
                torch.cuda.synchronize(land.device)
            best = min(best, time.perf_counter() - start)
    return best
