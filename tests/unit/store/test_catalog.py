import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from crunode.core.result import Estimate, Finding
from crunode.errors import InputError, StoreError
from crunode.store.catalog import Catalog
from crunode.store.catalog_index import INDEX
from crunode.store.documents import plain, write_document
from crunode.store.run_record import KINDS
from crunode.store.run_store import RunStore, save_estimate


def draws_run(home, value=2.0, se=0.3, *, seed=0, status="complete", step=0.1, findings=(), **settings):
    spec = {"kernel": {"name": "HMC", "step": step}, "chains": 2, "nbeta_per_chain": [5.0, 5.0], **settings}
    store = RunStore.create(home, spec=spec, groups=[[0, 1]], seed=seed, provenance={"crunode": "0"})
    if status != "running":
        store.resume(0)
        store.append(0, "draws", {"excess": np.ones((2, 3))}, {}, {"step": 3})
        store.finish(status, findings=findings)
    if value is not None:
        save_estimate(home, Estimate("llc", value, se=se, systematic=0.4))
    store.close()
    return home


def recipe_run(home, verdict="agrees", done=True):
    run = {"recipe": "tiny", "recipe_version": 1, "size": "toy", "seed": 3, "cells": {"a": {"x": 1}, "b": {"x": 2}}}
    write_document(home / "recipe.json", "crunode-recipe-store", 1, {"run": run})
    write_document(home / "cells" / "0.json", "crunode-recipe-cell", 1, {"cell": "a"})
    if done:
        row = {"name": "λ", "ours": 1.5, "se": 0.1, "verdict": verdict}
        cell = {"name": "a", "error": None}
        write_document(home / "result.json", "crunode-recipe-run", 1, {"rows": [row], "cells": [cell]})


def others(root):
    estimate = plain(Estimate("llc", 4.0, se=0.1).to_dict())
    write_document(root / "sweep" / "sweep.json", "crunode-sweep", 1, {"asked": {"seed": 5}, "plan": {}, "layout": "x"})
    write_document(root / "sweep" / "default.json", "crunode-sweep-record", 1, {"record": estimate})
    draws_run(root / "sweep" / "cells" / "one")
    write_document(root / "sweep" / "cells" / "one.json", "crunode-sweep-record", 1, {"record": {}})
    settings = {"model": {"kind": "Linear"}, "seed": 7}
    write_document(root / "training" / "training.json", "crunode-training", 1, {"settings": settings})
    rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    write_document(root / "training" / "history.json", "crunode-training-history", 1, {"rows": rows})
    write_document(root / "tracker" / "tracker.json", "crunode-tracker", 1, {"settings": {"probes": {"llc": {}}}})
    visit = {"step": 12, "estimates": {"llc": estimate}}
    write_document(root / "tracker" / "visits" / "step-00000012.json", "crunode-visit", 1, {"visit": visit})


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def root(tmp_path):
    draws_run(tmp_path / "deep" / "er" / "a", 2.0, seed=1)
    draws_run(tmp_path / "b", 3.0, seed=2, step=0.2, findings=[Finding.of("MC201", "1.3")])
    draws_run(tmp_path / "c", None, status="running")
    draws_run(tmp_path / "d", float("nan"), status="failed")
    recipe_run(tmp_path / "r")
    others(tmp_path)
    return tmp_path


def names(found):
    return [run.name for run in found]


def test_every_kind_is_recognized_with_what_it_says(root):
    runs = {run.name: run for run in Catalog(root).list()}
    assert list(runs) == ["b", "c", "d", "deep/er/a", "r", "sweep", "tracker", "training"]
    assert {run.kind for run in runs.values()} == set(KINDS)
    a = runs["deep/er/a"]
    assert (a.subject, a.status, a.ok, a.value, a.se, a.systematic, a.seed) == (
        "llc",
        "complete",
        True,
        2.0,
        0.3,
        0.4,
        1,
    )
    assert (runs["b"].findings, runs["c"].status, runs["c"].ok) == (("MC201",), "running", None)
    assert (runs["d"].status, runs["d"].ok, runs["d"].value) == ("failed", False, None)
    assert (runs["r"].subject, runs["r"].ok, runs["r"].summary, runs["r"].seed) == ("tiny", True, "1 agrees", 3)
    assert (runs["sweep"].status, runs["sweep"].value, runs["sweep"].summary) == ("running", 4.0, "1 cells")
    assert (runs["training"].summary, runs["training"].subject, runs["training"].status) == (
        "2 epochs",
        "Linear",
        "open",
    )
    assert (runs["tracker"].summary, runs["tracker"].value) == ("1 visits, steps 12 to 12", 4.0)
    files = [p for p in (root / "b").rglob("*") if p.is_file()]
    assert runs["b"].size == sum(p.stat().st_size for p in files)
    assert runs["b"].created == min(p.stat().st_mtime for p in files)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"kind": "recipe"}, ["r"]),
        ({"name": "a"}, ["deep/er/a"]),
        ({"name": "deep/*"}, ["deep/er/a"]),
        ({"status": "failed"}, ["d"]),
        ({"ok": False}, ["d"]),
        ({"finding": "mc201"}, ["b"]),
        ({"where": {"kernel.step": 0.2}}, ["b"]),
        ({"where": {"kernel.step": "0.20"}}, ["b"]),
        ({"where": {"kernel.name": "H*"}, "status": "complete"}, ["b", "deep/er/a"]),
        ({"where": {"recipe": "tiny"}}, ["r"]),
        ({"since": "2001-01-01", "until": "2001-01-02"}, []),
        ({"until": "2001-01-02"}, []),
        ({"since": "2001-01-01T10:00", "kind": "recipe"}, ["r"]),
    ],
)
def test_filters(root, filters, expected):
    catalog = Catalog(root)
    assert names(catalog.list(**filters)) == expected
    assert catalog.count(**filters) == len(expected)


