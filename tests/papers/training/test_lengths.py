import itertools

import pytest
import torch
from torch import nn

from crunode_papers.training.lengths import Lengths, norm

SGD = [
    {"lr": 0.1, "momentum": momentum, "nesterov": nesterov, "weight_decay": decay, "maximize": up, "dampening": damp}
    for momentum, nesterov, decay, up, damp in itertools.product(
        (0.0, 0.9), (False, True), (0.0, 0.1), (False, True), (0.0, 0.5)
    )
    if not nesterov or (momentum and not damp)
]
OTHERS = [
    (torch.optim.Adam, {"lr": 1e-2}),
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.5}),
    (torch.optim.Adam, {"lr": torch.tensor(1e-2, dtype=torch.float64), "foreach": False}),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "settings"), [*((torch.optim.SGD, s) for s in SGD), *OTHERS], ids=str)
def test_length_is_that_of_the_move(kind, settings, dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Linear(2, 2)).to(dtype)
    x = torch.randn(5, 3, dtype=dtype)
    groups = [{"params": net[0].parameters()}, {"params": net[2:].parameters(), "lr": settings["lr"] * 3}]
    optimizer = kind(groups, **settings)
    lengths = Lengths(optimizer)
    for _ in range(3):
        before = [p.detach().clone() for p in net.parameters()]
        optimizer.zero_grad()
        net[:3](x).square().sum().backward()  # the last layer has no gradient
        lengths.before()
        optimizer.step()
        moves = [(p.detach() - b).double() for p, b in zip(net.parameters(), before, strict=True)]
        rates = [0.1 if kind is torch.optim.SGD else 0.01] * 2 + [0.3 if kind is torch.optim.SGD else 0.03] * 4
        expected = sum((m.square().sum() / rate**2 for m, rate in zip(moves, rates, strict=True)), torch.tensor(0.0))
        assert float(lengths.after()) == pytest.approx(
            float(expected.sqrt()), rel=1e-9 if dtype == torch.float64 else 1e-4
        )


def test_a_move_below_the_rounding_of_the_weights_is_seen():
    w = nn.Parameter(torch.full((4,), 1e3))
    optimizer = torch.optim.SGD([w], lr=1e-9)
    lengths = Lengths(optimizer)
    (0.5 * w.square().sum()).backward()
    lengths.before()
    optimizer.step()
    assert float(lengths.after()) == pytest.approx(2e3)


def test_norm_of_other_types_and_layouts():
    tensors = [torch.ones(3, 4).T, torch.full((2,), 2.0)]
    assert float(norm(tensors)) == pytest.approx(20**0.5)
    assert float(norm([t.bfloat16() for t in tensors])) == pytest.approx(20**0.5, rel=1e-2)
    assert float(norm([torch.full((2,), 1e30, dtype=torch.float64)])) == pytest.approx(2**0.5 * 1e30)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str)
def test_gradient_norm_that_is_known_is_used(settings):
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, **settings)
    lengths = Lengths(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().sum().backward()
        lengths.before()
        optimizer.step()
        known = norm([p.grad for p in net.parameters()])
        assert float(lengths.after(known)) == pytest.approx(float(lengths.after()), rel=1e-12)
