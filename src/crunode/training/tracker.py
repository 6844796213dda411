"""`Tracker`: any probe at chosen steps of a training, while it runs or afterwards from its checkpoints."""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from crunode.core.data import data_digest
from crunode.core.execute import Executor, Serial
from crunode.core.landscape import Landscape
from crunode.core.logs import logging_to
from crunode.core.progress import Progress
from crunode.core.result import Finding
from crunode.errors import DiagnosticWarning, EstimationError, InputError, StoreError, StoreMismatch
from crunode.store.documents import plain
from crunode.training.jobs import GivenWeights, Job, Result, Source, fitting_weights, run_jobs, weights_mark
from crunode.training.loggers import Logger, Outbox
from crunode.training.probes import Probe, check_probes, has_failed, held_settings, probe_spec, step_seed, unsettled
from crunode.training.schedules import as_schedule, schedule_spec
from crunode.training.tracker_store import TrackerStore
from crunode.training.trajectory import Trajectory, Visit
from crunode.training.weight_files import find_weights

__all__ = ["Tracker", "track"]

Weights = nn.Module | Mapping[str, Tensor] | Tensor


class Tracker:
    """Measures at chosen steps of a training what is asked of it, and keeps it.

    Call `visit` after every step of any training loop. It returns at once unless the step is due. A step is due when a
    step of the schedule has been reached since the last call, so that loops which call it less often miss nothing.

    Settings that a probe tunes are found at the first visit and held from then on, so that values along the trajectory
    are comparable (see `crunode.training.probes.held`; `crunode.llc` is prepared for it). The first visit is made twice
    for that, to tune and to measure. Settings and the step of their tuning are in `spec["held"]` of every estimate.

    Args:
        landscape: Model, data and loss; its weights do not matter.
        probes: Functions `Landscape -> Estimate` by name; one with an argument `seed` gets a seed that comes from the
            tracker's and the step.
        at: A schedule such as `log_spaced(40, stop=50_000)` or `every(100)`, or a list of steps; None for every call.
        seed: All randomness comes from it.
        store: A folder where every visit is written at once. The same call with the same folder goes on after a kill:
            steps that were measured before are not measured again, if they come with the same weights.
        executor: Where the probes of a visit run.
        retune_at: Schedule or list of steps at which settings are tuned anew.
        loggers: Objects with `log(step, numbers)` that are told of each visit; see `crunode.training.loggers`.
        on_failure: "keep" puts the error of a probe into the trajectory and goes on; "raise" raises it.

    Raises:
        InputError: Something given makes no sense.
        StoreMismatch: The folder holds visits of another tracker; the message shows the differences.

    Example:
        >>> import torch
        >>> from crunode.core.result import Estimate
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.ones(2))
        >>> loss = lambda land: Estimate("loss", float(land.loss()), se=0.0)
        >>> tracker = Tracker(land, {"loss": loss}, at=[0, 2])
        >>> for step in range(4):
        ...     tracker.visit(step, torch.full((2,), 1.0 / (1 + step)))
        >>> tracker.trajectory.steps, tracker.trajectory.values("loss").round(3).tolist()
        ((0, 2), [2.0, 0.222])
    """

    def __init__(
        self,
        landscape: Landscape,
        probes: Mapping[str, Probe],
        *,
        at: Any = None,
        seed: int = 0,
        store: str | os.PathLike[str] | None = None,
        executor: Executor | None = None,
        retune_at: Any = None,
        loggers: Sequence[Logger] = (),
        on_failure: str = "keep",
    ) -> None:
        if not isinstance(landscape, Landscape):
            raise InputError(
                f"expected a Landscape, got {type(landscape).__name__}; make one with Landscape(model, data, loss)"
            )
        if on_failure not in ("keep", "raise"):
            raise InputError(f"expected on_failure as 'keep' or 'raise', got {on_failure!r}")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
        if executor is not None and not isinstance(executor, Executor):
            raise InputError(f"expected an executor with map(fn, jobs), such as Processes(), got {executor!r}")
        self.landscape, self.probes, self.seed = landscape, check_probes(probes), seed
        self._at, self._retune_at = as_schedule(at), as_schedule(retune_at)
        self._executor: Executor = executor or Serial()
        self._raises = on_failure == "raise"
        self._outbox = Outbox(loggers)
        self.spec = {
            "landscape": _landscape_spec(landscape),
            "probes": {name: probe_spec(probe) for name, probe in self.probes.items()},
            "at": schedule_spec(self._at),
            "retune_at": schedule_spec(self._retune_at),
            "seed": seed,
        }
        self._store = None if store is None else TrackerStore(store, self.spec)
        self._visits: dict[int, Visit] = {}
        self._settings = unsettled(self.probes)
        self._since: dict[str, int] = {}
        self._findings: tuple[Finding, ...] = ()
        self._called = -1  # the last step that this object was called with
        self._known = -1  # the last step that was measured
        for visit in [] if self._store is None else self._store.read():
            self._retune(visit.step)
            self._remember(visit)

    def visit(self, step: int, weights: Weights) -> None:
        """Measure at the weights, if the step is due. Nothing of the caller's is changed, random states included.

        Args:
            step: The number of the step; each call has a larger one than the call before.
            weights: The model, its `state_dict`, or a flat vector of the free parameters.

        Raises:
            InputError: The step is no whole number, is not larger than the last one, or the weights do not fit.
            StoreMismatch: The stored visit of this step was made at other weights.
            EstimationError: A probe failed, and `on_failure` is "raise".
        """
        number = _checked_step(step)
        if number <= self._called:
            again = "again" if number == self._called else f"after step {self._called}"
            raise InputError(
                f"expected steps in ascending order, each once, got step {number} {again}; count steps through the "
                "whole training, and make a new Tracker for a new training"
            )
        before, self._called = max(self._called, self._known), number
        if number in self._visits:
            self._check_same(number, weights_mark(self.landscape, fitting_weights(self.landscape, weights)))
        elif number > self._known and (self._at is None or self._at.due(before, number)):
            named = fitting_weights(self.landscape, weights)
            copied = {name: value.detach().clone() for name, value in named.items()}
            for _ in self._measured([(number, GivenWeights(copied))]):
                pass

    @property
    def trajectory(self) -> Trajectory:
        """What was measured so far."""
        kept = tuple(self._visits[step] for step in sorted(self._visits))
        return Trajectory(kept, tuple(self.probes), self.landscape.n, self._findings, plain(self.spec), self.seed)

    def _measured(self, sources: Sequence[tuple[int, Source]]) -> Iterator[Visit]:
        """Visit the steps in order; between two tunings all at once on the executor."""
        rest = list(sources)
        while rest:
            self._retune(rest[0][0])
            count = 1
            if all(settings is not None for settings in self._settings.values()):
                after = (k for k in range(1, len(rest)) if self._retunes(rest[k - 1][0], rest[k][0]))
                count = next(after, len(rest))
            group, rest = rest[:count], rest[count:]
            jobs = [
                Job(self.landscape, step, source, name, probe, step_seed(self.seed, step), self._settings[name])
                for step, source in group
                for name, probe in self.probes.items()
            ]
            results = run_jobs(self._executor, jobs)
            for step, _ in group:
                with logging_to(None if self._store is None else self._store.home):
                    found = [next(results) for _ in self.probes]
                yield self._finished(step, dict(zip(self.probes, found, strict=True)))

    def _finished(self, step: int, found: Mapping[str, Result]) -> Visit:
        estimates = {}
        for name, result in found.items():
            estimate = result.estimate
            if estimate.spec.get("held"):
                kept = {"since": self._since.get(name, step), "settings": estimate.spec["held"]}
                estimate = replace(estimate, spec={**estimate.spec, "held": kept})
            estimates[name] = estimate
            if "error" in estimate.diagnostics and has_failed(estimate):
                text = f"the probe {name!r} failed at step {step}: {estimate.diagnostics['error']}"
                if self._raises:
                    raise EstimationError(text, partial=self.trajectory)
                warnings.warn(f"{text}; the trajectory goes on without it", DiagnosticWarning, stacklevel=4)
        first = next(iter(found.values()))
        visit = Visit(step, first.loss, first.weights, estimates)
        if self._store is not None:
            self._store.keep(visit)
        self._remember(visit)
        self._outbox.send(visit)
        return visit

    def _remember(self, visit: Visit) -> None:
        if set(visit.estimates) != set(self.probes):
            raise StoreError(f"expected estimates of {list(self.probes)} at step {visit.step}; delete its file")
        self._visits[visit.step] = visit
        self._known = max(self._known, visit.step)
        for name, estimate in visit.estimates.items():
            if self._settings[name] is None and math.isfinite(estimate.value) and not has_failed(estimate):
                self._settings[name] = held_settings(self.probes[name], estimate)
                self._since[name] = visit.step

    def _retunes(self, last: int, step: int) -> bool:
        return self._retune_at is not None and self._retune_at.due(last, step)

    def _retune(self, step: int) -> None:
        if self._retunes(self._known, step):
            self._settings = unsettled(self.probes)
            self._since = {}

    def _check_same(self, step: int, weights: str) -> None:
        known = self._visits[step].weights
        if known not in (weights, ""):
            where = "" if self._store is None else f" ({self._store.path(step)})"
            raise StoreMismatch(
                f"the stored visit of step {step}{where} was made at other weights: stored {known[:12]}…, now "
                f"{weights[:12]}…. Another training, or one that was not repeated bit by bit: choose another folder, "
                "or delete the files of this step and all later ones to measure them again."
            )


