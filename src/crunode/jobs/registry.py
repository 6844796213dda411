"""Recipes by name, as installed packages offer them."""

from __future__ import annotations

import difflib
from importlib import metadata

from crunode.errors import InputError
from crunode.jobs.recipe import Recipe

__all__ = ["GROUP", "recipe", "recipes"]

GROUP = "crunode.recipes"
"""Entry points of packages: the name is the recipe's, the object its `Recipe`."""


def recipes() -> list[str]:
    """Names of all recipes in the order of the alphabet; none is loaded.

    Example:
        >>> "watanabe-criteria" in recipes()
        True
    """
    return sorted({point.name for point in metadata.entry_points(group=GROUP)})


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
