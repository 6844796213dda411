import json
from importlib import metadata
from pathlib import Path

import pytest

from crunode import cli
from crunode.jobs import registry


@pytest.fixture
def run(capsys):
    """Run the command line: exit code, standard output, standard error."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["recipe", *(str(word) for word in words)])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """The recipe of the tests, as another package would offer it."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "jobs"))
    points = [
        metadata.EntryPoint("tiny", "tiny_recipe:RECIPE", registry.GROUP),
        metadata.EntryPoint("broken", "no_such_module:RECIPE", registry.GROUP),
    ]
    installed = [*registry._points(), *points]
    monkeypatch.setattr(registry, "_points", lambda: installed)


def test_list(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert "tiny " in out
    assert "toy-volumes" in out
    assert "cannot be loaded" in out
    found = json.loads(run("list", "--json")[1])
    assert {"name": "tiny", "title": "squares", "paper": "nobody"} in found


def test_show(run):
    code, out, err = run("show", "tiny")
    assert (code, err) == (0, "")
    assert "4 at toy size, 9 at paper size" in out
    assert json.loads(run("show", "tiny", "--json")[1])["cells"] == {"toy": 4, "paper": 9}


def test_run_resumes_and_says_what_came_out(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_FAIL", "square 2")
    code, out, err = run("run", "tiny", "--store", tmp_path / "s")
    assert (code, err) == (1, "")
    assert "not ok: 3 agrees, 1 shown, 1 no value" in out
    monkeypatch.delenv("TINY_FAIL")
    code, out, _ = run("run", "tiny", "--store", tmp_path / "s")
    assert code == 0
    assert "ok: 4 agrees" in out
    code, out, _ = run("run", "tiny", "--store", tmp_path / "s", "--json")
    content = json.loads(out)
    assert (code, content["ok"], len(content["rows"])) == (0, True, 5)
    assert content["cells"][1]["value"]["pair"] == [1, None]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "tyny"], "nearest: tiny"),
        (["run", "tiny", "--size", "huge"], "size among toy, paper"),
        (["run", "tiny", "--seed", "-3"], "seed as a whole number"),
        (["run", "tiny", "--workers", "0"], "workers"),
        (["run"], "NAME"),
        (["bake"], "bake"),
        (["show", "broken"], "no_such_module"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_usage(run, words, message):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_store_of_another_run(run, tmp_path):
    assert run("run", "tiny", "--store", tmp_path / "s")[0] == 0
    code, _, err = run("run", "tiny", "--store", tmp_path / "s", "--seed", 1)
    assert code == 2
    assert "seed: stored 0, asked 1" in err
