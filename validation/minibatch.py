"""Minibatches of 128 with unit label noise: llc(kernel=SGLD(batch=128)), everything else left to be chosen.

    python validation/minibatch.py [--seeds 300 301 302] [--workers 2] [--out validation/minibatch.json]

Ten linear networks at their most singular true parameter, n = 4096: the eight reference cases of the benchmark, deep
and shallow, and two more reduced rank regressions. Each is run with the labels as given and with the default, beside
plain SGLD at a usual step (ε = 1e-3, nβ = n / log n, γ = 100).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import crunode
from crunode.core.result import provenance
from crunode.sampling.posterior import wbic_nbeta
from crunode_papers.hitchcock2025.linear import singular_network
from crunode_papers.hitchcock2025.problems import REFERENCE

CASES = [*REFERENCE, ((5, 4, 5), 0), ((6, 3, 8), 1)]
EXAMPLES, BATCH, PLAIN_PRECISION, PLAIN_STEP = 4096, 128, 100.0, 1e-3
MODES = ("given", "default", "plain")


def run(job: tuple[str, tuple[int, ...], int, int]) -> dict[str, Any]:
    """One estimate beside the exact value."""
    mode, widths, rank, seed = job
    torch.set_num_threads(1)
    landscape = singular_network(EXAMPLES, seed=seed, widths=widths, rank=rank, noise=1.0)
    exact = crunode.exact.deep_linear(widths[::-1], rank=rank).value
    options: dict[str, Any] = {"kernel": crunode.SGLD(batch=BATCH), "labels": "given" if mode == "given" else None}
    if mode == "plain":
        # A usual step for weights of this size; the temperature and the prior are the conventional ones.
        kernel = crunode.SGLD(step=PLAIN_STEP, batch=BATCH)
        nbeta = wbic_nbeta(EXAMPLES)
        options = {"kernel": kernel, "nbeta": nbeta, "precision": PLAIN_PRECISION, "labels": "given"}
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        estimate = crunode.llc(landscape, seed=seed, on_failure="return", **options)
    off = estimate.value - float(exact)
    return {
        "mode": mode,
        "widths": list(widths),
        "rank": rank,
        "seed": seed,
        "exact": str(exact),
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "terms": dict(estimate.terms),
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings],
        "relative_error": off / float(exact),
        "errors_off": off / estimate.error if estimate.error > 0 else None,
        "control": estimate.spec["kernel"].get("control"),
        "step": estimate.diagnostics.get("step"),
        "cost": estimate.diagnostics.get("cost"),
        "seconds": time.perf_counter() - start,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst relative error and coverage."""
    sizes = [abs(r["relative_error"]) if r["relative_error"] == r["relative_error"] else float("inf") for r in rows]
    scores = [abs(r["errors_off"]) for r in rows if r["errors_off"] is not None]
    return {
        "runs": len(rows),
        "ok": sum(r["ok"] for r in rows),
        "median_relative_error": statistics.median(sizes),
        "worst_relative_error": max(sizes),
        "within_two_stated_errors": sum(s <= 2 for s in scores) / len(rows),
        "median_seconds": statistics.median(r["seconds"] for r in rows),
    }


def main() -> int:
    """Run all cases and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[300, 301, 302])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("minibatch.json"))
    options = parser.parse_args()
    jobs = [(mode, *case, seed) for seed in options.seeds for mode in MODES for case in CASES]
    rows = []
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        for row in pool.map(run, jobs):
            rows.append(row)
            print(
                f"{row['mode']:<8} {'-'.join(map(str, row['widths']))};{row['rank']} seed {row['seed']}  "
                f"{row['value']:8.3f} ± {row['se']:.2g} ± {row['systematic']:.2g}  exact {row['exact']:<5} "
                f"{100 * row['relative_error']:+6.1f} %  {'ok' if row['ok'] else 'not ok'} "
                f"{' '.join(row['findings'])}  {row['seconds']:.0f} s",
                flush=True,
            )
    result = {mode: summary([r for r in rows if r["mode"] == mode]) for mode in MODES}
    for mode, parts in result.items():
        print(mode, {key: round(value, 3) for key, value in parts.items()})
    content = {
        "command": "python validation/minibatch.py --seeds " + " ".join(map(str, options.seeds)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": result,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(result[mode]["median_relative_error"] <= 0.05 for mode in ("given", "default")) else 1


if __name__ == "__main__":
    sys.exit(main())
