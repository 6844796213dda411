"""Time and error of products of matrices in half precision, in three parts, beside those in single precision.

PYTHONPATH=src python bench/halves.py [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from crunode.sampling.replay import halves

SIDES = [(500, 500, 500), (1000, 1000, 1000), (2000, 2000, 2000), (2901, 1735, 2503)]


def micros(work: Callable[[], object], device: str, times: int = 20) -> float:
    for _ in range(3):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times * 1e6


def case(rows: int, inner: int, columns: int, device: str) -> dict[str, float]:
    chance = torch.Generator(device).manual_seed(0)
    a = torch.randn(rows, inner, generator=chance, device=device)
    b = torch.randn(inner, columns, generator=chance, device=device)
    exact = a.double() @ b.double()
    sizes = halves.largest(a), halves.largest(b)
    parts = halves.halved(a, sizes[0]), halves.halved(b, sizes[1])

    def product() -> torch.Tensor:
        return halves.product(parts[0], sizes[0], parts[1], sizes[1], rows, columns)

    return {
        "single": micros(lambda: a @ b, device),
        "halves": micros(product, device),
        "taking apart": micros(lambda: halves.halved(a, halves.largest(a)), device),
        "error": float((product() - exact).abs().mean() / exact.abs().mean()),
        "error in single": float((a @ b - exact).abs().mean() / exact.abs().mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    for sides in SIDES[:2] if device == "cpu" else SIDES:
        print(json.dumps({"sides": sides, **{k: float(f"{v:.3g}") for k, v in case(*sides, device).items()}}))


if __name__ == "__main__":
    main()
