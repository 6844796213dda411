"""Families of flat directions: the Jacobian sees none of their tangents, and they are as many as they should be."""

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation
from crunode.estimators.symmetries import _families, _Moves, known_symmetries


class Squared(nn.Module):
    def forward(self, x):
        return x.square()


class Idle(nn.Module):
    """y = a x, and three weights that nothing reads."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(1))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.a * x + 0 * self.idle.sum()


def network(*layers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*layers).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return net


def seen_of(net, inputs, loss="gaussian"):
    x = torch.randn(60, inputs, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    y = net(x).detach()
    return Evaluation(cr.Landscape(net, (x, y.argmax(1) if loss == "cross-entropy" else y), loss))


def jacobian(seen):
    batch = next(iter(seen.landscape.passes(60)))
    return torch.func.jacrev(lambda w: seen.outputs(w, batch).flatten())(seen.center.double())


def unused(full):
    return (full == 0).all(0).numpy()


def duplicated(net, ratio):
    with torch.no_grad():
        net[0].weight[1] = ratio * net[0].weight[0]
        net[0].bias[1] = ratio * net[0].bias[0]
    return net


def silent(net, second):
    with torch.no_grad():
        if second:
            net[2].weight[:, 1] = 0
        else:
            net[0].bias[1] = -100
    return net


RELU, TANH = nn.ReLU(), nn.Tanh()
CASES = {
    "linear": (network(nn.Linear(3, 2), nn.Linear(2, 4)), {"changes of basis between linear layers": 4}),
    "one linear unit": (network(nn.Linear(3, 1), nn.Linear(1, 2)), {"ReLU scalings": 1}),
    "relu": (network(nn.Linear(3, 4), RELU, nn.Linear(4, 2)), {"ReLU scalings": 4}),
    "relu without bias": (network(nn.Linear(3, 4, bias=False), RELU, nn.Linear(4, 2)), {"ReLU scalings": 4}),
    "quadratic": (
        network(nn.Linear(3, 2), Squared(), nn.Linear(2, 2)),
        {"scalings of quadratic units": 2},
    ),
    "tanh": (network(nn.Linear(3, 4), TANH, nn.Linear(4, 2)), {}),
    "unread": (
        silent(network(nn.Linear(3, 3), TANH, nn.Linear(3, 2)), True),
        {"incoming weights of dead or unread units": 4},
    ),
    "dead": (
        silent(network(nn.Linear(3, 3), RELU, nn.Linear(3, 2)), False),
        {
            "ReLU scalings": 3,
            "outgoing weights of dead units": 2,
            "incoming weights of dead or unread units": 4,
        },
    ),
    "copies": (
        duplicated(network(nn.Linear(3, 3), TANH, nn.Linear(3, 2)), 1.0),
        {"exchanges between duplicate units": 2},
    ),
    "multiples": (
        duplicated(network(nn.Linear(3, 3), RELU, nn.Linear(3, 2)), 2.5),
        {"ReLU scalings": 3, "exchanges between duplicate units": 2},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tangents_are_flat_and_as_many_as_they_should_be(case):
    net, wanted = CASES[case]
    seen = seen_of(net, 3)
    full = jacobian(seen)
    found = {}
    for family in _families(_Moves(seen, 0), unused(full)):
        assert float((full @ family.tangents.T).abs().max()) < 1e-9 * float(full.norm() * family.tangents.norm())
        assert family.change < 1e-7
        found[family.kind] = int(torch.linalg.matrix_rank(family.tangents))
    found.pop("unused parameters", None)  # those of units that no example moves
    assert found == wanted
    flats, count = known_symmetries(seen, unused(full), seed=0)
    together = torch.cat([f.tangents for f in _families(_Moves(seen, 0), unused(full))]) if wanted else full[:0]
    assert count == int(torch.linalg.matrix_rank(together)) == sum(flat.new for flat in flats)
    assert all(flat.new <= flat.count == wanted[flat.kind] for flat in flats if flat.kind in wanted)


@pytest.mark.parametrize("classes", [2, 4])
def test_logits_of_two_classes_shift_as_those_of_more(classes):
    seen = seen_of(network(nn.Linear(3, classes)), 3, "cross-entropy")
    families = list(_families(_Moves(seen, 0), unused(jacobian(seen))))
    assert sum(len(f.tangents) for f in families) == 4
    assert {f.kind for f in families} == {"shifts of all logits"}
    full = jacobian(seen).view(60, classes, -1)
    centred = full - full.mean(1, keepdim=True)
    for f in families:
        assert float((centred.flatten(0, 1) @ f.tangents.T).abs().max()) < 1e-12
    assert not list(_families(_Moves(seen_of(network(nn.Linear(3, 2)), 3), 0), unused(full.flatten(0, 1))))


def test_weights_that_are_zero_are_not_idle_for_that():
    net = network(nn.Linear(3, 3, bias=False), nn.Sigmoid(), nn.Linear(3, 2))
    with torch.no_grad():
        net[0].weight.zero_()
    seen = seen_of(net, 3)
    assert "incoming weights of dead or unread units" not in {
        f.kind for f in _families(_Moves(seen, 0), unused(jacobian(seen)))
    }


def test_parameters_that_nothing_reads_are_found():
    x = torch.randn(20, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    net = Idle().double()
    seen = Evaluation(cr.Landscape(net, (x, net(x).detach()), "gaussian"))
    full = jacobian_of_idle(x)
    (family,) = _families(_Moves(seen, 0), unused(full))
    assert family.kind == "unused parameters"
    assert family.where == "idle"
    assert int(torch.linalg.matrix_rank(family.tangents)) == 3
    assert float((full @ family.tangents.T).abs().max()) == 0


def jacobian_of_idle(x):
    return torch.cat([x, torch.zeros(len(x), 3, dtype=torch.float64)], 1)


def test_changes_are_relative_to_random_moves_of_the_same_length():
    seen = seen_of(network(nn.Linear(3, 4), TANH, nn.Linear(4, 2)), 3)
    moves = _Moves(seen, 3)
    name, value = "2.bias", seen._packing.unravel(seen.center)["2.bias"].double()
    assert name in moves.weights
    # A bias of the last layer moves all outputs by as much, whatever its direction.
    tiny, large = (moves.change({name: value + size * torch.tensor([3.0, 4.0]).double()}) for size in (1e-6, 1e4))
    reference = float(moves.reference.norm())
    assert tiny == pytest.approx(1e-6 * 5 * 60**0.5 / reference, rel=1e-3)
    assert large == pytest.approx(1, rel=1e-3)
    assert moves.change({name: value}) == 0
