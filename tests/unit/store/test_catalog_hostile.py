"""Run folders made by an enemy: nothing crashes, nothing outside is touched. bench/fuzz_runs.py tries many more."""

import contextlib
import json
import os

import numpy as np
import pytest

from crunode.core.result import Estimate
from crunode.errors import CrunodeError, StoreError
from crunode.store import catalog_scan, run_record
from crunode.store.atomic import digest
from crunode.store.catalog import Catalog
from crunode.store.guarded import read_regular, shown
from crunode.store.run_store import RunStore, load_estimate, save_estimate


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    for name in ("good", "bad"):
        store = RunStore.create(root / name, spec={"nbeta_per_chain": [5.0]}, groups=[[0]], seed=0, provenance={})
        store.resume(0)
        store.append(0, "draws", {"excess": np.ones((1, 3))}, {"x": np.ones(2)}, {"step": 3})
        store.close()
        save_estimate(root / name, Estimate("llc", 2.0, se=0.1))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.json").write_text("secret")
    return root


def seal(content):
    body = {k: v for k, v in content.items() if k != "sha256"}
    return json.dumps(
        {**body, "sha256": digest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())}
    ).encode()


def rewrite(path, **changes):
    path.write_bytes(seal({**json.loads(path.read_bytes()), **changes}))


def exercise(root):
    """All that can be asked of the bad run; the good one must stay in sight."""
    catalog = Catalog(root)
    assert "good" in [run.name for run in catalog.list()]
    home = root / "bad"
    calls = [
        lambda: catalog.get("bad"),
        lambda: catalog.compare(["good", "bad"]).table(),
        lambda: catalog.diff("good", "bad"),
        lambda: catalog.draws("bad"),
        lambda: RunStore(home).resume(0),
        lambda: str(load_estimate(home)),
        lambda: catalog.tag("bad", "x"),
    ]
    for call in calls:
        with contextlib.suppress(CrunodeError):  # any other error is a crash
            call()
    outside = root.parent / "outside"
    assert [p.name for p in outside.iterdir()] == ["secret.json"]
    assert (outside / "secret.json").read_text() == "secret"
    return catalog


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.heavy
@pytest.mark.parametrize("key", ["status", "seed", "spec", "groups", "findings", "files", "provenance", "extra"])
@pytest.mark.parametrize(
    "value", [None, {"a": deep(300)}, [{"code": 3}, "\ud800", 10**300]], ids=["null", "deep", "mix"]
)
def test_wrong_types_in_a_sealed_manifest(root, key, value):
    rewrite(root / "bad" / "manifest.json", **{key: value})
    catalog = exercise(root)
    assert {run.name for run in catalog.list()} == {"good", "bad"}


@pytest.mark.parametrize(
    "name", ["../../outside/secret.json", "/etc/passwd", "chunks/../../../outside/secret.json", 7, "a\0b"]
)
def test_paths_that_lead_out_are_not_followed(root, name):
    journal = root / "bad" / "groups" / "g000.json"
    content = json.loads(journal.read_bytes())
    chunk, state = content["chunks"][0], content["state"]
    for changes in ({"chunks": [{**chunk, "file": name}]}, {"state": {**state, "file": name}}):
        rewrite(journal, **{**content, **changes})
        with pytest.raises(StoreError, match="expected the name of something inside"):
            RunStore(root / "bad").resume(0)
        if "chunks" in changes:
            with pytest.raises(StoreError, match="expected the name of something inside"):
                RunStore.open(root / "bad").read()
    exercise(root)


@pytest.mark.parametrize("shape", [[10**9, 10**9], [-5], ["x"], [10**30]])
def test_huge_shapes_are_not_allocated(root, shape):
    arrays = {"draws": {"excess": {"dtype": "float64", "shape": shape}}}
    rewrite(root / "bad" / "groups" / "g000.json", arrays=arrays)
    with pytest.raises(StoreError, match="corrupt"):
        RunStore.open(root / "bad").read()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "place", ["manifest.json", "estimates", "estimates/llc.json", "groups", "chunks", "tags.json", "locks"]
)
@pytest.mark.parametrize("kind", ["link", "pipe", "huge"])
def test_other_things_in_the_place_of_files(root, place, kind):
    path = root / "bad" / place
    if path.exists():
        path.rename(root.parent / "put away")
    if kind == "link":
        outside = root.parent / "outside"
        path.symlink_to(outside / "secret.json" if "." in place else outside)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(2**40)
    catalog = exercise(root)
    if place != "manifest.json":
        catalog.delete("bad")
        assert not (root / "bad").exists()
    assert [p.name for p in (root.parent / "outside").iterdir()] == ["secret.json"]


