"""How far a network follows its linearization: lazy training, and how that depends on the width.

A wide two-layer network p^(-1/2) Σ a_i φ(w_i·x) changes its outputs by moving each weight by an amount of order
p^(-1/2), so little that its gradient hardly changes. How fast the difference vanishes with the width depends on the
signs of the a_i: the second derivative along the path is p^(-3/2) Σ a_i³(...), which is of order p^(-1/2) where all a_i
have one sign and of order 1/p where signs are random and cancel.

References:
    Tanner, Theories of Deep Learning, lecture 9; Chizat, Oyallon & Bach 2019; Lee et al. 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.linearized import Linearized, linearize
from crunode.errors import InputError

__all__ = ["Laziness", "gradient_change_bound", "lazy_diagnostics", "linearization_error", "width_exponent"]

_LAZY = 0.1


@dataclass(frozen=True)
class Laziness:
    """What changed between θ0 and θ, and what the linearization at θ0 misses of it.

    Attributes:
        error: Root mean square over examples and outputs of f(θ) − f_lin(θ).
        relative_error: ‖f(θ) − f_lin(θ)‖ / ‖f(θ) − f(θ0)‖.
        kernel_change: ‖K(θ) − K(θ0)‖ / ‖K(θ0)‖ in the Frobenius norm, for the tangent kernel K = JJᵀ.
        distance: ‖θ − θ0‖.
        per_coordinate: Root mean square of the entries of θ − θ0.
        largest: The largest entry of θ − θ0, without its sign.
        findings: What was noticed.
    """

    error: Estimate
    relative_error: Estimate
    kernel_change: Estimate
    distance: Estimate
    per_coordinate: Estimate
    largest: Estimate
    findings: tuple[Finding, ...] = ()


def linearization_error(land: Landscape, at: Any) -> Estimate:
    """How far the network is from its linearization at other weights: root mean square of f(θ) − f(θ0) − J(θ − θ0).

    Args:
        land: The landscape, at θ0.
        at: θ: a flat vector, named tensors, or a module.

    Returns:
        The error, over all examples and outputs, without a statistical error of its own. Its diagnostics have the
        share `relative` of the change in outputs that it is, the `largest` of the errors, and the `distance` ‖θ − θ0‖.

    Raises:
        InputError: The weights do not fit, or the model has no outputs of its own for each example.

    Example:
        >>> class Square(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.w = torch.nn.Parameter(torch.ones(1))
        ...     def forward(self, x):
        ...         return self.w ** 2 * x
        >>> land = Landscape(Square(), (torch.ones(4, 1), torch.ones(4, 1)), "gaussian")
        >>> round(linearization_error(land, torch.tensor([1.5])).value, 12)  # (θ − θ0)²
        0.25
    """
    linear = linearize(land)
    return _error(linear, linear.point(at))


def lazy_diagnostics(land: Landscape, at: Any) -> Laziness:
    """How lazy training from the center θ0 to other weights θ was: kernel, weights, and what the linearization misses.

    Args:
        land: The landscape, at θ0, where training began.
        at: θ: a flat vector, named tensors, or a module.

    Raises:
        InputError: The weights do not fit, the model has no outputs of its own for each example, or there are too
            many of them for their kernel.

    Example:
        >>> net = torch.nn.Linear(3, 1)
        >>> land = Landscape(net, (torch.eye(3), torch.ones(3, 1)), "gaussian")
        >>> found = lazy_diagnostics(land, land.center + 1)  # linear in its weights: nothing is missed
        >>> round(found.distance.value, 6), found.kernel_change.value, round(found.error.value, 9)
        (2.0, 0.0, 0.0)
    """
    linear = linearize(land)
    point = linear.point(at)
    error = _error(linear, point)
    before, after = linear.kernel(), linearize(land.at(point)).kernel()
    size = float(before.norm())
    if not size > 0:
        raise InputError("expected outputs that depend on the weights, got a kernel of zeros; look at another point")
    change, missed = float((after - before).norm()) / size, error.diagnostics["relative"]
    step = (point - linear.center).double()
    findings = error.findings
    if max(change, missed) > _LAZY:
        seen = f"kernel changed by {change:.2g}, linearization misses {missed:.2g} of the change in outputs"
        findings = (*findings, Finding.of("CURV844", seen))

    def made(name: str, value: float) -> Estimate:
        return Estimate(name, value, se=0.0, findings=findings, spec=error.spec, provenance=error.provenance)

    return Laziness(
        error.with_findings(*findings[len(error.findings) :]),
        made("relative linearization error", missed),
        made("relative change of the kernel", change),
        made("distance", float(step.norm())),
        made("movement per coordinate", float(step.square().mean().sqrt())),
        made("largest movement of a coordinate", float(step.abs().max())),
        findings,
    )


def width_exponent(values: Mapping[int, Sequence[float]], name: str = "width exponent") -> Estimate:
    """The exponent s of value ~ width^s, from values of several networks at each width.

    Means of logarithms are fitted by a line in the logarithm of the width, weighted by their errors. Where they scatter
    by more than these, the error of the slope is raised by as much. Corrections at small widths are told by the slope
    over the wider half alone: its difference is the systematic error.

    Args:
        values: For each width the positive values that were found, one for each network.
        name: Of the estimate.

    Raises:
        InputError: Fewer than three widths, or values that are not positive and finite.

    Example:
        >>> est = width_exponent({p: [2 / p**0.5, 2 / p**0.5] for p in (64, 128, 256, 512)})
        >>> round(est.value, 12), est.error < 1e-9
        (-0.5, True)
    """
    widths = sorted(values)
    if len(widths) < 3 or widths[0] < 1:
        raise InputError(f"expected values at three positive widths or more, got {widths}")
    logs = [np.log(np.asarray(values[p], dtype=np.float64)) if _positive(values[p]) else None for p in widths]
    if any(part is None for part in logs):
        raise InputError("expected positive and finite values at every width, got others; leave these out")
    x = np.log(np.asarray(widths, dtype=np.float64))
    y = np.array([part.mean() for part in logs if part is not None])
    se = np.array(
        [part.std(ddof=1) / math.sqrt(part.size) if part.size > 1 else 0.0 for part in logs if part is not None]
    )
    if not (se > 1e-12).all():  # single values, or equal ones: only their scatter around the line tells
        se = np.zeros_like(y)
    slope, error, excess = _line(x, y, se)
    half = len(x) // 2
    wide, _, _ = _line(x[half:], y[half:], se[half:])
    findings: tuple[Finding, ...] = ()
    freedom = len(x) - 2
    if se.any() and excess > freedom + 4 * math.sqrt(2 * freedom):
        findings = (Finding.of("CURV845", f"χ² = {excess:.1f} with {freedom} degrees of freedom"),)
    shown = {"widths": widths, "log_means": y.tolist(), "log_errors": se.tolist(), "wider_half": wide, "chi2": excess}
    return Estimate(
        name,
        slope,
        se=error,
        systematic=abs(wide - slope),
        findings=findings,
        spec={"widths": widths},
        diagnostics=shown,
        terms={"wider half": abs(wide - slope)},
        provenance=provenance(),
    )


def gradient_change_bound(inputs: Tensor, width: int, bend: float, distance: float) -> Tensor:
    """The most that the gradient of a wide two-layer network can change: p⁻¹ L² ‖x‖⁴ ‖θ1 − θ2‖², for each input x.

    That bounds ‖∇H(x; θ1) − ∇H(x; θ2)‖² for H = p^(-1/2) Σ a_i φ(w_i·x) with a_i between −1 and 1 and θ the weights
    w_i, where φ' has the Lipschitz constant L.

    Args:
        inputs: One input in each row.
        width: p.
        bend: L = max abs φ''.
        distance: ‖θ1 − θ2‖.

    Raises:
        InputError: Inputs are no matrix, or a number is not positive (a distance may be 0).

    Example:
        >>> gradient_change_bound(torch.tensor([[3.0, 4.0]]), width=100, bend=1.0, distance=0.2)
        tensor([0.2500])

    References:
        Tanner, lecture 9, which prints p⁻¹ L ‖x‖² ‖θ1 − θ2‖².
    """
    if not isinstance(inputs, Tensor) or inputs.ndim != 2:
        raise InputError("expected inputs as a matrix with one input in each row")
    if not (width >= 1 and 0 < bend < math.inf and 0 <= distance < math.inf):
        raise InputError(f"expected positive width and bend and a distance from 0 up, got {width}, {bend}, {distance}")
    return inputs.square().sum(1).square() * (bend**2 * distance**2 / width)


def _positive(values: Sequence[float]) -> bool:
    return len(values) > 0 and all(0 < float(v) < math.inf for v in values)


def _line(x: NDArray[np.float64], y: NDArray[np.float64], se: NDArray[np.float64]) -> tuple[float, float, float]:
    """Slope, its error and χ² of a straight line; with errors of zero all points count alike."""
    known = bool(se.any())
    weights = 1 / se**2 if known else np.ones_like(x)
    middle = (weights * x).sum() / weights.sum()
    spread = (weights * (x - middle) ** 2).sum()
    slope = (weights * (x - middle) * y).sum() / spread
    level = (weights * y).sum() / weights.sum()
    excess = float((weights * (y - level - slope * (x - middle)) ** 2).sum())
    scatter = excess / max(len(x) - 2, 1)
    return float(slope), math.sqrt((max(scatter, 1.0) if known else scatter) / spread), excess


def _error(linear: Linearized, point: Tensor) -> Estimate:
    land = linear.landscape
    reached = linear.network(point)
    if not bool(torch.isfinite(reached).all()):
        raise InputError("expected finite outputs at the other weights, got some that are not; was training diverging?")
    off = reached - linear.at(point)
    moved = float((reached - linear.outputs).norm())
    return Estimate(
        "linearization error",
        float(off.square().mean().sqrt()),
        se=0.0,
        findings=land.findings,
        spec={"n": land.n, "dim": land.dim, "outputs": linear.width},
        diagnostics={
            "relative": float(off.norm()) / moved if moved > 0 else 0.0,
            "largest": float(off.abs().max()),
            "distance": float((point - linear.center).double().norm()),
        },
        provenance=provenance(),
    )
