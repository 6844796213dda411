"""Recipes that are started from the dashboard, and exact values."""

import re
import subprocess
import sys
import time

import pytest

from crunode.app import jobs as jobs_module
from crunode.app.exact_pages import exact_answer
from crunode.cli.exact_command import run_exact
from crunode.errors import InputError, StoreError
from crunode.exact.registry import catalog, family_named


@pytest.fixture
def started(monkeypatch):
    """Commands that were started; in their place a process runs that waits."""
    found = []
    real = subprocess.Popen

    def popen(command, **options):
        found.append(command)
        return real(
            [sys.executable, "-S", "-c", "print('<i>hello', flush=True); import time; time.sleep(60)"], **options
        )

    monkeypatch.setattr(jobs_module.subprocess, "Popen", popen)
    return found


def until(true):
    for _ in range(200):
        if true():
            return
        time.sleep(0.02)
    raise AssertionError


def test_a_recipe_is_started_watched_and_stopped(make_client, started):
    client = make_client()
    assert client.post("/recipes", recipe="toy-volumes", seed="3").headers["location"] == "/running"
    (command,) = started
    root = client.board.runs.catalog.root
    assert command[:-1] == [sys.executable, "-m", "crunode", "recipe", "run", "toy-volumes", "--size", "toy",
                            "--seed", "3", "--store"]  # fmt: skip
    assert re.fullmatch(rf"{re.escape(str(root))}/dashboard/toy-volumes-[\d-]{{15}}-[0-9a-f]{{4}}", command[-1])
    found = client.get("/running").text
    assert "starting" in found
    assert 'aria-label="Stop toy-volumes, seed 3"' in found
    (job,) = client.board.jobs.all()
    assert client.post("/running/stop", job=job.key).status == 303
    until(lambda: not job.alive)
    assert "stopped" in client.get("/running/live").text


def test_few_run_at_a_time(make_client, started):
    client = make_client()
    answers = [client.post("/recipes", recipe="toy-volumes").status for _ in range(4)]
    assert answers == [303, 303, 400, 400]
    assert len(started) == 2
    processes = [job.process for job in client.board.jobs.all()]
    client.board.close()
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize(
    "sent",
    [
        {"recipe": "no-such-recipe"},
        {"recipe": ""},
        {"recipe": "--help"},
        {"recipe": "../../bin/sh"},
        {"recipe": "toy-volumes; id"},
        {"recipe": "toy-volumes\0"},
        {"recipe": "toy-volumes", "seed": "-1"},
        {"recipe": "toy-volumes", "seed": "0x10"},
        {"recipe": "toy-volumes", "seed": "9" * 30},
        {"recipe": "toy-volumes", "seed": "0 --store /tmp/x"},
    ],
)
def test_nothing_else_can_be_started(client, started, sent):
    assert client.post("/recipes", **sent).status == 400
    assert started == []


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path, started):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "dashboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="links"):
        jobs_module.Jobs(tmp_path / "runs").start("toy-volumes", 0)
    assert started == []


def test_a_recipe_that_fails_says_why(tmp_path, monkeypatch):
    real = subprocess.Popen
    monkeypatch.setattr(
        jobs_module.subprocess, "Popen", lambda command, **o: real([sys.executable, "-S", "-c", "1 / 0"], **o)
    )
    jobs = jobs_module.Jobs(tmp_path)
    job = jobs.start("toy-volumes", 0)
    until(lambda: not job.alive)
    assert job.state == "failed"
    assert "ZeroDivisionError" in job.tail()
    jobs.close()


def test_only_jobs_of_ours_can_be_stopped(client):
    for key in ("", "1", "0" * 16, "../1"):
        assert client.post("/running/stop", job=key).status == 400


def test_the_gallery(client):
    found = client.get("/recipes").text
    assert 'aria-label="Start toy-volumes at toy size"' in found
    assert "Watanabe 2009" in found
    assert "toy size: 9 cells" in found
    assert f'href="/run/{client.key("half")}"' in found


def test_exact_values_are_those_of_the_command_line(client, capsys):
    sent = {"value-in_dim": "6", "value-hidden": "4", "value-out_dim": "6", "value-rank": "2"}
    found = client.post("/exact", family="reduced_rank_regression", **sent)
    assert run_exact(["reduced-rank", "6", "4", "6", "--rank", "2"]) == 0
    first, *rest = capsys.readouterr().out.strip().split("\n")
    assert f"<strong>{first}</strong>" in found.text
    assert first.startswith("λ = 27/2, m = 1")
    shown = found.text.replace("&amp;", "&")
    assert all(line in shown for line in rest)


@pytest.mark.parametrize("family", [family.name for family in catalog()])
def test_every_family_has_a_form(client, family):
    found = client.get("/exact", family=family)
    assert found.status == 200
    for name in family_named(family).parameters:
        assert f'<label for="value-{name}">' in found.text
        assert f'aria-describedby="meaning-{name}"' in found.text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "values", "words"),
    [
        ("no such", {}, "expected the name of a family"),
        ("regular", {}, "got no dim"),
        ("regular", {"dim": "1.5"}, "whole number"),
        ("regular", {"dim": "--help"}, "expected"),
        ("regular", {"dim": "1\0"}, "zero byte"),
        ("regular", {"dim": "__import__('os').system('id')"}, "whole number"),
        ("normal_crossing", {"k": "[" * 3000}, "expected"),
    ],
)
def test_bad_values_are_said(client, family, values, words):
    found = client.post("/exact", family=family, **{f"value-{k}": v for k, v in values.items()})
    assert found.status == 400
    assert words in found.text.replace("&#39;", "'")
    assert "Traceback" not in found.text


def test_a_calculation_that_takes_too_long_is_ended(monkeypatch):
    from crunode.app import exact_pages

    real = subprocess.Popen
    monkeypatch.setattr(exact_pages, "_SECONDS", 0.2)
    monkeypatch.setattr(
        exact_pages.subprocess, "Popen", lambda c, **o: real([sys.executable, "-c", "while True: pass"], **o)
    )
    with pytest.raises(InputError, match="seconds"):
        exact_answer(family_named("regular"), {"dim": "1"})
