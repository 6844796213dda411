"""Time of a step of natural gradient descent against one of SGD, and of the spectrum of a batch, in one run.

    PYTHONPATH=src python bench/natural_step.py --out validation/natural_step.json [--device cuda] [--rounds 30]

A step is forward pass, backward pass and update, on a batch of 128 for a ReLU network 784-256-256-10. Optimizers take
turns step by step, each with a model of its own, so that a machine that is busy in between is so for all of them; what
is reported is the median over rounds. On a CPU everything runs on one thread, and time is that of the thread, which
other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.core.result import provenance
from crunode.curvature.gram import ggn_eigenvalues
from crunode.curvature.natural import NaturalGradient
from crunode.errors import DiagnosticWarning

BATCH, BATCHES = 128, 20
BARS = {"empirical": 2.5, "true": 25.0}


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers).to(device)


def data(device: str) -> list[tuple[Tensor, Tensor]]:
    """Batches whose labels can be learned: those of a random network."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCHES * BATCH, 784, generator=generator)
    y = (x @ torch.randn(784, 10, generator=generator)).argmax(1)
    return [(a.to(device), b.to(device)) for a, b in zip(x.split(BATCH), y.split(BATCH), strict=True)]


def steppers(device: str) -> dict[str, Callable[[Tensor, Tensor], object]]:
    plain = network(device)
    sgd = torch.optim.SGD(plain.parameters(), lr=1e-2)

    def sgd_step(x: Tensor, y: Tensor) -> None:
        sgd.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        sgd.step()

    found: dict[str, Callable[[Tensor, Tensor], object]] = {"sgd": sgd_step}
    for kind in ("empirical", "sampled", "true", "kaldi"):
        rate = 1e-2 if kind == "kaldi" else 1e-6  # small, so that all see the same losses
        found[kind] = NaturalGradient(network(device), F.cross_entropy, lr=rate, fisher=kind).step
    return found


def seconds(call: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.thread_time()
        call()
        return time.thread_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DiagnosticWarning)
    device, batches = options.device, data(options.device)
    steps = steppers(device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(options.rounds + 5):
        x, y = batches[round_ % len(batches)]
        for name, step in steps.items():
            took = seconds(partial(step, x, y), device)
            if round_ >= 5:
                times[name].append(took)
    land = Landscape(network(device), batches[0], F.cross_entropy, device=device)
    spectrum = [seconds(lambda: ggn_eigenvalues(land), device) for _ in range(6)][1:]
    base = statistics.median(times["sgd"])
    rows = [
        {
            "optimizer": name,
            "ms_per_step": 1e3 * statistics.median(values),
            "least_ms": 1e3 * min(values),
            "times_sgd": statistics.median(values) / base,
            "at_most": BARS.get(name),
        }
        for name, values in times.items()
    ]
    for row in rows:
        print(f"{row['optimizer']:10} {row['ms_per_step']:8.2f} ms   {row['times_sgd']:6.2f} × SGD")
    print(f"spectrum   {1e3 * statistics.median(spectrum):8.2f} ms for all eigenvalues of {BATCH} examples")
    if options.out:
        where = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device, **provenance()}
        if device != "cpu":
            where["gpu"] = torch.cuda.get_device_name()
        found = {"provenance": where, "rounds": options.rounds, "steps": rows}
        found["spectrum"] = {"ms": 1e3 * statistics.median(spectrum), "least_ms": 1e3 * min(spectrum), "at_most": 200.0}
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
