"""`sweep()`: the same estimate over a grid of steps, precisions and inverse temperatures."""

from __future__ import annotations

import itertools
import math
import numbers
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core.execute import Executor, Serial
from crunode.core.landscape import Landscape
from crunode.core.logs import logging_to
from crunode.core.origin import merged, provenance
from crunode.core.progress import Progress
from crunode.core.result import Estimate
from crunode.errors import DiagnosticWarning, EstimationError, InputError, StoreError
from crunode.estimators.coefficient import llc
from crunode.estimators.sweep_result import Cell, Sweep
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.stochastic import SGLD
from crunode.sampling.tuning import Plan, kernel_spec, tune
from crunode.store.atomic import digest, locked
from crunode.store.belongs import refuse
from crunode.store.documents import diff, document_bytes, dumps, plain, read_document, write_document
from crunode.store.guarded import replace_file

__all__ = ["sweep"]

# The tuner's step is near the largest that can be used, so that more of the grid lies below it.
_FACTORS = {
    "step": tuple(10.0 ** (k / 2) for k in range(-4, 3)),
    "precision": tuple(10.0**k for k in range(-2, 3)),
    "nbeta": (0.25, 1.0, 4.0),
}
_FORMAT, _VERSION = "crunode-sweep", 1
Point = tuple[float, float, float]


def sweep(
    landscape: Landscape,
    *,
    steps: Sequence[float] | None = None,
    precisions: Sequence[float] | None = None,
    nbetas: Sequence[float] | None = None,
    kernel: Any = None,
    chains: int | None = None,
    draws: int | None = None,
    warmup: int | None = None,
    seed: int = 0,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
) -> Sweep:
    """How the estimate λ̂ = nβ (E[L_n(w)] − L_n(w*)) depends on the step ε, the precision γ and nβ of its sampler.

    Each cell of the grid is one `llc` with these three given, at a single nβ and with the given labels; one that fails
    is marked and does not end the sweep. Beside the grid stand the tuner's choice of the three with half and twice each
    of them, which tells how far the answer moves, and the default `llc`, which extrapolates over a ladder of nβ. All
    cells share the seed, so that neighbors differ by their settings rather than by luck.

    Args:
        landscape: Model, data and loss at the weights to look at.
        steps: Values of ε.
        precisions: Values of γ.
        nbetas: Values of nβ. Axes left out stay at the tuner's choice where another one is given; where none is, they
            go from a hundredth to ten times (steps), from a hundredth to a hundred times (precisions) and from a
            quarter to four times (nbetas) the tuner's choice, which is 105 cells.
        kernel: The sampler; None for SGLD with the batch the tuner chooses. A step it has takes the place of the
            tuner's.
        chains: Chains of each cell; None for as many as the tuner gives.
        draws: Kept draws per chain.
        warmup: Steps before them.
        seed: All randomness comes from it.
        store: A folder to keep finished cells in, each with its run folder, so that the same call goes on after an
            interruption. Calls that differ in the values on the axes only may share it.
        executor: Where cells run; `Serial()` by default.

    Returns:
        The cells, the tuner's choice and the default estimate, with `table()`, `plot()` and `to_dict()`.

    Raises:
        InputError: Something about landscape or settings is wrong.
        EstimationError: The tuner found no step to start from.
        StoreMismatch: The folder holds a sweep of something else; the message shows the difference.

    Example:
        >>> import torch
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> found = sweep(land, steps=[1e-4, 1e-3, 1.0], chains=2, draws=100, warmup=50)
        >>> [cell.diverged for cell in found.cells], found.values().shape
        ([False, False, True], (1, 1, 3))

    References:
        Cullen et al. 2026, appendix B.2 and figure 6, which show λ̂ over γ and ε; Lau et al. 2023.
    """
    if not isinstance(landscape, Landscape):
        raise InputError(
            f"expected a Landscape, got {type(landscape).__name__}; make one with Landscape(model, data, loss)"
        )
    axes = {"step": _axis("steps", steps), "precision": _axis("precisions", precisions)}
    axes["nbeta"] = _axis("nbetas", nbetas)
    counts = {"chains": chains, "draws": draws, "warmup": warmup, "seed": seed}
    _check(counts, kernel, store, executor)
    kernel = SGLD() if kernel is None else kernel
    home = None if store is None else Path(store).absolute()
    plan = _plan(landscape, kernel, counts, home)
    assert plan.precision is not None  # the prior is a Gaussian
    here: Point = (plan.kernel.step, plan.precision, plan.nbeta[0])
    grid = _grid(axes, here)
    around = [here]
    for k, factor in itertools.product(range(3), (0.5, 2.0)):
        around.append(tuple(x * factor if j == k else x for j, x in enumerate(here)))  # type: ignore[arg-type]
    wanted = [(e, g, b) for b in grid["nbeta"] for g in grid["precision"] for e in grid["step"]]
    points = list(dict.fromkeys([*wanted, *around]))
    settings = {"chains": plan.chains, "draws": plan.draws, "warmup": plan.warmup, "seed": seed}
    jobs = [_Job(landscape, None, None, {"seed": seed}, home)]
    jobs += [_Job(landscape, point, replace(plan.kernel, step=point[0]), settings, home) for point in points]
    records = []
    with logging_to(home), Progress(len(jobs), "sweep") as bar:
        for record in (executor or Serial()).map(run_job, jobs):
            records.append(record)
            bar.advance()
    cells = {point: Cell.from_dict(record) for point, record in zip(points, records[1:], strict=True)}
    estimate = Estimate.from_dict(records[0])
    doubts = [str(f) for f in estimate.findings if f.severity != "info"]
    if doubts:
        warnings.warn(f"default estimate: {'; '.join(doubts)}", DiagnosticWarning, stacklevel=2)
    size = {"n": landscape.n, "dim": landscape.dim}
    chosen = {"kernel": plain(kernel_spec(plan.kernel)), "reasons": dict(plan.reasons)}
    origins = [estimate.provenance, *(cell.provenance for cell in cells.values())]
    found = Sweep(
        grid["step"],
        grid["precision"],
        grid["nbeta"],
        tuple(cells[point] for point in wanted),
        tuple(cells[point] for point in around),
        estimate,
        {**size, **chosen, **settings, "provenance": merged(origins)},
    )
    if home is not None:
        with locked(home / "sweep.lock"):
            write_document(home / "result.json", f"{_FORMAT}-result", _VERSION, {"sweep": plain(found.to_dict())})
    return found


