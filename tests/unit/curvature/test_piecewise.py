"""What is read off the graph of operations, against second differences of what they give."""

import pytest
import torch
import torch.nn.functional as F

from crunode.curvature.piecewise import operations

CHANCE = torch.Generator().manual_seed(0)
OTHER = torch.rand(4, 4, generator=CHANCE, dtype=torch.float64) + 0.5


def normed(x, training):
    return F.batch_norm(x, torch.zeros(4).double(), torch.ones(4).double(), training=training)


FUNCTIONS = {
    "a product with numbers": lambda x: 3 * x * OTHER,
    "a product with itself": lambda x: x * x,
    "a product of two parts": lambda x: x[:2] * x[2:],
    "a quotient by numbers": lambda x: x / OTHER,
    "a quotient of numbers": lambda x: OTHER / x,
    "a quotient of two parts": lambda x: x[:2] / x[2:],
    "a matrix product with numbers": lambda x: OTHER @ x @ OTHER,
    "a matrix product with itself": lambda x: x @ x,
    "a linear layer": lambda x: F.linear(x, OTHER, OTHER[0]),
    "a linear layer of its own weights": lambda x: F.linear(x, x, OTHER[0]),
    "a shift by itself": lambda x: F.linear(OTHER, OTHER, x[0]),
    "statistics that are held": lambda x: normed(x, False),
    "statistics of the batch": lambda x: normed(x, True),
    "a convolution": lambda x: F.conv1d(x[None], OTHER[:, :, None]),
    "a convolution with itself": lambda x: F.conv1d(x[None], x[:, :, None]),
    "the largest": lambda x: F.max_pool1d(x[None], 2),
    "a mean": lambda x: F.avg_pool1d(x[None], 2).mean(0) - x.sum(),
    "pieces": lambda x: F.leaky_relu(x - 0.8).abs() + x.clamp(max=0.9) + F.hardtanh(x),
    "parts put together": lambda x: torch.cat([x[:1], x.T[1:].flip(0)]).reshape(2, 8),
    "slopes of their own": lambda x: F.prelu(-OTHER, x[0]),
    "slopes that are held": lambda x: F.prelu(x - 0.8, OTHER[0]),
    "a sigmoid": torch.sigmoid,
    "a power": lambda x: x**3,
    "a root inside a piece": lambda x: F.relu(x.sqrt()),
    "an exponential of pieces": lambda x: F.relu(x - 0.8).exp(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_curved_has_no_second_differences(name):
    run = FUNCTIONS[name]
    chance = torch.Generator().manual_seed(1)
    x = torch.rand(4, 4, generator=chance, dtype=torch.float64) + 0.3
    step = 1e-4 * torch.randn(4, 4, generator=chance, dtype=torch.float64)
    bent = float((run(x + step) + run(x - step) - 2 * run(x)).abs().max())
    found = operations(run(x.requires_grad_()))
    assert bool(found.curved) == (bent > 1e-12)


def test_kinks_and_bends_are_named_in_order():
    x = torch.rand(4, 4, dtype=torch.float64, requires_grad=True)
    found = operations((F.relu(x).tanh() + x.abs()).exp())
    assert (found.curved, found.kinked) == (("Exp", "Tanh"), ("Abs", "Relu"))
    assert operations(x.detach().exp()) == operations(x) == operations(2 * x)
