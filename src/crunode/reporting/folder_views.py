"""Views of run folders, read without trust in them: what is broken is said, and the rest is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crunode.core.result import Draws
from crunode.errors import CrunodeError, InputError, StoreError
from crunode.reporting.chain_views import chain_charts, chain_tables
from crunode.reporting.recipe_views import folder_pictures
from crunode.reporting.result_views import history_view, recipe_view, sampled_view, sweep_view, tracker_view
from crunode.reporting.views import Answer, RunView
from crunode.store.atomic import digest
from crunode.store.chunks import unpack
from crunode.store.documents import parse_document
from crunode.store.folder import journal_name, well_formed
from crunode.store.guarded import entries, inside, read_regular
from crunode.store.run_numbers import text_of
from crunode.store.run_record import HEADERS, RunRecord, header_of, read_run

__all__ = ["broken_view", "folder_view", "stored_draws"]

_GROUPS, _CHUNKS, _CHUNK, _TOTAL, _VISITS, _VISIT_BYTES = 4096, 20_000, 2**28, 2**30, 400, 2**27


def folder_view(folder: str | Path, name: str | None = None) -> RunView:
    """What a page shows of a run folder. Nothing outside the folder is read, and links are not followed.

    Args:
        folder: The run folder.
        name: What to call it; the folder's own name when left out.

    Returns:
        The view. Files that are damaged are named in its `problems`.

    Raises:
        InputError: There is no folder.

    Example:
        >>> import tempfile
        >>> from crunode.core.result import Estimate
        >>> from crunode.store.run_store import RunStore, save_estimate
        >>> with tempfile.TemporaryDirectory() as home:
        ...     _ = RunStore.create(home + "/a", spec={}, groups=[[0]], seed=3, provenance={})
        ...     _ = save_estimate(home + "/a", Estimate("llc", 2.5, se=0.1))
        ...     folder_view(home + "/a").answer.number
        '2.50 ± 0.1 mc ± 0 sys'
    """
    home = Path(folder)
    if not home.is_dir():
        raise InputError(f"expected a run folder, got {home}, which is not there; check the path")
    home = home.resolve()
    called = text_of(home.name if name is None else name, 200)
    header = header_of(home)
    if header is None:
        present = [each for each in HEADERS if (home / each).is_symlink() or (home / each).exists()]
        said = f"{present[0]} is not of crunode, or destroyed" if present else "there is no run in this folder"
        return broken_view(called, said)
    record = read_run(home, header)
    problems = [record.note] if record.note else []
    try:
        return _VIEWS[record.kind](home, called, record, problems)
    except (CrunodeError, RecursionError, ArithmeticError, ValueError, MemoryError) as error:
        return broken_view(called, f"{type(error).__name__}: {error}", record)


def broken_view(name: str, problem: str, record: RunRecord | None = None) -> RunView:
    """The view of a run that cannot be shown, with what is wrong with it.

    Example:
        >>> broken_view("a", "there is no run in this folder").answer.verdict
        'not ok'
    """
    found = RunRecord("unknown", status="damaged", ok=False, note=problem) if record is None else record
    answer = Answer("", "", "", "not ok", "the folder cannot be shown")
    return RunView(text_of(name, 200), found, answer, problems=(text_of(problem, 600),))


def _document(folder: Path, name: str, form: str) -> dict[str, Any]:
    path = inside(folder, name)
    return parse_document(read_regular(path), path, form, 1)


def _optional(folder: Path, name: str, form: str, problems: list[str]) -> dict[str, Any]:
    """A document that need not be there, or whose damage the record has told already."""
    if not (folder / name).is_symlink() and not (folder / name).exists():
        return {}
    try:
        return _document(folder, name, form)
    except (StoreError, RecursionError) as error:
        if not problems:
            problems.append(str(error))
        return {}


def _draws_view(folder: Path, name: str, record: RunRecord, problems: list[str]) -> RunView:
    listed = sorted(e.name for e in entries(folder / "estimates", 200) if e.name.endswith(".json"))
    found = [_optional(folder, f"estimates/{each}", "crunode-estimate", problems).get("estimate") for each in listed]
    estimates = [each for each in found if isinstance(each, dict)]
    view = sampled_view(name, record, estimates)
    charts, tables = list(view.charts), list(view.tables)
    try:
        draws = stored_draws(folder)
        with well_formed(folder), np.errstate(all="ignore"):
            charts = chain_charts(draws) + charts
            tables += chain_tables(draws)
    except (StoreError, InputError, RecursionError, MemoryError) as error:
        if record.status != "damaged":
            problems.append(f"the chains are not shown: {str(error) or type(error).__name__}")
    return _finished(view, problems, charts=tuple(charts), tables=tuple(tables))


def stored_draws(folder: Path) -> Draws:
    """The scalars along the chains of a run folder, checked; arrays of more dimensions are left out.

    Raises:
        StoreError: A file is missing, damaged or leads out of the folder, or there is more than 1 GiB.
    """
    manifest = _document(folder, "manifest.json", "crunode-run")
    with well_formed(folder):
        groups = manifest["groups"]
        nbeta = np.asarray(manifest["spec"].get("nbeta_per_chain", ()), dtype=np.float64)
        if len(groups) > _GROUPS or sorted(c for g in groups for c in g) != list(range(nbeta.size)) or nbeta.ndim != 1:
            raise StoreError("expected one nbeta for each chain in the settings")
        parts: dict[str, list[dict[str, np.ndarray]]] = {"draws": [], "warmup": []}
        left = _TOTAL
        for number in range(len(groups)):
            journal = _document(folder, journal_name(number), "crunode-group")
            for kind, found in parts.items():
                arrays, left = _group(folder, journal, kind, len(groups[number]), left)
                found.append(arrays)
        order = np.argsort([chain for group in groups for chain in group])
        whole = {kind: _joined(found, order) for kind, found in parts.items()}
        return Draws(whole["draws"], whole["warmup"], nbeta, manifest["spec"])


def _group(folder: Path, journal: Mapping[str, Any], kind: str, chains: int, left: int) -> tuple[dict[str, Any], int]:
    pieces: dict[str, list[np.ndarray]] = {}
    for entry in journal["chunks"][:_CHUNKS]:
        if entry["kind"] != kind:
            continue
        data = read_regular(inside(folder, entry["file"]), min(_CHUNK, left))
        left -= len(data)
        if digest(data) != entry["sha256"]:
            raise StoreError(f"{text_of(entry['file'], 200)} is corrupt: it does not have the sha256 that is on record")
        for name, value in unpack(data)[0].items():
            if value.ndim == 2 and value.shape[0] == chains:
                pieces.setdefault(name, []).append(value)
    return {name: np.concatenate(found, 1) for name, found in pieces.items()}, left


def _joined(found: list[dict[str, np.ndarray]], order: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays that all groups have, cut to the shortest, in the order of the chains."""
    names = [name for name in found[0] if all(name in each for each in found)] if found else []
    result = {}
    for name in names:
        length = min(each[name].shape[1] for each in found)
        result[name] = np.concatenate([each[name][:, :length] for each in found])[order]
    return result


