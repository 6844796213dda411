"""A run cut at every system call, by a kill or by a full disk, continues to the same bytes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crunode.errors import StoreError
from crunode.store import atomic, folder
from crunode.store import run_store as store
from crunode.store.run_store import RunStore

GROUPS = [[0, 2], [1]]
SPEC = {"nbeta_per_chain": [1.0, 1.0, 1.0]}
CHUNKS = ("warmup", "draws", "draws")
EFFECTS = ("open", "write", "fsync", "replace", "unlink", "mkdir")


class Killed(BaseException):
    """Ends a run as a kill does: no handler of errors sees it."""


class CutAt:
    """The module `os`, but the k-th call that touches the disk does `harm` first; a write is done by half."""

    def __init__(self, k, harm):
        self.left, self.harm = k, harm

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in EFFECTS:
            return real

        def call(*args, **options):
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                self.harm()
            return real(*args, **options)

        return call


def sample(path):
    """A chain that depends on all its past: x' = cos(x + noise(chain, step))."""
    with RunStore.create(path, spec=SPEC, groups=GROUPS, seed=0, provenance={}) as run:
        for group, chains in enumerate(run.groups):
            found = run.resume(group)
            state, meta = found or ({"x": np.zeros(len(chains))}, {"step": 0})
            for kind in CHUNKS[meta["step"] :]:
                noise = [np.random.default_rng([c, meta["step"]]).normal(size=2) for c in chains]
                one = np.cos(state["x"] + np.array(noise)[:, 0])
                two = np.cos(one + np.array(noise)[:, 1])
                state, meta = {"x": two}, {"step": meta["step"] + 1}
                run.append(group, kind, {"excess": np.stack([one, two], axis=1)}, state, meta)
        run.finish("complete")


def content(path):
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


def cut_everywhere(parent, harm, patch):
    """Yield the folder of a run cut at its k-th call, k = 1, 2, ... until the run gets through."""
    k = 0
    while True:
        k += 1
        proxy = CutAt(k, harm)
        with patch() as undoing:
            for module in (atomic, folder, store):
                undoing.setattr(module, "os", proxy)
            try:
                sample(parent / str(k))
                error = None
            except (Killed, StoreError) as raised:
                error = raised
        if proxy.left > 0:
            assert k > 100, "too few calls seen"
            return
        yield parent / str(k), error


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    """A kill loses nothing that was written, synced or not; only a power cut would."""
    with pytest.MonkeyPatch.context() as undoing:
        undoing.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "run"
    sample(path)
    return content(path)


def killed():
    raise Killed


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.heavy
@pytest.mark.parametrize("harm", [killed, no_space])
def test_cut_anywhere_resumes_to_the_same_bytes(tmp_path, reference, harm):
    for path, error in cut_everywhere(tmp_path, harm, pytest.MonkeyPatch.context):
        if harm is no_space and error is not None:
            assert "No space left" in str(error)
        if (path / "manifest.json").exists():
            arrays, _ = RunStore.open(path).read()  # readable at every moment
            assert all(np.isfinite(value).all() for value in arrays.values())
        sample(path)
        assert content(path) == reference


def test_cut_and_cut_again_while_resuming(tmp_path, reference):
    for k in (20, 45, 70):
        path = tmp_path / str(k)
        for _ in range(200):
            with pytest.MonkeyPatch.context() as undoing:
                for module in (atomic, folder, store):
                    undoing.setattr(module, "os", CutAt(k, killed))
                try:
                    sample(path)
                    break
                except Killed:
                    pass
        assert content(path) == reference


def test_full_disk_says_what_was_tried_and_what_to_do(tmp_path, monkeypatch):
    run = RunStore.create(tmp_path / "run", spec=SPEC, groups=GROUPS, seed=0, provenance={})
    run.resume(1)
    monkeypatch.setattr(atomic, "os", CutAt(4, no_space))
    with pytest.raises(StoreError, match=r"could not write .*g001-draws-00000.*bytes\): No space left.* Free space"):
        run.append(1, "draws", {"excess": np.ones((1, 2))}, {}, {})
    monkeypatch.undo()
    assert not list(run.folder.rglob("*.tmp"))
    with pytest.raises(StoreError, match=r"call resume\(1\)"):
        run.append(1, "draws", {"excess": np.ones((1, 2))}, {}, {})
    assert run.resume(1) is None
    assert run.read() == ({}, {})


def test_order_of_a_write(tmp_path, monkeypatch):
    calls = []

    class Recording:
        def __getattr__(self, name):
            if name in EFFECTS:
                calls.append(name)
            return getattr(os, name)

    monkeypatch.setattr(atomic, "os", Recording())
    atomic.write_bytes(tmp_path / "a", b"x")
    assert calls == ["open", "write", "fsync", "replace", "open", "fsync"]


SCRIPT = """
import os, signal, sys
from pathlib import Path
import importlib.util
spec = importlib.util.spec_from_file_location("crash", sys.argv[1])
crash = importlib.util.module_from_spec(spec)
spec.loader.exec_module(crash)
parent = Path(sys.argv[2])
os.fsync = lambda handle: None
crash.sample(parent / "reference")
reference = crash.content(parent / "reference")
kills = 0
while True:
    kills += 1
    path = parent / str(kills)
    child = os.fork()
    if child == 0:
        for module in (crash.atomic, crash.folder, crash.store):
            module.os = crash.CutAt(kills, lambda: os.kill(os.getpid(), signal.SIGKILL))
        crash.sample(path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    crash.sample(path)
    assert crash.content(path) == reference, path
print(kills)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_kill_minus_nine_anywhere(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, __file__, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
