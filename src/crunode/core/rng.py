"""One seed, one stream of random numbers per chain, and no trace on global random state."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["BatchStream", "NoiseStream", "derived_seed", "preserved_rng"]

# Numbers drawn per generator call. It fixes which call a number comes from, so it may not depend on the layout:
# torch's normal sampler gives other numbers when the same stream is cut at other places.
BLOCK = 1 << 15

# Grid noise is x = a v + b v^3 for v drawn from the 128 odd whole numbers between -127 and 127. These two make
# variance and fourth moment 1 and 3.
GRID = 0.004740030552112101, 8.442973216034588e-07
_ODD = np.uint64(0x0101010101010101)


def derived_seed(seed: int, *key: int) -> int:
    """A 63-bit seed that depends on `seed` and `key` only (numpy's SeedSequence).

    Example:
        >>> derived_seed(0, 1, 2) == derived_seed(0, 1, 2) != derived_seed(0, 2, 1)
        True
    """
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Give back the global random states of torch, numpy and `random` as they were, also after an error."""
    state_torch, state_numpy, state_python = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    state_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.set_rng_state(state_torch)
        np.random.set_state(state_numpy)  # noqa: NPY002
        random.setstate(state_python)
        if state_cuda is not None:
            torch.cuda.set_rng_state_all(state_cuda)


class NoiseStream:
    """Random numbers for several chains, addressed by step.

    The numbers of a chain at a step depend on (seed, chain, stream, step) alone: not on which other chains run
    beside it, nor on what was drawn before. That makes every layout and executor agree and a resumed run go on
    where it stopped without stored generator states.

    Args:
        seed: The run's seed.
        chains: Identity numbers of the chains, in row order.
        width: Numbers per chain and step.
        stream: Number of the stream; different uses take different ones.
        kind: "normal", "uniform", or "grid": 128 equally likely values with the first five moments of normal numbers
            and none larger than 2.33, which on CPUs take a fifth of the time. The local error of a Langevin step is of
            the same order with either (Kloeden & Platen 1992, section 14.2). Other devices draw normal numbers instead.
            "odd": the odd whole numbers that the grid's values are made from, as bytes.
        device: Where the numbers are drawn.
        dtype: Their dtype.

    Example:
        >>> both = NoiseStream(0, [0, 1], 3, stream=0).at(7)
        >>> torch.equal(both[1:], NoiseStream(0, [1], 3, stream=0).at(7))
        True
    """

    def __init__(
        self,
        seed: int,
        chains: Sequence[int],
        width: int,
        *,
        stream: int,
        kind: str = "normal",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._seed, self._chains, self._width, self._stream = seed, list(chains), width, stream
        self._kind = "normal" if kind == "grid" and torch.device(device).type != "cpu" else kind
        self._steps = max(1, BLOCK // width)
        self._generator = torch.Generator(device=device)
        dtype = torch.int8 if kind == "odd" else dtype
        self._buffer = torch.empty(len(self._chains), self._steps * width, device=device, dtype=dtype)
        linear, cubic = GRID
        self._linear, self._cubic = torch.tensor(linear, dtype=dtype), cubic
        self._scratch = torch.empty(BLOCK if self._kind == "grid" else 0, dtype=dtype)
        self._block: int | None = None

    def at(self, step: int) -> Tensor:
        """The numbers of `step`, shape (chain, width); valid until the next call."""
        block, offset = divmod(step, self._steps)
        if block != self._block:
            for row, chain in zip(self._buffer, self._chains, strict=True):
                self._fill(row, (self._stream, chain, block))
            self._block = block
        return self._buffer[:, offset * self._width : (offset + 1) * self._width]

    def _fill(self, row: Tensor, key: tuple[int, ...]) -> None:
        if self._kind in ("grid", "odd"):
            bits = np.random.SFC64(np.random.SeedSequence(self._seed, spawn_key=key))
            for start in range(0, len(row), BLOCK):  # so that everything stays in the processor's cache
                part = row[start : start + BLOCK]
                drawn = bits.random_raw(-(-len(part) // 8))
                drawn |= _ODD
                part.copy_(torch.from_numpy(drawn.view(np.int8))[: len(part)])
                if self._kind == "grid":
                    scale = torch.addcmul(self._linear, part, part, value=self._cubic, out=self._scratch[: len(part)])
                    part.mul_(scale)
            return
        self._generator.manual_seed(derived_seed(self._seed, *key))
        if self._kind == "normal":
            row.normal_(generator=self._generator)
        else:
            row.uniform_(generator=self._generator)


class BatchStream:
    """Minibatch indices for several chains: at each step a chain draws examples anew, with replacement.

    Going through shuffled epochs instead would make a batch depend on those before it: a chain that has just followed
    some examples finds a higher loss on the rest, and the recorded losses come out too high.

    Example:
        >>> s = BatchStream(0, [0, 1], n=10, batch=5)
        >>> torch.equal(s.at(7)[1:], BatchStream(0, [1], n=10, batch=5).at(7))
        True
    """

    def __init__(
        self, seed: int, chains: Sequence[int], *, n: int, batch: int, device: torch.device | str = "cpu"
    ) -> None:
        self._seed, self._chains, self._n, self._batch = seed, list(chains), n, batch
        self._device = device
        self._steps = max(1, BLOCK // batch)
        self._block: int | None = None
        self._index = torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> Tensor:
        """Indices of the minibatch of each chain at `step`, shape (chain, batch)."""
        block, offset = divmod(step, self._steps)
        if block != self._block:
            generator = torch.Generator(device=self._device)
            shape = len(self._chains), self._steps * self._batch
            self._index = torch.empty(shape, dtype=torch.int64, device=self._device)
            for row, chain in zip(self._index, self._chains, strict=True):
                generator.manual_seed(derived_seed(self._seed, 1 << 20, chain, block))
                row.random_(self._n, generator=generator)
            self._block = block
        return self._index[:, offset * self._batch : (offset + 1) * self._batch]
