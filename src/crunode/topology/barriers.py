"""How high the loss has to rise between two solutions: upper bounds, each with the path that proves it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed
from crunode.errors import DiagnosticWarning, InputError
from crunode.topology.bands import elastic_band
from crunode.topology.connectivity import Request, checked_caps, join, unknown_finding
from crunode.topology.curves import KINDS, trained_curve
from crunode.topology.heights import Heights, end_point
from crunode.topology.paths import Path, examine_path
from crunode.topology.strings import Caps, Outcome

__all__ = ["METHODS", "Barrier", "Descent", "barrier", "bisected"]

METHODS = ("auto", "string", "band", *KINDS, "line")
"""Ways to a low path: "auto" takes the lowest of a string, a band and a Bézier curve."""

_THINNED = 24


@dataclass(frozen=True)
class Barrier:
    """An upper bound on the barrier between two solutions, and the path that proves it.

    Attributes:
        height: The bound on min over paths of max L − max(L(a), L(b)): what the loss on the path stays below, grid
            points and between them, above the higher end. The systematic error has as its parts "grid", how much of
            that is for the loss between grid points, and "level", from there down to the highest level at which no
            path was found (or to the higher end). The barrier may lie still lower: no path found is no proof.
        path: The path.
        losses: Losses at the two ends.
        bounds: For each method that was tried the bound that it gave.
    """

    height: Estimate
    path: Path
    losses: tuple[float, float]
    bounds: Mapping[str, float]

    @property
    def level(self) -> float:
        """What the loss on the path stays below: at this level the two are connected."""
        return self.path.bound

    def __float__(self) -> float:
        return float(self.height)

    def __str__(self) -> str:
        return f"{self.height} | upper bound, by a path of {len(self.path.points)} corners"


@dataclass(frozen=True)
class Descent:
    """The lowest path that a bisection of the level came to.

    Attributes:
        path: The path.
        failed: The highest level at which none was found; None where none had to be looked for.
        outcome: What was seen there.
    """

    path: Path
    failed: float | None
    outcome: Outcome | None


def barrier(
    landscape: Landscape,
    a: Any,
    b: Any,
    method: str = "auto",
    *,
    tolerance: float = 0.01,
    strings: int = 8,
    beads: int = 96,
    depth: int = 10,
    steps: int = 200,
    seed: int = 0,
) -> Barrier:
    """An upper bound on how far the loss has to rise on the way from a to b.

    B(a, b) = min_γ max_t L_n(γ(t)) − max(L_n(a), L_n(b)). Strings are bisected in the level: at each the search of
    `connect` begins anew from the straight line and from the lowest path so far.

    Args:
        landscape: The loss; its center does not matter.
        a: Weights: a flat vector, named tensors or a module of the same kind.
        b: Weights to reach.
        method: One of `METHODS`: "string" (dynamic string sampling), "band" (nudged elastic band), "bezier" or
            "polygon" (trained curves), "line" (the straight line); "auto" for the lowest of all but the polygon.
        tolerance: Where bisection ends, relative to the rise on the straight line; not below the rounding of the loss.
        strings: How many strings are tried at each level.
        beads: Most beads on a string.
        depth: How often a piece of a string may be divided again.
        steps: Steps of training of bands and curves.
        seed: All randomness comes from it.

    Raises:
        InputError: Weights of another shape, or arguments out of range.

    Example:
        >>> wells = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2 + w[1] ** 2, torch.ones(2))
        >>> found = barrier(wells, torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 0.0]), "line")
        >>> round(float(found), 3), round(found.level, 3)
        (1.0, 1.0)

    References:
        Freeman & Bruna 2016; Draxler et al. 2018; Garipov et al. 2018.
    """
    if method not in METHODS:
        raise InputError(f"expected method among {', '.join(METHODS)}, got {method!r}")
    checked_tolerance(tolerance)
    caps = checked_caps(strings, beads, depth, seed)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"expected steps as a whole number from 1 up, got {steps!r}")
    one, other = (end_point(landscape, weights, name) for weights, name in ((a, "a"), (b, "b")))
    heights = Heights(landscape)
    losses = heights.values(torch.stack([one, other])).tolist()
    found = {"line": examine_path(heights, torch.stack([one, other]))}
    top = max(losses)
    # Where no grid point is above the ends, what may be between grid points.
    rise = found["line"].largest - top
    if not rise > 0:
        rise = found["line"].bound - top
    least = top + tolerance * rise
    descent = None
    generator = torch.Generator().manual_seed(derived_seed(seed, 1))
    flat = found["line"].bound <= least
    if method in ("auto", "string") and not flat:
        # A path just above the ends makes all other methods needless.
        request = Request(one, other, least, min(losses))
        (outcome,) = join(heights, [request], generator, caps, strings)
        descent = Descent(found["line"] if outcome.path is None else outcome.path, least, outcome)
        if outcome.path is not None:
            descent = Descent(outcome.path, None, None)
            flat = True
    if not flat:
        for name in ("band", *KINDS):
            if name == method or (method == "auto" and name != "polygon"):
                found[name] = _trained(name, heights, one, other, steps, derived_seed(seed, 2))
    if descent is not None:
        if not flat:
            start = min(found.values(), key=lambda path: path.bound)
            given = [(one, other, start, descent.failed, descent.outcome)]
            (descent,) = bisected(heights, given, [losses], tolerance * rise, generator, caps, strings)
        found["string"] = descent.path
    if "string" in found:  # it has only been held against its level
        seen = examine_path(heights, found["string"].points)
        found["string"] = min(found["string"], seen, key=lambda path: path.bound)
    best = min(found, key=lambda name: found[name].bound)
    spec = {"method": method, "tolerance": tolerance, "strings": strings, "beads": beads, "depth": depth}
    spec |= {"steps": steps, "evaluations": heights.evaluations, "by": best}
    height = _height(found[best], top, descent, spec, seed)
    bounds = {name: path.bound - top for name, path in found.items()}
    return Barrier(height, found[best], (losses[0], losses[1]), bounds)


def checked_tolerance(tolerance: float) -> None:
    """Refuse a tolerance that is no share."""
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 1e-6 <= tolerance < 1:
        raise InputError(f"expected tolerance as a number from 1e-6 up to 1, got {tolerance!r}; for example 0.01")


def _trained(name: str, heights: Heights, a: Tensor, b: Tensor, steps: int, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    if name == "band":
        return elastic_band(heights, a, b, generator, steps=steps)
    return trained_curve(heights, a, b, generator, kind=name, steps=steps)


def bisected(
    heights: Heights,
    given: Sequence[tuple[Tensor, Tensor, Path, float | None, Outcome | None]],
    losses: Sequence[Sequence[float]],
    tolerance: float,
    generator: torch.Generator,
    caps: Caps,
    strings: int,
) -> list[Descent]:
    """Bring paths of many pairs down by bisection of their levels, all pairs side by side.

    Args:
        heights: The loss.
        given: For each pair its ends, a path, and a level at which none was found with what was seen there, or None.
        losses: Losses at the ends of each.
        tolerance: The gap of levels at which to stop, as a loss; at a few roundings of the level it ends anyhow.
        generator: Where random numbers come from.
        caps: Where strings give up.
        strings: Strings for each pair and level.
    """
    state = [Descent(path, failed, outcome) for _, _, path, failed, outcome in given]
    low = [max(ends) if s.failed is None else s.failed for ends, s in zip(losses, state, strict=True)]
    # Down from the path in growing steps until none is found, for it may be nearly the lowest; then by halves. Within
    # a few roundings of a level there are none between to be tried.
    least = [max(tolerance, 4 * math.ulp(s.path.bound)) for s in state]
    stride: list[float | None] = list(least)
    while True:
        todo = [k for k, s in enumerate(state) if s.path.bound - low[k] > least[k] * (1 + 1e-9)]
        if not todo:
            return state
        levels = {}
        for k in todo:
            gap, step = state[k].path.bound - low[k], stride[k]
            levels[k] = low[k] + (gap / 2 if step is None or step > gap / 2 else gap - step)
        requests = [
            Request(given[k][0], given[k][1], levels[k], min(losses[k]), (thinned(state[k].path.points),)) for k in todo
        ]
        for k, outcome in zip(todo, join(heights, requests, generator, caps, strings), strict=True):
            step = stride[k]
            if outcome.path is None:
                state[k], low[k], stride[k] = Descent(state[k].path, levels[k], outcome), levels[k], None
            else:
                state[k] = Descent(outcome.path, state[k].failed, state[k].outcome)
                stride[k] = None if step is None else 4 * step


def thinned(points: Tensor) -> Tensor:
    """At most 24 corners of a path, its ends among them."""
    if len(points) <= _THINNED:
        return points
    index = torch.linspace(0, len(points) - 1, _THINNED).round().long().to(points.device)
    return points[index]


def _height(path: Path, top: float, descent: Descent | None, spec: Mapping[str, Any], seed: int) -> Estimate:
    value = max(path.bound - top, 0.0)
    down_to = top if descent is None or descent.failed is None else min(descent.failed, path.largest)
    terms = {"grid": path.bound - path.largest, "level": max(path.largest - down_to, 0.0)}
    findings: tuple[Finding, ...] = ()
    if descent is not None and descent.failed is not None and descent.outcome is not None:
        findings = (unknown_finding(descent.outcome, descent.failed),)
    if terms["grid"] > 0.1 * max(value, 1e-12) and terms["grid"] > 1e-3 * abs(top):
        findings += (Finding.of("TOPO1123", f"by {terms['grid']:.2g} above the {path.largest:.4g} that was found"),)
    serious = [str(f) for f in findings if f.severity == "warning"]
    if serious:
        warnings.warn("barrier: " + " ".join(serious), DiagnosticWarning, stacklevel=3)
    return Estimate(
        "barrier",
        value,
        se=0.0,
        systematic=math.hypot(*terms.values()),
        findings=findings,
        spec=dict(spec),
        seed=seed,
        diagnostics={
            "largest": path.largest,
            "ends": top,
            "corners": len(path.points),
            "grid_points": len(path.losses),
        },
        terms=terms,
        provenance=provenance(),
    )
