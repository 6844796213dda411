"""Searches for low paths: what they ask for, what they state, and when they give up."""

import math

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.topology import barrier, barriers, connect, connectivity, merge_tree
from crunode.topology.barriers import bisected
from crunode.topology.connectivity import Request, join
from crunode.topology.heights import Heights
from crunode.topology.merging import MergeTree, _way
from crunode.topology.paths import Path, examine_path
from crunode.topology.strings import Caps, Goal, Outcome, grow_strings


def rows(*points):
    return torch.tensor(points, dtype=torch.float64)


def tilted(w):
    """Wells near ±1 on unlike heights, with a barrier between them that a way around w[1] does not lower."""
    return (w[0] ** 2 - 1) ** 2 + 0.25 * (w[0] + 1) + w[1] ** 2


def land(function=tilted, dim=2):
    return Landscape.of_function(function, torch.zeros(dim, dtype=torch.float64))


A, B = rows([-1, 0])[0], rows([1, 0])[0]


def top_of_the_line():
    x = np.linspace(-1, 1, 200_001)
    return ((x**2 - 1) ** 2 + 0.25 * (x + 1)).max()


def test_barrier_of_a_line_is_above_the_higher_end():
    found = barrier(land(), A, B, "line", tolerance=0.03, strings=5, beads=50, depth=7, steps=20)
    assert found.losses == (0.0, 0.5)
    truth = top_of_the_line() - 0.5
    assert truth <= found.height.value <= truth + 1e-3
    assert found.level == found.path.bound == pytest.approx(found.height.value + 0.5, abs=1e-15)
    assert found.bounds == {"line": found.height.value}
    terms = found.height.terms
    assert terms["grid"] == pytest.approx(found.path.bound - found.path.largest, abs=1e-15)
    assert terms["level"] == pytest.approx(found.path.largest - 0.5, abs=1e-15)
    assert found.height.systematic == pytest.approx(math.hypot(terms["grid"], terms["level"]))
    assert found.height.findings == ()
    seen = found.height.diagnostics
    assert (seen["largest"], seen["ends"], seen["corners"]) == (found.path.largest, 0.5, 2)
    assert seen["grid_points"] == len(found.path.losses) > 2
    spec = found.height.spec
    assert [spec[k] for k in ("method", "tolerance", "strings", "beads", "depth", "steps", "by")] == [
        "line", 0.03, 5, 50, 7, 20, "line"
    ]  # fmt: skip
    assert spec["evaluations"] >= len(found.path.losses)


def test_no_barrier_on_the_way_down():
    """No grid point of the straight line is above its end; between them the loss may be, as far as differences tell."""
    bowl = land(lambda w: (w[0] + w[1]) ** 2)
    found = barrier(bowl, rows([2, 0])[0], rows([1, 0])[0], strings=1, steps=5, tolerance=0.2)
    assert 0 <= found.height.value < 0.01
    assert found.path.largest == 4
    assert found.losses == (4.0, 1.0)


def stated(level):
    return Path(torch.stack([A, B]), np.zeros(2), np.zeros(2), level, level, 0.0)


def oracle(lowest, asked):
    """Instead of a search: there is a path at each level from the lowest one up."""

    def join(heights, requests, generator, caps, strings):
        asked.append(list(requests))
        good = [r.level >= lowest[float(r.a[0])] for r in requests]
        return [
            Outcome(stated(r.level) if ok else None, "" if ok else "none", False, 2, 0)
            for r, ok in zip(requests, good, strict=True)
        ]

    return join


