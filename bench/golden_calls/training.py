"""Golden calls of what follows a training: trackers, tracked folders, trajectories and their changes."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from safetensors.torch import save_file

import crunode as cr
from crunode.curvature import hessian_trace
from crunode.testing import check_probe
from golden_calls import call, landscapes, refused

LLC = functools.partial(cr.llc, nbeta=15.0, chains=2, draws=10, warmup=5, on_failure="return")


def height(land: cr.Landscape) -> cr.Estimate:
    """The first parameter, with an error."""
    return cr.Estimate("height", float(land.center[0]), se=0.1)


def stepped(steps: int) -> list[tuple[int, torch.Tensor]]:
    """Weights of a linear model on its way, with a jump in the middle."""
    land = landscapes.noisy()
    return [(10 * k, land.center * (1 + 0.02 * k) + (2.0 if 2 * k >= steps else 0.0)) for k in range(steps)]


def tracked(**options: object) -> cr.Trajectory:
    probes = {"llc": LLC, "trace": hessian_trace, "height": height}
    tracker = cr.Tracker(landscapes.noisy(), probes, seed=5, **options)
    for step, weights in stepped(6):
        tracker.visit(step, weights)
    return tracker.trajectory


@call("tracker")
def _() -> object:
    found = tracked()
    return [found.visits, found.values("llc"), found.errors("llc"), found.ok("llc")]


@call("tracker: some steps, in a folder, resumed")
def _() -> object:
    first = tracked(at=[10, 30, 50], store="visits", retune_at=[30])
    again = tracked(at=[10, 30, 50], store="visits", retune_at=[30])
    return [
        first.visits,
        [a.estimates["llc"].value == b.estimates["llc"].value for a, b in zip(first.visits, again.visits, strict=True)],
    ]


@call("tracker: a probe that fails")
def _() -> object:
    def broken(land: cr.Landscape) -> cr.Estimate:
        raise ValueError("not today")

    tracker = cr.Tracker(landscapes.noisy(), {"height": height, "broken": broken})
    for step, weights in stepped(3):
        tracker.visit(step, weights)
    return [tracker.trajectory.visits, tracker.trajectory.failures()]


@call("track a folder")
def _() -> object:
    Path("kept").mkdir()
    for step, weights in stepped(4):
        save_file({"weight": weights.reshape(1, 3).clone()}, f"kept/model-{step}.safetensors")
    return cr.track(landscapes.noisy(), "kept", {"height": height, "trace": hessian_trace}).visits


@call("transitions")
def _() -> object:
    tracker = cr.Tracker(landscapes.noisy(), {"height": height})
    for step, weights in stepped(24):
        tracker.visit(step + 1, weights)
    found = tracker.trajectory
    found.save("trajectory.json")
    kept = cr.Trajectory.load("trajectory.json")
    kinds = [found.transitions("height", kind=kind) for kind in ("level", "linear")]
    return [*kinds, found.transitions("height", scale="step", seed=3), kept.values("height"), found.table()]


@call("free_energy_comparison")
def _() -> object:
    return tracked().free_energy_comparison(0, 20)


@call("schedules")
def _() -> object:
    logs = cr.log_spaced(12, stop=5000)
    return [logs, cr.every(50), repr(cr.every(7)).replace(" ", "_")]


@call("check_probe")
def _() -> object:
    return [check_probe(hessian_trace, landscapes.bent()), check_probe(LLC, landscapes.noisy(), seed=3)]


@call("training: wrong input")
def _() -> object:
    return [
        refused(lambda: cr.Tracker(landscapes.noisy(), {})),
        refused(lambda: cr.track(landscapes.noisy(), "nowhere", {"height": height})),
        refused(lambda: cr.Tracker(landscapes.noisy(), {"height": height}).trajectory.transitions("nothing")),
        refused(lambda: cr.log_spaced(0, stop=10)),
        refused(lambda: cr.every(0)),
    ]
