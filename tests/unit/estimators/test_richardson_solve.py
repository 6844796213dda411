"""Estimates at step zero are those of least squares with the priors as further rows."""

import math

import numpy as np
import pytest

from crunode.estimators import richardson
from crunode.estimators.richardson import StepBias, Stepped, solve, step_terms, without_step_bias

WIDTHS = {"_PREDICTED": 0.4, "_HEAT": 0.7, "_LINEAR": 0.05, "_SQUARE": 0.2, "_LOOSE": 1.3}
LEVELS = [
    Stepped(100.0, 12.0, 0.2, 11.0, 0.3, 1.5, 0.4, 0.1),
    Stepped(200.0, 13.5, 0.25, 11.2, 0.2, 1.2, 0.9, 0.2),
    Stepped(400.0, 9.0, 0.5, 8.0, 0.35, 0.7, 1.6, 0.3),
]


def rows(levels, widths, expected):
    """Rows for λ of each level, u, v, r and g of each level, each over its error, and their right sides."""
    count = len(levels)
    design, data = [], []
    for j, x in enumerate(levels):
        for s, value, se in ((1.0, x.full, x.full_se), (0.5, x.half, x.half_se)):
            row = np.zeros(2 * count + 3)
            row[j] = 1
            row[count] = x.discretisation * s / (1 - x.ratio * s)
            row[count + 1] = x.heating * s / (1 - x.ratio * s)
            row[count + 2] = s * abs(x.half)
            row[count + 3 + j] = s**2 * abs(x.half)
            design.append(row / se)
            data.append(value / se)
    prior = np.eye(2 * count + 3)[count:] / np.array(widths)[:, None]
    return np.array([*design, *prior]), np.array(data), prior @ np.array([0.0] * count + [expected] * 2 + [0.0] * 4)


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("expected", [1.0, 0.0])
def test_solutions_are_those_of_least_squares(monkeypatch, loose, expected):
    for name, width in WIDTHS.items():
        monkeypatch.setattr(richardson, name, width)
    found = solve(LEVELS, loose=loose, expected=expected)
    widths = [1.3, 1.3] if loose else [0.4, 0.7]
    design, data, beforehand = rows(LEVELS, [*widths, 0.05, 0.2, 0.2, 0.2], expected)
    best = np.linalg.lstsq(design, np.concatenate([data, beforehand]), rcond=None)[0]
    inverse = np.linalg.pinv(design)
    sampled = (inverse[:3, :6] ** 2).sum(1)
    assert found.values == pytest.approx(best[:3])
    assert found.se == pytest.approx(np.sqrt(sampled))
    full = np.array([design[2 * j] * x.full_se for j, x in enumerate(LEVELS)])
    bias = full * (np.arange(9) > 2)
    assert found.measured == pytest.approx(bias @ best)
    assert found.measured_se == pytest.approx(np.linalg.norm(bias @ inverse, axis=1))
    assert found.heating == pytest.approx(full[:, 4] * best[4])
    leftover = (inverse[:3, 6:] ** 2).sum(1)
    # And a sixteenth of what the next order adds to the predicted error.
    more = np.array([(x.discretisation + x.heating) * x.ratio / (1 - x.ratio) / 16 for x in LEVELS])
    assert found.left == pytest.approx(np.hypot(np.sqrt(leftover), more))


def test_ratios_are_kept_below_where_the_law_ends():
    one, two = (solve([Stepped(100.0, 12.0, 0.2, 11.0, 0.3, 0.1, 0.1, ratio)]) for ratio in (0.9, 5.0))
    assert one == two
    assert solve([Stepped(100.0, 12.0, 0.2, 11.0, 0.3, 0.1, 0.1, 0.8)]) != one


def test_estimates_without_error_are_taken_as_nearly_exact():
    found = solve([Stepped(100.0, 11.0, 0.0, 10.5, 0.0, 1.0, 0.0)])
    assert found.values[0] == pytest.approx(10, abs=1e-3)
    assert 0 < found.se[0] < 1e-3


def test_summaries_and_rows_have_each_number_under_its_name():
    removed = StepBias((1.0, 2.0), (0.1, 0.2), (0.3, 0.4), (5.0, 6.0), (0.7, 0.8), (0.9, 1.1))
    assert removed.summary([10.0, 20.0])[1] == {
        "nbeta": 20.0,
        "value": 2.0,
        "se": 0.2,
        "left": 0.4,
        "bias": 6.0,
        "bias_se": 0.8,
        "heating": 1.1,
    }
    found = without_step_bias([{"value": 7.0, "se": 9.0, "nbeta": 10.0}, {"value": 8.0, "se": 9.0}], removed)
    assert found[0] == {"value": 1.0, "se": 0.1, "nbeta": 10.0, "at_step": 7.0}
    assert found[1] == {"value": 2.0, "se": 0.2, "at_step": 8.0}


class Levels:
    def __init__(self, **spec):
        self.spec = {"nbeta": [10.0, 10.0, 20.0, 20.0], "measures": {"gradient_noise": 1.0}, **spec}

    def levels(self):
        return [10.0, 20.0]


def test_what_may_be_left_is_shared_out_as_the_error_was():
    removed = StepBias((1.0, 2.0), (0.1, 0.2), (0.3, 0.4), (5.0, 4.0), (0.7, 0.8), (9.0, 1.0))
    terms = step_terms(Levels(), 20.0, removed)  # a quarter is of heating
    assert terms == {
        "discretisation": pytest.approx(0.4 * math.sqrt(0.75)),
        "heating": pytest.approx(0.4 * math.sqrt(0.25)),
    }
    assert step_terms(Levels(), 10.0, removed) == {"discretisation": 0.0, "heating": 0.3}  # no more than all of it
    lowered = StepBias((1.0, 2.0), (0.1, 0.2), (0.3, 0.4), (-5.0, 4.0), (0.7, 0.8), (-9.0, -1.0))
    for level, left in ((10.0, 0.3), (20.0, 0.4)):
        assert step_terms(Levels(), level, lowered) == {"discretisation": left, "heating": 0.0}
    assert step_terms(Levels(measures={}), 20.0, removed) == {}


def test_estimates_that_say_nothing_leave_the_error_as_well_known_as_predicted():
    def known(disc, heat, size, loose=False):
        return solve([Stepped(100.0, size, 1e5, size, 1e5, disc, heat)], loose=loose)

    disc, heat, both = known(1.0, 0.0, 1e-9), known(0.0, 1.0, 1e-9), known(1.0, 1.0, 1e-9)
    assert [x.measured[0] for x in (disc, heat, both)] == pytest.approx([1, 1, 2])
    # Discretisation to a third, heating to a half, and either to itself where theory does not fit the kernel.
    assert disc.measured_se[0] == pytest.approx(1 / 3, rel=0.2)
    assert heat.measured_se[0] == pytest.approx(1 / 2, rel=0.2)
    assert both.measured_se[0] == pytest.approx(math.hypot(disc.measured_se[0], heat.measured_se[0]))
    for errors in (known(1.0, 0.0, 1e-9, loose=True), known(0.0, 1.0, 1e-9, loose=True)):
        assert errors.measured_se[0] == pytest.approx(1, rel=0.2)
    # What was not predicted is quadratic in the step: up to a third of the coefficient.
    assert known(0.0, 0.0, 1.0).measured_se[0] == pytest.approx(1 / 3, rel=0.2)
