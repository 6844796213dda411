import importlib.util
import json
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file

from crunode.errors import FINDINGS, EstimationError
from crunode.store.run_store import RunStore

# With nbeta, kernel, step and precision given there is nothing to tune.
FIXED = ["nbeta=wbic", "kernel=HMC", "step=0.01", "leaps=4", "precision=5.0"]
QUICK = [word for pair in [*FIXED, "chains=4", "draws=60", "warmup=30"] for word in ("--set", pair)]
LONGER = [word for pair in [*FIXED, "chains=16", "draws=300", "warmup=50"] for word in ("--set", pair)]
DIVERGING = ["--set", "kernel=SGLD", "--set", "step=100.0", "--set", "nbeta=wbic"]


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """A folder with a module of factories, made the current one; returns the module's name."""
    name = f"experiment_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent(
            """
            import crunode
            from crunode.examples.toys import reduced_rank

            NUMBER = 3

            def landscape():
                print("chatter")
                return reduced_rank(3, 2, 3, 1, n=200)

            def wrong():
                return 3

            def broken():
                raise ValueError("no such luck")
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_version(run):
    assert run("--version") == (0, "crunode 0.1.0\n", "")


def test_no_words_give_the_help(run):
    code, out, _ = run()
    assert code == 0
    assert all(name in out for name in ("llc", "show", "explain", "doctor", "demo"))


@pytest.mark.heavy
@pytest.mark.parametrize("words", [["frobnicate"], ["llc"], ["explain", "--frob"], ["demo"]])
def test_wrong_usage_exits_2_without_traceback(run, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_llc_prints_one_line_and_exits_0(run, factory):
    code, out, err = run("llc", f"{factory}:landscape", *LONGER, "--seed", 1)
    assert (code, err) == (0, "")
    assert "llc " in out
    assert "| ok" in out


def test_llc_json_is_the_only_thing_on_standard_output(run, factory):
    code, out, err = run("llc", f"{factory}:landscape", *QUICK, "--json")
    found = json.loads(out)
    assert code == (0 if found["ok"] else 1)
    assert {"value", "se", "systematic", "findings", "spec", "ok"} <= set(found)
    assert "chatter" in err


def test_findings_come_in_words_with_remedies_and_exit_1(run, factory):
    code, out, err = run("llc", f"{factory}:landscape", *DIVERGING)
    assert (code, err) == (1, "")
    assert "error MC204: chain diverged" in out
    assert FINDINGS["MC204"].remedy.on_command_line in out


def test_json_has_null_for_nan(run, factory):
    code, out, _ = run("llc", f"{factory}:landscape", *DIVERGING, "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert code == 1
    assert found["value"] is None
    assert found["ok"] is False


def test_failed_computation_exits_1(run, factory, monkeypatch):
    def fail(*_, **__):
        raise EstimationError("no acceptable step")

    monkeypatch.setattr("crunode.estimators.coefficient.llc", fail)
    assert run("llc", f"{factory}:landscape") == (1, "chatter\n", "error: no acceptable step\n")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{}:wrong", "expected .*:wrong to return a crunode.Landscape, got int"),
        ("{}:broken", r"raised ValueError: no such luck \(experiment.*py, line 15\)"),
        ("{}:landscap", "there are .*landscape"),
        ("{}:NUMBER", "expected a function 'NUMBER'"),
        ("{}", "expected a target like"),
        ("no_such_module:f", "could not import no_such_module"),
    ],
)
def test_what_is_no_landscape_is_refused(run, factory, target, message):
    code, out, err = run("llc", target.format(factory))
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["chain=3"], "did you mean chains"),
        (["step=1e-5"], "step belongs to a kernel"),
        (["kernel=SGL"], "expected a kernel among SGLD"),
        (["kernel=HMC", "batch=3"], "got 'batch'"),
        (["chains"], "key=value"),
        (["chains=2", "chains=3"], "got 'chains=3' again"),
        (["chains=2.5"], "expected chains as a whole number"),
        (["chains=__import__('os')"], "expected chains as a whole number"),
        (["chains=1\nseed = 2"], "expected one value"),
    ],
)
def test_wrong_settings_are_refused(run, factory, settings, message):
    words = [word for setting in settings for word in ("--set", setting)]
    code, _, err = run("llc", f"{factory}:landscape", *words)
    assert code == 2
    assert message in err


def test_errors_as_json(run, factory):
    code, out, err = run("llc", f"{factory}:wrong", "--json")
    assert (code, err) == (2, "")
    assert json.loads(out)["error"]["type"] == "InputError"
    code, out, _ = run("llc", "--json")
    assert code == 2
    assert json.loads(out)["error"]["type"] == "UsageError"


@pytest.mark.heavy
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_are_loaded(run, factory, tmp_path, suffix):
    path = tmp_path / f"w.{suffix}"
    state = {"0.weight": torch.zeros(2, 3), "1.weight": torch.zeros(3, 2)}
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    spec = [
        json.loads(run("llc", f"{factory}:landscape", *QUICK, *extra, "--json")[1])["spec"]
        for extra in ((), ("--weights", path))
    ]
    assert spec[0]["asked"]["landscape"] != spec[1]["asked"]["landscape"]


def test_weights_that_do_not_fit_are_refused(run, factory, tmp_path):
    save_file({"0.weight": torch.zeros(2, 3)}, tmp_path / "short.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("short.safetensors", "broken.safetensors", "module.pt", "list.pt", "absent.pt", "w.npz"):
        code, _, err = run("llc", f"{factory}:landscape", "--weights", tmp_path / name)
        assert code == 2, name
        assert err.startswith("error: expected"), name


@pytest.mark.heavy
def test_store_mismatch_exits_2(run, factory, tmp_path):
    assert run("llc", f"{factory}:landscape", *QUICK, "--store", tmp_path / "run")[0] in (0, 1)
    code, _, err = run("llc", f"{factory}:landscape", *QUICK, "--seed", 3, "--store", tmp_path / "run")
    assert code == 2
    assert "seed: stored 0, asked 3" in err


@pytest.mark.heavy
def test_show_tells_settings_and_why(run, factory, tmp_path):
    run("llc", f"{factory}:landscape", *QUICK, "--store", tmp_path / "run")
    code, out, _ = run("show", tmp_path / "run")
    assert code == 0
    assert all(text in out for text in ("complete", "estimate   llc", "kernel = HMC", "because: as asked", "findings"))
    code, out, _ = run("show", tmp_path / "run", "--json")
    assert json.loads(out)["progress"]["draws"] == {"done": 60, "of": 60}


def test_show_of_an_unfinished_run_says_how_far_and_what_to_do(run, tmp_path):
    spec = {"nbeta_per_chain": [1.0, 1.0], "warmup": 10, "draws": 50, "reasons": {"step": "as asked"}}
    store = RunStore.create(tmp_path / "run", spec=spec, groups=[[0], [1]], seed=0, provenance={})
    for group in (0, 1):
        store.resume(group)
        store.append(group, "draws", {"excess": torch.ones(1, 20 + group).numpy()}, {"w": torch.ones(1).numpy()}, {})
    code, out, _ = run("show", tmp_path / "run")
    assert code == 0
    assert "running" in out
    assert "20 of 50 draws" in out
    assert "resumes it" in out


def test_show_of_no_run_exits_2(run, tmp_path):
    code, _, err = run("show", tmp_path)
    assert code == 2
    assert "manifest.json" in err


def test_explain_lists_all(run):
    code, out, _ = run("explain")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(FINDINGS)
    assert [kind["code"] for kind in json.loads(run("explain", "--json")[1])] == list(FINDINGS)


def test_explain_one(run):
    kind = FINDINGS["LLC102"]
    code, out, _ = run("explain", "llc102")
    assert code == 0
    assert all(text in out for text in (kind.title, kind.meaning, str(kind.remedy), kind.severity))
    assert json.loads(run("explain", "LLC102", "--json")[1])["remedy"] == str(kind.remedy)


def test_explain_names_the_nearest_codes(run):
    code, _, err = run("explain", "LLC192")
    assert code == 2
    assert "LLC119" in err


def test_doctor_works_without_extras(run, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    code, out, _ = run("doctor")
    assert code == 0
    assert "extra     plot: missing matplotlib" in out
    assert "data      fashion-mnist small: " in out
    found = json.loads(run("doctor", "--json")[1])
    assert found["extras"]["plot"] == {
        "present": False,
        "missing": ["matplotlib"],
        "purpose": found["extras"]["plot"]["purpose"],
    }
    assert found["packages"]["torch"]


@pytest.mark.heavy
def test_module_runs_and_works_in_processes(factory):
    words = ["llc", f"{factory}:landscape", *QUICK, "--workers", "2", "--json"]
    done = subprocess.run([sys.executable, "-m", "crunode", *words], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["name"] == "llc"


def test_missing_typer_is_named():
    code = "import sys; sys.modules['typer'] = None; from crunode.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install typer" in done.stderr
    assert "Traceback" not in done.stderr
