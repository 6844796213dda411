"""Steps on the loss of a linearized network: the Gauss-Newton step, and gradient descent with its predicted rate.

Everything is for the mean loss over examples, as a landscape has it: rates are learning rates of plain gradient descent
on that loss, and the kernel is K = c² JJᵀ/n, with c² the second derivative of the loss in an output (1 for "gaussian").

References:
    Tanner, Theories of Deep Learning, lecture 9, with the corrections of the page on errata: the residual contracts by
    ‖I − αK‖ and the loss by its square, the best rate needs α = 2/(σ_max + σ_min), and the limit of descent is the
    solution nearest to θ0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.linearized import Factors, Linearized, linearize
from crunode.curvature.rank import NumericRank
from crunode.errors import InputError

__all__ = ["Descent", "GaussNewton", "gauss_newton_step", "linearized_descent"]

# Residuals below this, relative to the first one, are too near to rounding for their ratios to be read.
_READ = 1e-9


@dataclass(frozen=True)
class GaussNewton:
    """A Gauss-Newton step from θ0 to θ1.

    Attributes:
        weights: θ1, a flat vector in double precision.
        step: θ1 − θ0.
        distance: ‖θ1 − θ0‖.
        predicted: Loss of the linearized network at θ1.
        loss: Loss of the network itself at θ1.
        condition: Condition number of the kernel, without directions that are zero to rounding.
        rank: The rank of J, and how clear it is.
        findings: What was noticed.
    """

    weights: Tensor = field(repr=False)
    step: Tensor = field(repr=False)
    distance: Estimate
    predicted: Estimate
    loss: Estimate
    condition: Estimate
    rank: NumericRank
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Descent:
    """Gradient descent on the loss of a linearized network.

    Attributes:
        weights: Where it ends, a flat vector in double precision.
        rate: The learning rate α.
        best_rate: 2/(σ_max + σ_min), of the eigenvalues σ of K.
        contraction: ‖I − αK‖, by which the residual shrinks in each step at least; the loss by its square.
        best_contraction: (κ − 1)/(κ + 1), that at the best rate.
        measured: By how much the residual shrank in the last step that can be read.
        condition: κ = σ_max/σ_min.
        losses: Loss before each step and after the last.
        bounds: What the contraction promises for each of them.
        floor: The least loss that the linearized network can have.
        findings: What was noticed.
    """

    weights: Tensor = field(repr=False)
    rate: float
    best_rate: float
    contraction: Estimate
    best_contraction: Estimate
    measured: Estimate
    condition: Estimate
    losses: NDArray[np.float64] = field(repr=False)
    bounds: NDArray[np.float64] = field(repr=False)
    floor: float
    findings: tuple[Finding, ...] = ()


def gauss_newton_step(land: Landscape, damping: float = 0.0) -> GaussNewton:
    """The Gauss-Newton step θ1 = θ0 + J⁺(y − f(θ0)): of all best weights of the linearized network the nearest to θ0.

    For other losses than squared errors it is the minimum of the second-order loss gᵀδ + ½ δᵀHδ in the change δ of
    outputs, with H = RᵀR: θ0 − (RJ)⁺ R⁺ᵀ g. With damping μ it is the minimum of the mean of these losses plus
    ½ μ ‖θ − θ0‖².

    Args:
        land: The landscape, at θ0.
        damping: μ, from 0 up.

    Returns:
        The step, with the loss it was to reach and the one it reaches. Estimates have no statistical error.

    Raises:
        InputError: The model has no outputs of its own for each example, the loss is not convex in them or has no
            second derivative where it has a first one, the outputs do not depend on the weights, or the damping is
            not a number from 0 up.

    Example:
        >>> net = torch.nn.Linear(3, 1, bias=False)
        >>> x, y = torch.eye(3)[:2], torch.tensor([[1.0], [2.0]])
        >>> land = Landscape(net, (x, y), "gaussian")
        >>> found = gauss_newton_step(land)
        >>> [round(float(w), 6) for w in found.weights[:2]], bool(found.weights[2] == land.center[2])
        ([1.0, 2.0], True)

    References:
        Tanner, lecture 9; Schraudolph 2002, Neural Computation 14:1723, for other losses than squared errors.
    """
    if isinstance(damping, bool) or not isinstance(damping, int | float) or not 0 <= damping < math.inf:
        raise InputError(f"expected damping as a number from 0 up, got {damping!r}")
    linear = linearize(land)
    loss = linear.output_loss()
    wanted = loss.residual()
    factors = linear.factors(loss)
    values = factors.values
    amounts = values / (values.square() + damping * land.data.rows) * (factors.left.T @ wanted)
    if factors.right is not None:
        step = factors.right @ amounts
    else:
        step = linear.pull(loss.back(factors.left @ (amounts / values)))
    weights = linear.center + step.to(linear.center)
    findings = _rank_findings(factors, linear)
    before, reached = float(land.loss()), float(land.loss(weights))
    predicted = linear.loss(weights)
    if not reached <= before * (1 + 1e-9) and predicted < before:
        seen = f"loss {before:.4g} before, {reached:.4g} after, {predicted:.4g} linearized"
        findings.append(Finding.of("CURV843", seen))
    spec = _spec(land, linear) | {"damping": float(damping)}
    made = _Maker(spec, (*land.findings, *findings))
    return GaussNewton(
        weights,
        step,
        made("distance of the Gauss-Newton step", float(step.norm())),
        made("linearized loss", predicted),
        made("loss", reached),
        made("condition number", factors.condition),
        factors.rank,
        made.findings,
    )


def linearized_descent(land: Landscape, steps: int, rate: float | None = None) -> Descent:
    """Gradient descent on the loss of the linearized network, with the rate at which it has to converge.

    With the residual r = f(θ0) + J(θ − θ0) − y each step is r ← (I − αK) r, so that ‖r‖ shrinks by ‖I − αK‖ =
    max abs(1 − ασ) at least, over the eigenvalues σ of K = c² JJᵀ/n that are not zero, and the loss by its square. The
    best rate is α = 2/(σ_max + σ_min), with the factor (κ − 1)/(κ + 1). What weights cannot change is left out.

    Args:
        land: The landscape, at θ0; its loss is one of squared errors.
        steps: How many.
        rate: Learning rate α on the mean loss; None takes the best.

    Returns:
        The path of losses, the contraction that was predicted and the one that was measured.

    Raises:
        InputError: The loss is not one of squared errors, the rate is not between 0 and 2/σ_max, where descent begins
            to diverge, or steps is no positive whole number.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.zeros_(net.weight)
        >>> x = torch.diag(torch.tensor([2.0, 1.0]))  # K = diag(4, 1)/2
        >>> found = linearized_descent(Landscape(net, (x, torch.ones(2, 1)), "gaussian"), 50)
        >>> found.best_rate, round(found.condition.value, 9)
        (0.8, 4.0)
        >>> round(found.contraction.value, 9), round(found.measured.value, 9)  # (κ − 1)/(κ + 1)
        (0.6, 0.6)

    References:
        Tanner, lecture 9, as corrected on the page on errata.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"expected steps as a positive whole number, got {steps!r}")
    linear = linearize(land)
    loss = linear.output_loss()
    if not loss.squared:
        raise InputError(
            f"expected a loss of squared errors, for which descent has a fixed rate, got {land.loss_name}; use "
            "gauss_newton_step for other losses"
        )
    scale = float(loss.root**2)
    factors = linear.factors()
    eigen = scale * factors.values.square() / land.data.rows
    top, least = float(eigen[0]), float(eigen[-1])
    best = 2 / (top + least)
    rate = best if rate is None else rate
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate * top < 2:
        raise InputError(
            f"expected rate above 0 and below 2/σ_max = {2 / top:.6g}, from where on descent diverges, got {rate!r}; "
            "leave it out for the best one"
        )
    contraction = float((1 - rate * eigen).abs().max())
    path, pulled, measured = _descend(linear, factors, -loss.slope / scale, steps, rate * scale / land.data.rows)
    half = scale / (2 * land.data.rows)
    start = float(land.loss())
    constant = start - half * float(path[0])
    if abs(constant) <= 1e-6 * start:  # squared errors without a constant, but for the rounding of single precision
        constant = 0.0
    floor = constant + half * max(float(path[0] - _reachable(factors, loss.slope / scale)), 0.0)
    losses = constant + half * path
    shrink = contraction ** (2.0 * np.arange(steps + 1))
    made = _Maker(
        _spec(land, linear) | {"steps": steps, "rate": float(rate)}, (*land.findings, *_rank_findings(factors, linear))
    )
    return Descent(
        linear.center + pulled.to(linear.center),
        float(rate),
        best,
        made("contraction", contraction),
        made("best contraction", (top - least) / (top + least)),
        made("measured contraction", measured),
        made("condition number", factors.condition),
        losses,
        floor + shrink * (losses[0] - floor),
        floor,
        made.findings,
    )


