"""Effective samples of nL_n a second at the local posterior of a small ReLU network, on one CPU thread.

The network f(x) = c + sum_i q_i ReLU(w_i x + b_i) has five hidden units and 21 parameters and stands at the point s_5
of Murfet et al. 2020, section 6. The posterior has n = 1000 examples with unit noise, beta = 1 and the prior N(s_5, 1).

    OMP_NUM_THREADS=1 .venv/bin/python bench/posterior.py --peer --out validation/posterior_speed.json

runs 64 chains at once with each kernel, with recorded and with compiled gradients, and with `--peer` one chain of
Pyro's NUTS in its own environment (.venv-peer-pyro, see bench/peer/pyro_nuts.py); `--peer-done` takes the Pyro draws of
the last such run. Times are those of the processor, for kept draws alone; warm-up and compilation are given apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import crunode
from crunode.core.result import provenance
from crunode.sampling.diagnostics import ess, ess_bulk, split_rhat
from crunode.sampling.metropolis import HMC
from crunode.sampling.nuts import NUTS
from crunode_papers.murfet2020.two_layer import true_network

WORK = Path("build/bench")
PEER = Path(".venv-peer-pyro/bin/python")
EXAMPLES, UNITS = 1000, 5


@dataclass
class Clock:
    """Processor and wall times at the start of each draw."""

    at: list[tuple[float, float, bool]] = field(default_factory=list)

    def tick(self, warming: bool) -> None:
        self.at.append((time.process_time(), time.perf_counter(), warming))

    def spent(self) -> dict[str, float]:
        first = next(i for i, row in enumerate(self.at) if not row[2])
        names = ("cpu_s", "wall_s")
        kept = {name: self.at[-1][k] - self.at[first][k] for k, name in enumerate(names)}
        return kept | {"warmup_cpu_s": self.at[first][0] - self.at[0][0]}


CLOCK = Clock()


class TimedHMC(HMC):
    """HMC that looks at the clock before each draw."""

    def advance(self, state, gradient, step, noise, uniform, warming):  # type: ignore[no-untyped-def]
        CLOCK.tick(warming)
        return super().advance(state, gradient, step, noise, uniform, warming)


class TimedNUTS(NUTS):
    """NUTS that looks at the clock before each draw."""

    def advance(self, state, gradient, step, noise, uniform, warming):  # type: ignore[no-untyped-def]
        CLOCK.tick(warming)
        return super().advance(state, gradient, step, noise, uniform, warming)


def network() -> nn.Sequential:
    """The network at s_5: directions at half and whole turns of 2 pi / 5, biases -1/3, output weights 1."""
    angles = 2 * math.pi / UNITS * (torch.arange(UNITS) + 0.5)
    model = nn.Sequential(nn.Linear(2, UNITS), nn.ReLU(), nn.Linear(UNITS, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.stack([angles.cos(), angles.sin()], 1))
        model[0].bias.fill_(-1 / 3)
        model[2].weight.fill_(1.0)
        model[2].bias.zero_()
    return model


def examples(model: nn.Module, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs uniform on the square [-1, 1]^2 and outputs of the network with unit noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(EXAMPLES, 2, generator=generator) - 1
    with torch.no_grad():
        return inputs, model(inputs) + torch.randn(EXAMPLES, 1, generator=generator)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log p(y|x) of each example without its constant."""
    return 0.5 * (outputs - targets).square().squeeze(-1)


def measure(name: str, kernel: Any, chains: int, draws: int, warmup: int, compiled: bool, seed: int) -> dict[str, Any]:
    """One run; effective samples and gradients a second of the kept draws.

    Recorded gradients are those of linear layers, as of any module. Those that are compiled are of the same network
    with its layers written out, so that the compiler makes one loop over the examples of them.
    """
    data = examples(network())
    land = crunode.Landscape(true_network(UNITS) if compiled else network(), data, half_square)
    posterior = crunode.Posterior(land, nbeta=float(EXAMPLES), prior=crunode.Gaussian(precision=1.0))
    CLOCK.at.clear()
    begin = time.process_time()
    found = crunode.sample(
        posterior, kernel, chains=chains, draws=draws + 1, warmup=warmup, seed=seed, layout="batched", compiled=compiled
    )
    total, spent = time.process_time() - begin, CLOCK.spent()
    # The clock stops as the last draw begins, so that one does not count.
    loss = EXAMPLES * found.arrays["excess"][:, :-1].astype(np.float64)
    size, cpu = ess(loss), spent["cpu_s"]
    row = {
        "sampler": name,
        "kernel": repr(kernel).removeprefix("Timed"),
        "gradient": "compiled" if compiled else "recorded",
        "chains": chains,
        "draws": draws,
        "warmup": warmup,
        **spent,
        "total_cpu_s": total,
        "mean_excess_nL": loss.mean(),
        "rhat": split_rhat(loss),
        "ess": size,
        "ess_bulk": ess_bulk(loss),
        "ess_per_s": size / cpu,
        "ess_per_wall_s": size / spent["wall_s"],
        "accept": float(found.arrays["accept"].mean()),
        "findings": [f.code for f in found.findings],
    }
    if "leaps" in found.arrays:
        leaps = found.arrays["leaps"][:, :-1]
        batches, used = float(leaps.max(0).sum()), float(leaps.mean())
        row |= {"depth": float(found.arrays["depth"].mean()), "divergent": float(found.arrays["divergent"].sum())}
    else:
        batches, used = float(kernel.leaps * draws), float(kernel.leaps)
    # Chains that are done wait for the others: what is evaluated is more than what is used.
    row |= {"leaps": used, "leaps_evaluated": batches / draws, "us_per_gradient": 1e6 * cpu / (batches * chains)}
    return row | {
        "gradients_per_s_chain": batches / cpu,
        "ess_per_1000_gradients": 1e3 * size / (used * draws * chains),
    }


