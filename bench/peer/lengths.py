"""devinterp's estimate on a network in a file as its chain grows, with the time; prints one line of JSON.

    python bench/peer/lengths.py problem.npz --lengths 100 1000 10000 --batch 500 --seed 0

One chain at the settings published for random deep linear networks is run to the greatest length, once for each way to
load batches, and its trace is evaluated at every length: with the last tenth kept, as published, and with all draws
kept, as devinterp does unless told otherwise. Then devinterp runs at its defaults. The file is that of `llc.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from importlib.metadata import version

import numpy as np
import torch
from devinterp.slt.sampler import estimate_learning_coeff_with_summary
from llc import evaluate, network
from torch.utils.data import DataLoader, TensorDataset

STEP, LOCALIZATION = 5e-7, 1.0  # the published settings of class 1K


class Blocks(TensorDataset):
    """Gives a batch by one indexing of each tensor, where a `TensorDataset` is asked example by example."""

    def __getitems__(self, places):
        index = torch.tensor(places)
        return tuple(tensor[index] for tensor in self.tensors)


def as_it_is(block):
    return block


class Clock:
    """Loss of each draw, and wall and CPU seconds from the call to it."""

    def __init__(self):
        self.losses, self.wall, self.cpu = [], [], []
        self.start = time.perf_counter(), time.process_time()

    def __call__(self, loss, **_):
        self.losses.append(float(loss))
        self.wall.append(time.perf_counter() - self.start[0])
        self.cpu.append(time.process_time() - self.start[1])


def loader_of(kind: str, data: tuple[torch.Tensor, ...], batch: int) -> DataLoader:
    if kind == "plain":
        return DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True)
    return DataLoader(Blocks(*data), batch_size=batch, shuffle=True, collate_fn=as_it_is)


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def growing(model, data, *, kind: str, lengths: list[int], batch: int, seed: int) -> dict:
    """The chain at the published settings and what it says at each length."""
    torch.manual_seed(seed)
    examples = len(data[0])
    nbeta, error = examples / math.log(examples), None
    # Its own loss at the start, of a batch, is zero but for rounding: labels are the network's outputs. Where it is
    # exactly zero it is taken for absent and computed again with a loader made anew, which loses how blocks are put
    # together; so one is given there.
    with torch.no_grad():
        start = float(evaluate(model, data))
    given = {"init_loss": max(start, 1e-30)} if kind == "blocks" else {}
    loader, clock = loader_of(kind, data, batch), Clock()
    try:
        found = estimate_learning_coeff_with_summary(
            model,
            loader,
            callbacks=[clock],
            evaluate=evaluate,
            optimizer_kwargs={"lr": STEP, "localization": LOCALIZATION, "nbeta": nbeta},
            num_chains=1,
            num_draws=max(lengths),
            seed=seed,
            verbose=False,
            **given,
        )
        reported = finite(float(found["llc/mean"]))
    except RuntimeError as problem:
        if "NaN" not in str(problem):
            raise
        error, reported = str(problem).splitlines()[0], None
    scaled, points = nbeta * (np.array(clock.losses) - start), []
    for length in lengths:
        if length <= len(scaled):
            kept = scaled[length - max(1, length // 10) : length]
            points.append(
                {
                    "steps": length,
                    "seconds": clock.wall[length - 1],
                    "cpu_seconds": clock.cpu[length - 1],
                    "last_tenth": finite(float(kept.mean())),
                    "all_draws": finite(float(scaled[:length].mean())),
                }
            )
    settings = {"step": STEP, "localization": LOCALIZATION, "nbeta": nbeta, "batch": batch, "chains": 1}
    return {"loader": kind, "settings": settings, "reported": reported, "error": error, "points": points}


def defaults(model, data, *, batch: int, seed: int) -> dict:
    """One call with nothing set."""
    torch.manual_seed(seed)
    loader, error, value = loader_of("plain", data, batch), None, math.nan
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        # An empty dictionary for its settings: its own default of None raises in this version.
        found = estimate_learning_coeff_with_summary(
            model, loader, evaluate=evaluate, optimizer_kwargs={}, seed=seed, verbose=False
        )
        value = float(found["llc/mean"])
    except RuntimeError as problem:
        if "NaN" not in str(problem):
            raise
        error = str(problem).splitlines()[0]
    times = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return {"value": finite(value), "error": error, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("--lengths", type=int, nargs="+", required=True)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with np.load(args.problem) as content:
        tensors = {name: torch.from_numpy(content[name]) for name in content.files}
    data = tensors.pop("x"), tensors.pop("y")
    model = network(tensors, "linear")
    growing(model, data, kind="plain", lengths=[20], batch=args.batch, seed=args.seed)  # what only a first call does
    options = {"lengths": sorted(args.lengths), "batch": args.batch, "seed": args.seed}
    line = {
        "versions": {"devinterp": version("devinterp"), "torch": torch.__version__},
        "chains": [growing(model, data, kind=kind, **options) for kind in ("plain", "blocks")],
        "defaults": defaults(model, data, batch=args.batch, seed=args.seed),
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
