"""How chains are laid out: together or one by one, in groups that caches and memory hold.

The layout follows from the sizes of model and data and from how much memory the machine has, never from a clock, from
what is free at the moment or from the number of workers: rounding differs between groups of another size, and the same
question shall have the same answer wherever it is asked.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling.evaluate import Evaluator

__all__ = [
    "check_memory",
    "choose_layout",
    "enough_for_a_worker",
    "free_memory",
    "memory_class",
    "split_chains",
    "step_memory",
    "why_apart",
]

# Bytes of a step that are best worked on at a time: several times a processor's second-level cache. Below, chains share
# the overhead of fewer operations; above, each operation finds what the last one left in slower memory.
_AT_A_TIME = 12e6
# Activations of a step on which a processor spends several times as long as on its overhead: groups of so many lose
# little to being apart, and can go to as many workers.
_WORTH_A_WORKER = 4e6
# The part of a machine's memory that a group may take. On processors, groups run side by side.
_SHARE, _SHARE_OF_GPU = 0.125, 0.5
_UNKNOWN = 4e9


def free_memory(device: torch.device) -> float:
    """Bytes that are free on the device now. They may refuse a run, but not shape it; see `memory_class`."""
    return _memory(device, "MemAvailable", 0)


def memory_class(device: torch.device) -> float:
    """Bytes of memory that the device has, rounded down to a power of two: the same on machines of one kind.

    Example:
        >>> bytes = memory_class(torch.device("cpu"))
        >>> math.log2(bytes) == round(math.log2(bytes))
        True
    """
    return 2.0 ** math.floor(math.log2(_memory(device, "MemTotal", 1)))


def _memory(device: torch.device, line: str, entry: int) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[entry])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(words.split()[1]) for words in lines if words.startswith(line))
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


def enough_for_a_worker(land: Landscape, rows: int) -> int:
    """Chains that keep a processor busy for several times the overhead of their step on so many examples.

    Example:
        >>> land = Landscape(torch.nn.Linear(10, 1), (torch.ones(50, 10), torch.ones(50, 1)), "gaussian")
        >>> enough_for_a_worker(land, 5) > enough_for_a_worker(land, 50)
        True
    """
    return math.ceil(_WORTH_A_WORKER / (rows * land.activations))


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
    """Pick a layout by the sizes of a step and the operations of the model; returns (layout, why).

    Batching pays on small models, where it spares the overhead of a call per chain. It does not where one chain fills
    the caches, where an operation has no batching rule (attention on CPUs) or a slow one (convolutions over the weights
    of each chain on CPUs).
    """
    if not land.data.stacked:
        return "sequential", "batches have unlike shapes"
    if chains == 1:
        return "sequential", "one chain"
    check_memory(land, batch)
    together = len(split_chains(land, range(chains), batch)[0])
    if together == 1 and step_memory(land, 2, batch) > _room(land):
        return "sequential", f"two chains together would need about {step_memory(land, 2, batch) / 1e9:.1f} GB"
    if together == 1:
        return "sequential", "one chain fills the caches"
    against = why_apart(land, together, min(batch or land.chunk_rows(together), land.data.rows), shared=batch is None)
    if against is not None:
        return "sequential", against
    return "batched", f"groups of up to {together} chains share the cost of each operation"


def why_apart(land: Landscape, points: int, rows: int, *, shared: bool) -> str | None:
    """Why a model is not evaluated at several points together; None where it can be.

    Args:
        land: The landscape; its data stack.
        points: How many points.
        rows: How many examples at once.
        shared: Whether all points see the same examples.

    Example:
        >>> land = Landscape(torch.nn.Conv1d(1, 1, 3), (torch.ones(9, 1, 3), torch.ones(9, 1, 1)), "gaussian")
        >>> why_apart(land, 2, 9, shared=True)
        'convolutions over the weights of each chain are slow on processors'
    """
    seen = _Operations()
    try:
        with warnings.catch_warnings(), seen:
            warnings.simplefilter("error")  # an operation without a batching rule warns, and is slow
            _evaluate(land, points, rows, shared=shared)
    except Exception as error:
        return f"the model does not batch ({type(error).__name__}: {str(error).splitlines()[0][:100]})"
    if seen.convolutions and land.device.type == "cpu":
        return "convolutions over the weights of each chain are slow on processors"
    return None


def split_chains(land: Landscape, chains: Sequence[int], batch: int | None) -> list[list[int]]:
    """Chains in groups to be batched, of nearly equal size.

    On a processor a group is no larger than what caches hold of a minibatch, and no larger than takes a worker's while.
    No group takes more than its share of the machine's memory.
    """
    fit = next((k for k in range(len(chains), 1, -1) if step_memory(land, k, batch) <= _room(land)), 1)
    if land.device.type == "cpu":
        rows = land.data.rows if batch is None else min(batch, land.data.rows)
        fit = min(fit, enough_for_a_worker(land, rows))
        if rows < land.data.rows:
            fit = min(fit, max(1, int(_AT_A_TIME / (4 * (4 * land.dim + 3 * rows * land.activations)))))
    parts = -(-len(chains) // fit)
    ends = [len(chains) * k // parts for k in range(parts + 1)]
    return [list(chains[start:end]) for start, end in itertools.pairwise(ends)]


def _room(land: Landscape) -> float:
    """Bytes that one group may take."""
    return (_SHARE if land.device.type == "cpu" else _SHARE_OF_GPU) * memory_class(land.device)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Whether there was a convolution among the operations inside the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.convolutions = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.convolutions |= "convolution" in str(func)
        return func(*args, **(kwargs or {}))


def _evaluate(land: Landscape, chains: int, rows: int, *, shared: bool) -> None:
    """A gradient of all chains, to see whether it works."""
    unit = torch.ones_like(land.center[:1]).expand(chains)
    tensors = leaves(next(iter(land.data.passes(rows))))
    if not shared:
        tensors = [t.expand(chains, *t.shape).clone() for t in tensors]
    with torch.no_grad():
        Evaluator(land, unit, "batched", shared=shared, paired=False)(land.center.expand(chains, -1).clone(), tensors)
