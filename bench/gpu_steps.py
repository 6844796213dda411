"""Time of an SGLD step of all chains, and peak memory, on a GPU: eager, compiled, and as a CUDA graph.

    PYTHONPATH=src python bench/gpu_steps.py --out validation/speed_gpu.json [--device cpu --quick]

`eager` and `compiled` time crunode's own runner as a slope between two lengths, so that what a run costs once does not
enter; without compiling, the runner replays the gradient as a CUDA graph. `graph` captures one whole step (gather,
gradient, update) and replays it with the same random numbers.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.core.rng import BatchStream, NoiseStream
from crunode.sampling.engine import Engine
from crunode.sampling.group import Group, run_group
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.stochastic import SGLD

CASES = [(name, chains) for name in models.MODELS for chains in (8, 32, 128)] + [("two-layer", 4096)]


def problem(name: str, device: torch.device) -> tuple[Posterior, SGLD]:
    if name == "two-layer":
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False))
        inputs = torch.randn(2000, 5)
        targets, loss, batch, run = model(inputs).detach(), F.mse_loss, 256, models.settings("tiny", 2000)
    else:
        model, inputs, targets, loss, batch = models.build(name)
        run = models.settings(name, len(inputs))
    land = Landscape(model.to(device), (inputs, targets), loss)
    posterior = Posterior(land, nbeta=run.nbeta, prior=Gaussian(precision=run.localization))
    return posterior, SGLD(step=run.step_size, batch=batch)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def slope(run: Any, short: int, long: int, repeats: int, device: torch.device) -> list[float]:
    """Seconds per step from the difference of a long and a short run, several times."""
    found = []
    for _ in range(repeats):
        spent = []
        for steps in (short, long):
            synchronize(device)
            start = time.perf_counter()
            run(steps)
            synchronize(device)
            spent.append(time.perf_counter() - start)
        found.append((spent[1] - spent[0]) / (long - short))
    return found


def by_runner(posterior: Posterior, kernel: SGLD, chains: int, compiled: bool) -> Any:
    rungs = posterior.rungs((kernel.step,)) * chains

    def run(steps: int) -> None:
        group = Group(posterior, kernel, 0, range(chains), rungs, 0, steps, 0, "batched", compiled=compiled, chunk=100)
        if run_group(group).failed:
            raise RuntimeError("chains diverged")

    run(20)
    return run


class StandingIndex:
    """Minibatch indices in memory that stays where it is, as a captured step needs."""

    def __init__(self, stream: BatchStream) -> None:
        self.stream, self.index = stream, stream.at(0).clone()

    def at(self, step: int) -> torch.Tensor:
        return self.index


def by_graph(posterior: Posterior, kernel: SGLD, chains: int) -> Any:
    land = posterior.landscape
    nbeta = torch.full((chains,), posterior.levels[0])
    engine = Engine(posterior, range(chains), nbeta, seed=0, batch=kernel.batch, layout="batched")
    assert engine._batches is not None
    standing = StandingIndex(engine._batches)
    engine._batches = standing  # type: ignore[assignment]
    engine._evaluate._captured = lambda replay, *_: replay  # type: ignore[method-assign]  # not a graph in a graph
    normal = NoiseStream(0, range(chains), land.dim, stream=0, device=land.device, dtype=land.packing.dtype)
    state = {"w": land.center.expand(chains, -1).clone()}
    step = torch.full((chains, 1), float(kernel.step), device=land.device)  # type: ignore[arg-type]
    noise = normal.at(0).clone()

    def advance() -> torch.Tensor:
        engine._offset = None  # computed inside the captured step, not remembered from before it
        return kernel.advance(state, engine, step, noise, step, False)["excess"]

    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                advance()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            excess = advance()

    # A graph does not keep alive the memory it works on; whoever replays it has to.
    held = engine, state, step

    def run(steps: int) -> None:
        assert held
        rows = []
        for k in range(steps):
            noise.copy_(normal.at(k))
            standing.index.copy_(standing.stream.at(k))
            graph.replay()
            rows.append(excess.clone())
        if not torch.isfinite(torch.stack(rows)).all():
            raise RuntimeError("chains diverged")

    run(20)
    return run


def measure(name: str, chains: int, variant: str, device: torch.device, quick: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"model": name, "chains": chains, "variant": variant}
    try:
        gc.collect()
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        posterior, kernel = problem(name, device)
        row["parameters"] = posterior.landscape.dim
        start = time.perf_counter()
        if variant == "graph":
            run = by_graph(posterior, kernel, chains)
        else:
            run = by_runner(posterior, kernel, chains, compiled=variant == "compiled")
        row["start_seconds"] = time.perf_counter() - start
        short, long = (20, 60) if quick else (200, 800)
        times = slope(run, short, long, 1 if quick else 3, device)
        row |= {"ms_per_step": 1e3 * statistics.median(times), "repeats_ms": [1e3 * t for t in times]}
        row["us_per_step_chain"] = 1e3 * row["ms_per_step"] / chains
        if device.type == "cuda":
            row["peak_memory_mb"] = torch.cuda.max_memory_allocated(device) / 1e6
    except Exception as error:
        row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(options.device)
    rows = []
    for variant in ("eager", "graph", "compiled"):
        for name, chains in CASES:
            if variant == "graph" and device.type != "cuda":
                continue
            rows.append(measure(name, chains, variant, device, options.quick))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                content = {
                    "command": "PYTHONPATH=src python bench/gpu_steps.py --out validation/speed_gpu.json",
                    "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                    "date": datetime.now(UTC).isoformat(timespec="seconds"),
                    "provenance": provenance(),
                    "rows": rows,
                }
                options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
