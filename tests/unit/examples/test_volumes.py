"""The table of `toy-volumes` against the exact values, and that a wrong one is seen."""

from dataclasses import replace

import pytest
import torch

from crunode import exact
from crunode.examples import volumes
from crunode.jobs.recipe import Cell, Result

POLYNOMIALS = {
    "regular": "x^2+y^2",
    "quartic": "x^4+y^4",
    "crossing": "x^2*y^2",
    "uneven": "x^2*y^4",
    "planes": "x^2*y^2*z^2",
    "lines": "x^2*y^2*(x-y)^2",
    "axes": "x^2*y^2+y^2*z^2+z^2*x^2",
    "crossed-lines": "x^2+y^2*z^2",
    "two-crossings": "x^2*y^2+z^2*w^2",
}


@pytest.mark.parametrize("name", volumes.CASES)
def test_values_are_those_of_the_polynomial(name):
    case, known = volumes.CASES[name], exact.polynomial(POLYNOMIALS[name])
    assert (case.value, case.multiplicity) == (known.value, known.multiplicity)
    # The potential is that polynomial: compared at one point.
    point = torch.tensor([1.5, 0.5, 2.0, 3.0], dtype=torch.float64)[: case.dim]
    formula = POLYNOMIALS[name].replace("^", "**")
    assert case.potential(point[None]).item() == eval(formula, dict(zip("xyzw", point.tolist(), strict=False)))


def results(value_of=lambda case: float(case.value), weight=0.5):
    return [
        Result(
            Cell(name, {"case": name, "seed": 0}),
            {"value": value_of(case), "error": 0.01, "weights": {str(case.multiplicity): weight}},
            0.1,
        )
        for name, case in volumes.CASES.items()
    ]


def verdicts(found):
    return [row.verdict for row in volumes.rows(found, "toy")]


def test_true_values_agree_and_wrong_ones_differ():
    assert verdicts(results()) == ["agrees", "agrees"] * 9
    assert verdicts(results(lambda case: 1.1 * float(case.value) + 0.03)) == ["differs", "agrees"] * 9
    assert verdicts(results(weight=0.01)) == ["agrees", "differs"] * 9
    unseen = [replace(result, value={**result.value, "weights": {"6": 1.0}}) for result in results()]
    assert verdicts(unseen) == ["agrees", "differs"] * 9


def test_a_failed_fit_has_no_value():
    assert verdicts(results(lambda case: float("nan")))[::2] == ["no value"] * 9


def test_cells_follow_the_seed_and_the_size():
    toy, other, paper = volumes.cells("toy", 0), volumes.cells("toy", 1), volumes.cells("paper", 0)
    seeds = [cell.settings["seed"] for cell in (*toy, *other)]
    assert len(set(seeds)) == 18
    assert [cell.settings["seed"] for cell in paper] == seeds[:9]
    for small, large in zip(toy, paper, strict=True):
        assert small.settings["particles"] < large.settings["particles"]
        assert small.settings["levels"] < large.settings["levels"]
