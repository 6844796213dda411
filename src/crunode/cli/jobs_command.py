"""`crunode run` and `crunode plan`: job files, and what they or a recipe will cost."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crunode.cli.on_option import DeadlineOption, On, Workers, executor_from
from crunode.cli.printing import print_json, printable, quiet
from crunode.errors import InputError

if TYPE_CHECKING:
    from crunode.core.execute import Executor
    from crunode.jobs.job_file import JobFile

__all__ = ["plan", "run"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="In place of what the file says; repeat it.")
]
Store = Annotated[Path | None, typer.Option(help="Folder for the results, or to resume from; else that of the file.")]
Seed = Annotated[int | None, typer.Option(help="In place of the seeds of the file.")]


def run(
    file: Annotated[Path, typer.Argument(metavar="JOB.toml", help="A job file; it names the code that is run.")],
    store: Store = None,
    settings: Settings = None,
    seed: Seed = None,
    on: On = None,
    workers: Workers = 1,
    deadline: DeadlineOption = None,
    as_json: Json = False,
) -> None:
    """Run the estimates, sweeps and recipes of a job file, e.g. crunode run study.toml --on processes:4."""
    from crunode.jobs.job_running import run_jobs

    jobs = _read(file, settings, seed)
    home, executor = _store(jobs, store), _executor(jobs, on, workers, deadline)
    with quiet(as_json):
        found = run_jobs(jobs, home, executor)
    if as_json:
        print_json(found.to_dict())
    else:
        print(printable(found.table()))
    raise typer.Exit(0 if found.ok else 1)


def plan(
    what: Annotated[list[str], typer.Argument(metavar="JOB.toml | recipe NAME", help="What is to be run.")],
    size: Annotated[str, typer.Option(help="Size of a recipe.")] = "toy",
    store: Store = None,
    settings: Settings = None,
    seed: Seed = None,
    on: On = None,
    workers: Workers = 1,
    trial: Annotated[float, typer.Option(help="Seconds to try each job that has no record; 0 for none.")] = 20.0,
    as_json: Json = False,
) -> None:
    """How many units, gradients, how much memory and time a run takes, e.g. crunode plan recipe toy-volumes."""
    from crunode.jobs.planning import plan_jobs, plan_recipe

    if not 0 <= trial <= 3600:
        raise InputError(f"expected --trial from 0 to 3600 seconds, got {trial:g}")
    recipe = what[0] == "recipe"
    if len(what) != (2 if recipe else 1):
        raise InputError(f"expected a job file or `recipe NAME`, got {' '.join(what)!r}")
    with contextlib.redirect_stdout(sys.stderr):  # of the code that is tried
        if recipe:
            if settings:
                raise InputError("expected no --set with a recipe, which has no settings")
            found = plan_recipe(what[1], size, seed or 0, store, executor=executor_from(on, workers), trial=trial)
        else:
            jobs = _read(Path(what[0]), settings, seed)
            found = plan_jobs(jobs, _store(jobs, store), executor=_executor(jobs, on, workers, None), trial=trial)
    if as_json:
        print_json(found.to_dict())
    else:
        print(printable(found.table()))


def _read(file: Path, settings: list[str] | None, seed: int | None) -> JobFile:
    from crunode.jobs.job_file import read_jobs
    from crunode.jobs.loading import settings_from

    return read_jobs(file, seed=seed, settings=settings_from(settings or ()))


def _store(jobs: JobFile, store: Path | None) -> Path:
    found = store if store is not None else None if jobs.store is None else Path(jobs.store)
    if found is None:
        raise InputError("expected a folder for the results, got none; give --store, or store = ... in the file")
    return found


def _executor(jobs: JobFile, on: str | None, workers: int, deadline: str | None) -> Executor | None:
    """Where the call says, else where the file says."""
    place = jobs.on if on is None and workers == 1 else on
    return executor_from(place, workers, jobs.deadline if deadline is None else deadline)
