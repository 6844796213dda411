import itertools
import math

import numpy as np
import pytest

from crunode.core.result import Estimate
from crunode.errors import InputError
from crunode.training.basins import free_energy_comparison
from crunode.training.segments import LEAST, Sums, extra_noise, fit_line, partition
from crunode.training.transitions import find_transitions

N = 24
STEPS = range(0, 10 * N, 10)


@pytest.mark.heavy
def test_false_alarms_are_as_rare_as_stated():
    """Under the stated rate of 5 % more than 15 alarms in 160 series have a chance of 0.7 %."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(160):
        errors = rng.uniform(0.5, 2.0, N)
        wider = 1.0 if k % 2 else 2.0  # in half of the series the stated errors are half the true ones
        slope = 0.1 if k % 4 < 2 else 0.0
        values = slope * np.arange(N) + wider * errors * rng.normal(size=N)
        found.append(len(find_transitions(STEPS, values, errors, scale="step", seed=k)) > 0)
    assert sum(found) <= 15


@pytest.mark.heavy
def test_intervals_hold_the_change_as_often_as_stated():
    """Of 120 intervals that hold the change with chance 95 %, fewer than 108 do so with a chance of 0.7 %."""
    rng = np.random.default_rng(1)
    held = []
    for k in range(120):
        cut = int(rng.integers(6, N - 6))
        values = np.where(np.arange(N) < cut, 10.0, 6.5) + rng.normal(size=N)
        changes = find_transitions(STEPS, values, np.ones(N), kind="level", seed=k).changes
        near = min(changes, key=lambda change: abs(change.step - STEPS[cut]))
        held.append(near.low <= STEPS[cut - 1] and STEPS[cut] <= near.high)
    assert sum(held) >= 108


def test_a_clear_drop_is_found_where_it_is():
    values = np.r_[np.full(10, 9.0), np.full(14, 4.0)] + 0.1 * np.random.default_rng(0).normal(size=N)
    found = find_transitions(STEPS, values, np.full(N, 0.1), name="llc")
    assert (found.kind, len(found)) == ("level", 1)
    (change,) = found.changes
    assert (change.previous, change.step, change.low, change.high) == (90, 100, 90, 100)
    assert abs(change.jump + 5.0) < 4 * change.jump_se < 0.5
    assert change.p_value == pytest.approx(0.001)
    assert [(s.start, s.stop, s.points) for s in found.plateaus] == [(0, 90, 10), (100, 230, 14)]
    assert found.critical == ()
    assert "between steps 90 and 100" in str(found)


def test_a_steady_trend_has_no_change_and_no_plateau():
    values = np.linspace(20, 5, N) + 0.1 * np.random.default_rng(1).normal(size=N)
    found = find_transitions(STEPS, values, np.full(N, 0.1), scale="step")
    assert (found.kind, len(found), found.plateaus) == ("linear", 0, ())
    (segment,) = found.segments
    assert abs(segment.slope + 15 / STEPS[-1]) < 4 * segment.slope_se
    assert len(find_transitions(STEPS, values, np.full(N, 0.1), kind="level")) > 1  # what levels make of it


def test_plateau_drop_plateau_and_the_errors_of_fits():
    values = np.r_[np.full(8, 20.0), np.linspace(18, 6, 8), np.full(8, 5.0)]
    values += 0.2 * np.random.default_rng(2).normal(size=N)
    found = find_transitions(STEPS, values, np.full(N, 0.2), scale="step")
    assert found.kind == "linear"
    assert len(found) == 2
    assert [(s.value, s.plateau) for s in found.segments] == [
        (pytest.approx(20, abs=0.3), True),
        (pytest.approx(12, abs=0.5), False),
        (pytest.approx(5, abs=0.3), True),
    ]


def test_maxima_and_minima_stand_out_on_both_sides():
    values = np.r_[np.linspace(5, 20, 8), np.linspace(19, 2, 8), np.linspace(3, 11, 8)]
    values += 0.2 * np.random.default_rng(3).normal(size=N)
    found = find_transitions(STEPS, values, np.full(N, 0.2), scale="step")
    assert [point.kind for point in found.critical] == ["maximum", "minimum"]
    top, bottom = found.critical
    assert top.low <= 80 <= top.high + 10
    assert bottom.low <= 160 <= bottom.high + 10
    assert abs(top.value - 20) < 4 * top.se + 0.5
    assert min(top.z, bottom.z) > 10
    flat = find_transitions(STEPS, values * 0.01, np.full(N, 0.5), scale="step")
    assert flat.critical == ()


def test_lines_through_a_curve_make_no_turns():
    """Exact values that rise all along; a line through the first of them falls below zero at its end."""
    steps = [1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 28, 36, 46, 59, 76, 98, 127, 165, 214]
    values = [0.0129, 0.013, 0.0142, 0.017, 0.0228, 0.0289, 0.0646, 0.164, 0.862, 7.35, 41.3, 45.47, 45.87, 47.77, 53.0]
    values += [56.25, 56.3, 56.35, 56.4, 56.45]
    found = find_transitions(steps, values, np.zeros(20))
    assert found.kind == "linear"
    assert any(segment.slope < 0 for segment in found.segments) or found.changes[0].jump < 0
    assert found.critical == ()


def test_scatter_beyond_the_stated_errors_is_noise_and_no_change():
    values = 3.0 * np.random.default_rng(4).normal(size=200)
    found = find_transitions(range(200), values, np.full(200, 0.01), scale="step")
    assert len(found) == 0
    assert found.noise == pytest.approx(3.0, rel=0.2)


def test_exact_values_without_errors():
    constant = find_transitions(STEPS, np.full(N, 3.0), np.zeros(N))
    assert (len(constant), constant.segments[0].value) == (0, 3.0)
    found = find_transitions(STEPS, np.r_[np.full(10, 1.0), np.full(14, 2.0)], np.zeros(N))
    assert [(c.previous, c.step, c.low, c.high) for c in found.changes] == [(90, 100, 90, 100)]


def test_the_seed_decides_and_nothing_else():
    values = np.random.default_rng(5).normal(size=N) + np.r_[np.zeros(12), np.full(12, 3.0)]
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    one, two = (find_transitions(STEPS, values, np.ones(N), seed=7).to_dict() for _ in range(2))
    assert one == two
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@pytest.mark.parametrize("kind", ["level", "linear"])
def test_partitions_are_the_best_of_all(kind):
    rng = np.random.default_rng(6)
    for _ in range(10):
        y, variance = rng.normal(size=9) * 2, rng.uniform(0.5, 2, 9)
        x = np.sort(rng.uniform(0, 5, 9))
        sums, least, penalty = Sums(x, y, variance, kind), LEAST[kind], 1.5

        def total(cuts, sums=sums, penalty=penalty):
            edges = [0, *cuts, 9]
            return sum(float(sums.cost(a, b)) for a, b in itertools.pairwise(edges)) + penalty * len(cuts)

        every = [
            cuts
            for count in range(4)
            for cuts in itertools.combinations(range(1, 9), count)
            if all(b - a >= least for a, b in itertools.pairwise([0, *cuts, 9]))
        ]
        assert total(partition(sums, 9, penalty, least)) == pytest.approx(min(map(total, every)))


@pytest.mark.parametrize("kind", ["level", "linear"])
def test_costs_and_lines_are_those_of_weighted_least_squares(kind):
    rng = np.random.default_rng(7)
    x, y, variance = np.sort(rng.uniform(0, 3, 8)), 100 + rng.normal(size=8), rng.uniform(0.1, 2, 8)
    design = np.ones((5, 1)) if kind == "level" else np.stack([np.ones(5), x[2:7]], 1)
    w = 1 / variance[2:7]
    covariance = np.linalg.inv(design.T @ (w[:, None] * design))
    best = covariance @ design.T @ (w * y[2:7])
    assert Sums(x, y, variance, kind).cost(2, 7) == pytest.approx(float(w @ (y[2:7] - design @ best) ** 2))
    line = fit_line(x, y, variance, kind, 2, 7)
    row = np.array([1.0] if kind == "level" else [1.0, 1.7])
    assert line.at(1.7) == (pytest.approx(float(row @ best)), pytest.approx(math.sqrt(row @ covariance @ row)))


def test_noise_is_found_beside_stated_errors_trends_and_jumps():
    rng = np.random.default_rng(8)
    errors = rng.uniform(0.2, 1.0, 600)
    values = np.hypot(errors, 0.7) * rng.normal(size=600) + np.linspace(0, 50, 600)
    values[300:] += 20
    assert float(extra_noise(np.arange(600.0), values, errors**2)) == pytest.approx(0.7, rel=0.15)
    assert float(extra_noise(np.arange(600.0), values, 4 + errors**2)) == 0.0


@pytest.mark.parametrize(
    ("steps", "values", "errors", "more"),
    [
        (range(5), [1.0] * 5, [0.1] * 5, {}),
        (range(6), [1.0] * 5, [0.1] * 6, {}),
        ([0, 1, 2, 2, 3, 4], [1.0] * 6, [0.1] * 6, {}),
        (range(6), [1.0, math.nan, 1, 1, 1, 1], [0.1] * 6, {}),
        (range(6), [1.0] * 6, [0.1, -1, 1, 1, 1, 1], {}),
        (range(6), [1.0] * 6, [math.inf] * 6, {}),
        (range(6), [1.0] * 6, [0.1] * 6, {"kind": "curved"}),
        (range(6), [1.0] * 6, [0.1] * 6, {"scale": "sqrt"}),
        (range(6), [1.0] * 6, [0.1] * 6, {"alarm": 0}),
        (range(6), [1.0] * 6, [0.1] * 6, {"level": 1.5}),
    ],
)
def test_wrong_columns_are_refused(steps, values, errors, more):
    with pytest.raises(InputError, match="expected"):
        find_transitions(steps, values, errors, **more)


def test_free_energies_cross_where_they_are_equal():
    early, late = Estimate("llc", 10.0, se=0.3, systematic=0.4), Estimate("llc", 30.0, se=0.4, systematic=0.3)
    found = free_energy_comparison(0.51, early, 0.50, late, n=1000, names=("early", "late"))
    assert found.difference.value == pytest.approx(1000 * 0.01 - 20 * math.log(1000))
    assert found.difference.se == pytest.approx(0.5 * math.log(1000))
    assert found.favored == "early"
    n = found.critical.value
    assert n * 0.01 == pytest.approx(20 * math.log(n))
    moved = free_energy_comparison(0.51, 10.0, 0.50, 30.001, n=1000).critical.value
    assert found.critical.se == pytest.approx(0.5 * (moved - n) / 0.001, rel=1e-3)
    large = free_energy_comparison(0.51, early, 0.50, late, n=100_000, names=("early", "late"))
    assert large.favored == "late"
    other = free_energy_comparison(0.50, late, 0.51, early, n=1000, names=("late", "early"))
    assert other.critical.value == pytest.approx(n)
    assert other.favored == "early"


def test_free_energies_that_do_not_cross():
    assert free_energy_comparison(0.4, 5.0, 0.5, 10.0, n=100).critical is None  # better in both
    assert free_energy_comparison(9.0, 5.0, 0.5, 10.0, n=100).critical is None  # the ratio is below e
    assert free_energy_comparison(0.5, 5.0, 0.5, 10.0, n=100).critical is None
    assert free_energy_comparison(0.5, Estimate("llc", 5.0, se=9.0), 0.5, 6.0, n=100).favored is None
    for bad in ({"loss_a": math.nan}, {"lambda_a": math.inf}, {"n": 1}, {"n": 2.5}):
        with pytest.raises(InputError, match="expected"):
            free_energy_comparison(**({"loss_a": 1.0, "lambda_a": 1.0, "loss_b": 1.0, "lambda_b": 2.0, "n": 10} | bad))
