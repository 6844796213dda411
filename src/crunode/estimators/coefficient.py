"""`llc()`: the local learning coefficient of a model at its present weights."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from crunode.core.deadline import working_until
from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import DiagnosticWarning, EstimationError, InputError
from crunode.estimators.bounds import rank_finding
from crunode.estimators.cooling import cooled_estimate
from crunode.estimators.judgement import estimate_from, failed_estimate, valley_estimate
from crunode.estimators.limits import Limit, valley_limit
from crunode.estimators.polish import Polish, center_findings, check_length, polished
from crunode.estimators.warm_start import held_settings
from crunode.sampling.labels import Labels, choose_labels
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import check_settings, sample
from crunode.sampling.thinning import thinned
from crunode.sampling.tuning import kernel_spec
from crunode.store.alone import check_alone, keep_alone, kept_alone
from crunode.store.documents import plain
from crunode.store.run_store import save_estimate

__all__ = ["llc"]

_TARGETS = ("local", "basin")
# Losses of a posterior with coefficient λ scatter by λ^-1/2 of their mean, so that few draws tell a large one. Chains
# beside a limit that is as good as the answer shall not cost more than it.
_LARGE, _BUDGET_BESIDE = 100.0, 10_000
# Pilots and the shortest chains that say something take this many gradients.
_SHORTEST = 8000
# In more dimensions than this they do not get around in a valley, and a longer run of them would say no more.
_SMALL = 500
# And in more than this a single chain is cooled down instead.
_HUGE = 200_000
_POLISH = 1000


def llc(
    model: nn.Module | Landscape | Draws,
    data: Any = None,
    loss: Any = None,
    *,
    target: str = "local",
    nbeta: float | str | tuple[float, ...] | None = None,
    precision: float | None = None,
    kernel: Any = None,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    layout: str | None = None,
    labels: str | None = None,
    polish: bool | int = False,
    on_failure: str = "raise",
    **landscape_options: Any,
) -> Estimate:
    """The local learning coefficient λ of a model at its present weights w*, with its error.

    At one inverse temperature the estimator is λ̂ = nβ (E[L_n(w)] − L_n(w*)), the expectation being over the posterior
    exp(−nβ L_n(w) − (γ/2)‖w − w*‖²). By default it is taken on a ladder of nβ and extrapolated (see
    `crunode.estimators.extrapolate`), which removes most of the bias of a finite temperature and of noisy labels. Give
    nbeta="wbic" for the plain estimator at nβ = n / log n.

    Without label noise the loss is least on a whole valley {w : f(w) = f(w*)}, along which chains travel slowly. Half
    the rank of the Jacobian at its smooth points near w* is then a limit that λ cannot exceed and often equals; it
    takes part in the extrapolation, or is the answer where chains do not get around (see
    `crunode.estimators.limits.valley_limit`). In networks of more than 200 000 parameters a single chain is cooled down
    instead (see `crunode.estimators.cooling`).

    Args:
        model: A module (with `data` and `loss`), a `Landscape`, or `Draws` to be evaluated.
        data: Data for a module; see `Landscape`.
        loss: Loss for a module; see `Landscape`.
        target: "local" asks for the coefficient at w* itself, "basin" for the least one in the region that the weights
            can reach without the loss rising, which chains with a weak prior drift to.
        nbeta: A number, a tuple (ladder), "wbic", or None to choose a ladder.
        precision: Localisation γ; None to choose it from the size of the weights.
        kernel: The sampler; None to choose one. Without label noise its chains are weighed against the valley too,
            unless a budget is given.
        chains: Chains per level of nbeta.
        draws: Kept draws per chain.
        warmup: Steps before them, which enter no estimate.
        budget: The most gradients to spend (one chain, one batch), those of pilot chains and for the valley's rank
            included; None for as many as a small error takes.
        seed: All randomness comes from it.
        store: A run folder to write to, or to resume. The answer does not depend on it.
        executor: Where chains run. The answer does not depend on it.
        layout: How chains are laid out, by default as the sizes of model and data suggest; it changes rounding only.
        labels: "given", or "own" for the model's own predictions at w*, which are free of label noise; None takes its
            own where w* may be the truth behind noisy ones and nbeta is not given (see `choose_labels`).
        polish: True moves the weights to a minimum near w* first, by L-BFGS on all data, and estimates there; a number
            is the most gradients to take for it (1000 else, and at most half the budget). The model itself is not
            changed. `diagnostics["polish"]` tells how far the weights moved and how much the loss fell.
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
    if target not in _TARGETS:
        raise InputError(f"expected target as 'local' or 'basin', got {target!r}")
    if not isinstance(polish, int) or polish < 0:
        raise InputError(f"expected polish as True, False or a number of gradients, got {polish!r}")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
        raise InputError(f"expected budget as a positive whole number of gradients, got {budget!r}")
    if isinstance(model, Draws):
        if polish:
            raise InputError("expected polish=True with a model or a Landscape, got Draws, whose center is behind them")
        if isinstance(model.prior, Mapping) and "density" in model.prior:
            raise InputError(
                f"expected draws with a Gaussian prior, which holds chains near the weights, got the density "
                f"{model.prior['density']!r}; rlct takes draws with any prior on a ladder of nbeta"
            )
        return _announce(estimate_from(model))
    land = _landscape(model, data, loss, landscape_options)
    counts = {"chains": chains, "draws": draws, "warmup": warmup, "budget": budget}
    check_settings(Posterior(land, nbeta, Gaussian(precision)), kernel, counts, seed, (), layout)
    question: dict[str, Any] = plain(
        {
            "landscape": land.fingerprint(),
            "nbeta": nbeta,
            "precision": precision,
            "kernel": None if kernel is None else kernel_spec(kernel),
            **counts,
            "seed": seed,
            "target": target,
            "labels": labels,
            "polish": polish,
        }
    )
    if store is not None and (kept := kept_alone(store, question)) is not None:
        return _announce(kept)
    moved: Polish | None = None
    if polish:
        most = _POLISH if polish is True else polish
        land, moved = polished(land, steps=most if budget is None else max(min(most, budget // 2), 1), seed=seed)
    chosen = choose_labels(land, "given" if labels is None and nbeta is not None else labels, kernel=kernel, seed=seed)
    if labels == "own" and chosen.kind != "own":
        raise InputError(f"expected a loss of (outputs, target) to take own labels with, got {land.loss_name}")
    land = chosen.landscape
    automatic = land.noise_free and nbeta is None and kernel is None
    # With a kernel that was asked for, the valley is looked at too, but takes nothing from a budget that was.
    beside = land.noise_free and nbeta is None and kernel is not None and budget is None and land.dim <= _HUGE
    asked = {"labels": chosen.summary(), "target": target}
    alone: Estimate | None = None
    limit: Limit | None = None
    free = automatic and not _wants_chains(chains, draws, warmup, precision)
    until = getattr(executor, "until", None)
    if free and land.dim > _HUGE and land.data.stacked:
        if store is not None:
            check_alone(store, question)
        rest = budget if budget is None or moved is None else max(budget - moved.gradients, 1)
        with working_until(until):
            alone = cooled_estimate(land, target, seed=seed, budget=rest)
    elif automatic or beside:
        with working_until(until):
            limit = valley_limit(land, target, seed=seed)
        if free and limit is not None and (limit.smooth or (land.dim > _SMALL and _too_little(budget, limit, moved))):
            alone = valley_estimate(land, limit, seed)
    if alone is not None:
        estimate = replace(alone, diagnostics={**alone.diagnostics, **asked})
        if moved is not None:
            estimate = _with_descent(estimate, moved, land.data.rows, "polish")
        estimate = _answering(question, _with_labels(estimate, chosen))
        if store is not None:
            check_alone(store, question)
            keep_alone(store, estimate)
        return _announce(estimate)
    part = thinned(land, seed=seed) if automatic else None
    land = land if part is None else part
    posterior = Posterior(land, nbeta, Gaussian(precision))
    # Own predictions are the least loss there is; other centers are looked at, and so is one that was not polished.
    looks = not land.noise_free and (moved is None or not moved.converged)
    before = (0 if limit is None else limit.gradients) + (0 if moved is None else moved.gradients)
    before += check_length(budget, land.data.rows) if looks and budget is not None else 0
    rest = budget if budget is None else max(budget - before, 1)
    options: dict[str, Any] = {**counts, "budget": rest}
    if automatic and limit is not None and all(value is None for value in options.values()):
        options = _lengths_beside(limit, land.dim)
    options["seed"] = seed
    try:
        drawn = sample(posterior, kernel, store=store, executor=executor, layout=layout, checks=True, **options)
    except EstimationError as error:
        if not isinstance(error.partial, Draws):
            raise
        failed = _answering(question, failed_estimate(error.partial, land.findings))
        if moved is not None:
            failed = _with_descent(failed, moved, chosen.landscape.data.rows, "polish")
        if store is not None:
            save_estimate(store, failed)
        if on_failure == "return":
            return failed
        raise EstimationError(str(error), partial=failed) from error
    if limit is not None:
        drawn = replace(drawn, spec={**drawn.spec, "limit": limit.summary()})
    estimate = estimate_from(drawn, land.findings)
    estimate = replace(estimate, diagnostics={**estimate.diagnostics, **asked})
    if moved is not None:
        estimate = _with_descent(estimate, moved, chosen.landscape.data.rows, "polish")
    steps = check_length(budget, land.data.rows, estimate.diagnostics.get("cost", {}).get("examples", 0.0))
    if looks and steps > 0 and math.isfinite(estimate.value):
        estimate, look = center_findings(land, estimate, steps=steps, seed=seed)
        estimate = _with_descent(estimate, look, land.data.rows, "center")
    estimate = _with_labels(estimate, chosen)
    if part is not None:
        estimate = estimate.with_findings(Finding.of("DATA505", f"{part.data.rows} of {chosen.landscape.data.rows}"))
    below = None if limit is not None else rank_finding(land, estimate)
    if below is not None:
        estimate = estimate.with_findings(below)
    estimate = _answering(question, estimate)
    if store is not None:
        save_estimate(store, estimate)
    return _announce(estimate)


llc.held_settings = held_settings  # type: ignore[attr-defined]  # read by trackers of training


def _answering(question: dict[str, Any], estimate: Estimate) -> Estimate:
    """The estimate with what was asked for in its settings."""
    return replace(estimate, spec={**estimate.spec, "question": question})


def _with_descent(estimate: Estimate, way: Polish, rows: int, name: str) -> Estimate:
    """The estimate with a descent on record, in its costs too, and that of a polish in its findings."""
    seen = {**estimate.diagnostics, name: way.summary()}
    if "cost" in seen:
        old = seen["cost"]
        examples = old["examples"] + way.gradients * rows
        seen["cost"] = {"gradients": old["gradients"] + way.gradients, "examples": float(examples)}
    ended = way.finding() if name == "polish" else None
    estimate = replace(estimate, diagnostics=seen)
    return estimate if ended is None else estimate.with_findings(ended)


def _wants_chains(*settings: Any) -> bool:
    """Whether something was given that is about chains: with nothing, a smooth point needs none."""
    return any(value is not None for value in settings)


def _too_little(budget: int | None, limit: Limit, moved: Polish | None) -> bool:
    """Whether the budget, after the valley, is not enough for the shortest chains."""
    spent = limit.gradients + (0 if moved is None else moved.gradients)
    return budget is not None and budget - spent < _SHORTEST


def _with_labels(estimate: Estimate, chosen: Labels) -> Estimate:
    if chosen.ratio is None or chosen.kind != "own":
        return estimate
    return estimate.with_findings(Finding.of("DATA504", chosen.reason))


def _lengths_beside(limit: Limit, dim: int) -> dict[str, Any]:
    """Few chains where the valley gives the answer, or where each draw tells a large coefficient well."""
    if limit.smooth or limit.value >= _LARGE or dim > _SMALL:
        return {"chains": 2, "draws": None, "warmup": None, "budget": _BUDGET_BESIDE}
    draws = int(min(max(100 * _LARGE / limit.value, 100), 500))
    return {"chains": None, "draws": draws, "warmup": 100, "budget": None}


def _landscape(model: Any, data: Any, loss: Any, options: dict[str, Any]) -> Landscape:
    if isinstance(model, Landscape):
        if data is not None or loss is not None or options:
            raise InputError("expected no data, loss or landscape options beside a Landscape; it has its own")
        return model
    if not isinstance(model, nn.Module):
        raise InputError(
            f"expected a torch.nn.Module with data and loss, a Landscape or Draws, got {type(model).__name__}"
        )
    if data is None or loss is None:
        raise InputError("expected data= and loss= with a module, as in llc(model, loader, loss=F.cross_entropy)")
    return Landscape(model, data, loss, **options)


def _announce(estimate: Estimate) -> Estimate:
    doubts = [f for f in estimate.findings if f.severity != "info"]
    if doubts:
        warnings.warn("; ".join(str(f) for f in doubts), DiagnosticWarning, stacklevel=3)
    return estimate
