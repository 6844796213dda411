"""Volumes held against exact values: volume_scaling() with defaults on potentials whose λ and m are known.

    python validation/volume.py [--seeds 300 301 ...] [--workers 2] [--out validation/volume.json]

Sums and products of squares, plane curves, a monomial ideal, linear networks with zero truth: multiplicities 1 to 3,
one to eight parameters. Every result is written with its stated error, its distance from the exact value in that error,
and the probabilities of the multiplicities. The share outside three stated errors is the rate of false alarms of a
comparison at three.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import crunode
from crunode.core.result import provenance
from crunode.estimators.volume import volume_scaling


def two_layers(w: Tensor) -> Tensor:
    """‖BA‖² for 2×2 matrices: reduced rank regression 2-2-2 with zero truth."""
    return (w[:, :4].reshape(-1, 2, 2) @ w[:, 4:].reshape(-1, 2, 2)).square().sum((1, 2))


# name: (potential, dimension, λ, m, why)
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int, Fraction, int, str]] = {
    "x^2": (lambda w: w[:, 0] ** 2, 1, Fraction(1, 2), 1, "regular"),
    "x^2+y^2": (lambda w: w.square().sum(1), 2, Fraction(1), 1, "regular"),
    "x^4+y^4": (lambda w: (w**4).sum(1), 2, Fraction(1, 2), 1, "sum rule"),
    "x^2y^2": (lambda w: w.prod(1) ** 2, 2, Fraction(1, 2), 2, "normal crossing"),
    "x^2y^4": (lambda w: w[:, 0] ** 2 * w[:, 1] ** 4, 2, Fraction(1, 4), 1, "normal crossing"),
    "x^2y^2z^2": (lambda w: w.prod(1) ** 2, 3, Fraction(1, 2), 3, "normal crossing; linear network 1-1-1-1"),
    "(x^2-y^3)^2": (lambda w: (w[:, 0] ** 2 - w[:, 1] ** 3) ** 2, 2, Fraction(5, 12), 1, "blow-up of the cusp"),
    "(xy(x-y))^2": (lambda w: (w.prod(1) * (w[:, 0] - w[:, 1])) ** 2, 2, Fraction(1, 3), 1, "blow-up of three lines"),
    "x^2y^2+y^2z^2+z^2x^2": (
        lambda w: (w * w.roll(1, 1)).square().sum(1),
        3,
        Fraction(3, 4),
        1,
        "monomial ideal (Howald 2001)",
    ),
    "x^2y^2+z^2w^2": (
        lambda w: w[:, :2].prod(1) ** 2 + w[:, 2:].prod(1) ** 2,
        4,
        Fraction(1),
        3,
        "sum rule",
    ),
    "x^6+x^2y^2+y^6": (
        lambda w: (w**6).sum(1) + w.prod(1) ** 2,
        2,
        Fraction(1, 2),
        2,
        "Newton polyhedron",
    ),
    "x^2+y^2z^2": (lambda w: w[:, 0] ** 2 + (w[:, 1] * w[:, 2]) ** 2, 3, Fraction(1), 2, "sum rule"),
    "|BA|^2, 2-2-2": (two_layers, 8, Fraction(3, 2), 1, "Aoyagi & Watanabe 2005"),
}


def run(job: tuple[str, int]) -> dict[str, Any]:
    """One estimate with defaults, beside the exact value."""
    name, seed = job
    torch.set_num_threads(1)
    potential, dim, exact, multiplicity, why = CASES[name]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        found = volume_scaling(potential, torch.zeros(dim), seed=seed)
    return {
        "case": name,
        "dim": dim,
        "why": why,
        "seed": seed,
        "exact": str(exact),
        "value": found.value,
        "se": found.se,
        "systematic": found.systematic,
        "terms": dict(found.terms),
        "errors_off": (found.value - float(exact)) / found.error,
        "multiplicity_exact": multiplicity,
        "multiplicity": found.diagnostics["multiplicity"],
        "weights": found.diagnostics["weights"],
        "misfit": found.diagnostics["misfit"],
        "acceptance": found.diagnostics["acceptance"],
        "findings": [f.code for f in found.findings],
        "seconds": time.perf_counter() - start,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Coverage of the stated error, accuracy, and how often the multiplicity was right, and said to be sure."""
    off = [abs(r["errors_off"]) for r in rows]
    sure = [r for r in rows if "VOL602" not in r["findings"]]
    sizes = [abs(r["value"] / float(Fraction(r["exact"])) - 1) for r in rows]
    return {
        "runs": len(rows),
        "cases": len({r["case"] for r in rows}),
        "within_one_stated_error": sum(o <= 1 for o in off) / len(rows),
        "within_two_stated_errors": sum(o <= 2 for o in off) / len(rows),
        "within_three_stated_errors": sum(o <= 3 for o in off) / len(rows),
        "worst_in_stated_errors": max(off),
        "root_mean_square_in_stated_errors": math.sqrt(statistics.fmean(o**2 for o in off)),
        "median_relative_error": statistics.median(sizes),
        "worst_relative_error": max(sizes),
        "multiplicity_right": sum(r["multiplicity"] == r["multiplicity_exact"] for r in rows) / len(rows),
        "multiplicity_decided": len(sure) / len(rows),
        "multiplicity_decided_and_wrong": sum(r["multiplicity"] != r["multiplicity_exact"] for r in sure),
        "median_seconds": statistics.median(r["seconds"] for r in rows),
    }


def main() -> int:
    """Run all cases and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(600, 606)))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("volume.json"))
    options = parser.parse_args()
    jobs = [(name, seed) for name in CASES for seed in options.seeds]
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, jobs):
            rows.append(row)
            shown = " ".join(f"{m}:{w:.2f}" for m, w in row["weights"].items())
            print(
                f"{row['case']:<22} seed {row['seed']}  {row['value']:.4f} ± {row['se']:.2g} ± {row['systematic']:.2g} "
                f" exact {row['exact']:<5} {row['errors_off']:+5.1f} errors  m {row['multiplicity']} of "
                f"{row['multiplicity_exact']} ({shown})  {' '.join(row['findings'])}  {row['seconds']:.0f} s",
                flush=True,
            )
    result = summary(rows)
    for key, value in result.items():
        print(f"{key:<36} {value:.3g}")
    content = {
        "command": "python validation/volume.py --seeds " + " ".join(map(str, options.seeds)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": result,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if result["worst_in_stated_errors"] < 4 and result["within_two_stated_errors"] >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
