"""Toy landscapes, small data sets and the demonstration.

May be imported from outside: what the modules list in `__all__`. A landscape whose answer is known goes into `toys`.
"""

__all__: list[str] = []
