import importlib.util
import json
import sys
import textwrap

import pytest

from crunode.core.result import Estimate
from crunode.store.catalog import Catalog
from crunode.store.run_store import RunStore, save_estimate

QUICK = ["nbeta=wbic", "kernel=HMC", "step=0.01", "leaps=4", "precision=5.0", "chains=2", "draws=30", "warmup=10"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    for k, name in enumerate(("a", "b", "c")):
        spec = {"kernel": {"name": "HMC", "step": 0.1 * (k + 1)}}
        RunStore.create(tmp_path / "runs" / name, spec=spec, groups=[[0]], seed=k, provenance={})
        save_estimate(tmp_path / "runs" / name, Estimate("llc", 2.0 + k, se=0.3, systematic=0.4))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def factory(tmp_path, monkeypatch):
    name = f"experiment_{tmp_path.name}"
    source = (
        "from crunode.examples.toys import reduced_rank\ndef landscape():\n    return reduced_rank(3, 2, 3, 1, n=200)\n"
    )
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_list_filters_and_prints_a_table(run, root):
    code, out, err = run("runs", "list", "--where", "kernel.step=0.2")
    assert (code, err) == (0, "")
    head, row = out.splitlines()
    assert head.split()[:3] == ["name", "kind", "subject"]
    assert row.split()[:9] == ["b", "draws", "llc", "running", "yes", "3", "±", "0.3", "±"]
    assert run("runs", "list", "--tag", "none")[1] == "no runs\n"


def test_list_json(run, root):
    code, out, _ = run("runs", "list", "--json", "--order", "value", "--descending", "--limit", 2)
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == ["c", "b"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [
        ["list", "--kind", "x"],
        ["list", "--where", "x"],
        ["list", "--where", "x=1"],
        ["list", "--since", "x"],
        ["list", "--root", "none"],
        ["show", "../runs/a"],
        ["tag", "a", "two words"],
        ["compare", "a"],
        ["delete", "a"],
        ["delete", "none", "--yes"],
    ],
)
def test_wrong_input_exits_2_and_says_why(run, root, words):
    code, out, err = run("runs", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: expected")
    code, out, _ = run("runs", *words, "--json")
    assert code == 2
    assert json.loads(out)["error"]["message"]
    assert Catalog(root).count() == 3


def test_show(run, root):
    code, out, _ = run("runs", "show", "b")
    assert code == 0
    assert "result     llc 3 ± 0.3 mc ± 0.4 sys" in out
    assert "setting    kernel.step = 0.2" in out
    found = json.loads(run("runs", "show", "b", "--json")[1])
    assert (found["value"], found["settings"]["kernel"]["step"], found["numbers"][0]["name"]) == (3.0, 0.2, "llc")


def test_show_exits_1_for_what_cannot_be_trusted(run, root):
    save_estimate(root / "b", Estimate("llc", float("nan"), se=0.1))
    assert run("runs", "show", "b")[0] == 1


def test_tag_and_untag(run, root):
    assert run("runs", "tag", "b", "best", "x")[:2] == (0, "b: best, x\n")
    assert (
        run("runs", "tag", "b", "x", "--remove", "--json")[1]
        == json.dumps({"name": "b", "tags": ["best"]}, indent=1) + "\n"
    )
    assert [row["name"] for row in json.loads(run("runs", "list", "--tag", "best", "--json")[1])] == ["b"]


def test_compare(run, root):
    code, out, _ = run("runs", "compare", "a", "c", "--json")
    assert code == 0
    assert json.loads(out)["rows"][1]["z"] == pytest.approx(2 / (0.5 * 2**0.5))
    assert "+2.828" in run("runs", "compare", "a", "c")[1]


def test_diff_exits_1_when_there_are_differences(run, root):
    assert run("runs", "diff", "a", "a")[:2] == (0, "same settings\n")
    code, out, _ = run("runs", "diff", "a", "b")
    assert (code, out) == (1, "seed: a 0, b 1\nsettings.kernel.step: a 0.1, b 0.2\n")


def test_delete_with_yes(run, root):
    assert run("runs", "delete", "a", "c", "--yes")[:2] == (0, "deleted a\ndeleted c\n")
    assert [p.name for p in sorted(root.iterdir()) if not p.name.startswith(".")] == ["b"]


def test_delete_asks(run, root, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: (_ for _ in ()).throw(__import__("typer").Abort()))
    assert run("runs", "delete", "a")[0] == 130
    assert (root / "a").exists()


def test_rebuild(run, root):
    assert run("runs", "rebuild")[:2] == (0, "3 runs, 3 read, 0 gone\n")
    (root / "app").mkdir()
    (root / "app" / "manifest.json").write_text("{}")
    assert run("runs", "rebuild")[0] == 1


def test_names_are_shown_escaped(run, root):
    (root / "a").rename(root / "a\x1b[31m\n<b>")
    out = run("runs", "list")[1] + run("runs", "show", "a\x1b[31m\n<b>")[1]
    assert "\x1b" not in out
    assert "a\\x1b[31m\\x0a<b>" in out


def test_rerun_of_llc_gives_the_same_number(run, factory, tmp_path):
    words = [word for pair in QUICK for word in ("--set", pair)]
    first = json.loads(run("llc", f"{factory}:landscape", *words, "--seed", 4, "--store", "runs/a", "--json")[1])
    code, out, err = run("rerun", "runs/a", "--store", "runs/b")
    assert (code, out) == (2, "")
    assert f"runs the code of {factory}:landscape" in err
    assert not (tmp_path / "runs" / "b").exists()
    code, out, err = run("rerun", "runs/a", "--store", "runs/b", "--yes", "--json")
    assert json.loads(out)["result"]["value"] == first["value"]
    assert code == (0 if first["ok"] else 1)
    assert f"crunode llc {factory}:landscape" in err
    catalog = Catalog(tmp_path / "runs")
    assert catalog.diff("a", "b") == []
    assert catalog.compare(["a", "b"]).rows[1].difference == 0.0
    assert run("rerun", "runs/b", "--store", "runs/a", "--yes")[0] == 2  # never into a folder that is there


def test_rerun_says_what_is_missing(run, root):
    code, _, err = run("rerun", "runs/a")
    assert code == 2
    assert "the landscape is missing" in err
    assert "expected a run folder" in run("rerun", "runs")[2]


def test_the_catalogue_needs_no_torch():
    assert importlib.util.find_spec("torch")
    code = "import sys, crunode.cli.runs_command, crunode.store.catalog; sys.exit('torch' in sys.modules)"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
