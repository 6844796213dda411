"""Golden runs: what is compared, what is said of it, and what is refused."""

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import crunode as cr

BENCH = Path(__file__).parents[2] / "bench"
TREE = """
import json, sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps({"a": {"x": (VALUE).hex()}, **MORE}))
"""


@pytest.fixture(autouse=True)
def _bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ("golden", "golden_lines", "golden_calls")]:
        del sys.modules[name]


@pytest.fixture
def golden(_bench):
    import golden

    return golden


@pytest.fixture
def lines(_bench):
    from golden_lines import lines

    return lambda thing: dict(lines(thing))


@pytest.fixture
def repo(tmp_path):
    """A repository whose first commit has no golden file, its second one has, and its tree says what a test wants."""
    root = tmp_path / "repo"
    (root / "bench").mkdir(parents=True)

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(root), *identity, *words], check=True, capture_output=True)

    def write(value, more=None):
        text = TREE.replace("VALUE", repr(value)).replace("MORE", repr(more or {}))
        (root / "bench/golden.py").write_text(text)

    git("init")
    (root / "file").write_text("text")
    git("add", "-A")
    git("commit", "-m", "one")
    git("tag", "without")
    write(1.0)
    git("add", "-A")
    git("commit", "-m", "two")
    return root, write


def test_lines_keep_every_bit(lines):
    small, next_to = lines({"x": 0.1}), lines({"x": float(np.nextafter(0.1, 1))})
    assert small == {"x": (0.1).hex()}
    assert small != next_to
    large = torch.linspace(0, 1, 50)
    other = large.clone()
    other[7] = torch.nextafter(other[7], torch.tensor(2.0))
    assert lines(large) == lines(large.numpy())
    assert lines(large) != lines(other)
    assert lines([1, True, None, Fraction(1, 3), float("nan"), 1j]) == {
        "0": "1",
        "1": "True",
        "2": "None",
        "3": "1/3",
        "4": "nan",
        "5": "0x0.0p+0 0x1.0000000000000p+0",
    }


def test_lines_leave_out_identities_times_paths_and_prose(lines):
    estimate = cr.Estimate(
        "llc",
        1.5,
        se=0.1,
        findings=(cr.Finding.of("MC202", "ESS 40"),),
        spec={"landscape": "ab" * 32, "why": "because", "chains": 2, "words": "two words", "took_seconds": 3.0},
        provenance={"git": "1234"},
        diagnostics={"cost": {"gradients": 40.0}},
    )
    found = lines(estimate)
    assert found["findings.0"] == "MC202 warning"
    assert found["diagnostics.cost.gradients"] == (40.0).hex()
    assert [name for name in found if name.startswith(("spec", "provenance"))] == ["spec.chains"]


def test_masks(golden):
    from golden_lines import error_line, masked

    assert (
        masked("x of /tmp/a/b.txt in 0.3 s, 2026-11-19 20:42:35 UTC, 12.1 kB")
        == "x of <path> in <time>, <time>, <size>"
    )
    assert masked("0.8158820001234567 deadbeefdeadbeef0") == "0.8158820001234567 <hash>"
    assert error_line(ValueError("no /a/b")) == "ValueError: no <path>"


def test_comparison(golden):
    old = {"same": {"a": "1"}, "changed": {"x": (1.0).hex(), "y": "1"}, "gone": {}}
    new = {"same": {"a": "1"}, "changed": {"x": (1.5).hex(), "z": "2"}, "fresh": {}}
    changed, gone, fresh = golden.compare(old, new)
    text = "\n".join(changed)
    assert changed[0] == "differs: changed (3 of 3 lines)"
    assert "relative 0.33, 1.0 -> 1.5" in text
    assert "(nothing)" in text
    assert (gone, fresh) == (["gone: gone"], ["new: fresh"])
    assert golden.compare(old, old) == ([], [], [])


@pytest.mark.parametrize(
    ("value", "more", "code", "said"),
    [
        (1.0, {}, 0, "1 calls: 0 differ, 0 gone, 0 new"),
        (1.0, {"b": {}}, 0, "new: b"),
        (1.0000000000000002, {}, 1, "differs: a"),
    ],
)
def test_another_commit(golden, repo, capfd, value, more, code, said):
    root, write = repo
    write(value, more)
    assert golden.main(["--base", "HEAD"], root) == code
    assert said in capfd.readouterr().out
    kept = subprocess.run(["git", "-C", str(root), "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(kept.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("base", "said"), [("nowhere", "does not exist"), ("", "BASE=<commit>"), ("without", "none to run")]
)
def test_no_such_base(golden, repo, capfd, base, said):
    assert golden.main(["--base", base], repo[0]) == 2
    assert said in capfd.readouterr().err


def test_a_tree_that_does_not_run(golden, repo, capfd):
    root, _ = repo
    (root / "bench/golden.py").write_text("raise SystemExit(3)")
    assert golden.main(["--base", "HEAD"], root) == 2
    assert "exit code 3" in capfd.readouterr().err


def test_calls_have_names_of_their_own(golden):
    from golden_calls import all_calls, call

    calls = all_calls()
    assert len(calls) >= 60
    with pytest.raises(ValueError, match="twice"):
        call("bounds")(lambda: 0)


def test_a_call_that_raises_or_ends_its_process_does_not_end_the_run(golden):
    calls = {"two": lambda: 2.0, "wrong": lambda: 1 / 0, "ended": lambda: os._exit(3)}
    assert golden.run_calls(calls, 2) == {
        "two": {"": (2.0).hex()},
        "wrong": {"raised": "ZeroDivisionError: division by zero"},
        "ended": {"raised": "process ended with 3"},
    }
