"""The closed forms of `lazy-training` against autograd, and what its rows would say of wrong numbers."""

import math

import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.tanner import lazy_training as lazy


def module_jacobian(nets):
    """J of the first network, by autograd."""
    net = lazy._Net(nets.only(0))
    names = ["hidden", "outer"] if nets.both else ["hidden"]
    outputs = net(nets.x, nets.offset[0])
    rows = []
    for value in outputs:
        grads = torch.autograd.grad(value, [getattr(net, n) for n in names], retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return outputs.detach(), torch.stack(rows)


@pytest.mark.parametrize("kind", lazy.KINDS)
def test_closed_forms_are_those_of_autograd(kind):
    nets = lazy.initial(kind, 20, [3, 4])
    outputs, jacobian = module_jacobian(nets)
    seen, inner, heads = nets.look()
    torch.testing.assert_close(seen[0], outputs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(nets.kernel()[0], jacobian @ jacobian.T, rtol=1e-10, atol=1e-12)
    amounts = torch.linspace(-1, 1, 2 * lazy.EXAMPLES, dtype=torch.float64).reshape(2, -1)
    there = nets.moved(inner, heads, amounts)
    step = nets.step_to(there)[0]
    torch.testing.assert_close(step, jacobian.T @ amounts[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(nets.linearized(there)[0], outputs + jacobian @ step, rtol=1e-10, atol=1e-12)


def test_training_is_plain_gradient_descent():
    nets = lazy.initial("both", 16, [5])
    net = lazy._Net(nets)
    _, y = lazy._data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        (0.5 * (net(nets.x, nets.offset[0]) - y).square().sum()).backward()
        optimizer.step()
    trained, losses = lazy.train(nets, torch.tensor([0.05], dtype=torch.float64), 10)
    torch.testing.assert_close(trained.hidden[0], net.hidden.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(trained.outer[0], net.outer.detach(), rtol=1e-9, atol=1e-12)
    assert losses[-1] < losses[0]


def test_networks_do_not_depend_on_those_beside_them():
    together, alone = lazy.initial("signs", 12, [1, 2]), lazy.initial("signs", 12, [2])
    assert torch.equal(together.hidden[1], alone.hidden[0])
    assert torch.equal(together.outer[1], alone.outer[0])


def test_bend_is_the_largest_second_derivative():
    z = torch.linspace(-5, 5, 10_001, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(torch.nn.functional.gelu(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    assert float(second.abs().max()) == pytest.approx(lazy.BEND, rel=1e-6)


def planted(kind, power):
    """Results whose error and kernel fall with another power of the width."""
    found = []
    for width in (128, 256, 512):
        values = {name: [width**-0.5, 1.01 * width**-0.5] for name in ("per_coordinate", "largest", "from_newton")}
        values |= {name: [width**power, 1.01 * width**power] for name in ("error", "kernel")}
        values |= {"distance": [1.0, 1.01], "newton_bound": [0.5, 0.5], "over_bound": [1.1, 1.1]}
        found.append(Result(Cell(f"{kind} {width}", {"kind": kind, "width": width}), values, 0.0))
    return found


LAWS = ["exponent of the linearization error", "exponent of the change of the kernel"]
BOUNDS = [f"{name}, bound" for name in LAWS]


@pytest.mark.parametrize(
    ("kind", "power", "wrong"),
    [
        ("same", -0.5, []),
        ("same", -1.0, LAWS),
        ("signs", -1.0, []),
        ("signs", -0.5, LAWS),
        ("signs", -0.2, LAWS + BOUNDS),
        ("both", -1.0, []),
    ],
)
def test_rows_tell_powers_apart(kind, power, wrong):
    table = lazy.rows(planted(kind, power), "toy")
    assert {row.verdict for row in table} <= {"agrees", "differs"}
    found = [row.name.split(": ")[1] for row in table if row.verdict == "differs"]
    assert sorted(found) == sorted(wrong)


def test_random_signs_cancel_and_equal_ones_do_not():
    """Two widths a factor of 16 apart, 12 networks: ratios near 16 and near 4; a factor of 1.6 is five errors."""
    ratios = {}
    for kind in ("signs", "same"):
        means = []
        for width in (64, 1024):
            found = lazy._measured(lazy.initial(kind, width, range(12)), 60)
            means.append(float(found["error"].log().mean()))
        ratios[kind] = math.exp(means[0] - means[1])
    assert 4 / 1.3 < ratios["same"] < 4 * 1.3
    assert 16 / 2.2 < ratios["signs"] < 16 * 2.2
