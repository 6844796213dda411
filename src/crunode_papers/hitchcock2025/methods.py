"""Methods of the benchmark: `crunode.llc` and the baselines, each a function from a problem to a row.

The baselines are stochastic gradient Langevin dynamics at the settings that were published for random deep linear
networks (Lau et al. 2023), the same with an RMSprop preconditioner, and devinterp at its defaults
(`crunode_papers.hitchcock2025.peer`). Other problems take the step and length of the class nearest in size.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import torch

from crunode import (
    PSGLD,
    SGLD,
    CrunodeError,
    DiagnosticWarning,
    Draws,
    Estimate,
    Gaussian,
    InputError,
    Landscape,
    Posterior,
    llc,
    sample,
)
from crunode.sampling import mcse_mean, wbic_nbeta
from crunode_papers.hitchcock2025.peer import PeerAbsent, run_peer
from crunode_papers.hitchcock2025.problem import Problem
from crunode_papers.hitchcock2025.problems import CLASSES, nearest_class

__all__ = ["METHODS", "Method", "check_methods", "estimate_row", "gradient_cost"]

Method = Callable[..., dict[str, Any]]

_BATCH = 500
_PEER_BATCH = 256


def _crunode(problem: Problem, landscape: Landscape, seed: int, **options: Any) -> dict[str, Any]:
    """`llc` with nothing set but what the caller asks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        estimate = llc(landscape, seed=seed, on_failure="return", **options)
    return {
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "ok": estimate.ok,
        "findings": [finding.code for finding in estimate.findings],
        **gradient_cost(estimate),
        **{name: estimate.diagnostics[name] for name in ("levels", "valley") if "center_rank" in estimate.diagnostics},
    }


