"""Traces of the Hessian and of the Gauss-Newton matrix, exact where the model allows it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import preserved_rng
from crunode.curvature.activations import free_tensors, recorded
from crunode.curvature.coverage import Coverage, coverage
from crunode.curvature.jacobian import NoOutputs
from crunode.curvature.loss_factors import loss_factors
from crunode.curvature.piecewise import operations
from crunode.curvature.trace_terms import (
    ClassProbes,
    GaussNewtonProducts,
    HessianProducts,
    LayerProbes,
    Term,
    exact_gauss_newton,
    factor_count,
    model_outputs,
)
from crunode.errors import InputError

__all__ = ["ggn_trace", "hessian_trace"]

_METHODS = ("auto", "exact", "hutchinson")
# Backward passes up to which the exact Gauss-Newton trace is taken without asking whether fewer would do.
_CLASSES = 64
# Degrees of freedom that a variance needs before it decides when to stop, and by how much a round may grow.
_FREEDOM, _FREEDOM_SHARED, _GROWTH = 100, 11, 4
_MANY_ZEROS = 0.01


def hessian_trace(
    land: Landscape, *, tolerance: float = 0.01, method: str = "auto", probes: int = 4000, seed: int = 0
) -> Estimate:
    """Trace of the Hessian of the mean loss at the center.

    H = GGN + H₁ with GGN = (1/n) Σ_i J_iᵀ Λ_i J_i, Λ_i the second derivative of an example's loss in its outputs and
    J_i that of the outputs in the parameters. Over layers that are linear in their parameters, each used once:

    - Tr GGN is exact from one backward pass for each class, without gradients in weights.
    - Tr H₁ = 0 where the outputs are piecewise linear in what layers give (ReLU, leaky ReLU, max-pooling, normalization
      by stored statistics). The trace is then exact.
    - Elsewhere Tr H₁ is estimated by Hutchinson's method in what layers give, other signs for each example.

    Parameters outside of such layers add their part by products of the whole Hessian with random signs. Which holds is
    read off the graph of operations and checked on examples; the outcome is in `diagnostics`.

    Args:
        land: The landscape; `land.restrict` gives the trace over some parameters.
        tolerance: Relative standard error to reach where the trace is not exact.
        method: "auto"; "exact", which refuses what is not exact; or "hutchinson", products with the whole Hessian only.
        probes: The most random vectors for each part.
        seed: All randomness comes from it.

    Returns:
        The trace; `se` is from the random vectors alone, as the data is fixed, and 0 where it is exact. Where they are
        drawn until the tolerance is met, high values end earlier; `systematic` is the size of that.

    Raises:
        InputError: Arguments out of range, second derivatives that are not finite, or an exact trace that is not had.

    References:
        Hutchinson 1990; Martens 2020 (Gauss-Newton); Dangel, Kunstner & Hennig 2020 (BackPACK).

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(net, (torch.tensor([[1.0, 2.0]]), torch.zeros(1, 1)), "gaussian")
        >>> trace = hessian_trace(land)
        >>> trace.value, trace.se, trace.diagnostics["method"]
        (5.0, 0.0, 'exact')
    """
    _check(tolerance, probes)
    if method not in _METHODS:
        raise InputError(f"expected method among {_METHODS}, got {method!r}")
    with torch.inference_mode(False), torch.enable_grad(), preserved_rng():
        plan = _plan(land, whole=method == "hutchinson")
        parts = _Parts()
        if plan.coverage.layers and plan.outputs:
            plan = _gauss_newton(land, plan, parts, seed, exact=method == "exact")
        if plan.coverage.layers and (plan.curved or not plan.outputs):
            parts.terms.append(_Sum(LayerProbes(land, plan.coverage.layers, seed, residual=plan.outputs)))
        if plan.coverage.rest:
            parts.terms.append(_Sum(HessianProducts(land, tuple(plan.coverage.rest), seed)))
        if method == "exact" and parts.terms:
            raise InputError(f"expected a model with an exact trace, got one where {plan.why()}; use method='auto'")
        return _result("hessian_trace", land, plan, parts, tolerance, probes, seed, method)


def ggn_trace(land: Landscape, *, tolerance: float = 0.01, probes: int = 4000, seed: int = 0) -> Estimate:
    """Trace of the Gauss-Newton matrix (1/n) Σ_i J_iᵀ Λ_i J_i at the center.

    For losses −log p(y|f) of exponential families with their natural parameters as outputs f (cross-entropy, squared
    error) that is the trace of the Fisher information. Exact over layers, see `hessian_trace`.

    Args:
        land: The landscape.
        tolerance: Relative standard error to reach where the trace is not exact.
        probes: The most random vectors for each part.
        seed: All randomness comes from it.

    Raises:
        InputError: There is no Gauss-Newton matrix: the loss takes the model as a whole, couples examples, or is not
            convex in the outputs.

    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> land = Landscape(net, (torch.tensor([[1.0, 2.0]]), torch.zeros(1, 1)), "gaussian")
        >>> round(ggn_trace(land).value, 5)
        6.0
    """
    _check(tolerance, probes)
    with torch.inference_mode(False), torch.enable_grad(), preserved_rng():
        plan = _plan(land)
        if not plan.outputs:
            raise InputError(f"expected a loss with a Gauss-Newton matrix, got one where {plan.why()}")
        parts = _Parts()
        if plan.coverage.layers:
            plan = _gauss_newton(land, plan, parts, seed)
        if not plan.outputs:
            raise InputError(f"expected a loss with a Gauss-Newton matrix, got one where {plan.why()}")
        if plan.coverage.rest:
            parts.terms.append(_Sum(GaussNewtonProducts(land, tuple(plan.coverage.rest), seed)))
        return _result("ggn_trace", land, plan, parts, tolerance, probes, seed, "auto")


@dataclass(frozen=True)
class _Plan:
    """What was found about a landscape."""

    coverage: Coverage
    pointwise: bool
    outputs: bool
    no_outputs: str
    factors: int
    curved: tuple[str, ...]
    kinked: tuple[str, ...]

    def why(self) -> str:
        if not self.pointwise:
            return "examples cannot be told apart"
        if self.coverage.rest:
            name, reason = next(iter(self.coverage.rest.items()))
            return f"{name} is {reason}"
        if not self.outputs:
            return self.no_outputs
        return f"{', '.join(self.curved)} are not piecewise linear"

    def conditions(self) -> dict[str, Any]:
        return {
            "one loss per example": self.pointwise,
            "all parameters in known layers": not self.coverage.rest,
            "convex loss of outputs": self.outputs,
            "piecewise linear": self.outputs and not self.curved,
            "curved operations": list(self.curved),
        }


@dataclass
class _Parts:
    exact: float = 0.0
    zeros: float = 0.0
    gauss_newton: bool = False
    terms: list[_Sum] = field(default_factory=list)


class _Sum:
    """Running sums of a random term over probes."""

    def __init__(self, term: Term) -> None:
        self.term, self.probes = term, 0
        self._sums: torch.Tensor | None = None
        freedom = _FREEDOM_SHARED if term.columns == 1 else _FREEDOM
        self.least = 1 + math.ceil(freedom / term.columns)
        self._exact: float | None = None

    def settle(self) -> None:
        """Take the term itself in place of an average."""
        self._exact = self.term.exact()

    @property
    def settled(self) -> bool:
        return self._exact is not None

    def draw(self, count: int) -> None:
        values = self.term.sample(self.probes, count)
        found = torch.stack([values.sum(0), values.square().sum(0)])
        self._sums = found if self._sums is None else self._sums + found
        self.probes += count

    @property
    def mean(self) -> float:
        if self._exact is not None:
            return self._exact
        assert self._sums is not None
        return float(self._sums[0].mean()) / self.probes

    @property
    def spread(self) -> float:
        """Standard deviation of one probe."""
        if self._exact is not None:
            return 0.0
        assert self._sums is not None
        first, second = self._sums / self.probes
        variances = (second - first.square()).clamp(min=0) * self.probes / (self.probes - 1)
        return math.sqrt(float(variances.sum())) / self.term.columns


def _plan(land: Landscape, whole: bool = False) -> _Plan:
    pointwise = land.pointwise and not any(f.code == "DATA502" for f in land.findings)
    names = land.packing.names
    if not pointwise or whole:
        reason = "asked for" if whole else "of a loss that does not tell examples apart"
        return _Plan(Coverage((), dict.fromkeys(names, reason)), pointwise, False, reason, 0, (), ())
    found = coverage(land)
    if land.loss_form.takes_model:
        return _Plan(found, True, False, f"the loss {land.loss_name} takes the whole model", 0, (), ())
    if found.layers and 0 < found.outputs <= _CLASSES:
        # All examples are looked at where the Gauss-Newton part is taken, which is at once.
        return _Plan(found, True, True, "", found.outputs, (), ())
    batch = next(iter(land.passes(2)))
    free = free_tensors(land)
    try:
        outputs, _ = recorded(found.layers, lambda: model_outputs(land, free, batch))
        factors = factor_count(loss_factors(land, outputs, batch), outputs)
    except (NoOutputs, InputError) as error:
        return _Plan(found, True, False, str(error), 0, (), ())
    seen = operations(outputs)
    return _Plan(found, True, True, "", factors, seen.curved, seen.kinked)


def _gauss_newton(land: Landscape, plan: _Plan, parts: _Parts, seed: int, exact: bool = False) -> _Plan:
    """Add the Gauss-Newton trace over layers, exact unless outputs are many; the plan with what all examples showed."""
    layers = plan.coverage.layers
    if plan.factors > _CLASSES and not exact:
        parts.terms.append(_Sum(ClassProbes(land, layers, seed, plan.factors)))
        return plan
    try:
        found = exact_gauss_newton(land, layers, plan.factors)
    except NoOutputs as error:
        return replace(plan, outputs=False, no_outputs=str(error))
    parts.exact, parts.zeros, parts.gauss_newton = found.trace, found.zeros, True
    return replace(plan, curved=found.curved, kinked=found.kinked)


def _refine(parts: _Parts, tolerance: float, limit: int) -> tuple[float, float]:
    """Draw until the standard error is as wanted, each part as often as makes the sum of probes least."""
    terms: Sequence[_Sum] = parts.terms
    for term in terms:
        if term.term.size <= term.least:
            term.settle()
        else:
            term.draw(term.least)
    while True:
        value = parts.exact + sum(term.mean for term in terms)
        spreads = [term.spread for term in terms]
        se = math.sqrt(sum(s * s / max(term.probes, 1) for s, term in zip(spreads, terms, strict=True)))
        aim = (tolerance * value) ** 2
        if not se * se > aim or not math.isfinite(se):
            return value, se
        grown = False
        for spread, term in zip(spreads, terms, strict=True):
            wanted = spread * sum(spreads) / max(aim, 1e-300)
            count = int(min(1.05 * wanted + 1, _GROWTH * term.probes, limit)) - term.probes
            if not term.settled and min(wanted - term.probes, limit) >= term.term.size:
                term.settle()
                grown = True
            elif not term.settled and count > 0:
                term.draw(count)
                grown = True
        if not grown:
            return value, se


def _result(
    name: str, land: Landscape, plan: _Plan, parts: _Parts, tolerance: float, probes: int, seed: int, method: str
) -> Estimate:
    try:
        value, se = _refine(parts, tolerance, probes)
    except NoOutputs as error:
        raise InputError(
            f"expected a loss that is convex in the outputs on all examples, got one where {error}"
        ) from error
    if not math.isfinite(value + se):
        raise InputError(
            "expected finite second derivatives of the loss, got some that are not; look for a square root, a norm or "
            "a logarithm at zero, and for extreme weights"
        )
    findings = list(land.findings)
    rest = plan.coverage.rest
    if not plan.pointwise:
        findings.append(Finding.of("CURV823", f"loss {land.loss_name}"))
    elif rest and method != "hutchinson":
        findings.append(
            Finding.of("CURV821", f"{len(rest)} of {len(land.packing.names)}, the first {next(iter(rest))}")
        )
    if parts.zeros > _MANY_ZEROS and plan.kinked:
        findings.append(Finding.of("CURV822", f"{parts.zeros:.1%} of those that layers give"))
    if se > tolerance * abs(value):
        findings.append(Finding.of("CURV811", f"{se:.3g} at {value:.4g} after {probes} probes"))
    used = [f"{'exact' if term.settled else 'sampled'} {term.term.name}" for term in parts.terms]
    how = " + ".join((["exact Gauss-Newton"] if parts.gauss_newton else []) + used) if used else "exact"
    diagnostics = {
        "method": how,
        "conditions": plan.conditions(),
        "layers": [name for layer in plan.coverage.layers for name in layer.names],
        "rest": dict(rest),
        "parts": {
            **({"gauss_newton": parts.exact} if parts.gauss_newton else {}),
            **{term.term.name: term.mean for term in parts.terms},
        },
        "probes": {term.term.name: term.probes for term in parts.terms},
        "zeros": parts.zeros,
    }
    spec = {"tolerance": tolerance, "method": method, "probes": probes, "n": land.n, "dim": land.dim}
    return Estimate(name, value, se, 0.0, tuple(findings), spec, seed, diagnostics=diagnostics, provenance=provenance())


def _check(tolerance: float, probes: int) -> None:
    if not isinstance(tolerance, int | float) or isinstance(tolerance, bool) or not 0 < tolerance < math.inf:
        raise InputError(f"expected tolerance as a positive relative error, got {tolerance!r}; for example 0.01")
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < _FREEDOM + 1:
        raise InputError(f"expected probes as a whole number of at least {_FREEDOM + 1}, got {probes!r}")
