"""Where the time of a step of SGLD or SGHMC goes, part by part, on one CPU thread.

A step in C takes the place of noise, update and distance where there is one.

python bench/sections.py [--kernel SGHMC]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models
from crunode_steps import groups_of

from crunode.core.landscape import Landscape
from crunode.core.rng import NoiseStream
from crunode.sampling.group import _Runner
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.stochastic import SGHMC, SGLD

CASES = (("tiny", 8), ("tiny", 32), ("mlp", 1), ("quadratic", 8))
PRODUCTS = (torch.mm, torch.bmm, torch.addmm, torch.baddbmm)
KERNELS = {"SGLD": SGLD, "SGHMC": SGHMC}
PARTS = ("gradient", "of which products", "gather", "in C", "noise", "update", "distance")


class Clock:
    """Adds up the time between calls, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}
        self.last = time.perf_counter()

    def lap(self, name: str | None) -> None:
        now = time.perf_counter()
        if name is not None:
            self.spent.setdefault(name, []).append(now - self.last)
        self.last = time.perf_counter()


def sections(name: str, chains: int, steps: int, kind: str) -> dict[str, float]:
    """Microseconds per step and chain of each part."""
    model, inputs, targets, loss_fn, batch = models.build(name)
    run = models.settings(name, len(inputs))
    posterior = Posterior(
        Landscape(model, (inputs, targets), loss_fn), nbeta=run.nbeta, prior=Gaussian(precision=run.localization)
    )
    kernel = KERNELS[kind](step=run.step_size, batch=batch)
    layout = "batched" if chains > 1 else "sequential"
    group = groups_of(posterior, kernel, chains, layout, False, steps)[0]
    chains, runner = len(group.chains), _Runner(group)
    state, _ = runner._start()
    for step in range(5):
        runner._advance(state, step, False)
    engine, w, clock = runner.engine, state["w"], Clock()
    for step in range(5, 2 * steps):
        clock.lap(None)
        tensors = engine._gather(engine._batches.at(step))  # type: ignore[union-attr]
        clock.lap("gather")
        gradient, _ = engine._evaluate(w if chains > 1 else w[0], tensors)
        clock.lap("gradient")
        gradient = gradient if chains > 1 else gradient[None]
        if runner.native is not None and step < steps:
            runner.native(w, gradient, step, state.get("velocity"))
            clock.lap("in C")
            continue
        torch.linalg.vector_norm(engine.offset(w), dim=1).square_()
        clock.lap("distance")
        noise = runner.normal.at(step)
        clock.lap("noise")
        gradient.add_(engine.offset(w), alpha=posterior.precision)
        kernel.advance(state, lambda _, slope=gradient: (slope, slope), runner.step, noise, runner.step, False)
        clock.lap("update")
    found = {part: 1e6 * statistics.quantiles(times, n=10)[0] / chains for part, times in clock.spent.items()}
    found["noise"] += drawing(runner.normal) / chains
    if runner.native is not None:
        found["in C"] += drawing(runner.native._drawn) / chains
    timed = [products(engine, w if chains > 1 else w[0], tensors, 20) for _ in range(steps // 20)]
    found["of which products"] = statistics.quantiles(timed, n=10)[0] / chains
    return found


def drawing(stream: NoiseStream | None) -> float:
    """Microseconds a step for drawing a block of random numbers that serves many steps."""
    if stream is None or stream._steps == 1:
        return 0.0
    times = []
    for _ in range(20):
        stream._block, start = None, time.perf_counter()
        stream.at(0)
        times.append(time.perf_counter() - start)
    return 1e6 * min(times) / stream._steps


def products(engine: Any, w: torch.Tensor, tensors: Any, steps: int) -> float:
    """Microseconds that matrix products by torch take in a gradient (those in C are not seen), by its profiler."""
    with torch.profiler.profile() as profile:
        for _ in range(steps):
            engine._evaluate(w, tensors)
    names = {f"aten::{product.__name__}" for product in PRODUCTS}
    return sum(event.self_cpu_time_total for event in profile.key_averages() if event.key in names) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--kernel", choices=KERNELS, default="SGLD")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print(f"| model | chains | {' | '.join(PARTS)} |\n|---|---|{'---|' * len(PARTS)}")
    for name, chains in CASES:
        found = sections(name, chains, options.steps, options.kernel)
        print(f"| {name} | {chains} | {' | '.join(f'{found.get(part, math.nan):.3g}' for part in PARTS)} |", flush=True)


if __name__ == "__main__":
    main()
