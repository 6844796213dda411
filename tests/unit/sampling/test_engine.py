"""Gradients of the engine against automatic differentiation of the whole loss."""

from __future__ import annotations

import math

import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.sampling.engine import Engine
from crunode.sampling.evaluate import _close
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.replay.capture import Captured


@pytest.mark.heavy
@pytest.mark.parametrize("layout", ["batched", "sequential"])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("rows", [5, 20])
def test_all_data_in_several_parts(monkeypatch: pytest.MonkeyPatch, rows: int, overwrite: bool, layout: str) -> None:
    torch.manual_seed(0)
    # Wide enough for gradients to be kept in standing memory.
    net = torch.nn.Sequential(torch.nn.Linear(3, 300), torch.nn.Tanh(), torch.nn.Linear(300, 300)).double()
    net.append(torch.nn.Linear(300, 2).double())
    x, y = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    land = Landscape(net, (x, y), "gaussian")
    monkeypatch.setattr(Landscape, "chunk_rows", lambda self, chains=1: rows)
    chains = 1 if layout == "sequential" else 3
    nbeta = torch.linspace(1.0, 7.0, chains)
    posterior = Posterior(land, 1.0, Gaussian(1.0))
    engine = Engine(
        posterior, range(chains), nbeta, seed=0, batch=None, layout=layout, overwrite=overwrite, compiled=False
    )
    for _ in range(3):  # the first calls run otherwise than those that are replayed
        w = land.center + 0.1 * torch.randn(chains, land.dim).double()
        gradient, excess = engine.likelihood(w)
        for k in range(chains):
            point = w[k].clone().requires_grad_()
            outputs = land.batch_outputs(point, (x, y))
            loss = 0.5 * (outputs - y).square().sum(1).mean() - 0.5 * (net(x) - y).square().sum(1).mean()
            (exact,) = torch.autograd.grad(loss, point)
            torch.testing.assert_close(gradient[k], float(nbeta[k]) * exact)
            assert float(excess[k]) == pytest.approx(float(loss.detach()))


def test_replayed_gradients_are_compared_chain_by_chain() -> None:
    right = torch.tensor([[1e-4, 2e-4], [100.0, 50.0]])
    wrong = right.clone()
    wrong[0] *= 1.5  # far below the rounding of the cold chain's gradient
    assert _close(right.clone(), right, 0.0)
    assert not _close(wrong, right, 0.0)
    assert _close(torch.tensor([[math.nan, 1.0]]), torch.tensor([[math.nan, 1.0]]), 0.0)
    assert not _close(torch.tensor([[math.nan, 1.0]]), torch.tensor([[0.5, 1.0]]), 0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_function_keeps_the_memory_of_its_constants() -> None:
    def made() -> Captured:
        factor = torch.full((1000,), 3.0, device="cuda")
        return Captured(lambda x: (x * factor,), [torch.ones(1000, device="cuda")])

    captured = made()
    others = [torch.zeros(1000, device="cuda") for _ in range(64)]  # would take the constant's place
    (tripled,) = captured(torch.ones(1000, device="cuda"))
    assert torch.equal(tripled, torch.full_like(others[0], 3.0))
