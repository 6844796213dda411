import dataclasses

import numpy as np
import pytest
import torch

from crunode.errors import EstimationError, InputError
from crunode.training.checkpoints import list_checkpoints, load_checkpoint
from crunode_papers.grokking.batched import train_many
from crunode_papers.grokking.measures import grokking_times, severity
from crunode_papers.grokking.networks import QuadraticNetwork, centred_l2
from crunode_papers.grokking.settings import OPTIMIZERS, RECORDED, TrainingSettings
from crunode_papers.grokking.stacked import Stack, _summed_by_product, gradients
from crunode_papers.grokking.tasks import ModularTask

SMALL = TrainingSettings(ModularTask(7, fraction=0.6), width=12, rate=1e-2, weight_decay=1e-3, batch=8)


def _stacked(seed, count, p, width, size):
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(count, 2 * p, width, generator=generator, dtype=torch.float64)
    second = torch.randn(count, width, p, generator=generator, dtype=torch.float64)
    rows = torch.randint(p, (count, size, 2), generator=generator) + torch.tensor([0, p])
    results = torch.randint(p, (count, size), generator=generator)
    return first, second, rows, results


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("count", "p", "width", "size"), [(1, 3, 2, 5), (3, 5, 11, 7), (2, 4, 6, 30)])
def test_written_gradient_is_that_of_autograd(centred, count, p, width, size):
    first, second, rows, results = _stacked(0, count, p, width, size)
    found = gradients(first, second, rows, results, centred)
    for k in range(count):
        net = QuadraticNetwork.of(first[k].T, second[k].T)
        outputs = net(rows[k] - torch.tensor([0, p]))
        y = torch.nn.functional.one_hot(results[k], p).double()
        loss = centred_l2(outputs, y).mean() if centred else 0.5 * (outputs - y).square().sum(1).mean()
        expected = torch.autograd.grad(loss, (net.first.weight, net.second.weight))
        for one, other in zip((found[0][k].T, found[1][k].T), expected, strict=True):
            assert float((one - other).abs().max()) <= 1e-10 * float(other.abs().max())


def test_sums_by_index_and_by_product_agree():
    first, _, rows, _ = _stacked(1, 3, 5, 4, 9)
    values = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = torch.zeros_like(first)
    for k in range(3):
        for i in range(9):
            for row in rows[k, i]:
                expected[k, row] += values[k, i]
    assert torch.allclose(_summed_by_product(values, rows, 10), expected, atol=1e-13)


def _alone(settings, epochs):
    """The same training with torch's own modules, autograd and optimizer."""
    net = QuadraticNetwork(settings.task.modulus, settings.width, settings.seed, settings.scale).double()
    x, y = settings.task.data(dtype=torch.float64)
    options = {"lr": settings.rate, "weight_decay": settings.weight_decay}
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = kinds[settings.optimizer](net.parameters(), **options)
    orders = Stack([settings])
    for epoch in range(1, epochs + 1):
        for index in orders.orders(epoch)[0].split(settings.size):
            optimizer.zero_grad()
            outputs = net(x[index])
            loss = centred_l2(outputs, y[index]) if settings.centred else 0.5 * (outputs - y[index]).square().sum(1)
            loss.mean().backward()
            optimizer.step()
    return net, float(centred_l2(net(x), y).mean().detach())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("centred", [True, False])
def test_trainings_are_those_of_torch(optimizer, centred):
    rate = 0.3 if optimizer == "sgd" else 1e-2
    one = dataclasses.replace(SMALL, optimizer=optimizer, rate=rate, centred=centred, seed=5, weight_decay=1e-2)
    other = dataclasses.replace(one, rate=rate / 2, weight_decay=0.0, seed=6)
    runs = train_many([one, other], epochs=12, at=4, dtype=torch.float64)
    for run in runs:
        net, loss = _alone(run.settings, 12)
        for ours, theirs in zip(run.weights[12], (net.first.weight, net.second.weight), strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)
        if centred:
            assert run.training_loss[-1] == pytest.approx(loss, rel=1e-9)


def test_batched_is_the_same_as_alone():
    grid = [
        dataclasses.replace(SMALL, rate=rate, weight_decay=decay, seed=seed, width=width, batch=batch)
        for seed, (rate, decay, width, batch) in enumerate(
            [(1e-2, 1e-3, 12, 8), (3e-3, 0.0, 12, 8), (1e-2, 1e-4, 20, 8), (1e-2, 1e-3, 12, None), (2e-2, 1e-5, 12, 8)]
        )
    ]
    together = train_many(grid, epochs=30, at=[0, 7, 30], dtype=torch.float64)
    for settings, run in zip(grid, together, strict=True):
        (alone,) = train_many([settings], epochs=30, at=[0, 7, 30], dtype=torch.float64)
        assert run.settings == settings
        for name in RECORDED:
            np.testing.assert_allclose(getattr(run, name), getattr(alone, name), rtol=1e-9, err_msg=name)
        for one, other in zip(run.weights[30], alone.weights[30], strict=True):
            assert torch.allclose(one, other, rtol=1e-8, atol=1e-11)


def test_order_of_minibatches_is_the_trainings_own():
    both = Stack([SMALL, dataclasses.replace(SMALL, seed=9)])
    alone = Stack([dataclasses.replace(SMALL, seed=9)])
    for epoch in (1, 63, 64, 200):
        order = both.orders(epoch)
        assert torch.equal(order[1], alone.orders(epoch)[0])
        assert torch.equal(order.sort(1).values, torch.arange(SMALL.examples).expand(2, -1))
        assert not torch.equal(order[0], order[1])
    assert not torch.equal(both.orders(1), both.orders(2))