@dataclass(frozen=True)
class _Job:
    """One cell, or with no point the default estimate."""

    landscape: Landscape
    point: Point | None
    kernel: Any
    settings: Mapping[str, Any]
    home: Path | None

    def __repr__(self) -> str:
        return f"sweep job at {self.point or 'the default'}"

    def place(self) -> Path | None:
        """Its run folder; its record lies beside it."""
        if self.home is None or self.point is None:
            return None if self.home is None else self.home / "default"
        step, precision, nbeta = self.point
        name = f"step{step:.3g}-precision{precision:.3g}-nbeta{nbeta:.4g}-{digest(dumps(self.point).encode())[:8]}"
        return self.home / "cells" / name


def run_job(job: _Job) -> dict[str, Any]:
    """The record of a job: read where it was finished before, else computed, and kept where there is a folder."""
    place = job.place()
    kept = None if place is None else place.with_name(place.name + ".json")
    if kept is not None and kept.exists():
        record: dict[str, Any] = read_document(kept, f"{_FORMAT}-record", _VERSION)["record"]
        return record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        record = plain(_computed(job, place))
    if kept is not None:
        # Another sweep of the same folder may be at the same cell: each has a temporary name of its own.
        replace_file(kept, document_bytes(f"{_FORMAT}-record", _VERSION, {"record": record}))
    return record


