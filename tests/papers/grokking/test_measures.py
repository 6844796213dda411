import numpy as np
import pytest
import torch

from crunode.errors import InputError
from crunode_papers.grokking.fourier import (
    effective_width,
    fourier_features,
    fourier_network,
    unit_strengths,
)
from crunode_papers.grokking.measures import (
    accuracy,
    centring_offset,
    first_reached,
    grokking_times,
    severity,
)
from crunode_papers.grokking.networks import QuadraticNetwork, centred_l2
from crunode_papers.grokking.stages import lazy_ridge, stage_signal, unit_energies
from crunode_papers.grokking.tasks import ModularTask

WIDE = torch.float64


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("p", [3, 5, 9, 13])
def test_fourier_network_is_exact_and_pure(p):
    task = ModularTask(p, fraction=0.5)
    net = fourier_network(p)
    x, y = task.data("all", dtype=WIDE)
    assert float((net(x) - y + 1 / p).abs().max()) < 1e-12
    for part in ("training", "validation", "all"):
        x, y = task.data(part, dtype=WIDE)
        assert accuracy(net(x), y) == 1
        assert float(centred_l2(net(x), y).max()) < 1e-24
    found = fourier_features(net)
    expected = torch.arange(1, (p - 1) // 2 + 1).repeat_interleave(6)
    for frequency, share in ((found.frequency, found.share), (found.output_frequency, found.output_share)):
        assert torch.equal(frequency, expected)
        assert torch.allclose(share, torch.ones_like(share), atol=1e-12)
    assert effective_width(net) == effective_width(net, 0.5) == 3 * (p - 1)


def test_even_moduli_have_no_such_network():
    with pytest.raises(InputError, match="odd modulus"):
        fourier_network(8)


def test_power_is_that_of_the_weights_without_their_means():
    for p in (7, 8):
        net = QuadraticNetwork(p, 5, seed=1).double()
        parts = net.first.weight.detach().reshape(5, 2, p)
        spread = (parts - parts.mean(2, keepdim=True)).square().sum((1, 2))
        assert torch.allclose(fourier_features(net).power.sum(1), spread)


def test_frequency_does_not_change_with_what_the_network_does_not_feel():
    net = QuadraticNetwork(11, 6, seed=2).double()
    w = net.first.weight.detach().clone().reshape(6, 2, 11)
    w[:, 0] += 5
    w[:, 1] -= 5
    moved = QuadraticNetwork.of(3 * w.reshape(6, 22), net.second.weight.detach() / 9)
    x, _ = ModularTask(11).data("all", dtype=WIDE)
    assert torch.allclose(net(x), moved(x), atol=1e-9)
    one, other = fourier_features(net), fourier_features(moved)
    assert torch.equal(one.frequency, other.frequency)
    assert torch.allclose(one.share, other.share)
    assert torch.allclose(unit_strengths(net), unit_strengths(moved))


def test_dead_units_do_not_count():
    net = fourier_network(7)
    first = torch.cat([net.first.weight.detach(), torch.zeros(2, 14, dtype=WIDE), torch.ones(1, 14, dtype=WIDE)])
    second = torch.cat([net.second.weight.detach(), torch.zeros(7, 2, dtype=WIDE), torch.ones(7, 1, dtype=WIDE)], 1)
    wider = QuadraticNetwork.of(first, second)
    assert effective_width(wider) == 19  # the last unit has output weights, as eq. (5) asks
    assert effective_width(wider, 1e-6) == 18  # but its feature is constant, so that it adds nothing
    found = fourier_features(wider)
    assert found.frequency[-3:].tolist() == [0, 0, 0]
    assert found.share[-3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan"), True])
def test_tolerance_is_checked(tolerance):
    with pytest.raises(InputError, match="tolerance"):
        effective_width(fourier_network(3), tolerance)


def test_strength_is_the_size_of_a_units_centred_part():
    net = QuadraticNetwork(5, 4, seed=3).double()
    x, _ = ModularTask(5).data("all", dtype=WIDE)
    for j in range(4):
        part = net.features(x)[:, j : j + 1] * net.second.weight[:, j]
        assert float(unit_strengths(net)[j]) == pytest.approx(float((part - part.mean(0)).detach().norm()), rel=1e-12)


def test_offset_hides_a_right_answer_from_the_raw_outputs():
    task = ModularTask(7)
    x, y = task.data("all", dtype=WIDE)
    net = fourier_network(7)
    # A unit with constant feature shifts one output for all examples.
    first = torch.cat([net.first.weight.detach(), torch.ones(1, 14, dtype=WIDE)])
    second = torch.cat([net.second.weight.detach(), torch.eye(7, dtype=WIDE)[:, :1]], 1)
    shifted = QuadraticNetwork.of(first, second)
    outputs = shifted(x)
    assert float(centred_l2(outputs, y).max()) < 1e-24
    assert accuracy(outputs, y) == pytest.approx(1 / 7)
    assert accuracy(outputs, y, centring_offset(outputs, y)) == 1


def test_severity_is_the_mean_gap_over_epochs():
    generator = np.random.default_rng(0)
    train, held = generator.uniform(size=(2, 51))
    held[-1] = 0.95
    assert severity(np.arange(51), train, held) == pytest.approx(np.abs(train - held)[1:].mean())
    every = np.arange(0, 5001, 100)
    assert severity(every, train, held) == pytest.approx(np.abs(train - held)[1:].mean())
    assert severity([10, 40], [1.0, 1.0], [0.0, 1.0]) == pytest.approx(0.25)
    held[-1] = 0.9499
    assert severity(np.arange(51), train, held) == 0


def test_times():
    epochs = [0, 50, 100, 150]
    found = grokking_times(epochs, [0.1, 0.95, 0.9, 1.0], [0.0, 0.1, 0.2, 0.94])
    assert (found.memorization, found.generalization, found.delay) == (50, None, None)
    assert grokking_times(epochs, [0.1, 0.95, 0.9, 1.0], [0.0, 0.1, 0.2, 0.94], threshold=0.94).delay == 100
    assert first_reached([5], [1.0]) == 5


@pytest.mark.parametrize(
    ("epochs", "values"),
    [([], []), ([1, 2], [0.5]), ([2, 1], [0.1, 0.2]), ([1, 1], [0.1, 0.2]), ([0, 1], [0.1, np.nan]), ([0], [1.2])],
)
def test_bad_records_are_refused(epochs, values):
    with pytest.raises(InputError, match="expected"):
        first_reached(epochs, values)
    with pytest.raises(InputError, match="expected"):
        severity(epochs, values, values)


def test_accuracy_needs_outputs():
    with pytest.raises(InputError, match="outputs"):
        accuracy(torch.zeros(0, 3), torch.zeros(0))
    with pytest.raises(InputError, match="finite"):
        accuracy(torch.full((1, 3), torch.nan), torch.tensor([0]))


def test_signal_is_the_gradient_by_the_features():
    task = ModularTask(5, fraction=0.6)
    x, y = task.data(dtype=WIDE)
    net = QuadraticNetwork(5, 6, seed=1).double()
    features = net.features(x).detach().requires_grad_()
    with torch.enable_grad():
        loss = centred_l2(features @ net.second.weight.T, y).sum()
    (slope,) = torch.autograd.grad(loss, features)
    tilde, f = y - y.mean(0), features.detach() - features.detach().mean(0)
    task_part = tilde @ tilde.T @ f
    found = stage_signal(net, x, y)
    assert found.norm == pytest.approx(float(slope.norm()), rel=1e-12)
    cosine = float((-slope * task_part).sum() / slope.norm() / task_part.norm())
    assert found.alignment == pytest.approx(cosine, rel=1e-12)
    assert found.coefficient == pytest.approx(cosine * float(slope.norm() / task_part.norm()), rel=1e-12)


def test_signal_is_aligned_right_after_a_heavily_penalized_output_layer():
    # For large η, V_ridge ≈ F̃ᵀỸ/η and Y − FV ≈ Y, so that G_F = ỸVᵀ = ỸỸᵀF̃/η.
    x, y = ModularTask(7, fraction=0.6).data(dtype=WIDE)
    net = QuadraticNetwork(7, 20, seed=1).double()
    second = lazy_ridge(net.features(x).detach(), y, 1e8)
    found = stage_signal(QuadraticNetwork.of(net.first.weight.detach(), second.T), x, y)
    assert found.alignment == pytest.approx(1, abs=1e-6)
    assert found.coefficient == pytest.approx(1e-8, rel=1e-6)


def test_no_signal_at_zero_weights():
    x, y = ModularTask(5).data(dtype=WIDE)
    with pytest.raises(InputError, match="direction"):
        stage_signal(QuadraticNetwork.of(torch.zeros(3, 10, dtype=WIDE), torch.zeros(5, 3, dtype=WIDE)), x, y)


def test_energies():
    x, y = ModularTask(5).data(dtype=WIDE)
    net = QuadraticNetwork(5, 3, seed=4).double()
    features = net.features(x).detach()
    tilde = y - y.mean(0)
    expected = [0.5 * float((tilde.T @ features[:, j]).square().sum()) for j in range(3)]
    assert unit_energies(net, x, y).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("examples", "width"), [(12, 5), (5, 12)])
@pytest.mark.parametrize("centred", [True, False])
def test_ridge_solution_solves_its_equations(examples, width, centred):
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(examples, width, generator=generator, dtype=WIDE)
    y = torch.randn(examples, 3, generator=generator, dtype=WIDE)
    a, b = (f - f.mean(0), y - y.mean(0)) if centred else (f, y)
    v = lazy_ridge(f, y, 0.3, centred)
    assert torch.allclose(v, torch.linalg.solve(a.T @ a + 0.3 * torch.eye(width, dtype=WIDE), a.T @ b), atol=1e-12)
    least = lazy_ridge(f, y, 0.0, centred)
    assert torch.allclose(least, torch.linalg.pinv(a) @ b, atol=1e-10)


def test_ridge_refuses_bad_penalties():
    with pytest.raises(InputError, match="penalty"):
        lazy_ridge(torch.eye(3), torch.eye(3), -1.0)
    with pytest.raises(InputError, match="features"):
        lazy_ridge(torch.eye(3), torch.eye(2), 1.0)
