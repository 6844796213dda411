"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["resolver"]


def resolver(package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: Its dotted name.
        homes: Names by the module below the package that has them.
        modules: Modules below the package that are names themselves.

    Example:
        >>> resolver("json", {"decoder": ["JSONDecoder"]})("JSONDecoder").__name__
        'JSONDecoder'
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in home_of:
            return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
