"""Families of flat directions: the Jacobian sees none of their tangents, and they are as many as they should be."""

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.jacobian import Evaluation
from crunode.estimators.symmetries import _families, _Moves, _pairs, _parallel, known_symmetries


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
    name, value = "2.bias", seen.packing.unravel(seen.center)["2.bias"].double()
    assert name in moves.weights
    # A bias of the last layer moves all outputs by as much, whatever its direction.
    tiny, large = (moves.change({name: value + size * torch.tensor([3.0, 4.0]).double()}) for size in (1e-6, 1e4))
    reference = float(moves.reference.norm())
    assert tiny == pytest.approx(1e-6 * 5 * 60**0.5 / reference, rel=1e-3)
    assert large == pytest.approx(1, rel=1e-3)
    assert moves.change({name: value}) == 0


@pytest.mark.parametrize("bias", [False, True])
def test_units_whose_weights_are_all_zero_come_alive_when_they_move(bias):
    net = network(nn.Linear(3, 2, bias=bias), RELU, nn.Linear(2, 2))
    with torch.no_grad():
        for p in net[0].parameters():
            p.zero_()
    seen = seen_of(net, 3)
    for seed in range(3):  # a relu at its kink dies on one side of it, and not on the other
        kinds = {f.kind: len(f.tangents) for f in _families(_Moves(seen, seed), None)}
        assert kinds.get("outgoing weights of dead units") == 4
        assert "incoming weights of dead or unread units" not in kinds


class Watched(_Moves):
    """Remembers by how much weights were moved."""

    def change(self, changed):
        moved = {name: (value - self.weights[name]) for name, value in changed.items()}
        self.__dict__.setdefault("moved", []).append(moved)
        return super().change(changed)


def test_moves_are_about_as_long_as_what_they_move():
    net = network(nn.Linear(3, 4), RELU, nn.Linear(4, 2))
    with torch.no_grad():
        for p in net[2].parameters():
            p *= 50
        net[0].bias[1] = -1e4
    seen = seen_of(net, 3)
    moves = Watched(seen, 0)
    found = {f.kind for f in _families(moves, None)}
    assert {"ReLU scalings", "outgoing weights of dead units"} <= found
    out = [m for m in moves.moved if set(m) == {"2.weight"}]
    assert len(out) == 4  # one column each
    size = float(moves.weights["2.weight"].square().mean().sqrt())
    for j, m in enumerate(out):
        assert (m["2.weight"] != 0).any(0).tolist() == [k == j for k in range(4)]
        assert 0.05 * size < float(m["2.weight"][:, j].abs().max()) < 4 * size
    turned, *_ = (m for m in moves.moved if len(m) == 3)
    for name, value in turned.items():  # a change of basis that is none of a few digits only
        assert 0.1 < float(value.norm() / moves.weights[name].norm()) < 10
    rows = [m for m in moves.moved if set(m) == {"0.weight", "0.bias"}]
    for there, back in zip(rows[::2], rows[1::2], strict=True):  # each way
        assert all(torch.allclose(there[name], -back[name], rtol=1e-6, atol=1e-9) for name in there)
    which = [(m["0.weight"] != 0).any(1).tolist().index(True) for m in rows[::2]]
    assert which == [0, 1, 2, 3]
    for j, m in enumerate(rows[::2]):
        weights = moves.weights["0.weight"] / float(moves.weights["0.weight"].square().mean().sqrt())
        assert torch.isfinite(weights).all()
        length = float(m["0.weight"].norm())
        # What is dead is to stay dead, and is moved by little; what is not is replaced.
        assert 1e-4 < length < 1e-2 if j == 1 else 0.3 < length < 6


def test_steps_have_the_size_of_the_weights_and_one_more():
    net = network(nn.Linear(3, 4), RELU, nn.Linear(4, 2))
    seen = seen_of(net, 3)
    one, two = _Moves(seen, 5), _Moves(seen, 5)
    size = 1 + float(one.weights["2.weight"].square().mean().sqrt())
    assert torch.allclose(one.step("2.weight", 7), size * two.random(7), rtol=1e-12)
    many = one.random(100, 100)
    assert abs(float(many.mean())) < 0.05 < 0.95 < float(many.std()) < 1.05
    assert one.random().shape == ()


def test_multiples_of_a_unit_have_their_ratio():
    a = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    for ratio in (2.5, -0.1, 1.0):
        assert _parallel(a, ratio * a) == pytest.approx(ratio)
    off = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)  # at right angles
    for scale in (1e-4, 1.0, 1e4):
        assert _parallel(scale * a, 3 * scale * (a + 1e-3 * off)) is None
        assert _parallel(scale * a, 3 * scale * (a + 1e-9 * off)) == pytest.approx(3)
    assert _parallel(a, off) is None
    assert _parallel(0 * a, a) is None is _parallel(a, 0 * a)


