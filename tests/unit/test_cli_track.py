import json
import sys
import textwrap

import pytest
import torch

from crunode.training.checkpoints import save_checkpoint


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The name of a factory in the current folder, which has checkpoints of steps 0, 10, ..., 70 too."""
    name = f"tracking_{tmp_path.name}"
    text = """
        import torch
        import crunode as cr

        def model():
            return torch.nn.Linear(2, 1)

        def landscape():
            print("chatter")
            return cr.Landscape(model(), (torch.eye(2), torch.zeros(2, 1)), "gaussian")

        def height(land):
            return cr.Estimate("height", float(land.center[0]), se=0.1)

        def broken(land):
            raise ValueError("not today")
        """
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    net = torch.nn.Linear(2, 1)
    for step in range(0, 80, 10):
        with torch.no_grad():
            net.weight.fill_(8.0 if step < 40 else 3.0)
        save_checkpoint(tmp_path / "kept", step, net)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_table_changes_and_picture(run, target, tmp_path):
    code, out, err = run("track", f"{target}:landscape", "kept", "--probe", f"{target}:height", "--plot", "t.png")
    assert (code, err) == (0, "")
    assert "height: 1 change in 8 visits (level)" in out
    assert "between steps 30 and 40" in out
    assert (tmp_path / "t.png").stat().st_size > 5000


def test_json_store_and_failures(run, target):
    words = [
        "track",
        f"{target}:landscape",
        "kept",
        "--probe",
        "trace",
        "--probe",
        f"{target}:broken",
        "--at",
        0,
        "--at",
        50,
    ]
    code, out, _ = run(*words, "--store", "visits", "--json")
    found = json.loads(out)
    assert code == 1
    assert [visit["step"] for visit in found["visits"]] == [0, 50]
    # The mean over two examples of (w·x + b)²/2 has the trace (1 + 1 + 2)/2.
    assert [visit["estimates"]["trace"]["value"] for visit in found["visits"]] == pytest.approx([2.0, 2.0])
    assert found["visits"][0]["estimates"]["broken"]["value"] is None
    code, again, _ = run(*words, "--store", "visits", "--json")
    assert json.loads(again) == found
    code, out, _ = run(*words, "--store", "visits", "--json", "--seed", 3)
    assert code == 2
    assert "seed: stored 0, asked 3" in json.loads(out)["error"]["message"]


def test_wrong_words(run, target, tmp_path):
    base = ["track", f"{target}:landscape", "kept"]
    for words, message in (
        (["--probe", "lcl"], "expected a probe as llc, trace"),
        (["--probe", f"{target}:nothing"], "could not import the probe"),
        (["--probe", f"{target}:torch"], "expected a function"),
        (["--probe", "trace", "--set", "chains=2"], "expected settings with --probe llc"),
        (["--probe", "trace", "--probe", "trace"], "each probe once"),
        (["--probe", "trace", "--plot", "t.xls"], "expected a picture"),
    ):
        code, _, err = run(*base, *words)
        assert code == 2
        assert message in err
    assert run("track", f"{target}:landscape", "nowhere", "--probe", "trace")[0] == 2
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    code, _, err = run(*base, "--probe", "trace")
    assert code == 2
    assert "notes.txt is no file of a checkpoint" in err
    code, out, _ = run(*base, "--probe", "trace", "--skip-damaged")
    assert code == 0
    assert "TRACK902" in out