def _reachable(factors: Factors, residual: Tensor) -> Tensor:
    return (factors.left.T @ residual).square().sum()


def _descend(
    linear: Linearized, factors: Factors, wanted: Tensor, steps: int, factor: float
) -> tuple[NDArray[np.float64], Tensor, float]:
    """Squared residuals along the path, the step to its end, and the last contraction that can be read.

    Weights move by Jᵀ times sums of residuals, so that only these are followed.
    """
    gram = None if linear.jacobian is not None else linear.kernel()
    left = factors.left
    rest = -wanted
    total = torch.zeros_like(rest)
    squares, reached = [rest @ rest], [(left.T @ rest).norm()]
    with Progress(steps, "linearized descent") as bar:
        for _ in range(steps):
            total += rest
            moved = linear.push(linear.pull(rest)) if gram is None else gram @ rest
            rest = rest - factor * moved
            squares.append(rest @ rest)
            reached.append((left.T @ rest).norm())
            bar.advance()
    sizes = torch.stack(reached).cpu().numpy()
    readable = np.flatnonzero(sizes[1:] > _READ * sizes[0]) + 1
    last = int(readable[-1]) if len(readable) else 1
    measured = float(sizes[last] / sizes[last - 1]) if sizes[last - 1] > 0 else 0.0
    return torch.stack(squares).cpu().numpy(), -factor * linear.pull(total), measured


