"""devinterp's estimate at its defaults for a network in a file; prints one line of JSON.

    python bench/peer/llc.py problem.npz --activation linear --batch 256 --seed 0

The file has inputs x, targets y and the tensors of the layers by name ("0.weight", "0.bias", ...), an activation lying
between any two layers.
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHAINS, DRAWS = 10, 100  # devinterp's defaults, for the count of gradients


class Square(nn.Module):
    def forward(self, z):
        return z.square()


ACTIVATIONS = {"linear": None, "square": Square, "tanh": nn.Tanh, "relu": nn.ReLU}


def network(tensors: dict[str, torch.Tensor], activation: str) -> nn.Sequential:
    places = sorted({int(name.split(".")[0]) for name in tensors})
    parts: list[nn.Module] = []
    for k in places:
        weight, bias = tensors[f"{k}.weight"], tensors.get(f"{k}.bias")
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if bias is not None:
                layer.bias.copy_(bias)
        if parts and ACTIVATIONS[activation] is not None:
            parts.append(ACTIVATIONS[activation]())
        parts.append(layer)
    return nn.Sequential(*parts)


def evaluate(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem")
    parser.add_argument("--activation", default="linear", choices=tuple(ACTIVATIONS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)  # its loss at the start is that of shuffled batches, which its own seed leaves free
    with np.load(args.problem) as content:
        tensors = {name: torch.from_numpy(content[name]) for name in content.files}
    data = TensorDataset(tensors.pop("x"), tensors.pop("y"))
    model = network(tensors, args.activation)
    loader = DataLoader(data, batch_size=args.batch, shuffle=True)
    error, found = None, {"llc/mean": math.nan, "llc/std": math.nan}
    start = time.perf_counter()
    try:
        # An empty dictionary for its settings: its own default of None raises in this version.
        found = estimate_learning_coeff_with_summary(
            model, loader, evaluate=evaluate, optimizer_kwargs={}, seed=args.seed, verbose=False
        )
    except RuntimeError as problem:  # how it reports losses that are not numbers
        error = str(problem).splitlines()[0]
    seconds = time.perf_counter() - start
    value, spread = float(found["llc/mean"]), float(found["llc/std"])
    line = {
        "value": value if math.isfinite(value) else None,
        "std": spread if math.isfinite(spread) else None,
        "error": error,
        "gradients": CHAINS * DRAWS,
        "seconds": seconds,
        "settings": {"devinterp": version("devinterp"), "torch": torch.__version__, "batch": args.batch},
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
