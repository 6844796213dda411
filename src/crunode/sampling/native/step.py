"""A step of SGLD or SGHMC as one pass over the parameters in C: noise, prior, move and distance from the center.

Torch makes a pass over memory for each operation; on large models these take as long as a third of the gradient. The
numbers are those of `NoiseStream` with kind "grid", bit for bit, so that a chain is the same with and without, up to
rounding. What has not agreed with torch on a small case is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.rng import BLOCK, GRID, NoiseStream
from crunode.sampling.native.build import load

__all__ = ["NativeStep", "why_not"]

_SOURCE = Path(__file__).parent / "step.c"
_INIT, _MULTIPLIER = 0x43B0D7E5, 0x931E8875  # of numpy's SeedSequence
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t


class _Noise(ctypes.Structure):
    _fields_ = (
        ("pools", _POINTER),
        ("constant", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("drawn", _POINTER),
        ("row", _SIZE),
    )


class NativeStep:
    """w ← w − (ε/2) (g + γ (w − w*)) + √ε · noise in place, for several chains at once.

    With a friction α the move, its noise times √α, goes to the velocity instead: v ← (1 − α) v + move, w ← w + v.

    Args:
        library: What `step.c` was compiled to.
        seed: The run's seed.
        chains: Identity numbers of the chains, in row order.
        center: w*, shape (dim,).
        step: ε of each chain, shape (chain,) or (chain, 1).
        precision: γ of each chain, or one for all.
        friction: α of SGHMC; None for SGLD, which has no velocity.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        seed: int,
        chains: Sequence[int],
        center: Tensor,
        step: Tensor,
        precision: Tensor | float,
        friction: float | None = None,
    ) -> None:
        kind = "step" if friction is None else "momentum"
        self._run = getattr(library, f"{kind}_{str(center.dtype).removeprefix('torch.')}")
        self._run.restype = None
        self._run.argtypes = [*[_POINTER] * 4, *[_SIZE] * 2, *[_POINTER] * 3, ctypes.c_double, *[_POINTER] * 3]
        self._center, shape = center.detach().contiguous(), (len(chains),)
        each = torch.as_tensor(precision).to(center).reshape(-1).expand(shape)
        self._momentum = friction is not None
        root = (step.reshape(shape) * (1.0 if friction is None else friction)).sqrt()
        self._settings = [step.reshape(shape).contiguous(), root, each.contiguous()]
        self._pools = np.array([np.random.SeedSequence(seed, spawn_key=(0, chain)).pool for chain in chains])
        self._steps = max(1, BLOCK // len(center))
        self._drawn = NoiseStream(seed, chains, len(center), stream=0, kind="odd") if self._steps > 1 else None
        self._noise = _Noise(self._pools.ctypes.data, _constant(seed), 0, None, self._steps * len(center))
        grid = self._grid = (ctypes.c_double * 2)(*GRID)
        self._addresses: list[float] = [setting.data_ptr() for setting in self._settings]
        self._addresses += [1.0 - (friction or 0.0), ctypes.addressof(grid), ctypes.addressof(self._noise)]

    @classmethod
    def of(cls, seed: int, chains: Sequence[int], center: Tensor, *settings: Any) -> NativeStep | None:
        """A step in C where there can be one; `settings` are step, precision and friction."""
        if center.device.type != "cpu" or center.dtype not in (torch.float32, torch.float64):
            return None
        library = _library()[0]
        return None if library is None else cls(library, seed, chains, center, *settings)

    def __call__(self, w: Tensor, gradient: Tensor, k: int, velocity: Tensor | None = None) -> Tensor:
        """Move `w` (chain, dim) by step number `k`; returns ‖w − w*‖² of each chain before the move.

        With friction `velocity` is moved too.
        """
        assert self._momentum is (velocity is not None)
        gradient = gradient.to(w.dtype).contiguous()
        assert w.is_contiguous()
        assert w.dtype == self._center.dtype
        assert w.shape == gradient.shape == (len(self._pools), len(self._center))
        distance2 = w.new_empty(len(w))
        if self._drawn is None:
            self._noise.block = k
        else:
            self._noise.drawn = self._drawn.at(k).data_ptr()
        if velocity is not None:
            assert velocity.is_contiguous()
            assert (velocity.dtype, velocity.shape) == (w.dtype, w.shape)
            torch.autograd.graph.increment_version(velocity)
        self._run(
            w.data_ptr(),
            (w if velocity is None else velocity).data_ptr(),
            gradient.data_ptr(),
            self._center.data_ptr(),
            *w.shape,
            *self._addresses,
            distance2.data_ptr(),
        )
        torch.autograd.graph.increment_version(w)
        return distance2


def why_not() -> str:
    """Why steps are not made in C; empty when they are.

    Example:
        >>> isinstance(why_not(), str)
        True
    """
    return _library()[1]


@cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    library, why = load(_SOURCE)
    if library is not None and not _agrees(library):
        return None, "compiled steps give another result"
    return library, why


def _constant(seed: int) -> int:
    """SeedSequence's hash constant once `seed` and the key (stream, chain) are mixed in, four times for each word."""
    words = max(4, -(-seed.bit_length() // 32)) + 2
    return _INIT * pow(_MULTIPLIER, 4 * words, 1 << 32) % (1 << 32)


def _agrees(library: ctypes.CDLL) -> bool:
    """A step of few numbers and one of many, without and with momentum, next to the same step by torch."""
    for dim, k in ((21, 3), (BLOCK + 21, 5)):
        center, gradient = torch.linspace(-1, 1, dim, dtype=torch.float64), torch.full((2, dim), 0.5).double()
        step, precision = torch.tensor([[0.1], [0.2]]).double(), torch.tensor([[1.0], [3.0]]).double()
        start = center.flip(0).expand(2, -1).clone()
        noise = NoiseStream(7, [0, 4], dim, stream=0, kind="grid", dtype=torch.float64).at(k)
        wanted = start - 0.5 * step * (gradient + precision * (start - center)) + step.sqrt() * noise
        squares = (start - center).square().sum(1)
        found = NativeStep(library, 7, [0, 4], center, step, precision)(start, gradient, k)
        if not (torch.allclose(start, wanted, rtol=0, atol=1e-12) and torch.allclose(found, squares, rtol=1e-12)):
            return False
        velocity = center.expand(2, -1).clone()
        before, friction = start.clone(), 0.25
        slope = gradient + precision * (start - center)
        wanted = (1 - friction) * velocity - 0.5 * step * slope + (friction * step).sqrt() * noise
        NativeStep(library, 7, [0, 4], center, step, precision, friction)(start, gradient, k, velocity)
        if not torch.allclose(velocity, wanted, rtol=0, atol=1e-12) or not torch.equal(start, before + velocity):
            return False
    return True
