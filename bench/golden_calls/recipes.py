"""Golden calls of recipes: whole tables where toy size takes a second or two, else some of their cells."""

from __future__ import annotations

import crunode as cr
from crunode.testing import check_recipe
from golden_calls import call, refused

WHOLE = (
    "cullen2026-critical-data",
    "cullen2026-sampler",
    "cullen2026-severity",
    "cullen2026-toys",
    "cullen2026-trajectory",
    "cullen2026-transformer",
    "gauss-newton",
    "murfet2020-generalization",
    "pennington2017-spectrum",
    "saghir2024-escape",
    "saghir2024-optimizers",
    "saghir2024-overfitting",
    "saghir2024-smoothing",
    "toy-volumes",
)
CELLS = {
    "cooper2021-dimension": ("sigmoid", "gelu", "images", "signals", "relu", "repeated"),
    "cullen2026-scaling": (
        "case: generic p=3 K=4 (inputs=4)",
        "case: modular p=3 K=4 (centred)",
        "case: lazy p=3 K=12",
        "case: ntk p=3 K=4",
        "case: stage-two p=3 K=4 (inputs=4, active=2)",
        "grid: modular p=3 K=7 (centred)",
        "trained p=13 K=24",
    ),
    "freeman2016-connectivity": ("chain 2", "units 3", "linear 3-4-2", "gap 2 16", "gap 3 64"),
    "li2018-surface": ("skip 1 seed 0", "plain 1 seed 0", "decay 0.002 seed 0", "rescaled"),
    "model-selection": ("strong n=200 H=2 block 0", "weak n=200 H=1 block 0"),
    "murfet2020-rlct": ("",),
    "pennington2017-index": (
        "matrices linear 0.25",
        "matrices relu 0.5",
        "minimizers tanh 0.25",
        "minimizers relu 0.75",
    ),
}
for _name in WHOLE:
    call(f"recipe {_name}")(lambda name=_name: cr.recipe(name).run("toy", 0))


def some_cells(name: str) -> dict[str, object]:
    recipe = cr.recipe(name)
    wanted = {cell.name: cell for cell in recipe.cells("toy", 0)}
    if CELLS[name] == ("",):
        return {"cells": [[cell.name.replace(" ", "-"), cell.settings] for cell in wanted.values()]}
    return {cell: [wanted[cell].settings, recipe.compute(wanted[cell])] for cell in CELLS[name]}


for _name in CELLS:
    call(f"cells of {_name}")(lambda name=_name: some_cells(name))


@call("recipe in a folder, with pictures")
def _() -> object:
    first = cr.recipe("murfet2020-volume").run("toy", 1, store="run")
    again = cr.recipe("murfet2020-volume").run("toy", 1, store="run")
    return [first, again.rows == first.rows, [path.name for path in first.figures]]


@call("check_recipe")
def _() -> object:
    return check_recipe(cr.recipe("watanabe-criteria"), seed=1).rows


@call("recipe: wrong input")
def _() -> object:
    return [
        refused(lambda: cr.recipe("no such recipe")),
        refused(lambda: cr.recipe("murfet2020-volume").run("tiny")),
        refused(lambda: cr.recipe("murfet2020-volume").run("toy", -1)),
    ]
