"""Ranks at smooth points of the valley of minima, where the codimension is known in closed form."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.valley import _sank, _Smooth, valley
from crunode.errors import InputError
from crunode.exact import deep_linear_local
from crunode.examples import toys


def deep_linear(widths, ranks, seed=0, n=80, turned=False, loss="gaussian"):
    """A network whose layers have the given ranks, in double precision, on its own predictions."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(widths)]).double()
    with torch.no_grad():
        for layer, rank in zip(net, ranks, strict=True):
            u, s, v = torch.linalg.svd(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64))
            layer.weight.copy_((u[:, : len(s)] * torch.where(torch.arange(len(s)) < rank, s, 0.0)) @ v[: len(s)])
    x = torch.randn(n, widths[0], generator=generator, dtype=torch.float64)
    x = x.flip(0) if turned else x
    return cr.Landscape(net, (x, net(x).detach()), loss)


def local(widths, ranks):
    sizes, given = widths[::-1], ranks[::-1]
    table = [[min(given[s : t + 1]) for t in range(s, len(given))] for s in range(len(given))]
    return float(deep_linear_local(sizes, table))


@pytest.mark.heavy
@pytest.mark.parametrize("case", [(2, 2, 2, 0), (3, 2, 3, 1), (5, 3, 5, 0), (4, 3, 8, 0), (6, 4, 6, 2)])
def test_two_layers(case):
    inputs, hidden, outputs, rank = case
    # Where the factors have ranks b (out) and a (in), rank J is bM + (N − b)a; generic points of {BA = T} have as large
    # ranks as a + b ≤ H + r allows.
    strata = [
        b * inputs + (outputs - b) * a
        for a in range(rank, min(inputs, hidden) + 1)
        for b in range(rank, min(outputs, hidden) + 1)
        if a + b == hidden + rank
        or (a == inputs and a + b <= hidden + rank)
        or (b == outputs and a + b <= hidden + rank)
    ]
    found = valley(toys.reduced_rank(*case, n=60), starts=5)
    assert min(found.ranks) == min(strata)
    assert set(found.ranks) <= set(strata)
    assert max(found.distances) < 0.12
    assert max(found.errors) == 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("widths", "ranks"),
    [
        ((4, 6, 5, 3), (4, 3, 3)),
        ((5, 4, 6, 4), (3, 4, 2)),
        ((7, 5, 6), (2, 4)),
        ((6, 5, 5, 6, 4), (5, 3, 4, 4)),
        ((5, 6, 4), (5, 4)),
    ],
)
def test_deep_linear_networks_of_random_ranks(widths, ranks):
    found = valley(deep_linear(widths, ranks), starts=6)
    assert min(found.ranks) / 2 == local(widths, ranks)
    assert found.here / 2 <= local(widths, ranks)
    assert found.method == "dense"


def test_a_smooth_point_has_its_own_rank_all_around():
    found = valley(deep_linear((5, 6, 4), (5, 4)))
    assert found.smooth
    assert found.ranks == (found.here,) == (20.0,)  # all 4 × 5 numbers of the map can be moved


def test_a_singular_point_is_not_smooth():
    found = valley(toys.reduced_rank(5, 3, 5, 0, n=60))
    assert found.here == 0
    assert not found.smooth


def test_an_isolated_minimum_has_full_codimension():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, 1)
    found = valley(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    assert found.here == 4
    assert found.smooth


class Map(nn.Module):
    """Outputs that are functions of the weights alone, times the input."""

    def __init__(self, function, size):
        super().__init__()
        self.w, self.function = nn.Parameter(torch.zeros(size, dtype=torch.float64)), function

    def forward(self, x):
        return x * self.function(self.w)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: w.square().sum()[None],  # a point, where J vanishes: codimension 3
        lambda w: torch.stack([w[0] ** 2, w[1] ** 2]),  # a line, twice
    ],
    ids=["point", "double line"],
)
def test_where_j_has_less_than_the_codimension_there_is_no_rank(function):
    x = torch.ones(4, 1, dtype=torch.float64)
    model = Map(function, 3)
    found = valley(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    assert found.ranks == ()
    assert found.here == 0


def test_a_cusp_gives_the_codimension_of_its_smooth_points():
    x = torch.ones(4, 1, dtype=torch.float64)
    model = Map(lambda w: (w[0] ** 2 - w[1] ** 3)[None], 2)
    found = valley(cr.Landscape(model, (x, model(x).detach()), "gaussian"))
    assert found.here == 0
    assert set(found.ranks) == {1.0}  # half of which, 1/2, is above λ = 5/12


def nets():
    torch.manual_seed(0)
    yield "tanh", nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(60, 3), "gaussian"
    yield "relu", nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(60, 3), "categorical"
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    yield "convolution", convolution, torch.randn(60, 1, 4, 4), "categorical"
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    tied[2].weight = tied[0].weight
    yield "tied", tied, torch.randn(60, 4), "gaussian"


@pytest.mark.parametrize(("name", "model", "x", "kind"), list(nets()), ids=lambda v: v if isinstance(v, str) else "")
def test_other_networks(name, model, x, kind):
    with torch.no_grad():
        out = model(x)
    if kind == "categorical":
        target = out.softmax(1)
        land = cr.Landscape(model, (x, target), nn.CrossEntropyLoss())
    else:
        land = cr.Landscape(model, (x, out), "gaussian")
    found = valley(land)
    assert found is not None
    assert found.smooth, (found.here, found.ranks)
    # Units of a rectifier can be scaled, and class scores shifted together: that many directions are free.
    free = {"tanh": 0, "relu": 5 + 5 + 1, "convolution": 2 + 8 + 1, "tied": 0}[name]
    expected = land.dim - free
    assert found.here == expected if name != "convolution" else found.here <= land.dim - 2 - 1


@pytest.mark.heavy
def test_without_matrices_the_rank_is_the_same():
    land = deep_linear((7, 5, 6), (2, 4))
    dense, free = valley(land), valley(land, around=(0.1,), starts=1, krylov=True)
    assert free.method == "krylov"
    assert dense.method == "dense"
    assert free.here == dense.here
    assert set(free.ranks) <= set(dense.ranks)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("widths", "ranks"), [((10, 6, 12, 4, 10), (6, 2, 1, 4)), ((16, 8, 18, 5, 14, 16, 12), (8, 3, 1, 5, 7, 9))]
)
def test_without_matrices_pieces_that_are_far_away_are_followed_to_the_center(widths, ranks):
    # From this far most points have less than the local rank.
    found = valley(deep_linear(widths, ranks, n=300), krylov=True, reach=0.5, starts=2)
    assert min(found.ranks) / 2 == local(widths, ranks)
    assert max(found.distances) < 0.1


