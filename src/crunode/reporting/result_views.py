"""Views of results: of those in memory, and of the documents that run folders keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from crunode.core.result import Draws, Estimate
from crunode.errors import InputError
from crunode.reporting.chain_views import chain_charts, chain_tables, level_charts, number_table, term_tables
from crunode.reporting.citations import citations_of
from crunode.reporting.recipe_views import recipe_charts, recipe_tables
from crunode.reporting.series_views import history_charts, sweep_parts, trajectory_parts
from crunode.reporting.views import RunView, answer_of
from crunode.store.documents import plain
from crunode.store.run_numbers import (
    estimate_numbers,
    history_numbers,
    recipe_numbers,
    recipe_ok,
    recipe_words,
    text_of,
)
from crunode.store.run_record import RunRecord

__all__ = ["history_view", "recipe_view", "result_view", "sampled_view", "sweep_view", "tracker_view"]


def result_view(thing: Any, name: str | None = None) -> RunView:
    """What a page shows of a result in memory.

    Args:
        thing: An `Estimate`, `Draws`, a `Trajectory`, a `Sweep`, a `History`, or the `Run` of a recipe.
        name: What to call it.

    Raises:
        InputError: It is something else.

    Example:
        >>> result_view(Estimate("llc", 2.5, se=0.1)).answer.number
        '2.50 ± 0.1 mc ± 0 sys'
    """
    if isinstance(thing, Estimate):
        return _estimate(thing, name or thing.name)
    if isinstance(thing, Draws):
        return _draws(thing, name or "draws")
    content = thing.to_dict() if callable(getattr(thing, "to_dict", None)) else None
    found = plain(content) if isinstance(content, Mapping) else {}
    if {"recipe", "rows", "cells"} <= found.keys():
        return _recipe(found, name or found["recipe"])
    if {"names", "visits"} <= found.keys():
        return _trajectory(found, name or "trajectory")
    if {"cells", "around", "estimate"} <= found.keys():
        return _sweep(found, name or "sweep")
    if {"epoch", "loss", "measured"} <= found.keys():
        return _history(thing.rows(), found, name or "training")
    raise InputError(
        "expected an estimate, draws, a trajectory, a sweep, a training's history, a recipe's run, or run folders to "
        f"report, got {type(thing).__name__}"
    )


def sampled_view(name: str, record: RunRecord, estimates: Sequence[Mapping[str, Any]]) -> RunView:
    """The view of estimates, without the chains behind them."""
    tables = [number_table(record.numbers)] if len(record.numbers) > 1 else []
    return RunView(
        name,
        record,
        answer_of(record),
        tables=(*tables, *term_tables(estimates)),
        charts=tuple(level_charts(estimates)),
        reasons=_reasons(record.settings),
        citations=_citations(record),
    )


def sweep_view(
    name: str, record: RunRecord, sweep: Mapping[str, Any], estimates: Sequence[Mapping[str, Any]]
) -> RunView:
    """The view of a sweep and its default estimate."""
    charts, tables = sweep_parts(sweep)
    base = sampled_view(name, record, estimates)
    return replace(base, tables=(*tables, *base.tables), charts=(*charts, *base.charts))


def recipe_view(name: str, record: RunRecord, result: Mapping[str, Any]) -> RunView:
    """The view of a recipe, from its result; an empty one where it is still running."""
    messages = result.get("messages")
    notes = str(result.get("notes") or "")[:20_000].split("\n\n")
    words = [text_of(result.get("title", ""), 300), *(text_of(part, 4000) for part in notes[:20])]
    words += [text_of(m, 600) for m in (messages if isinstance(messages, list) else [])[:20]]
    return RunView(
        name,
        record,
        answer_of(record),
        tables=tuple(recipe_tables(result)) if result else (),
        charts=tuple(recipe_charts(result)),
        words=tuple(word for word in words if word),
        citations=tuple(filter(None, [text_of(result.get("paper", ""), 600)])),
    )


def tracker_view(name: str, record: RunRecord, visits: Sequence[Mapping[str, Any]]) -> RunView:
    """The view of a trajectory."""
    charts, tables, said = trajectory_parts(visits)
    last = visits[-1].get("step") if visits else None
    where = f"at step {last}, the last of {len(visits)} visits" if isinstance(last, int) else ""
    numbers = [number_table(record.numbers, "Results at the last visit")] if record.numbers else []
    cited = citations_of([*(n.name for n in record.numbers), "changes"]) if said else _citations(record)
    return RunView(
        name,
        record,
        answer_of(record, where),
        tables=(*tables, *numbers),
        charts=tuple(charts),
        words=(said + ".",) if said else (),
        citations=cited,
    )


def history_view(name: str, record: RunRecord, rows: Sequence[Mapping[str, Any]]) -> RunView:
    """The view of a training."""
    where = f"after {len(rows)} epochs" if rows else ""
    numbers = [number_table(record.numbers, "After the last epoch")] if record.numbers else []
    return RunView(name, record, answer_of(record, where), tables=tuple(numbers), charts=tuple(history_charts(rows)))


def _estimate(estimate: Estimate, name: str) -> RunView:
    content = plain(estimate.to_dict())
    view = sampled_view(name, _record(content, estimate.findings), [content])
    if estimate.draws is None:
        return view
    with np.errstate(all="ignore"):
        charts, tables = chain_charts(estimate.draws), chain_tables(estimate.draws)
    return replace(view, charts=(*charts, *view.charts), tables=(*view.tables, *tables))


def _record(content: Mapping[str, Any], findings: Any, kind: str = "draws") -> RunRecord:
    numbers = estimate_numbers([content])
    return RunRecord(
        kind,
        subject=numbers[0].name,
        status="complete",
        ok=numbers[0].ok,
        numbers=numbers,
        findings=tuple(asdict(f) for f in findings),
        seed=content.get("seed"),
        settings=content.get("spec") or {},
        provenance=content.get("provenance") or {},
    )


def _draws(draws: Draws, name: str) -> RunView:
    spec = plain(draws.spec)
    record = RunRecord(
        "draws",
        subject="draws",
        status="complete",
        findings=tuple(asdict(f) for f in draws.findings),
        seed=(spec.get("asked") or {}).get("seed"),
        settings=spec,
        provenance=plain(draws.provenance),
    )
    view = sampled_view(name, record, [])
    with np.errstate(all="ignore"):
        return replace(view, charts=tuple(chain_charts(draws)), tables=tuple(chain_tables(draws)))


def _recipe(content: Mapping[str, Any], name: str) -> RunView:
    rows = content["rows"]
    asked = {key: content[key] for key in ("recipe", "recipe_version", "size", "seed")}
    record = RunRecord(
        "recipe",
        subject=content["recipe"],
        status="complete",
        ok=recipe_ok(rows, content["cells"]),
        summary=recipe_words(rows),
        numbers=recipe_numbers(rows),
        seed=content["seed"],
        settings=asked,
        provenance=content["provenance"],
    )
    return recipe_view(name, record, content)


def _trajectory(content: Mapping[str, Any], name: str) -> RunView:
    visits = content["visits"]
    last = visits[-1]["estimates"] if visits else {}
    numbers = estimate_numbers([{**each, "name": probe} for probe, each in last.items()])
    findings = [*content["findings"], *(f for each in last.values() for f in each["findings"])]
    record = RunRecord(
        "tracker",
        subject=", ".join(content["names"]),
        status="open",
        ok=content["ok"] if visits else None,
        numbers=numbers,
        findings=tuple(findings),
        seed=content["seed"],
        settings=content["spec"],
    )
    return tracker_view(name, record, visits)


def _sweep(content: Mapping[str, Any], name: str) -> RunView:
    estimate = content["estimate"]
    record = replace(
        _record(estimate, (), "sweep"),
        findings=tuple(estimate["findings"]),
        settings=content["spec"],
        summary=f"{len(content['cells'])} cells",
    )
    return sweep_view(name, record, content, [estimate])


def _history(rows: Sequence[Mapping[str, Any]], content: Mapping[str, Any], name: str) -> RunView:
    record = RunRecord(
        "training",
        subject=name,
        status="open",
        numbers=history_numbers(rows[-1]) if rows else (),
        findings=tuple(content["findings"]),
        seed=content["seed"],
        settings=content["spec"],
        provenance=content["provenance"],
    )
    return history_view(name, record, rows)


def _reasons(settings: Mapping[str, Any]) -> dict[str, str]:
    given = settings.get("reasons")
    listed = list(given.items())[:50] if isinstance(given, dict) else []
    return {text_of(key, 100): text_of(value, 600) for key, value in listed}


def _citations(record: RunRecord) -> tuple[str, ...]:
    kernel = record.settings.get("kernel")
    used = kernel.get("name") if isinstance(kernel, dict) else None
    return citations_of([*(number.name for number in record.numbers), used, *(["chains"] if used else [])])
