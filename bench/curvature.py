"""Time until the Hessian trace is known to 1 %: crunode, PyHessian and BackPACK on the same models, batch and device.

    PYTHONPATH=src .venv-peer-curvature/bin/python bench/curvature.py --out validation/curvature_speed_cpu.json

Peers that cannot be imported are left out; a folder with PyHessian on PYTHONPATH is enough. PyHessian draws random
vectors one after another: a number of them is timed, and the time to 1 % is that of as many as bring the standard
error of their mean to 1 %, (100 s/m)² for values of standard deviation s and the trace m that crunode found.
BackPACK's exact diagonal of the Gauss-Newton matrix has the trace of the Hessian for its sum where the model is
piecewise linear. What is made once for a model (the landscape, PyHessian's gradient, BackPACK's hooks) is timed apart;
times to 1 % are with it. All sides are timed in turns in one process, on one thread, by wall and by processor time;
on a busy machine the latter is to be read.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import crunode
from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.curvature.traces import hessian_trace

sys.path.insert(0, str(Path(__file__).resolve().parent))
from peer.traces import backpack_start, backpack_trace, pyhessian_start, pyhessian_values

DATA = Path(crunode.__file__).parent / "data_files" / "fashion_mnist_small.npz"
BATCH = 512
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def mlp(activation: type[nn.Module]) -> nn.Module:
    """784-256-256-10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), activation(), nn.Linear(256, 256), activation(), nn.Linear(256, 10)
    )


def cnn(activation: type[nn.Module]) -> nn.Module:
    """Two convolutions with max-pooling, two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), activation(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(784, 64), activation(), nn.Linear(64, 10)),
    )


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Images of Fashion-MNIST."""
    stored = np.load(DATA)
    x = torch.tensor(stored["x_train"][:BATCH]).float()[:, None] / 255
    return x.to(device), torch.tensor(stored["y_train"][:BATCH]).long().to(device)


def model(case: str, steps: int, data: tuple[Tensor, Tensor]) -> nn.Module:
    """A model of the given kind after some steps of Adam on the batch."""
    kind, activation = case.split("-")
    torch.manual_seed(0)
    net = {"mlp": mlp, "cnn": cnn}[kind](ACTIVATIONS[activation]).to(data[0].device)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(data[0]), data[1]).backward()
        optimizer.step()
    net.zero_grad()
    return net.eval()


class Clock:
    """Wall and processor seconds of calls."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def __call__(self, fn: Callable[[], object]) -> object:
        if self._cuda:
            torch.cuda.synchronize()
        wall, cpu = time.perf_counter(), time.process_time()
        found = fn()
        if self._cuda:
            torch.cuda.synchronize()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        return found

    def summary(self, factor: float = 1.0) -> dict[str, float]:
        """Medians of the calls, times a factor."""
        return {"wall_s": factor * statistics.median(self.wall), "cpu_s": factor * statistics.median(self.cpu)}


def measure(case: str, steps: int, device: torch.device, repeats: int, vectors: int, peers: list[str]) -> dict:
    """One row of the record."""
    data = batch(device)
    net = model(case, steps, data)
    clocks = {name: Clock(device) for name in ("made", "trace", "started", "vectors", "extended", "diagonal")}
    hessian_trace(Landscape(net, data, F.cross_entropy))  # first calls set things up
    values: list[float] = []
    diagonal = float("nan")
    for k in range(repeats):
        land = clocks["made"](lambda: Landscape(net, data, F.cross_entropy))
        found = clocks["trace"](lambda land=land, seed=k: hessian_trace(land, seed=seed))
        if "pyhessian" in peers:
            fresh = model(case, steps, data)
            torch.manual_seed(1 + k)  # PyHessian draws from the global generator
            started = clocks["started"](lambda net=fresh: pyhessian_start(net, data))
            values += clocks["vectors"](lambda it=started: pyhessian_values(it, vectors))
            fresh.zero_grad()
        if "backpack" in peers and case.endswith("relu"):
            fresh = model(case, steps, data)
            extended = clocks["extended"](lambda net=fresh: backpack_start(net))
            if k == 0:
                backpack_trace(*extended, data)
            diagonal = clocks["diagonal"](lambda it=extended: backpack_trace(*it, data))
    row = {
        "case": case,
        "steps": steps,
        "parameters": sum(p.numel() for p in net.parameters()),
        "crunode": {
            **together(clocks["made"].summary(), clocks["trace"].summary()),
            "trace_alone": clocks["trace"].summary(),
            "value": found.value,
            "se": found.se,
            "method": found.diagnostics["method"],
            "probes": found.diagnostics["probes"],
            "repeats_cpu_s": clocks["trace"].cpu,
        },
    }
    if values:
        needed = max(2.0, (100 * statistics.stdev(values) / abs(found.value)) ** 2)
        row["pyhessian"] = {
            **together(clocks["started"].summary(), clocks["vectors"].summary(needed / vectors)),
            "per_vector": clocks["vectors"].summary(1 / vectors),
            "value": statistics.fmean(values),
            "se": statistics.stdev(values) / math.sqrt(len(values)),
            "vectors_timed": len(values),
            "vectors_to_1_percent": needed,
        }
        row["pyhessian_over_crunode"] = ratio(row["pyhessian"], row["crunode"])
    if clocks["diagonal"].cpu:
        row["backpack"] = {
            **together(clocks["extended"].summary(), clocks["diagonal"].summary()),
            "trace_alone": clocks["diagonal"].summary(),
            "value": diagonal,
        }
        row["backpack_over_crunode"] = ratio(row["backpack"], row["crunode"])
        row["backpack_over_crunode_alone"] = ratio(row["backpack"]["trace_alone"], row["crunode"]["trace_alone"])
    return row


def together(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """Sums of times."""
    return {clock: first[clock] + second[clock] for clock in first}


def ratio(theirs: dict, ours: dict) -> dict[str, float]:
    """How many times longer they take."""
    return {clock: theirs[clock] / ours[clock] for clock in ("wall_s", "cpu_s")}


def geometric(rows: list[dict], clock: str) -> float | None:
    """Geometric mean of the ratios to PyHessian of models with smooth activations."""
    ratios = [r["pyhessian_over_crunode"][clock] for r in rows if "pyhessian" in r and not r["case"].endswith("relu")]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def main() -> None:
    """Measure all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="*", default=[f"{k}-{a}" for k in ("mlp", "cnn") for a in ACTIVATIONS])
    parser.add_argument("--steps", nargs="*", type=int, default=[0, 100], help="training steps before the trace")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vectors", type=int, default=40, help="PyHessian's vectors in each repeat")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*create_graph=True.*")
    peers = [name for name in ("pyhessian", "backpack") if importlib.util.find_spec(name)]
    rows = []
    for steps in args.steps:
        for case in args.cases:
            rows.append(measure(case, steps, device, args.repeats, args.vectors, peers))
            print(json.dumps(rows[-1]), flush=True)
    record = {
        "command": "PYTHONPATH=src python bench/curvature.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "batch": BATCH,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "load_average": os.getloadavg(),
        "provenance": provenance(),
        "geometric_mean_smooth": {clock: geometric(rows, clock) for clock in ("wall_s", "cpu_s")},
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["geometric_mean_smooth"]))


if __name__ == "__main__":
    main()
