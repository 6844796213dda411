"""`llc()`: the local learning coefficient of a model at its present weights."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, Finding
from crunode.core.store import save_estimate
from crunode.errors import DiagnosticWarning, EstimationError, InputError
from crunode.estimators.bounds import rank_finding
from crunode.estimators.extrapolate import Extrapolation, extrapolate, growth
from crunode.sampling.diagnostics import drift, ess, mcse_mean, split_rhat
from crunode.sampling.labels import choose_labels
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.thinning import thinned

__all__ = ["llc"]

_RHAT_LIMIT = 1.05
_ESS_LIMIT = 100
_DRIFT_LIMIT = 4.0
_GROWTH_LIMIT = 1.15


def llc(
    target: nn.Module | Landscape | Draws,
    data: Any = None,
    loss: Any = None,
    *,
    nbeta: float | str | tuple[float, ...] | None = None,
    precision: float | None = None,
    kernel: Any = None,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    layout: str | None = None,
    labels: str | None = None,
    on_failure: str = "raise",
    **landscape_options: Any,
) -> Estimate:
    """The local learning coefficient λ of a model at its present weights w*, with its error.

    At one inverse temperature the estimator is λ̂ = nβ (E[L_n(w)] − L_n(w*)), the expectation being over the posterior
    exp(−nβ L_n(w) − (γ/2)‖w − w*‖²). By default it is taken on a ladder of nβ and extrapolated (see
    `crunode.estimators.extrapolate`), which removes most of the bias of a finite temperature and of noisy labels. Give
    nbeta="wbic" for the plain estimator at nβ = n / log n.

    Args:
        target: A module (with `data` and `loss`), a `Landscape`, or `Draws` to be evaluated.
        data: Data for a module; see `Landscape`.
        loss: Loss for a module; see `Landscape`.
        nbeta: A number, a tuple (ladder), "wbic", or None to choose a ladder.
        precision: Localisation γ; None to choose it from the size of the weights.
        kernel: The sampler; None to choose one.
        chains: Chains per level of nbeta.
        draws: Kept draws per chain.
        warmup: Steps before them, which enter no estimate.
        seed: All randomness comes from it.
        store: A run folder to write to, or to resume.
        executor: Where chains run.
        layout: How chains are laid out; None (best) chooses.
        labels: "given", or "own" for the model's own predictions at w*, which are free of label noise; None takes its
            own where w* may be the truth behind noisy ones and nbeta is not given (see `choose_labels`).
        on_failure: "raise", or "return" for an estimate that is not ok when a chain diverges.
        landscape_options: Passed to `Landscape`: n, params, device.

    Returns:
        The estimate: value, Monte-Carlo error, systematic error, findings and all settings.

    Raises:
        InputError: Something about model, data or settings is wrong.
        EstimationError: A chain diverged (its `partial` holds an estimate that is not ok).

    Example:
        >>> import torch
        >>> land = Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2))
        >>> est = llc(land, nbeta=1e4, chains=16, draws=100, seed=0)
        >>> 0.2 < est.value < 0.6
        True

    References:
        Lau et al. 2023; Watanabe 2013.
    """
    if on_failure not in ("raise", "return"):
        raise InputError(f"expected on_failure as 'raise' or 'return', got {on_failure!r}")
    if labels not in (None, "given", "own"):
        raise InputError(f"expected labels as 'given' or 'own', got {labels!r}; leave it out to have it chosen")
    if isinstance(target, Draws):
        return _announce(_estimate(target))
    land = _landscape(target, data, loss, landscape_options)
    chosen = choose_labels(land, "given" if labels is None and nbeta is not None else labels, kernel=kernel, seed=seed)
    if labels == "own" and chosen.kind != "own":
        raise InputError(f"expected a loss of (outputs, target) to take own labels with, got {land.loss_name}")
    land = chosen.landscape
    part = thinned(land, seed=seed) if chosen.noise_free and nbeta is None and kernel is None else None
    land = land if part is None else part
    posterior = Posterior(land, nbeta, Gaussian(precision))
    options: dict[str, Any] = {"chains": chains, "draws": draws, "warmup": warmup, "seed": seed}
    try:
        drawn = sample(posterior, kernel, store=store, executor=executor, layout=layout, **options)
    except EstimationError as error:
        if not isinstance(error.partial, Draws):
            raise
        failed = _failed(error.partial, land.findings)
        if store is not None:
            save_estimate(store, failed)
        if on_failure == "return":
            return failed
        raise EstimationError(str(error), partial=failed) from error
    estimate = _estimate(drawn, land.findings)
    estimate = replace(estimate, diagnostics={**estimate.diagnostics, "labels": chosen.summary()})
    if chosen.ratio is not None and chosen.kind == "own":
        estimate = estimate.with_findings(Finding.of("DATA504", chosen.reason))
    if part is not None:
        estimate = estimate.with_findings(Finding.of("DATA505", f"{part.data.rows} of {chosen.landscape.data.rows}"))
    below = rank_finding(land, estimate)
    if below is not None:
        estimate = estimate.with_findings(below)
    if store is not None:
        save_estimate(store, estimate)
    return _announce(estimate)


def _landscape(target: Any, data: Any, loss: Any, options: dict[str, Any]) -> Landscape:
    if isinstance(target, Landscape):
        if data is not None or loss is not None or options:
            raise InputError("expected no data, loss or landscape options beside a Landscape; it has its own")
        return target
    if not isinstance(target, nn.Module):
        raise InputError(
            f"expected a torch.nn.Module with data and loss, a Landscape or Draws, got {type(target).__name__}"
        )
    if data is None or loss is None:
        raise InputError("expected data= and loss= with a module, as in llc(model, loader, loss=F.cross_entropy)")
    return Landscape(target, data, loss, **options)


def _announce(estimate: Estimate) -> Estimate:
    doubts = [f for f in estimate.findings if f.severity != "info"]
    if doubts:
        warnings.warn("; ".join(str(f) for f in doubts), DiagnosticWarning, stacklevel=3)
    return estimate


def _failed(draws: Draws, findings: tuple[Finding, ...]) -> Estimate:
    return Estimate(
        "llc",
        math.nan,
        se=math.nan,
        systematic=math.nan,
        findings=(*findings, *draws.findings),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        provenance=draws.provenance,
        draws=draws,
    )


def _estimate(draws: Draws, findings: tuple[Finding, ...] = ()) -> Estimate:
    """Estimate, errors and verdict from draws alone."""
    if not np.isfinite(draws.arrays["excess"]).all() or draws.draws == 0:
        return _failed(draws, findings)
    levels = draws.levels()
    rows = [_level(draws, t) for t in levels]
    n, dim, measures = draws.spec["n"], draws.spec["dim"], draws.spec["measures"]
    kappa = measures.get("label_noise")
    noisy = kappa is None or kappa >= 0.25
    terms: dict[str, float] = {}
    wbic = n / math.log(max(n, 3))
    nearest = min(rows, key=lambda r: abs(math.log(r["nbeta"] / wbic)))
    seen: list[Finding] = []
    fit: Extrapolation | None = None
    if len(levels) >= 3:
        # Where chains still spread along the flat directions, their losses are known less well than they scatter.
        errors = [r["se"] * float(np.clip(np.nan_to_num(r["spread_rhat"], nan=1.0), 1.0, 10.0)) for r in rows]
        fit = extrapolate(levels, [r["value"] for r in rows], errors, n, noisy)
        value, se = fit.value, fit.se
        terms["temperature"] = fit.spread
        if noisy and fit.noise_slope > 0:
            terms["label_noise"] = math.sqrt((kappa or 1.0) * levels[0] / n * max(value, 0.0) / 2)
        # What label noise takes away is put back before asking whether the rest settles.
        settled = [r["value"] + fit.noise_slope * r["nbeta"] / n for r in rows]
        if growth(levels, settled) > _GROWTH_LIMIT and np.any(draws.arrays["excess"]):
            here = rows.index(nearest)
            value, se = nearest["value"], nearest["se"]
            terms["temperature"] = abs(settled[min(here + 1, len(rows) - 1)] - settled[max(here - 1, 0)]) / 2
            ends = f"{settled[0]:.3g} at nbeta {levels[0]:.3g} but {settled[-1]:.3g} at {levels[-1]:.3g}"
            seen.append(Finding.of("LLC103", ends))
    else:
        value, se = nearest["value"], nearest["se"]
        # λ̂ − Var(nβ L) is the derivative of λ̂ in log nβ: how far the answer moves when nβ grows by a factor e.
        # Minibatches add their own variance, so it is only known where the loss is that of all data.
        change = abs(nearest["value"] - nearest["variance"])
        known = "accept" in nearest and change > 2 * nearest["variance_se"]
        terms["temperature"] = change if known else 0.0
    terms |= _step_terms(draws, nearest["nbeta"])
    total = math.hypot(*terms.values()) if terms else 0.0
    seen += _findings(draws, rows, nearest, value, math.hypot(se, total), terms, dim)
    return Estimate(
        "llc",
        float(value),
        se=float(se),
        systematic=float(total),
        findings=(*findings, *draws.findings, *seen),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "levels": rows,
            "rhat": max(r["rhat"] for r in rows),
            "ess": min(r["ess"] for r in rows),
            "plain": {"nbeta": nearest["nbeta"], "value": nearest["value"], "se": nearest["se"]},
            "laws": None if fit is None else fit.weights,
        },
        terms=terms,
        provenance=draws.provenance,
        draws=draws,
    )


def _level(draws: Draws, nbeta: float) -> dict[str, float]:
    arrays = draws.at(nbeta)
    scaled = nbeta * arrays["excess"].astype(np.float64)
    square = (scaled - scaled.mean()) ** 2
    row = {
        "nbeta": nbeta,
        "value": float(scaled.mean()),
        "se": mcse_mean(scaled),
        "variance": float(scaled.var()),
        "variance_se": mcse_mean(square),
        "rhat": split_rhat(scaled),
        "spread_rhat": split_rhat(arrays["distance2"].astype(np.float64)),
        "ess": ess(scaled),
        "drift": drift(scaled),
        "lowest": float(scaled.min()),
    }
    if "accept" in arrays:
        row["accept"] = float(arrays["accept"].mean())
    return row


def _step_terms(draws: Draws, nbeta: float) -> dict[str, float]:
    """Predicted excess from the finite step and from minibatch noise of an unadjusted Langevin kernel.

    Around a quadratic minimum a step ε raises λ̂ by ε nβ Tr(H)/8, and minibatches of B examples by ε (nβ)² Tr(Σ)/(8B),
    Σ being the covariance of single-example gradients.
    """
    measures, kernel, n = draws.spec["measures"], draws.spec["kernel"], draws.spec["n"]
    if "gradient_noise" not in measures:
        return {}
    steps = kernel["step"] if isinstance(kernel["step"], list) else [kernel["step"]] * len(draws.spec["nbeta"])
    step = steps[draws.spec["nbeta"].index(nbeta)]
    batch = kernel["batch"]
    heat = step * nbeta**2 * measures["gradient_noise"] / (8 * batch) if batch < n else 0.0
    return {"discretisation": step * nbeta * abs(measures["curvature_trace"]) / 8, "heating": heat}


def _findings(
    draws: Draws,
    rows: list[dict[str, float]],
    nearest: dict[str, float],
    value: float,
    error: float,
    terms: dict[str, float],
    dim: int,
) -> Iterator[Finding]:
    if not np.any(draws.arrays["excess"]):
        yield Finding.of("LLC106", "the loss never left its value at the center")
        return
    if value < -2 * error:
        yield Finding.of("LLC101", f"{value:.3g} ± {error:.2g}")
    below = [r for r in rows if r["value"] < -2 * r["se"] and r["nbeta"] <= 1.01 * nearest["nbeta"]]
    if below:
        r = below[0]
        yield Finding.of("LLC102", f"nbeta times the mean excess loss is {r['value']:.3g} at nbeta {r['nbeta']:.3g}")
    if value - 2 * error > dim / 2:
        yield Finding.of("LLC104", f"{value:.3g} against d/2 = {dim / 2:g}")
    worst = max(rows, key=lambda r: r["rhat"] if math.isfinite(r["rhat"]) else math.inf)
    if not worst["rhat"] < _RHAT_LIMIT:
        yield Finding.of("MC201", f"R-hat {worst['rhat']:.3f} (limit {_RHAT_LIMIT}) at nbeta {worst['nbeta']:.3g}")
    few = min(rows, key=lambda r: r["ess"] if math.isfinite(r["ess"]) else 0.0)
    if not few["ess"] >= _ESS_LIMIT:
        yield Finding.of("MC202", f"{few['ess']:.0f} of {draws.draws} draws a chain at nbeta {few['nbeta']:.3g}")
    trend = max(rows, key=lambda r: abs(r["drift"]) if math.isfinite(r["drift"]) else 0.0)
    if abs(trend["drift"]) > _DRIFT_LIMIT:
        yield Finding.of("MC203", f"{trend['drift']:+.1f} standard errors at nbeta {trend['nbeta']:.3g}")
    stuck = [r for r in rows if r.get("accept", 1.0) < 0.2]
    if stuck:
        yield Finding.of("MC205", f"{stuck[0]['accept']:.2f} at nbeta {stuck[0]['nbeta']:.3g}")
    for code, name in (("MC301", "heating"), ("MC302", "discretisation")):
        if terms.get(name, 0.0) > 0.1 * abs(value):
            yield Finding.of(code, f"about {terms[name]:.2g} of {value:.3g}")
