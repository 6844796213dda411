"""The census of the sources: what it counts, and that nothing grows without a reason."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CENSUS = Path(__file__).parents[2] / "bench" / "census.py"
ALONE = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="compares with what git knows")


def census(root, *words):
    given = [sys.executable, str(CENSUS), "--root", str(root), "--no-mypy", *words]
    return subprocess.run(given, capture_output=True, text=True, check=False, env=ALONE)


def listed(root, figure):
    return census(root, "--list", figure).stdout.splitlines()


def commit(root, words="more"):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", words]):
        subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, env=ALONE)


@pytest.fixture
def tree(tmp_path):
    """Two packages that use one another, with something of everything."""
    long = "def long():\n" + '    """A docstring\n    of two lines."""\n' + "    x = 1\n\n    # a comment\n" * 60
    files = {
        "__init__.py": '"""Doc."""\n\nif TYPE_CHECKING:\n    from a import one as one\n    from a import two as two\n',
        "a/__init__.py": "",
        "a/one.py": long + "\n\n_A, B = 1, 2\nlower = 3\n\n\ndef _secret(): ...\n",
        "a/two.py": "from crunode.a.one import _secret\n\n\nclass Thing:\n    def __init__(self):\n"
        "        self._kept = 1\n        self._kept\n\n    def _method(self, a, b, c, d, e, f, g, h, /, *, i): ...\n",
        "b/__init__.py": "",
        "b/three.py": '"""Doc."""\n\nfrom typing import TYPE_CHECKING\n\nfrom crunode.a import one, two\n\n'
        "if TYPE_CHECKING:\n    import crunode.b.four\n\n"
        "x = two.Thing()\nx._kept, x._replace(), x._modules, one._secret\n",
        "b/four.py": "import crunode.b.five\nfrom . import three\n",
        "b/five.py": '"""Doc."""\n# comment\n\n\ndef f():\n    import crunode.b.four\n    return """\n\n"""\n',
    }
    for name, text in files.items():
        path = tmp_path / "src" / "crunode" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert census(tmp_path, "--write").returncode == 0
    return tmp_path


@pytest.mark.heavy
def test_figures(tree):
    at = "src/crunode"
    assert listed(tree, "code_lines") == [
        f"{at}/__init__.py: 3",
        f"{at}/a/__init__.py: 0",
        f"{at}/a/one.py: 64",
        f"{at}/a/two.py: 6",
        f"{at}/b/__init__.py: 0",
        f"{at}/b/five.py: 5",
        f"{at}/b/four.py: 2",
        f"{at}/b/three.py: 6",
    ]
    assert listed(tree, "long_functions") == [f"{at}/a/one.py:1 long: 61"]
    assert listed(tree, "wide_functions") == [f"{at}/a/two.py:9 _method: 9"]
    assert listed(tree, "constants") == [f"{at}/a/one.py:186 B", f"{at}/a/one.py:186 _A"]
    private = [f"{at}/a/two.py:1 _secret", f"{at}/b/three.py:11 _kept", f"{at}/b/three.py:11 _secret"]
    assert listed(tree, "private_reads") == private
    assert listed(tree, "package_edges") == ["crunode.b -> crunode.a"]
    assert listed(tree, "crossing_imports") == [f"{at}/b/three.py:5 crunode.a"]
    assert listed(tree, "cyclic_modules") == []
    assert listed(tree, "lazily_cyclic_modules") == ["crunode.b.five", "crunode.b.four"]
    assert listed(tree, "public_names") == [f"{at}/__init__.py:3: 2"]
    (tree / at / "b/three.py").write_text("from crunode.b import four\n")
    assert listed(tree, "cyclic_modules") == ["crunode.b.four", "crunode.b.three"]


def test_a_function_of_60_lines_and_a_file_of_400_may_be(tree):
    one = tree / "src/crunode/a/one.py"
    one.write_text("def long():\n" + "    x = 1\n" * 59 + "\n" * 340)
    assert listed(tree, "long_functions") == listed(tree, "long_files") == []
    one.write_text(one.read_text() + "\n")
    assert listed(tree, "long_files") == ["src/crunode/a/one.py: 401"]


@pytest.mark.heavy
@needs_git
def test_growth_fails_and_a_reason_lets_it_pass(tree):
    commit(tree)
    (tree / "src/crunode/b/six.py").write_text("x = 1\n")
    found = census(tree, "--check")
    assert found.returncode == 1
    assert "modules of crunode.b: expected at most 4, got 5" in found.stderr
    assert census(tree, "--raise", 'a "sixth" module').returncode == 0
    held = tree / "census.toml"
    entry = '{ figure = "modules", package = "crunode.b", from = 4, to = 5, reason = "a \\"sixth\\" module" },'
    assert entry in held.read_text()
    assert census(tree, "--check").returncode == 0
    held.write_text(held.read_text().replace(entry, ""))
    silent = census(tree, "--check")
    assert silent.returncode == 1
    assert 'add { figure = "modules", package = "crunode.b", from = 4, to = 5, reason = "..." }' in silent.stderr
    held.write_text(held.read_text().replace("raised = [", f"raised = [{entry}"))
    commit(tree)
    assert census(tree, "--check").returncode == 0


@needs_git
def test_a_raise_without_a_reason_is_found_after_its_commit(tree):
    commit(tree)
    held = tree / "census.toml"
    held.write_text(held.read_text().replace('all = 2\n"crunode.a" = 2', 'all = 3\n"crunode.a" = 3'))
    commit(tree)
    assert census(tree, "--check").returncode == 1


def test_less_passes_and_is_written_on_request_only(tree):
    held = tree / "census.toml"
    before = held.read_text()
    (tree / "src/crunode/b/five.py").unlink()
    assert census(tree, "--check").returncode == 0
    assert held.read_text() == before
    assert census(tree, "--write").returncode == 0
    assert '"crunode.b" = 3' in held.read_text()
    (tree / "src/crunode/b/five.py").write_text("")
    assert census(tree, "--write").returncode == 1, "what is larger is not written"
    assert '"crunode.b" = 3' in held.read_text()


def test_what_is_too_large_is_named_with_a_reason_or_split(tree):
    held, place = tree / "census.toml", "src/crunode/b/seven.py wide"
    (tree / "src/crunode/b/seven.py").write_text("def wide(a, b, c, d, e, f, g, h, i):\n    return a\n")
    assert census(tree, "--raise", "a wide function").returncode == 0
    (others,) = listed(tree, "long_files") or [""]
    entries = [(place, "an interface of others"), *([(others.rpartition(":")[0], "later")] if others else [])]
    later = ", ".join(f'{{ place = "{name}", reason = "{why}" }}' for name, why in entries)
    plain = held.read_text()
    head = f'later = [{{ place = "src/none.py", reason = "gone" }}, {later}]\n'
    held.write_text(head + plain)
    assert "src/none.py under later in census.toml: it is not too large" in census(tree, "--check").stderr
    (tree / "src/crunode/b/eight.py").write_text("def wider(a, b, c, d, e, f, g, h, i):\n    return a\n")
    assert "src/crunode/b/eight.py wider: expected none of wide_functions" in census(tree, "--check").stderr


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[code_lines", "as TOML"),
        ('[code_lines]\n"crunode" = "7"\n', "whole numbers"),
        ("[beauty]\nall = 1\n", "beauty"),
        ('raised = [{ figure = "modules" }]\n', "figure, package, from, to, reason"),
        ('later = [{ place = "a" }]\n', "place, reason"),
    ],
)
def test_a_broken_file_is_told(tree, text, said):
    (tree / "census.toml").write_text(text)
    found = census(tree, "--check")
    assert (found.returncode, said in found.stderr) == (2, True), found.stderr


def test_sources_that_cannot_be_read_are_told(tree):
    (tree / "src/crunode/b/five.py").write_text("def\n")
    assert census(tree).returncode == 2
    assert census(tree, "--raise", " ").returncode == 2
    assert census(tree / "src").returncode == 2