@pytest.mark.slow
def test_random_networks_of_a_thousand_weights_without_matrices():
    land = deep_linear((30, 20, 25, 18), (11, 20, 9), n=200)
    dense, free = valley(land), valley(land, krylov=True)
    for rank, error in zip(free.ranks, free.errors, strict=True):
        assert min(abs(rank - r) for r in dense.ranks) <= 3 * error


@pytest.mark.heavy
def test_the_order_of_examples_and_the_scale_of_the_loss_do_not_matter():
    plain = deep_linear((5, 4, 6, 4), (3, 4, 2))
    turned = deep_linear((5, 4, 6, 4), (3, 4, 2), turned=True)
    scaled = deep_linear((5, 4, 6, 4), (3, 4, 2), loss=lambda f, t: 7e3 * (f - t).square().sum(1))
    ranks = [(v.here, min(v.ranks)) for v in (valley(a, starts=4) for a in (plain, turned, scaled))]
    assert ranks[0] == ranks[1] == ranks[2]


def test_the_same_seed_gives_the_same():
    land = deep_linear((5, 4, 6, 4), (3, 4, 2))
    assert valley(land, seed=3) == valley(land, seed=3)


def test_what_cannot_be_seen_gives_none():
    assert valley(toys.quadratic(2)) is None

    class Single(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x.float() @ torch.ones(1, 1) * self.w.float()

    x = torch.randn(9, 1)
    land = cr.Landscape(Single(), (x, x), "gaussian")
    assert valley(land) is None or valley(land).here == 1


@pytest.mark.parametrize("bad", [{"starts": 0}, {"around": ()}, {"around": (0.1, -1.0)}, {"around": (float("nan"),)}])
def test_bad_input(bad):
    with pytest.raises(InputError, match="expected"):
        valley(toys.reduced_rank(2, 2, 2, 0, n=20), **bad)


def test_further_starts_are_asked_for_at_singular_points_alone():
    asked = []

    def offsets(land):
        def give():
            asked.append(land.dim)
            generator = torch.Generator().manual_seed(3)
            yield 0.1 * torch.randn(land.dim, generator=generator, dtype=torch.float64)

        return give

    singular, smooth = deep_linear((6, 4, 5), (2, 3)), deep_linear((6, 4, 5), (4, 4))
    found = valley(singular, offsets=offsets(singular))
    assert asked == [singular.dim]
    assert min(found.ranks) / 2 == local((6, 4, 5), (2, 3))
    valley(smooth, offsets=offsets(smooth))
    assert asked == [singular.dim]


def test_without_a_reach_no_step_goes_farther():
    land = toys.reduced_rank(3, 3, 3, 1, n=40)
    usual, none, far = (valley(land, starts=1, around=(0.05,), **more) for more in ({}, {"reach": 0.0}, {"reach": 0.5}))
    assert usual == none
    assert max(usual.distances) < 0.06
    assert max(far.distances) > 2 * max(usual.distances)


@pytest.mark.parametrize("krylov", [False, True])
def test_what_was_looked_at_is_told(krylov):
    land = toys.reduced_rank(3, 2, 4, 1, n=60)
    found = valley(land, starts=1, around=(0.05,), krylov=krylov)
    assert found.method == ("krylov" if krylov else "dense")
    assert found.rows == 4 * found.examples
    assert 0 < found.examples < 60
    assert found.gradients > 10
    assert len(found.ranks) == len(found.errors) == len(found.distances)
    assert all(0 <= d < 0.1 for d in found.distances)
    # At the center one layer's rank shows the outputs, the other's the inputs: 1·3 + 4·1 − 1, and more beside it.
    assert found.here == pytest.approx(6, abs=0.5)


@pytest.mark.parametrize(
    ("rank", "error", "distance", "sank"),
    [
        (150.0, 0.0, 0.4, False),
        (148.0, 0.0, 0.4, False),  # another piece: nothing is near the limit
        (148.0, 0.0, 0.05, True),
        (148.0, 1.0, 0.4, True),
        (160.0, 1.0, 0.4, False),
    ],
)
def test_less_rank_than_farther_away_is_rounding_where_it_may_be(rank, error, distance, sank):
    far = _Smooth(150.0, 0.0, 0.8, torch.zeros(1))
    assert _sank(far, _Smooth(rank, error, distance, torch.zeros(1))) is sank
