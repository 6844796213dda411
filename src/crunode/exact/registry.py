"""Families by name: `evaluate` finds the theorem for a family and its parameters, `catalog` lists what there is.

The families stand in `families.toml`, beside this module.
"""

from __future__ import annotations

import importlib
import pkgutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crunode.errors import InputError
from crunode.exact.result import LearningCoefficient

__all__ = ["Family", "catalog", "evaluate", "family_named"]


@dataclass(frozen=True)
class Family:
    """A model family with a theorem.

    Attributes:
        name: As `evaluate` takes it.
        scope: "global", "local", or "either" where the parameters decide.
        theorem: The formula in words.
        citation: Where it is published.
        parameters: Name and meaning of each parameter, in the order of the command line.
        defaults: Values of those that may be left out.
        rest: A parameter that takes all remaining values of the command line.
        lists: Parameters that are lists.
        texts: Parameters that are text, whatever it looks like.
        aliases: Other names of the family.

    Example:
        >>> family_named("reduced-rank").name
        'reduced_rank_regression'
    """

    name: str
    scope: str
    theorem: str
    citation: str
    parameters: Mapping[str, str]
    compute: Callable[..., LearningCoefficient]
    defaults: Mapping[str, Any]
    rest: str | None
    lists: tuple[str, ...]
    texts: tuple[str, ...]
    aliases: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Name, parameters, theorem and citation as JSON-able values.

        Example:
            >>> family_named("regular").to_dict()["parameters"]
            {'dim': 'number of parameters'}
        """
        return {
            "family": self.name,
            "scope": self.scope,
            "parameters": dict(self.parameters),
            "defaults": dict(self.defaults),
            "theorem": self.theorem,
            "citation": self.citation,
            "aliases": list(self.aliases),
        }


def evaluate(family: str, /, **params: Any) -> LearningCoefficient:
    """Exact learning coefficient of a family by name.

    Args:
        family: A name out of `catalog()`; hyphens and underscores are the same.
        **params: The family's parameters.

    Returns:
        The coefficient, with its status, hypotheses and citation.

    Raises:
        InputError: No such family, parameters that it does not have or that are missing, or values that no theorem
            covers.

    Example:
        >>> print(evaluate("dln", widths=[1, 1, 1], rank=0))
        λ = 1/2, m = 2 (exact) [Aoyagi 2024, ...]
    """
    found = family_named(family)
    unknown, wanted = [name for name in params if name not in found.parameters], ", ".join(found.parameters)
    if unknown:
        raise InputError(f"expected the parameters {wanted} of {found.name}, got {', '.join(map(str, unknown))} too")
    missing = [name for name in found.parameters if name not in params and name not in found.defaults]
    if missing:
        raise InputError(f"expected the parameters {wanted} of {found.name}, got no {', '.join(missing)}")
    return found.compute(**{**found.defaults, **params})


def catalog() -> list[Family]:
    """All families, in the order of the documentation.

    Example:
        >>> [family.name for family in catalog()][:3]
        ['regular', 'normal_crossing', 'monomial_ideal']
    """
    return list(_FAMILIES.values())


def family_named(name: Any) -> Family:
    """The family of that name or alias.

    Raises:
        InputError: There is none; the message names the nearest.

    Example:
        >>> family_named("Deep-Linear").name
        'dln'
    """
    if not isinstance(name, str):
        raise InputError(f"expected the name of a family as text, got {name!r}")
    key = name.strip().lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key not in _FAMILIES:
        import difflib

        near = difflib.get_close_matches(key, [*_FAMILIES, *_ALIASES], n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "`crunode exact list` shows all"
        raise InputError(f"expected the name of a family, got {name[:80]!r}; {hint}")
    return _FAMILIES[key]


def _family(name: str, row: Mapping[str, Any]) -> Family:
    module, _, function = row["call"].partition(":")

    def compute(**params: Any) -> LearningCoefficient:
        # Imported when it is called, so that one family costs no other's import.
        call = getattr(importlib.import_module(f"crunode.exact.{module}"), function)
        found = call(**params, **row.get("fixed", {}))
        assert isinstance(found, LearningCoefficient)
        return found

    defaults = {**row.get("defaults", {}), **dict.fromkeys(row.get("optional", ()))}
    kinds = (tuple(row.get(key, ())) for key in ("lists", "texts", "aliases"))
    texts = (row["scope"], row["theorem"], row["citation"])
    return Family(name, *texts, row["parameters"], compute, defaults, row.get("rest"), *kinds)


_TABLE = tomllib.loads((pkgutil.get_data("crunode.exact", "families.toml") or b"").decode())
_FAMILIES = {name: _family(name, row) for name, row in _TABLE.items()}
_ALIASES = {alias: family.name for family in _FAMILIES.values() for alias in family.aliases}
