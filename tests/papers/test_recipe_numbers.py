"""Numbers of recipes against the papers they are from, closed forms, and plain numpy."""

import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.cooper2021 import dimension as cooper2021_dimension
from crunode_papers.freeman2016 import connectivity as freeman2016_connectivity
from crunode_papers.murfet2020 import rlct as murfet2020_rlct
from crunode_papers.watanabe2013 import selection as model_selection

# Table 2 of Murfet et al. 2020, as printed.
TABLE_2 = """
3 ReLU 0.526301 0.027181 0.983850
3 SiLU 0.522393 0.026342 0.978770
4 ReLU 0.539590 0.024774 0.991241
4 SiLU 0.539387 0.020769 0.988495
5 ReLU 0.555303 0.002344 0.993092
5 SiLU 0.555630 0.021184 0.990971
"""


def test_table_two_is_as_it_is_printed():
    lines = [line.split() for line in TABLE_2.strip().splitlines()]
    printed = {(int(m), kind.lower()): tuple(map(float, rest)) for m, kind, *rest in lines}
    assert printed == murfet2020_rlct.PRINTED


@pytest.mark.parametrize("line", TABLE_2.strip().splitlines())
def test_a_value_is_held_against_its_line_within_two_deviations(line):
    m, kind, *rest = line.split()
    value, std, r2 = map(float, rest)
    cell = Cell("a", {"kind": "table", "m": int(m), "activation": kind.lower(), "n": 1000, "sd": 50.0})
    for off, verdict in ((1.9, "agrees"), (2.5, "differs"), (-2.5, "differs")):
        found = {"value": value + off * std, "se": 1e-9, "std": 0.01, "r2": 0.9, "dead": 0.25, "dead_se": 0.02}
        rows = murfet2020_rlct.rows([Result(cell, {**found, "findings": []}, 1.0)], "paper")
        assert rows[0].verdict == verdict
        assert (rows[0].paper, rows[0].ours) == (value, value + off * std)
        assert "25.0 ± 2.0 %" in rows[0].note
        assert [(r.paper, r.ours) for r in rows[2:]] == [(r2, 0.9), (std, 0.01)]


def local(m, activation, points, low, high, value=8.0):
    curve = [{"nbeta": 10.0**k, "value": value, "se": 1e-6} for k in range(points)]
    cell = Cell("b", {"kind": "local", "m": m, "activation": activation})
    return murfet2020_rlct.rows([Result(cell, {"curve": curve, "low": low, "high": high}, 1.0)], "paper")


def test_short_curves_are_shown_whole_and_long_ones_at_every_third_point():
    assert [len(local(5, "silu", k, 1, 2)) for k in (1, 3, 4, 13)] == [1, 3, 2, 5]
    assert {row.verdict for row in local(5, "silu", 3, 1, 2)} == {"shown"}


def test_true_parameters_have_half_of_three_m_and_one_for_codimension():
    for m, codimension in ((3, 5.0), (4, 6.5), (5, 8.0)):
        rows = local(m, "relu", 3, codimension, codimension, codimension)
        assert [row.verdict for row in rows] == ["agrees"] * 3
        assert rows[2].paper == codimension
        assert "nβ = 1e+02" in rows[0].name
        assert local(m, "relu", 3, codimension, codimension, 0.9 * codimension)[0].verdict == "differs"
        assert local(m, "relu", 3, codimension, codimension, 1.1 * codimension)[1].verdict == "differs"
        assert local(m, "relu", 3, codimension + 0.5, 9.0, 9.0)[2].verdict == "differs"


def test_phases_are_told_with_their_transitions():
    levels = [{"nbeta": 1e6, "value": 5.1, "se": 0.01, "live_units": [0.0, 0.1, 0.2, 0.7, 0.0, 0.0]}]
    change = {"from": 2, "to": 3, "low": 10.0, "high": 30.0, "nbeta": 20.0, "sure": False}
    found = {"levels": levels, "swap_rate": [0.5, 0.2], "round_trips": 7, "transitions": [change]}
    rows = murfet2020_rlct.rows([Result(Cell("c", {"kind": "phases", "m": 3}), found, 1.0)], "paper")
    assert [row.verdict for row in rows] == ["agrees", "shown", "shown"]
    assert (rows[0].paper, rows[1].ours, rows[2].ours) == (5.0, 3.0, 20.0)
    assert "0.20" in rows[0].note
    assert "7" in rows[0].note
    assert "not sure" in rows[2].note


@pytest.mark.heavy
@pytest.mark.parametrize("name", [*cooper2021_dimension.ARCHITECTURES, "linear", "repeated"])
def test_weights_have_the_variance_of_one_over_fan_in(name):
    parts = {}
    for seed in range(12):
        land = cooper2021_dimension.landscape(name, 4, seed)
        for key, weight in land.packing.unravel(land.center).items():
            parts.setdefault(key, []).append(weight)
    scaled = [torch.stack(w).flatten() * math.sqrt(w[0][0].numel()) for w in parts.values()]
    for w in scaled:
        # A sum of squares of n normal numbers is n within five times √(2n).
        assert abs(float(w.square().sum()) - len(w)) < 5 * math.sqrt(2 * len(w))


def test_targets_of_the_linear_network_are_linear_and_repeated_examples_come_twice():
    x, y = cooper2021_dimension.landscape("linear", 9, 0).data.tensors()
    assert x.shape[1:] == (3,)
    assert float((x @ torch.linalg.lstsq(x, y).solution - y).norm()) < 1e-9
    x, y = cooper2021_dimension.landscape("repeated", 5, 0).data.tensors()
    assert torch.equal(x[:5], x[5:])
    assert torch.equal(y[:5], y[5:])
    x, y = cooper2021_dimension.landscape("tanh", 5, 0).data.tensors()
    assert len(x) == 5


class Tree:
    """Solutions that become one at the exact level."""

    spec = {"searched": 6}  # noqa: RUF012
    merges = ()

    def __init__(self, solutions, exact):
        self.count, self.exact = len(solutions), exact

    def components(self, levels):
        # Far from the level a search would tell nothing about it.
        assert all(0.9 < level / self.exact < 1.25 for level in levels)
        return [self.count if level < self.exact else 1 for level in levels]


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_orthants_are_counted_just_below_and_just_above_the_loss_of_one_example(monkeypatch, inputs):
    class Merge:
        level, left, right = 0.3, (0,), (1,)

    def grown(land, solutions, **options):
        assert all(float(land.loss(w)) < 1e-20 for w in solutions)
        signs = {tuple((w[2 : 2 + inputs] > 0).tolist()) for w in solutions}
        assert len(signs) == len(solutions) == 2**inputs
        tree = Tree(solutions, 1 / (2 * inputs))
        tree.merges = (Merge, type("Higher", (Merge,), {"level": 0.4}))
        return tree

    monkeypatch.setattr(freeman2016_connectivity, "merge_tree", grown)
    cell = Cell("orthants", {"kind": "orthants", "inputs": inputs, "strings": 1, "seed": 0})
    found = freeman2016_connectivity.compute(cell)
    assert (found["below"], found["above"]) == (2**inputs, 1)
    assert (found["lowest"], found["highest"], found["searched"]) == (0.3, 0.4, 6)


def test_error_of_a_share_is_that_of_a_share_with_one_more_of_each():
    right = np.array([1.0] * 7 + [0.0] * 3)
    share = 8 / 12
    assert model_selection._share_error(right) == pytest.approx(math.sqrt(share * (1 - share) / 10))
    assert model_selection._share_error(np.ones(8)) == pytest.approx(math.sqrt(0.9 * 0.1 / 8))
