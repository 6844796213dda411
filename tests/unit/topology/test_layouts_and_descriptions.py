"""How much a plane evaluates at once, and what is told of a critical point that is known up to a step."""

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology import plane_losses as module
from crunode.topology.critical import _described
from crunode.topology.newton import Ends, PointBatch
from crunode.topology.plane_losses import Layout, _chosen, _rows, _several, _Whole, plane_losses

EPS = 2.0**-52


def scene(count=100):
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Landscape(net, (x, x[:, :1]), "gaussian")


def directions(land):
    return torch.randn(2, land.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def places(count):
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("room", "rows"),
    [
        (33, 34),  # three parts of a hundred
        (40, 50),  # two parts and a half are two
        (41, 50),
        (26, 25),  # four
        (1, 17),  # sixteen examples are few enough: six parts
        (70, 100),
        (1000, 100),
    ],
)
def test_examples_are_taken_in_equal_parts_as_large_as_there_is_room_for(monkeypatch, room, rows):
    land = scene()
    way = _Whole(land, land.center, directions(land))
    way.per_example = 6
    monkeypatch.setattr(module, "_ONE", room * 6)
    assert _rows(land, way) == rows


def test_points_at_once_are_those_that_caches_and_memory_hold(monkeypatch):
    land = scene(20)
    way = _Whole(land, land.center, directions(land))
    each = 20 * way.per_example + land.dim
    monkeypatch.setattr(module, "_SEVERAL", 7 * each)
    assert _several(land, way, 50) == Layout("batched", 7, 20)
    assert _several(land, way, 4) == Layout("batched", 4, 20)
    monkeypatch.setattr(module, "_SEVERAL", 7 * each - 1)
    assert _several(land, way, 50).points == 6
    monkeypatch.setattr(module, "_SEVERAL", 7 * each)
    monkeypatch.setattr(module, "memory_class", lambda device: 16 * 8 * 3.5 * each)  # sixteen copies in doubles
    assert _several(land, way, 50).points == 3
    monkeypatch.setattr(module, "_SEVERAL", 1)
    assert _several(land, way, 50).points == 1


def test_few_points_are_taken_alone_and_several_together(monkeypatch):
    land = scene(20)
    whole = _Whole(land, land.center, directions(land))
    ways = {"sequential": whole, "batched": whole}
    assert _chosen(land, ways, places(3))[0].name == "sequential"
    layout, why = _chosen(land, ways, places(4))
    assert (layout.name, layout.points, why) == ("batched", 4, "several points together")
    monkeypatch.setattr(module, "_SEVERAL", 1)
    layout, why = _chosen(land, ways, places(4))
    assert (layout.name, layout.points, why) == ("sequential", 1, "one point fills the caches")
    monkeypatch.setattr(module, "_SEVERAL", 1 << 20)
    monkeypatch.setattr(module, "why_apart", lambda *args, **options: "told so")
    layout, why = _chosen(land, ways, places(4))
    assert (layout.name, layout.points, why) == ("sequential", 1, "told so")


@pytest.mark.parametrize(("held", "blocks"), [(40, [40, 40, 20]), (100, [100]), (3, [16] * 6 + [4])])
def test_first_layer_values_are_held_as_far_as_there_is_room(monkeypatch, held, blocks):
    land, way = scene(), None
    seen, real = [], module._Affine._forms
    monkeypatch.setattr(module._Affine, "_forms", lambda self, batch: seen.append(len(batch[0])) or real(self, batch))
    monkeypatch.setattr(module, "_HELD", held * 5 * 3)  # five outputs at the origin and along two directions
    at = places(4)
    losses, way = plane_losses(land, land.center, directions(land), at, Layout("affine", 3, 30))
    assert seen == [16, *blocks]  # the first is a trial with sixteen examples
    assert way == {"name": "affine", "points": 3, "rows": 30, "why": "as asked for"}
    expected = [float(land.loss(land.center + c @ directions(land))) for c in at]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def described(sizes, step, scale, far=0.0, loss=7.0, bend=1.0):
    """A point of loss 7 with a diagonal Hessian, of which the first entry moves by `bend` along the first axis."""
    diagonal = torch.tensor(sizes, dtype=torch.float64)
    center = torch.zeros(len(sizes), dtype=torch.float64)
    center[-1] = far
    land = Landscape.of_function(
        lambda w: loss + (diagonal * (w - center) ** 2).sum() / 2 + bend * w[0] ** 3 / 6, center
    )
    one = torch.ones(2, dtype=torch.float64)
    remaining = torch.zeros(2, len(sizes), dtype=torch.float64)
    remaining[1, 0] = step
    ends = Ends(
        torch.stack([center + 1, center]), one * torch.tensor([0.0, loss]), one * torch.tensor([9.0, 0.25]),
        one * torch.tensor([1.0, scale]), remaining, one, one, one, one < 0,
    )  # fmt: skip
    return _described(PointBatch(land), ends, 1, 5, {"a": 1}, 3, {}, ())


@pytest.mark.parametrize("bend", [1.0, -1.0])
def test_eigenvalues_are_uncertain_by_what_four_times_the_step_that_is_left_changes(bend):
    point = described([2.0, -3.0, 1.0], 1e-3, 1.0, bend=bend)
    assert point.error == pytest.approx(4e-3, rel=1e-9)
    assert point.loss.value == 7
    assert point.loss.systematic == pytest.approx(2.0 * 1e-6 / 2 + 8 * EPS * 7, rel=1e-9)
    assert (point.gradient, point.start, point.index.diagnostics) == (0.25, 5, {"start": 5})
    assert (point.index.spec, point.index.seed) == ({"a": 1}, 3)
    for count, factor in ((2, 30), (5, 40)):  # thirty roundings, or eight for each parameter
        still = described([-3.0] + [1.0] * (count - 1), 0.0, 1.0)
        assert still.error == pytest.approx(factor * EPS * 3, rel=1e-9, abs=0)
        assert still.loss.systematic == pytest.approx(8 * EPS * 7, rel=1e-9, abs=0)


@pytest.mark.parametrize("far", [0.0, 10.0])
@pytest.mark.parametrize(("curved", "sure"), [(50.0, True), (30.0, False)])
def test_small_eigenvalues_are_zero_where_curvature_was_large_and_else_unsigned(far, curved, sure):
    """An error of 4e-3 is small beside a curvature of 40 or more where the search began."""
    point = described([2.0, -3.0, 1e-3], 1e-3, curved * max(far, 1.0), far=far)
    assert (point.index.value, point.index.systematic) == ((1.0, 0.0) if sure else (1.5, 0.5))
    assert (point.fraction.value, point.fraction.systematic) == pytest.approx((1 / 3, 0) if sure else (0.5, 1 / 6))
    assert (point.degenerate.value, point.degenerate.systematic) == ((1.0, 0.0) if sure else (0.5, 0.5))
    assert [f.code for f in point.index.findings] == ([] if sure else ["TOPO1104"])
    if not sure:
        assert "1 of 3 eigenvalues below 0.004, null space between 0 and 1 dimensions, at start 5" in str(
            point.index.findings[0]
        )