def _computed(job: _Job, place: Path | None) -> dict[str, Any]:
    options: dict[str, Any] = {**job.settings, "store": place, "on_failure": "return"}
    if job.point is not None:
        options |= {"kernel": job.kernel, "precision": job.point[1], "nbeta": job.point[2]}
    try:
        estimate = llc(job.landscape, **options)
    except EstimationError as error:  # failed before there were draws to return
        seen = {"error": str(error)}
        estimate = Estimate("llc", math.nan, math.nan, math.nan, diagnostics=seen, provenance=provenance())
    return estimate.to_dict() if job.point is None else asdict(Cell.of(estimate, job.point))


def _grid(axes: Mapping[str, tuple[float, ...] | None], here: Point) -> dict[str, tuple[float, ...]]:
    """The values on each axis, around the tuner's choice where no axis was given."""
    free = all(given is None for given in axes.values())
    grid = {}
    for (name, given), center in zip(axes.items(), here, strict=True):
        grid[name] = given or tuple(center * f for f in (_FACTORS[name] if free else (1.0,)))
    return grid


def _plan(landscape: Landscape, kernel: Any, counts: Mapping[str, Any], home: Path | None) -> Plan:
    """The tuner's choice at nβ = n / log n, from the folder where it has one."""
    asked = plain({"landscape": landscape.fingerprint(), "kernel": kernel_spec(kernel), **counts})
    path = None if home is None else home / "sweep.json"
    if path is not None and path.exists():
        return _stored(path, asked, kernel)
    taken = home is not None and home.exists() and not (home.is_dir() and _vacant(home))
    if taken and not (path is not None and path.exists()):  # in this order: another process may just have begun
        raise StoreError(f"expected a new folder, or one of a sweep, got {home}; choose another")
    plan = tune(Posterior(landscape, "wbic", Gaussian()), kernel, **counts)
    if path is not None and home is not None:
        with locked(home / "sweep.lock"):
            if path.exists():  # another process was first
                return _stored(path, asked, kernel)
            write_document(path, _FORMAT, _VERSION, {"asked": asked, "plan": plain(plan.spec())})
    return plan


def _stored(path: Path, asked: Mapping[str, Any], kernel: Any) -> Plan:
    content = read_document(path, _FORMAT, _VERSION)
    refuse(path.parent, "this sweep", diff(content["asked"], asked))
    return Plan.from_spec(content["plan"], kernel)


def _vacant(home: Path) -> bool:
    """Nothing there but what a sweep stopped in its first moment leaves."""
    return all(p.name in ("sweep.lock", "sweep.json.tmp") for p in home.iterdir())


def _axis(name: str, given: Any) -> tuple[float, ...] | None:
    if given is None:
        return None
    listed = list(given) if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes) else []
    real = [float(v) for v in listed if isinstance(v, numbers.Real) and not isinstance(v, bool)]
    good = {v for v in real if 0 < v < math.inf}
    if not listed or len(good) < len(listed):
        raise InputError(
            f"expected {name} as one or more different positive numbers in a list, got {given!r}; leave it out to have "
            "it chosen"
        )
    return tuple(sorted(good))


def _check(counts: Mapping[str, Any], kernel: Any, store: Any, executor: Any) -> None:
    for name, value in counts.items():
        least = {"warmup": 0, "seed": 0}.get(name, 1)
        if value is None and name != "seed":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    if kernel is not None and (isinstance(kernel, type) or not all(hasattr(kernel, k) for k in ("advance", "step"))):
        raise InputError(f"expected a kernel such as SGLD(batch=256), got {kernel!r}; leave it out to have one chosen")
    if isinstance(getattr(kernel, "step", None), tuple):
        raise InputError(f"expected a kernel with one step or none, got {kernel!r}; give steps= to sweep over")
    if store is not None and not isinstance(store, str | os.PathLike):
        raise InputError(f"expected store as the path of a folder, got {store!r}")
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"expected an executor with map(fn, jobs), such as Processes(), got {executor!r}")