def test_links_to_run_folders_are_not_listed(root):
    (root / "again").symlink_to(root / "good")
    (root / "loop").symlink_to(root)
    (root / "good" / "inner").symlink_to(root.parent / "outside")
    catalog = Catalog(root)
    assert [run.name for run in catalog.list()] == ["bad", "good"]
    with pytest.raises(CrunodeError, match="name of a run"):
        catalog.delete("again")
    with pytest.raises(CrunodeError, match="name of a run"):
        catalog.delete("loop/good")
    catalog.delete("good")
    assert (root.parent / "outside" / "secret.json").exists()


def test_names_that_steer_a_terminal_are_shown_as_escapes(root):
    name = "a\x1b[2J\n<b>&\u202e"
    (root / "bad").rename(root / name)
    (run,) = [run for run in Catalog(root).list() if run.name != "good"]
    assert run.name == name
    assert shown(name) == "a\\x1b[2J\\x0a<b>&\\u202e"


def test_names_that_are_no_text_are_left_out_and_said(root):
    os.rename(root / "bad", os.fsencode(root) + b"/\xff\xfe")
    scan = Catalog(root).rebuild()
    assert scan.runs == 1
    assert "UTF-8" in scan.problems[0]


def test_manifests_of_other_programs_are_passed_over_and_said(root):
    (root / "app").mkdir()
    (root / "app" / "manifest.json").write_text('{"name": "an app"}')
    scan = Catalog(root).rebuild()
    assert scan.runs == 2
    assert "app: manifest.json is not of crunode" in scan.problems[0]


def test_a_cut_manifest_is_listed_as_damaged(root):
    path = root / "bad" / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])
    (run,) = Catalog(root).list(status="damaged")
    assert (run.name, run.ok) == ("bad", False)
    assert "is corrupt" in run.note


def test_folders_with_very_many_entries_are_cut_off_and_said(root, monkeypatch):
    monkeypatch.setattr(catalog_scan, "_FOLDER", 50)
    for k in range(100):
        (root / f"file{k}").touch()
    scan = Catalog(root).rebuild()
    assert "more than 50 entries" in scan.problems[0]
    monkeypatch.setattr(run_record, "_FILES", 20)
    for k in range(40):
        (root / "good" / f"file{k}").touch()
    assert "more than 20 files" in Catalog(root).get("good").note


def test_runs_known_before_are_kept_when_a_folder_grows_too_large(root, monkeypatch):
    catalog = Catalog(root)
    monkeypatch.setattr(catalog_scan, "_FOLDER", 0)
    assert catalog.refresh().gone == 0
    assert len(catalog.list()) == 2


def test_deep_trees_are_left_out_and_said(root):
    home = root / "/".join("abcdefghijkl")
    RunStore.create(home, spec={}, groups=[[0]], seed=0, provenance={})
    scan = Catalog(root).rebuild()
    assert scan.runs == 2
    assert "deeper than 8" in scan.problems[0]


def test_large_documents_are_not_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * 100)
    assert read_regular(path, 100) == b"x" * 100
    with pytest.raises(StoreError, match="at most 99 bytes"):
        read_regular(path, 99)


def test_temporary_files_that_are_links_are_not_written_through(root):
    secret = root.parent / "outside" / "secret.json"
    for name in ("tags.json", "tags.json.tmp", ".tags.json.tmp"):
        (root / "bad" / name).symlink_to(secret)
    with pytest.raises(StoreError, match="link"):
        Catalog(root).tag("bad", "x")
    (root / "bad" / "tags.json").unlink()
    Catalog(root).tag("bad", "x")
    assert secret.read_text() == "secret"
