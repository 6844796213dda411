"""Grids of a line or a plane in weight space, and what probes measure at their points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.result import Estimate
from crunode.errors import EstimationError, InputError
from crunode.topology.directions import Plane

__all__ = ["Probe", "counts_of", "ends_of", "probed"]

_MARGIN = 0.25

Probe = Callable[[Landscape], Any]
"""A measurement at a point."""


def ends_of(plane: Plane, extent: Any) -> list[tuple[float, float]]:
    """Ends of the grid along each axis; without an extent all marked points are shown, with a margin."""
    if extent is None:
        marks = torch.cat([where.double().cpu().reshape(-1, plane.count) for where in plane.marks.values()] or [
            torch.zeros(1, plane.count, dtype=torch.float64)
        ])  # fmt: skip
        low, high = marks.amin(0), marks.amax(0)
        spread = high - low
        # Marks on one line still get a picture on both sides of it.
        room = _MARGIN * torch.where(spread > 0, spread, spread.max())
        if not bool(spread.any()):
            room = torch.ones_like(spread)
        return list(zip((low - room).tolist(), (high + room).tolist(), strict=True))
    given = [extent] * plane.count if isinstance(extent, int | float) else list(extent)
    pairs = [(-float(e), float(e)) if isinstance(e, int | float) else tuple(float(v) for v in e) for e in given]
    good = len(pairs) == plane.count and all(len(p) == 2 and math.isfinite(p[1] - p[0]) and p[0] < p[1] for p in pairs)
    if not good:
        raise InputError(f"expected extent as a positive number or (low, high) for each axis, got {extent!r}")
    return [(p[0], p[1]) for p in pairs]


def counts_of(points: Any, axes: int) -> tuple[int, ...]:
    """Grid points of each axis."""
    given = (points,) * axes if isinstance(points, int) else tuple(points)
    if len(given) != axes or any(isinstance(p, bool) or not isinstance(p, int) or p < 2 for p in given):
        raise InputError(f"expected points as a whole number from 2 up, or one for each axis, got {points!r}")
    return given


def probed(
    land: Landscape, plane: Plane, at: Tensor, probes: Mapping[str, Probe]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """Values and errors of each probe at the points, shape (2, points), and what went wrong in words."""
    if "loss" in probes:
        raise InputError("expected names of probes other than 'loss', which the surface has")
    columns = {name: np.full((2, len(at)), np.nan) for name in probes}
    troubles: dict[str, list[str]] = {name: [] for name in probes}
    with Progress(len(at), "probes") as bar:
        for k, where in enumerate(at):
            for name, probe in probes.items():
                try:
                    answer = probe(land.at(plane.at(where)))
                except (EstimationError, InputError) as error:
                    troubles[name].append(f"at {where.tolist()}: {str(error).splitlines()[0]}")
                    continue
                columns[name][:, k] = _number(answer, name)
                if np.isnan(columns[name][0, k]):
                    troubles[name].append(f"at {where.tolist()}: {answer}")
            bar.advance()
    return columns, troubles


def _number(answer: Any, name: str) -> tuple[float, float]:
    """Value and error; nan where they cannot be trusted."""
    if isinstance(answer, Estimate):
        return (answer.value, answer.error) if answer.ok else (math.nan, math.nan)
    try:
        value = float(answer)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected an Estimate or a number from the probe {name!r}, got {answer!r}") from error
    return (value, 0.0) if math.isfinite(value) else (math.nan, math.nan)
