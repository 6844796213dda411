"""Any way of giving data, turned into a fixed set of examples with known n."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data import default_collate as torch_collate

from crunode.core.result import Finding
from crunode.core.rng import preserved_rng
from crunode.errors import InputError

__all__ = ["Examples", "as_examples", "leaves", "map_tree"]

_GROUP = 256


def map_tree(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply `fn` to every tensor in a nest of tuples, lists and mappings; other leaves pass unchanged.

    Example:
        >>> map_tree(lambda t: t.shape[0], {"x": torch.ones(3, 2), "name": "a"})
        {'x': 3, 'name': 'a'}
    """
    if isinstance(tree, Tensor):
        return fn(tree)
    if isinstance(tree, Mapping):
        return {key: map_tree(fn, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map_tree(fn, value) for value in tree)
    return tree


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a nest, in order."""
    found: list[Tensor] = []
    map_tree(found.append, tree)
    return found


class Examples:
    """A fixed set of n examples: stacked in tensors with a leading axis, or a list of batches of unlike shapes.

    Attributes:
        rows: Number of examples held.
        n: Number of examples they stand for: `rows` times `copies`.
        stacked: True when any subset of examples can be taken; False when only whole batches can.
        findings: What was noticed while reading the data.
    """

    def __init__(self, batches: list[Any], findings: tuple[Finding, ...] = (), copies: int = 1) -> None:
        self.findings, self.copies = findings, copies
        sizes = [_batch_size(batch) for batch in batches]
        self.rows = sum(sizes)
        self.n = self.rows * copies
        if self.rows == 0:
            raise InputError("expected data with at least one example, got none; check the data set or its filter")
        self.stacked = len(batches) == 1 or _stackable(batches)
        self._tree = _concatenate(batches) if self.stacked else None
        self._batches = [] if self.stacked else batches
        self._owner = None if self.stacked else torch.repeat_interleave(torch.tensor(sizes))

    def take(self, index: Tensor) -> Any:
        """Examples at `index` (any shape); in a list of batches, the batch that holds example `index[0]`."""
        if self._tree is not None:
            return map_tree(lambda t: t[index], self._tree)
        assert self._owner is not None
        return self._batches[int(self._owner[index.reshape(-1)[0]])]

    def passes(self, size: int) -> Iterator[Any]:
        """The whole data once, in order, in batches of at most `size` examples."""
        if self._tree is None:
            yield from self._batches
        elif size >= self.rows:
            yield self._tree
        else:
            for start in range(0, self.rows, size):
                yield map_tree(lambda t, a=start: t[a : a + size], self._tree)  # type: ignore[misc]

    def tensors(self) -> list[Tensor]:
        """All tensors behind the examples."""
        return leaves(self._tree if self._tree is not None else self._batches)

    def to(self, device: torch.device) -> Examples:
        """The same examples on `device` (copied only where they are not there yet)."""
        batches = [self._tree] if self._tree is not None else self._batches
        return Examples([map_tree(lambda t: t.to(device), b) for b in batches], self.findings, self.copies)


def as_examples(data: Any, n: int | None = None) -> Examples:
    """Read `data` once into `Examples`, leaving it and global random state unchanged.

    Args:
        data: A tensor, tuple or dict of tensors or arrays with a common leading axis; a map-style `Dataset`; a
            `DataLoader`; or an iterable of batches (tuples or dicts of tensors with a leading batch axis).
        n: How many examples to read from an iterable that does not end or does not know its length.

    Raises:
        InputError: The data is empty, of unknown length, or of a form that holds no tensors.

    Example:
        >>> as_examples((torch.ones(6, 2), torch.zeros(6))).n
        6
    """
    if isinstance(data, Examples):
        return data
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise InputError(f"expected n as a positive whole number of examples, got {n!r}")
    with preserved_rng():
        if isinstance(data, Tensor | np.ndarray | Mapping) or _is_tuple_of_arrays(data):
            return _limited(Examples([_as_tensors(data)]), n)
        if isinstance(data, DataLoader):
            return _from_loader(data, n)
        if isinstance(data, IterableDataset):
            return _from_batches((torch_collate([item]) for item in data), n, known=_has_length(data))
        if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | tuple):
            return _from_dataset(data, range(len(data)), torch_collate, n)
        if isinstance(data, Iterable):
            return _from_batches(iter(data), n, known=_has_length(data))
    raise InputError(
        f"expected tensors, a Dataset, a DataLoader or an iterable of batches as data, got {type(data).__name__}"
    )


def _from_loader(loader: DataLoader[Any], n: int | None) -> Examples:
    dataset, sampler = loader.dataset, loader.sampler
    if isinstance(dataset, IterableDataset):
        return _from_batches(iter(loader), n, known=_has_length(dataset))
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(dataset)  # type: ignore[arg-type]
    )
    if whole and type(loader.batch_sampler).__name__ in ("BatchSampler", "NoneType"):
        indices: Iterable[int] = range(len(dataset))  # type: ignore[arg-type]
    else:
        indices = _sampled_indices(loader)
    if loader.batch_sampler is None:
        return _from_batches((_collate(loader.collate_fn, dataset[i]) for i in indices), n, known=True)
    return _from_dataset(dataset, indices, loader.collate_fn, n)


def _collate(fn: Any, items: Any) -> Any:
    return items if fn is None else fn(items)


def _sampled_indices(loader: DataLoader[Any]) -> list[int]:
    """What a special sampler picks, with the states of its generators put back."""
    generators = {
        id(g): g
        for owner in (loader, loader.sampler, loader.batch_sampler)
        if isinstance(g := getattr(owner, "generator", None), torch.Generator)
    }
    states = {key: g.get_state() for key, g in generators.items()}
    try:
        if loader.batch_sampler is None:
            return list(loader.sampler)
        return list(itertools.chain.from_iterable(loader.batch_sampler))
    finally:
        for key, generator in generators.items():
            generator.set_state(states[key])


def _from_dataset(dataset: Any, indices: Iterable[int], collate: Any, n: int | None) -> Examples:
    if isinstance(dataset, TensorDataset) and isinstance(indices, range) and collate is torch_collate:
        return _limited(Examples([tuple(dataset.tensors)]), n)
    picked = list(indices)[:n]
    if not picked:
        raise InputError("expected a data set with at least one example, got an empty one")
    findings: tuple[Finding, ...] = ()
    probe = picked[:4]
    if not _same(collate([dataset[i] for i in probe]), collate([dataset[i] for i in probe])):
        findings = (Finding.of("DATA501", "the first examples differ between two readings"),)
    groups = [picked[a : a + _GROUP] for a in range(0, len(picked), _GROUP)]
    return Examples([_as_tensors(collate([dataset[i] for i in group])) for group in groups], findings)


def _from_batches(batches: Iterator[Any], n: int | None, known: bool) -> Examples:
    if not known and n is None:
        raise InputError(
            "expected data of known length, got an iterator without one; pass n= (how many examples to read), or a "
            "list, a Dataset or a DataLoader over one"
        )
    read: list[Any] = []
    count = 0
    for raw in batches:
        batch = _as_tensors(raw)
        size = _batch_size(batch)
        if n is not None and count + size > n:
            size = n - count
            batch = map_tree(lambda t, k=size: t[:k], batch)  # type: ignore[misc]
        if size:
            read.append(batch)
            count += size
        if n is not None and count >= n:
            break
    if not read:
        raise InputError("expected data with at least one batch, got none; was the iterator already used up?")
    if n is not None and count < n:
        raise InputError(f"expected {n} examples as n= says, got only {count}; lower n or give more data")
    return Examples(read)


def _limited(examples: Examples, n: int | None) -> Examples:
    if n is None or n == examples.n:
        return examples
    if n > examples.n:
        raise InputError(f"expected at least n = {n} examples, got {examples.n}; lower n or give more data")
    return Examples([next(iter(examples.passes(n)))], examples.findings)


def _as_tensors(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):
        if tree.dtype == object or tree.dtype.kind in "US":
            raise InputError(f"expected numeric arrays as data, got dtype {tree.dtype}")
        return torch.from_numpy(tree.copy())
    if isinstance(tree, Mapping):  # also transformers' BatchEncoding
        return {key: _as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_as_tensors(value) for value in tree)
    return tree


def _is_tuple_of_arrays(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) > 0 and all(isinstance(v, Tensor | np.ndarray) for v in data)


def _has_length(data: Any) -> bool:
    try:
        len(data)
    except TypeError:
        return False
    return True


def _batch_size(batch: Any) -> int:
    tensors = leaves(batch)
    if not tensors:
        raise InputError(
            f"expected batches that hold tensors with a leading batch axis, got {type(batch).__name__} without any; "
            "collate the examples into tensors first"
        )
    sizes = {t.shape[0] if t.ndim else None for t in tensors}
    if len(sizes) != 1 or None in sizes:
        raise InputError(
            "expected all tensors of the data to share their leading axis (one entry an example), got shapes "
            f"{[tuple(t.shape) for t in tensors]}"
        )
    return tensors[0].shape[0]


def _stackable(batches: list[Any]) -> bool:
    """True when the batches differ in nothing but their number of examples."""

    def signature(batch: Any) -> Any:
        return str(map_tree(lambda t: (tuple(t.shape[1:]), t.dtype, t.device), batch))

    first = signature(batches[0])
    return all(signature(batch) == first for batch in batches[1:])


def _concatenate(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return map_tree(lambda t: t, batches[0])
    columns = zip(*(leaves(batch) for batch in batches), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_tree(lambda _: next(joined), batches[0])


def _same(a: Any, b: Any) -> bool:
    pairs = zip(leaves(_as_tensors(a)), leaves(_as_tensors(b)), strict=True)
    return all(x.shape == y.shape and torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)) for x, y in pairs)