def test_matrices_may_follow_one_another_where_their_sides_fit():
    net = network(nn.Linear(3, 4), RELU, nn.Linear(4, 4, bias=False), RELU, nn.Linear(4, 2))
    moves = _Moves(seen_of(net, 3), 0)
    pairs = set(_pairs(moves.weights))
    assert pairs == {
        ("0.weight", "2.weight", "0.bias"),
        ("0.weight", "4.weight", "0.bias"),
        ("2.weight", "4.weight", None),
    }
    square = {"a": torch.zeros(2, 2), "b": torch.zeros(2, 2), "c": torch.zeros(2)}
    assert set(_pairs(square)) == {("a", "b", None), ("b", "a", None)}


def test_families_say_how_many_they_have_and_how_many_no_other_has():
    flats, count = known_symmetries(seen_of(CASES["dead"][0], 3), None, seed=0)
    by_kind = {f.kind: (f.count, f.new) for f in flats}
    # A dead unit's scaling is one of the directions in which its weights may move.
    assert by_kind == {
        "ReLU scalings": (3, 3),
        "outgoing weights of dead units": (2, 2),
        "incoming weights of dead or unread units": (4, 3),
    }
    assert count == 8
    assert str(flats[0]) == "3 by scaling units of 0.weight → 2.weight (incoming · c, outgoing / c)"


def test_single_precision_sees_what_double_precision_does():
    net = CASES["relu"][0]
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(9))
    single = nn.Sequential(nn.Linear(3, 4), RELU, nn.Linear(4, 2))
    single.load_state_dict(net.state_dict())
    seen = Evaluation(cr.Landscape(single, (x, single(x).detach()), "gaussian"))
    flats, count = known_symmetries(seen, None, seed=0)
    assert (count, [f.kind for f in flats]) == (4, ["ReLU scalings"])
    tanh = nn.Sequential(nn.Linear(3, 4), TANH, nn.Linear(4, 2))
    tanh.load_state_dict(net.state_dict())
    assert known_symmetries(Evaluation(cr.Landscape(tanh, (x, tanh(x).detach()), "gaussian")), None, seed=0)[1] == 0


def test_one_unit_of_a_layer_that_scales_is_found_among_others():
    class Mixed(nn.Module):
        def forward(self, x):
            return torch.cat([x[:, :1].relu(), x[:, 1:].tanh()], 1)

    seen = seen_of(network(nn.Linear(3, 3), Mixed(), nn.Linear(3, 2)), 3)
    (family,) = _families(_Moves(seen, 0), None)
    assert (family.kind, len(family.tangents)) == ("ReLU scalings", 1)
    full = jacobian(seen)
    assert float((full @ family.tangents.T).abs().max()) < 1e-9 * float(full.norm() * family.tangents.norm())


def test_the_change_of_units_that_scale_one_by_one_is_the_largest_of_theirs():
    class Nearly(nn.Module):
        def forward(self, x):  # two that are homogeneous but for a little, and one that is not
            bent = x[:, :2].relu() + torch.tensor([1e-9, 3e-11]) * x[:, :2] ** 2
            return torch.cat([bent, x[:, 2:].tanh()], 1)

    class Recorded(_Moves):
        def change(self, changed):
            value = super().change(changed)
            rows = (changed["0.weight"] != self.weights["0.weight"]).any(1) if "0.weight" in changed else torch.ones(3)
            self.__dict__.setdefault("single", []).extend([value] * (len(changed) == 3 and int(rows.sum()) == 1))
            return value

    moves = Recorded(seen_of(network(nn.Linear(3, 3), Nearly(), nn.Linear(3, 2)), 3), 0)
    family = next(_families(moves, None))
    first, second, third = moves.single[:3]
    assert (family.kind, len(family.tangents)) == ("ReLU scalings", 2)
    assert family.change == first > 5 * second > 1e-12
    assert third > 1e-4


@pytest.mark.parametrize("width", [2, 16, 64])
def test_changes_of_basis_move_weights_by_as_much_whatever_the_width(width):
    moves = Watched(seen_of(network(nn.Linear(3, width, bias=False), nn.Linear(width, 2)), 3), 0)
    family = next(_families(moves, None))
    assert family.kind == "changes of basis between linear layers"
    moved = moves.moved[0]["0.weight"]
    assert 0.15 < float(moved.norm() / moves.weights["0.weight"].norm()) < 0.6
