"""All recipes of papers are valid ones, their toy tables agree, and the documentation lists them."""

from importlib import metadata
from pathlib import Path

import pytest

from crunode.jobs.registry import GROUP, recipe
from crunode.testing import check_recipe

NAMES = [point.name for point in metadata.entry_points(group=GROUP) if point.value.startswith("crunode_papers.")]
# Five to thirteen seconds each; their rows and parts are held against hand-made ones in the files beside this.
LONG = ("cullen2026-scaling", "freeman2016-connectivity", "li2018-surface", "murfet2020-rlct")


@pytest.mark.heavy
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in sorted(NAMES)])
def test_recipe_is_valid(name):
    # Whether a table at toy size agrees is the recipes' own affair; here a fixed seed has to give one that does.
    run = check_recipe(recipe(name), seconds=120)
    assert run.ok, run.compare()


def test_documentation_lists_them():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert set(LONG) < set(NAMES)
    assert not [name for name in NAMES if f"| `{name}` |" not in page]
