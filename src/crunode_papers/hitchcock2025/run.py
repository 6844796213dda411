"""Running the benchmark: problems × methods over processes or on one device, row by row into a file that resumes."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from crunode import Executor, InputError, Processes, Serial
from crunode.core import Progress, merged, provenance
from crunode.store import write_bytes
from crunode_papers.hitchcock2025.methods import check_methods, estimate_row
from crunode_papers.hitchcock2025.metrics import summarize
from crunode_papers.hitchcock2025.peer import PEER_PYTHON, PEER_SCRIPT, peer_missing
from crunode_papers.hitchcock2025.problem import TARGETS, Problem
from crunode_papers.hitchcock2025.problems import problems_of

__all__ = ["Job", "read_rows", "rows_path", "run_benchmark", "run_job"]

_OWN = ("git", "changed")  # what each row says of its origin


@dataclass(frozen=True)
class Job:
    """One problem and the methods still to be run on it.

    Attributes:
        problem: The problem.
        methods: Names of methods.
        target: What is asked for.
        options: Options of each method.
        device: Where to build the landscape; None for the CPU.
        rows: File to append each row to when it is there; None for none.
    """

    problem: Problem
    methods: tuple[str, ...]
    target: str
    options: Mapping[str, Mapping[str, Any]]
    device: str | None
    rows: Path | None

    def key(self, method: str) -> str:
        """What tells this row from all others: problem, method and settings."""
        settings = {k: repr(v) for k, v in sorted(self.options.get(method, {}).items())}
        return json.dumps([self.problem.name, self.problem.n, method, self.target, self.device, settings])


def run_benchmark(
    kinds: Sequence[str] = ("1K",),
    methods: Sequence[str] = ("crunode",),
    *,
    count: int | None = None,
    first_seed: int = 5000,
    target: str = "local",
    examples: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str | None = None,
    workers: int = 1,
    out: str | os.PathLike[str] | None = None,
    command: str | None = None,
    peer_python: str | os.PathLike[str] = PEER_PYTHON,
) -> dict[str, Any]:
    """Run methods on all problems of some classes and put the results on record.

    Rows go to a file beside `out`, each as soon as it is there; the same call after an interruption does only what is
    missing. That file is removed once `out` is written, so that a later call starts anew.

    Args:
        kinds: Classes of problems; see `crunode_papers.hitchcock2025.problems.KINDS`.
        methods: Names out of `crunode_papers.hitchcock2025.methods.METHODS`.
        count: Networks in each class, or seeds of each case; None for the class's own number.
        first_seed: Seeds go on from it.
        target: "local" or "basin": which exact value the errors are relative to.
        examples: At most as many examples; None for those of the class.
        options: For each method, what is passed to it.
        device: Where to run, such as "cuda"; None for the CPU.
        workers: Processes of one thread each. With 1, and on other devices than the CPU, everything runs here.
        out: The record is written there as JSON.
        command: The command that reproduces it, for the record.
        peer_python: The interpreter of devinterp's environment. Without it that method is left out, which is noted.

    Returns:
        The record: command, date, provenance, settings, notes, summary by class and method, and all rows.

    Raises:
        InputError: Unknown classes, methods or targets, or settings that are out of range.

    Example:
        >>> record = run_benchmark(["reference"], ["sgld"], options={"sgld": {"steps": 20}})
        >>> len(record["rows"]), record["summary"][0]["runs"], record["notes"]
        (16, 16, [])
    """
    if target not in TARGETS:
        raise InputError(f"expected target as 'local' or 'basin', got {target!r}")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"expected workers as a whole number from 1 up, got {workers!r}")
    notes: list[str] = []
    names = _present(check_methods(list(methods)), peer_python, notes)
    place = _device(device)
    kinds = list(dict.fromkeys(kinds))
    known = _problems(kinds, count, first_seed, examples, target, notes)
    chosen = {name: dict((options or {}).get(name, {})) for name in names}
    if "devinterp" in chosen:
        chosen["devinterp"] = {"peer_python": os.fspath(peer_python), **chosen["devinterp"]}
    file = None if out is None else rows_path(out)
    jobs = [Job(p, tuple(m for m in names if _suits(p, m)), target, chosen, place, file) for p in known]
    left_out = sum(len(names) - len(job.methods) for job in jobs)
    if left_out:
        notes.append(f"{left_out} problems that are no networks are not given to devinterp")
    done = {} if file is None else read_rows(file)
    rows = _run(jobs, done, workers if place is None else 1)
    record = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "provenance": _origin(rows, place, workers),
        "settings": {
            "classes": kinds,
            "methods": names,
            "count": count,
            "first_seed": first_seed,
            "target": target,
            "examples": examples,
            "options": {name: {k: _plain(v) for k, v in given.items()} for name, given in chosen.items()},
            "workers": workers,
        },
        "notes": notes,
        "summary": summarize(rows),
        "rows": rows,
    }
    if out is not None:
        write_bytes(Path(out), (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())
        assert file is not None
        file.unlink(missing_ok=True)
    return record


def _problems(
    kinds: Sequence[str], count: int | None, first_seed: int, examples: int | None, target: str, notes: list[str]
) -> list[Problem]:
    """Problems of these classes whose exact value is known; how many others there are is noted."""
    found = [p.with_examples(examples) for kind in kinds for p in problems_of(kind, count=count, first_seed=first_seed)]
    if not found:
        raise InputError("expected at least one class of problems, got none")
    known = [problem for problem in found if problem.truth(target) is not None]
    if len(known) < len(found):
        notes.append(f"{len(found) - len(known)} problems without an exact value of the {target} are left out")
    return known


def _origin(rows: list[dict[str, Any]], place: str | None, workers: int) -> dict[str, Any]:
    return {
        **provenance(),
        # Rows of an interrupted run may come from other sources than the last ones.
        **merged([{key: row.get(key) for key in _OWN} for row in rows]),
        "device": torch.cuda.get_device_name(place) if place is not None and "cuda" in place else "cpu",
        **({"threads": 1} if workers > 1 else {}),
    }


def _run(jobs: list[Job], done: Mapping[str, dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    waiting = [(job, tuple(m for m in job.methods if job.key(m) not in done)) for job in jobs]
    todo = [Job(**{**vars(job), "methods": missing}) for job, missing in waiting if missing]
    executor: Executor = Serial() if workers == 1 else Processes(min(workers, max(len(todo), 1)))
    found = dict(done)
    with Progress(len(jobs), "benchmark", len(jobs) - len(todo)) as bar:
        for rows in executor.map(run_job, todo):
            found |= rows
            sizes = [abs(r["relative_error"]) for r in rows.values() if r["relative_error"] is not None]
            bar.advance(note=f"error {100 * statistics.median(sizes):.1f} %" if sizes else None)
    return [found[job.key(method)] for job in jobs for method in job.methods]


def run_job(job: Job) -> dict[str, dict[str, Any]]:
    """The rows of a job by their keys; each is appended to the job's file at once.

    Example:
        >>> problem = problems_of("reference")[0]
        >>> rows = run_job(Job(problem, ("sgld",), "local", {"sgld": {"steps": 20}}, None, None))
        >>> [row["method"] for row in rows.values()]
        ['sgld']
    """
    landscape, origin = job.problem.landscape(job.device), provenance()
    own = {key: origin[key] for key in _OWN}
    found = {}
    for method in job.methods:
        row = estimate_row(job.problem, method, landscape=landscape, target=job.target, options=job.options.get(method))
        clean = {name: _plain(value) for name, value in {**row, **own}.items()}
        found[job.key(method)] = clean
        if job.rows is not None:
            # One write at the end of the file, so that lines of several processes do not mix. The break before it ends
            # a line that a kill cut off.
            line = "\n" + json.dumps({"key": job.key(method), "row": clean}, allow_nan=False) + "\n"
            handle = os.open(job.rows, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)
    return found


def rows_path(out: str | os.PathLike[str]) -> Path:
    """The file that rows go to while the record `out` is being made.

    Example:
        >>> rows_path("validation/llc.json").name
        'llc.rows.jsonl'
    """
    return Path(out).with_suffix(".rows.jsonl")


def read_rows(file: Path) -> dict[str, dict[str, Any]]:
    """Rows of an interrupted run by their keys; a line that was cut off is left out.

    Example:
        >>> read_rows(Path("no/such/file"))
        {}
    """
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            content = json.loads(line)
            found[content["key"]] = content["row"]
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _present(names: list[str], peer_python: str | os.PathLike[str], notes: list[str]) -> list[str]:
    missing = peer_missing(peer_python, PEER_SCRIPT) if "devinterp" in names else ""
    if missing:
        notes.append(f"devinterp is left out: {missing}")
        names = [name for name in names if name != "devinterp"]
    if not names:
        raise InputError(f"expected at least one method that can be run; {'; '.join(notes) or 'none was given'}")
    return names


def _suits(problem: Problem, method: str) -> bool:
    return method != "devinterp" or problem.activation is not None


def _device(device: str | None) -> str | None:
    if device is None or device == "cpu":
        return None
    try:
        return str(torch.empty(0, device=device).device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"expected device as one that is here, got {device!r} ({reason})") from error


def _plain(value: Any) -> Any:
    """`value` in JSON's own types; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
