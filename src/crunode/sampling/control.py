"""Minibatches whose noise at the center is known and taken away: a control variate around w*."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed

__all__ = ["ControlledBatches", "affordable", "partition"]

# Numbers that the table of gradients may have (a quarter of a gigabyte in single precision).
_LARGEST = 2**26
# More passes over the data than this are not made to have every example in equally many batches.
_PASSES = 16
_BLOCK = 4096
_tables: WeakKeyDictionary[Landscape, dict[tuple[int, int], tuple[Tensor, Tensor]]] = WeakKeyDictionary()


def affordable(land: Landscape, batch: int) -> bool:
    """Whether the gradients at the center of all batches fit into memory.

    Example:
        >>> net = torch.nn.Linear(3, 1)
        >>> affordable(Landscape(net, (torch.zeros(100, 3), torch.zeros(100, 1)), "gaussian"), 10)
        True
    """
    rows = land.data.rows
    return land.data.stacked and batch < rows and -(-rows // batch) * land.dim <= _LARGEST


def partition(rows: int, batch: int, seed: int, most: int) -> Tensor:
    """Batches of equal size that cover all rows equally often, shape (number, batch).

    Shuffled passes over the rows are put end to end and cut into batches. As many passes are made as come out even, if
    these are few; otherwise less than a batch is left over.

    Args:
        rows: Number of examples.
        batch: Examples in a batch.
        seed: The order comes from it.
        most: Number of batches not to exceed, unless one pass has more.

    Example:
        >>> table = partition(6, 4, seed=0, most=100)
        >>> table.shape, table.flatten().bincount().tolist()
        (torch.Size([3, 4]), [2, 2, 2, 2, 2, 2])
    """
    even = batch // math.gcd(rows, batch)
    passes = max(1, min(even, _PASSES, most * batch // rows))
    generator = torch.Generator().manual_seed(derived_seed(seed, 1 << 21))
    order = torch.cat([torch.randperm(rows, generator=generator) for _ in range(passes)])
    return order[: len(order) // batch * batch].view(-1, batch)


class ControlledBatches:
    """Minibatches out of a fixed partition, with g(w*) − g_B(w*) for each.

    A minibatch gradient g_B(w) scatters around g(w) even at w = w*, where labels are noisy by far the most of it. With
    g_B(w) − g_B(w*) + g(w*) in its place the mean is the same, and the scatter falls with ‖w − w*‖. Batches are drawn
    from a partition that stays the same, so that g_B(w*) is computed once for each, not at every step.

    Args:
        land: The landscape.
        seed: The run's seed.
        chains: Identity numbers of the chains.
        batch: Examples in a batch.

    References:
        Baker et al. 2019 (SGLD with control variates); Nagapetyan et al. 2017.
    """

    def __init__(self, land: Landscape, seed: int, chains: Sequence[int], batch: int) -> None:
        tables = _tables.setdefault(land, {})
        if (seed, batch) not in tables:
            tables[seed, batch] = _table(land, seed, batch)
        self._index, self._corrections = tables[seed, batch]
        self._seed, self._chains, self._picks, self._block = seed, list(chains), torch.empty(0), -1

    def _at(self, step: int) -> Tensor:
        block, offset = divmod(step, _BLOCK)
        if block != self._block:
            self._picks = torch.empty(len(self._chains), _BLOCK, dtype=torch.int64)
            for row, chain in zip(self._picks, self._chains, strict=True):
                generator = torch.Generator().manual_seed(derived_seed(self._seed, 1 << 22, chain, block))
                row.random_(len(self._index), generator=generator)
            self._picks, self._block = self._picks.to(self._index.device), block
        return self._picks[:, offset]

    def at(self, step: int) -> Tensor:
        """Indices of the minibatch of each chain at `step`, shape (chain, batch)."""
        return self._index[self._at(step)]

    def correction(self, step: int) -> Tensor:
        """g(w*) − g_B(w*) for the minibatch of each chain at `step`, shape (chain, dim)."""
        return self._corrections[self._at(step)]


def _table(land: Landscape, seed: int, batch: int) -> tuple[Tensor, Tensor]:
    index = partition(land.data.rows, batch, seed, max(_LARGEST // (4 * land.dim), 1)).to(land.device)
    gradients = torch.stack([land.batch_gradient(land.center, land.data.take(rows)) for rows in index])
    return index, gradients.mean(0, dtype=torch.float64).to(gradients) - gradients
