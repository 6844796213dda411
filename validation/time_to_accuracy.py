"""Seconds to a relative error of 5 %, beside devinterp: crunode.llc with defaults on random deep linear networks.

    python validation/time_to_accuracy.py [--count 6] [--first-seed 5000] [--out validation/time_to_accuracy.json]

Networks are those of the benchmark's class 1K, the truth is the exact local coefficient, and everything runs on one
thread, one network after the other. For each network, in turn:

- crunode: one call of `llc` with defaults, in a process that has made a call on another network before. Its time is
  that of the whole call, the choice of all settings included. What only a first call costs is measured separately: the
  time of the very first call less that of the same call again.
- devinterp (`bench/peer/lengths.py`, in its own environment): one chain at the settings published for these networks,
  evaluated as it grows. Its time to the accuracy is that of the shortest length from which on the error stays within
  5 %, and not reached where it is outside at the greatest; one has to know the truth to stop there. The times of
  finding the settings, of its start and of a first short call
  do not count. Two ways to load batches: "plain", a DataLoader of a TensorDataset as its users write it, and "blocks",
  where a batch is one indexing of each tensor, which is faster. Two estimates: the last tenth of the chain kept as
  published ("last_tenth"), and all of it kept, its default ("all_draws"). Then one call at its defaults.

Wall seconds are those that passed, CPU seconds those that the process was computing, which other work on the machine
disturbs less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np
import torch

import crunode
from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode_papers.hitchcock2025.peer import PEER_PYTHON
from crunode_papers.hitchcock2025.problem import Problem
from crunode_papers.hitchcock2025.problems import problems_of

ACCURACY = 0.05
LENGTHS = (100, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000, 10_000)
BATCH = 500
CLOCKS = ("seconds", "cpu_seconds")
LOADERS, KEPT = ("plain", "blocks"), ("last_tenth", "all_draws")
_PEER_SCRIPT = Path(__file__).resolve().parents[1] / "bench" / "peer" / "lengths.py"


def time_to_accuracy(points: Iterable[tuple[float, float]], accuracy: float = ACCURACY) -> float | None:
    """Seconds of the first of (seconds, relative error), in order of time, from which on all errors are small enough.

    Example:
        >>> time_to_accuracy([(1, 0.04), (2, 0.2), (3, -0.05), (4, 0.01)])
        3
        >>> time_to_accuracy([(1, 0.01), (2, 0.2)]) is None, time_to_accuracy([(1, float("nan"))]) is None
        (True, True)
    """
    reached = None
    for seconds, error in points:
        if not abs(error) <= accuracy:
            reached = None
        elif reached is None:
            reached = seconds
    return reached


def estimate(problem: Problem, landscape: Landscape) -> dict[str, Any]:
    """One call with defaults, held against the truth."""
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        found = crunode.llc(landscape, seed=problem.seed, on_failure="return")
    times = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    error = found.value / float(problem.local) - 1
    return {
        "value": found.value,
        "se": found.se,
        "systematic": found.systematic,
        "ok": found.ok,
        "findings": [f.code for f in found.findings],
        "relative_error": error if math.isfinite(error) else None,
        "reached": abs(error) <= ACCURACY,
        **times,
        "cost": found.diagnostics.get("cost"),
    }


def peer(problem: Problem, landscape: Landscape, python: str) -> dict[str, Any]:
    """Its estimates at growing lengths and at its defaults, held against the truth."""
    x, y = landscape.data.tensors()
    named = {**landscape.packing.unravel(landscape.center), "x": x, "y": y}
    with tempfile.TemporaryDirectory(prefix="crunode-peer-") as folder:
        given = Path(folder) / "problem.npz"
        np.savez(given, **{name: value.detach().cpu().numpy() for name, value in named.items()})
        words = [python, str(_PEER_SCRIPT), str(given), "--batch", str(BATCH), "--seed", str(problem.seed)]
        words += ["--lengths", *map(str, LENGTHS)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    content, truth = json.loads(done.stdout.strip().splitlines()[-1]), float(problem.local)
    times: dict[str, Any] = {}
    for chain in content["chains"]:
        points, whole = chain["points"], bool(chain["points"]) and chain["points"][-1]["steps"] == LENGTHS[-1]
        for kept in KEPT:
            for point in points:
                point[f"error_{kept}"] = math.nan if point[kept] is None else point[kept] / truth - 1
            times[f"{chain['loader']}/{kept}"] = {
                "final_error": points[-1][f"error_{kept}"] if whole else None,
                "steps": time_to_accuracy((p["steps"], p[f"error_{kept}"]) for p in points) if whole else None,
                **{c: time_to_accuracy((p[c], p[f"error_{kept}"]) for p in points) if whole else None for c in CLOCKS},
                **{f"run_{c}": points[-1][c] if points else None for c in CLOCKS},
            }
    one = content["defaults"]
    one["relative_error"] = None if one["value"] is None else one["value"] / truth - 1
    one["reached"] = one["value"] is not None and abs(one["relative_error"]) <= ACCURACY
    return {**content, "times": times}


def median(values: Sequence[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None


def size(error: float | None) -> float:
    """The absolute error; infinite where there is none, so that nothing is gained by failing."""
    return math.inf if error is None or math.isnan(error) else abs(error)


def compared(rows: list[dict[str, Any]], variant: str, clock: str) -> dict[str, Any]:
    """Times of one way to run devinterp over those of crunode.

    Where crunode does not reach the accuracy but devinterp does, the ratio counts as 0. Where devinterp does not, that
    of its whole run is a lower bound.
    """
    ratios, bounds, both = [], [], []
    for row in rows:
        own, other = row["crunode"], row["devinterp"]["times"][variant]
        if other[clock] is not None:
            ratios.append(other[clock] / own[clock] if own["reached"] else 0.0)
            if own["reached"]:
                both.append((own[clock], other[clock]))
        elif own["reached"]:
            bounds.append((other[f"run_{clock}"] or 0.0) / own[clock])
    return {
        "peer_reached": len(ratios),
        "both_reached": len(both),
        "median_crunode_where_both": median([a for a, _ in both]),
        "median_devinterp_where_both": median([b for _, b in both]),
        "median_ratio_where_peer_reached": median(ratios),
        "median_lower_bound_where_not": median(bounds),
        "least_lower_bound_where_not": min(bounds, default=None),
        "median_lower_bound_over_all": median(ratios + bounds),
        "ratio_at_least_10": sum(r >= 10 for r in ratios + bounds),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Who reaches the accuracy, and in what time."""
    own, variants = [row["crunode"] for row in rows], [f"{a}/{b}" for a in LOADERS for b in KEPT]
    alone = [row["devinterp"]["defaults"] for row in rows]
    errors = {
        v: [row["devinterp"]["times"][v]["final_error"] for row in rows] for v in (f"{LOADERS[0]}/{k}" for k in KEPT)
    }
    return {
        "networks": len(rows),
        "accuracy": ACCURACY,
        "crunode": {
            "reached": sum(o["reached"] for o in own),
            "median_relative_error": median([size(o["relative_error"]) for o in own]),
            **{f"median_{clock}": median([o[clock] for o in own]) for clock in CLOCKS},
        },
        "devinterp_defaults": {
            "reached": sum(a["reached"] for a in alone),
            "no_number": sum(a["value"] is None for a in alone),
            **{f"median_{clock}": median([a[clock] for a in alone]) for clock in CLOCKS},
        },
        "devinterp_at_10000_steps_median_relative_error": {
            v.split("/")[1]: median([size(e) for e in es]) for v, es in errors.items()
        },
        "compared": {v: {clock: compared(rows, v, clock) for clock in CLOCKS} for v in variants},
    }


