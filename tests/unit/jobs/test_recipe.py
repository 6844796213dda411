"""Running recipes: resuming, refusing, failing cells, executors."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

import crunode as cr
from crunode.core.execute import Processes
from crunode.jobs import registry, running
from crunode.jobs.recipe import Cell, Expected, Row, Run
from crunode.jobs.registry import GROUP, recipe, recipes
from crunode.testing import check_recipe

HERE = Path(__file__).parent


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    import tiny_recipe

    return tiny_recipe.RECIPE


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("TINY_LOG", str(path))
    return lambda: path.read_text().splitlines() if path.exists() else []


def names(count):
    return [f"square {k}" for k in range(count)]


def values(run):
    return [result.value for result in run.results]


def test_run_without_store(tiny, log):
    run = tiny.run()
    assert run.ok
    assert [row.verdict for row in run.rows] == ["agrees"] * 4 + ["shown"]
    assert [v["value"] for v in values(run)] == [0, 1, 4, 9]
    assert log() == names(4)
    assert run.figures == ()
    assert json.loads(json.dumps(run.to_dict()["rows"]))[2]["ours"] == 4
    text = run.compare()
    assert "square 3" in text
    assert text.endswith("ok: 4 agrees, 1 shown")


def test_store_computes_each_cell_once_and_gives_the_same(tiny, log, tmp_path):
    first = tiny.run(store=tmp_path / "run")
    again = tiny.run(store=tmp_path / "run")
    assert log() == names(4)
    assert (values(first), first.rows) == (values(again), again.rows)
    assert values(first) == values(tiny.run())  # tuples and all are as JSON gives them back
    assert [path.name for path in first.figures] == ["none.txt"]
    content = json.loads((tmp_path / "run" / "result.json").read_text())
    assert content["ok"] is True
    assert {"crunode", "torch", "git"} <= set(content["provenance"])


def test_resumed_by_another_version_it_claims_no_commit_for_all(tiny, log, tmp_path, monkeypatch):
    home = tmp_path / "run"
    monkeypatch.setattr(running, "provenance", lambda: {"git": "old", "changed": True, "threads": 4})
    assert tiny.run(store=home).provenance == {"git": "old", "changed": True, "threads": 1}
    next((home / "cells").glob("*.json")).unlink()
    monkeypatch.setattr(running, "provenance", lambda: {"git": "new", "changed": False, "threads": 4})
    run = tiny.run(store=home)
    assert len(log()) == 5
    made = [result.provenance["git"] for result in run.results]
    assert sorted(made) == ["new", "old", "old", "old"]
    assert run.provenance["threads"] == 1
    assert set(run.provenance["git"]) == {"old", "new"}
    content = json.loads((home / "result.json").read_text())
    assert [cell["provenance"]["git"] for cell in content["cells"]] == made
    assert content["provenance"] == run.provenance
    kept = tiny.run(store=home)
    assert [result.provenance["git"] for result in kept.results] == made
    alone = tiny.run(store=tmp_path / "other")
    monkeypatch.setattr(running, "provenance", lambda: {"git": "table", "changed": False, "threads": 4})
    table = tiny.run(store=tmp_path / "other").provenance
    assert (alone.provenance["git"], table["git"]) == ("new", ["new", "table"]), "the table is made anew"


@pytest.mark.heavy
def test_killed_run_loses_at_most_the_cell_in_flight(tiny, log, tmp_path):
    script = (
        "import tiny_recipe, sys\n"
        "if __name__ == '__main__':\n"
        f"    tiny_recipe.RECIPE.run('paper', store={str(tmp_path / 'run')!r})\n"
    )
    environment = {**os.environ, "TINY_PAUSE": "0.15", "PYTHONPATH": str(HERE)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment)
    deadline = time.monotonic() + 60
    while len(log()) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = len(log())
    done = len(list((tmp_path / "run" / "cells").glob("*.json")))
    assert begun >= 4
    assert begun - 1 <= done < 9
    run = tiny.run("paper", store=tmp_path / "run")
    assert run.ok
    assert values(run) == values(tiny.run("paper"))
    assert len(log()) == begun + (9 - done) + 9  # the last nine are those of the run without a store


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed: stored 0, asked 1"),
        ({"size": "paper"}, "size: stored 'toy', asked 'paper'"),
        ({"version": 2}, "recipe_version: stored 1, asked 2"),
        ({"name": "other"}, "recipe: stored 'tiny', asked 'other'"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_store_of_another_run_is_refused(tiny, tmp_path, change, message):
    tiny.run(store=tmp_path / "run")
    other = replace(tiny, **{k: v for k, v in change.items() if k in ("version", "name")})
    settings = {k: v for k, v in change.items() if k in ("seed", "size")}
    with pytest.raises(cr.StoreMismatch, match=message):
        other.run(**settings, store=tmp_path / "run")


def test_store_of_other_cells_is_refused(tiny, tmp_path):
    tiny.run(store=tmp_path / "run")
    other = replace(tiny, cells=lambda size, seed: [Cell("square 0", {"x": 5, "seed": 0})])
    with pytest.raises(cr.StoreMismatch, match=r"cells\.square 0\.x: stored 0, asked 5"):
        other.run(store=tmp_path / "run")


@pytest.mark.heavy
def test_folder_in_use_or_of_others_is_refused(tiny, tmp_path):
    from crunode.store.atomic import acquire

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(cr.StoreError, match="other files"):
        tiny.run(store=tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(cr.StoreError, match="got the file"):
        tiny.run(store=tmp_path / "file")
    handle = acquire(tmp_path / "busy" / "locks" / "run.lock")
    try:
        with pytest.raises(cr.StoreError, match="another process"):
            tiny.run(store=tmp_path / "busy")
    finally:
        os.close(handle)
    assert tiny.run(store=tmp_path / "busy").ok


def test_corrupt_cell_is_refused(tiny, tmp_path):
    tiny.run(store=tmp_path / "run")
    path = next((tmp_path / "run" / "cells").glob("*.json"))
    path.write_text(path.read_text().replace('"value": 1', '"value": 7').replace('"value": 4', '"value": 7'))
    if "7" not in path.read_text():
        path.write_text(path.read_text()[:-20])
    with pytest.raises(cr.StoreError, match="corrupt"):
        tiny.run(store=tmp_path / "run")


def test_failing_cell_becomes_a_row_and_is_tried_again(tiny, log, tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_FAIL", "square 1")
    run = tiny.run(store=tmp_path / "run")
    assert not run.ok
    assert [row.verdict for row in run.rows] == ["agrees"] * 3 + ["shown", "no value"]
    assert run.rows[-1].name == "cell square 1"
    assert "ValueError: planted" in run.rows[-1].note
    assert "planted" in run.compare()
    with pytest.raises(cr.InputError, match="planted"):
        run.results[1]["value"]
    monkeypatch.delenv("TINY_FAIL")
    assert tiny.run(store=tmp_path / "run").ok
    assert log() == [*names(4), "square 1"]


def test_failing_table_and_pictures_do_not_lose_the_results(tiny, tmp_path):
    run = replace(tiny, rows=lambda results, size: 1 / 0, figures=lambda results, folder: 1 / 0).run(
        store=tmp_path / "r"
    )
    assert not run.ok
    assert "ZeroDivisionError" in run.rows[0].note
    assert "ZeroDivisionError" in run.messages[0]
    assert len(values(run)) == 4


def test_results_have_to_be_json(tiny):
    run = replace(tiny, compute=lambda cell: {"x": object()}).run()
    assert {result.error.split(":")[0] for result in run.results} == {"InputError"}
    assert "dictionary" in replace(tiny, compute=lambda cell: 3.0).run().results[0].error


@pytest.mark.heavy
def test_executors_agree(tiny, tmp_path):
    serial = tiny.run(seed=3)
    spread = tiny.run(seed=3, store=tmp_path / "run", executor=Processes(2))
    assert values(serial) == values(spread)
    assert serial.rows == spread.rows


class Lossy:
    """An executor whose workers do not survive some cells."""

    def __init__(self, *deadly):
        self.deadly = deadly

    def map(self, fn, jobs):
        for job in jobs:
            if job.cell.name in self.deadly:
                raise cr.EstimationError("its worker process ended 3 times")
            yield fn(job)


def test_lost_workers_fail_their_cells_only(tiny):
    run = tiny.run("paper", executor=Lossy("square 0", "square 5", "square 6"))
    lost = [k for k, result in enumerate(run.results) if result.error is not None]
    assert lost == [0, 5, 6]
    assert "worker process ended" in run.results[5].error
    with pytest.raises(cr.EstimationError):  # nothing gets through: no fault of the cells
        tiny.run("paper", executor=Lossy(*names(9)))


def test_bad_input(tiny):
    with pytest.raises(cr.InputError, match="size among toy, paper"):
        tiny.run("huge")
    with pytest.raises(cr.InputError, match="seed as a whole number"):
        tiny.run(seed=-1)
    with pytest.raises(cr.InputError, match="different names"):
        replace(tiny, cells=lambda size, seed: [Cell("a"), Cell("a")]).run()
    with pytest.raises(cr.InputError, match="nearest: toy-volumes"):
        recipe("toy-volume")
    with pytest.raises(cr.InputError, match="a verdict among"):
        Row("x", 1.0, 1.0, None, 0.0, "fine")
    with pytest.raises(cr.InputError, match="explains why"):
        Row("x", 1.0, 1.0, None, 0.0, "explained")
    with pytest.raises(cr.InputError, match="side among"):
        Expected(1.0, 0.0, "x", side="near")
    with pytest.raises(cr.InputError, match="finite tolerance"):
        Expected(1.0, -1.0, "x")


@pytest.mark.parametrize(
    ("settings", "ours", "se", "verdict"),
    [
        ({}, 2.1, None, "agrees"),
        ({}, 2.11, None, "differs"),
        ({}, 2.39, 0.1, "agrees"),
        ({}, 2.41, 0.1, "differs"),
        ({"relative": True}, 2.19, None, "agrees"),
        ({"relative": True}, 2.21, None, "differs"),
        ({"side": "at most"}, -50.0, None, "agrees"),
        ({"side": "at most"}, 2.11, None, "differs"),
        ({"side": "at least"}, 50.0, None, "agrees"),
        ({"side": "at least"}, 1.89, None, "differs"),
        ({}, None, None, "no value"),
        ({}, float("nan"), None, "no value"),
        ({}, 2.0, float("inf"), "no value"),
    ],
)
def test_verdicts(settings, ours, se, verdict):
    row = Expected(2.0, 0.1 + 1e-12, "x", **settings).row("a", ours, se=se)
    assert row.verdict == verdict
    assert Run(None, "toy", 0, (row,), ()).ok is (verdict == "agrees")


def test_explained_only_where_it_differs():
    known = Expected(2.0, 0.1, "x")
    assert known.row("a", 3.0, why="known").verdict == "explained"
    assert known.row("a", 2.0, why="known").verdict == "agrees"
    assert known.row("a", None, why="known").verdict == "no value"


def test_entry_points_are_loaded_by_name_only(tiny, monkeypatch):
    points = [
        metadata.EntryPoint("tiny", "tiny_recipe:RECIPE", "crunode.recipes"),
        metadata.EntryPoint("broken", "no_such_module:RECIPE", "crunode.recipes"),
        metadata.EntryPoint("wrong", "tiny_recipe:cells", "crunode.recipes"),
    ]
    monkeypatch.setattr(registry, "_points", lambda: points)
    assert recipes() == ["broken", "tiny", "wrong"]
    assert recipe("tiny") is tiny
    assert cr.recipe("tiny") is tiny
    with pytest.raises(cr.InputError, match="no_such_module"):
        recipe("broken")
    with pytest.raises(cr.InputError, match="expected a Recipe"):
        recipe("wrong")


def test_recipes_can_be_pickled(tiny):
    assert pickle.loads(pickle.dumps(tiny)) == tiny


def test_documentation_has_a_recipe_that_works(tmp_path, monkeypatch):
    page = (HERE.parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    (source,) = [text for text in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S) if "RECIPE" in text]
    (tmp_path / "disk_recipe.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import disk_recipe

    assert check_recipe(disk_recipe.RECIPE).ok


def test_documentation_lists_the_recipes_of_crunode():
    page = (HERE.parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    names = [point.name for point in metadata.entry_points(group=GROUP) if point.value.startswith("crunode.")]
    assert "toy-volumes" in names
    assert not [name for name in names if f"| `{name}` |" not in page]
