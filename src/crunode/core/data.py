"""Any way of giving data, turned into a fixed set of examples with known n."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data import default_collate as torch_collate

from crunode.core.fingerprints import tensor_bytes
from crunode.core.result import Finding
from crunode.core.rng import preserved_rng
from crunode.errors import InputError

__all__ = ["Examples", "as_examples", "data_digest", "leaves", "map_tree"]

_GROUP = 256
_READ_TWICE = 16


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
        return _like(tree, [map_tree(fn, value) for value in tree])
    return tree


def _like(tree: Any, values: list[Any]) -> Any:
    """`values` as a named tuple where `tree` is one, else as a tuple."""
    return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)


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

    Every example counts once, in the order of the data set: shuffling and `drop_last` of a loader play no role.
    Samplers that pick a subset, or examples more than once, are followed. Random samplers and augmentation are read
    from a fixed seed, so that the same data gives the same examples each time.

    Args:
        data: A tensor, tuple or dict of tensors or arrays with a common leading axis; a map-style `Dataset`; a
            `DataLoader`; or an iterable of batches (tuples or dicts of tensors with a leading batch axis).
        n: How many examples to read: the first n, or those of an iterable that does not end or know its length.

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
    with preserved_rng(), _fixed_seeds(data):
        if isinstance(data, Tensor | np.ndarray | Mapping) or _is_tuple_of_arrays(data):
            return _limited(Examples([_as_tensors(data)]), n)
        if isinstance(data, DataLoader):
            return _from_loader(data, n)
        if isinstance(data, IterableDataset):
            return _from_batches((_collated(torch_collate, [item]) for item in data), n, known=_has_length(data))
        if hasattr(data, "__getitem__") and not isinstance(data, list | tuple | str | bytes):
            return _from_dataset(data, _indices(data, n), torch_collate, n)
        if isinstance(data, Iterable) and not isinstance(data, str | bytes):
            return _from_batches(iter(data), n, known=_has_length(data))
    raise InputError(
        f"expected tensors, a Dataset, a DataLoader or an iterable of batches as data, got {type(data).__name__}"
    )


@contextlib.contextmanager
def _fixed_seeds(data: Any) -> Iterator[None]:
    """Fixed seeds for all random generators that reading may use; those of the data's own parts are put back."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed would touch other devices, which are not put back
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    owners = [data]
    if isinstance(data, DataLoader):
        batches = data.batch_sampler
        owners += [data.dataset, data.sampler, batches, getattr(batches, "sampler", None)]
    with contextlib.ExitStack() as stack:
        for owner in {id(o): o for o in owners if hasattr(o, "__dict__")}.values():
            for value in list(vars(owner).values()):
                stack.enter_context(_put_back(value))
        yield


