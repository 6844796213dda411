"""Moving weights to a minimum near them, and finding out that they were at none."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation
from crunode.errors import InputError

__all__ = ["Polish", "center_findings", "check_length", "polished"]

_HISTORY, _BLOCK = 20, 10
# A fall of the loss by 1/n moves an estimate at nβ = n by 1: what is below these, times 1/n, does not matter.
_SMALL, _NOTHING = 1e-3, 1e-9
# A loss that a block still divides by more than this is on its way to zero, or to a minimum at infinity.
_STEADY = 0.1
# Size of the push that leaves a saddle, relative to the weights.
_PUSH, _LEAST_WEIGHT, _PUSHES = 1e-2, 0.1, 4
# What is farther than this times the weights is not near.
_REACH = 10.0
# Gradients a look at the center takes at most, its share of the examples of an estimate, and of a budget.
_LOOK, _SHARE, _PART = 150, 0.05, 50
# Share of the estimate that the missing depth may be, and κ below which labels carry no noise.
_MISSING, _NOISY = 0.5, 0.25


@dataclass(frozen=True)
class Polish:
    """How weights came to a minimum.

    Attributes:
        moved: Distance of the new weights from the given ones.
        relative: The same over the norm of the given ones (infinite where that is zero).
        before: Loss at the given weights.
        after: Loss at the new ones.
        gradients: Gradients on all data that it took.
        converged: The loss fell no further, from random points around the new weights neither.
        saddle: The given weights had no slope, and a small random push led lower.
    """

    moved: float
    relative: float
    before: float
    after: float
    gradients: int
    converged: bool
    saddle: bool

    @property
    def fell(self) -> float:
        """By how much the loss fell."""
        return self.before - self.after

    def summary(self) -> dict[str, Any]:
        """All of it as JSON-able values."""
        relative = self.relative if math.isfinite(self.relative) else None
        return {**asdict(self), "relative": relative, "fell": self.fell}

    def finding(self) -> Finding | None:
        """What there is to say against the new weights."""
        if self.converged:
            return None
        size = f"at a distance of {self.moved:.3g} the loss is {self.after:.4g}"
        return Finding.of("LLC112", f"after {self.gradients} gradients, {size} and falls further")


def polished(landscape: Landscape, *, steps: int = 1000, seed: int = 0) -> tuple[Landscape, Polish]:
    """The same landscape at a minimum of L_n near its center, by L-BFGS on all data with a strong Wolfe line search.

    The loss is evaluated in double precision where the model allows. It has converged when ten iterations lower n L_n
    by less than 10⁻³, and the loss itself by less than a tenth. A gradient vanishes at a saddle too, so the descent
    begins again from a random point a hundredth of the weights away; only if that leads no lower, it is over. Points
    farther than ten times the weights are not near, and not taken.

    Args:
        landscape: Model, data and loss at the point to begin at; it is left as it is.
        steps: Most gradients on all data to take.
        seed: Random points come from it.

    Returns:
        The landscape at the new weights (the given one where nothing lower was found), and how it came there.

    Raises:
        InputError: No landscape, or a number that is none.

    Example:
        >>> x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.constant_(net.weight, 0.5)
        >>> land, found = polished(Landscape(net, (x, x.sum(1, keepdim=True)), "gaussian"))
        >>> torch.allclose(land.center, torch.ones(2), atol=1e-3), found.converged, found.fell > 0
        (True, True, True)

    References:
        Liu & Nocedal 1989, On the limited memory BFGS method for large scale optimization.
    """
    if not isinstance(landscape, Landscape):
        raise InputError(f"expected a Landscape, got {type(landscape).__name__}")
    for name, value, least in (("steps", steps, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    with torch.inference_mode(False), torch.enable_grad(), preserved_rng():
        way = _Descent(landscape, steps)
        small = _SMALL / landscape.n
        converged, saddle = way.descend(way.w), False
        level = way.before - way.loss <= small
        for k in range(_PUSHES if converged else 0):
            lowest = way.loss
            ended = way.descend(way.pushed(derived_seed(seed, 41 + k)))
            if lowest - way.loss <= small:
                converged = ended
                break
            converged, saddle = False, level  # where one push led lower, another may
    before, other, after = way.before, landscape, way.before
    if way.loss < before:
        other = landscape.at(way.w)
        after = float(other.loss())  # of the weights as the model holds them, which may be rounded
    if after >= before:
        other, after = landscape, before
    moved = float((other.center - landscape.center).double().norm())
    norm = float(landscape.center.double().norm())
    relative = moved / norm if norm > 0 else (math.inf if moved else 0.0)
    return other, Polish(moved, relative, before, after, way.gradients, converged, saddle)


class _Spent(Exception):
    """No more gradients may be taken."""


def _size(w: Tensor) -> float:
    """Root mean square of the weights, or a tenth."""
    return max(float(w.double().square().mean().sqrt()), _LEAST_WEIGHT)


class _Descent:
    """L-BFGS on all data, and the lowest point it has been to."""

    def __init__(self, land: Landscape, steps: int) -> None:
        self.land, self.steps, self.gradients = land, steps, 0
        self.seen = Evaluation(land)
        self.w = self.seen.center.detach().clone()
        self.before = self.loss = float(land.loss())
        self.reach = _REACH * _size(self.w) * math.sqrt(land.dim)

    def pushed(self, seed: int) -> Tensor:
        """A random point around the lowest one."""
        move = torch.randn(self.w.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return self.w + _PUSH * _size(self.w) * move.to(self.w)

    def descend(self, start: Tensor) -> bool:
        """Go down from `start`; whether the loss came to rest within reach, before the gradients were spent."""
        w = start.detach().clone().requires_grad_()
        # What small means is judged below.
        rest: dict[str, Any] = {"tolerance_grad": 0.0, "tolerance_change": 0.0, "line_search_fn": "strong_wolfe"}
        method: torch.optim.Optimizer = torch.optim.LBFGS([w], max_iter=_BLOCK, history_size=_HISTORY, **rest)
        least = math.inf

        def evaluate() -> float:
            nonlocal least
            if self.gradients >= self.steps:
                raise _Spent
            value, gradient = self._gradient(w.detach())
            least = min(least, float(value))
            w.grad = gradient
            return float(value)

        last = math.inf
        while True:
            try:
                method.step(evaluate)
            except _Spent:
                return False
            away = float((w.detach() - self.seen.center).norm())
            if not (math.isfinite(least) and away <= self.reach):
                return False
            fell, last = last - least, least
            small = fell <= _SMALL / self.land.n and fell <= _STEADY * abs(least)
            if small or self.land.n * abs(least) < _NOTHING:
                return True

    def _gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        land = self.land
        value = torch.zeros((), dtype=w.dtype, device=w.device)
        total = torch.zeros_like(w)
        point = w.clone().requires_grad_()
        for batch in land.passes():
            share = leaves(batch)[0].shape[0] / land.data.rows
            loss = self.seen.losses(point, batch).mean() * share
            total += torch.autograd.grad(loss, point)[0].detach()
            value += loss.detach()
        self.gradients += 1
        if float(value) < self.loss and float((w - self.seen.center).norm()) <= self.reach:
            self.w, self.loss = w.clone(), float(value)
        return value, total


def check_length(budget: int | None, rows: int, examples: float = math.inf) -> int:
    """Gradients to look at the center with: a small part of the budget, or of the examples that an estimate took.

    Example:
        >>> check_length(1000, 500), check_length(None, 500, 4e5), check_length(None, 500, 4e9)
        (20, 40, 150)
    """
    part = _SHARE * examples / rows if budget is None else budget / _PART
    return int(min(part, _LOOK))


def center_findings(land: Landscape, estimate: Estimate, *, steps: int, seed: int = 0) -> tuple[Estimate, Polish]:
    """The estimate with what a short descent from the center has to say about it.

    At loss D above a minimum nearby, nβ (E[L_n(w)] − L_n(w*)) is low by about nβ D. Labels that scatter around w* make
    that (d/2)/log n at the conventional nβ = n/log n; a fall of more than half the estimate is more than they do.

    Args:
        land: The landscape that was sampled.
        estimate: What came of it.
        steps: Gradients on all data that may be taken.
        seed: As in `polished`.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 - w[1] ** 2 + w[1] ** 4, torch.zeros(2))
        >>> levels = {"levels": [{"nbeta": 1e3}], "plain": {"nbeta": 1e3}}
        >>> made_up = Estimate("llc", 1.0, se=0.1, spec={"measures": {}}, diagnostics=levels)
        >>> [f.code for f in center_findings(land, made_up, steps=60)[0].findings]
        ['LLC111']
    """
    _, found = polished(land, steps=steps, seed=seed)
    seen = estimate.diagnostics
    noise = estimate.spec["measures"].get("label_noise")
    noisy = noise is None or noise >= _NOISY
    nbeta = seen["plain"]["nbeta"] if noisy else max(row["nbeta"] for row in seen["levels"])
    missing = nbeta * found.fell
    # No minimum has more than d/2, whatever chains that left say, and no estimate is known well below 1.
    scale = max(min(estimate.value, land.dim / 2), 1.0)
    if not missing > _MISSING * scale:
        return estimate, found
    kind = "a saddle, from which the loss falls" if found.saddle else "a slope, down which the loss falls"
    size = f"{found.fell:.3g}, nbeta times which is {missing:.3g}"
    where = f"within {found.moved:.3g} of the center" + (" already" if not found.converged else "")
    findings = [Finding.of("LLC111", f"{kind} by {size}, {where}")]
    known = {f.code for f in estimate.findings}
    if estimate.value < -2 * estimate.se and "LLC101" not in known:
        findings.append(Finding.of("LLC101", f"{estimate.value:.3g} ± {estimate.se:.2g} by Monte-Carlo error alone"))
    return estimate.with_findings(*findings), found
