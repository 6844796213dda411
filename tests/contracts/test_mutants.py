"""The mechanism of `make mutants` on a tree of its own: what it draws, what it refuses, what it takes as noticed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
LAW = '''"""A law."""
import os
WIDE = 4.0
def area(width, height, scale=1.0):
    if width < 0:
        raise ValueError(f"{width - 1}")
    total = width * height**2 - scale
    return max(total, WIDE)
def spread(x, rows):
    return x.mean(axis=0) + area(len(x), rows)
def __repr__(self):
    return 1 + 2
'''


@pytest.fixture(scope="module")
def sites():
    spec = importlib.util.spec_from_file_location("mutant_sites", BENCH / "mutant_sites.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tree(folder, law=LAW, test="def test_nothing():\n    pass\n"):
    empty = dict.fromkeys(("src/crunode/__init__.py", "src/crunode/spectra/__init__.py", "pytest.ini"), "")
    for name, text in {**empty, "src/crunode/spectra/law.py": law, "tests/test_law.py": test}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "tree"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_operators_do_what_they_say(sites):
    found = {(m.operator, m.old, m.new) for m in sites.Sites("src/crunode/spectra/law.py", LAW.encode()).found.values()}
    assert found >= {
        ("constant", "4.0", "8.0"),
        ("default", "1.0", "2.0"),
        ("operator", "width * height**2", "(width / height ** 2)"),
        ("term", "width * height**2 - scale", "(width * height ** 2)"),
        ("exponent", "height**2", "(height ** (2 + 1))"),
        ("sign", "width * height**2 - scale", "(-(width * height ** 2 - scale))"),
        ("extremum", "max(total, WIDE)", "min(total, WIDE)"),
        ("axis", "x.mean(axis=0)", "x.mean(axis=1)"),
    }
    assert not any("width < 0" in old or "width - 1" in old or old == "1 + 2" for _, old, _ in found)


def test_a_mutant_changes_what_it_names(sites):
    for m in sites.Sites("src/crunode/spectra/law.py", LAW.encode()).found.values():
        assert LAW.encode()[m.start : m.end].decode() == m.old
        compile(LAW.encode()[: m.start] + m.new.encode() + LAW.encode()[m.end :], m.file, "exec")
        assert LAW.splitlines()[m.line - 1].count(m.old.splitlines()[0])


def test_a_draw_is_by_seed_and_stays_when_lines_move(sites, tmp_path):
    path = tmp_path / "src/crunode/spectra/law.py"
    path.parent.mkdir(parents=True)
    path.write_text(LAW)
    first, again, other = (sites.draw(tmp_path, seed, 25) for seed in (1, 1, 2))
    assert first == again != other
    path.write_text("\n\n" + LAW)
    assert [m[:5] for m in sites.draw(tmp_path, 1, 25)] == [m[:5] for m in first]
    assert [m.line for m in sites.draw(tmp_path, 1, 25)] == [m.line + 2 for m in first]


def test_uncommitted_changes_are_refused(tmp_path):
    (_tree(tmp_path) / "tests/test_law.py").write_text("")
    found = subprocess.run([sys.executable, BENCH / "mutants.py", "--root", tmp_path], capture_output=True, text=True)
    assert found.returncode == 2
    assert "commit or stash" in found.stderr


ENDS = """
def law(how):
    import os, signal, subprocess, sys, time
    if how == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], start_new_session=True)
        time.sleep(99)
    if how == "memory":
        return len(bytearray(4 << 30))
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1 if how == "wrong" else 0
law("right")
"""
TRY = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pathlib, pytest, mutants
tree, start = pathlib.Path(sys.argv[2]) / "tree", open("tree/src/crunode/spectra/law.py").read().rindex("right")
for new in ("right", "hang", "memory", "die", "wrong"):
    m = mutants.Mutant("src/crunode/spectra/law.py", "", "right", new, 0, "", start, start + 5, 1, ())
    tests = {"tests/test_law.py::test_law": 0.0, "tests/test_law.py::test_gone": 0.0}
    print(json.dumps(mutants.attempt(tree, m, tests, memory=2 << 30, grace=1.0)))
"""


@pytest.mark.heavy
def test_hang_memory_and_death_are_noticed(tmp_path):
    law = ENDS.replace('law("right")', "FOUND = 'right'")
    test = "from crunode.spectra.law import FOUND, law\ndef test_law():\n    assert law(FOUND) == 0\n"
    _tree(tmp_path / "tree", law, test)
    command = [sys.executable, "-c", TRY, BENCH, tmp_path]
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=plain).stdout
    ends = [json.loads(line) for line in found.splitlines()]
    assert [end["status"] for end in ends] == ["survived", "timeout", "failed", "crash", "failed"]
    assert all(end["by"] == "tests/test_law.py::test_law" for end in ends[1:])
    assert max(end["seconds"] for end in ends) < 6
    assert (tmp_path / "tree/src/crunode/spectra/law.py").read_text() == law
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/environ") if _readable(path)]
    assert not any(f"{tmp_path}/tree/src".encode() in environ for environ in running)


def _readable(path):
    try:
        return bool(path.read_bytes())
    except OSError:
        return False