def _sweep_view(folder: Path, name: str, record: RunRecord, problems: list[str]) -> RunView:
    content = _optional(folder, "result.json", "crunode-sweep-result", problems).get("sweep")
    default = _optional(folder, "default.json", "crunode-sweep-record", problems).get("record")
    estimates = [default] if isinstance(default, dict) else []
    return _finished(sweep_view(name, record, content if isinstance(content, dict) else {}, estimates), problems)


def _recipe_view(folder: Path, name: str, record: RunRecord, problems: list[str]) -> RunView:
    result = _optional(folder, "result.json", "crunode-recipe-run", problems)
    view = recipe_view(name, record, result)
    return _finished(view, problems, pictures=tuple(folder_pictures(folder, problems)))


def _training_view(folder: Path, name: str, record: RunRecord, problems: list[str]) -> RunView:
    rows = _optional(folder, "history.json", "crunode-training-history", problems).get("rows")
    kept = [row for row in (rows if isinstance(rows, list) else [])[:20_000] if isinstance(row, dict)]
    return _finished(history_view(name, record, kept), problems)


def _tracker_view(folder: Path, name: str, record: RunRecord, problems: list[str]) -> RunView:
    found = {e.name for e in entries(folder / "visits", 100_000)}
    names = sorted(each for each in found if each.startswith("step-") and each.endswith(".json"))
    names.sort(key=len)  # of one length by text, of more digits later
    if len(names) > _VISITS:
        problems.append(f"{_VISITS} of {len(names)} visits are shown")
        names = [names[k] for k in np.linspace(0, len(names) - 1, _VISITS, dtype=int)]
    visits, left = [], _VISIT_BYTES
    for each in names:
        try:
            path = inside(folder, f"visits/{each}")
            data = read_regular(path, min(left, 2**24))
            left -= len(data)
            visit = parse_document(data, path, "crunode-visit", 1).get("visit")
        except (StoreError, RecursionError) as error:
            if len(problems) < 5 and str(error) not in record.note:
                problems.append(str(error))
            continue
        if isinstance(visit, dict):
            visits.append(visit)
    return _finished(tracker_view(name, record, visits), problems)


def _finished(view: RunView, problems: list[str], **changes: Any) -> RunView:
    if problems and view.answer.verdict == "ok":
        said = f"{view.answer.reason}, but not all of the folder could be shown"
        changes["answer"] = replace(view.answer, reason=said)
    return replace(view, problems=tuple(text_of(p, 600) for p in problems[:8]), **changes)


_VIEWS = {
    "draws": _draws_view,
    "sweep": _sweep_view,
    "recipe": _recipe_view,
    "training": _training_view,
    "tracker": _tracker_view,
}
