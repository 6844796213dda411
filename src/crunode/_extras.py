"""The only door to optional packages."""

from __future__ import annotations

import importlib
from types import ModuleType

from crunode.errors import MissingExtra

__all__ = ["need"]


def need(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or say which extra brings it.

    Args:
        module: Dotted name of the module.
        extra: Name of the crunode extra that installs it.

    Returns:
        The imported module.

    Raises:
        MissingExtra: The package is not installed.

    Example:
        >>> need("math", extra="plot").floor(2.5)
        2
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"this needs the package {package!r}, which could not be imported ({error}). "
            f"Install it with: pip install 'crunode[{extra}]'"
        ) from error
