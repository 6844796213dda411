"""Twenty calls with twenty seeds on the same landscape: is the stated standard error how far they scatter?

    python validation/repeats.py [--workers 2] [--first-seed 900] [--out validation/repeats.json]

Data and weights stay the same; only the seed of the estimate changes. The standard error is the Monte-Carlo part alone,
so the ratio of the spread of the values to the mean stated standard error should be near 1. With twenty calls the
spread itself is known to 16 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F

import crunode
from crunode.core.result import provenance
from crunode.examples import toys
from crunode.examples.demo import train_network
from crunode_papers.image_data.datasets import load_images


def trained() -> crunode.Landscape:
    """The network of the demonstration."""
    data = load_images("fashion-mnist").tensors("train", 2)
    return crunode.Landscape(train_network(*data), data, F.cross_entropy)


CASES: dict[str, tuple[Callable[[], crunode.Landscape], dict[str, Any]]] = {
    "quadratic, 10 parameters": (lambda: toys.quadratic(10), {}),
    "normal crossing x²y²": (lambda: toys.normal_crossing(1, 1), {}),
    "reduced rank 6-4-6, rank 2": (lambda: toys.reduced_rank(6, 4, 6, 2), {}),
    "reduced rank 5-3-5, rank 0": (lambda: toys.reduced_rank(5, 3, 5, 0), {}),
    "reduced rank 6-4-6, noise": (lambda: toys.reduced_rank(6, 4, 6, 2, noise=1.0), {"labels": "given"}),
    "reduced rank 6-4-6, noise, SGLD": (
        lambda: toys.reduced_rank(6, 4, 6, 2, noise=1.0),
        {"labels": "given", "kernel": crunode.SGLD(batch=128)},
    ),
    "reduced rank 6-4-6 at n / log n": (lambda: toys.reduced_rank(6, 4, 6, 2), {"nbeta": "wbic"}),
    "trained network": (trained, {}),
    "trained network, SGLD": (trained, {"kernel": crunode.SGLD()}),
}


def run(job: tuple[str, int]) -> dict[str, Any]:
    """One estimate."""
    torch.set_num_threads(1)
    name, seed = job
    build, options = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        estimate = crunode.llc(build(), seed=seed, on_failure="return", **options)
    return {"case": name, "seed": seed, "value": estimate.value, "se": estimate.se, "systematic": estimate.systematic}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Spread and stated error of each case."""
    found = {}
    for name in dict.fromkeys(r["case"] for r in rows):
        part = [r for r in rows if r["case"] == name]
        spread, stated = statistics.stdev(r["value"] for r in part), statistics.mean(r["se"] for r in part)
        found[name] = {
            "calls": len(part),
            "mean": statistics.mean(r["value"] for r in part),
            "spread": spread,
            "stated_se": stated,
            "ratio": spread / stated if stated else None,
            "total_error": statistics.mean(r["systematic"] for r in part),
        }
    return found


def main() -> None:
    """Run all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=900)
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("repeats.json"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    jobs = [(name, seed) for name in options.only for seed in seeds]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run, jobs))
    result = summary(rows)
    for name, row in result.items():
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(
            f"{name:<34} {row['mean']:8.3f}  spread {row['spread']:.3g}  stated {row['stated_se']:.3g}  ratio {ratio}"
        )
    only = "" if options.only == list(CASES) else f" --only {shlex.join(options.only)}"
    content = {
        "command": f"python validation/repeats.py --seeds {options.seeds} --first-seed {options.first_seed}{only}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "summary": result,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
