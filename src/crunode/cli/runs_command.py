"""`crunode runs` and `crunode rerun`: the catalogue of run folders on the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crunode.cli.on_option import On, Workers, executor_from
from crunode.cli.printing import print_json, printable, quiet
from crunode.errors import InputError, StoreError
from crunode.store.guarded import shown

if TYPE_CHECKING:
    from crunode.store.catalog import Catalog
    from crunode.store.catalog_query import RunEntry

__all__ = ["rerun", "runs"]

runs = typer.Typer(help="The run folders below a folder: list, compare, tag, delete.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]
Root = Annotated[Path, typer.Option("--root", help="The folder that run folders lie below.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A run, as `crunode runs list` names it.")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Runs, as `crunode runs list` names them.")]
Kind = Annotated[str | None, typer.Option(help="draws, sweep, recipe, training or tracker.")]
Glob = Annotated[str | None, typer.Option("--name", help="Pattern of the name, with * and ?.")]
Tag = Annotated[list[str] | None, typer.Option(help="A tag; repeat it for runs that have all.")]
Status = Annotated[str | None, typer.Option(help="running, complete, failed, open or damaged.")]
Ok = Annotated[bool | None, typer.Option("--ok/--not-ok", help="Whether the results can be trusted.")]
Code = Annotated[str | None, typer.Option(help="Code of a finding, such as MC201.")]
Since = Annotated[str | None, typer.Option(help="First day or time, such as 2026-11-16; UTC.")]
Until = Annotated[str | None, typer.Option(help="Last day or time.")]
Where = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting, such as kernel.name=HMC.")]
_RUNS = Path("runs")


@runs.callback()
def _root() -> None:
    pass


def _opened(root: Path) -> Catalog:
    from crunode.store.catalog import Catalog

    return Catalog(root)


def _filters(
    kind: str | None,
    name: str | None,
    tag: list[str] | None,
    status: str | None,
    ok: bool | None,
    finding: str | None,
    since: str | None,
    until: str | None,
    where: list[str] | None,
) -> dict[str, Any]:
    pairs = [word.partition("=") for word in where or ()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise InputError(f"expected --where as key=value, got {key!r}")
    found = {"kind": kind, "name": name, "tag": tuple(tag) if tag else None, "status": status, "ok": ok}
    return {**found, "finding": finding, "since": since, "until": until, "where": {k: v for k, _, v in pairs}}


@runs.command("list")
def list_runs(
    root: Root = _RUNS,
    kind: Kind = None,
    name: Glob = None,
    tag: Tag = None,
    status: Status = None,
    ok: Ok = None,
    finding: Code = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    order: Annotated[str, typer.Option(help="name, created, updated, value or size.")] = "name",
    descending: Annotated[bool, typer.Option("--descending", help="The other way round.")] = False,
    limit: Annotated[int | None, typer.Option(help="The most to list.")] = None,
    as_json: Json = False,
) -> None:
    """Runs that meet all filters, e.g. crunode runs list --kind draws --where kernel.name=HMC --ok."""
    filters = _filters(kind, name, tag, status, ok, finding, since, until, where)
    found = _opened(root).list(order=order, descending=descending, limit=limit, **filters)
    if as_json:
        print_json([run.to_dict() for run in found])
    elif found:
        print(_table(found))
    else:
        print("no runs")


@runs.command()
def show(name: Name, root: Root = _RUNS, as_json: Json = False) -> None:
    """All that a run folder says about itself; exit code 1 when its results cannot be trusted."""
    catalog = _opened(root)
    run, record = catalog.get(name), catalog.record(name)
    if as_json:
        numbers = [number._asdict() for number in record.numbers]
        content = {**run.to_dict(), "folder": str(catalog.path(name)), "numbers": numbers}
        extra = {"settings": record.settings, "findings": list(record.findings), "provenance": record.provenance}
        print_json({**content, **extra})
    else:
        print(_described(run, record))
    raise typer.Exit(1 if run.ok is False else 0)


@runs.command()
def tag(
    name: Name,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="Words to add.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take them away instead.")] = False,
    root: Root = _RUNS,
    as_json: Json = False,
) -> None:
    """Add tags to a run, or take them away; they are kept in its folder."""
    catalog = _opened(root)
    found = catalog.untag(name, *tags) if remove else catalog.tag(name, *tags)
    if as_json:
        print_json({"name": name, "tags": found})
    else:
        print(printable(f"{name}: {', '.join(found) or 'no tags'}"))


@runs.command()
def compare(names: Names, root: Root = _RUNS, as_json: Json = False) -> None:
    """Results side by side, with z of the difference from the first run; exit code 1 when some cannot be trusted."""
    found = _opened(root).compare(names)
    if as_json:
        print_json(found.to_dict())
    else:
        print(printable(found.table()) if found.rows else "no results in these runs")
    raise typer.Exit(0 if found.ok else 1)


@runs.command()
def diff(
    one: Name,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another run.")],
    root: Root = _RUNS,
    as_json: Json = False,
) -> None:
    """Settings in which two runs differ; exit code 1 when there are some."""
    lines = _opened(root).diff(one, other)
    if as_json:
        print_json({"runs": [one, other], "differences": lines})
    else:
        print(printable("\n".join(lines)) if lines else "same settings")
    raise typer.Exit(1 if lines else 0)


@runs.command()
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    root: Root = _RUNS,
    as_json: Json = False,
) -> None:
    """Delete run folders, after asking; exit code 1 when some could not be deleted."""
    catalog = _opened(root)
    found = [catalog.get(name) for name in dict.fromkeys(names)]
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise InputError("expected --yes to delete without asking, got none; add it when you are sure")
        print(_table(found))
        typer.confirm(f"Delete {len(found)} run folders?", abort=True)
    failed = {}
    for run in found:
        try:
            catalog.delete(run.name)
        except StoreError as error:
            failed[run.name] = str(error)
    deleted = [run.name for run in found if run.name not in failed]
    if as_json:
        print_json({"deleted": deleted, "failed": failed})
    else:
        print(printable("\n".join([*(f"deleted {name}" for name in deleted), *failed.values()])))
    raise typer.Exit(1 if failed else 0)


@runs.command()
def rebuild(root: Root = _RUNS, as_json: Json = False) -> None:
    """Read all run folders anew; exit code 1 when some could not be looked at."""
    found = _opened(root).rebuild()
    if as_json:
        print_json({"runs": found.runs, "read": found.read, "gone": found.gone, "problems": found.problems})
    else:
        print(printable("\n".join([str(found), *found.problems])))
    raise typer.Exit(1 if found.problems else 0)


def rerun(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    store: Annotated[Path | None, typer.Option(help="The new folder; DIR-rerun when left out.")] = None,
    on: On = None,
    workers: Workers = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Run the code that the folder names without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Make a run again from its stored settings, into a new folder, e.g. crunode rerun runs/a --store runs/b."""
    from crunode.jobs.rerunning import plan_rerun
    from crunode.jobs.rerunning import rerun as run_again

    into = folder.with_name(f"{folder.name}-rerun") if store is None else store
    replay = plan_rerun(folder)
    print(printable(f"{replay.words} --store {into}"), file=sys.stderr)
    if replay.imports is not None and not yes and sys.stdin.isatty() and not as_json:
        typer.confirm(f"This runs the code of {shown(replay.imports)}. Go on?", abort=True)
        yes = True
    with quiet(as_json):
        found = run_again(folder, into, trust=yes, executor=executor_from(on, workers))
    if as_json:
        print_json({"folder": into, "kind": replay.kind, "result": found.to_dict()})
    else:
        table = getattr(found, "compare", None) or getattr(found, "table", None)
        print(printable(str(found) if table is None else table()))
    raise typer.Exit(0 if found.ok else 1)


