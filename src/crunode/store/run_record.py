"""What a run folder of any kind says about itself, read without trust in any of it."""

from __future__ import annotations

import itertools
import math
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crunode.errors import StoreError
from crunode.store.documents import parse_document
from crunode.store.guarded import entries, inside, read_regular
from crunode.store.run_numbers import (
    Number,
    estimate_numbers,
    history_numbers,
    recipe_numbers,
    recipe_ok,
    recipe_words,
    text_of,
)

__all__ = ["HEADERS", "KINDS", "TAGS", "RunRecord", "header_of", "read_run", "signature"]

KINDS = ("draws", "sweep", "recipe", "training", "tracker")
"""Kinds of run folders."""

TAGS = "tags.json"
"""Where a run folder keeps its tags."""

HEADERS = {
    "manifest.json": ("draws", "crunode-run"),
    "sweep.json": ("sweep", "crunode-sweep"),
    "recipe.json": ("recipe", "crunode-recipe-store"),
    "training.json": ("training", "crunode-training"),
    "tracker.json": ("tracker", "crunode-tracker"),
}
"""The file that makes a folder a run folder: its kind, and the format that the file states."""

# What else changes when a run does: looked at without being read.
_WATCHED = {
    "draws": ("groups", "estimates"),
    "sweep": ("default.json", "result.json"),
    "recipe": ("cells", "result.json"),
    "training": ("history.json",),
    "tracker": ("visits",),
}
_STATUS = ("running", "complete", "failed")
_FILES, _DEPTH = 100_000, 16
_ESTIMATES, _VISITS, _YEAR_9999 = 200, 100_000, 253402300799.0
_OPENING = re.compile(rb'\s*\{\s*"format":\s*"(crunode-[a-z-]+)"')
_CODE = re.compile(r"[A-Z]{1,12}[0-9]{1,6}")
_VISIT = re.compile(r"step-([0-9]{8,18})\.json")
_TAG = re.compile(r"[\w.+:@/-]{1,64}")


@dataclass(frozen=True)
class RunRecord:
    """What was read of a run folder.

    Attributes:
        kind: One of `KINDS`.
        subject: What it is about: the names of its estimates, of its recipe, its model, its probes.
        status: "running" (begun and not ended), "complete", "failed", "open" (a training or tracker, which can always
            go on), or "damaged".
        ok: Whether its results can be trusted, as far as they tell; None where there are none.
        summary: One line about the results.
        numbers: The results, the most important first.
        findings: What was noticed: code, severity, message and remedy as text.
        seed: Where all randomness came from.
        settings: All settings.
        provenance: Versions and source state.
        tags: The user's own words about it.
        created: Time of its oldest file, in seconds since 1970.
        updated: Time of its newest file.
        size: Bytes of its files.
        note: What is wrong with the folder, if anything.
    """

    kind: str
    subject: str = ""
    status: str = "damaged"
    ok: bool | None = None
    summary: str = ""
    numbers: tuple[Number, ...] = ()
    findings: tuple[dict[str, str], ...] = ()
    seed: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    created: float = 0.0
    updated: float = 0.0
    size: int = 0
    note: str = ""


def header_of(folder: Path) -> str | None:
    """The name of the file that makes `folder` a run folder; None when it is none.

    A header that is there and cannot be told from another program's counts as none.

    Example:
        >>> header_of(Path("no such folder")) is None
        True
    """
    for name in HEADERS:
        try:
            mode = os.lstat(folder / name).st_mode
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(mode) and _opening(folder / name) == HEADERS[name][1]:
            return name
    return None


def _opening(path: Path) -> str | None:
    """The format that a document states in its first bytes, whether or not the rest is good."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError):
        return None
    try:
        found = _OPENING.match(os.read(handle, 256))
    except OSError:
        return None
    finally:
        os.close(handle)
    return None if found is None else found[1].decode()


def signature(folder: str, header: str) -> str | None:
    """A text that changes when the folder's results, progress or tags do; None where the header is gone."""
    parts = []
    for name in (header, *_WATCHED[HEADERS[header][0]], TAGS):
        try:
            found = os.lstat(f"{folder}/{name}")
        except OSError:
            if name == header:
                return None
            parts.append("-")
        else:
            parts.append(f"{found.st_mtime_ns}.{found.st_size}.{found.st_ino}")
    return " ".join(parts)


