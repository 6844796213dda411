"""Products in half precision, in three parts: as exact as single precision, nearly, and only where they are meant."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.sampling.engine import Engine
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.replay import halves
from crunode.sampling.replay.tape import record


@pytest.fixture
def small(monkeypatch):
    """Products of some hundred rows count as large."""
    monkeypatch.setattr(halves, "_LARGE", 1 << 22)


def by_halves(a, b):
    sizes = halves.largest(a), halves.largest(b)
    return halves.product(
        halves.halved(a, sizes[0]), sizes[0], halves.halved(b, sizes[1]), sizes[1], len(a), b.shape[1]
    )


@settings(deadline=None, max_examples=40)
@given(st.tuples(*[st.integers(1, 40)] * 3), st.integers(0, 10**6), st.floats(-20, 20), st.floats(0, 4))
def test_a_product_is_nearly_that_in_single_precision(sides, seed, power, spread):
    """Whatever the size of the entries, and with entries of unlike sizes."""
    chance = torch.Generator().manual_seed(seed)
    rows, inner, columns = sides
    a = torch.randn(rows, inner, generator=chance) * 10**power
    b = torch.randn(inner, columns, generator=chance) * torch.exp(spread * torch.randn(columns, generator=chance))
    exact = a.double() @ b.double()
    # Rounding is relative to the largest entries of both.
    most = float(a.abs().max()) * float(b.abs().max()) * inner
    assert by_halves(a, b).shape == exact.shape
    assert float((by_halves(a, b) - exact).abs().max()) <= 1e-6 * most


def test_nothing_times_something_is_nothing():
    assert not by_halves(torch.zeros(3, 4), torch.ones(4, 5)).any()


def gradient(w, x):
    with torch.enable_grad():
        w = w.detach().requires_grad_()
        first, second = w.split([300 * 260, 260 * 270])
        hidden = torch.tanh(x @ first.view(300, 260))
        out = torch.addmm(torch.ones(270), hidden, second.view(260, 270))
        return torch.autograd.grad(out.square().mean(), w)


def test_a_recorded_gradient_in_halves(small, monkeypatch):
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(280, 300, generator=chance)
    w = torch.randn(300 * 260 + 260 * 270, generator=chance) / 16
    calls = []
    halved = halves.halved
    monkeypatch.setattr(halves, "halved", lambda x, size: calls.append(x.shape) or halved(x, size))
    replay = record(gradient, w, x, halved=True)
    calls.clear()
    exact = gradient(w, x)[0].double()
    (found,) = replay(w, x)
    assert float((found - exact).norm() / exact.norm()) < 1e-5
    # x, both matrices of weights, hidden values and two slopes: each is taken apart once, its transpose with it.
    assert len(calls) == 6
    plain = record(gradient, w, x)
    calls.clear()
    assert torch.allclose(plain(w, x)[0], exact.float(), atol=1e-7)
    assert not calls


def test_constants_are_taken_apart_when_recording(small, monkeypatch):
    constant = torch.randn(300, 300, generator=torch.Generator().manual_seed(1))
    calls = []
    halved = halves.halved
    monkeypatch.setattr(halves, "halved", lambda x, size: calls.append(x.shape) or halved(x, size))
    replay = record(lambda x: (x @ constant + x @ constant.T,), torch.ones(300, 300), halved=True)
    calls.clear()
    x = torch.randn(300, 300, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(replay(x)[0], x @ constant + x @ constant.T, atol=1e-3)
    assert len(calls) == 1


def test_a_product_of_constants_is_one_itself(small, monkeypatch):
    constant = torch.randn(300, 300, generator=torch.Generator().manual_seed(1))
    calls = []
    product = halves.product
    monkeypatch.setattr(halves, "product", lambda *given: calls.append(given) or product(*given))
    replay = record(lambda x: (x + constant @ constant,), torch.ones(300, 300), halved=True)
    assert torch.allclose(replay(torch.zeros(300, 300))[0], constant @ constant, atol=1e-3)
    assert not calls


def test_a_chain_may_ask_for_halves(small):
    chance = torch.Generator().manual_seed(4)
    net = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    x = torch.randn(300, 300, generator=chance)
    land = Landscape(net, (x, torch.zeros(300, 300)), "gaussian")
    w = land.center + 0.1 * torch.randn(land.dim, generator=chance)
    found = []
    for halved in (False, True):
        posterior = Posterior(land, 1.0, Gaussian(1.0))
        engine = Engine(posterior, [0], torch.ones(1), seed=0, batch=None, layout="sequential", halved=halved)
        found.append(engine.likelihood(w[None])[0])
        assert not engine.why_not_replayed
    off = float((found[0] - found[1]).norm() / found[0].norm())
    assert 0 < off < 1e-4


@pytest.mark.parametrize(("dtype", "columns"), [(torch.float64, 300), (torch.float32, 4)])
def test_other_products_are_left_alone(dtype, columns, small, monkeypatch):
    def none(*_):
        raise AssertionError

    monkeypatch.setattr(halves, "product", none)
    x, y = torch.ones(300, 300, dtype=dtype), torch.ones(300, columns, dtype=dtype)
    assert torch.equal(record(lambda x, y: (x @ y,), x, y, halved=True)(x, y)[0], x @ y)


def test_matrices_that_change_on_the_way_are_left_alone(small):
    def changed(x):
        y = x * 2
        first = y @ x
        y.add_(1)
        return (first + y @ x,)

    x = torch.randn(300, 300, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(record(changed, x, halved=True)(x)[0], changed(x)[0], atol=1e-3)
