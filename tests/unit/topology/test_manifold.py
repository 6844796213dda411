"""The zero-loss manifold: dimensions against counts, dense Hessians and closed forms; walks that stay on it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.topology import solution_dimension, walk


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(net, seed=0):
    with torch.no_grad():
        for k, weight in enumerate(net.parameters()):
            weight.copy_(normal(*weight.shape, seed=100 * seed + k) / math.sqrt(max(weight[0].numel(), 1)))
    return net


def tanh_net(inputs=2, width=8, outputs=1, seed=0):
    return drawn(nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)).double(), seed)


def sphere(dim):
    """One equation, ‖w‖² = 1, as a network of one output."""

    class Squares(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(normal(dim))

        def forward(self, x):
            return x * self.w.square().sum()

    return Landscape(Squares(), (torch.ones(1, 1).double(), torch.ones(1, 1).double()), "gaussian")


NETS = {
    "tanh": (lambda: nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1)), (2,), 1),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)
        ),
        (1, 5, 5),
        2,
    ),
    "relu": (lambda: nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 1)), (4,), 1),
}
"""Networks of three kinds: how to make one, the shape of an input, and the number of outputs."""


def landscape(name, examples, seed):
    build, shape, outputs = NETS[name]
    net = drawn(build().double(), seed)
    data = normal(examples, *shape, seed=100 * seed + 50), normal(examples, outputs, seed=100 * seed + 51)
    return Landscape(net, data, "gaussian")


@pytest.mark.parametrize("name", NETS)
def test_dimension_is_that_of_the_theorem(name):
    outputs = NETS[name][2]
    dim = landscape(name, 1, 0).dim
    examples = dim // (8 * outputs)
    # ReLU networks can get stuck at kinks: the first start of these that does not is taken.
    found = next(
        found
        for seed in range(5)
        if math.isfinite((found := solution_dimension(landscape(name, examples, seed))).dimension.value)
    )
    assert found.dimension.value == found.expected == dim - outputs * examples
    assert found.full_rank
    assert found.loss.value < 1e-24
    assert [f.code for f in found.findings] == (["TOPO1108"] if name == "relu" else [])


def test_dimension_is_the_null_space_of_a_dense_hessian():
    x, y = normal(6, 2, seed=1), normal(6, 2, seed=2)
    net = tanh_net(outputs=2)
    found = solution_dimension(Landscape(net, (x, y), "gaussian"))

    def loss(w):
        hidden = torch.tanh(x @ w[:16].reshape(8, 2).T + w[16:24])
        return 0.5 * (hidden @ w[24:40].reshape(2, 8).T + w[40:42] - y).square().sum(1).mean()

    assert float(loss(found.weights)) < 1e-24
    values = np.abs(np.linalg.eigvalsh(torch.autograd.functional.hessian(loss, found.weights).numpy()))
    assert (values < 1e-10 * values.max()).sum() == found.dimension.value == 42 - 12


def test_repeated_examples_lower_the_rank():
    x, y = normal(5, 2, seed=1), normal(5, 1, seed=2)
    found = solution_dimension(Landscape(tanh_net(), (torch.cat([x, x]), torch.cat([y, y])), "gaussian"))
    assert (found.dimension.value, found.expected, found.full_rank) == (33 - 5, 33 - 10, False)
    assert [f.code for f in found.findings] == ["TOPO1106"]


def test_linear_network_has_the_dimension_of_its_map():
    net = drawn(nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)).double())
    x = normal(12, 3, seed=1)
    found = solution_dimension(Landscape(net, (x, x @ normal(3, 2, seed=2)), "gaussian"))
    assert found.dimension.value == 25 - 3 * 2
    assert not found.full_rank


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, nn.MSELoss()])
def test_any_loss_of_squared_errors(loss):
    x, y = normal(6, 2, seed=1), normal(6, 2, seed=2)
    found = solution_dimension(Landscape(tanh_net(outputs=2), (x, y), loss))
    assert found.dimension.value == 42 - 12


def test_single_precision_weights_are_solved_in_double():
    x, y = normal(6, 2, seed=1).float(), normal(6, 1, seed=2).float()
    found = solution_dimension(Landscape(tanh_net().float(), (x, y), "gaussian"))
    assert found.weights.dtype == torch.float64
    assert found.loss.value < 1e-24
    assert found.dimension.value == 33 - 6


def test_data_that_cannot_be_fitted_have_no_dimension():
    x = normal(6, 2, seed=1)
    land = Landscape(tanh_net(), (torch.cat([x, x]), torch.cat([normal(6, 1), -normal(6, 1)])), "gaussian")
    found = solution_dimension(land, steps=40)
    assert math.isnan(found.dimension.value)
    assert not found.dimension.ok
    assert "TOPO1105" in [f.code for f in found.findings]
    path = walk(land, 3)
    assert not path.ok
    assert math.isnan(path.length.value)
    assert len(path.path) == 1


def test_walk_on_a_sphere_is_a_great_circle():
    # Straight on along ‖w‖ = 1: all points lie in one plane through 0, and chords of 0.1 add up to the arc.
    path = walk(sphere(5), 70, stride=0.1)
    assert torch.allclose(path.path.norm(dim=1), torch.ones(71, dtype=torch.float64), atol=1e-6)
    values = torch.linalg.svdvals(path.path)
    assert float(values[2]) < 1e-3 * float(values[0])
    # Corrections are along the normal of the point before, so that a step h is one by the angle asin(h).
    assert path.length.value == pytest.approx(70 * 2 * math.sin(math.asin(0.1) / 2), rel=1e-6)
    assert set(path.dimensions) == {4.0}


@pytest.mark.parametrize("name", NETS)
def test_walk_stays_at_zero_loss(name):
    land = landscape(name, 8, 0)
    path = walk(land, 30, seed=3)
    assert len(path.path) == 31
    assert path.largest.value < 1e-10
    losses = [float(land.loss(w)) for w in path.path]
    assert max(losses) < 1e-10
    assert np.allclose(losses, path.losses, rtol=1e-3, atol=1e-20)
    assert path.length.value == pytest.approx(float((path.path[1:] - path.path[:-1]).norm(dim=1).sum()))
    assert path.distance.value > 0.1 * float(path.path[0].norm())


def test_walk_follows_the_given_direction_and_only_that():
    land = landscape("tanh", 6, 1)
    direction = normal(land.dim, seed=5)
    path = walk(land, 1, direction=direction, stride=1e-3)
    again = walk(land, 1, direction=3 * direction, stride=1e-3, seed=9)
    assert torch.equal(path.path, again.path)
    assert float((path.path[1] - path.path[0]) @ direction) > 0


def test_walk_ends_where_there_is_no_way_on():
    # Outputs w1·w2 = 0 and w1 = 0 at once: the null space of J at 0 is larger than the set, which is a line.
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, dtype=torch.float64))

        def forward(self, x):
            return torch.stack([x[:, 0] * (self.w[0] - self.w[1] ** 2), x[:, 0] * (self.w[0] + self.w[1] ** 2)], 1)

    land = Landscape(Cross(), (torch.ones(1, 1).double(), torch.zeros(1, 2).double()), "gaussian")
    path = walk(land, 5, stride=0.5, direction=torch.tensor([0.0, 1.0]), tolerance=1e-20)
    assert "TOPO1109" in [f.code for f in path.findings]
    assert path.largest.value <= 1e-20
    assert path.distance.value < 1e-3


def test_nothing_of_the_caller_is_changed():
    net = tanh_net()
    x, y = normal(5, 2), normal(5, 1, seed=1)
    land = Landscape(net, (x, y), "gaussian")
    before = [p.detach().clone() for p in net.parameters()], land.center.clone(), torch.get_rng_state()
    walk(land, 3)
    solution_dimension(land)
    assert all(torch.equal(a, b) for a, b in zip(before[0], net.parameters(), strict=True))
    assert torch.equal(before[1], land.center)
    assert torch.equal(before[2], torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda land: solution_dimension(land, steps=0), "steps"),
        (lambda land: solution_dimension(land, tolerance=-1.0), "tolerance"),
        (lambda land: walk(land, 0), "steps"),
        (lambda land: walk(land, 3, stride=0.0), "stride"),
        (lambda land: walk(land, 3, direction=torch.ones(2)), "flat vector of 33"),
        (lambda land: walk(land, 3, direction=torch.zeros(33)), "finite length other than zero"),
        (lambda land: walk(land, 3, direction=torch.full((33,), math.nan)), "finite length other than zero"),
        (lambda land: walk(land, 3, seed=-1), "seed"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call(Landscape(tanh_net(), (normal(5, 2), normal(5, 1)), "gaussian"))


def test_a_loss_that_is_never_zero_is_refused():
    land = Landscape(tanh_net(outputs=2), (normal(5, 2), torch.tensor([0, 1, 0, 1, 1])), "cross-entropy")
    for call in (solution_dimension, walk):
        with pytest.raises(InputError, match="squared errors"):
            call(land)


def test_a_direction_across_the_manifold_is_refused():
    with pytest.raises(InputError, match="tangent space"):
        walk(sphere(3), 3, direction=sphere(3).center)
