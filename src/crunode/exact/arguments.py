"""Checks on the arguments of the exact part: what is no whole number, list or flag never yields a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from crunode.errors import InputError

__all__ = ["flag", "matrix", "rational", "sequence", "whole", "wholes"]

_RATIONAL = re.compile(r"[+-]?\d{1,1000}(/0*[1-9]\d{0,999})?")


def whole(value: Any, name: str, low: int = 1) -> int:
    """`value` as a whole number of at least `low`.

    Whole numbers of other libraries count (they have `__index__`), truth values and 3.0 do not.

    Raises:
        InputError: It is none.

    Example:
        >>> whole(3, "hidden")
        3
        >>> whole(2.5, "hidden")
        Traceback (most recent call last):
        ...
        crunode.errors.InputError: expected hidden as a whole number from 1 up, got 2.5
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool") or not hasattr(value, "__index__"):
        raise InputError(f"expected {name} as a whole number from {low} up, got {value!r}")
    try:
        found = value.__index__()
    except TypeError:  # an array or tensor that is no whole number has the method too
        raise InputError(f"expected {name} as a whole number from {low} up, got {value!r}") from None
    if found < low:
        raise InputError(f"expected {name} as a whole number from {low} up, got {found}")
    return int(found)


def sequence(values: Any, name: str) -> list[Any]:
    """`values` as a list that is not empty; arrays and tensors through their `tolist`.

    Raises:
        InputError: It is text, a mapping, empty, or nothing to go through.

    Example:
        >>> sequence((1, 2), "widths")
        [1, 2]
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, str | bytes | dict) or not isinstance(values, Sequence | Iterable):
        raise InputError(f"expected {name} as a list, got {values!r}")
    found = list(values)
    if not found:
        raise InputError(f"expected {name} as a list that is not empty, got an empty one")
    return found


def wholes(values: Any, name: str, low: int = 1) -> list[int]:
    """`values` as a list of whole numbers of at least `low`.

    Raises:
        InputError: It is none.

    Example:
        >>> wholes([3, 0], "k", low=0)
        [3, 0]
    """
    return [whole(value, f"{name}[{i}]", low) for i, value in enumerate(sequence(values, name))]


def flag(value: Any, name: str) -> bool:
    """`value` as true or false, and nothing that merely resembles it.

    Raises:
        InputError: It is neither.

    Example:
        >>> flag(True, "centred")
        True
    """
    if not isinstance(value, bool):
        raise InputError(f"expected {name} as true or false, got {value!r}")
    return value


def rational(value: Any, name: str) -> Fraction:
    """`value` as an exact rational: a whole number, a Fraction, or text such as "2/3".

    Raises:
        InputError: It is none; floating-point numbers are refused, because 0.1 is not 1/10.

    Example:
        >>> rational("2/3", "h")
        Fraction(2, 3)
    """
    if isinstance(value, str) and _RATIONAL.fullmatch(text := value.replace(" ", "")):
        return Fraction(text)
    if isinstance(value, Fraction):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    raise InputError(f'expected {name} as a whole number or a fraction such as "2/3", got {value!r}')


def matrix(rows: Any, name: str) -> list[list[Any]]:
    """`rows` as a list of equally long lists of numbers, none of them empty.

    Raises:
        InputError: Rows of different lengths, entries that are no numbers, nothing at all.

    Example:
        >>> matrix([[1, 2], [3, 4]], "jacobian_rows")
        [[1, 2], [3, 4]]
    """
    found = [
        [x.item() if hasattr(x, "item") else x for x in sequence(row, f"{name}[{i}]")]
        for i, row in enumerate(sequence(rows, name))
    ]
    lengths = sorted({len(row) for row in found})
    if len(lengths) > 1:
        raise InputError(f"expected the rows of {name} to be equally long, got lengths {lengths[0]} and {lengths[-1]}")
    for row in found:
        for entry in row:
            if isinstance(entry, bool | str | list | complex) or not (
                hasattr(entry, "__index__") or isinstance(entry, float | Fraction)
            ):
                raise InputError(f"expected numbers in {name}, got {entry!r}")
            if isinstance(entry, float) and not abs(entry) < float("inf"):
                raise InputError(f"expected finite numbers in {name}, got {entry!r}")
    return found
