import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from crunode import cli
from crunode.jobs import registry

LANDS = """
import torch
from crunode import Landscape

def bowl():
    print("a factory may say something")
    return Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
"""
STUDY = """
store = "out"
[[job]]
name = "bowl"
target = "lands_of_cli_jobs:bowl"
settings = { chains = 2, draws = 12, warmup = 6, nbeta = 20.0, kernel = "HMC", step = 0.05, leaps = 2 }
matrix = { seed = [0, 1] }
[[job]]
recipe = "tiny"
"""


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run the command line in a folder with a job file: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "jobs"))
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [metadata.EntryPoint("tiny", "tiny_recipe:RECIPE", registry.GROUP)]
    monkeypatch.setattr(registry, "_points", lambda: points)
    (tmp_path / "lands_of_cli_jobs.py").write_text(LANDS)
    (tmp_path / "study.toml").write_text(STUDY)

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    yield call
    sys.modules.pop("lands_of_cli_jobs", None)


def test_run_stops_at_the_deadline_and_goes_on(run, tmp_path):
    code, out, _ = run("run", "study.toml", "--deadline", "0s")
    assert code == 1
    assert "the same command with it goes on" in out
    code, out, _ = run("run", "study.toml", "--json")
    found = json.loads(out)
    assert [unit["error"] for unit in found["units"]] == [None] * 3
    assert code == (0 if found["ok"] else 1)
    code, out, _ = run("plan", "study.toml", "--on", "processes:2", "--json")
    assert code == 0
    plan = json.loads(out)
    assert (plan["workers"], plan["seconds"], [job["done"] for job in plan["jobs"]]) == (2, 0.0, [2, 4])


def test_set_and_store(run, tmp_path):
    _, out, _ = run("run", "study.toml", "--set", "draws=20", "--seed", "5", "--store", tmp_path / "other", "--json")
    units = json.loads(out)["units"]
    assert [unit["unit"]["name"] for unit in units] == ["bowl", "tiny"]
    assert units[0]["unit"]["settings"]["draws"] == 20
    assert units[0]["unit"]["seed"] == 5
    assert (tmp_path / "other").is_dir()
    assert not (tmp_path / "out").exists()


def test_deadline_of_a_recipe(run, tmp_path):
    code, _, err = run("recipe", "run", "tiny", "--store", tmp_path / "r", "--deadline", "0s")
    assert code == 1
    assert "0 of 4 jobs done" in err
    assert run("recipe", "run", "tiny", "--store", tmp_path / "r")[0] == 0
    code, out, _ = run("plan", "recipe", "tiny", "--store", tmp_path / "r", "--size", "toy", "--trial", "0")
    assert code == 0
    assert "4 (4 done)" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "absent.toml"], "expected a job file"),
        (["run", "study.toml", "--on", "moon"], "expected --on as"),
        (["run", "study.toml", "--deadline", "soon"], "expected a time"),
        (["run", "study.toml", "--set", "chain=3"], "did you mean chains"),
        (["run", "study.toml", "--seed", "-1"], "expected seed"),
        (["plan", "recipe"], "expected a job file or `recipe NAME`"),
        (["plan", "recipe", "tiny", "--size", "huge"], "expected size"),
        (["plan", "recipe", "tiny", "--set", "a=1"], "no --set with a recipe"),
        (["plan", "study.toml", "--trial", "-1"], "expected --trial"),
    ],
)
def test_wrong_words(run, words, said):
    code, _, err = run(*words)
    assert code == 2
    assert said in err
