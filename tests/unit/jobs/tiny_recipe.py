"""A recipe for tests, in a module of its own so that other processes find it."""

import os
import time
from pathlib import Path

import torch

from crunode.jobs.recipe import Cell, Expected, Recipe, Row


def cells(size, seed):
    count = {"toy": 4, "paper": 9}[size]
    return [Cell(f"square {k}", {"x": k, "seed": seed}) for k in range(count)]


def compute(cell):
    generator = torch.Generator().manual_seed(cell.settings["seed"])
    noise = torch.randn(64, 64, generator=generator)
    log = os.environ.get("TINY_LOG")
    if log:  # who computed what, for tests that count
        with Path(log).open("a") as file:
            file.write(f"{cell.name}\n")
    if os.environ.get("TINY_FAIL") == cell.name:
        raise ValueError("planted")
    time.sleep(float(os.environ.get("TINY_PAUSE", "0")))
    return {"value": cell.settings["x"] ** 2, "trace": float((noise @ noise).trace()), "pair": (1, float("inf"))}


def rows(results, size):
    table = [
        Expected(r.settings["x"] ** 2, 0.5, "arithmetic", exact=True).row(r.cell.name, r["value"], se=0.1)
        for r in results
    ]
    return [*table, Row("cells", None, float(len(results)), None, None, "shown")]


def figures(results, folder):
    path = folder / "none.txt"
    path.write_text(str(len(results)))
    return [path]


RECIPE = Recipe("tiny", "squares", "nobody", cells, compute, rows, figures)
