"""Job files: estimates, sweeps and recipes to run, in TOML. Reading one runs no code and opens no other file."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crunode.errors import InputError, StoreError
from crunode.jobs.loading import options_of
from crunode.store.guarded import is_plain_name, read_regular, shown

__all__ = ["AXES", "KINDS", "JobFile", "Unit", "read_jobs"]

KINDS = ("llc", "sweep", "recipe")
"""What a job can be."""

AXES = ("steps", "precisions", "nbetas")
"""Values that a sweep goes over."""

_BYTES, _DEPTH, _ENTRIES, _UNITS, _TEXT = 2**20, 8, 20_000, 10_000, 500
_TOP = ("store", "seed", "on", "deadline", "settings", "job")
_OWN = {
    "llc": ("target", "weights", "settings"),
    "sweep": ("target", "weights", "settings", *AXES),
    "recipe": ("recipe", "size"),
}
_SWEEP = ("chains", "draws", "warmup", "kernel", "step", "batch")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Unit:
    """One estimate, sweep or recipe.

    Attributes:
        name: Unique within the file, and good as the name of a folder.
        job: Name of the job that it belongs to.
        kind: One of `KINDS`.
        subject: The `module:factory`, or the name of the recipe.
        seed: Where all randomness comes from.
        settings: Of an estimate or a sweep, by name.
        weights: File with weights, relative to the job file; None for those of the landscape.
        size: Of a recipe.
        axes: Of a sweep.
    """

    name: str
    job: str
    kind: str
    subject: str
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    size: str = "toy"
    axes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFile:
    """What a job file says.

    Attributes:
        path: The file.
        units: All that is to be run.
        store: Folder for the results, relative to the current one; None where it names none.
        on: Where to run, as `--on` has it.
        deadline: When to stop, as `--deadline` has it.
    """

    path: Path
    units: tuple[Unit, ...]
    store: str | None = None
    on: str | None = None
    deadline: str | None = None


def read_jobs(
    path: str | os.PathLike[str], *, seed: int | None = None, settings: Mapping[str, Any] | None = None
) -> JobFile:
    """Read a job file.

    Args:
        path: The file, of at most 1 MiB.
        seed: In place of the seeds that it has.
        settings: In place of the settings of the same names that it has, on axes of a matrix too.

    Raises:
        InputError: Something in it is not understood; the message says where.

    Example:
        >>> import tempfile
        >>> text = '''
        ... [[job]]
        ... target = "mypkg.exp:landscape"
        ... matrix = { chains = [2, 4] }
        ... '''
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "study.toml").write_text(text)
        ...     [unit.name for unit in read_jobs(f"{folder}/study.toml").units]
        ['llc-chains2', 'llc-chains4']
    """
    file = Path(path)
    content = _parsed(file)
    where = shown(file.name)
    _known(content, _TOP, where)
    for key in ("store", "on", "deadline"):
        if key in content:
            _text(content[key], f"{where}: {key}")
    if "store" in content and not is_plain_name(content["store"]):
        raise InputError(
            f"{where}: expected store as a folder below the current one, got {shown(content['store'])!r}; give --store "
            "for any other"
        )
    jobs = content.get("job")
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{where}: expected one or more tables [[job]], got {_kind(jobs)}")
    shared = _settings(content.get("settings", {}), f"{where}: settings")
    own_seed = _seed(content.get("seed", 0), where)
    units: list[Unit] = []
    for number, job in enumerate(jobs):
        given = {**shared, **_settings(job.get("settings", {}), f"{where}: job {number}: settings")}
        for unit in _units(job, given, own_seed, seed, settings or {}, f"{where}: job {number}"):
            units.append(unit)
            if len(units) > _UNITS:
                raise InputError(f"{where}: expected at most {_UNITS} units, got more; split the file")
    if settings and all(unit.kind == "recipe" for unit in units):
        raise InputError(f"expected no --set with recipes alone, which have no settings, got {', '.join(settings)}")
    names = [unit.name for unit in units]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise InputError(f"{where}: expected each unit once, got {twice} twice; give the jobs different names")
    return JobFile(file, tuple(units), content.get("store"), content.get("on"), content.get("deadline"))


def _parsed(file: Path) -> dict[str, Any]:
    try:
        text = read_regular(file, _BYTES).decode()
    except StoreError as error:
        raise InputError(f"expected a job file in TOML at {file}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"expected a job file in TOML, got {shown(file.name)}, which is no text") from error
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else shown(str(error)[:200])
        raise InputError(f"expected TOML in {shown(file.name)}, got something else: {reason}") from error
    waiting: list[tuple[Any, int]] = [(content, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if depth > _DEPTH or seen > _ENTRIES:
            most = f"{_DEPTH} levels" if depth > _DEPTH else f"{_ENTRIES} entries"
            raise InputError(f"{shown(file.name)}: expected at most {most}, got more")
        if isinstance(value, dict | list):
            waiting += [(inner, depth + 1) for inner in (value.values() if isinstance(value, dict) else value)]
    return content


def _units(
    job: Mapping[str, Any],
    settings: Mapping[str, Any],
    file_seed: int,
    call_seed: int | None,
    instead: Mapping[str, Any],
    where: str,
) -> Iterator[Unit]:
    kind = job.get("kind", "recipe" if "recipe" in job else "llc")
    if kind not in KINDS:
        raise InputError(f"{where}: expected kind among {', '.join(KINDS)}, got {shown(str(kind)[:80])!r}")
    _known(job, ("name", "kind", "seed", "matrix", *_OWN[kind]), where)
    name = job.get("name", kind if kind != "recipe" else job.get("recipe"))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"{where}: expected a name of up to 64 letters, digits, '_', '.', '-', got {_short(name)}")
    matrix = dict(_matrix(job.get("matrix", {}), f"{where}: matrix"))
    for key in [*instead, *(["seed"] if call_seed is not None else [])]:
        matrix.pop(key, None)  # what the call gives is no axis any more
    if math.prod(len(values) for values in matrix.values()) > _UNITS:
        raise InputError(f"{where}: expected a matrix of at most {_UNITS} units, got more; split the file")
    for values in itertools.product(*matrix.values()):
        point = dict(zip(matrix, values, strict=True))
        given: dict[str, Any] = {"seed": job.get("seed", file_seed), "settings": settings, **job}
        for key in [key for key in point if key in ("seed", *_OWN[kind])]:
            given[key] = point[key]
        inner = {key: value for key, value in point.items() if key not in ("seed", *_OWN[kind])}
        given["settings"] = {**settings, **inner, **instead} if kind != "recipe" else inner
        given["seed"] = _seed(given["seed"] if call_seed is None else call_seed, where)
        suffix = "".join(f"-{key}{_slug(value)}" for key, value in point.items())
        yield _unit(kind, name, f"{name}{suffix}"[:120], given, where)


def _unit(kind: str, job: str, name: str, given: Mapping[str, Any], where: str) -> Unit:
    if kind == "recipe":
        if given["settings"]:
            keys = ", ".join(map(_short, given["settings"]))
            raise InputError(f"{where}: expected seed and size in the matrix of a recipe, got {keys}")
        size = _text(given.get("size", "toy"), f"{where}: size")
        return Unit(name, job, kind, _text(given.get("recipe"), f"{where}: recipe"), given["seed"], size=size)
    target = _text(given.get("target"), f"{where}: target")
    if not _TARGET.fullmatch(target):
        raise InputError(f"{where}: expected target as mypkg.exp:landscape, got {shown(target)!r}")
    weights = given.get("weights")
    if weights is not None and not is_plain_name(weights):
        raise InputError(f"{where}: expected weights as a file below the folder of the job file, got {_short(weights)}")
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in given["settings"].items()}
    foreign = [key for key in settings if kind == "sweep" and key not in _SWEEP]
    if foreign:
        raise InputError(f"{where}: expected settings of a sweep among {', '.join(_SWEEP)}, got {_short(foreign[0])}")
    try:
        options_of(settings)
    except InputError as error:
        raise InputError(f"{where}: {shown(str(error))}") from error
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: settings are not valid: {shown(str(error)[:200])}") from error
    axes = {axis: _axis(given[axis], f"{where}: {axis}") for axis in AXES if axis in given}
    return Unit(name, job, kind, target, given["seed"], settings, weights, axes=axes)


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            near = difflib.get_close_matches(key[:80], keys, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"{where}: expected keys among {', '.join(keys)}, got {_short(key)}{hint}")


def _settings(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: expected a table, got {_kind(table)}")
    for key, value in table.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, bool | int | float | str) for part in parts):
            raise InputError(f"{where}: expected numbers or text for {_short(key)}, got {_kind(value)}")
    return table


def _matrix(table: Any, where: str) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(table, dict):
        raise InputError(f"{where}: expected a table of lists, got {_kind(table)}")
    for key, values in table.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: expected a list of values for {_short(key)}, got {_kind(values)}")
        yield key, values
        if key not in AXES:
            for value in values:
                _settings({key: value}, where)


def _axis(values: Any, where: str) -> tuple[float, ...]:
    numbers = values if isinstance(values, list) else []
    good = [float(v) for v in numbers if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < 1e300]
    if not good or len(good) < len(numbers):
        raise InputError(f"{where}: expected a list of positive numbers, got {_short(values)}")
    return tuple(good)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT:
        raise InputError(f"{where}: expected text of 1 to {_TEXT} characters, got {_short(value)}")
    return value


def _seed(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InputError(f"{where}: expected seed as a whole number from 0 up, got {_short(value)}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(shown(text[:80]))


def _slug(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", text)[:40]
