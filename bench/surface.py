"""Time of a loss surface against loss-landscapes 3.0.6, in one run.

    PYTHONPATH=src:PEER python bench/surface.py --out validation/surface_speed_cpu.json [--device cuda] [--full]

PEER is a folder with the package loss_landscapes (pip install --no-deps --target PEER loss-landscapes==3.0.6); without
it only crunode is timed. The network is 784-256-256-10 with ReLU, in single precision, the data 2048 examples, the loss
cross-entropy. Both libraries evaluate the same plane of two filter-normalized directions, on square grids of 11 and 21
points a side, in turns; `--full` adds the grid of 101 × 101 points for crunode, `--peer-full` also for the other, which
takes minutes on a processor. A call of either is timed as a user makes it: for crunode that includes the trial that
chooses a layout, fingerprints and provenance. On a CPU everything runs on one thread, and time is that of the thread,
which other programs on the machine change less.

loss-landscapes gives a grid whose odd columns are shifted by one point; even columns are compared.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.topology.directions import Plane, random_directions
from crunode.topology.surfaces import surface

EXAMPLES, EXTENT = 2048, 1.0


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers).to(device)


def data(device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(EXAMPLES, 784, generator=generator)
    y = (x @ torch.randn(784, 10, generator=generator)).argmax(1)
    return x.to(device), y.to(device)


def seconds(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    if device == "cpu":
        start = time.thread_time()
        found = call()
        return time.thread_time() - start, found
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def ours(land: Landscape, plane: Plane, points: int) -> np.ndarray:
    return surface(land, plane, points=points, extent=EXTENT)


def peer(net: nn.Module, land: Landscape, plane: Plane, x: Tensor, y: Tensor, points: int) -> Callable[[], np.ndarray]:
    """A call of loss-landscapes on the same plane: its point (i, j + 1) is start + i d1 + (j + 1) d2, in steps."""
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    step = 2 * EXTENT / (points - 1)

    def at(a: float, b: float) -> nn.Module:
        other = copy.deepcopy(net)
        named = land.packing.unravel(plane.at([a, b]))
        with torch.no_grad():
            for name, p in other.named_parameters():
                p.copy_(named[name])
        return other

    low = -EXTENT
    start = at(low, low - step)
    one, two = at(low + points * step, low - step), at(low, low - step + points * step)
    metric = Loss(F.cross_entropy, x, y)
    return lambda: loss_landscapes.planar_interpolation(start, one, two, metric, steps=points, deepcopy_model=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--peer-full", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = options.device
    net, (x, y) = network(device), data(device)
    land = Landscape(net, (x, y), F.cross_entropy)
    plane = random_directions(land, seed=0)
    with_peer = importlib.util.find_spec("loss_landscapes") is not None
    rows = []
    for points in (11, 21, *([101] if options.full or options.peer_full else [])):
        both = with_peer and (points < 101 or options.peer_full)
        rounds = options.rounds if points < 101 else 1
        times: dict[str, list[float]] = {"crunode": [], "loss-landscapes": []}
        seen, grid = None, None
        for _ in range(rounds):
            took, seen = seconds(lambda n=points: ours(land, plane, n), device)
            times["crunode"].append(took)
            if both:
                took, grid = seconds(peer(net, land, plane, x, y, points), device)
                times["loss-landscapes"].append(took)
        assert seen is not None
        row = {
            "points": points**2,
            "layout": seen.spec["evaluation"],
            "seconds": statistics.median(times["crunode"]),
            "all_seconds": times["crunode"],
            "ms_per_point": 1e3 * statistics.median(times["crunode"]) / points**2,
        }
        if grid is not None:
            even = np.abs(grid[::2] - seen.losses[::2]) / seen.losses[::2]
            row["peer_seconds"] = statistics.median(times["loss-landscapes"])
            row["peer_all_seconds"] = times["loss-landscapes"]
            row["peer_ms_per_point"] = 1e3 * row["peer_seconds"] / points**2
            row["times_faster"] = row["peer_seconds"] / row["seconds"]
            row["largest_relative_difference"] = float(even.max())
        rows.append(row)
        print({k: v for k, v in row.items() if "all" not in k})
    if options.out:
        where = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device, **provenance()}
        if device != "cpu":
            where["gpu"] = torch.cuda.get_device_name()
        if with_peer:
            where["loss-landscapes"] = "3.0.6"
        sizes = {"network": "784-256-256-10", "examples": EXAMPLES, "parameters": land.dim, "dtype": "float32"}
        found = {"provenance": where, **sizes, "rounds": options.rounds, "surfaces": rows}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
