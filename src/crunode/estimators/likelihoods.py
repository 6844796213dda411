"""Likelihoods with their constants, and whether a loss is one.

Criteria take exp(−ℓ) for a density of y given x. `normalization` integrates it over y, or sums it over classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding
from crunode.core.rng import derived_seed, preserved_rng
from crunode.errors import InputError

__all__ = ["Likelihood", "normalization"]

# By how much the logarithm of an integral may miss 0, and integrals of different points each other.
_CLOSE = 1e-3
# An integral has to be over at its ends: the integrand there, against its largest value.
_OVER = 1e-4
_STREAM = 44


@dataclass(frozen=True)
class Likelihood:
    """−log p(y|x, w) as a function of outputs and targets, with its constant.

    Attributes:
        kind: "gaussian" with outputs as means, or "categorical" with outputs as log odds.
        sd: Standard deviation of the Gaussian.

    Example:
        >>> Likelihood("gaussian")(torch.zeros(1, 1), torch.zeros(1, 1))  # ½ log 2π
        tensor([0.9189])
    """

    kind: str
    sd: float = 1.0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """−log p for each row."""
        if self.kind == "categorical":
            return F.cross_entropy(output, target, reduction="none")
        apart = (output - target.reshape(output.shape)).flatten(1)
        constant = apart.shape[1] * math.log(self.sd * math.sqrt(2 * math.pi))
        return 0.5 * apart.square().sum(1) / self.sd**2 + constant

    def entropy(self, truth: Tensor) -> Tensor:
        """The entropy of q(y|x) for each row of outputs of the truth."""
        if self.kind == "categorical":
            logs = truth.log_softmax(1)
            return -(logs.exp() * logs).sum(1)
        width = truth.flatten(1).shape[1]
        each = 0.5 * width * math.log(2 * math.pi * math.e * self.sd**2)
        return torch.full((len(truth),), each, dtype=truth.dtype, device=truth.device)

    def divergence(self, truth: Tensor, output: Tensor) -> Tensor:
        """KL(q(y|x) ‖ p(y|x, w)) for each row."""
        if self.kind == "categorical":
            logs = truth.log_softmax(1)
            return (logs.exp() * (logs - output.log_softmax(1))).sum(1)
        return 0.5 * (output - truth).flatten(1).square().sum(1) / self.sd**2

    def drawn(self, truth: Tensor, generator: torch.Generator) -> Tensor:
        """Targets from q(y|x), one for each row."""
        if self.kind == "categorical":
            return torch.multinomial(truth.double().softmax(1).cpu(), 1, generator=generator)[:, 0].to(truth.device)
        noise = torch.randn(truth.shape, generator=generator, dtype=torch.float64)
        return truth + self.sd * noise.to(truth)


def normalization(land: Landscape, *, examples: int = 4, seed: int = 0) -> Estimate:
    """∫exp(−ℓ(y; x, w)) dy, or the sum over classes: 1 for a loss that is −log p.

    It is taken at a few examples, at the center and at a point near it. The mean is returned. A value that is the same
    everywhere but not 1 is a constant that the loss leaves out (finding CRIT711); one that changes with x or w means
    that the loss is no −log p of any constant, and criteria do not hold (CRIT712).

    Args:
        land: A landscape on data (x, y), with y one real number or a class.
        examples: How many examples to look at.
        seed: Of the choice of examples.

    Raises:
        InputError: y has several entries, or the number of classes is not known.

    Example:
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> est = normalization(Landscape(torch.nn.Linear(1, 1), (x, x), "gaussian"))
        >>> round(est.value / math.sqrt(2 * math.pi), 4), [f.code for f in est.findings]
        (1.0, ['CRIT711'])
        >>> normalization(Landscape(torch.nn.Linear(1, 1), (x, x), Likelihood("gaussian", sd=0.1))).findings
        ()
    """
    if not isinstance(land, Landscape):
        raise InputError(f"expected a Landscape, got {type(land).__name__}")
    if not land.pointwise or not land.data.stacked:
        raise InputError("expected a landscape with a loss for each example of data that stacks, got another one")
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise InputError(f"expected examples as a positive whole number, got {examples!r}")
    generator = torch.Generator().manual_seed(derived_seed(seed, _STREAM))
    rows = torch.randperm(land.data.rows, generator=generator)[:examples]
    scale = max(float(land.center.double().square().mean()) ** 0.5, 0.1)
    near = land.center + 0.3 * scale * torch.randn(land.dim, generator=generator).to(land.center)
    with torch.no_grad(), preserved_rng():
        logs = [
            _log_total(land, w, land.data.take(row[None].to(land.device))) for w in (land.center, near) for row in rows
        ]
    finite = all(math.isfinite(each) for each in logs)
    mean = sum(logs) / len(logs) if finite else math.inf
    spread = max(logs) - min(logs) if finite else math.inf
    findings: tuple[Finding, ...] = ()
    if not spread < _CLOSE:
        findings = (Finding.of("CRIT712", f"from {math.exp(min(logs)):.4g} to {math.exp(max(logs)):.4g}"),)
    elif abs(mean) > _CLOSE:
        known = ", √2π of a Gaussian of unit variance" if abs(mean - 0.5 * math.log(2 * math.pi)) < _CLOSE else ""
        findings = (Finding.of("CRIT711", f"{math.exp(mean):.4g}{known}; losses are low by {mean:.4g} per example"),)
    return Estimate(
        "normalization",
        math.exp(mean),
        se=0.0,
        findings=findings,
        seed=seed,
        diagnostics={"log": logs, "spread": spread},
    )


def _log_total(land: Landscape, w: Tensor, batch: Any) -> float:
    """The logarithm of the integral at one example."""
    if not isinstance(batch, tuple) or len(batch) < 2:
        raise InputError("expected data as (x, y), got another form; its targets are not known")
    *inputs, target = batch

    def losses(values: Tensor) -> Tensor:
        repeated = [x.expand(len(values), *x.shape[1:]) for x in inputs]
        return land.batch_losses(w, (*repeated, values.to(target.dtype).view(len(values), *target.shape[1:]))).double()

    if target.numel() != 1:
        raise InputError(f"expected one target value for an example, got {target.numel()}; check a model of one output")
    if not target.is_floating_point():
        outputs = land.batch_outputs(w, batch)
        return float(torch.logsumexp(-losses(torch.arange(outputs.shape[1], device=target.device)), 0))
    if land.loss_name == "bernoulli":
        return float(torch.logsumexp(-losses(torch.tensor([0.0, 1.0], device=target.device)), 0))
    return _log_integral(losses, float(target), land.device)


def _log_integral(losses: Callable[[Tensor], Tensor], start: float, device: torch.device) -> float:
    """Log ∫exp(−loss) over the line, by the trapezium in t with y = middle + width · sinh t."""
    t = torch.linspace(-14, 14, 4001, dtype=torch.float64, device=device)
    middle, width = start, max(abs(start), 1.0)
    for _ in range(3):  # the minimum, ever closer
        y = middle + width * torch.sinh(t)
        middle = float(y[torch.nan_to_num(losses(y), nan=math.inf).argmin()])
        width *= 0.1
    radii = torch.logspace(-6, 6, 241, dtype=torch.float64, device=device) * max(abs(start), 1.0)
    least = losses(torch.tensor([middle], dtype=torch.float64, device=device))
    rise = torch.maximum(losses(middle + radii), losses(middle - radii)) - least
    inside = radii[rise < 0.5]
    width = float(inside[-1]) if len(inside) else float(radii[0])
    logs = -losses(middle + width * torch.sinh(t)) + torch.log(width * torch.cosh(t))
    logs = torch.nan_to_num(logs, nan=-math.inf)
    if max(float(logs[0]), float(logs[-1])) > float(logs.max()) + math.log(_OVER):
        return math.inf
    return float(torch.logsumexp(logs, 0)) + math.log(float(t[1] - t[0]))