def test_a_day_is_meant_to_its_end(tmp_path):
    home = draws_run(tmp_path / "a", None, status="running")
    for path in home.rglob("*"):
        os.utime(path, (979_000_000, 979_000_000))  # 2001-01-09 00:26:40 UTC
    catalog = Catalog(tmp_path)
    assert names(catalog.list(until="2001-01-09")) == ["a"]
    assert names(catalog.list(until="2001-01-08")) == []
    assert names(catalog.list(since="2001-01-09", until="2001-01-09")) == ["a"]


def test_brackets_in_names_are_no_pattern(tmp_path):
    draws_run(tmp_path / "x[1]", None, status="running")
    draws_run(tmp_path / "x1", None, status="running")
    assert names(Catalog(tmp_path).list(name="x[1]")) == ["x[1]"]


@pytest.mark.parametrize(
    "filters",
    [
        {"kind": "drws"},
        {"status": "done"},
        {"since": "yesterday"},
        {"ok": 1},
        {"where": {"kernl.step": 1}},
        {"color": 1},
    ],
)
def test_wrong_filters_are_refused(root, filters):
    with pytest.raises(InputError, match="expected"):
        Catalog(root).list(**filters)


@pytest.mark.parametrize("bad", [{"order": "name; DROP TABLE runs"}, {"limit": -1}, {"limit": True}, {"offset": "1"}])
def test_wrong_order_or_limit_is_refused(root, bad):
    with pytest.raises(InputError, match="expected"):
        Catalog(root).list(**bad)


def test_order_and_pages(root):
    catalog = Catalog(root)
    by_value = catalog.list(order="value", descending=True)
    assert [run.value for run in by_value[:4]] == [4.0, 4.0, 3.0, 2.0]
    assert names(catalog.list(limit=2, offset=1)) == names(catalog.list())[1:3]


def test_refresh_sees_what_changed_and_reads_nothing_else(root):
    catalog = Catalog(root)
    assert catalog.refresh().read == 0
    save_estimate(root / "c", Estimate("llc", 9.0, se=0.1))
    recipe_run(root / "new")
    (root / "b").rename(root / "moved")
    scan = catalog.refresh()
    assert (scan.read, scan.gone, scan.runs) == (3, 1, 9)
    assert names(catalog.list(name="c")) == ["c"]
    assert catalog.get("c").value == 9.0
    assert "b" not in names(catalog.list())


def test_tags_live_in_the_folder(root):
    catalog = Catalog(root)
    assert catalog.tag("b", "best", "α/β") == ("best", "α/β")
    assert names(catalog.list(tag=("best", "α/β"))) == ["b"]
    assert names(catalog.list(tag="bes")) == []
    for path in root.glob(f"{INDEX}*"):
        path.unlink()
    assert Catalog(root).get("b").tags == ("best", "α/β")
    assert Catalog(root).untag("b", "best", "never") == ("α/β",)
    RunStore.open(root / "b").draws()  # a tagged run folder is still one


@pytest.mark.parametrize("tag", ["", "two words", "a,b", "x" * 65, "a\n", 3])
def test_wrong_tags_are_refused(root, tag):
    with pytest.raises(InputError, match="expected tags"):
        Catalog(root).tag("b", tag)


