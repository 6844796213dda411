"""Tables of the recipes on the zero-loss manifold and on Gauss-Newton steps."""

import math

import pytest

from crunode.jobs.recipe import Cell, Result
from crunode_papers.cooper2021 import dimension as cooper2021_dimension
from crunode_papers.tanner import gauss_newton


def result(name, dimension, hessian, largest=1e-14):
    row = {
        "share": 0.3,
        "examples": 15,
        "seed": 0,
        "starts": 1,
        "parameters": 49,
        "equations": 15,
        "inputs": 2,
        "outputs": 1,
        "dimension": dimension,
        "error": 0.0,
        "loss": 0.0,
        "hessian": hessian,
        "index": 0.0,
    }
    path = {"examples": 15, "largest": largest, "length": 1.0, "distance": 1.0, "points": 41}
    path |= {"dimensions": [34.0], "losses": [0.0], "weights": 2.0}
    if not math.isfinite(dimension):
        path |= {"length": math.nan, "largest": 0.3}
    cell = Cell(name, {"shares": [0.3], "repeats": 1, "steps": 40, "seed": 0})
    return Result(cell, {"dimensions": [row], "walk": path}, 0.1)


def verdicts(rows):
    return [row.verdict for row in rows]


def test_right_dimensions_agree():
    table = cooper2021_dimension.rows([result("tanh", 34.0, 34.0)], "toy")
    assert verdicts(table) == ["agrees", "agrees", "agrees", "agrees", "shown", "explained"]


@pytest.mark.parametrize("wrong", [{"dimension": 33.0}, {"hessian": 33.0}, {"largest": 1e-9}])
def test_wrong_ones_differ(wrong):
    table = cooper2021_dimension.rows([result(**{"name": "tanh", "dimension": 34.0, "hessian": 34.0} | wrong)], "toy")
    assert "differs" in verdicts(table)


def test_a_network_without_solution_has_no_value():
    table = cooper2021_dimension.rows([result("relu", math.nan, None)], "toy")
    assert verdicts(table) == ["no value"] * 3


def test_ten_architectures_have_several_of_everything():
    kinds = cooper2021_dimension.ARCHITECTURES
    assert len(kinds) == 10
    assert {kind.outputs for kind in kinds.values()} == {1, 2, 3, 4}
    assert len(cooper2021_dimension.cells("toy", 0)) == 12


def test_gauss_newton_cell_and_its_table():
    cells = [c for c in gauss_newton.cells("toy", 0) if c.settings["network"] == "tanh"]
    results = [Result(cell, gauss_newton.compute(cell), 0.1) for cell in cells]
    table = gauss_newton.rows(results, "toy")
    assert set(verdicts(table)) == {"agrees", "explained"}
    assert len({row.name for row in table}) == len(table)
    broken = [Result(r.cell, {**r.value, "measured": r["measured"] ** 2, "shortest_other": 0.9}, 0.1) for r in results]
    assert verdicts(gauss_newton.rows(broken, "toy")).count("differs") >= 3


def rows_of(name, found, hessians, **path):
    made = result(name, found[0], hessians[0])
    first = made["dimensions"][0]
    rows = [{**first, "dimension": d, "hessian": h} for d, h in zip(found, hessians, strict=True)]
    walked = {**made["walk"], "dimensions": [found[0]], **path}
    return cooper2021_dimension.rows([Result(made.cell, {"dimensions": rows, "walk": walked}, 0.1)], "toy")


def test_of_several_repeats_the_one_that_is_furthest_off_is_shown():
    table = rows_of("tanh", [34.0, 31.0, 35.0], [34.0, 34.0, 36.5])
    assert [(row.paper, row.ours) for row in table[:2]] == [(34.0, 31.0), (34.0, 36.5)]
    assert verdicts(table)[:2] == ["differs", "differs"]
    table = rows_of("tanh", [34.0, math.nan, 35.0], [34.0, None, 34.0])
    assert verdicts(table)[:2] == ["no value"] * 2


def test_networks_that_are_no_case_of_the_theorem_lose_what_their_equations_share():
    # 49 parameters; a linear map from 2 to 1 numbers has rank 2, and half of 15 equations are the other half.
    for name, right in (("linear", 47.0), ("repeated", 42.0)):
        table = rows_of(name, [right], [right])
        assert [row.paper for row in table[:3]] == [right, right, 34.0]
        assert verdicts(table)[:3] == ["agrees", "agrees", "explained"]
    table = rows_of("relu", [34.0], [34.0])
    assert (table[0].paper, table[0].verdict) == (34.0, "agrees")


def test_a_walk_is_held_against_its_beginning_and_measured_in_weights():
    largest, along, length = rows_of("gelu", [34.0], [34.0], dimensions=[34.0, 33.0, 34.5], length=3.0)[2:]
    assert "40 steps" in largest.name
    assert (along.paper, along.ours, along.verdict) == (34.0, 33.0, "differs")
    assert length.ours == 1.5
    assert rows_of("gelu", [34.0], [34.0], largest=0.9e-10)[2].verdict == "agrees"
    assert rows_of("gelu", [34.0], [34.0], largest=1.1e-10)[2].verdict == "differs"


def test_the_formula_of_the_slide_is_examples_less_outputs_times_inputs():
    printed = rows_of("tanh", [34.0], [34.0])[-1]
    assert (printed.paper, printed.ours, printed.verdict) == (15 - 1 * 2, 34.0, "explained")
