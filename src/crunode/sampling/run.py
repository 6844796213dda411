"""`sample()`: many chains from a posterior, in memory or into a run folder that resumes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core.execute import Executor, Serial
from crunode.core.logs import logging_to
from crunode.core.result import Draws, Finding, provenance
from crunode.errors import EstimationError, InputError
from crunode.sampling.exchange import exchange_findings
from crunode.sampling.group import Group, Observable, Outcome, run_group
from crunode.sampling.kernel import Kernel
from crunode.sampling.layout import check_memory, choose_layout, free_memory, split_chains, step_memory
from crunode.sampling.posterior import Posterior
from crunode.sampling.stepping import steps_of
from crunode.sampling.tuning import Plan, kernel_spec, tune
from crunode.store.belongs import refuse
from crunode.store.documents import diff
from crunode.store.run_store import RunStore

__all__ = ["check_settings", "kernel_findings", "sample"]

_KEEP = ("positions", "pointwise")


def sample(
    posterior: Posterior,
    kernel: Kernel | None = None,
    *,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    budget: int | None = None,
    seed: int = 0,
    keep: Sequence[str] = (),
    observe: Mapping[str, Observable] | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    layout: str | None = None,
    compiled: bool = False,
    checks: bool = False,
) -> Draws:
    """Draw from `posterior`; whatever is left out is tuned, and what was chosen is in the result's `spec`.

    Args:
        posterior: The target; several levels of nbeta are sampled side by side.
        kernel: SGLD, PSGLD, SGHMC, SGNHT, MALA or HMC, or Exchange around one of the last two; None to have one chosen.
        chains: Chains at each level of nbeta.
        draws: Kept draws per chain.
        warmup: Steps before them; recorded apart.
        budget: The most gradients to spend (one chain, one batch), pilot chains included; None for enough.
        seed: All randomness comes from it. The same seed gives the same draws on any layout or executor.
        keep: "positions" and "pointwise" keep the parameter vectors and the loss of every example.
        observe: Functions of (landscape, w) to record at every kept draw.
        store: A run folder. If it holds this run already, sampling goes on where it stopped.
        executor: Where groups of chains run; `Serial()` by default.
        layout: "batched" or "sequential"; None (best) chooses by the sizes of model and data.
        compiled: Compile gradients with `torch.compile`; pays on long runs and on GPUs.
        checks: Run chains beside the ladder too, that show how far an estimate depends on precision and step.

    Returns:
        The draws.

    Raises:
        InputError: A setting is not valid.
        EstimationError: A chain turned non-finite; `partial` holds the draws until then.
        StoreMismatch: The folder holds another run; the message shows the difference.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> from crunode.sampling.metropolis import HMC
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> draws = sample(Posterior(land, nbeta="wbic"), HMC(step=1e-3, leaps=4), chains=2, draws=20, warmup=10)
        >>> draws.arrays["excess"].shape
        (2, 20)
    """
    counts = {"chains": chains, "draws": draws, "warmup": warmup, "budget": budget}
    check_settings(posterior, kernel, counts, seed, keep, layout)
    executor = executor or Serial()
    asked = {
        "landscape": posterior.landscape.fingerprint(),
        "nbeta": list(posterior.nbeta) if isinstance(posterior.nbeta, tuple) else posterior.nbeta,
        "prior": posterior.prior_spec(),
        "kernel": None if kernel is None else kernel_spec(kernel),
        "chains": chains,
        "draws": draws,
        "warmup": warmup,
        "budget": budget,
        "seed": seed,
        "keep": sorted(keep),
        "observe": sorted(observe or ()),
        "checks": checks,
    }
    plan = _stored_plan(store, asked, kernel)
    if plan is None:
        plan = tune(posterior, kernel, chains=chains, draws=draws, warmup=warmup, budget=budget, seed=seed)
    plan = plan if checks else replace(plan, checks=())
    posterior, kernel = plan.apply(posterior, kernel)
    rungs = [*posterior.rungs(_steps(kernel, len(posterior.levels))), *plan.checks]
    ids = range(plan.chains * len(rungs))
    per_chain = [rung for rung in rungs for _ in range(plan.chains)]
    nbeta = [rung.nbeta for rung in per_chain]
    land = posterior.landscape
    size = {"n": land.n, "dim": land.dim, "rows": land.data.rows}
    roles = [rung.role for rung in per_chain]
    spec = {"asked": asked, **size, **plan.spec(), "nbeta_per_chain": nbeta, "role_per_chain": roles}
    if kernel.ladder:
        groups, chosen = _ladders(posterior, plan.chains)
    else:
        groups, chosen = _groups(posterior, kernel, list(ids), layout)
    handle = None
    if store is not None:
        handle = RunStore.create(store, spec=spec, groups=groups, seed=seed, provenance=provenance())
        if handle.groups != groups:
            groups = handle.groups
            stored = "batched" if max(map(len, groups)) > 1 else "sequential"
            chosen = {"layout": stored, "why": "the run folder was begun so"}
    jobs = [
        Group(
            posterior,
            kernel,
            index,
            members,
            [per_chain[c] for c in members],
            plan.warmup,
            plan.draws,
            seed,
            "batched" if len(members) > 1 else "sequential",
            tuple(keep),
            observe or {},
            handle,
            compiled,
        )
        for index, members in enumerate(groups)
    ]
    most = max(map(len, groups))
    spec |= {"layout": chosen, "memory": step_memory(land, most, kernel.batch)}
    if handle is None:
        return _collect(list(executor.map(run_group, jobs)), groups, spec, plan, None)
    if handle.status == "complete":
        return replace(handle.draws(), spec=spec)
    # An error lets go of the folder, so that the run can be continued while its traceback lives on.
    with handle, logging_to(handle.folder):
        return _collect(list(executor.map(run_group, jobs)), groups, spec, plan, handle)


def _steps(kernel: Kernel, levels: int) -> tuple[float, ...]:
    if isinstance(kernel.step, tuple) and len(kernel.step) != levels:
        raise InputError(f"expected one step for each of {levels} levels of nbeta, got {len(kernel.step)}")
    return steps_of(kernel, levels)


def check_settings(
    posterior: Posterior,
    kernel: Kernel | None,
    counts: Mapping[str, Any],
    seed: int,
    keep: Sequence[str],
    layout: str | None = None,
) -> None:
    """Refuse what no run can be made of.

    Args:
        posterior: The target.
        kernel: The kernel; None to have one chosen.
        counts: Chains, draws, warmup and budget by name; None for those to be chosen.
        seed: The run's seed.
        keep: Names of arrays to keep.
        layout: The layout; None to have it chosen.

    Raises:
        InputError: A setting is not valid.

    Example:
        >>> import torch
        >>> from crunode.core.landscape import Landscape
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
        >>> check_settings(Posterior(land), None, {"draws": 0}, 0, ())
        Traceback (most recent call last):
        crunode.errors.InputError: expected draws as a whole number from 1 up, got 0
    """
    for name, value in counts.items():
        least = 0 if name == "warmup" else 1
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    if layout not in (None, "batched", "sequential"):
        raise InputError(f"expected layout as 'batched' or 'sequential', got {layout!r}")
    unknown = [name for name in keep if name not in _KEEP]
    if unknown:
        raise InputError(f"expected keep among {_KEEP}, got {unknown}")
    if "pointwise" in keep and not posterior.landscape.pointwise:
        posterior.landscape.losses()  # raises, saying what a loss must return
    if kernel is not None and kernel.ladder:
        _check_exchange(posterior, layout)


def _stored_plan(store: Any, asked: Mapping[str, Any], kernel: Kernel | None) -> Plan | None:
    """The plan of a run folder that exists, so that a resumed run goes on with the very same settings."""
    if store is None or not (Path(store) / "manifest.json").exists():
        return None
    spec = RunStore.open(store).spec
    refuse(store, "this run", diff(spec.get("asked", {}), asked))
    return Plan.from_spec(spec, kernel)


def _groups(
    posterior: Posterior, kernel: Kernel, ids: list[int], layout: str | None
) -> tuple[list[list[int]], dict[str, str]]:
    why = "asked for"
    check_memory(posterior.landscape, kernel.batch)
    if layout is None:
        layout, why = choose_layout(posterior.landscape, len(ids), kernel.batch)
    if layout == "sequential":
        groups = [[c] for c in ids]
    else:
        if not posterior.landscape.data.stacked:
            raise InputError("expected data that stacks for layout='batched', got batches of unlike shapes")
        groups = split_chains(posterior.landscape, ids, kernel.batch)
    return groups, {"layout": layout, "why": why}


def _check_exchange(posterior: Posterior, layout: str | None) -> None:
    if posterior.nbeta is not None and len(posterior.levels) < 2:
        raise InputError(
            f"expected two or more levels of nbeta for Exchange, got {posterior.nbeta!r}; give a tuple from hot to "
            "cold, as crunode.ladder finds it, or sample with the inner kernel alone"
        )
    if layout == "sequential":
        raise InputError(
            "expected layout='batched' for Exchange, whose rungs run side by side, got 'sequential'; leave it out"
        )
    if not posterior.landscape.data.stacked:
        raise InputError("expected data that stacks for Exchange, got batches of unlike shapes")


def _ladders(posterior: Posterior, chains: int) -> tuple[list[list[int]], dict[str, str]]:
    """Groups of whole ladders: chains may be apart, the rungs of a chain may not."""
    land, rungs = posterior.landscape, len(posterior.levels)
    need, free = step_memory(land, rungs, None), free_memory(land.device)
    if need > free:
        raise InputError(
            f"expected a step of {rungs} rungs to fit the memory of {land.device}, got about {need / 1e9:.3g} GB "
            f"against {free / 1e9:.3g} GB free; give fewer levels of nbeta, or use another device"
        )
    parts = min(len(split_chains(land, range(chains * rungs), None)), chains)
    ends = [chains * k // parts for k in range(parts + 1)]
    groups = [[r * chains + c for r in range(rungs) for c in range(*part)] for part in itertools.pairwise(ends)]
    return groups, {"layout": "batched", "why": "rungs of a ladder run side by side"}


def _collect(
    outcomes: list[Outcome], groups: list[list[int]], spec: dict[str, Any], plan: Plan, handle: RunStore | None
) -> Draws:
    nbeta = np.array(spec["nbeta_per_chain"])
    if handle is None:
        arrays, warmup = (
            _merge(parts, groups) for parts in zip(*((o.arrays, o.warmup) for o in outcomes), strict=True)
        )
    else:
        arrays, warmup = handle.read()
    failed = dict(pair for outcome in outcomes for pair in outcome.failed)
    for source in (arrays, warmup):
        # A group that ended non-finite in an earlier call has nothing left to run, and reports nothing.
        bad = ~np.isfinite(source["excess"]).all(1) if "excess" in source else np.zeros(0, bool)
        failed = {**{int(chain): plan.warmup + plan.draws for chain in np.flatnonzero(bad)}, **failed}
    findings: tuple[Finding, ...] = plan.findings
    if failed:
        chains = ", ".join(map(str, sorted(failed)))
        findings += (Finding.of("MC204", f"chain {chains} of {len(nbeta)} by step {min(failed.values())}"),)
    arrays = arrays or {"excess": np.full((len(nbeta), 0), np.nan)}
    draws = Draws(arrays, warmup, nbeta, spec, findings, provenance())
    if not failed:
        findings += kernel_findings(plan.kernel, draws)
        draws = replace(draws, findings=findings)
    if handle is not None:
        handle.finish("failed" if failed else "complete", findings=findings)
    if failed:
        raise EstimationError(f"{findings[-1]}", partial=draws)
    return draws


def kernel_findings(kernel: Kernel, draws: Draws) -> tuple[Finding, ...]:
    """What a kernel has to say about draws it made; any kernel may have a method `findings(arrays)`.

    Example:
        >>> from crunode.sampling.metropolis import HMC
        >>> kernel_findings(HMC(), Draws({"excess": np.zeros((2, 5))}, {}, np.ones(2), {}))
        ()
    """
    own = kernel.core.findings(draws.arrays)
    return (*exchange_findings(draws), *own) if kernel.ladder else own


def _merge(parts: Sequence[dict[str, np.ndarray]], groups: list[list[int]]) -> dict[str, np.ndarray]:
    """Join groups along the chain axis, in the order of the chains; after a failure, as far as all of them got."""
    if not parts or any(not part for part in parts):
        return {}
    order = np.argsort([chain for group in groups for chain in group])
    shortest = {name: min(part[name].shape[1] for part in parts) for name in parts[0]}
    joined = {name: np.concatenate([part[name][:, : shortest[name]] for part in parts]) for name in parts[0]}
    return joined if (order == np.arange(len(order))).all() else {name: a[order] for name, a in joined.items()}
