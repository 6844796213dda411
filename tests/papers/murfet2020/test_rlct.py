"""The networks of Murfet et al. 2020, section 6, and their tempered posteriors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode import InputError
from crunode.jobs.recipe import Cell, Result
from crunode_papers.murfet2020.rlct import PRINTED, RECIPE
from crunode_papers.murfet2020.tempered import baseline, five_levels, table_slopes
from crunode_papers.murfet2020.two_layer import TwoLayer, live_units, sampled, true_network


@pytest.mark.parametrize("m", [3, 4, 5])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_true_functions_look_the_same_when_turned(m: int, activation: str) -> None:
    net, angle = true_network(m, activation=activation), 2 * math.pi / m
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(m))
    torch.testing.assert_close(net(x), net(x @ turn.T), atol=1e-5, rtol=1e-5)


def test_as_written_unit_by_unit() -> None:
    net = TwoLayer(3)
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    x = torch.tensor([[0.3, -0.7]])
    by_hand = net.c + sum(net.q[i] * torch.relu(net.w[i] @ x[0] + net.b[i]) for i in range(3))
    torch.testing.assert_close(net(x)[0], by_hand)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_live_units_are_those_that_some_example_wakes(seed: int) -> None:
    land = sampled(5, 60, seed=3)
    w = np.random.default_rng(seed).normal(size=(7, land.dim))
    x = land.data.tensors()[0].double().numpy()
    before = w[:, :10].reshape(7, 5, 2) @ x.T + w[:, 10:15, None]
    assert (live_units(land, w) == (before > 0).any(-1).sum(-1)).all()


def test_the_constant_model_has_slope_one_half() -> None:
    assert abs(baseline(1000, 50.0) - 0.5) < 1e-3
    levels = five_levels(1000)
    assert list(levels) == sorted(levels)
    assert abs(levels[2] - 1000 / math.log(20000)) < 1e-9


@pytest.mark.heavy
def test_units_are_dead_where_the_table_was_measured() -> None:
    """Most draws have no live unit (95 % in long runs) and the slope is near 1/2: short chains on one data set."""
    options = {"hot": 14, "sets": 1, "chains": 3, "draws": 40, "warmup": 60, "seed": 1}
    found = table_slopes({"m": 3, "activation": "relu", "n": 1000, "sd": 50.0, **options})
    assert found["dead"] > 0.6
    assert abs(found["value"] - 0.5) < 4 * found["se"] + 0.1 < 0.6


def test_rows_hold_results_against_table_and_codimension() -> None:
    table = {"value": 0.53, "se": 0.005, "std": 0.02, "r2": 0.99, "dead": 0.95, "dead_se": 0.01}
    table |= {"findings": ["MC201"], "rhat": 1.5, "swap_rate": 0.1}
    curve = [{"nbeta": 1e6, "value": 0.6, "se": 0.01}]
    cells = [
        Result(Cell("a", {"kind": "table", "m": 3, "activation": "relu", "n": 1000, "sd": 50.0}), table, 1.0),
        Result(Cell("b", {"kind": "local", "m": 5, "activation": "relu"}), {"curve": curve, "low": 8, "high": 8}, 1.0),
    ]
    rows = RECIPE.rows(cells, "paper")
    verdicts = {row.name: row.verdict for row in rows}
    assert "MC201: R-hat 1.50, least swap rate 0.10" in rows[0].note
    assert verdicts["λ̂ of Algorithm 1, m = 3 relu"] == "agrees"
    assert verdicts["λ at s_5 relu by chains, nβ = 1e+06"] == "differs"


def test_paper_size_has_all_of_the_table() -> None:
    names = [cell.name for cell in RECIPE.cells("paper", 0)]
    assert len(set(names)) == len(names)
    assert all(f"table m={m} {activation}" in names for m, activation in PRINTED)


def test_refusals() -> None:
    with pytest.raises(InputError, match="m from 1 to 5"):
        true_network(6)
    with pytest.raises(InputError, match="activation"):
        TwoLayer(activation="tanh")