def _sgld(problem: Problem, landscape: Landscape, seed: int, *, kernel: Any = SGLD, **options: Any) -> dict[str, Any]:
    """One chain of `kernel` at nβ = n / log n, γ = 1 and the published step; its last tenth is kept.

    The published loss is the mean square over examples and outputs, 2/outputs times the one here, and the settings go
    with it; so nβ is scaled by that.
    """
    size = CLASSES.get(problem.kind) or nearest_class(problem.dim)
    steps = options.pop("steps", size.steps)
    step, batch = options.pop("step", size.step), min(options.pop("batch", _BATCH), landscape.data.rows)
    if options:
        raise InputError(f"expected only steps, step and batch for this method, got {', '.join(options)}")
    kept = max(1, steps // 10)
    nbeta = wbic_nbeta(landscape.n) * (2 / problem.widths[-1] if problem.widths else 1.0)
    posterior = Posterior(landscape, nbeta, Gaussian(1.0))
    # The layout of a single chain; trying both out would be counted as its time.
    drawn = sample(
        posterior, kernel(step, batch), chains=1, draws=kept, warmup=steps - kept, seed=seed, layout="sequential"
    )
    return {**_plain(drawn, nbeta), "gradients": steps, "example_gradients": steps * batch}


def _plain(draws: Draws, nbeta: float) -> dict[str, Any]:
    scaled = nbeta * draws.arrays["excess"].astype(float)
    return {
        "value": float(scaled.mean()),
        "se": mcse_mean(scaled),
        "systematic": 0.0,
        "ok": bool(math.isfinite(scaled.mean())),
        "findings": [],
    }


def _rmsprop_sgld(problem: Problem, landscape: Landscape, seed: int, **options: Any) -> dict[str, Any]:
    return _sgld(problem, landscape, seed, kernel=PSGLD, **options)


def _devinterp(problem: Problem, landscape: Landscape, seed: int, **options: Any) -> dict[str, Any]:
    """Devinterp at its defaults: ten chains of 100 draws, all kept. Its stated error is the spread of its chains."""
    batch = options.pop("batch", _BATCH if problem.kind in CLASSES else _PEER_BATCH)
    return run_peer(problem, landscape, seed, batch=min(batch, landscape.data.rows), **options)


METHODS: dict[str, Method] = {
    "crunode": _crunode,
    "sgld": _sgld,
    "rmsprop-sgld": _rmsprop_sgld,
    "devinterp": _devinterp,
}


def check_methods(names: list[str]) -> list[str]:
    """The names, once each.

    Raises:
        InputError: There is no such method.

    Example:
        >>> check_methods(["sgld", "sgld"])
        ['sgld']
    """
    for name in names:
        if name not in METHODS:
            raise InputError(f"expected a method among {', '.join(METHODS)}, got {name!r}")
    return list(dict.fromkeys(names))


def estimate_row(
    problem: Problem,
    method: str,
    *,
    landscape: Landscape | None = None,
    target: str = "local",
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one method on a problem and hold the result against the exact value.

    A failure is part of the record: the row then has no value, and `error` says why.

    Args:
        problem: The problem.
        method: A name out of `METHODS`.
        landscape: The problem's landscape, where it is built already.
        target: What was asked for, "local" or "basin"; the errors are relative to the exact value of that.
        options: Passed to the method.

    Example:
        >>> from crunode_papers.hitchcock2025.problems import problems_of
        >>> problem = problems_of("reference")[0]
        >>> row = estimate_row(problem, "sgld", options={"steps": 50})
        >>> row["gradients"], row["example_gradients"], row["local"]
        (50, 25000, '13/2')
    """
    (name,) = check_methods([method])
    truth = problem.truth(target)
    landscape = problem.landscape() if landscape is None else landscape
    cuda = landscape.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize(landscape.device)
        torch.cuda.reset_peak_memory_stats(landscape.device)
    start = time.perf_counter()
    try:
        found = METHODS[name](problem, landscape, problem.seed, **(options or {}))
    except PeerAbsent:
        raise
    except (CrunodeError, RuntimeError, MemoryError) as error:  # torch reports memory that ran out as RuntimeError
        found = {"value": math.nan, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    seconds = time.perf_counter() - start
    row = {
        **problem.summary(),
        "method": name,
        "target": target,
        **dict.fromkeys(("se", "systematic"), math.nan),
        "ok": False,
        "findings": [],
        "gradients": None,
        "example_gradients": None,
        "error": None,
        "seconds": seconds,
        "peak_memory": torch.cuda.max_memory_allocated(landscape.device) if cuda else None,
        **found,
    }
    return {**row, **_offsets(row, truth)}


def _offsets(row: Mapping[str, Any], truth: Fraction | None) -> dict[str, float]:
    if truth is None:
        return {"relative_error": math.nan, "errors_off": math.nan}
    off, error = row["value"] - float(truth), math.hypot(row["se"], row["systematic"])
    return {"relative_error": off / float(truth), "errors_off": off / error if error else math.copysign(math.inf, off)}


def gradient_cost(estimate: Estimate) -> dict[str, int]:
    """Gradients (steps × chains) behind an estimate, and how many examples they were taken of in all.

    Example:
        >>> gradient_cost(Estimate("llc", 1.0, 0.1, diagnostics={"cost": {"gradients": 10, "examples": 5000}}))
        {'gradients': 10, 'example_gradients': 5000}
    """
    cost = estimate.diagnostics.get("cost")
    if cost is not None:
        return {"gradients": int(cost["gradients"]), "example_gradients": int(cost["examples"])}
    spec = estimate.spec
    if "kernel" not in spec:
        return {"gradients": 0, "example_gradients": 0}
    kernel = spec["kernel"]
    steps = (spec["warmup"] + spec["draws"]) * spec["chains"] * len(spec["nbeta"]) * kernel.get("leaps", 1)
    # Without a count of its own an estimate does not say on how many examples a full gradient was; n is the most.
    return {"gradients": steps, "example_gradients": steps * min(kernel.get("batch") or spec["n"], spec["n"])}
