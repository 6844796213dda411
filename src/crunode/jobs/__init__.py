"""Work that goes on without its caller: recipes, job files, forecasts of what they cost, and calls made again.

May be imported from outside: what the modules list in `__all__`. A new kind of work goes into a module of its own.
"""

__all__: list[str] = []
