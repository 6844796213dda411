"""`sample_each()`: the posteriors of one model on many data sets, all chains of all of them in one batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from crunode.core.data import leaves
from crunode.core.execute import Executor, Serial
from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Finding, provenance
from crunode.errors import EstimationError, InputError
from crunode.sampling.group import Group, Observable, Outcome, run_group
from crunode.sampling.layout import enough_for_a_worker, memory_class, step_memory
from crunode.sampling.posterior import Posterior, Rung
from crunode.sampling.run import check_settings, kernel_findings
from crunode.sampling.stepping import steps_of
from crunode.sampling.tuning import kernel_spec, tune

__all__ = ["sample_each"]

# Of the memory, what a group of data sets may take.
_SHARE = 0.5
_FIRST = torch.zeros(1, dtype=torch.int64)


def sample_each(
    posteriors: Sequence[Posterior],
    kernel: Any = None,
    *,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    keep: Sequence[str] = (),
    observe: Mapping[str, Observable] | None = None,
    executor: Executor | None = None,
    compiled: bool = False,
) -> list[Draws]:
    """Draw from several posteriors of the same model, with data sets, levels of nbeta and chains as one batch axis.

    They differ in data (as many examples each) and in the center, where chains begin. Settings that are left out are
    tuned on the first and hold for all, so that a kernel which adapts in warm-up, `HMC(metric="diagonal")` or `NUTS()`,
    is best where data sets differ much. The draws of a posterior depend on the seed and on its place in the sequence,
    not on the others, but for what is tuned.

    Args:
        posteriors: With the same levels of nbeta and the same prior.
        kernel: A kernel with a Metropolis test, alone or in `Exchange`; None for HMC.
        chains: Chains for each posterior and level.
        draws: Kept draws per chain.
        warmup: Steps before them.
        seed: All randomness comes from it.
        keep: As in `sample`.
        observe: As in `sample`; functions get the landscape of their own data set.
        executor: Where groups of data sets run.
        compiled: Compile gradients with `torch.compile`, which pays on long runs.

    Returns:
        The draws of each posterior, in order, with a spec as `sample` gives.

    Raises:
        InputError: The posteriors do not go together, or a setting is not valid.
        EstimationError: A chain turned non-finite; `partial` holds the draws of that posterior.

    Example:
        >>> from crunode import HMC, Gaussian, Landscape, Posterior
        >>> model = torch.nn.Linear(1, 1)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> lands = [Landscape(model, (x, s * x), "gaussian") for s in (1.0, 2.0, 3.0)]
        >>> posts = [Posterior(land, 20.0, Gaussian(0.1, mean="origin")) for land in lands]
        >>> found = sample_each(posts, HMC(step=0.05, leaps=4), chains=2, draws=50, warmup=20)
        >>> [d.arrays["excess"].shape for d in found]
        [(2, 50), (2, 50), (2, 50)]
    """
    first = _checked(posteriors)
    check_settings(first, kernel, {"chains": chains, "draws": draws, "warmup": warmup}, seed, keep)
    plan = tune(first, kernel, chains=chains, draws=draws, warmup=warmup, seed=seed)
    kernel = plan.kernel
    if not kernel.metropolis:
        raise InputError(
            f"expected a kernel with a Metropolis test, as HMC() or NUTS(), got {type(kernel).__name__}, which draws "
            "minibatches; use sample() on each posterior"
        )
    resolved = [plan.apply(posterior, kernel)[0] for posterior in posteriors]
    rungs = resolved[0].rungs(steps_of(kernel, len(resolved[0].levels)))
    per_set = [rung for rung in rungs for _ in range(plan.chains)]
    executor = executor or Serial()
    parts = _parts(first.landscape, len(posteriors), len(per_set))
    jobs = [
        Group(
            resolved[part[0]],
            kernel,
            index,
            # Rung by rung over all data sets, which is how `Exchange` takes rows for ladders.
            [d * len(per_set) + r for r, d in _rows(part, len(rungs), plan.chains)],
            [per_set[r] for r, _ in _rows(part, len(rungs), plan.chains)],
            plan.warmup,
            plan.draws,
            seed,
            "batched",
            tuple(keep),
            observe or {},
            compiled=compiled,
            each=[resolved[d].landscape for _, d in _rows(part, len(rungs), plan.chains)],
        )
        for index, part in enumerate(parts)
    ]
    outcomes = list(executor.map(run_group, jobs))
    found: list[Draws] = []
    for part, job, outcome in zip(parts, jobs, outcomes, strict=True):
        for d in part:
            mine = np.argsort(job.chains, kind="stable")
            mine = mine[[job.chains[k] // len(per_set) == d for k in mine]]
            asked = {
                "landscape": posteriors[d].landscape.fingerprint(),
                "kernel": kernel_spec(kernel),
                "prior": posteriors[d].prior_spec(),
                "seed": seed,
                "set": d,
                "keep": sorted(keep),
                "observe": sorted(observe or ()),
            }
            spec = {"asked": asked, **_size(resolved[d].landscape), **plan.spec(), **_per_chain(per_set)}
            found.append(_draws(outcome, mine, spec, plan.findings, kernel, d, len(per_set)))
    return found


def _rows(part: Sequence[int], rungs: int, chains: int) -> list[tuple[int, int]]:
    """Row of its own posterior and number of it, for all rows of a group."""
    return [(r * chains + c, d) for r in range(rungs) for d in part for c in range(chains)]


def _draws(
    outcome: Outcome,
    mine: np.ndarray,
    spec: dict[str, Any],
    findings: tuple[Finding, ...],
    kernel: Any,
    number: int,
    rows: int,
) -> Draws:
    arrays = {name: a[mine] for name, a in outcome.arrays.items()}
    warmup = {name: a[mine] for name, a in outcome.warmup.items()}
    failed = [chain for chain, _ in outcome.failed if chain // rows == number]
    nbeta = np.array(spec["nbeta_per_chain"])
    if failed:
        findings += (Finding.of("MC204", f"{len(failed)} of {rows} chains of posterior {number}"),)
    arrays = arrays or {"excess": np.full((rows, 0), np.nan)}
    draws = Draws(arrays, warmup, nbeta, spec, findings, provenance())
    if failed:
        raise EstimationError(f"{findings[-1]}", partial=draws)
    return replace(draws, findings=findings + kernel_findings(kernel, draws))


def _size(land: Landscape) -> dict[str, int]:
    return {"n": land.n, "dim": land.dim, "rows": land.data.rows}


def _per_chain(rungs: Sequence[Rung]) -> dict[str, Any]:
    return {"nbeta_per_chain": [r.nbeta for r in rungs], "role_per_chain": [r.role for r in rungs]}


def _parts(land: Landscape, sets: int, rows: int) -> list[list[int]]:
    """Data sets in groups of nearly equal size that fit the memory, and are no larger than takes a worker's while."""
    each = rows * (step_memory(land, 1, None) + land.center.element_size() * _numbers(land))
    fit = max(1, int(_SHARE * memory_class(land.device) / each))
    if land.device.type == "cpu":
        fit = min(fit, -(-enough_for_a_worker(land, land.data.rows) // rows))
    count = -(-sets // fit)
    ends = [sets * k // count for k in range(count + 1)]
    return [list(range(a, b)) for a, b in itertools.pairwise(ends)]


def _numbers(land: Landscape) -> int:
    return sum(t.numel() for t in land.data.tensors())


def _checked(posteriors: Sequence[Posterior]) -> Posterior:
    """The first one, if all go together."""
    if not posteriors or not all(isinstance(p, Posterior) for p in posteriors):
        raise InputError("expected a sequence of posteriors, got none or something else in it")
    first = posteriors[0]
    one = first.landscape
    if not one.data.stacked or not one.pointwise:
        raise InputError("expected data that stacks and a loss for each example, got others; use sample() on each")
    for k, posterior in enumerate(posteriors):
        land = posterior.landscape
        if posterior.nbeta != first.nbeta or posterior.prior != first.prior:
            raise InputError(f"expected the nbeta and the prior of the first posterior for all, got others at {k}")
        same = land.packing == one.packing and land.device == one.device and land.loss_name == one.loss_name
        if not (same and land.same_model(one)):
            raise InputError(f"expected the model, loss and device of the first posterior for all, got others at {k}")
        pairs = list(itertools.zip_longest(leaves(land.data.take(_FIRST)), leaves(one.data.take(_FIRST))))
        alike = all(a is not None and b is not None and a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
        if land.data.rows != one.data.rows or not alike:
            raise InputError(
                f"expected {one.data.rows} examples of the same shape for all posteriors, got {land.data.rows} at {k}"
            )
    return first
