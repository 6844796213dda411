"""A trained network asked for its coefficient in many ways: do the answers agree within what they state?

    python validation/trained.py [--device cuda] [--out validation/trained.json]

The network of the demonstration (14 × 14 pixels, 16 hidden units, 10 classes, cross-entropy) on the images that come
with the package. Five seeds; SGLD on minibatches of 64, of 256 and on all data; both layouts; a loss scaled by 10; and
the same function with its layers rescaled by 2 and by 1/2, which a network with ReLU units does not notice.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import crunode
from crunode.core.result import provenance
from crunode.examples.demo import train_network
from crunode_papers.image_data.datasets import load_images


def rescaled(net: nn.Module, factor: float) -> nn.Module:
    """The same function with the first layer times `factor` and the last over it."""
    other = copy.deepcopy(net)
    layers = [m for m in other.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        layers[0].weight.mul_(factor)
        layers[0].bias.mul_(factor)
        layers[-1].weight.div_(factor)
    return other


def ten_times(outputs: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy on another scale."""
    return 10 * F.cross_entropy(outputs, target, reduction="none")


def cases(net: nn.Module, data: Any) -> list[tuple[str, nn.Module, Any, dict[str, Any]]]:
    """Names, models, losses and options."""
    plain = F.cross_entropy
    found: list[tuple[str, nn.Module, Any, dict[str, Any]]] = [(f"seed {s}", net, plain, {"seed": s}) for s in range(5)]
    for batch in (64, 256, len(data[1])):
        found.append((f"batch {batch}", net, plain, {"kernel": crunode.SGLD(batch=batch), "seed": 10}))
    for layout in ("batched", "sequential"):
        found.append((f"layout {layout}", net, plain, {"layout": layout, "seed": 11}))
    found.append(("loss times 10", net, ten_times, {"seed": 12}))
    for factor in (2.0, 0.5):
        found.append((f"layers rescaled by {factor:g}", rescaled(net, factor), plain, {"seed": 13}))
    return found


def run(job: tuple[int, str | None]) -> dict[str, Any]:
    """One case, by its number."""
    number, device = job
    torch.set_num_threads(1)
    data = load_images("fashion-mnist").tensors("train", 2)
    name, model, loss, settings = cases(train_network(*data), data)[number]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", crunode.DiagnosticWarning)
        land = crunode.Landscape(model, data, loss, device=device)
        estimate = crunode.llc(land, on_failure="return", **settings)
    row = {
        "case": name,
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "terms": dict(estimate.terms),
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings],
        "precision": estimate.spec.get("precision"),
        "nbeta": estimate.diagnostics.get("plain", {}).get("nbeta"),
        "levels": [[r["nbeta"], r["value"], r["se"]] for r in estimate.diagnostics.get("levels", [])],
        "moves": estimate.diagnostics.get("precision"),
        "seconds": time.perf_counter() - start,
    }
    print(f"{name:<26} {estimate}  {row['seconds']:.0f} s", flush=True)
    return row


def main() -> None:
    """Run all cases and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("trained.json"))
    options = parser.parse_args()
    data = load_images("fashion-mnist").tensors("train", 2)
    jobs = [(k, options.device) for k in range(len(cases(train_network(*data), data)))]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(run, jobs))
    apart = [
        (abs(a["value"] - b["value"]) / math.hypot(a["se"], a["systematic"], b["se"], b["systematic"]), a, b)
        for a, b in combinations(rows, 2)
    ]
    worst = max(apart, key=lambda t: t[0])
    print(
        f"farthest apart: {worst[1]['case']} and {worst[2]['case']}, {worst[0]:.2f} stated errors of their difference"
    )
    content = {
        "command": f"python validation/trained.py{f' --device {options.device}' if options.device else ''}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": provenance(),
        "device": options.device or "cpu",
        "summary": {"runs": len(rows), "farthest_apart_in_stated_errors": worst[0]},
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
