"""How the cost of a step grows with parameters, examples, batch and chains, on one CPU thread.

    python bench/scaling.py --out validation/scaling_cpu.json

Each figure is a slope between two lengths of crunode's own runner, the median of some repeats. One thing is changed at
a time from a net 16-64-64-4 (5508 parameters) with batches of 128 out of 4096 examples and 8 chains.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.sampling.group import Group, run_group
from crunode.sampling.layout import split_chains
from crunode.sampling.metropolis import MALA
from crunode.sampling.posterior import Gaussian, Posterior, Rung
from crunode.sampling.stochastic import SGLD

BASE = {"hidden": 64, "examples": 4096, "batch": 128, "chains": 8, "kernel": "SGLD", "layout": "batched"}
SWEEPS: dict[str, list[dict[str, Any]]] = {
    "parameters": [{"hidden": h, "layout": k} for h in (8, 32, 128, 512) for k in ("batched", "sequential")],
    "chains": [{"chains": c} for c in (1, 2, 8, 32, 128, 512)],
    "batch": [{"batch": b} for b in (16, 64, 256, 1024)],
    "examples, minibatches": [{"examples": n} for n in (1024, 16384, 262144)],
    "examples, all data at each step": [{"examples": n, "kernel": "MALA"} for n in (256, 1024, 4096, 16384)],
}


def posterior(hidden: int, examples: int) -> Posterior:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(16, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 4)
        )
        inputs, labels = torch.randn(examples, 16), torch.randint(4, (examples,))
    return Posterior(Landscape(model, (inputs, labels), F.cross_entropy), nbeta=100.0, prior=Gaussian(precision=1.0))


def measure(case: dict[str, Any], repeats: int, seconds: float) -> dict[str, Any]:
    """Milliseconds a step of all chains takes; the long run is made to last about `seconds`."""
    target, chains = posterior(case["hidden"], case["examples"]), case["chains"]
    kernel: Any = MALA(1e-8) if case["kernel"] == "MALA" else SGLD(1e-8, case["batch"])
    layout = case["layout"] if chains > 1 else "sequential"
    # Chains one by one are alike: one is timed.
    together = split_chains(target.landscape, range(chains), getattr(kernel, "batch", None))
    members = together if layout == "batched" else [[0]]

    def timed(draws: int) -> float:
        start = time.perf_counter()
        for ids in members:
            rungs = [Rung(100.0, target.precision, kernel.step)] * len(ids)
            run_group(Group(target, kernel, 0, ids, rungs, 0, draws, 0, layout))
        return time.perf_counter() - start

    timed(5)
    rough = max(1e-6, (timed(40) - timed(10)) / 30)
    long = max(20, min(20000, int(seconds / rough)))
    short = max(5, long // 8)
    times = [(timed(long) - timed(short)) / (long - short) for _ in range(repeats)]
    step = statistics.median(times) * (1 if layout == "batched" else chains)
    spread = (max(times) - min(times)) / statistics.median(times)
    found = {"parameters": target.landscape.dim, **case, "layout": layout}
    return {**found, "ms_per_step": 1e3 * step, "us_per_step_chain": 1e6 * step / chains, "relative_spread": spread}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = ("parameters", "examples", "batch", "chains", "layout", "ms_per_step", "us_per_step_chain")
    for sweep in SWEEPS:
        yield f"\n{sweep}\n"
        yield "| parameters | examples | batch | chains | layout | ms a step | us a step and chain |"
        yield "|---|---|---|---|---|---|---|"
        for row in rows:
            if row["sweep"] == sweep:
                whole = {**row, "batch": "all"} if row["kernel"] == "MALA" else row
                cells = [f"{whole[n]:.3g}" if isinstance(whole[n], float) else str(whole[n]) for n in names]
                yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for sweep, changes in SWEEPS.items():
        for change in changes:
            rows.append({"sweep": sweep, **measure({**BASE, **change}, options.repeats, options.seconds)})
            print(json.dumps(rows[-1]), flush=True)
    print("\n".join(table(rows)))
    if options.out:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"date": date, "load_average": os.getloadavg()[0], "provenance": provenance(), "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