@pytest.mark.parametrize("lowest", [0.1, 0.5, 3.3, 7.0, 7.95])
def test_bisection_comes_within_the_tolerance_of_the_lowest_level(monkeypatch, lowest):
    asked = []
    monkeypatch.setattr(barriers, "join", oracle({0.0: lowest, 1.0: -9.0}, asked))
    given = [(rows(0.0)[:1].reshape(1), rows(5.0).reshape(1), stated(8.0), None, None) for _ in range(1)]
    given.append((rows(1.0).reshape(1), rows(5.0).reshape(1), stated(4.0), None, None))
    ends = [(-1.0, 0.25), (0.5, 0.0)]
    one, other = bisected(None, given, ends, 0.1, None, Caps(), 1)
    assert lowest <= one.path.bound
    low = 0.25 if one.failed is None else one.failed
    assert low <= max(lowest, 0.25)
    assert one.path.bound - low <= 0.1 * (1 + 1e-6)
    assert (one.outcome is None) == (one.failed is None)
    assert 0.5 < other.path.bound <= 0.6
    assert other.failed is None
    assert len(asked) < 14
    first = [r for batch in asked for r in batch if float(r.a) == 0.0]
    assert {r.floor for r in first} == {-1.0}
    assert {r.floor for batch in asked for r in batch if float(r.a) == 1.0} == {0.0}
    assert all(torch.equal(r.starts[0], torch.stack([A, B])) for r in first)


def test_bisection_goes_down_in_growing_steps_until_it_fails(monkeypatch):
    asked = []
    monkeypatch.setattr(barriers, "join", oracle({0.0: 57.0}, asked))
    given = [(rows(0.0).reshape(1), rows(1.0).reshape(1), stated(80.0), None, None)]
    bisected(None, given, [(0.0, 0.0)], 1.0, None, Caps(), 1)
    levels = [batch[0].level for batch in asked]
    assert levels[:4] == [79.0, 75.0, 59.0, 29.5]  # steps of 1, 4 and 16; 64 is past the middle
    assert levels[4] == (59.0 + 29.5) / 2
    asked.clear()
    given = [(rows(0.0).reshape(1), rows(1.0).reshape(1), stated(80.0), 56.5, Outcome(None, "before", False, 2, 0))]
    (found,) = bisected(None, given, [(0.0, 0.0)], 1.0, None, Caps(), 1)
    assert min(batch[0].level for batch in asked) > 56.5
    assert found.path.bound - found.failed <= 1.0 + 1e-6


@pytest.mark.parametrize("tolerance", [1e-18, 0.0])
@pytest.mark.parametrize("lowest", [-math.inf, 1 + 2.0**-45, math.inf])
def test_bisection_ends_at_the_rounding_of_the_level(monkeypatch, lowest, tolerance):
    asked = []
    search = oracle({0.0: lowest}, asked)

    def counted(*args):
        assert len(asked) < 200
        return search(*args)

    monkeypatch.setattr(barriers, "join", counted)
    for top in (1 + 2.0**-52, 1 + 2.0**-50, 1 + 2.0**-40):
        asked.clear()
        before = Outcome(None, "before", False, 2, 0)
        given = [(rows(0.0).reshape(1), rows(1.0).reshape(1), stated(top), 1.0, before)]
        (found,) = bisected(None, given, [(1.0, 1.0)], tolerance, None, Caps(), 1)
        assert 0 <= found.path.bound - found.failed <= 4 * 2.0**-52
        assert found.failed < lowest or found.failed == 1.0
        assert found.path.bound >= min(lowest, top)


@pytest.mark.parametrize("rise", [2.0**-52, 2.0**-50, 2.0**-45])
def test_a_barrier_of_the_order_of_rounding_is_found_in_an_end(rise):
    bump = land(lambda w: 1 + rise * (1 - w[0] ** 2), dim=1)
    found = barrier(bump, rows(-1.0), rows(1.0), "string", strings=1, steps=3, beads=8, depth=2)
    assert found.losses == (1.0, 1.0)
    assert rise <= found.height.value <= 1.1 * rise + 8 * 2.0**-52


def test_first_search_of_a_barrier_is_just_above_the_ends(monkeypatch):
    asked = []
    monkeypatch.setattr(barriers, "join", oracle({-1.0: 0.0}, asked))
    found = barrier(land(), A, B, "string", tolerance=0.04)
    (request,) = asked[0]
    assert request.level == pytest.approx(0.5 + 0.04 * (top_of_the_line() - 0.5), rel=1e-6)
    assert request.floor == 0.0
    assert (torch.equal(request.a, A), torch.equal(request.b, B)) == (True, True)
    assert found.height.spec["by"] == "line" or set(found.bounds) == {"line", "string"}


