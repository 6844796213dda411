"""The rank of the Jacobian at smooth points of the valley of minima around a point: the valley's codimension.

Where the labels are what the model predicts at w*, the loss is least on the valley W0 = {w : f(w) = f(w*)}. At a smooth
point of W0 where the Jacobian J of the outputs f has the rank r of the codimension, the learning coefficient is r/2
with multiplicity 1, whatever happens elsewhere. It is lower semicontinuous: λ(w*) ≤ r/2 at all smooth points close to
w*. Equality holds where the pieces of W0 that meet at w* cross mildly, as in deep linear networks (there λ is half the
least codimension); it fails at cusps, for which estimates have to be sampled.

Points of W0 are found from random points around w* by Levenberg-Marquardt steps w ← w − Jᵀ(JJᵀ + μ)⁻¹(f(w) − f(w*)).
Everything is done in the space of outputs on as few examples as show the whole rank: with dense matrices while these
are small, otherwise by conjugate gradients and by Lanczos quadrature of the spectral density of JJᵀ.

References:
    Watanabe 2009, chapter 7; Ubaru, Chen & Saad 2017 (Lanczos quadrature).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.curvature.outputs import DenseMap, KrylovMap, OutputMap
from crunode.errors import InputError

__all__ = ["Valley", "valley"]

# Relative singular values above this count: below, weights rounded to single precision are not told from zero.
_CUT, _BAND = 1e-5, 3.0
# A residual that rounding to single precision may leave.
_ROUNDED = 1e-6
_STEPS = 40
_ALONG, _CURVED = 1e-4, 0.1


@dataclass(frozen=True)
class Valley:
    """Ranks of J around a point.

    Attributes:
        here: Rank at the point itself.
        ranks: Ranks at smooth points of the valley near it.
        errors: How far each is uncertain: singular values near the limit, random probes.
        distances: How far these points are, relative to the size of the weights.
        examples: Examples used.
        rows: Rows of J on them.
        gradients: Passes over these examples, forward and backward, that it took.
        method: "dense" or "krylov".
    """

    here: float
    ranks: tuple[float, ...]
    errors: tuple[float, ...]
    distances: tuple[float, ...]
    examples: int
    rows: int
    gradients: int
    method: str

    @property
    def smooth(self) -> bool:
        """Whether the point itself is smooth: the rank is the same all around."""
        return bool(self.ranks) and all(
            abs(r - self.here) <= max(e, 0.5) for r, e in zip(self.ranks, self.errors, strict=True)
        )


def valley(
    land: Landscape, *, around: Sequence[float] = (0.03, 0.1), starts: int = 3, seed: int = 0, krylov: bool | None = None
) -> Valley | None:
    """Ranks of the Jacobian at the center and at smooth points of the valley around it.

    Args:
        land: A landscape whose labels are the model's predictions at the center, with visible outputs.
        around: How far to start from the center, relative to the root mean square of the weights.
        starts: Random points for each of these.
        seed: Examples, points and probes come from it.
        krylov: Without dense matrices; None decides by their size.

    Returns:
        The ranks; None where outputs cannot be seen, the rank cannot be told from the rows, or nothing converged.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5, bias=False)).double()
        >>> for p in net.parameters():
        ...     _ = nn.init.zeros_(p)
        >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = valley(Landscape(net, (x, x @ x.new_zeros(4, 5)), "gaussian"))
        >>> found.here, min(found.ranks)  # λ = 11/2 there
        (0.0, 11.0)
    """
    if starts < 1 or not around or any(not a > 0 for a in around):
        raise InputError(f"expected one start or more at positive distances, got starts={starts}, around={around}")
    seen = Evaluation(land)
    if seen.dtype != torch.float64:
        return None
    try:
        with preserved_rng():
            return _look(land, seen, around, starts, seed, krylov)
    except (NoOutputs, InputError, torch.linalg.LinAlgError):
        return None


def _look(
    land: Landscape, seen: Evaluation, around: Sequence[float], starts: int, seed: int, krylov: bool | None
) -> Valley | None:
    scale = max(float(seen.center.square().mean().sqrt()), 0.1)
    generator = torch.Generator().manual_seed(derived_seed(seed, 66))

    def random(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(land.device)

    outputs = _enough_rows(land, seen, seen.center + max(around) * scale * random(land.dim), seed, krylov)
    here, _ = outputs.at(seen.center).rank(_CUT, _BAND, random)
    ranks, errors, distances = [], [], []
    with Progress(len(around) * starts, "points of the valley") as bar:
        for share in around:
            for _ in range(starts):
                point = _closed(outputs, seen.center + share * scale * random(land.dim))
                if point is not None and _is_smooth(outputs, point, scale * random(land.dim)):
                    rank, error = outputs.at(point).rank(_CUT, _BAND, random)
                    ranks.append(rank)
                    errors.append(error)
                    distances.append(float((point - seen.center).norm()) / (scale * land.dim**0.5))
                bar.advance(1)
    return Valley(
        here,
        tuple(ranks),
        tuple(errors),
        tuple(distances),
        outputs.examples,
        outputs.rows,
        outputs.gradients,
        outputs.method,
    )


def _enough_rows(
    land: Landscape, seen: Evaluation, generic: Tensor, seed: int, krylov: bool | None
) -> OutputMap:
    """The outputs on as few examples as show the whole rank at a generic point."""
    width, count = seen.outputs_per_example(), land.data.rows
    order = torch.randperm(count, generator=torch.Generator().manual_seed(derived_seed(seed, 67)))
    examples, last = min(count, max(2, math.ceil(64 / width))), None
    while True:
        chosen = order[:examples].sort().values
        dense = DenseMap.fits(examples * width, land) if krylov is None else not krylov
        outputs = (DenseMap if dense else KrylovMap)(seen, chosen)
        generator = torch.Generator().manual_seed(derived_seed(seed, 68))
        found, error = outputs.at(generic).rank(
            _CUT, _BAND, lambda size, g=generator: torch.randn(size, generator=g, dtype=torch.float64).to(land.device)
        )
        if last is not None and abs(found - last[1]) <= max(2 * error, 0.5):
            return last[0]
        if examples == count or found >= land.dim:
            return outputs
        examples, last = min(count, 2 * examples), (outputs, found)


def _closed(outputs: OutputMap, point: Tensor) -> Tensor | None:
    """The point of the valley that damped Gauss-Newton steps lead to; None when they do not arrive."""
    center, last = outputs.seen.center, math.inf
    for step in range(_STEPS):
        residual = outputs.residual(point)
        size = float(residual.norm())
        linear = outputs.at(point)
        away = size / (math.sqrt(linear.top) * float((point - center).norm()) + 1e-300)
        if not math.isfinite(away):
            return None
        if away <= outputs.resolution:
            return point
        if step > 4 and size > 0.8 * last:  # rounded weights have no valley in the strict sense
            return point if away <= _ROUNDED else None
        last = size
        # The damping keeps the first steps short, where the valley is curved, and goes away with the residual.
        point = point - linear.solve(residual, max(1e-2 * away**1.5, 1e-12))
    return point if away <= _ROUNDED else None


def _is_smooth(outputs: OutputMap, point: Tensor, step: Tensor) -> bool:
    """Whether a step along the kernel of J has to be corrected only to second order to be in the valley again."""
    if outputs.method != "dense":
        return True
    linear = outputs.at(point)
    along = step - linear.solve(linear.jacobian @ step, 1e-12)
    along = along * (_ALONG * float(step.norm()) / max(float(along.norm()), 1e-300))
    again = _closed(outputs, point + along)
    return again is not None and float((again - point - along).norm()) <= _CURVED * float(along.norm())