def peer(draws: int, jit: bool, done: bool = False) -> dict[str, Any]:
    """Pyro's NUTS on the same examples, in its own environment."""
    model = network()
    inputs, targets = examples(model)
    center = [model[0].weight.flatten(), model[0].bias, model[2].weight.flatten(), model[2].bias]
    WORK.mkdir(parents=True, exist_ok=True)
    case, out = WORK / "posterior_case.npz", WORK / f"posterior_pyro{'_jit' if jit else ''}.npz"
    np.savez(case, inputs=inputs.numpy(), targets=targets.numpy(), center=torch.cat(center).detach().numpy())
    command = [str(PEER), "bench/peer/pyro_nuts.py", str(case), str(out), f"--draws={draws}", f"--warmup={draws}"]
    if not done:
        subprocess.run([*command, *(["--jit"] if jit else [])], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = np.load(out)
    loss, cpu = found["loss"][None], float(found["cpu_s"])
    draws, size = loss.shape[1], ess(loss)
    return {
        "sampler": "Pyro NUTS" + (", jit" if jit else ""),
        "version": str(found["version"]),
        "chains": 1,
        "draws": draws,
        "warmup": int(found["warmup"]),
        "cpu_s": cpu,
        "wall_s": float(found["wall_s"]),
        "warmup_cpu_s": float(found["warmup_cpu_s"]),
        "mean_excess_nL": float(loss.mean()),
        "rhat": split_rhat(loss),
        "ess": size,
        "ess_bulk": ess_bulk(loss),
        "ess_per_s": size / cpu,
        "leaps": float(found["gradients"]) / draws,
        "us_per_gradient": 1e6 * cpu / float(found["gradients"]),
        "ess_per_1000_gradients": 1e3 * size / float(found["gradients"]),
    }


KERNELS = {
    "HMC": TimedHMC(),
    "HMC, 64 leaps": TimedHMC(leaps=64, spread=2.0),
    "HMC, diagonal": TimedHMC(metric="diagonal"),
    "NUTS": TimedNUTS(),
    "NUTS, diagonal": TimedNUTS(metric="diagonal"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="default: all but the slowest")
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--gradient", choices=("recorded", "compiled", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", action="store_true", help="run Pyro too")
    parser.add_argument("--peer-done", action="store_true", help="take the draws of the last run of Pyro")
    parser.add_argument("--peer-draws", type=int, default=300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.kernel = args.kernel or ["HMC", "HMC, 64 leaps", "NUTS"]
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if args.out:
            command = f"OMP_NUM_THREADS=1 .venv/bin/python {shlex.join(sys.argv)}"
            case = {
                "n": EXAMPLES,
                "beta": 1.0,
                "precision": 1.0,
                "parameters": 21,
                "dtype": "float32",
                "seed": args.seed,
            }
            record = {
                "command": command,
                "case": case,
                "load_average": os.getloadavg()[0],
                "rows": rows,
                "provenance": provenance(),
            }
            args.out.write_text(json.dumps(record, indent=1) + "\n")

    if args.peer or args.peer_done:
        for jit in (False, True):
            add(peer(args.peer_draws, jit, args.peer_done))
    slow = rows[0]["ess_per_s"] if rows else math.nan
    for compiled in (False, True):
        for name in args.kernel:
            if args.gradient != "both" and compiled != (args.gradient == "compiled"):
                continue
            kernel, draws, warmup = KERNELS[name], args.draws, args.warmup
            if isinstance(kernel, NUTS):  # whose trajectories are an order of magnitude longer
                draws, warmup = draws // 8, warmup // 2
            row = measure(name, kernel, args.chains, draws, warmup, compiled, args.seed)
            add(row | ({"over_pyro": row["ess_per_s"] / slow} if slow > 0 else {}))


if __name__ == "__main__":
    main()
