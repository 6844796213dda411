"""Exact values: a form for each family, answered by the very command that `crunode exact` is."""

from __future__ import annotations

import contextlib
import importlib
import json
import shlex
import subprocess
import sys
import threading
from typing import Any

from crunode.app.board import Board, fields_of, form_of
from crunode.errors import InputError
from crunode.exact.registry import Family, catalog, family_named

__all__ = ["calculator", "exact_answer"]

_SECONDS, _BYTES, _LONGEST = 20.0, 4 * 2**30, 20_000
_free = threading.BoundedSemaphore(2)


def calculator(board: Board, request: Any) -> Any:
    """The page with the form of a family, and the answer once it was sent."""
    post = request.method == "POST"
    fields = form_of(request) if post else fields_of(request)
    families = catalog()
    status, problem, answer, given = 200, "", "", {}
    family = families[0]
    try:
        family = family_named(fields.text("family") or family.name)
        given = {name: text for name in family.parameters if (text := fields.text(f"value-{name}"))}
        if post:
            answer = exact_answer(family, given)
    except InputError as error:
        problem, status = str(error), 400
    first, _, rest = answer.partition("\n")
    return board.page(
        "exact.html.j2",
        status,
        title="Exact values",
        here="exact",
        families=families,
        family=family,
        rows=[_row(family, name, given) for name in family.parameters],
        problem=problem,
        answer=first,
        lines=rest.split("\n") if rest else [],
        command=_command(family, given) if answer else "",
    )


def exact_answer(family: Family, given: dict[str, str]) -> str:
    """What `crunode exact` prints for a family and its parameters, as text.

    It runs in a process of its own with a limit of 20 seconds, and two of them at a time.

    Raises:
        InputError: The values are not valid, or it took too long.

    Example:
        >>> print(exact_answer(family_named("normal_crossing"), {"k": "1,1"}))
        λ = 1/2, m = 2 (exact)
        ...
    """
    words = [f"{name}={text}" for name, text in given.items()]
    if any("\0" in word for word in words):
        raise InputError("expected values as text, got a zero byte")
    if not _free.acquire(timeout=_SECONDS):
        raise InputError("expected at most two calculations at a time, got more; wait for the others to end")
    try:
        command = [sys.executable, "-X", "utf8", "-m", "crunode", "exact", family.name, *words]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        with process:
            _limit(process.pid)
            try:
                out, errors = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise InputError(
                    f"expected a value within {_SECONDS:.0f} seconds, got none; use the command line for long ones"
                ) from None
    finally:
        _free.release()
    if process.returncode != 0:
        said = errors.strip().removeprefix("error: ")
        # A traceback, as of a process without memory, is nothing to show.
        raise InputError(
            said[:2000] if errors.startswith("error: ") else "expected a value, got none; use smaller input"
        )
    return out.strip()[:_LONGEST]


def _limit(process: int) -> None:
    """Bound the memory of a process, where the system can."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        resource = importlib.import_module("resource")
        resource.prlimit(process, resource.RLIMIT_AS, (_BYTES, _BYTES))


def _row(family: Family, name: str, given: dict[str, str]) -> dict[str, str]:
    default = json.dumps(family.defaults[name]) if name in family.defaults else ""
    return {"name": name, "meaning": family.parameters[name], "value": given.get(name, ""), "default": default}


def _command(family: Family, given: dict[str, str]) -> str:
    return shlex.join(["crunode", "exact", family.name, *(f"{name}={text}" for name, text in given.items())])
