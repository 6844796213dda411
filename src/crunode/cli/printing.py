"""Words and JSON on standard output, errors on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from crunode.errors import DiagnosticWarning
from crunode.store.guarded import shown

__all__ = ["fail", "print_json", "printable", "quiet"]


@contextlib.contextmanager
def quiet(as_json: bool) -> Iterator[None]:
    """Findings are printed as words, so not as warnings too; with JSON nothing else may reach standard output."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore", DiagnosticWarning)
        if as_json:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def fail(kind: str, message: str, words: Sequence[str]) -> None:
    """Print an error: one JSON document when `words` ask for JSON, else a line on standard error."""
    if "--json" in words:
        print_json({"error": {"type": kind, "message": message}})
    else:
        print(f"error: {printable(message)}", file=sys.stderr)


def printable(text: str) -> str:
    r"""`text` with its lines, but without characters that would steer a terminal.

    Example:
        >>> print(printable("one\x1b[2J\ntwo"))
        one\x1b[2J
        two
    """
    return "\n".join(shown(line) for line in text.split("\n"))


def print_json(content: Any) -> None:
    """Print one JSON document; numbers that are not finite become null."""
    print(json.dumps(_finite(content), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    """`value` in JSON's own types; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    number = float(value)
    return number if math.isfinite(number) else None
