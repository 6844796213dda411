"""Recipes by name: those that come with crunode, and those of other packages."""

from __future__ import annotations

import difflib
import importlib
from importlib import metadata

from crunode.errors import InputError
from crunode.jobs.recipe import Recipe

__all__ = ["BUILT_IN", "GROUP", "recipe", "recipes"]

BUILT_IN = (
    "cooper2021-dimension",
    "cullen2026-critical-data",
    "cullen2026-sampler",
    "cullen2026-scaling",
    "cullen2026-severity",
    "cullen2026-toys",
    "cullen2026-trajectory",
    "cullen2026-transformer",
    "freeman2016-connectivity",
    "gauss-newton",
    "lazy-training",
    "li2018-surface",
    "model-selection",
    "murfet2020-generalization",
    "murfet2020-rlct",
    "murfet2020-volume",
    "pennington2017-index",
    "pennington2017-spectrum",
    "saghir2024-escape",
    "saghir2024-optimizers",
    "saghir2024-overfitting",
    "saghir2024-smoothing",
    "watanabe-criteria",
)
"""Recipes of crunode: `RECIPE` in the module of the same name, with underscores."""

GROUP = "crunode.recipes"
"""Entry points of other packages: the name is the recipe's, the object its `Recipe`."""


def recipes() -> list[str]:
    """Names of all recipes, those of other packages last; none is loaded.

    Example:
        >>> "watanabe-criteria" in recipes()
        True
    """
    return list(dict.fromkeys([*BUILT_IN, *sorted(point.name for point in metadata.entry_points(group=GROUP))]))


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Args:
        name: One of `recipes()`.

    Raises:
        InputError: There is none of that name, or what another package offers under it is no recipe.

    Example:
        >>> recipe("murfet2020-volume").sizes
        ('toy', 'paper')
    """
    if name in BUILT_IN:
        found = importlib.import_module(f"crunode.recipes.{name.replace('-', '_')}").RECIPE
        assert isinstance(found, Recipe)
        return found
    points = [point for point in metadata.entry_points(group=GROUP) if point.name == name]
    if not points:
        near = difflib.get_close_matches(str(name), recipes(), n=3, cutoff=0.3) or recipes()
        raise InputError(f"expected the name of a recipe, got {name!r}; nearest: {', '.join(near)}")
    try:
        offered = points[0].load()
    except Exception as error:
        raise InputError(
            f"expected a recipe at the entry point {name} = {points[0].value}, which could not be loaded "
            f"({type(error).__name__}: {error}); repair or remove the package that offers it"
        ) from error
    if not isinstance(offered, Recipe):
        raise InputError(
            f"expected a Recipe at the entry point {name} = {points[0].value}, got {type(offered).__name__}"
        )
    return offered