def _rank_findings(factors: Factors, linear: Linearized) -> list[Finding]:
    found = []
    rows, columns = factors.shape
    if rows > columns:
        found.append(Finding.of("CURV842", f"{rows} outputs that the loss sees, {columns} weights"))
    eps = torch.finfo(torch.float64).eps
    missing = factors.rank.rank < min(rows, columns)
    if missing or not factors.rank.decided or factors.condition > 1 / (max(rows, columns) * eps):
        which = f"{factors.rank.rank} of {min(rows, columns)} directions count, κ = {factors.condition:.2g}"
        doubt = "" if factors.rank.decided else f", and up to {factors.rank.high} may"
        found.append(Finding.of("CURV841", which + doubt))
    return found


def _spec(land: Landscape, linear: Linearized) -> dict[str, Any]:
    method = "gram" if linear.jacobian is None else "svd"
    return {"n": land.n, "dim": land.dim, "outputs": linear.width, "loss": land.loss_name, "method": method}


class _Maker:
    """Estimates without statistical error that share what they were made from."""

    def __init__(self, spec: dict[str, Any], findings: tuple[Finding, ...]) -> None:
        self.findings, self._spec, self._origin = findings, spec, provenance()

    def __call__(self, name: str, value: float) -> Estimate:
        return Estimate(name, value, se=0.0, findings=self.findings, spec=self._spec, provenance=self._origin)
