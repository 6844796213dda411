import json
import sys

import pytest

from crunode.core.result import Estimate
from crunode.store.run_store import RunStore, save_estimate

QUICK = ["nbeta=wbic", "kernel=HMC", "step=0.01", "leaps=4", "precision=5.0", "chains=2", "draws=30", "warmup=10"]


def stored(folder, value, ok=True):
    RunStore.create(folder, spec={}, groups=[[0]], seed=0, provenance={})
    save_estimate(folder, Estimate("llc", value if ok else float("nan"), se=0.3, systematic=0.4))
    return folder


def test_the_number_is_the_one_that_the_commands_print(run, tmp_path, monkeypatch):
    name = f"reporting_{tmp_path.name}"
    source = (
        "from crunode.examples.toys import reduced_rank\ndef landscape():\n    return reduced_rank(3, 2, 3, 1, n=200)\n"
    )
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = [word for pair in QUICK for word in ("--set", pair)]
    code, printed, _ = run("llc", f"{name}:landscape", *words, "--store", "a")
    number = printed.splitlines()[0].partition(" | ")[0]
    assert number.startswith("llc ")
    assert number in run("show", "a")[1]
    found = run("report", "a", "-o", "out.html")
    assert found[0] == code
    assert number in found[1]
    assert f"<strong>{number.replace('llc ', 'llc = ', 1)}</strong>" in (tmp_path / "out.html").read_text(
        encoding="utf-8"
    )


def test_several_folders(run, tmp_path):
    one, other = stored(tmp_path / "a", 2.0), stored(tmp_path / "b", 3.0)
    code, out, err = run("report", one, other, "-o", tmp_path / "deep" / "out.html")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == ["a  llc 2.00 ± 0.3 mc ± 0.4 sys | ok", "b  llc 3.00 ± 0.3 mc ± 0.4 sys | ok"]
    text = (tmp_path / "deep" / "out.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "+1.41" in text


def test_json_and_exit_codes(run, tmp_path):
    stored(tmp_path / "runs" / "a", 2.0)
    stored(tmp_path / "runs" / "b", 2.0, ok=False)
    code, out, _ = run("report", tmp_path / "runs", "-o", tmp_path / "out.html", "--json")
    found = json.loads(out)
    assert code == 1
    assert found["bytes"] == (tmp_path / "out.html").stat().st_size
    assert [(r["name"], r["ok"]) for r in found["runs"]] == [("runs/a", True), ("runs/b", False)]
    assert found["runs"][0]["answer"] == "llc 2.00 ± 0.3 mc ± 0.4 sys"


@pytest.mark.parametrize("words", [["none", "-o", "out.html"], ["a", "-o", "out.txt"], ["a"], ["-o", "out.html"]])
def test_wrong_usage(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "a", 2.0)
    code, out, err = run("report", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert not (tmp_path / "out.html").exists()