def test_highest_level_without_a_path_is_told(monkeypatch):
    asked = []
    monkeypatch.setattr(barriers, "join", oracle({-1.0: 0.9}, asked))
    found = barrier(land(), A, B, "string", tolerance=0.04)
    assert set(found.bounds) == {"line", "string"}
    codes = [f.code for f in found.height.findings]
    assert codes[0] == "TOPO1121"
    failed = max(r.level for batch in asked for r in batch if r.level < 0.9)
    assert f"at level {failed:.4g}" in found.height.findings[0].message


def test_doubt_up_to_a_tenth_of_the_height_is_none():
    for bound, told in ((1.08, False), (1.1, True)):  # heights of 0.88 and 0.9
        path = Path(rows([0.0], [1.0]), np.zeros(2), np.zeros(2), 1.0, bound, 0.1)
        if told:
            with pytest.warns(UserWarning, match="barrier"):
                found = barriers._height(path, 0.2, None, {}, 0)
            assert [f.code for f in found.findings] == ["TOPO1123"]
        else:
            found = barriers._height(path, 0.2, None, {}, 0)
        assert bool(found.findings) == told


def test_connection_states_its_settings_and_costs():
    ring = land(lambda w: (w.square().sum() - 1) ** 2)
    found = connect(ring, A, B, 0.1, strings=5, beads=40, depth=9)
    spec = found.spec
    assert {k: spec[k] for k in ("level", "strings", "beads", "depth")} == {
        "level": 0.1, "strings": 5, "beads": 40, "depth": 9
    }  # fmt: skip
    assert spec["beads_used"] == len(found.path.points)
    assert 2 ** spec["depth_used"] >= len(found.path.points) - 1 > spec["depth_used"] >= 1
    assert spec["evaluations"] > len(found.path.losses)
    assert found.findings == ()
    assert found.losses == (0.0, 0.0)
    assert len(found.path.points) < 12


def test_floor_of_a_search_is_the_lower_end(monkeypatch):
    asked, real = [], connectivity.join
    monkeypatch.setattr(
        connectivity, "join", lambda h, requests, *rest: asked.extend(requests) or real(h, requests, *rest)
    )
    connect(land(), A, B, 2.0)
    assert (asked[0].floor, asked[0].level) == (0.0, 2.0)


def test_beads_come_down_to_half_of_the_level():
    assert Goal(rows([0.0], [1.0]), 3.0, 1.0).target == 2.0
    ring = Heights(land(lambda w: (w.square().sum() - 1) ** 2))
    goal = Goal(torch.stack([A, B]), 0.1, 0.0)
    (found,) = grow_strings(ring, [goal], torch.Generator().manual_seed(0), Caps())
    values = ring.values(found.path.points)
    assert (values[1:-1] <= 0.05).all()


def test_a_wall_is_given_up_after_a_few_divisions():
    wells = Heights(land(lambda w: (w[0] ** 2 - 1) ** 2, 1))
    goal = Goal(rows([-1.0], [1.0]), 0.5, 0.0)
    (found,) = grow_strings(wells, [goal], torch.Generator().manual_seed(0), Caps())
    assert found.path is None
    assert not found.cap
    assert "did not bring it below a loss of 1" in found.reason
    assert found.beads <= 10
    assert found.beads - 2 == found.depth