def test_operations_may_be_mixed():
    tasks = [ModularTask(5, operation, seed=s) for s, operation in enumerate(("addition", "division", "subtraction"))]
    runs = train_many([dataclasses.replace(SMALL, task=task, batch=None) for task in tasks], epochs=150, at=150)
    assert [run.settings.task.operation for run in runs] == ["addition", "division", "subtraction"]
    assert all(run.training_accuracy[-1] == 1 for run in runs)


@torch.no_grad()
def test_records_are_what_the_network_says():
    (run,) = train_many([SMALL], epochs=20, at=10, keep=10, dtype=torch.float64)
    assert run.epochs.tolist() == [0, 10, 20] == sorted(run.weights)
    for column, epoch in enumerate(run.epochs.tolist()):
        net = run.network(epoch)
        x, y = SMALL.task.data(dtype=torch.float64)
        held_x, held_y = SMALL.task.data("validation", dtype=torch.float64)
        outputs, held = net(x), net(held_x)
        offset = (outputs - y).mean(0)
        assert run.training_loss[column] == pytest.approx(float(centred_l2(outputs, y).mean()), rel=1e-12)
        assert run.validation_loss[column] == pytest.approx(float(centred_l2(held, held_y).mean()), rel=1e-12)
        for name, found, right in (
            ("training_accuracy", outputs - offset, y),
            ("validation_accuracy", held - offset, held_y),
            ("raw_training_accuracy", outputs, y),
            ("raw_validation_accuracy", held, held_y),
        ):
            expected = float((found.argmax(1) == right.argmax(1)).double().mean())
            assert getattr(run, name)[column] == pytest.approx(expected), name
    assert torch.equal(run.network().first.weight, run.weights[20][0])
    with pytest.raises(InputError, match="kept"):
        run.network(5)


def test_checkpoints_go_to_disk(tmp_path):
    grid = [SMALL, dataclasses.replace(SMALL, seed=1)]
    stored = train_many(grid, epochs=4, at=4, keep=2, store=tmp_path / "runs")
    kept = train_many(grid, epochs=4, at=4, keep=2)
    for run, other in zip(stored, kept, strict=True):
        assert list_checkpoints(run.folder, check=True).steps == (0, 2, 4)
        assert list_checkpoints(run.folder).problems == ()
        assert load_checkpoint(run.folder, 2).meta["epoch"] == 2
        assert torch.equal(run.network(2).second.weight, other.weights[2][1])
        assert torch.equal(run.network().second.weight, other.weights[4][1])
    with pytest.raises(InputError, match="new or empty folder"):
        train_many(grid, epochs=4, store=tmp_path / "runs")


def test_a_training_that_fails_does_not_touch_the_others():
    wild = dataclasses.replace(SMALL, optimizer="sgd", rate=1e6)
    calm = dataclasses.replace(SMALL, optimizer="sgd", rate=0.1)
    with pytest.raises(EstimationError, match=r"trainings \[1\]") as caught:
        train_many([calm, wild], epochs=10, at=5)
    good, bad = caught.value.partial
    (alone,) = train_many([calm], epochs=10, at=5)
    np.testing.assert_allclose(good.training_loss, alone.training_loss, rtol=1e-5)
    assert (good.failed_at, bad.failed_at) == (None, 5)
    assert np.isnan(bad.validation_accuracy[-1])
    with pytest.raises(InputError, match="did the training fail"):
        severity(bad.epochs, bad.training_accuracy, bad.validation_accuracy)
    assert train_many([calm, wild], epochs=10, at=5, on_failure="return")[1].failed_at == 5


def test_global_state_is_left_alone():
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    train_many([SMALL], epochs=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == grad


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"at": 0},
        {"at": [3, 3]},
        {"at": [11]},
        {"at": []},
        {"at": 1.5},
        {"keep": [-1]},
        {"on_failure": "ignore"},
        {"settings": []},
        {"settings": [{"width": 4}]},
    ],
)
def test_bad_calls_are_refused(wrong):
    given = {"settings": [SMALL], "epochs": 10, **wrong}
    with pytest.raises(InputError, match="expected"):
        train_many(given.pop("settings"), **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"rate": 0.0},
        {"rate": float("inf")},
        {"weight_decay": -1.0},
        {"batch": 1},
        {"batch": 0},
        {"optimizer": "lion"},
        {"scale": -1.0},
        {"seed": -1},
        {"task": 7},
    ],
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        dataclasses.replace(SMALL, **wrong)


def test_memorization_comes_first_and_generalization_later():
    task = ModularTask(23, fraction=0.4)
    grid = [TrainingSettings(task, width=128, rate=1e-2, weight_decay=wd, batch=None) for wd in (1e-3, 0.0)]
    with_decay, without = train_many(grid, epochs=300, at=10)
    times = grokking_times(with_decay.epochs, with_decay.training_accuracy, with_decay.validation_accuracy)
    assert times.memorization <= 30
    assert 100 <= times.generalization <= 300
    assert severity(with_decay.epochs, with_decay.training_accuracy, with_decay.validation_accuracy) > 0.2
    assert without.training_accuracy[-1] == 1
    assert without.validation_accuracy.max() < 0.2
