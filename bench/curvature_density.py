"""Spectral density of the Hessian and Gauss-Newton matrix of an MLP by Lanczos steps, beside curvlinops, on one thread.

    OMP_NUM_THREADS=1 .venv/bin/python bench/curvature_density.py --out validation/curvature_density.json

The network is 784-256-256-10 with ReLU, the batch has 512 examples, the loss is cross-entropy; both sides get the same
weights and data and take the same numbers of starts and steps. Ours are made orthogonal to all steps before, come with
residuals and standard errors, and give the ends of the spectrum too. curvlinops takes steps without that, after looking
for the ends with ARPACK (for the Gauss-Newton matrix the upper end, the lower one being given as zero); "peer bare" is
its time with both ends given. Sides take turns, each in its own process and environment (.venv-peer-curvature has
curvlinops-for-pytorch 3 and torch), and the median of the processor times is taken. Building operators is part of the
time, imports and data are not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

WORK = Path("build/bench")
PEER = Path(".venv-peer-curvature/bin/python")
KINDS = ("hessian", "ggn")
EXAMPLES = 512


def case() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    sizes = 784, 256, 256, 10
    layers: list[nn.Module] = []
    for wide, narrow in itertools.pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    inputs, classes = torch.randn(EXAMPLES, 784), torch.randint(0, 10, (EXAMPLES,))
    return net, inputs, classes


def ours(kind: str, probes: int, steps: int) -> dict[str, Any]:
    from crunode.core.landscape import Landscape
    from crunode.curvature.lanczos import spectral_density
    from crunode.curvature.operators import ggn, hessian

    net, inputs, classes = case()
    started = time.process_time()
    land = Landscape(net, (inputs, classes), "cross-entropy")
    operator = (hessian if kind == "hessian" else ggn)(land)
    found = spectral_density(operator, probes=probes, steps=steps, points=1024, tolerance=None)
    spent = time.process_time() - started
    last = found.nodes.argmax() % found.nodes.shape[1]
    mean, square = found.moment(1), found.moment(2)
    return {
        "cpu_s": spent,
        "low": float(found.nodes.min()),
        "high": float(found.nodes.max()),
        "high_residual": float(found.residuals[:, last].max()),
        "mean": mean.value,
        "mean_se": mean.se,
        "square": square.value,
        "square_se": square.se,
        "integrated_se": found.diagnostics["integrated_se"],
        "products": found.diagnostics["products"],
        "findings": [f.code for f in found.findings],
    }


def theirs(kind: str, probes: int, steps: int, ends: tuple[float, float] | None) -> dict[str, Any]:
    from curvlinops import GGNLinearOperator, HessianLinearOperator
    from curvlinops.papyan2020traces.spectrum import approximate_boundaries, lanczos_approximate_spectrum

    net, inputs, classes = case()
    kinds = {"hessian": HessianLinearOperator, "ggn": GGNLinearOperator}
    calls = 0

    class Counted(kinds[kind]):  # type: ignore[misc]
        def _matmat(self, other: Any) -> Any:
            nonlocal calls
            calls += other[0].shape[-1]
            return super()._matmat(other)

    torch.manual_seed(1)
    started = time.process_time()
    params = list(net.parameters())
    operator = Counted(net, nn.CrossEntropyLoss(), params, [(inputs, classes)], check_deterministic=False)
    # Most eigenvalues share the end at zero, and a run that was to find it did not end in 500 s: it is given.
    known = ends if ends or kind == "hessian" else (0.0, None)
    bounds = approximate_boundaries(operator, boundaries=known)
    grid, density = lanczos_approximate_spectrum(
        operator, steps, num_points=1024, num_repeats=probes, boundaries=bounds
    )
    spent = time.process_time() - started
    cell = float(grid[1] - grid[0])
    return {
        "cpu_s": spent,
        "low": float(bounds[0]),
        "high": float(bounds[1]),
        "mean": float((grid * density).sum()) * cell,
        "products": calls,
    }


def measured(python: str, side: str, kind: str, arguments: argparse.Namespace, ends: Any = None) -> dict[str, Any]:
    command = [python, __file__, "--side", side, "--kind", kind]
    command += ["--probes", str(arguments.probes), "--steps", str(arguments.steps)]
    if ends is not None:
        command += ["--ends", *(str(end) for end in ends)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=["crunode", "peer"])
    parser.add_argument("--kind", choices=KINDS, default="hessian")
    parser.add_argument("--ends", type=float, nargs=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.side == "crunode":
        print(json.dumps(ours(arguments.kind, arguments.probes, arguments.steps)))
        return
    if arguments.side == "peer":
        ends = tuple(arguments.ends) if arguments.ends else None
        print(json.dumps(theirs(arguments.kind, arguments.probes, arguments.steps, ends)))
        return
    record: dict[str, Any] = {"probes": arguments.probes, "steps": arguments.steps, "rounds": arguments.rounds}
    for kind in KINDS:
        rows: dict[str, list[dict[str, Any]]] = {"crunode": [], "peer": [], "peer bare": []}
        for _ in range(arguments.rounds):
            rows["crunode"].append(measured(sys.executable, "crunode", kind, arguments))
            rows["peer"].append(measured(str(PEER), "peer", kind, arguments))
            ends = rows["crunode"][-1]["low"], rows["crunode"][-1]["high"]
            rows["peer bare"].append(measured(str(PEER), "peer", kind, arguments, ends))
        medians = {side: statistics.median(row["cpu_s"] for row in found) for side, found in rows.items()}
        faster = {side: medians[side] / medians["crunode"] for side in ("peer", "peer bare")}
        record[kind] = {"median_cpu_s": medians, "times_faster": faster, "rows": rows}
        print(kind, {side: round(value, 2) for side, value in medians.items()}, "s;", end=" ")
        print("faster by", {side: round(value, 2) for side, value in faster.items()})
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
