"""What a golden call returned, as flat lines of text that are equal where the result is equal to the last bit.

Numbers are hex floats; findings are codes with their severity; a large array is its shape, its sums and its hash.
Prose, identities, times and paths are left out; so are versions and the state of the sources.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import torch

import crunode as cr

FEW = 6
"""Entries of an array that are written out."""

LEFT_OUT = frozenset(
    {"landscape", "fingerprint", "provenance", "version", "git", "host", "pid", "recipe_version"}
    | {"seconds", "took", "started", "ended", "created", "modified", "updated"}
    | {"folder", "path", "paths", "home", "store", "figures", "bytes", "size", "memory", "memory_bytes"}
    | {"message", "messages", "remedy", "reason", "reasons", "why", "note", "notes"}
)
"""Names of fields, and keys, that say when, where or by what something was computed, or say it in words."""

MASKS = (
    (re.compile(r"(?<![\w.])/(?:[\w.+-]+/)*[\w.+-]+"), "<path>"),
    (re.compile(r"(?<![.\w])(?=\d*[a-f])[0-9a-f]{12,}\b"), "<hash>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+\d\d:\d\d| UTC)?)?"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)?(e-?\d+)? ?(ms|s|seconds?|min|minutes?|h)\b"), "<time>"),
    (re.compile(r"\b\d+(\.\d+)? ?([kMG]?B|bytes)\b"), "<size>"),
    (re.compile(r"\bat 0x[0-9a-f]{6,}"), "<address>"),
)


@dataclasses.dataclass(frozen=True)
class Text:
    """Printed words, to be compared line by line without times, paths and hashes."""

    text: str


def masked(text: str) -> str:
    """`text` without what differs between two runs of the same code.

    >>> masked("in /tmp/a/b.txt after 0.3 s")
    'in <path> after <time>'
    """
    for pattern, instead in MASKS:
        text = pattern.sub(instead, text)
    return text


def error_line(error: BaseException) -> str:
    """Type and message of an error."""
    return masked(f"{type(error).__name__}: {error}")


def number(value: float) -> str:
    """A float in hex, which keeps every bit.

    >>> number(0.5), number(float("nan"))
    ('0x1.0000000000000p-1', 'nan')
    """
    return float(value).hex()


def array_line(array: np.ndarray) -> str:
    """Shape and type with all entries of a small array, else with its sums and the hash of its bytes.

    >>> array_line(np.array([1.0, 2.0]))
    'float64 (2,) 0x1.0000000000000p+0 0x1.0000000000000p+1'
    """
    head = f"{array.dtype} {array.shape}"
    flat = np.ascontiguousarray(array).reshape(-1)
    if not np.issubdtype(flat.dtype, np.number) and flat.dtype != bool:
        return f"{head} {masked(' '.join(map(str, flat.tolist())))}"
    parts = [flat.real, flat.imag] if np.iscomplexobj(flat) else [flat]
    numbers = [part.astype(np.float64) for part in parts]
    if flat.size <= FEW:
        return " ".join([head, *(number(x) for part in numbers for x in part)])
    sums = [number(math.fsum(part) if np.isfinite(part).all() else part.sum()) for part in numbers]
    squares = [number((part * part).sum()) for part in numbers]
    return " ".join([head, *sums, *squares, f"sha256:{hashlib.sha256(flat.tobytes()).hexdigest()[:16]}"])


def lines(thing: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Name and text of each number, code, word and array of a result.

    >>> dict(lines({"a": [1, 0.5], "seconds": 3.0}))
    {'a.0': '1', 'a.1': '0x1.0000000000000p-1'}
    """
    match thing:
        case None | bool() | Integral() | Fraction():
            yield name, str(thing)
        case Real():
            yield name, number(float(thing))
        case complex():
            yield name, f"{number(thing.real)} {number(thing.imag)}"
        case str():
            if " " not in thing and masked(thing) == thing:
                yield name, thing
        case Text():
            for k, line in enumerate(masked(thing.text).splitlines()):
                yield f"{name}.{k}", " ".join(line.split())
        case BaseException():
            yield name, error_line(thing)
        case cr.Finding():
            yield name, f"{thing.code} {thing.severity}"
        case torch.Tensor():
            yield name, array_line(thing.detach().cpu().numpy())
        case np.ndarray():
            yield name, array_line(thing)
        case Mapping() if "code" in thing and "severity" in thing:
            yield name, f"{thing['code']} {thing['severity']}"
        case Mapping():
            yield from named_lines({str(key): value for key, value in thing.items()}, name)
        case list() | tuple():
            if len(thing) > FEW and all(isinstance(x, Real) for x in thing):
                yield name, array_line(np.asarray(thing, dtype=np.float64))
            else:
                yield from named_lines({str(k): value for k, value in enumerate(thing)}, name)
        case set() | frozenset():
            yield name, " ".join(sorted(map(str, thing)))
        case _ if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
            fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
            extra = {"gradients": thing.gradients} if isinstance(thing, cr.Draws) else {}
            yield from named_lines(fields | extra | ({"ok": thing.ok} if isinstance(thing, cr.Estimate) else {}), name)
        case _ if callable(thing) or isinstance(thing, Path | torch.nn.Module):
            return
        case _:
            yield name, type(thing).__name__


def named_lines(parts: Mapping[str, object], name: str) -> Iterator[tuple[str, str]]:
    """The lines of the parts of something, but of those that are left out."""
    for key, value in parts.items():
        if key not in LEFT_OUT and "seconds" not in key and not key.startswith("_"):
            yield from lines(value, f"{name}.{masked(key)}" if name else masked(key))
