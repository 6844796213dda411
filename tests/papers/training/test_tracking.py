"""Trackers in the training loop: hooks by step and by epoch, a killed training, and checkpoints read afterwards."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.core.result import Estimate
from crunode.store.documents import dumps
from crunode.training.schedules import every
from crunode.training.tracker import Tracker, track
from crunode_papers.training.loop import train

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def probe(land, seed):
    return Estimate("probe", float(land.loss()), se=0.0, seed=seed)


def tracker(at):
    return Tracker(cr.Landscape(network(), (X, Y), "gaussian"), {"probe": probe}, at=at, seed=4)


def text(trajectory):
    return dumps(trajectory.to_dict())


def test_hooks_of_train_by_step_and_by_epoch():
    def run(followed, **hooks):
        net = network()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        train(net, (X, Y), "gaussian", optimizer, epochs=4, batch=6, seed=1, **hooks)
        return followed.trajectory

    one, other = tracker(every(4)), tracker(every(4))
    by_step = run(one, on_step=lambda step, model, _: one.visit(step, model))
    by_epoch = run(other, on_epoch=lambda epoch, model, row: other.visit(row["step"], model))
    assert by_step.steps == (4, 8, 12, 16)
    assert text(by_step) == text(by_epoch)


def test_checkpoints_read_afterwards_give_what_was_seen_along_the_way(tmp_path):
    net, followed = network(), tracker([3, 9, 12])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = {"on_step": lambda step, model, _: followed.visit(step, model)}
    train(net, (X, Y), "gaussian", optimizer, epochs=4, batch=8, seed=2, store=tmp_path / "training", **watch)
    assert followed.trajectory.steps == (3, 9, 12)
    land = cr.Landscape(network(), (X, Y), "gaussian")
    for folder in (tmp_path / "training", tmp_path / "training" / "checkpoints"):
        assert text(track(land, folder, {"probe": probe}, at=[3, 9, 12], seed=4)) == text(followed.trajectory)
    assert track(land, tmp_path / "training", {"probe": probe}).steps == (0, 3, 6, 9, 12)


KILLED = """
    import os, signal
    import numpy as np
    import torch
    from torch import nn
    import crunode as cr
    from crunode_papers.training.loop import train
    from crunode.training.schedules import every
    from crunode.training.tracker import Tracker

    CALLS = []
    X = torch.linspace(-1, 1, 24).reshape(-1, 2)
    Y = X.sum(1, keepdim=True).tanh()

    def noisy(land, seed):
        CALLS.append(1)
        if len(CALLS) == 5 and "CRUNODE_TEST_KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return cr.Estimate("noisy", float(land.loss()) + float(np.random.default_rng(seed).normal()), se=1.0)

    def run(home):
        torch.manual_seed(0)
        net = nn.Linear(2, 1)
        tracker = Tracker(cr.Landscape(net, (X, Y), "gaussian"), {"noisy": noisy}, at=every(4), store=home + "/visits")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        train(net, (X, Y), "gaussian", optimizer, epochs=12, batch=4, seed=2, store=home + "/training", every=2,
              on_step=lambda step, model, loss: tracker.visit(step, model))
        return tracker.trajectory

    """


@pytest.mark.heavy
def test_a_training_killed_and_resumed_gives_the_same_trajectory(tmp_path, monkeypatch):
    (tmp_path / "killed_training.py").write_text(textwrap.dedent(KILLED))
    monkeypatch.syspath_prepend(tmp_path)
    import killed_training

    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from killed_training import run; run(sys.argv[1])"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CRUNODE_TEST_KILL": "1"}
    words = [sys.executable, "-c", command, str(tmp_path / "killed")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    kept = sorted(path.name for path in (tmp_path / "killed" / "visits" / "visits").glob("*.json"))
    assert kept == [f"step-{step:08d}.json" for step in (4, 8, 12, 16)]  # all but the one in progress
    resumed = killed_training.run(str(tmp_path / "killed"))
    whole = killed_training.run(str(tmp_path / "whole"))
    assert text(resumed) == text(whole)
    assert whole.steps == tuple(range(4, 37, 4))
