import importlib.util
import warnings

import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.errors import DiagnosticWarning, InputError, MissingExtra
from crunode.training.loggers import MLflowLogger, TensorBoardLogger, WandbLogger
from crunode.training.tracker import Tracker


def landscape():
    return Landscape.of_function(lambda w: w.square().sum(), torch.ones(2))


def probe(land):
    return Estimate("probe", float(land.loss()), se=0.5)


class Memory:
    def __init__(self, down=()):
        self.down, self.seen = set(down), []

    def log(self, step, numbers):
        if step in self.down:
            raise ConnectionError("no route")
        self.seen.append((step, dict(numbers)))


def test_every_visit_is_told():
    memory = Memory()
    tracker = Tracker(landscape(), {"size": probe}, at=[1, 3], loggers=[memory])
    for step in range(5):
        tracker.visit(step, torch.full((2,), float(step)))
    assert memory.seen == [
        (1, {"loss": 2.0, "size": 2.0, "size/se": 0.5, "size/ok": 1.0}),
        (3, {"loss": 18.0, "size": 18.0, "size/se": 0.5, "size/ok": 1.0}),
    ]


def test_a_logger_that_is_down_loses_nothing():
    class Flaky(Memory):
        def log(self, step, numbers):
            if len(tracker.trajectory) in (2, 3):  # down at two visits, back at the fourth
                raise ConnectionError("no route")
            super().log(step, numbers)

    flaky, steady, dead = Flaky(), Memory(), Memory(down=range(9))
    tracker = Tracker(landscape(), {"size": probe}, loggers=[flaky, dead, steady])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(5):
            tracker.visit(step, torch.full((2,), float(step)))
    assert [w.category for w in seen] == [DiagnosticWarning, DiagnosticWarning]  # one for each logger
    assert "Memory failed at step 0 (ConnectionError: no route)" in str(seen[0].message)
    assert tracker.trajectory.steps == tuple(range(5))
    assert flaky.seen == steady.seen
    assert [step for step, _ in steady.seen] == list(range(5))
    assert dead.seen == []


def test_numbers_that_are_not_finite_are_left_out():
    memory = Memory()
    tracker = Tracker(landscape(), {"bad": lambda land: 1 / 0}, loggers=[memory])
    with pytest.warns(DiagnosticWarning, match="failed"):
        tracker.visit(0, torch.ones(2))
    assert memory.seen == [(0, {"loss": 2.0, "bad/ok": 0.0})]


def test_what_the_services_are_told():
    told = []

    class Service:
        def add_scalar(self, name, value, step):
            told.append(("board", name, value, step))

        def flush(self):
            told.append("flush")

        def log(self, numbers):
            told.append(("wandb", numbers))

        def log_metrics(self, numbers, step):
            told.append(("mlflow", numbers, step))

    for kind in (TensorBoardLogger, WandbLogger, MLflowLogger):
        kind(Service()).log(7, {"llc": 1.5})
    assert told == [
        ("board", "llc", 1.5, 7),
        "flush",
        ("wandb", {"llc": 1.5, "crunode/step": 7}),
        ("mlflow", {"llc": 1.5}, 7),
    ]


@pytest.mark.parametrize(("kind", "package"), [(WandbLogger, "wandb"), (MLflowLogger, "mlflow")])
def test_missing_packages_are_named(kind, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*crunode\[track\]"):
        kind()


def test_tensorboard_missing_and_runs_not_begun(monkeypatch, tmp_path):
    modules = __import__("sys").modules
    monkeypatch.setitem(modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"crunode\[track\]"):
        TensorBoardLogger(tmp_path)
    monkeypatch.setitem(modules, "wandb", type(modules["sys"])("wandb"))
    modules["wandb"].run = None
    with pytest.raises(InputError, match=r"wandb\.init"):
        WandbLogger()


def test_real_tensorboard(tmp_path):
    if importlib.util.find_spec("tensorboard") is None:  # not asked for by a full test run
        pytest.skip("needs TensorBoard")
    TensorBoardLogger(tmp_path).log(3, {"llc": 1.5})
    assert list(tmp_path.glob("events.*"))
