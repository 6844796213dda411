import json
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from crunode.core.deadline import Deadline
from crunode.core.execute import Serial
from crunode.errors import InputError, StoreError
from crunode.jobs import registry
from crunode.jobs.job_file import read_jobs
from crunode.jobs.job_running import run_jobs
from crunode.jobs.planning import _spread_order, plan_jobs, plan_recipe
from crunode.store.atomic import acquire

LANDS = """
import torch
from crunode import Landscape

def bowl():
    return Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
"""
QUICK = "{ chains = 2, draws = 12, warmup = 6, nbeta = 20.0, kernel = 'HMC', step = 0.05, leaps = 2 }"
STUDY = f"""
[[job]]
name = "bowl"
target = "lands_of_jobs:bowl"
settings = {QUICK}
matrix = {{ seed = [0, 1, 2] }}

[[job]]
recipe = "tiny"
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    points = [metadata.EntryPoint("tiny", "tiny_recipe:RECIPE", registry.GROUP)]
    monkeypatch.setattr(registry, "_points", lambda: points)
    (tmp_path / "lands_of_jobs.py").write_text(LANDS)
    (tmp_path / "study.toml").write_text(STUDY)
    yield read_jobs(tmp_path / "study.toml")
    sys.modules.pop("lands_of_jobs", None)


def times(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file() and p.name != "log.jsonl"}


def test_run_again_reads_what_is_there(study, tmp_path):
    first = run_jobs(study, tmp_path / "out")
    assert [o.unit.name for o in first.outcomes] == ["bowl-seed0", "bowl-seed1", "bowl-seed2", "tiny"]
    assert all(o.error is None and o.result is not None for o in first.outcomes), first.table()
    assert len({o.result["value"] for o in first.outcomes[:3]}) == 3
    before = times(tmp_path / "out")
    again = run_jobs(study, tmp_path / "out")
    assert times(tmp_path / "out") == before
    assert again.to_dict() == first.to_dict()
    events = [json.loads(line)["event"] for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert events.count("start") == 2
    costs = plan_jobs(study, tmp_path / "out", trial=0).costs
    assert [(c.units, c.done, c.seconds) for c in costs] == [(3, 3, 0.0), (4, 4, 0.0)]


@pytest.mark.heavy
def test_deadline_and_then_the_rest(study, tmp_path):
    whole = run_jobs(study, tmp_path / "whole")
    stopped = run_jobs(study, tmp_path / "out", Serial(until=Deadline(0)))
    assert not stopped.ok
    assert "the same command" in stopped.stopped
    assert "not run" in stopped.table()
    values = [o.result["value"] if o.unit.kind == "llc" else o.ok for o in run_jobs(study, tmp_path / "out").outcomes]
    assert values == [o.result["value"] if o.unit.kind == "llc" else o.ok for o in whole.outcomes]


def test_a_chain_that_is_stopped_between_chunks_goes_on(study, tmp_path):
    from crunode.core.deadline import working_until
    from crunode.errors import DeadlineReached
    from crunode.estimators.coefficient import llc
    from crunode.jobs.loading import landscape_from, options_of
    from crunode.sampling import group
    from crunode.store.run_store import RunStore

    given = options_of(
        {"chains": 2, "draws": 120, "warmup": 60, "nbeta": 20.0, "kernel": "HMC", "step": 0.05, "leaps": 2}
    )
    land = landscape_from("lands_of_jobs:bowl")
    whole = llc(land, **given)
    with working_until(Deadline(0)):
        for _ in range(3):
            with pytest.raises(DeadlineReached):
                llc(land, store=tmp_path / "part", **given)
    assert group.CHUNK == 50
    assert RunStore.open(tmp_path / "part").status == "running"
    assert llc(land, store=tmp_path / "part", **given).value == whole.value


def test_a_unit_that_fails_leaves_the_others(study, tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_FAIL", "square 2")
    found = run_jobs(study, tmp_path / "out")
    assert [o.error is None for o in found.outcomes] == [True, True, True, False]
    assert "1 of 4 cells failed: square 2" in found.outcomes[3].error
    monkeypatch.delenv("TINY_FAIL")
    assert run_jobs(study, tmp_path / "out").outcomes[3].error is None


def test_changed_code_makes_another_folder(study, tmp_path):
    first = run_jobs(study, tmp_path / "out").outcomes[0].result["value"]
    sys.modules.pop("lands_of_jobs")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    (tmp_path / "lands_of_jobs.py").write_text(LANDS.replace("w.square()", "(w**4)"))
    assert run_jobs(study, tmp_path / "out").outcomes[0].result["value"] != first


@pytest.mark.heavy
def test_wrong_things_are_told_before_anything_runs(study, tmp_path):
    (tmp_path / "bad.toml").write_text(STUDY.replace("lands_of_jobs:bowl", "lands_of_jobs:bowls"))
    with pytest.raises(InputError, match="expected a function 'bowls'"):
        run_jobs(read_jobs(tmp_path / "bad.toml"), tmp_path / "out")
    (tmp_path / "bad.toml").write_text(STUDY.replace("matrix", 'weights = "w.pt"\nmatrix'))
    with pytest.raises(InputError, match="expected a file with weights"):
        run_jobs(read_jobs(tmp_path / "bad.toml"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    handle = acquire(tmp_path / "out" / "locks" / "jobs.lock")
    try:
        with pytest.raises(StoreError, match="another process is running jobs"):
            run_jobs(study, tmp_path / "out")
    finally:
        os.close(handle)


def test_plan_of_what_was_not_run(study, tmp_path):
    cost, tiny = plan_jobs(study, tmp_path / "out", trial=0).costs
    assert (cost.units, cost.done, cost.seconds, tiny.units) == (3, 0, None, 4)
    assert "unknown" in plan_jobs(study, tmp_path / "out", trial=0).table()
    with pytest.raises(InputError, match="expected size among"):
        plan_recipe("tiny", "huge")


@pytest.mark.heavy
def test_plan_by_trial(study, tmp_path):
    (tmp_path / "one.toml").write_text(STUDY.split("[[job]]\nrecipe")[0])
    (cost,) = plan_jobs(read_jobs(tmp_path / "one.toml"), tmp_path / "out", trial=60).costs
    assert "tried to its end" in cost.source
    assert 0 < cost.low < cost.seconds < cost.high
    assert cost.memory is None or cost.memory > 1e7
    assert cost.gradients > 0
    assert not (tmp_path / "out").exists(), "a trial leaves nothing behind"


def test_plan_from_a_record_of_some_cells(study, tmp_path):
    registry.recipe("tiny").run("paper", store=tmp_path / "tiny")
    files = sorted((tmp_path / "tiny" / "cells").glob("*.json"))
    for path in files[3:]:
        path.unlink()
    (cost,) = plan_recipe("tiny", "paper", store=tmp_path / "tiny", trial=0).costs
    assert (cost.units, cost.done) == (9, 3)
    assert cost.low <= cost.seconds <= cost.high


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_cells_are_tried_from_all_over(count):
    order = _spread_order(count)
    assert sorted(order) == list(range(count))
    if count == 100:
        assert max(b - a for a, b in zip(sorted(order[:10]), sorted(order[:10])[1:], strict=False)) < 30
