"""Work that goes on without its caller: recipes, job files, forecasts of what they cost, and calls made again.

May be imported from outside: what the modules list in `__all__`. A new kind of work goes into a module of its own.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.jobs.loading import options_from as options_from
    from crunode.jobs.placing import place as place
    from crunode.jobs.recipe import Cell as Cell
    from crunode.jobs.recipe import Expected as Expected
    from crunode.jobs.recipe import Recipe as Recipe
    from crunode.jobs.recipe import Result as Result
    from crunode.jobs.recipe import Row as Row
    from crunode.jobs.recipe import Run as Run
    from crunode.jobs.registry import recipes as recipes
else:
    __getattr__, __dir__, __all__ = exports(__name__)
