"""Seconds per (step x chain) of devinterp's SGLD, on one thread, as JSON lines.

Each figure is a slope: ``sample`` is timed at a short and a long number of draws, and the difference in
time is divided by the difference in (steps x chains), so that what a call or a chain costs once
(copying the model, unpickling the loader) does not enter. Lengths are whole epochs of the loader.

Two loaders are measured: an ordinary shuffled ``DataLoader``, and an ideal one that hands out batches
made beforehand, which costs nothing and bounds what any loader could gain.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
from devinterp.optim.sgld import SGLD
from devinterp.optim.sgmcmc import SGMCMC
from devinterp.slt.llc import LLCEstimator
from devinterp.slt.sampler import sample
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import models

SAMPLERS = {"sgld": SGLD, "sgmcmc": SGMCMC.sgld}
LONG_STEPS = {"tiny": 600, "mlp": 96, "quadratic": 160}  # of a chain at 8 chains; fewer at more chains


class IdealLoader(DataLoader):
    """Batches made beforehand, at no cost per batch; devinterp takes nothing but a ``DataLoader``."""

    def __init__(self, dataset: TensorDataset, batch_size: int) -> None:
        super().__init__(dataset, batch_size=batch_size, drop_last=True)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
        self.batches = [list(dataset[part]) for part in order.split(batch_size)[: len(self)]]

    def __iter__(self):
        return iter(self.batches)


def make_loader(kind: str, dataset: TensorDataset, batch_size: int):
    """Whole batches only, so that every step has the same work on either side."""
    if kind == "ideal":
        return IdealLoader(dataset, batch_size)
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)


def lengths(name: str, chains: int, epoch: int) -> tuple[int, int]:
    """Short and long numbers of draws, both whole epochs of ``epoch`` batches."""
    long = max(2, round(LONG_STEPS[name] * (8 / chains) ** 0.5 / epoch))
    return epoch * max(1, long // 8), epoch * long


def measure(name: str, chains: int, kind: str, sampler: str, repeats: int) -> dict:
    model, inputs, targets, loss_fn, batch_size = models.build(name)
    run = models.settings(name, len(inputs))
    loader = make_loader(kind, TensorDataset(inputs, targets), batch_size)
    with torch.no_grad():
        init_loss = loss_fn(model(inputs), targets).item()

    def evaluate(net, batch):
        return loss_fn(net(batch[0]), batch[1])

    def timed(draws: int) -> tuple[float, float, torch.Tensor]:
        losses = LLCEstimator(chains, draws, init_loss=init_loss, nbeta=run.nbeta)
        options = {"lr": run.step_size, "localization": run.localization, "nbeta": run.nbeta}
        wall, cpu = time.perf_counter(), time.process_time()
        sample(
            model,
            loader,
            [losses],
            evaluate=evaluate,
            sampling_method=SAMPLERS[sampler],
            optimizer_kwargs=options,
            num_draws=draws,
            num_chains=chains,
            init_loss=init_loss,
            seed=0,
            verbose=False,
        )
        return time.perf_counter() - wall, time.process_time() - cpu, losses.losses

    short, long = lengths(name, chains, len(loader))
    timed(len(loader))  # warm-up
    walls, cpus = [], []
    for _ in range(repeats):
        first, last = timed(short), timed(long)
        scale = 1e6 / ((long - short) * chains)
        walls.append((last[0] - first[0]) * scale)
        cpus.append((last[1] - first[1]) * scale)
        trace = last[2]
        if not torch.isfinite(trace).all() or trace.mean() > 2 * init_loss + 1:
            raise RuntimeError(f"the chains of {name} diverge at step size {run.step_size}")
    return {
        "tool": "devinterp",
        "version": version("devinterp"),
        "model": name,
        "chains": chains,
        "loader": kind,
        "us_per_step_chain": statistics.median(walls),
        "repeats": walls,
        "cpu_us_per_step_chain": statistics.median(cpus),
        "sampler": sampler,
        "draws": [short, long],
        "init_loss": init_loss,
        "mean_loss": trace.mean().item(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=models.MODELS, help="default: all")
    parser.add_argument("--chains", action="append", type=int, help="default: 8 and 32")
    parser.add_argument("--loader", action="append", choices=("dataloader", "ideal"), help="default: both")
    parser.add_argument("--sampler", default="sgld", choices=tuple(SAMPLERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file to append to; default: standard output")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    for name in args.model or models.MODELS:
        for chains in args.chains or models.CHAINS:
            for kind in args.loader or ("dataloader", "ideal"):
                line = json.dumps(measure(name, chains, kind, args.sampler, args.repeats))
                print(line, flush=True)
                if args.out:
                    with args.out.open("a") as stream:
                        stream.write(line + "\n")


if __name__ == "__main__":
    main()
