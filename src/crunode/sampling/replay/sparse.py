"""Which products of a recorded function are computed over the non-zero entries of the examples alone.

With one-hot inputs, as those of modular arithmetic, products with the examples are a large part of a gradient's
arithmetic, and nearly all of it is with zeros. How many entries are not zero decides about speed only: the products
find those themselves, whatever examples they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from crunode.sampling.native import sparse
from crunode.sampling.replay.memory import storage

__all__ = ["SparseProducts", "most_nonzero", "pays", "sparse_tensors"]

# Multiply-adds of a dense product below which the call of another one takes longer than the product.
_SMALL = 1 << 20


def pays(rows: int, columns: int, units: int, most: int) -> bool:
    """True when a product of (row, column) and (column, unit) is faster over non-zero entries, `most` to a row.

    It copies the second one, at the cost of 8 multiply-adds of a dense product for each number, looks at each entry
    of the first, at the cost of 20, and spends 4 on each pair of a non-zero entry and a unit; all on one thread.

    Example:
        >>> pays(128, 106, 512, 2), pays(128, 106, 512, 53), pays(8, 106, 512, 2)
        (True, False, False)
    """
    return 8 / rows + 20 / units + 4 * most / columns <= 1 / torch.get_num_threads()


def most_nonzero(tensor: Tensor) -> int:
    """The most non-zero entries in a row, along the last axis.

    Example:
        >>> most_nonzero(torch.tensor([[0.0, 0.0], [0.0, 3.0]]))
        1
    """
    rows = tensor.reshape(-1, tensor.shape[-1])
    return max((int(part.count_nonzero(-1).max()) for part in torch.split(rows, 4096) if part.numel()), default=0)


def sparse_tensors(batch: Sequence[Tensor], examples: Sequence[Tensor]) -> dict[int, int]:
    """The most non-zero entries in a row of those tensors that have few, by their place in the batch.

    Args:
        batch: The tensors of a minibatch, perhaps followed by others.
        examples: The same of all examples, which are looked at only where the minibatch has few.

    Example:
        >>> sparse_tensors([torch.eye(9)[:2]], [torch.eye(9)]), sparse_tensors([torch.eye(9)[:2]], [torch.ones(9, 9)])
        ({0: 1}, {})
    """
    found = {}
    for k, (part, whole) in enumerate(zip(batch, examples, strict=False)):
        if part.device.type == "cpu" and part.dtype in sparse.DTYPES and part.ndim >= 2:
            few = (part.shape[-1] - 1) // 4  # beyond that it pays nowhere
            most = most_nonzero(part)
            if most <= few:
                most = max(most, most_nonzero(whole))
            if most <= few:
                found[k] = most
    return found


class SparseProducts:
    """Functions that take the place of `torch.mm` and `torch.bmm` where one factor is the examples.

    Args:
        examples: Tensors of which each row has few non-zero entries, with the most that one has.
    """

    def __init__(self, examples: Sequence[tuple[Tensor, int]]) -> None:
        usable = bool(examples) and not sparse.why_not()
        self._most = {storage(tensor): (tensor.shape[-1], most) for tensor, most in examples} if usable else {}
        self._scratch: dict[int, Tensor] = {}

    def of(self, a: Tensor, b: Tensor) -> tuple[Callable[..., Tensor], Tensor] | None:
        """What gives a b, called with both and with a scratch space; None where that does not pay."""
        if a.dtype not in sparse.DTYPES or a.dtype != b.dtype:
            return None
        if self._is_examples(a) and 1 in b.stride()[-2:]:
            return self._if_it_pays(sparse.product_xw, a, b.shape[-1])
        if self._is_examples(a.mT) and 1 in b.stride()[-2:]:
            return self._if_it_pays(sparse.product_xt_y, a.mT, b.shape[-1])
        if self._is_examples(b) and 1 in a.stride()[-2:]:
            return self._if_it_pays(sparse.product_yt_x, b, a.shape[-2])
        return None

    def _is_examples(self, tensor: Tensor) -> bool:
        columns, _ = self._most.get(storage(tensor), (None, 0))
        return tensor.shape[-1] == columns and tensor.stride(-1) == 1

    def _if_it_pays(
        self, product: Callable[..., Tensor], x: Tensor, units: int
    ) -> tuple[Callable[..., Tensor], Tensor] | None:
        rows, columns = x.shape[-2:]
        if rows * columns >= 1 << 32:  # entries are numbered in 32 bits
            return None
        if x.numel() * units < _SMALL or not pays(rows, columns, units, self._most[storage(x)][1]):
            return None
        size = sparse.scratch_size(x)
        if size not in self._scratch:
            self._scratch[size] = torch.empty(size, dtype=torch.uint8)
        return product, self._scratch[size]
