"""JSON documents that carry their format, their version and their own checksum."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from crunode.errors import InputError, StoreError
from crunode.store.atomic import digest, read_bytes, write_bytes

__all__ = ["diff", "document_bytes", "dumps", "loads", "parse_document", "plain", "read_document", "write_document"]


def plain(value: Any, key: str = "") -> Any:
    """`value` in JSON's own types: mappings, lists, str, int, float, bool, None.

    Tuples and arrays become lists, numpy scalars numbers, paths text.

    Args:
        value: What to convert.
        key: Dotted name of the value, for the message.

    Raises:
        InputError: Something has no JSON form.

    Example:
        >>> plain({"step": np.float32(0.5), "shape": (2, 3)})
        {'step': 0.5, 'shape': [2, 3]}
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist(), key)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    dot = f"{key}." if key else ""
    if isinstance(value, Mapping):
        return {str(k): plain(v, f"{dot}{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v, f"{dot}{i}") for i, v in enumerate(value)]
    raise InputError(
        f"expected a value that JSON can hold at {key or 'the top'!r}, got {type(value).__name__}; "
        "pass numbers, text, lists and dictionaries of them"
    )


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, dict):
        return {k: _encode(v) for k, v in value.items()}
    return [_encode(v) for v in value] if isinstance(value, list) else value


def _decode(content: dict[str, Any]) -> Any:
    marked = content.keys() == {"$float"} and content["$float"] in ("nan", "inf", "-inf")
    return float(content["$float"]) if marked else content


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text of `value`; without `indent` in the one canonical form that is hashed.

    Canonical: keys sorted, no spaces, ASCII. Non-finite numbers, which JSON lacks, are written as
    `{"$float": "nan"}`, `{"$float": "inf"}`, `{"$float": "-inf"}`.

    Example:
        >>> dumps({"b": 1, "a": float("inf")})
        '{"a":{"$float":"inf"},"b":1}'
    """
    content = _encode(plain(value))
    if indent is None:
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return json.dumps(content, indent=indent, allow_nan=False)


def loads(text: str | bytes) -> Any:
    """Inverse of `dumps`.

    Example:
        >>> loads('{"a":{"$float":"-inf"}}')
        {'a': -inf}
    """
    return json.loads(text, object_hook=_decode)


def write_document(path: Path, name: str, version: int, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write `content` as a JSON document that names its format, its version and its own SHA-256.

    Returns:
        `{"sha256": ..., "bytes": ...}` of the file.
    """
    return write_bytes(path, document_bytes(name, version, content))


def document_bytes(name: str, version: int, content: Mapping[str, Any]) -> bytes:
    """The bytes of such a document. The hash is that of its canonical text (`dumps`) without the key `sha256`.

    Example:
        >>> json.loads(document_bytes("crunode-tags", 1, {"tags": []}))["format"]
        'crunode-tags'
    """
    body = {"format": name, "version": version, **content}
    seal = digest(dumps(body).encode())
    return (dumps({**body, "sha256": seal}, indent=1) + "\n").encode()


def read_document(path: Path, name: str, version: int, expected: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Inverse of `write_document`, checked.

    Raises:
        StoreError: The file is missing, corrupt, of another format or of another version.
    """
    return parse_document(read_bytes(path, expected), path, name, version)


def parse_document(data: bytes, path: Path, name: str, version: int) -> dict[str, Any]:
    """The content of a document that was read from `path`; see `read_document`.

    Raises:
        StoreError: It is corrupt, of another format or of another version.

    Example:
        >>> parse_document(b"[]", Path("manifest.json"), "crunode-run", 1)
        Traceback (most recent call last):
        crunode.errors.StoreError: manifest.json is corrupt: expected a JSON document of format 'crunode-run' ...
    """
    try:
        raw = json.loads(data)
        seal = raw.pop("sha256")
        found = raw["format"], raw["version"]
        canonical = json.dumps(raw, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if found == (name, version) and seal == digest(canonical.encode()):
            body: dict[str, Any] = loads(data) if b"$float" in data else raw
            return {key: value for key, value in body.items() if key not in ("format", "version", "sha256")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{path} is corrupt: expected a JSON document of format {name!r} version {version}, "
            f"got {data[:40]!r}. Restore it from a copy, or choose another folder."
        ) from error
    if found != (name, version):
        raise StoreError(
            f"{path}: expected format {name!r} version {version}, "
            f"got format {str(found[0])[:80]!r} version {str(found[1])[:20]}. "
            "Read it with the release of crunode that wrote it, or choose another folder."
        )
    raise StoreError(
        f"{path} is corrupt: its content does not have the sha256 that it states. "
        "Restore it from a copy, or run again in a new folder."
    )


def diff(stored: Any, asked: Any) -> list[str]:
    """The settings in which two specs differ, one line each, nested keys dotted.

    Args:
        stored: Settings of the run on disk.
        asked: Settings of the call.

    Returns:
        Lines "key: stored X, asked Y"; empty when the settings are the same.

    Example:
        >>> diff({"kernel": {"step": 0.1}, "chains": 4}, {"kernel": {"step": 0.2}, "chains": 4, "batch": 64})
        ['kernel.step: stored 0.1, asked 0.2', 'batch: stored nothing, asked 64']
    """
    return list(_differences(plain(stored), plain(asked), ""))


_ABSENT = object()


def _differences(stored: Any, asked: Any, key: str) -> Iterator[str]:
    dot = f"{key}." if key else ""
    if isinstance(stored, dict) and isinstance(asked, dict):
        for name in [*stored, *(k for k in asked if k not in stored)]:
            yield from _differences(stored.get(name, _ABSENT), asked.get(name, _ABSENT), f"{dot}{name}")
    elif isinstance(stored, list) and isinstance(asked, list) and len(stored) == len(asked):
        for index, (one, other) in enumerate(zip(stored, asked, strict=True)):
            yield from _differences(one, other, f"{dot}{index}")
    elif _ABSENT in (stored, asked) or (stored != asked and dumps(stored) != dumps(asked)):  # NaN equals NaN
        yield f"{key or 'value'}: stored {_short(stored)}, asked {_short(asked)}"


def _short(value: Any) -> str:
    text = "nothing" if value is _ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