def read_run(folder: Path, header: str) -> RunRecord:
    """Read a run folder; what is damaged in it is said in the record's note.

    Args:
        folder: The run folder.
        header: The file that makes it one, as `header_of` gives it.

    Example:
        >>> import tempfile
        >>> from crunode.store.run_store import RunStore
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = RunStore.create(folder + "/a", spec={}, groups=[[0]], seed=3, provenance={})
        ...     found = read_run(Path(folder, "a"), "manifest.json")
        >>> found.kind, found.status, found.seed
        ('draws', 'running', 3)
    """
    kind, form = HEADERS[header]
    notes: list[str] = []
    content: dict[str, Any] = {}
    try:
        content = _READERS[kind](folder, _document(folder, header, form), notes)
    except (StoreError, RecursionError, OverflowError) as error:
        content = {"status": "damaged", "ok": False}
        notes.append(str(error) or type(error).__name__)
    created, updated, size, whole = _extent(folder)
    if not whole:
        notes.append(f"more than {_FILES} files; not all were looked at")
    return RunRecord(
        kind=kind,
        tags=_tags(folder),
        created=created,
        updated=updated,
        size=size,
        note="; ".join(text_of(note, 500) for note in notes[:5]),
        **content,
    )


def _document(folder: Path, name: str, form: str) -> dict[str, Any]:
    path = inside(folder, name)
    return parse_document(read_regular(path), path, form, 1)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _seed(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**128 else None


def _findings(*sources: Any) -> tuple[dict[str, str], ...]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for each in (item for source in sources for item in _list(source)[:1000]):
        given = _mapping(each)
        code = given.get("code")
        if isinstance(code, str) and _CODE.fullmatch(code):
            kept = {key: text_of(given.get(key, ""), 2000) for key in ("code", "severity", "message", "remedy")}
            found.setdefault((code, kept["message"]), kept)
    return tuple(found.values())


def _tags(folder: Path) -> tuple[str, ...]:
    try:
        given = _list(_document(folder, TAGS, "crunode-tags").get("tags"))
    except (StoreError, RecursionError):
        return ()
    return tuple(sorted({tag for tag in given[:100] if isinstance(tag, str) and _TAG.fullmatch(tag)}))


def _extent(folder: Path) -> tuple[float, float, int, bool]:
    """Times of the oldest and the newest file, bytes of all, and whether all were seen."""
    oldest, newest, size, left = math.inf, 0.0, 0, _FILES
    waiting = [(str(folder), 0)]
    while waiting and left > 0:
        here, depth = waiting.pop()
        try:
            listing = os.scandir(here)
        except OSError:
            continue
        with listing:
            for entry in itertools.islice(listing, left):
                left -= 1
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEPTH:
                            waiting.append((entry.path, depth + 1))
                        continue
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if entry.name.endswith(".tmp"):  # half of a file, soon gone or left by a process that was killed
                    continue
                size += found.st_size
                if entry.name != TAGS:
                    time = min(max(found.st_mtime, 0.0), _YEAR_9999)
                    oldest, newest = min(oldest, time), max(newest, time)
    return min(oldest, newest), newest, min(size, 2**62), left > 0


def _draws(folder: Path, manifest: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    names = sorted(e.name for e in entries(folder / "estimates", _ESTIMATES) if e.name.endswith(".json"))
    found = []
    for name in names:
        try:
            found.append(_mapping(_document(folder, f"estimates/{name}", "crunode-estimate").get("estimate")))
        except (StoreError, RecursionError) as error:
            notes.append(str(error))
    numbers = estimate_numbers(found)
    status = manifest.get("status")
    findings = _findings(manifest.get("findings"), *(each.get("findings") for each in found))
    return {
        "subject": text_of(", ".join(number.name for number in numbers[:5]) or "draws", 100),
        "status": status if status in _STATUS else "damaged",
        "ok": False if status == "failed" or notes else all(n.ok for n in numbers) if numbers else None,
        "numbers": numbers,
        "findings": findings,
        "seed": _seed(manifest.get("seed")),
        "settings": _mapping(manifest.get("spec")),
        "provenance": _mapping(manifest.get("provenance")),
    }


def _sweep(folder: Path, header: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    estimate: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    try:
        if os.path.lexists(folder / "default.json"):
            estimate = _mapping(_document(folder, "default.json", "crunode-sweep-record").get("record"))
        if os.path.lexists(folder / "result.json"):
            result = _mapping(_document(folder, "result.json", "crunode-sweep-result").get("sweep"))
    except (StoreError, RecursionError) as error:
        notes.append(str(error))
    asked, plan = _mapping(header.get("asked")), _mapping(header.get("plan"))
    numbers = estimate_numbers([estimate] if estimate else [])
    cells = sum(e.name.endswith(".json") for e in entries(folder / "cells", _VISITS))
    return {
        "subject": text_of(", ".join(number.name for number in numbers) or "sweep", 100),
        "status": "running" if result is None else "complete",
        "ok": False if notes else all(n.ok for n in numbers) if numbers else None,
        "summary": f"{cells} cells",
        "numbers": numbers,
        "findings": _findings(estimate.get("findings")),
        "seed": _seed(asked.get("seed")),
        "settings": {"asked": asked, **plan},
        "provenance": _mapping(_mapping((result or {}).get("spec")).get("provenance")),
    }


def _recipe(folder: Path, header: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    asked = _mapping(header.get("run"))
    result: dict[str, Any] | None = None
    try:
        if os.path.lexists(folder / "result.json"):
            result = _document(folder, "result.json", "crunode-recipe-run")
    except (StoreError, RecursionError) as error:
        notes.append(str(error))
    rows = _list((result or {}).get("rows"))
    cells = sum(e.name.endswith(".json") for e in entries(folder / "cells", _VISITS))
    of = len(_mapping(asked.get("cells")))
    return {
        "subject": text_of(asked.get("recipe", ""), 100),
        "status": "running" if result is None else "complete",
        "ok": None if result is None else recipe_ok(rows, _list(result.get("cells"))) and not notes,
        "summary": f"{cells} of {of} cells" if result is None else recipe_words(rows),
        "numbers": recipe_numbers(rows),
        "seed": _seed(asked.get("seed")),
        "settings": asked,
        "provenance": _mapping((result or {}).get("provenance")),
    }


def _training(folder: Path, header: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    settings = _mapping(header.get("settings"))
    rows: list[Any] = []
    try:
        if os.path.lexists(folder / "history.json"):
            rows = _list(_document(folder, "history.json", "crunode-training-history").get("rows"))
    except (StoreError, RecursionError) as error:
        notes.append(str(error))
    return {
        "subject": text_of(_mapping(settings.get("model")).get("kind", ""), 100),
        "status": "open",
        "ok": False if notes else None,
        "summary": f"{len(rows)} epochs",
        "numbers": history_numbers(_mapping(rows[-1]) if rows else {}),
        "seed": _seed(settings.get("seed")),
        "settings": settings,
    }


def _tracker(folder: Path, header: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    settings = _mapping(header.get("settings"))
    steps = sorted(int(m[1]) for e in entries(folder / "visits", _VISITS) if (m := _VISIT.fullmatch(e.name)))
    found: list[dict[str, Any]] = []
    if steps:
        try:
            visit = _mapping(_document(folder, f"visits/step-{steps[-1]:08d}.json", "crunode-visit").get("visit"))
            found = [{**_mapping(e), "name": name} for name, e in _mapping(visit.get("estimates")).items()]
        except (StoreError, RecursionError) as error:
            notes.append(str(error))
    numbers = estimate_numbers(found[:_ESTIMATES])
    return {
        "subject": text_of(", ".join(_mapping(settings.get("probes"))), 100),
        "status": "open",
        "ok": False if notes else all(n.ok for n in numbers) if numbers else None,
        "summary": f"{len(steps)} visits" + (f", steps {steps[0]} to {steps[-1]}" if steps else ""),
        "numbers": numbers,
        "findings": _findings(*(each.get("findings") for each in found[:_ESTIMATES])),
        "seed": _seed(settings.get("seed")),
        "settings": settings,
    }


_READERS: dict[str, Callable[[Path, dict[str, Any], list[str]], dict[str, Any]]] = {
    "draws": _draws,
    "sweep": _sweep,
    "recipe": _recipe,
    "training": _training,
    "tracker": _tracker,
}