def bare(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items()}
    if isinstance(value, list):
        return [bare(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main() -> int:
    """Run all networks, write the record and say whether crunode takes a tenth of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=5000)
    parser.add_argument("--peer-python", default=PEER_PYTHON)
    parser.add_argument("--commit", help="the commit of the sources, where they are not in a git repository")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("time_to_accuracy.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    (before,) = problems_of("1K", count=1, first_seed=options.first_seed - 1)
    landscape = before.landscape()
    first, again = estimate(before, landscape), estimate(before, landscape)
    overhead = {clock: first[clock] - again[clock] for clock in CLOCKS}
    print(f"first call {first['seconds']:.1f} s, again {again['seconds']:.1f} s", flush=True)
    rows, began = [], time.perf_counter()
    for problem in problems_of("1K", count=options.count, first_seed=options.first_seed):
        landscape = problem.landscape()
        own = estimate(problem, landscape)
        other = peer(problem, landscape, options.peer_python)
        rows.append({**problem.summary(), "crunode": own, "devinterp": other, "load": os.getloadavg()[0]})
        reached = {name: found["cpu_seconds"] for name, found in other["times"].items()}
        print(
            problem.name, own["value"], own["relative_error"], own["seconds"], own["cpu_seconds"], reached, flush=True
        )
    origin = provenance()
    content = {
        "command": f"python validation/time_to_accuracy.py --count {options.count} --first-seed {options.first_seed}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": origin if origin["git"] else {**origin, "git": options.commit},
        "minutes": (time.perf_counter() - began) / 60,
        "first_call": {"network": before.name, "first": first, "again": again, "overhead": overhead},
        "summary": summary(rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(bare(content), indent=1) + "\n")
    print(json.dumps(bare(content["summary"]), indent=1))
    ratio = content["summary"]["compared"]["plain/last_tenth"]["seconds"]["median_lower_bound_over_all"]
    return 0 if ratio is not None and ratio >= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
