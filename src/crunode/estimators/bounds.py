"""`bounds()`: between which numbers the learning coefficient of any model lies, from ranks alone."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding
from crunode.core.rng import derived_seed
from crunode.curvature.jacobian import NoOutputs
from crunode.curvature.spectrum import Spectrum, spectrum
from crunode.curvature.valley import valley
from crunode.errors import InputError
from crunode.exact.result import LearningCoefficient

__all__ = ["bounds", "rank_finding"]

_CITATION = "Watanabe 2009, chapter 7; rank J/2 ≤ λ ≤ codim/2 by the splitting lemma"
_NEARBY = 2
_REALISED = 1e-5
# Parameters up to which points of the set of minima are looked for; how far around, relative to the weights, and from
# how many points each.
_MOST_WALKED, _AROUND, _STARTS = 3000, (0.01, 0.03), 4
# Share of the work of an estimate that a look at the rank may take, and the most rows it looks at.
_SHARE, _MOST_ROWS = 0.05, 1000
# Weights that may be copied to double precision for it.
_MOST_WEIGHTS = 1 << 24


def bounds(landscape: Landscape, *, rows: int | None = None, seed: int = 0) -> LearningCoefficient:
    """Bounds of the learning coefficient at the center w*: rank J / 2 ≤ λ ≤ d / 2, sharpened where that can be proved.

    J is the Jacobian of parameters → outputs on the data. Where each example's loss is least at w*, the loss near w* is
    ½‖J (w − w*)‖²/n to second order, so rank J directions are quadratic and add ½ each (splitting lemma); every other
    direction adds between 0 and ½. The upper bound falls by ½ for each parameter that nothing depends on, and to half
    the codimension of the set of minima where that is found by walking on it (`crunode.curvature.valley`). Where the
    rank is the same at w* and at random points near it, or all rows of J are independent, w* lies on a smooth manifold
    of minima, and λ = rank J / 2 with multiplicity 1; where the rank is d, the model is regular there.

    With a loss that shows no outputs (a potential, or a loss of the whole model) the Hessian takes the place of JᵀJ/n.
    Where the rank is not clear from the singular values, the lower bound takes the smaller number. Any part of the rows
    gives a valid lower bound, so that large models are seen through a part of their data.

    Args:
        landscape: Model, data and loss at the point.
        rows: Most rows of J to use; None for as many as a moderate amount of work allows.
        seed: Chosen examples, random directions and nearby points come from it.

    Returns:
        Status "interval"; or "exact" or "conditional" where the bounds meet. `details` tells ranks, rows and gaps.

    Raises:
        InputError: No landscape, or a point that is clearly not a minimum.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> print(bounds(reduced_rank(6, 4, 6, rank=2)))  # exact: 27/2
        10 ≤ λ ≤ 27/2 (interval) [Watanabe 2009, ...]
        >>> print(bounds(Landscape.of_function(lambda w: w.square().sum(), torch.zeros(3))))
        λ = 3/2, m = 1 (exact) [Watanabe 2009, ...]
    """
    if not isinstance(landscape, Landscape):
        raise InputError(
            f"expected a Landscape, got {type(landscape).__name__}; for a module write "
            "bounds(Landscape(model, data, loss))"
        )
    for name, value, least in (("rows", rows, 1), ("seed", seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    here = spectrum(landscape, rows=rows, seed=seed)
    by_outputs = here.method.startswith("jacobian")
    _check_minimum(here, by_outputs)
    realised = here.slope <= _REALISED
    hypotheses = _hypotheses(here, by_outputs, realised)
    details = _details(landscape, here)
    options: dict[str, Any] = {"citation": _CITATION, "details": details}
    rank, dim = here.rank, landscape.dim
    if rank.decided and rank.rank == dim:
        details["why"] = "the rank is the number of parameters: a regular minimum"
        return LearningCoefficient.exact(
            Fraction(dim, 2), 1, hypotheses=hypotheses, conditional=not realised, **options
        )
    low, high = Fraction(rank.low, 2), Fraction(dim, 2)
    if by_outputs and here.complete and rank.decided:
        if rank.rank == here.seen:
            details["why"] = "all rows of the Jacobian are independent: the minima are a smooth manifold"
            return LearningCoefficient.exact(low, 1, hypotheses=hypotheses, conditional=not realised, **options)
        near = _nearby(landscape, rows, seed)
        details["nearby_ranks"] = [n.rank.rank for n in near]
        if near and all(n.rank.decided and n.rank.rank == rank.rank for n in near):
            details["why"] = "the rank is the same at random points nearby: the minima are a smooth manifold"
            constant = "a rank that agrees at w* and at random points near it is constant around w*"
            return LearningCoefficient.exact(low, 1, hypotheses=(*hypotheses, constant), conditional=True, **options)
        unused = _unused(here, near)
        if unused:
            details["unused_parameters"] = unused
            high = Fraction(dim - unused, 2)
            hypotheses = (*hypotheses, "parameters without influence at w* and at random points near it have none")
        piece = _piece(landscape, seed)
        if piece is not None and Fraction(piece[0], 2) < high:
            details |= {"codimension": piece[0], "codimension_at": piece[1]}
            high = max(low, Fraction(piece[0], 2))
            near_enough = (
                "the smooth piece of minima that was met near w* reaches w* (half its codimension is the bound)"
            )
            hypotheses = (*hypotheses, near_enough)
        if low == high:
            details["why"] = "the rank is the codimension of the minima"
            return LearningCoefficient.exact(low, 1, hypotheses=hypotheses, conditional=True, **options)
    return LearningCoefficient.interval(low, max(low, high), hypotheses=hypotheses, **options)


def rank_finding(landscape: Landscape, estimate: Estimate) -> Finding | None:
    """LLC107 or LLC108 where an estimate of `llc` is below half the rank of the Jacobian by more than twice its error.

    The rank is that of as many rows as a twentieth of the gradients of the sampling buys, which is a lower bound of the
    rank of all. How much of it can show at the estimate's nβ and precision γ decides between the two codes: a quadratic
    direction with curvature g adds ½ nβ g / (nβ g + γ).

    Args:
        landscape: Where the estimate was made.
        estimate: The estimate, with its draws.

    Returns:
        The finding; None where the estimate respects the bound, or where the outputs cannot be seen.
    """
    drawn, spec = estimate.draws, estimate.spec
    if drawn is None or not math.isfinite(estimate.value + estimate.error):
        return None
    kernel = spec["kernel"]
    gradients = _SHARE * drawn.gradients * kernel.get("batch", landscape.data.rows)
    rows = int(min(gradients**0.5, 4 * landscape.dim, _MOST_ROWS))
    highest = estimate.value + 2 * estimate.error
    weights = landscape.dim + sum(t.numel() for t in landscape.fixed.values())
    if highest >= min(rows, landscape.dim) / 2 or weights > _MOST_WEIGHTS:
        return None
    try:
        here = spectrum(landscape, rows=rows, seed=estimate.seed or 0, outputs_only=True)
    except (NoOutputs, InputError, RuntimeError, TypeError):  # a device without doubles, no memory
        return None
    if highest >= here.rank.low / 2:
        return None
    nbeta, precision = estimate.diagnostics["plain"]["nbeta"], float(spec["precision"])
    scaled = nbeta * here.curvatures[: here.rank.low]
    part = float((scaled / (scaled + precision)).sum() / 2)
    return Finding.of(
        "LLC108" if part <= highest else "LLC107",
        f"{estimate.value:.3g} ± {estimate.error:.2g} against {here.rank.low / 2:g}, half the rank on {here.rows} of "
        f"{here.of} rows; at nbeta {nbeta:.3g} and precision {precision:.3g} {int((scaled > precision).sum())} of "
        f"these {here.rank.low} directions are resolved, and all together give {part:.3g} to second order",
    )


def _nearby(land: Landscape, rows: int | None, seed: int) -> list[Spectrum]:
    """The spectrum at random points near the center; empty where it cannot be had there."""
    found = []
    scale = 1e-3 * max(float(land.center.double().square().mean().sqrt()), 0.1)
    for k in range(_NEARBY):
        generator = torch.Generator().manual_seed(derived_seed(seed, 64, k))
        step: Tensor = torch.randn(land.dim, generator=generator, dtype=torch.float64).to(land.device)
        try:
            # Weights drawn at random are exact doubles, so that only the rounding of doubles is to be allowed for.
            point = land.center.double() + scale * step
            found.append(spectrum(land, rows=rows, seed=seed, at=point, resolution=0.0, outputs_only=True))
        except (InputError, RuntimeError):
            return []
    return found


def _piece(land: Landscape, seed: int) -> tuple[int, float] | None:
    """The least codimension of smooth pieces of the minima near the center, and how far that one is."""
    if land.dim > _MOST_WALKED:
        return None
    found = valley(land, around=_AROUND, starts=_STARTS, seed=seed, krylov=False)
    if found is None:
        return None
    clear = [
        (round(rank), distance)
        for rank, error, distance in zip(found.ranks, found.errors, found.distances, strict=True)
        if error == 0 and distance <= 3 * max(_AROUND)
    ]
    return min(clear, default=None)


def _unused(here: Spectrum, near: list[Spectrum]) -> int:
    """How many parameters have no influence on any output, at the center and near it."""
    masks = [s.unused for s in (here, *near)]
    if not near or any(mask is None for mask in masks):
        return 0
    return int(np.logical_and.reduce([m for m in masks if m is not None]).sum())


def _check_minimum(here: Spectrum, by_outputs: bool) -> None:
    values = here.curvatures
    if not by_outputs and len(values) and values[-1] < -max(1e-3 * values[0], 10 * here.rank.tolerance):
        raise InputError(
            f"expected a landscape at a minimum, got a curvature of {values[-1]:.3g} beside the largest, "
            f"{values[0]:.3g}; there is no learning coefficient at a saddle: train further, or take another point by "
            "landscape.at"
        )


def _hypotheses(here: Spectrum, by_outputs: bool, realised: bool) -> tuple[str, ...]:
    shared = "the loss is analytic near w* (no activation sits at a kink)"
    if not by_outputs:
        return ("w* is a local minimum of the loss", shared)
    if realised:
        return ("w* realises the data: each example's loss is least there (found, to rounding)", shared)
    return (
        "w* realises the truth: λ is that of the expected loss with the model's own outputs at w* as truth (labels "
        "differ from them, as noise or hard classes do)",
        shared,
        "the examples stand for the inputs the loss is averaged over",
    )


def _details(land: Landscape, here: Spectrum) -> dict[str, Any]:
    rank = here.rank
    return {
        "method": here.method,
        "rank": rank.rank,
        "rank_range": [rank.low, rank.high],
        "decided": rank.decided,
        "over_a_prime": here.exact,
        "gap": rank.gap if math.isfinite(rank.gap) else None,
        "tolerance": rank.tolerance,
        "rows_used": here.rows,
        "rows": here.of,
        "examples_used": here.examples,
        "parameters": land.dim,
        "slope": here.slope if math.isfinite(here.slope) else None,
        **({"reason": here.reason} if here.reason else {}),
    }
