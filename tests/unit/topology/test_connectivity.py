"""Strings, bands and curves where the answer is known: chains, ReLU units, wells, linear nets, adversarial data."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.examples.toys import scalar_chain, units_potential
from crunode.topology import barrier, connect
from crunode.topology.connectivity import Request, join
from crunode.topology.heights import Heights
from crunode.topology.paths import examine_path
from crunode.topology.strings import Caps, Goal, grow_strings


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def chain_ends(width, seed=0):
    w = torch.randn(2 * width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w[0] = 0.8
    w[width] += (1 - (w[:width] * w[width:]).sum()) / w[0]
    return w, -w


def unit_solution(width, seed):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(2 * width, generator=generator, dtype=torch.float64)
    a, v = w[:width], w[width:]
    v[0], v[1] = v[0].abs() + 0.2, -v[1].abs() - 0.2
    a[0] += (1 - (a * torch.relu(v)).sum()) / v[0]
    a[1] += (1 - (a * torch.relu(-v)).sum()) / -v[1]
    order = torch.randperm(width, generator=generator)
    return torch.cat([a[order], v[order]])


def wells(w):
    """Two wells at (±1, 0) and a saddle of height 1 at (0, 1), off the straight line, which rises to 3."""
    return (w[0] ** 2 - 1) ** 2 + 2 * (w[1] - 1 + w[0] ** 2) ** 2


def is_proof(connection, land, count=4000):
    """The path's loss on a grid that has nothing to do with the one that was checked."""
    points = torch.stack([connection.path.at(t) for t in np.linspace(0, 1, count)])
    return float(Heights(land).values(points).max()) <= connection.level


@pytest.mark.heavy
@pytest.mark.parametrize("width", [2, 4])
def test_wide_chains_are_connected_from_a_solution_to_its_negative(width):
    a, b = chain_ends(width)
    land = Landscape.of_function(scalar_chain(width), a)
    found = connect(land, a, b, 0.01)
    assert found.connected
    assert torch.equal(found.path.points[0], a)
    assert torch.equal(found.path.points[-1], b)
    assert is_proof(found, land)


@pytest.mark.heavy
def test_chain_of_width_one_has_the_barrier_one():
    a, b = chain_ends(1)
    land = Landscape.of_function(scalar_chain(1), a)
    below = connect(land, a, b, 0.97, strings=2)
    assert below.answer == "unknown"
    assert below.reason
    assert below.findings[0].code in ("TOPO1121", "TOPO1122")
    above = connect(land, a, b, 1.03)
    assert above.connected
    assert is_proof(above, land)
    found = barrier(land, a, b, strings=1, tolerance=0.1)
    assert 1.0 <= found.height.value <= 1.05
    assert found.height.terms["level"] <= 0.11


@pytest.mark.heavy
@pytest.mark.parametrize("width", [3, 6, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_three_or_more_relu_units_have_no_barrier(width, seed):
    a, b = unit_solution(width, 10 * seed), unit_solution(width, 10 * seed + 1)
    land = Landscape.of_function(units_potential(width, 1), a)
    found = connect(land, a, b, 0.01)
    assert found.connected, found.reason
    assert is_proof(found, land)


@pytest.mark.heavy
def test_two_relu_units_have_the_barrier_a_half():
    a, b = vector(1, 1, 1, -1), vector(0.8, 1, -1 / 0.8, 1)
    land = Landscape.of_function(units_potential(2, 1), a)
    assert not connect(land, a, b, 0.49, strings=2).connected
    found = barrier(land, a, b, strings=1, tolerance=0.05)
    assert 0.5 <= found.height.value <= 0.5 + 0.05 * found.bounds["line"]
    assert found.path.largest <= found.level


@pytest.mark.heavy
@pytest.mark.parametrize(("method", "most"), [("band", 1.01), ("bezier", 1.15), ("polygon", 1.5), ("line", 3.0)])
def test_two_wells_by_every_method(method, most):
    a, b = vector(-1, 0), vector(1, 0)
    found = barrier(Landscape.of_function(wells, a), a, b, method)
    assert 1.0 <= found.height.value <= most * 1.002
    assert found.bounds[method] == pytest.approx(found.height.value, rel=1e-2)


@pytest.mark.heavy
def test_auto_takes_the_lowest_and_finds_the_saddle():
    a, b = vector(-1, 0), vector(1, 0)
    found = barrier(Landscape.of_function(wells, a), a, b, strings=1, tolerance=0.05)
    assert set(found.bounds) == {"line", "band", "bezier", "string"}
    assert found.height.value <= min(found.bounds.values()) + 1e-9
    assert 1.0 <= found.height.value <= 1.0 + found.height.systematic
    assert found.height.spec["by"] in found.bounds


def test_overparametrized_linear_nets_are_connected():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False)).double() for _ in range(2)]
    x = torch.randn(20, 3, dtype=torch.float64)
    y = x @ torch.randn(3, 2, dtype=torch.float64)
    for net in nets:  # the second layer solves for the targets exactly
        with torch.no_grad():
            inner = net[0].weight
            net[1].weight.copy_(torch.linalg.lstsq(x @ inner.T, y).solution.T)
    land = Landscape(nets[0], (x, y), nn.functional.mse_loss)
    found = connect(land, *nets, 0.01)
    assert found.connected
    assert is_proof(found, land)


