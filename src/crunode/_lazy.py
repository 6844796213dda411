"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

__all__ = ["exports"]


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    Its names stand once, below `if TYPE_CHECKING:` in its `__init__`, each on a line of its own as type checkers want
    it: `from package.module import name as name`. The module may be the package itself where the name is a module.

    Args:
        package: Its dotted name.
    """
    homes: dict[str, str] = {}
    for line in (pkgutil.get_data(package, "__init__.py") or b"").decode().splitlines():
        if line.startswith("    from "):
            _, module, _, name, _, _ = line.split()
            homes[name] = module

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return importlib.import_module(f"{package}.{name}") if home.__name__ == package else getattr(home, name)

    return find, lambda: sorted(homes), sorted(homes)
