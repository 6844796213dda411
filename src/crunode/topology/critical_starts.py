"""Where searches for critical points begin: given weights, or points drawn around the center by each tensor's size."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed
from crunode.errors import InputError

__all__ = ["check_search", "starting_points"]

# Most parameters for all eigenvalues.
_WIDEST = 4096


def check_search(land: Any, level: Any, steps: Any, tolerance: Any, seed: Any) -> None:
    """Refuse settings of a search for critical points that make no sense."""
    if not isinstance(land, Landscape):
        raise InputError(f"expected a Landscape, got {type(land).__name__}; make one of the model and its data")
    if land.dim > _WIDEST:
        raise InputError(
            f"expected at most {_WIDEST} parameters, for all eigenvalues of the Hessian, got {land.dim}; restrict the "
            "landscape to some of them"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"expected steps as a positive whole number, got {steps!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise InputError(f"expected tolerance as a number between 0 and 1, got {tolerance!r}")
    if level is not None and (
        isinstance(level, bool) or not isinstance(level, int | float) or not math.isfinite(level)
    ):
        raise InputError(f"expected level as a finite loss, or None for any, got {level!r}")


def starting_points(land: Landscape, starts: Any, seed: int) -> Tensor:
    """The given starts, or that many drawn around the center; shape (starts, dim), in double precision."""
    if isinstance(starts, Tensor):
        if starts.ndim != 2 or starts.shape[1] != land.dim or not len(starts) or not starts.is_floating_point():
            raise InputError(
                f"expected starts as a floating-point tensor of shape (starts, {land.dim}), got {starts.dtype} of "
                f"shape {tuple(starts.shape)}; give one row of weights for each"
            )
        if not bool(torch.isfinite(starts).all()):
            raise InputError("expected finite starts, got weights that are not; was a training diverging?")
        return starts.detach().to(land.device, torch.float64)
    if isinstance(starts, bool) or not isinstance(starts, int) or starts < 1:
        raise InputError(f"expected starts as a tensor of weights or a positive whole number, got {starts!r}")
    center = land.center.double()
    sizes = [
        part.double().square().mean().sqrt().expand(part.numel()) for part in land.packing.unravel(center).values()
    ]
    spread = torch.cat(sizes)
    whole = float(center.square().mean().sqrt()) or 1.0
    spread = torch.where(spread > 0, spread, torch.full_like(spread, whole))
    generator = torch.Generator().manual_seed(derived_seed(seed, 71))
    noise = torch.randn(starts, land.dim, generator=generator, dtype=torch.float64).to(land.device)
    return center + spread * noise
