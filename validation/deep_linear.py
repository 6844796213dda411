"""Held against the truth: llc() with defaults only on random deep linear networks at random points of low rank.

    python validation/deep_linear.py [--seeds 2000 2048] [--workers 2] [--out validation/deep_linear.json]

The published benchmark's class of about a thousand parameters (Lau et al. 2023): 2 to 5 layers, widths 5 to 50,
Xavier-uniform weights, each layer's rank lowered at random with probability 1/2, inputs uniform on [-10, 10], 10^5
examples, no label noise. The truth is the local coefficient at the weights, `crunode.exact.deep_linear_local`; the
global one is recorded beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

import crunode
from crunode.core.result import provenance
from crunode.exact import LearningCoefficient, deep_linear, deep_linear_local

LAYERS, WIDTHS, EXAMPLES = (2, 5), (5, 50), 100_000


def network(seed: int) -> tuple[crunode.Landscape, list[int], list[int]]:
    """A random network on its own predictions, its widths from input to output and the ranks of its layers."""
    generator, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    widths = [chance.randint(*WIDTHS) for _ in range(chance.randint(*LAYERS) + 1)]
    net, ranks = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]), []
    with torch.no_grad():
        for layer in net:
            weight = nn.init.xavier_uniform_(torch.empty_like(layer.weight), generator=generator)
            rank = min(weight.shape)
            if chance.random() < 0.5:
                rank = chance.randint(0, rank)
                u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
                s[rank:] = 0
                weight = (u * s @ v).float()
            layer.weight.copy_(weight)
            ranks.append(rank)
        x = 20 * torch.rand(EXAMPLES, widths[0], generator=generator) - 10
        return crunode.Landscape(net, (x, net(x)), "gaussian"), widths, ranks


def truth(widths: list[int], ranks: list[int]) -> tuple[LearningCoefficient, LearningCoefficient]:
    """The local coefficient at weights that are random but for their ranks, and the global one."""
    sizes, given = widths[::-1], ranks[::-1]
    table = [[min(given[s : t + 1]) for t in range(s, len(given))] for s in range(len(given))]
    return deep_linear_local(sizes, table), deep_linear(sizes, rank=min(given))


def run(seed: int) -> dict[str, Any]:
    """One estimate with defaults, beside the exact value."""
    torch.set_num_threads(1)
    landscape, widths, ranks = network(seed)
    local, whole = truth(widths, ranks)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        estimate = crunode.llc(landscape, seed=seed, on_failure="return")
    off = estimate.value - float(local)
    return {
        "seed": seed,
        "widths": widths,
        "ranks": ranks,
        "dim": landscape.dim,
        "local": str(local.value),
        "global": str(whole.value),
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings],
        "relative_error": off / float(local),
        "errors_off": off / estimate.error,
        "seconds": time.perf_counter() - start,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors over all runs and over those marked ok."""
    found: dict[str, Any] = {"runs": len(rows), "median_seconds": statistics.median(r["seconds"] for r in rows)}
    for name, part in (("all", rows), ("ok", [r for r in rows if r["ok"]])):
        sizes = sorted(abs(r["relative_error"]) for r in part)
        found[name] = {
            "runs": len(part),
            "median_relative_error": statistics.median(sizes),
            "95th_percentile": sizes[math.ceil(0.95 * len(sizes)) - 1],
            "worst_relative_error": sizes[-1],
            "within_two_stated_errors": sum(abs(r["errors_off"]) <= 2 for r in part) / len(part),
        }
    return found


def main() -> None:
    """Run all networks and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=[2000, 2048], help="first, and one past the last")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--commit", help="the commit of the sources, where they are not in a git repository")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("deep_linear.json"))
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run, range(*options.seeds)))
    content = {
        "command": f"python validation/deep_linear.py --seeds {options.seeds[0]} {options.seeds[1]}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": {**provenance(), **({"git": options.commit} if options.commit else {})},
        "summary": summary(rows),
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["summary"], indent=1))


if __name__ == "__main__":
    main()