def test_detours_begin_from_a_quarter_to_twice_the_distance_away(monkeypatch):
    begun = []

    def nothing(heights, goals, generator, caps):
        begun.append(goals)
        return [Outcome(None, "none", False, 2, 0)] * len(goals)

    monkeypatch.setattr(connectivity, "grow_strings", nothing)
    a, b = rows([-1, 0, 0])[0], rows([2, 0, 0])[0]
    requests = [Request(a, b, 1.0, 0.0, (rows([-1, 0, 0], [0, 1, 0], [2, 0, 0]),)), Request(b, a, 2.0, 0.5)]
    found = join(Heights(land(dim=3)), requests, torch.Generator().manual_seed(0), Caps(), 6)
    assert [o.path for o in found] == [None, None]
    first, second = begun
    assert [(g.group, len(g.points), g.level, g.floor) for g in first] == [(0, 2, 1, 0), (0, 3, 1, 0), (1, 2, 2, 0.5)]
    assert [g.group for g in second] == [0] * 5 + [1] * 5
    away = [float((g.points[1] - (a + b) / 2).norm()) / 3 for g in second[:5]]
    assert min(away) == pytest.approx(0.25)
    assert max(away) == pytest.approx(2)
    assert len({round(x, 9) for x in away[:4]}) == 4
    assert away[4] == pytest.approx(away[0])
    assert all(torch.equal(g.points[[0, 2]], torch.stack([a, b])) for g in second[:5])


def three_wells(w):
    """Wells at −2, 0 and 2; barriers of 1 at −1 and of 2 at 1."""
    x = w[0]
    return torch.where(x < 0, 1.0, 2.0) * (x * (x.abs() - 2)).square() + w[1] ** 2


def test_merge_tree_states_its_settings_and_searches():
    solutions = [rows([x, 0])[0] for x in (-2, 0, 2)]
    tree = merge_tree(land(three_wells), solutions, tolerance=0.2, strings=1, beads=20, depth=5)
    spec = tree.spec
    assert [spec[k] for k in ("tolerance", "strings", "beads", "depth", "pairs")] == [0.2, 1, 20, 5, 3]
    assert spec["gap"] == pytest.approx(0.2 * 2, rel=1e-3)  # of the highest rise of a straight line, which is 2
    assert 2 <= spec["searched"] <= 3
    assert spec["evaluations"] > 100
    assert tree.losses.tolist() == [0, 0, 0]
    assert tree.findings[0].message.endswith(f"{spec['searched']} of {spec['searched']} searches ended unknown")
    assert [(m.left, m.right) for m in tree.merges] == [((0,), (1,)), ((0, 1), (2,))]
    assert [m.level for m in tree.merges] == [tree.levels[0, 1], tree.levels[1, 2]]


def test_solutions_of_unlike_height_join_from_the_higher_one_up():
    tree = merge_tree(land(), [A, B], tolerance=0.3, strings=1)
    top = top_of_the_line()
    assert tree.levels.diagonal().tolist() == [0.0, 0.5]
    assert tree.spec["gap"] == pytest.approx(0.3 * (top - 0.5), rel=1e-2)
    assert top <= tree.levels[0, 1] <= top + 0.3 * (top - 0.5)


def test_labels_are_the_least_of_each_group():
    levels = np.array([[0.0, 3.0, 2.0], [3.0, 1.0, 3.0], [2.0, 3.0, 0.5]])
    tree = MergeTree(levels.diagonal().copy(), levels, (), {})
    assert tree.labels(0.4).tolist() == [0, -1, -1]
    assert tree.labels(1.0).tolist() == [0, 1, 2]
    assert tree.labels(2.0).tolist() == [0, 1, 0]
    assert tree.labels(3.0).tolist() == [0, 0, 0]
    assert tree.components([-1.0, 0.4, 1.0, 2.0, 3.0]).tolist() == [0, 1, 3, 2, 1]


def test_way_along_a_tree_follows_its_paths_to_and_fro():
    flat = Heights(land(lambda w: 0 * w.sum(), 1))
    paths = {
        (0, 2): examine_path(flat, rows([0.0], [7.0], [2.0])),
        (1, 2): examine_path(flat, rows([1.0], [8.0], [2.0])),
    }
    tree = {(0, 2), (1, 2)}
    assert _way((0, 1), tree, paths).flatten().tolist() == [0, 7, 2, 8, 1]
    assert _way((1, 2), tree, paths).flatten().tolist() == [1, 8, 2]
