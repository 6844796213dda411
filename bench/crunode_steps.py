"""Seconds per (step x chain) of crunode's SGLD, on one thread, as JSON lines.

Each figure is a slope: a run is timed at a short and a long number of draws, and the difference in time is divided by
the difference in (steps x chains), so that what a run costs once does not enter. Lengths are multiples of the number
of steps whose random numbers are drawn together, so that this work enters in full.

In the sequential layout one chain runs after the other; two of them are timed, whatever the number asked for.
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
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models

from crunode.core.landscape import Landscape
from crunode.core.rng import BLOCK
from crunode.sampling.group import Group, run_group
from crunode.sampling.layout import split_chains
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.stochastic import SGLD

LONG_STEPS = {"tiny": 6000, "mlp": 128, "quadratic": 256}  # of a chain at 8 chains; fewer at more chains
ONE_BY_ONE = 2  # chains timed in the sequential layout


def lengths(name: str, chains: int, unit: int, long_steps: int | None) -> tuple[int, int]:
    """Short and long numbers of draws, both multiples of `unit` steps."""
    long = max(2, round((long_steps or LONG_STEPS[name]) * (8 / max(chains, 8)) ** 0.5 / unit))
    return unit * max(1, long // 8), unit * long


def groups_of(posterior: Posterior, kernel: SGLD, chains: int, layout: str, compiled: bool, draws: int) -> list[Group]:
    land, ids = posterior.landscape, range(chains)
    members = split_chains(land, ids, kernel.batch) if layout == "batched" else [[chain] for chain in ids]
    rung = posterior.rungs((kernel.step,))
    return [
        Group(posterior, kernel, k, ids, rung * len(ids), 0, draws, 0, layout, compiled=compiled)
        for k, ids in enumerate(members)
    ]


def measure(name: str, asked: int, layout: str, compiled: bool, repeats: int, long_steps: int | None = None) -> dict:
    model, inputs, targets, loss_fn, batch = models.build(name)
    run = models.settings(name, len(inputs))
    land = Landscape(model, (inputs, targets), loss_fn)
    posterior = Posterior(land, nbeta=run.nbeta, prior=Gaussian(precision=run.localization))
    kernel = SGLD(step=run.step_size, batch=batch)

    def timed(draws: int) -> tuple[float, float, float]:
        jobs = groups_of(posterior, kernel, chains, layout, compiled, draws)
        wall, cpu = time.perf_counter(), time.process_time()
        outcomes = [run_group(job) for job in jobs]
        spent = time.perf_counter() - wall, time.process_time() - cpu
        if any(outcome.failed for outcome in outcomes):
            raise RuntimeError(f"the chains of {name} diverge at step size {run.step_size}")
        return *spent, statistics.fmean(float(outcome.arrays["excess"].mean()) for outcome in outcomes)

    chains = asked if layout == "batched" else min(asked, ONE_BY_ONE)
    unit = max(1, BLOCK // land.dim)
    short, long = lengths(name, chains, unit, long_steps)
    timed(2 if compiled else unit)  # warm-up
    walls, cpus, excess = [], [], math.nan
    for _ in range(repeats):
        first, last = timed(short), timed(long)
        scale = 1e6 / ((long - short) * chains)
        walls.append((last[0] - first[0]) * scale)
        cpus.append((last[1] - first[1]) * scale)
        excess = last[2]
    return {
        "tool": "crunode",
        "version": version("crunode"),
        "model": name,
        "chains": asked,
        "chains_timed": chains,
        "layout": layout,
        "compiled": compiled,
        "us_per_step_chain": statistics.median(walls),
        "repeats": walls,
        "cpu_us_per_step_chain": statistics.median(cpus),
        "draws": [short, long],
        "init_loss": float(land.loss()),
        "mean_excess": excess,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=models.MODELS, help="default: all")
    parser.add_argument("--chains", action="append", type=int, help="default: 8 and 32")
    parser.add_argument("--layout", action="append", choices=("batched", "sequential"), help="default: both")
    parser.add_argument("--compiled", choices=("yes", "no", "both"), default="both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--long", type=int, help="steps of the long run at 8 chains")
    parser.add_argument("--out", type=Path, help="file to append to; default: standard output alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    options = {"yes": (True,), "no": (False,), "both": (False, True)}[args.compiled]
    for name in args.model or models.MODELS:
        for chains in args.chains or models.CHAINS:
            for layout in args.layout or ("batched", "sequential"):
                for compiled in options:
                    try:
                        row = measure(name, chains, layout, compiled, args.repeats, args.long)
                    except Exception as error:
                        if not compiled:
                            raise
                        print(f"not compiled: {name}, {layout}: {type(error).__name__}: {error}", file=sys.stderr)
                        continue
                    line = json.dumps(row)
                    print(line, flush=True)
                    if args.out:
                        with args.out.open("a") as stream:
                            stream.write(line + "\n")


if __name__ == "__main__":
    main()