def test_answers_repeat_and_nothing_of_the_caller_changes():
    a, b = unit_solution(3, 5), unit_solution(3, 6)
    land = Landscape.of_function(units_potential(3, 1), a)
    kept, state, center = copy.deepcopy((a, b)), torch.get_rng_state(), land.center.clone()
    one, two = connect(land, a, b, 0.02, seed=3), connect(land, a, b, 0.02, seed=3)
    assert one.answer == two.answer
    assert torch.equal(one.path.points, two.path.points)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(land.center, center)
    assert all(torch.equal(x, y) for x, y in zip(kept, (a, b), strict=True))


def test_pieces_one_by_one_give_proofs_too():
    a, b = chain_ends(2)
    heights = Heights(Landscape.of_function(scalar_chain(2), a))
    goal = Goal(torch.stack([a, b]), 0.01, 0.0)
    (found,) = grow_strings(heights, [goal], torch.Generator().manual_seed(0), Caps(), together=1)
    assert found.path is not None
    assert found.path.bound <= 0.01


def test_caps_are_reasons():
    a, b = chain_ends(2)
    land = Landscape.of_function(scalar_chain(2), a)
    few = connect(land, a, b, 1e-3, beads=3, strings=1)
    assert few.findings[0].code == "TOPO1122"
    assert "3 beads" in few.reason
    shallow = connect(land, a, b, 1e-3, depth=1, strings=1)
    assert "1 divisions" in shallow.reason


def test_pairs_are_joined_side_by_side():
    a, b = chain_ends(2)
    heights = Heights(Landscape.of_function(scalar_chain(2), a))
    requests = [Request(a, b, 0.05, 0.0), Request(a, a, 0.05, 0.0), Request(b, a, 0.02, 0.0)]
    found = join(heights, requests, torch.Generator().manual_seed(0), Caps(), 4)
    assert [outcome.path is not None for outcome in found] == [True] * 3
    assert found[2].path.bound <= 0.02


def test_narrow_peak_between_grid_points_is_found_by_its_slopes():
    """A kink of height 1 that is between two of the first nine grid points."""
    land = Landscape.of_function(
        lambda w: (1 - 20 * (w[0] - 0.5625).abs()).clamp_min(0.0) + 0.0 * w.sum(), torch.zeros(1)
    )
    path = examine_path(Heights(land), vector(0.0, 1.0)[:, None])
    # The tent reaches from 0.5125 to 0.6125; neither 0.5 nor 0.625 is on it, so that no grid value shows it.
    assert path.largest == 0.0
    wide = Landscape.of_function(
        lambda w: (1 - 12 * (w[0] - 0.5625).abs()).clamp_min(0.0) + 0.0 * w.sum(), torch.zeros(1)
    )
    path = examine_path(Heights(wide), vector(0.0, 1.0)[:, None])
    assert path.largest == pytest.approx(1.0, abs=0.02)
    assert path.bound >= 1.0 - 1e-9


def test_losses_that_are_no_numbers_are_walls():
    land = Landscape.of_function(lambda w: (w[0] ** 2 + w[1] ** 2 - 1) ** 2 / (w[1] > -0.5), vector(1, 0))
    found = connect(land, vector(1, 0), vector(-1, 0), 0.1)
    assert found.connected
    assert float(found.path.points[:, 1].min()) > -0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"level": 0.001}, "at or below the level"),
        ({"level": -1.0}, "at or below the level"),
        ({"level": float("nan")}, "finite number"),
        ({"b": torch.zeros(3)}, "flat vector of 2 weights"),
        ({"b": nn.Linear(2, 2)}, "b: expected"),
        ({"b": vector(float("inf"), 0)}, "finite"),
        ({"strings": 0}, "strings"),
        ({"beads": 2}, "beads"),
        ({"depth": True}, "depth"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_of_connect(change, words):
    land = Landscape.of_function(wells, vector(-1, 0))
    given = {"a": vector(-1, 0), "b": vector(1, 0.1), "level": 2.0} | change
    with pytest.raises(InputError, match=words):
        connect(land, given.pop("a"), given.pop("b"), given.pop("level"), **given)


@pytest.mark.parametrize("change", [{"method": "magic"}, {"tolerance": 0.0}, {"tolerance": 2}, {"steps": 0}])
def test_bad_input_of_barrier(change):
    land = Landscape.of_function(wells, vector(-1, 0))
    with pytest.raises(InputError, match="expected"):
        barrier(land, vector(-1, 0), vector(1, 0), **change)


def test_other_statistics_of_a_fixed_buffer_are_refused():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).eval()
    land = Landscape(net, (torch.randn(8, 2), torch.randn(8, 1)), "gaussian")
    other = copy.deepcopy(net)
    other[1].running_mean += 1.0
    with pytest.raises(InputError, match="fixed parameters and buffers"):
        connect(land, net, other, 10.0)
