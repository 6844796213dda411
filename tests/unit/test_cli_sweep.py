import json
import sys
import textwrap

import pytest

import crunode as cr
from crunode.estimators import sweeps

QUICK = ["--set", "chains=2", "--set", "draws=40", "--set", "warmup=10"]


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The name of a factory in the current folder, which is a fresh one."""
    name = f"sweeping_{tmp_path.name}"
    text = """
        from crunode.examples.toys import quadratic

        def landscape():
            print("chatter")
            return quadratic(2)
        """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return f"{name}:landscape"


@pytest.fixture
def default(monkeypatch):
    """A short run in place of the default estimate; returns its settings, for a test to change."""
    settings = {"nbeta": 50.0, "precision": 1.0, "kernel": cr.HMC(step=0.03, leaps=8), "chains": 16, "draws": 200}
    short = lambda land, **options: cr.llc(land, **({} if "nbeta" in options else settings), **options)  # noqa: E731
    monkeypatch.setattr(sweeps, "llc", short)
    return settings


@pytest.mark.heavy
def test_table_and_picture(run, target, default, tmp_path):
    axes = ["--step", "1e-5", "--step", "1.0", "--precision", 1, "--precision", 10]
    code, out, err = run("sweep", target, *axes, *QUICK, "--plot", tmp_path / "s.png", "--seed", 2)
    assert (code, err) == (0, "")
    assert "diverged" in out
    assert "tuner's choice    step" in out
    assert "precision 10" in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
def test_json_is_the_sweep_and_the_only_thing_on_standard_output(run, target, default):
    code, out, err = run("sweep", target, "--step", "1e-5", "--step", "1.0", "--nbeta", 100, *QUICK, "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert code == 0
    assert "chatter" in err
    assert found["nbetas"] == [100.0]
    assert found["spec"]["chains"] == 2
    assert [cell["value"] is None for cell in found["cells"]] == [False, True]
    assert cr.Sweep.from_dict(found).cells[1].diverged


@pytest.mark.heavy
def test_exit_1_when_the_default_estimate_is_not_ok(run, target, default):
    default["kernel"] = cr.HMC(step=1e-4, leaps=1)
    code, out, _ = run("sweep", target, "--step", "1e-5", *QUICK)
    assert code == 1
    assert "not ok" in out


@pytest.mark.heavy
def test_store_is_resumed(run, target, default, monkeypatch):
    words = ["sweep", target, "--step", "1e-5", *QUICK, "--store", "kept"]
    first = run(*words)
    monkeypatch.setattr(sweeps, "llc", lambda *_, **__: pytest.fail("estimated again"))
    assert run(*words) == first
    code, _, err = run(*words, "--seed", 1)
    assert code == 2
    assert "seed: stored 0, asked 1" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "-1"], "expected steps as one or more different positive numbers"),
        (["--step", "many"], "'--step'"),
        (["--set", "nbeta=3"], "as --nbeta"),
        (["--set", "layout=batched"], "expected settings among chains, draws, warmup, kernel"),
        (["--set", "chains=0"], "expected chains"),
        (["--plot", "sweep.xls"], "expected a picture as .png, .pdf or .svg"),
        (["--plot", "nowhere/sweep.png"], "make the folder first"),
        (["--workers", "0"], "expected workers"),
        (["--frob"], "--frob"),
    ],
)
def test_wrong_words_exit_2(run, target, words, message):
    code, _, err = run("sweep", target, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_nothing_to_sweep_exits_2(run):
    assert run("sweep")[0] == 2
