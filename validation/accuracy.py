"""Held against the truth: llc() with defaults only on landscapes whose learning coefficient is known exactly.

    python validation/accuracy.py [--seeds 200 201 202 203 204] [--workers 2] [--out validation/accuracy.json]

Normal crossings x^{2a} y^{2b}, and reduced rank regression at its most singular true parameter with noise-free and
unit-noise labels. Every result is written with its stated errors; `crunode.examples.toys` builds the landscapes.
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
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import crunode
from crunode.core.result import provenance
from crunode.examples import toys

CROSSINGS = [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (1, 3), (3, 3)]
REDUCED_RANK = [(5, 3, 5, 0), (5, 4, 5, 0), (4, 3, 8, 0), (8, 3, 4, 0), (3, 8, 4, 0), (6, 4, 6, 2), (10, 10, 10, 3)]


def run(job: tuple[str, tuple[int, ...], float, int]) -> dict[str, Any]:
    """One estimate with defaults, beside the exact value."""
    family, case, noise, seed = job
    torch.set_num_threads(1)
    exact: Fraction
    if family == "normal crossing":
        landscape, exact = toys.normal_crossing(*case), toys.exact_normal_crossing(*case)
    else:
        landscape = toys.reduced_rank(*case, n=2000, noise=noise, seed=seed)
        exact = toys.exact_reduced_rank(*case)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        estimate = crunode.llc(landscape, seed=seed, on_failure="return")
    off = estimate.value - float(exact)
    return {
        "family": family,
        "case": list(case),
        "noise": noise,
        "seed": seed,
        "exact": str(exact),
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "terms": dict(estimate.terms),
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings],
        "relative_error": off / float(exact),
        "errors_off": off / estimate.error,
        "levels": [{k: r[k] for k in ("nbeta", "value", "se")} for r in estimate.diagnostics.get("levels", [])],
        "seconds": time.perf_counter() - start,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst relative error, and the worst error among results marked ok in units of their stated error."""
    sizes = [abs(r["relative_error"]) for r in rows]
    good = [abs(r["errors_off"]) for r in rows if r["ok"]]
    return {
        "runs": len(rows),
        "ok": len(good),
        "median_relative_error": statistics.median(sizes),
        "worst_relative_error": max(sizes),
        "worst_ok_in_stated_errors": max(good, default=math.nan),
        "within_one_stated_error": sum(g <= 1 for g in good) / max(len(good), 1),
        "within_two_stated_errors": sum(g <= 2 for g in good) / max(len(good), 1),
        "median_seconds": statistics.median(r["seconds"] for r in rows),
    }


def main() -> int:
    """Run all cases and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202, 203, 204])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("accuracy.json"))
    options = parser.parse_args()
    jobs = [("reduced rank", c, z, s) for c in reversed(REDUCED_RANK) for z in (1.0, 0.0) for s in options.seeds]
    jobs += [("normal crossing", c, 0.0, s) for c in CROSSINGS for s in options.seeds]
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, jobs):
            rows.append(row)
            print(
                f"{row['family']:<15} {row['case']!s:<16} noise {row['noise']:.0f} seed {row['seed']}  "
                f"{row['value']:8.3f} ± {row['se']:.2g} ± {row['systematic']:.2g}  exact {row['exact']:<5} "
                f"{100 * row['relative_error']:+6.1f} %  {row['errors_off']:+5.1f} errors  "
                f"{'ok' if row['ok'] else 'not ok'} {' '.join(row['findings'])}  {row['seconds']:.0f} s",
                flush=True,
            )
    result = summary(rows)
    for key, value in result.items():
        print(f"{key:<28} {value:.3g}")
    content = {
        "command": "python validation/accuracy.py --seeds " + " ".join(map(str, options.seeds)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": result,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    bars = result["median_relative_error"] < 0.10 and result["worst_relative_error"] < 0.25
    return 0 if bars and result["worst_ok_in_stated_errors"] < 3 else 1


if __name__ == "__main__":
    sys.exit(main())
