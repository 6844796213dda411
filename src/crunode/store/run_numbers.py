"""Results and settings as run folders hold them, reduced to named numbers; nothing of a wrong type gets through."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Number",
    "estimate_numbers",
    "flat_settings",
    "history_numbers",
    "recipe_numbers",
    "recipe_ok",
    "recipe_words",
    "text_of",
]

_MOST = 1000
_LEAVES, _LONG, _NESTED = 256, 200, 12
_GOOD = ("agrees", "explained", "shown")


class Number(NamedTuple):
    """A named result.

    Attributes:
        name: What it is.
        value: Its value; None where it is not finite.
        se: Its Monte-Carlo standard error, where it has one.
        systematic: Size of its systematic error, where it has one.
        ok: Whether it can be trusted.
    """

    name: str
    value: float | None
    se: float | None
    systematic: float | None
    ok: bool

    @property
    def error(self) -> float | None:
        """Total stated error: both parts in quadrature.

        Example:
            >>> Number("llc", 2.0, 0.3, 0.4, True).error
            0.5
        """
        return None if self.se is None else math.hypot(self.se, self.systematic or 0.0)


def text_of(value: Any, most: int) -> str:
    """`value` as text of at most `most` characters that can be written as UTF-8.

    Example:
        >>> text_of("abcdef", 4), text_of(3, 4)
        ('abc…', '3')
    """
    text = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def estimate_numbers(contents: Iterable[Mapping[str, Any]]) -> tuple[Number, ...]:
    """Estimates as `Estimate.to_dict` gives them; `llc` comes first, the others by name.

    Example:
        >>> estimate_numbers([{"name": "llc", "value": 2.5, "se": 0.1, "systematic": 0.0, "findings": []}])
        (Number(name='llc', value=2.5, se=0.1, systematic=0.0, ok=True),)
    """
    found = []
    for content in contents:
        value, se, systematic = (_finite(content.get(key)) for key in ("value", "se", "systematic"))
        listed = content.get("findings")
        findings = listed if isinstance(listed, list) else [None]  # what cannot be read stands against it
        serious = any(not isinstance(f, dict) or f.get("severity") == "error" for f in findings)
        whole = None not in (value, se, systematic)
        found.append(Number(text_of(content.get("name", ""), 100), value, se, systematic, whole and not serious))
    return tuple(sorted(found, key=lambda number: (number.name != "llc", number.name))[:_MOST])


def recipe_numbers(rows: Sequence[Any]) -> tuple[Number, ...]:
    """The rows of a recipe's table.

    Example:
        >>> recipe_numbers([{"name": "λ", "ours": 1.5, "se": None, "verdict": "agrees"}])
        (Number(name='λ', value=1.5, se=None, systematic=None, ok=True),)
    """
    found = []
    for row in rows[:_MOST]:
        if isinstance(row, dict):
            name, good = text_of(row.get("name", ""), 200), row.get("verdict") in _GOOD
            found.append(Number(name, _finite(row.get("ours")), _finite(row.get("se")), None, good))
    return tuple(found)


def recipe_ok(rows: Sequence[Any], cells: Sequence[Any]) -> bool:
    """Whether no cell of a recipe failed, and no row differs without a reason or lacks its value."""
    fine = all(isinstance(row, dict) and row.get("verdict") in _GOOD for row in rows)
    return fine and all(isinstance(cell, dict) and cell.get("error") is None for cell in cells)


def recipe_words(rows: Sequence[Any]) -> str:
    """How many rows of a recipe's table came out how.

    Example:
        >>> recipe_words([{"verdict": "agrees"}, {"verdict": "agrees"}, {"verdict": "explained"}])
        '2 agrees, 1 explained'
    """
    seen = Counter(text_of(row.get("verdict", "?"), 20) for row in rows if isinstance(row, dict))
    return ", ".join(f"{count} {word}" for word, count in seen.most_common(6)) or "no rows"


def history_numbers(row: Mapping[str, Any]) -> tuple[Number, ...]:
    """The numbers of the last epoch of a training, the loss first.

    Example:
        >>> [number.name for number in history_numbers({"epoch": 3, "loss": 0.25})]
        ['loss', 'epoch']
    """
    found = [Number(text_of(name, 100), number, None, None, True) for name, number in _numeric(row)]
    return tuple(sorted(found, key=lambda number: number.name != "loss")[:_MOST])


def _numeric(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        number = _finite(value)
        if number is not None:
            yield str(name), number


def flat_settings(settings: Mapping[str, Any]) -> dict[str, int | float | str]:
    """Settings by dotted keys, as far as they are short: numbers, and everything else as text.

    Example:
        >>> flat_settings({"kernel": {"name": "HMC", "step": 0.1}, "nbeta": [1.0, 2.0], "batch": None})
        {'kernel.name': 'HMC', 'kernel.step': 0.1, 'nbeta': '[1.0,2.0]', 'batch': 'null'}
    """
    found: dict[str, int | float | str] = {}
    for key, value in _leaves(settings, "", 0):
        if len(found) >= _LEAVES:
            break
        found[key] = value
    return found


def _leaves(value: Any, key: str, depth: int) -> Iterator[tuple[str, int | float | str]]:
    if isinstance(value, Mapping):
        if depth < _NESTED:
            for name, inner in value.items():
                yield from _leaves(inner, f"{key}.{name}" if key else str(name), depth + 1)
        return
    key = text_of(key, _LONG)
    if isinstance(value, bool) or value is None:
        yield key, {True: "true", False: "false", None: "null"}[value]
    elif isinstance(value, int | float) and (-(2**63) < value < 2**63 or value in (math.inf, -math.inf)):
        yield key, value
    elif isinstance(value, str):
        if len(value) <= _LONG:
            yield key, text_of(value, _LONG)
    elif isinstance(value, list):
        if len(value) <= 16 and all(v is None or isinstance(v, bool | int | float | str) for v in value):
            text = json.dumps(value, separators=(",", ":"))
            if len(text) <= _LONG:
                yield key, text
    else:
        yield key, str(value)
