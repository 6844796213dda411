"""Recipes by name, as installed packages offer them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import metadata

from crunode.errors import InputError
from crunode.jobs.recipe import Recipe

__all__ = ["GROUP", "recipe", "recipes"]

GROUP = "crunode.recipes"
"""Entry points of packages: the name is the recipe's, the object its `Recipe`."""


def recipes() -> list[str]:
    """Names of all recipes in the order of the alphabet; none is loaded.

    Example:
        >>> "toy-volumes" in recipes()
        True
    """
    return sorted({point.name for point in _points()})


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Args:
        name: One of `recipes()`.

    Raises:
        InputError: There is none of that name, two packages offer one, or what a package offers under it is no recipe.

    Example:
        >>> recipe("toy-volumes").sizes
        ('toy', 'paper')
    """
    points = _points()
    # A package can be found twice, such as in two folders of the path; that is no second offer.
    offers = {(_normalized(point), point.value): point for point in points if point.name == name}
    if not offers:
        raise InputError(f"expected the name of a recipe, got {name!r}; {_nearest(str(name), points)}")
    if len(offers) > 1:
        found = " and ".join(f"{point.value} of {_package(point)}" for point in offers.values())
        raise InputError(
            f"expected one package to offer the recipe {name}, got {len(offers)}: {found}; uninstall all of these "
            "packages but one, or rename the entry point in one of them"
        )
    (point,) = offers.values()
    where = f"the entry point {name} = {point.value} of {_package(point)}"
    try:
        offered = point.load()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"expected a recipe at {where}, which could not be loaded ({type(error).__name__}: {error}); "
            "repair or uninstall that package"
        ) from error
    if not isinstance(offered, Recipe):
        raise InputError(f"expected a Recipe at {where}, got {type(offered).__name__}")
    return offered


def _points() -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=GROUP))


def _nearest(name: str, points: Iterable[metadata.EntryPoint]) -> str:
    """Names that are like the one asked for, and which packages have been looked in."""
    names = sorted({point.name for point in points})
    if not names:
        return f"no installed package has an entry point of the group {GROUP}; install crunode once more"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names
    return f"nearest: {', '.join(near)}; looked in: {', '.join(sorted({_package(point) for point in points}))}"


def _package(point: metadata.EntryPoint) -> str:
    """Name and version of the package that has the entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist and point.dist.name else "a package without a name"


def _normalized(point: metadata.EntryPoint) -> str:
    """The package's name, as it is compared: case, dashes, dots and underscores do not tell names apart."""
    name = point.dist.name if point.dist else None
    return re.sub(r"[-_.]+", "-", name).lower() if name else ""