def test_compare_gives_z_of_the_difference(root):
    found = Catalog(root).compare(["deep/er/a", "b"])
    assert [row.run for row in found.rows] == ["deep/er/a", "b"]
    assert found.rows[1].difference == 1.0
    assert found.rows[1].z == pytest.approx(1.0 / np.hypot(0.5, 0.5))
    assert found.ok
    assert not Catalog(root).compare(["b", "d"]).ok
    assert Catalog(root).compare(["b", "d"]).rows[1].z is None
    assert Catalog(root).compare(["b", "deep/er/a"], against="deep/er/a").rows[1].run == "b"
    with pytest.raises(InputError, match="two or more"):
        Catalog(root).compare(["b"])


def test_diff_of_settings(root):
    catalog = Catalog(root)
    assert catalog.diff("deep/er/a", "b") == ["seed: deep/er/a 1, b 2", "settings.kernel.step: deep/er/a 0.1, b 0.2"]
    assert catalog.diff("b", "b") == []


def test_delete_removes_a_run_and_nothing_else(root, tmp_path):
    catalog = Catalog(root)
    before = {p for p in root.rglob("*") if not p.is_relative_to(root / "b") and INDEX not in p.name}
    catalog.delete("b")
    assert {p for p in root.rglob("*") if INDEX not in p.name} == before
    assert "b" not in names(catalog.list())


@pytest.mark.parametrize(
    "name", ["deep", "..", "", "/", ".", "no", "b/chunks", "../x", "b/../b", "b\0", "sweep/../b", 7]
)
def test_only_run_folders_have_names(root, name):
    catalog = Catalog(root)
    for call in (catalog.delete, catalog.get, catalog.record, catalog.path, catalog.draws, catalog.tag):
        with pytest.raises(InputError, match="name of a run"):
            call(name)
    assert (root / "b" / "manifest.json").exists()


def test_a_run_in_use_is_not_deleted(root):
    store = RunStore.create(root / "busy", spec={}, groups=[[0]], seed=0, provenance={})
    store.resume(0)  # held by this very process, as by any other
    with pytest.raises(StoreError, match="being written"):
        Catalog(root).delete("busy")
    store.close()
    Catalog(root).delete("busy")
    assert not (root / "busy").exists()


def test_what_an_interrupted_deletion_left_is_removed_by_rebuild(root):
    (root / "b").rename(root / ".crunode-deleted-0123456789abcdef")
    catalog = Catalog(root)
    assert "b" not in names(catalog.list())
    assert catalog.rebuild().runs == 7
    assert not (root / ".crunode-deleted-0123456789abcdef").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"not a database, for sure" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(path.read_bytes()[:8192] + b"\xff" * 40000),
        lambda path: path.unlink() or sqlite3.connect(path).execute("CREATE TABLE runs (id)").connection.close(),
        lambda path: sqlite3.connect(path).execute("CREATE VIEW v AS SELECT 1").connection.close(),
        lambda path: path.unlink() or path.symlink_to(path.parent.parent / "elsewhere.sqlite"),
    ],
)
def test_a_damaged_index_is_built_anew(tmp_path, damage):
    root = tmp_path / "runs"
    for k in range(30):
        draws_run(root / f"a{k:02d}", None, status="running")
    Catalog(root).tag("a07", "kept")
    damage(root / INDEX)
    catalog = Catalog(root)
    assert len(catalog.list()) == 30
    assert names(catalog.list(tag="kept")) == ["a07"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_a_catalogue_needs_a_folder_of_runs(root, tmp_path):
    with pytest.raises(InputError, match="not there"):
        Catalog(tmp_path / "none")
    with pytest.raises(InputError, match="pass its parent"):
        Catalog(root / "b")


WRITER = """
import sys, time
from crunode.store.catalog import Catalog
assert "torch" not in sys.modules
catalog = Catalog(sys.argv[1])
print("ready", flush=True)
while True:
    catalog.tag(sys.argv[2], "x")
    catalog.untag(sys.argv[2], "x")
    time.sleep(0.002)
"""


@pytest.mark.heavy
def test_two_writers_one_of_them_killed(tmp_path):
    for k in range(10):
        draws_run(tmp_path / f"a{k}", float(k))
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, f"a{k}"], stdout=subprocess.PIPE) for k in range(2)]
    try:
        for writer in writers:
            writer.stdout.readline()
        catalog = Catalog(tmp_path)
        for _ in range(5):
            catalog.tag("a2", "mine")
            catalog.untag("a2", "mine")
        writers[0].kill()
        writers[0].wait()
        with sqlite3.connect(tmp_path / INDEX, timeout=30) as index:
            assert index.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        index.close()
        catalog.tag("a3", "after")
        assert writers[1].poll() is None
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            writer.stdout.close()
    catalog.refresh()
    found = [run.to_dict() for run in catalog.list()]
    catalog.rebuild()
    assert found == [run.to_dict() for run in catalog.list()]
    assert catalog.get("a3").tags == ("after",)
