"""Provenance is that of the library itself: its own repository or installation, never the place where it is used."""

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

import crunode
from crunode.core import origin
from crunode.core.origin import Source, described, merged, provenance, source_of
from crunode.store.run_numbers import flat_settings

OWN = Path(crunode.__file__).resolve().parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="makes repositories with git")


@pytest.fixture(autouse=True)
def _plain_git(monkeypatch, tmp_path):
    """No settings of the machine: who commits, signatures, templates."""
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def package(folder):
    """A package in a folder of sources."""
    home = folder / "src" / "crunode"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    return home


def commit(folder):
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def without_git(monkeypatch, tmp_path):
    def hide():
        monkeypatch.setenv("PATH", str(tmp_path / "no programs"))

    return hide


@pytest.fixture
def fresh():
    """Provenance as a new process would find it."""
    origin._settled.cache_clear()
    yield
    origin._settled.cache_clear()


@needs_git
def test_repository_that_tracks_the_package(tmp_path):
    home = package(tmp_path)
    head = commit(tmp_path)
    assert source_of(home) == Source(head, False)
    (home.parent / "notes.txt").touch()
    (home / "table.txt").touch()
    (tmp_path / "README.md").touch()
    assert source_of(home) == Source(head, False)
    (home / "new.py").touch()
    assert source_of(home) == Source(head, True)
    (home / "new.py").unlink()
    (home / "__init__.py").write_text("changed = 1\n")
    assert source_of(home) == Source(head, True)


@needs_git
def test_changes_of_packages_beside_it_count(tmp_path):
    home = package(tmp_path)
    head = commit(tmp_path)
    (tmp_path / "src" / "crunode_papers").mkdir()
    (tmp_path / "src" / "crunode_papers" / "one.py").touch()
    assert source_of(home) == Source(head, True)


@needs_git
@pytest.mark.parametrize("ignored", [True, False])
def test_repository_that_has_the_package_as_a_foreign_folder(tmp_path, ignored, without_git):
    if ignored:
        (tmp_path / ".gitignore").write_text("/.venv/\n")
    commit(tmp_path)
    home = package(tmp_path / ".venv")
    assert source_of(home) == Source()
    without_git()
    assert source_of(home) == Source()


@needs_git
def test_without_git_the_commit_is_read_from_the_files(tmp_path, without_git):
    home = package(tmp_path / "loose")
    loose = commit(tmp_path / "loose")
    shutil.copytree(tmp_path / "loose", tmp_path / "packed")
    git(tmp_path / "packed", "pack-refs", "--all")
    shutil.copytree(tmp_path / "loose", tmp_path / "detached")
    git(tmp_path / "detached", "checkout", "-q", "--detach")
    git(tmp_path / "loose", "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "-q", "--allow-empty", "-m", "two")
    side = git(tmp_path / "side", "rev-parse", "HEAD")
    assert source_of(tmp_path / "side/src/crunode") == Source(side, False)
    without_git()
    assert source_of(home) == Source(loose)
    assert source_of(tmp_path / "packed/src/crunode") == Source(loose)
    assert source_of(tmp_path / "detached/src/crunode") == Source(loose)
    assert source_of(tmp_path / "side/src/crunode") == Source(side)


@needs_git
def test_repository_without_a_commit(tmp_path, without_git):
    home = package(tmp_path)
    git(tmp_path, "init", "-q")
    assert source_of(home) == Source()
    git(tmp_path, "add", "-A")
    assert source_of(home) == Source(None, True)
    without_git()
    assert source_of(home) == Source()


@needs_git
def test_another_repository_in_the_environment_is_not_asked(tmp_path, monkeypatch):
    home = package(tmp_path / "own")
    head = commit(tmp_path / "own")
    (tmp_path / "other").mkdir()
    assert commit(tmp_path / "other") != head
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert source_of(home) == Source(head, False)


def test_installation_that_notes_its_commit(tmp_path, monkeypatch):
    home = package(tmp_path)
    notes = home.parent / "crunode-0.1.0.dist-info"
    notes.mkdir()
    (notes / "METADATA").write_text("Metadata-Version: 2.1\nName: crunode\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(home.parent)
    assert source_of(home) == Source()
    vcs = {"vcs": "git", "commit_id": "abc", "requested_revision": "main"}
    (notes / "direct_url.json").write_text(json.dumps({"url": "https://example.org/a.git", "vcs_info": vcs}))
    assert source_of(home) == Source("abc", None)
    assert source_of(package(tmp_path / "copy")) == Source(), "the notes are of other files"
    (notes / "direct_url.json").write_text("[")
    assert source_of(home) == Source()


def test_library_in_a_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        for path in [*OWN.glob("*.py"), *OWN.glob("core/*.py")]:
            archive.write(path, Path("crunode") / path.relative_to(OWN))
    words = "from crunode.core import origin; from pathlib import Path; print(origin.__file__)\n"
    words += "print(origin.source_of(Path(origin.__file__).parents[1]))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "library.zip")}
    command = [sys.executable, "-c", words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    file, found = done.stdout.splitlines()
    assert file.startswith(str(tmp_path / "library.zip"))
    assert found == "Source(commit=None, changed=None)"


@needs_git
def test_repository_around_the_working_directory_is_never_claimed(tmp_path, monkeypatch, fresh):
    package(tmp_path)
    other = commit(tmp_path)
    before = source_of(OWN)
    monkeypatch.chdir(tmp_path / "src")
    found = provenance()
    assert found["git"] != other
    assert (found["git"], found["changed"]) == (before.commit, before.changed)


@pytest.mark.skipif(os.name == "nt", reason="a directory in use cannot be removed there")
def test_working_directory_that_is_gone(tmp_path, monkeypatch, fresh):
    before = source_of(OWN)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert provenance()["git"] == before.commit


def test_what_it_says(monkeypatch, fresh):
    asked = []
    monkeypatch.setattr(origin, "source_of", lambda folder: asked.append(folder) or Source("abc", True))
    first = provenance()
    assert (first["git"], first["changed"], first["crunode"]) == ("abc", True, crunode.__version__)
    assert first["torch"] == str(torch.__version__)
    assert str(torch.version.git_version)[:12] in first["torch_build"]
    assert json.loads(json.dumps(first)) == first
    first["git"] = "mine"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        second = provenance()
    finally:
        torch.set_num_threads(threads)
    assert (second["git"], second["threads"] - first["threads"]) == ("abc", 1)
    assert asked == [OWN], "asked once in the life of a process"


def test_asking_again_costs_nothing():
    provenance()
    start = time.process_time()
    for _ in range(100):
        provenance()
    assert time.process_time() - start < 0.05


def test_merged_never_claims_one_commit_for_all():
    old, new = {"git": "a", "torch": "2.6"}, {"git": "b", "changed": False, "torch": "2.6"}
    assert merged([old, new, new]) == {"git": ["a", "b"], "torch": "2.6", "changed": [None, False]}
    assert merged([merged([old, new]), new]) == merged([old, new])
    assert merged([new, new]) == new
    assert merged([{}, new])["git"] == [None, "b"]
    assert merged([]) == {}


def test_words_and_pages_have_all_of_it():
    both = merged([{"git": "a", "changed": True}, {"git": "b"}])
    assert described(both) == "git a and b, changed yes and not known"
    assert flat_settings(both) == {"git": '["a","b"]', "changed": "[true,null]"}
