"""Steps from a point down to the valley of minima, and whether a point of it is a smooth one."""

from __future__ import annotations

import math

from torch import Tensor

from crunode.curvature.outputs import OutputMap
from crunode.curvature.valley_rows import Rows

__all__ = ["into_valley", "is_smooth"]

# A residual that rounding to single precision may leave.
_ROUNDED = 1e-6
_STEPS, _RETRIES = 40, 4
_DAMPING = 1e-2
# Squared singular values all below this, relative to where steps began, show a map that is flat on the valley.
_FLAT = 1e-8
# What a residual may grow by, and what it has to fall to: over a few steps, and in one by the same matrices.
_GROWTH, _SLOW, _WORTH = 3.0, 0.8, 0.3
# Steps along the kernel, relative to the weights, and the largest correction they may need.
_ALONG, _CURVED = (1e-4, 1e-5, 1e-6), 0.1


def into_valley(outputs: OutputMap, point: Tensor, steps: int = _STEPS) -> Tensor | None:
    """The point of the valley that damped Gauss-Newton steps w ← w − Jᵀ(JJᵀ + μ)⁻¹F lead to.

    Args:
        outputs: F: what is predicted, less what is predicted at the center.
        point: Where to begin.
        steps: The most to take.

    Returns:
        The point; None where steps do not arrive, or J vanishes there.

    Example:
        >>> import torch
        >>> from crunode.curvature.jacobian import Evaluation
        >>> from crunode.curvature.outputs import DenseMap
        >>> from crunode.examples.toys import reduced_rank
        >>> seen = Evaluation(reduced_rank(4, 3, 4, rank=1))
        >>> outputs = DenseMap(seen, torch.arange(8))
        >>> found = into_valley(outputs, seen.center + 0.1 * torch.ones_like(seen.center))
        >>> bool(outputs.residual(found).norm() < 1e-6)
        True
    """
    center, residual = outputs.seen.center, outputs.residual(point)
    sizes, largest = [float(residual.norm())], 0.0
    for _ in range(steps):
        linear = outputs.at(point)
        largest = max(largest, linear.top)
        if not linear.top > _FLAT * largest or not math.isfinite(sizes[-1]):
            return None  # J vanishes on the valley, which it says nothing of
        away = sizes[-1] / (math.sqrt(linear.top) * float((point - center).norm()) + 1e-300)
        if away <= outputs.resolution:
            return point
        if len(sizes) > 5 and sizes[-1] > _SLOW * max(
            sizes[-4:-1]
        ):  # rounded weights have no valley in the strict sense
            return point if away <= _ROUNDED else None
        # The damping keeps the first steps short, where the valley is curved, and goes away with the residual.
        damping = max(_DAMPING * away**2, 1e-13)
        for _ in range(_RETRIES):
            trial = point - linear.solve(residual, damping)
            there = outputs.residual(trial)
            if float(there.norm()) <= _GROWTH * max(sizes[-3:]):
                break
            damping *= 30
        else:
            return None
        # More steps by the same matrices, for as long as they bring much.
        for _ in range(outputs.chords):
            further = trial - linear.solve(there, damping)
            left = outputs.residual(further)
            if not float(left.norm()) <= _WORTH * float(there.norm()):
                break
            trial, there = further, left
        point, residual = trial, there
        sizes.append(float(residual.norm()))
    return None


def is_smooth(rows: Rows, point: Tensor, step: Tensor) -> bool:
    """Whether a step along the kernel of J has to be corrected only to second order to be in the valley again.

    Args:
        rows: The outputs, and others that have to be predicted as at the center too.
        point: In the valley.
        step: Any, as long as the weights are large: its part in the kernel is taken.

    Example:
        >>> import torch
        >>> from crunode.curvature.jacobian import Evaluation
        >>> from crunode.curvature.outputs import DenseMap
        >>> from crunode.examples.toys import reduced_rank
        >>> step = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> for rank in (3, 0):  # at a point of full rank, and where J vanishes
        ...     seen = Evaluation(reduced_rank(4, 3, 4, rank=rank))
        ...     outputs = DenseMap(seen, torch.arange(8))
        ...     is_smooth(Rows(outputs, None, 0.0, 0.0, 0), seen.center, step)
        True
        False
    """
    outputs = rows.outputs
    linear = outputs.at(point)
    rest = linear.kernel(step)
    if not float(rest.norm()) > 1e-6 * float(step.norm()):
        return True
    start = outputs.residual(point)
    for share in _ALONG:
        along = rest * (share * float(step.norm()) / float(rest.norm()))
        again = point + along
        for _ in range(max(outputs.chords, 2)):
            again = again - linear.solve(outputs.residual(again) - start, outputs.flat)
        moved, size = float((again - point - along).norm()), float(along.norm())
        allowed = max(_ROUNDED, _CURVED * share) * math.sqrt(linear.top) * size
        closed = float((outputs.residual(again) - start).norm()) <= allowed
        if closed and moved <= _CURVED * size and _agrees(rows, point, again, allowed):
            return True
    return False


def _agrees(rows: Rows, point: Tensor, again: Tensor, allowed: float) -> bool:
    """Whether other examples are predicted as at the center too, at both points."""
    if rows.others is None:
        return True
    limit = math.sqrt(rows.outputs.at(point).top * rows.others.rows / rows.outputs.rows)
    there, further = rows.others.residual(point), rows.others.residual(again)
    away = float((point - rows.outputs.seen.center).norm())
    return float(there.norm()) <= 10 * _ROUNDED * limit * away and float((further - there).norm()) <= 10 * allowed
