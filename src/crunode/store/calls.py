"""The call behind a run folder, kept in it so that it can be made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crunode.store.atomic import digest
from crunode.store.documents import dumps, parse_document, plain
from crunode.store.guarded import inside, read_regular, replace_file

__all__ = ["CALL", "read_call", "write_call"]

CALL = "call.json"
"""The file that has it."""

_FORMAT = "crunode-call"


def write_call(folder: str | os.PathLike[str], command: str, arguments: Mapping[str, Any]) -> None:
    """Keep the arguments of a command in its run folder, once that is there.

    Args:
        folder: The run folder.
        command: "llc" or "sweep".
        arguments: JSON-able values.

    Raises:
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_call(folder, "llc", {"target": "mypkg.exp:landscape", "seed": 0})
        ...     read_call(folder)["command"]
        'llc'
    """
    home = Path(folder).absolute()
    body = {"format": _FORMAT, "version": 1, "command": command, "arguments": plain(arguments)}
    text = dumps({**body, "sha256": digest(dumps(body).encode())}, indent=1)
    replace_file(inside(home, CALL), (text + "\n").encode())


def read_call(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What `write_call` kept: `command` and `arguments`; None where nothing was kept.

    Raises:
        StoreError: The file is damaged.
    """
    home = Path(folder).absolute()
    if not os.path.lexists(home / CALL):
        return None
    path = inside(home, CALL)
    return parse_document(read_regular(path), path, _FORMAT, 1)
