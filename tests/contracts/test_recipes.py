"""The recipes of crunode itself are valid ones, and the suite refuses those that are not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from crunode.jobs.recipe import Cell, Row
from crunode.jobs.registry import recipe
from crunode.testing import check_recipe

pytestmark = pytest.mark.heavy


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "unit" / "jobs"))
    import tiny_recipe

    return tiny_recipe.RECIPE


def test_recipe_of_crunode_is_valid():
    """Those of papers are in tests/papers."""
    run = check_recipe(recipe("toy-volumes"))
    assert run.ok, run.compare()


def test_small_recipe_is_valid(tiny):
    assert check_recipe(tiny).ok


SHOWN = Row("a", None, 1.0, None, None, "shown")


def unseeded(cell):
    return {"value": float(torch.rand(()))}


WRONG = {
    "no paper": ({"paper": ""}, "a name, a title and a paper"),
    "no toy size": ({"sizes": ("paper",)}, "a toy size"),
    "same names": ({"cells": lambda size, seed: [Cell("a"), Cell("a", {"seed": seed})]}, "different names"),
    "no seed": ({"cells": lambda size, seed: [Cell("a", {"x": 1})]}, "tell their seed"),
    "no rows": ({"rows": lambda results, size: []}, "expected rows"),
    "twice the same row": (
        {"rows": lambda results, size: [SHOWN] * 2},
        "rows with different names",
    ),
    "no source": ({"rows": lambda results, size: [Row("a", 1.0, 1.0, None, 0.1, "agrees")]}, "a source"),
    "unseeded": ({"compute": unseeded, "rows": lambda results, size: [SHOWN]}, "the same result from the same seed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_recipe_is_refused(tiny, name):
    change, message = WRONG[name]
    with pytest.raises(AssertionError, match=message):
        check_recipe(replace(tiny, **change))


def test_failing_cell_is_refused(tiny, monkeypatch):
    monkeypatch.setenv("TINY_FAIL", "square 2")
    with pytest.raises(AssertionError, match="planted"):
        check_recipe(tiny)


def test_slow_recipe_is_refused(tiny):
    with pytest.raises(AssertionError, match="within 0 s"):
        check_recipe(tiny, seconds=0)


def test_function_has_to_be_at_the_top_of_a_module(tiny):
    with pytest.raises(AssertionError, match="pickled"):
        check_recipe(replace(tiny, compute=lambda cell: {}))