def _table(found: Sequence[RunEntry]) -> str:
    head = ("name", "kind", "subject", "status", "ok", "result", "updated", "size", "tags")
    lines = [head, *(tuple(shown(cell) for cell in _line(run)) for run in found)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    padded = ("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(padded)


def _line(run: RunEntry) -> tuple[str, ...]:
    ok = "-" if run.ok is None else "yes" if run.ok else "no"
    result = run.summary if run.value is None else f"{run.value:.4g} ± {run.se or 0:.2g} ± {run.systematic or 0:.2g}"
    updated = datetime.fromtimestamp(run.updated, UTC).strftime("%Y-%m-%d %H:%M")
    return run.name, run.kind, run.subject, run.status, ok, result, updated, _size(run.size), " ".join(run.tags)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def _described(run: RunEntry, record: Any) -> str:
    from crunode.core.origin import described
    from crunode.store.run_numbers import flat_settings

    ok = "not known" if run.ok is None else "yes" if run.ok else "no"
    times = [datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (run.created, run.updated)]
    lines = [
        f"run        {run.name} ({run.kind}: {run.subject})",
        f"status     {run.status}, ok: {ok}, seed {run.seed}",
    ]
    lines.append(f"files      {_size(run.size)}, from {times[0]} to {times[1]} UTC")
    lines += [f"damage     {run.note}"] if run.note else []
    lines += [f"tags       {' '.join(run.tags)}"] if run.tags else []
    lines += [f"summary    {run.summary}"] if run.summary else []
    for number in record.numbers[:50]:
        value = "no value" if number.value is None else f"{number.value:.6g}"
        errors = "".join(f" ± {e:.2g} {w}" for e, w in ((number.se, "mc"), (number.systematic, "sys")) if e is not None)
        lines.append(f"result     {number.name} {value}{errors}{'' if number.ok else '  not ok'}")
    lines += [f"finding    {f['severity']} {f['code']}: {f['message']}" for f in record.findings]
    lines += [f"setting    {key} = {value}" for key, value in flat_settings(record.settings).items()]
    lines.append(f"made with  {described(record.provenance)}")
    return "\n".join(shown(line) for line in lines)
