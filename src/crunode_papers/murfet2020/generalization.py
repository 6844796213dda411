"""`murfet2020-generalization`: Bayes in the last layers (Murfet et al. 2020, section 5, Tables 1, 3-5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crunode.jobs import Cell, Recipe, Result, Row
from crunode_papers.murfet2020.measure import measure
from crunode_papers.murfet2020.pictures import draw_figures
from crunode_papers.murfet2020.table import make_rows

__all__ = ["RECIPE", "cells", "compute", "figures", "rows"]

_SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "sizes": [100, 200],
        "sets": [0, 4],
        "tests": 500,
        "epochs": 1500,
        "chains": 4,
        "draws": 50,
        "warmup": 100,
        "leaps": 12,
    },
    "paper": {
        "sizes": [int(n) for n in np.rint(np.logspace(2.3, 3.0, 10))],
        "sets": [0, 30],
        "tests": 10_000,
        "epochs": 5000,
        "chains": 4,
        "draws": 250,
        "warmup": 500,
        "leaps": 24,
    },
}


def cells(size: str, seed: int) -> list[Cell]:
    """Cells of panels that one batch can hold: the same layers in g, and MAP trained in the same way.

    Example:
        >>> [len(cell.settings["panels"]) for cell in cells("paper", 0)]
        [4, 4, 4, 4]
    """
    settings = {**_SIZES[size], "seed": seed, "as_text": False}
    if size == "toy":
        return [Cell("1 layer, full batch", {**settings, "panels": [[1, 0, 1, 0], [1, 1, 1, 0]]})]
    return [
        Cell(
            f"{layers} layer{'s' * (layers > 1)}, {'minibatch' if minibatch else 'full batch'}",
            {**settings, "panels": [[layers, relu, real, minibatch] for real in (1, 0) for relu in (0, 1)]},
        )
        for minibatch in (0, 1)
        for layers in (1, 5)
    ]


def compute(cell: Cell) -> dict[str, Any]:
    """Errors of all methods on the data sets of a cell, on a GPU where there is one."""
    return measure(cell.settings)


def rows(results: Sequence[Result], size: str) -> list[Row]:
    """The table."""
    return make_rows(results, size)


def figures(results: Sequence[Result], folder: Path) -> list[Path]:
    """Figs. 1 and 3-9."""
    return draw_figures(results, folder)


RECIPE = Recipe(
    name="murfet2020-generalization",
    title="Learning coefficients of MAP, Laplace and MCMC in the last layers",
    paper="Murfet et al. 2020, Deep learning is singular, and that's good; Tables 1, 3, 4, 5 and Figs. 1, 3-9",
    cells=cells,
    compute=compute,
    rows=rows,
    figures=figures,
    notes="The printed slopes of the last-layer Laplace approximation, in the thousands, come from the authors' "
    "code, not from the approximation: it takes the mean loss without n/2, transposes of A and B, no ReLU, and "
    "with the identity a layer that was never trained. The same choice of layer is why the last layer alone "
    "does better than both last layers there, which the paper calls a surprise. Done right, the Laplace "
    "approximation of the last layer, whose posterior is Gaussian, does as well as MAP; that of the last two "
    "layers, whose posterior is singular, has an indefinite Hessian and is invalid; and being Bayesian in both "
    "last layers is what helps. Networks and data follow the code where it differs from the text: g has one "
    "hidden layer more, and the nonrealizable truth is 0.04 times a product of two normal matrices. Orders are "
    "judged by slopes without intercept in all panels, which are weighted averages of G.",
)
