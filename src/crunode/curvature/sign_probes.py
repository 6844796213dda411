"""Random signs, and what layers would give with signs for weights: the probes of terms of traces."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed
from crunode.curvature.activations import Record

__all__ = ["given_with", "layer_probe", "probe_shape", "random_signs", "seeded", "signed_rows"]


def signed_rows(factors: Tensor, outputs: Tensor, generator: torch.Generator) -> Tensor:
    """Σ_k ±r_ik for all examples, in the shape of the outputs."""
    if factors.ndim == 0:
        return factors * random_signs(outputs.shape, generator, outputs)
    signs = random_signs(factors.shape[:2], generator, outputs)
    return (signs[:, None] @ factors)[:, 0].reshape(outputs.shape)


def probe_shape(record: Record) -> tuple[int, int, int, int]:
    """Shape of a layer's weights at a position, other ones for each example: (examples, groups, outputs, inputs)."""
    count, groups, positions, inputs = record.root.shape
    return count, groups, math.prod(record.shift.shape[1:]) // (groups * positions), inputs


def layer_probe(record: Record, generator: torch.Generator) -> Tensor:
    """Random u with E uuᵀ = G ⊗ 1."""
    return given_with(record, random_signs(probe_shape(record), generator, record.root))


def given_with(record: Record, weights: Tensor) -> Tensor:
    """What the layer would give with these weights, other ones for each example."""
    root = record.root
    parts = weights * root if root.shape[2] == 1 else weights @ root.transpose(2, 3)
    return record.layer.ungrouped(parts, record.shift.shape).to(record.shift.dtype)


def random_signs(shape: tuple[int, ...] | torch.Size, generator: torch.Generator, like: Tensor) -> Tensor:
    """Random signs, one from each byte of random words: a quarter of the time of drawing them one by one."""
    count = math.prod(shape)
    words = torch.empty(-(-count // 8), dtype=torch.int64, device=like.device).random_(generator=generator)
    return (words.view(torch.int8)[:count] & 1).to(like.dtype).mul_(2).sub_(1).reshape(tuple(shape))


def seeded(land: Landscape, seed: int, *key: int) -> torch.Generator:
    """A generator on the device of the landscape, for the seed and a key."""
    return torch.Generator(device=land.device).manual_seed(derived_seed(seed, *key))