@contextlib.contextmanager
def _put_back(generator: Any) -> Iterator[None]:
    """Seed a random generator of any kind, and restore its state in the end; other values pass."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        generator.manual_seed(0)
        try:
            yield
        finally:
            generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        numpy_state = generator.bit_generator.state
        generator.bit_generator.state = type(generator.bit_generator)(0).state
        try:
            yield
        finally:
            generator.bit_generator.state = numpy_state
    elif isinstance(generator, np.random.RandomState):
        old_state = generator.get_state()
        generator.seed(0)
        try:
            yield
        finally:
            generator.set_state(old_state)
    elif isinstance(generator, random.Random):
        python_state = generator.getstate()
        generator.seed(0)
        try:
            yield
        finally:
            generator.setstate(python_state)
    else:
        yield


def _from_loader(loader: DataLoader[Any], n: int | None) -> Examples:
    dataset, batches = loader.dataset, loader.batch_sampler
    if isinstance(dataset, IterableDataset):
        # A fresh loader in this process: iterating the caller's would start workers and draw from its generator.
        return _from_batches(_stream(loader), n, known=_has_length(dataset))
    if batches is None:
        picked = _picked(loader.sampler, loader.sampler, dataset, n)
        return _from_batches((_collated(loader.collate_fn, dataset[i]) for i in picked), n, known=True)
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    flat = sampler if type(batches) is BatchSampler else itertools.chain.from_iterable(batches)
    group = _GROUP if loader.collate_fn is torch_collate else loader.batch_size or _GROUP
    return _from_dataset(dataset, _picked(sampler, flat, dataset, n), loader.collate_fn, n, group)


def _stream(loader: DataLoader[Any]) -> Iterator[Any]:
    items: Iterator[Any] = iter(loader.dataset)
    if loader.batch_size is None:
        return (_collated(loader.collate_fn, item) for item in items)
    size = loader.batch_size
    groups = iter(lambda: list(itertools.islice(items, size)), [])
    return (_collated(loader.collate_fn, group) for group in groups)


def _picked(sampler: Any, indices: Iterable[Any], dataset: Any, n: int | None) -> Sequence[Any]:
    """What a sampler picks: the whole set in its order, or a subset in ascending order, or whatever it repeats."""
    whole = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)
    )
    if whole:
        return _indices(dataset, n)
    picked = list(indices)
    if len(set(picked)) == len(picked) and all(isinstance(i, int) for i in picked):
        return sorted(picked)
    return picked


def _indices(dataset: Any, n: int | None) -> range:
    if _has_length(dataset):
        return range(len(dataset))
    if n is None:
        raise InputError(
            f"expected data of known length, got {type(dataset).__name__} without one; pass n= (how many examples to "
            "read), or give it a method __len__"
        )
    return range(n)


def _collated(collate: Any, items: Any) -> Any:
    try:
        return _as_tensors(items if collate is None else collate(items))
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        what = type(items[0]).__name__ if isinstance(items, list) and items else type(items).__name__
        raise InputError(
            f"expected examples that collate into tensors, got {what} ({type(error).__name__}: {error}); transform "
            "them to tensors in the data set, or give a DataLoader with a collate_fn"
        ) from error


def _from_dataset(dataset: Any, indices: Sequence[Any], collate: Any, n: int | None, group: int = _GROUP) -> Examples:
    if type(dataset) is TensorDataset and isinstance(indices, range) and collate is torch_collate:
        return _limited(Examples([_as_tensors(tuple(dataset.tensors))]), n)
    if n is not None and n > len(indices):
        raise InputError(f"expected at least n = {n} examples, got {len(indices)}; lower n or give more data")
    picked = indices[:n]
    if not picked:
        raise InputError(
            "expected a data set with at least one example, got an empty one; check its files, filter or sampler"
        )

    def read(part: Sequence[Any]) -> Any:
        return _collated(collate, [dataset[i] for i in part])

    findings: tuple[Finding, ...] = ()
    first = picked[: min(_READ_TWICE, group)]
    if not _same(read(first), read(first)):
        findings = (Finding.of("DATA501", "the first examples differ between two readings"),)
    return Examples([read(picked[a : a + group]) for a in range(0, len(picked), group)], findings)


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
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, np.ndarray):
        if tree.dtype == object or tree.dtype.kind in "US":
            raise InputError(f"expected numeric arrays as data, got dtype {tree.dtype}")
        return torch.from_numpy(tree.copy())
    if isinstance(tree, Mapping):  # also transformers' BatchEncoding
        return {key: _as_tensors(value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [_as_tensors(value) for value in tree])
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
    pairs = list(itertools.zip_longest(leaves(a), leaves(b)))
    return all(
        x is not None and y is not None and x.shape == y.shape and torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)
        for x, y in pairs
    )


def data_digest(examples: Examples) -> str:
    """A hash of all tensors behind the examples.

    Example:
        >>> data_digest(as_examples(torch.zeros(2))) == data_digest(as_examples(torch.zeros(3)))
        False
    """
    seen = hashlib.sha256(f"{examples.n}".encode())
    for tensor in examples.tensors():
        seen.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        seen.update(tensor_bytes(tensor))
    return seen.hexdigest()