def track(
    landscape: Landscape,
    folder: str | os.PathLike[str],
    probes: Mapping[str, Probe],
    *,
    at: Any = None,
    damaged: str = "raise",
    executor: Executor | None = None,
    **settings: Any,
) -> Trajectory:
    """The trajectory of a training that has left its checkpoints in a folder.

    It is the one that a `Tracker` with the same settings gives while the training runs. Checkpoints between two tunings
    are visited in parallel, where the executor does that.

    Args:
        landscape: Model, data and loss; its weights do not matter.
        folder: Checkpoints of `train` or `save_checkpoint`, or files with a step at the end of their names (see
            `crunode.training.weight_files.find_weights`).
        probes: Functions `Landscape -> Estimate` by name.
        at: Which of them, by a schedule; None for all.
        damaged: "raise" refuses a folder with files that are missing, corrupt, doubled or foreign; "skip" uses the
            rest, with finding TRACK902.
        executor: Where checkpoints are visited.
        settings: seed, store, retune_at, loggers and on_failure of `Tracker`.

    Returns:
        The trajectory.

    Raises:
        InputError: There is no such folder, or nothing in it to use.
        StoreError: The folder has damaged files; all of them are listed.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from crunode.core.result import Estimate
        >>> from crunode.training.checkpoints import save_checkpoint
        >>> net = nn.Linear(1, 1)
        >>> land = Landscape(net, (torch.ones(4, 1), torch.zeros(4, 1)), "gaussian")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (0, 10):
        ...         _ = save_checkpoint(folder, step, net)
        ...     track(land, folder, {"loss": lambda land: Estimate("loss", float(land.loss()), se=0.0)}).steps
        (0, 10)
    """
    if damaged not in ("raise", "skip"):
        raise InputError(f"expected damaged as 'raise' or 'skip', got {damaged!r}")
    tracker = Tracker(landscape, probes, at=at, executor=executor, **settings)
    found = find_weights(folder)
    problems = list(found.problems)
    sources: list[tuple[int, Source]] = []
    last = -1
    for file in found.files:
        due = tracker._at is None or tracker._at.due(last, file.step)
        if not due and file.step not in tracker._visits:
            last = file.step
            continue
        try:
            weights = weights_mark(landscape, fitting_weights(landscape, file.load()))
        except (InputError, StoreError) as error:
            problems.append(f"step {file.step} does not count: {error}")
            continue  # the next one stands for it
        last = file.step
        if file.step in tracker._visits:
            tracker._check_same(file.step, weights)
        else:
            sources.append((file.step, file))
    if problems:
        _complain(folder, problems, damaged)
        tracker._findings = (Finding.of("TRACK902", "; ".join(problems[:8])),)
    if not sources and not tracker._visits:
        raise InputError(f"expected checkpoints in {folder} that are due, got none of {len(found.files)}")
    late = [step for step, _ in sources if step < tracker._known]
    if late:
        raise StoreMismatch(
            f"the store has visits up to step {tracker._known}, but not of the earlier steps {late[:12]} of the "
            "folder; choose another store, or delete its visits after these steps"
        )
    with Progress(len(sources), "track") as bar:
        for visit in tracker._measured(sources):
            bar.advance(note=f"step {visit.step}")
    return tracker.trajectory


def _complain(folder: Any, problems: Sequence[str], damaged: str) -> None:
    listed = "\n  ".join([*problems[:20], *([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])])
    if damaged == "raise":
        raise StoreError(
            f"{folder} has files that cannot be used:\n  {listed}\nRestore or remove them, or use the rest with "
            "damaged='skip'."
        )
    warnings.warn(f"{folder} has files that are left out:\n  {listed}", DiagnosticWarning, stacklevel=3)


def _landscape_spec(land: Landscape) -> dict[str, Any]:
    """What makes two landscapes the same but for their weights."""
    shapes = dict(zip(land.packing.names, map(list, land.packing.shapes), strict=True))
    return {
        "model": land.identity,
        "loss": land.loss_name,
        "parameters": shapes,
        "n": land.n,
        "data": data_digest(land.data),
    }


def _checked_step(step: Any) -> int:
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise InputError(f"expected the step as a whole number from 0 up, got {step!r}")
    return number
