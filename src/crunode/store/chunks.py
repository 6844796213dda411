"""Chunks of draws: named arrays packed as safetensors, and what the chunks of a group must share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from safetensors.numpy import load, save

from crunode.errors import InputError
from crunode.store.documents import dumps, loads

__all__ = ["Kind", "checked", "length", "pack", "shapes", "unpack"]

Kind = Literal["warmup", "draws"]
"""What a chunk holds."""

_FLOATS = ("float16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = frozenset(("bool", *_INTEGERS, *_FLOATS))


def pack(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> bytes:
    """Named arrays, and JSON-able values beside them, as the bytes of a safetensors file.

    Raises:
        InputError: An array has a type that the format lacks, or a name has.

    Example:
        >>> arrays, meta = unpack(pack({"x": np.arange(3)}, {"step": 7}))
        >>> arrays["x"].tolist(), meta
        ([0, 1, 2], {'step': 7})
    """
    # One metadata key only: safetensors writes several in an order that changes from call to call.
    metadata = None if meta is None else {"meta": dumps(dict(meta))}
    return save({name: _ready(name, value) for name, value in arrays.items()}, metadata)


def unpack(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Inverse of `pack`."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return load(data), loads(header.get("__metadata__", {}).get("meta", "{}"))


def _ready(name: str, value: np.ndarray) -> np.ndarray:
    """`value` in row order, little-endian: safetensors would write the bytes of any other array scrambled."""
    value = np.asarray(value)
    if not isinstance(name, str) or not name or name == "__metadata__":
        raise InputError(f"expected a name for each array, got {name!r}; use another name")
    if value.dtype.name not in _DTYPES:
        raise InputError(
            f"expected an array of numbers for {name!r}, got type {value.dtype}; "
            f"convert it to one of {', '.join(sorted(_DTYPES))}"
        )
    return np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")


def checked(
    journal: Mapping[str, Any], kind: Kind, arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, dict[str, Any]], int]:
    """Hold a chunk against its group: what each array is like, and the number of draws.

    Args:
        journal: Journal of the group.
        kind: "warmup" or "draws".
        arrays: The chunk.

    Returns:
        `({name: {"dtype": ..., "shape": trailing shape}}, draws)`.

    Raises:
        InputError: Shapes do not begin with (chain in group, draw in chunk), or differ from earlier chunks.
    """
    chains = len(journal["chains"])
    if kind not in ("warmup", "draws"):
        raise InputError(f"expected kind 'warmup' or 'draws', got {kind!r}")
    values = {name: np.asarray(value) for name, value in arrays.items()}
    leading = {value.shape[:2] for value in values.values()}
    if len(leading) != 1 or len(next(iter(leading))) != 2 or next(iter(leading))[0] != chains:
        raise InputError(
            f"expected arrays of shape ({chains} chains, draws, ...) with one number of draws, "
            f"got { ({name: value.shape for name, value in values.items()}) }; pass the whole group at once"
        )
    like = {name: {"dtype": value.dtype.name, "shape": list(value.shape[2:])} for name, value in sorted(values.items())}
    before = journal["arrays"].get(kind, like)
    if before != like:
        raise InputError(
            f"expected the arrays of the earlier {kind} chunks of group {journal['group']}, {before}, "
            f"got {like}; keep names, types and shapes the same throughout a run"
        )
    return like, int(next(iter(leading))[1])


def length(journal: Mapping[str, Any], kind: Kind) -> int:
    """Number of draws of one kind that a group has committed."""
    return sum(int(entry["draws"]) for entry in journal["chunks"] if entry["kind"] == kind)


def shapes(journals: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, list[int]]:
    """Full shape of each array over all groups, cut to the shortest group.

    Example:
        >>> like = {"draws": {"excess": {"dtype": "float64", "shape": []}}}
        >>> chunk = {"kind": "draws", "draws": 5}
        >>> shapes([{"chains": [0, 1], "arrays": like, "chunks": [chunk, chunk]}], "draws")
        {'excess': [2, 10]}
    """
    chains = sum(len(journal["chains"]) for journal in journals)
    draws = min((length(journal, kind) for journal in journals), default=0)
    found: Mapping[str, Any] = next((journal["arrays"][kind] for journal in journals if kind in journal["arrays"]), {})
    return {name: [chains, draws, *like["shape"]] for name, like in found.items()}
