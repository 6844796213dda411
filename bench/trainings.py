"""Trainings a minute: quadratic networks on modular addition one at a time in a plain torch loop, and as one batch.

    PYTHONPATH=src python bench/trainings.py --device cuda --out validation/trainings_gpu.json

One training is p = 53, K = 1024, 40 % of the pairs, batches of 128, Adam, `--epochs` epochs. Times are slopes: the same
at two lengths, difference in time over difference in epochs, so that what a run costs once does not enter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from crunode.core.result import provenance
from crunode_papers.grokking.batched import train_many
from crunode_papers.grokking.networks import QuadraticNetwork, centred_l2
from crunode_papers.grokking.settings import TrainingSettings
from crunode_papers.grokking.tasks import ModularTask


def plain_loop(modulus: int, width: int, epochs: int, device: torch.device) -> None:
    """One training as users write it: a module, autograd, torch's own Adam, and data that lies on the device."""
    x, y = (tensor.to(device) for tensor in ModularTask(modulus).data())
    model = QuadraticNetwork(modulus, width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    for _ in range(epochs):
        order = torch.randperm(len(x), device=device)
        for index in order.split(128):
            optimizer.zero_grad()
            centred_l2(model(x[index]), y[index]).mean().backward()
            optimizer.step()


def together(modulus: int, width: int, count: int, device: torch.device, epochs: int) -> None:
    """Many trainings with split, weights, order and rate of their own."""
    grid = [
        TrainingSettings(ModularTask(modulus, seed=seed), width=width, rate=1e-3 * (1 + seed % 5), seed=seed)
        for seed in range(count)
    ]
    train_many(grid, epochs=epochs, at=[epochs], device=device)


def seconds(run: Callable[[int], None], short: int, long: int, repeats: int, device: torch.device) -> list[float]:
    """Seconds an epoch, by slopes."""

    def took(epochs: int) -> float:
        start = time.perf_counter()
        run(epochs)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    took(short)
    return [(took(long) - took(short)) / (long - short) for _ in range(repeats)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--modulus", type=int, default=53)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 5, 25, 50, 100])
    parser.add_argument("--epochs", type=int, default=10_000, help="of the training that is counted")
    parser.add_argument("--lengths", type=int, nargs=2, default=[40, 240], help="epochs that are measured")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    shape = (given.modulus, given.width)
    cases: list[tuple[str, int, Callable[[int], None]]] = [
        ("plain torch loop", 1, lambda epochs: plain_loop(*shape, epochs, device)),
        *(("train_many", count, partial(together, *shape, count, device)) for count in given.counts),
    ]
    rows: list[dict[str, Any]] = []
    for name, count, run in cases:
        each = seconds(run, *given.lengths, given.repeats, device)
        median = statistics.median(each)
        rate = 60 * count / (median * given.epochs)
        ratio = rate / (rows[0]["trainings_per_minute"] if rows else rate)
        rows.append(
            {
                "how": name,
                "trainings": count,
                "milliseconds_an_epoch": [round(1e3 * value, 4) for value in each],
                "trainings_per_minute": round(rate, 3),
                "times_the_plain_loop": round(ratio, 2),
            }
        )
        print(f"{name:18} {count:4} together: {1e3 * median:8.3f} ms an epoch, {rate:8.2f} a minute, {ratio:6.1f}x")
        if given.out:  # after each case, so that nothing measured is lost
            settings = {key: value for key, value in vars(given).items() if key != "out"}
            given.out.write_text(
                json.dumps({"settings": settings, "rows": rows, "provenance": provenance()}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
