"""Strings refined all pieces at once, against one piece after the other: the same search, timed in turn.

python bench/connectivity.py [--repeats 3] [--width 16] [--pairs 1]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology.descent import Adam
from crunode.topology.heights import Heights
from crunode.topology.strings import Caps, Goal, grow_strings


def solutions(count: int, width: int, seed: int) -> tuple[Landscape, torch.Tensor]:
    """Networks of one hidden layer trained from random starts, side by side."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 4, generator=generator, dtype=torch.float64)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).double()
    land = Landscape(net, (x, y), nn.functional.mse_loss)
    heights = Heights(land)
    w = 0.7 * torch.randn(count, land.dim, generator=generator, dtype=torch.float64)
    adam = Adam(0.05, 800)
    for _ in range(800):
        w = w + adam.step(heights.slopes(w)[1])
    return land, w


def main() -> None:
    """Print seconds, beads and the ratio for each pair and level."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=1)
    options = parser.parse_args()
    land, w = solutions(2 * options.pairs, options.width, 0)
    heights = Heights(land)
    losses = heights.values(w).tolist()
    print(f"{land.dim} parameters, losses {min(losses):.2g} to {max(losses):.2g}")
    ratios = []
    for level in (0.1, 0.03, 0.01):
        goals = [Goal(w[[i, i + 1]], level, min(losses[i : i + 2])) for i in range(0, len(w), 2)]
        seconds = {}
        for name, together in (("all at once", None), ("one by one", 1)):
            taken = []
            for _ in range(options.repeats):
                start = time.process_time()
                found = grow_strings(heights, goals, torch.Generator().manual_seed(0), Caps(), together)
                taken.append(time.process_time() - start)
            seconds[name] = statistics.median(taken)
            beads = [outcome.beads for outcome in found]
            joined = sum(outcome.path is not None for outcome in found)
            print(f"level {level}: {name}: {seconds[name]:.2f} s, {joined} of {len(goals)} joined, beads {beads}")
        ratios.append(seconds["one by one"] / seconds["all at once"])
    print("one by one / all at once: " + ", ".join(f"{ratio:.1f}" for ratio in ratios))


if __name__ == "__main__":
    main()
