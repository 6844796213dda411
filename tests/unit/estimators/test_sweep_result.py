"""What a sweep keeps of its estimates, and what it says about a grid."""

import math

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.sweep_result import Cell

POINT = (1e-4, 1.0, 50.0)


def cell(value=2.0, point=POINT, se=0.1, systematic=0.0, ok=True, **rest):
    return Cell(*point, value=value, se=se, systematic=systematic, ok=ok, **rest)


def grid(steps=(1.0,), precisions=(1.0,), nbetas=(1.0,), choice=None, **changed):
    """All cells of the same value, but those whose (step, precision, nbeta) number is in `changed`."""
    points = [(e, g, b) for b in nbetas for g in precisions for e in steps]
    cells = tuple(changed.get(f"c{k}") or cell(point=p) for k, p in enumerate(points))
    choice = choice or cell(point=points[0])
    return cr.Sweep(steps, precisions, nbetas, cells, (choice,) * 7, cr.Estimate("llc", 2.0, se=0.1))


def estimated(excess, warmup, accept=None):
    arrays = {"excess": excess} | ({} if accept is None else {"accept": accept})
    spec = {"warmup": warmup.shape[1], "draws": excess.shape[1]}
    draws = Draws(arrays, {"excess": warmup} if warmup.size else {}, np.full(len(excess), 50.0), spec)
    finding = cr.Finding.of("MC202", "few")
    return cr.Estimate("llc", 2.0, se=0.3, systematic=0.4, findings=(finding,), draws=draws, provenance={"git": "x"})


def test_a_cell_keeps_what_an_estimate_said():
    accept = np.array([[0.5, 0.7], [0.9, 0.7]])
    est = estimated(np.ones((2, 2)), np.ones((2, 0)), accept)
    found = Cell.of(est, (1.0, 2.0, 3.0))
    assert (found.step, found.precision, found.nbeta) == found.point == (1.0, 2.0, 3.0)
    assert (found.value, found.se, found.systematic, found.ok) == (2.0, 0.3, 0.4, est.ok)
    assert (found.findings, found.accept, found.provenance) == (("MC202",), pytest.approx(0.7), {"git": "x"})
    assert found.error == pytest.approx(0.5)
    assert not found.diverged
    assert cell(findings=("MC202", "MC204")).diverged
    bare = Cell.of(cr.Estimate("llc", 2.0, se=0.1), POINT)
    assert (bare.accept, bare.trace) == (None, ())
    assert Cell.of(estimated(np.ones((2, 2)), np.ones((2, 0)), np.ones((2, 0))), POINT).accept is None


def test_a_trace_has_one_point_a_step_of_short_runs():
    excess, warmup = np.arange(8.0).reshape(2, 4), np.array([[10.0, 20.0, 30.0], [0.0, 0.0, 0.0]])
    found = Cell.of(estimated(excess, warmup), (1.0, 1.0, 3.0)).trace
    assert found == ((-3, 15.0), (-2, 30.0), (-1, 45.0), (0, 6.0), (1, 9.0), (2, 12.0), (3, 15.0))


@pytest.mark.parametrize(("steps", "width"), [(180, 1), (181, 2), (380, 2), (381, 3)])
def test_a_trace_of_long_runs_has_means_of_as_many_steps_as_leave_two_hundred_points(steps, width):
    rng = np.random.default_rng(0)
    warmup, excess = rng.random((3, 20)), rng.random((3, steps))
    found = Cell.of(estimated(excess, warmup), (1.0, 1.0, 5.0)).trace
    joined = 5.0 * np.concatenate([warmup, excess], 1).mean(0)
    expected = []
    for start, end in ((0, 20), (20, 20 + steps)):
        for left in range(start, end, width):
            part = np.arange(left, min(left + width, end))
            expected.append((part.mean() - 20, joined[part].mean()))
    assert np.array(found) == pytest.approx(np.array(expected))
    assert len(found) <= 201


def test_a_trace_ends_where_a_chain_turns_non_finite():
    excess, warmup = np.ones((2, 4)), np.ones((2, 3))
    excess[1, 2] = math.inf
    assert [x for x, _ in Cell.of(estimated(excess, warmup), POINT).trace] == [-3, -2, -1, 0, 1]
    warmup[0, 1] = math.nan
    assert [x for x, _ in Cell.of(estimated(excess, warmup), POINT).trace] == [-3]


def test_the_nearest_cell_is_so_by_factors_on_all_axes():
    axes = {"steps": (1e-4, 1e-3), "precisions": (1.0, 100.0), "nbetas": (10.0, 1000.0)}
    for near, point in (((2.5e-4), (1e-4, 1.0, 10.0)), (4e-4, (1e-3, 1.0, 10.0))):
        assert grid(**axes, choice=cell(point=(near, 1.0, 10.0))).nearest.point == point
    assert grid(**axes, choice=cell(point=(1e-4, 12.0, 90.0))).nearest.point == (1e-4, 100.0, 10.0)
    assert grid(**axes, choice=cell(point=(1e-4, 9.0, 110.0))).nearest.point == (1e-4, 1.0, 1000.0)


def test_answers_agree_within_twice_the_error_of_cell_and_choice():
    """Of the cell its Monte-Carlo error counts, of the choice all of them: 2 √(0.3² + 0.4²) = 1."""
    choice = cell(point=(1.0, 1.0, 1.0), se=0.24, systematic=0.32)
    for value, agree in ((2.99, True), (3.01, False), (1.01, True), (0.99, False)):
        other = cell(value, point=(2.0, 1.0, 1.0), se=0.3, systematic=9.0)
        found = grid((1.0, 2.0), choice=choice, c1=other)
        assert found.plateau().tolist() == [[[True, agree]]]


def test_a_plateau_spreads_along_each_axis_but_not_over_corners():
    axes = {"steps": (1.0, 2.0), "precisions": (1.0, 2.0), "nbetas": (1.0, 2.0)}
    assert grid(**axes).plateau().all()
    far = {f"c{k}": cell(9.0, point=(1.0, 1.0, 1.0)) for k in (1, 2, 4)}
    far = {k: cell(9.0, point=p) for k, p in zip(far, ((2.0, 1.0, 1.0), (1.0, 2.0, 1.0), (1.0, 1.0, 2.0)), strict=True)}
    assert grid(**axes, **far).plateau().sum() == 1
    for only, place in (("c1", (0, 0, 1)), ("c2", (0, 1, 0)), ("c4", (1, 0, 0))):
        rest = {k: v for k, v in far.items() if k != only} | {"c7": cell(9.0, point=(2.0, 2.0, 2.0))}
        found = grid(**axes, **rest).plateau()
        assert found[place]
        assert not found[1, 1, 1]


def test_sensitivities_leave_out_what_diverged():
    lost = cell(math.nan, point=(2e-4, 1.0, 50.0), se=math.nan, ok=False, findings=("MC204",))
    around = (cell(-2.0), cell(-2.5, se=0.3), lost, cell(-2.0), cell(-1.0, se=0.4), cell(-2.0), cell(-2.0))
    made = cr.Sweep((1e-4,), (1.0,), (50.0,), (around[0],), around, cr.Estimate("llc", 2.0, se=0.1))
    found = made.sensitivity()
    assert (found["step"]["low"], found["step"]["high"], found["step"]["range"]) == (-2.5, -2.0, 0.5)
    assert found["step"]["se"] == pytest.approx(math.hypot(0.3, 0.1))
    assert found["step"]["share"] == pytest.approx(0.25)
    assert found["step"]["diverged"] == [2e-4]
    assert (found["precision"]["range"], found["precision"]["diverged"]) == (1.0, [])
    assert found["precision"]["se"] == pytest.approx(math.hypot(0.4, 0.1))
    assert found["nbeta"]["range"] == 0.0
    assert "step / 2 to × 2         moves it by 0.5 ± 0.32 (25 %); diverged at 0.0002" in made.table()
    none = cr.Sweep((2e-4,), (1.0,), (50.0,), (lost,), (lost,) * 7, cr.Estimate("llc", 2.0, se=0.1))
    assert all(math.isnan(none.sensitivity()["step"][k]) for k in ("low", "high", "range", "se", "share"))
    assert "moves it by no answer" in none.table()
    zero = cr.Sweep((1e-4,), (1.0,), (50.0,), (cell(0.0),), (cell(0.0),) * 7, cr.Estimate("llc", 2.0, se=0.1))
    assert math.isnan(zero.sensitivity()["step"]["share"])


def test_a_table_has_a_block_for_each_nbeta_with_equal_columns():
    lost = cell(math.nan, point=(2e-3, 10.0, 50.0), ok=False, findings=("MC204",))
    poor = cell(2.0, point=(1e-3, 10.0, 50.0), ok=False)
    changed = {"c2": poor, "c3": lost, "c6": cell(7.0, point=(1e-3, 10.0, 60.0))}
    choice = cell(point=(1e-3, 1.0, 50.0), systematic=0.2, findings=("MC202",))
    found = grid((1e-3, 2e-3), (1.0, 10.0), (50.0, 60.0), choice=choice, **changed)
    one, two, rest = found.table().split("\n\n")
    for block in (one, two):
        assert len({len(line) for line in block.splitlines()}) == 1
    assert [line.split() for line in one.splitlines()] == [
        ["nbeta", "50", "precision", "1", "precision", "10"],
        ["step", "0.001", "[2=]", "2?"],
        ["0.002", "2=", "diverged"],
    ]
    assert [line.split() for line in two.splitlines()][1:] == [["step", "0.001", "2=", "7"], ["0.002", "2=", "2="]]
    assert "tuner's choice    step 0.001, precision 1, nbeta 50" in rest
    assert "estimate there    2 ± 0.1 mc ± 0.2 sys (MC202)" in rest
    assert "plateau           5 of 8 cells: step 0.001 to 0.002, precision 1 to 10, nbeta 50 to 60" in rest
    assert str(found) == found.table()
    assert found.values().shape == (2, 2, 2)
    assert found.values()[1, 1, 0] == 7.0


def test_what_follows_from_cells_is_in_the_summary():
    found = grid((1.0, 2.0), choice=cell(point=(1.9, 1.0, 1.0)))
    summary = found.to_dict()["summary"]
    assert summary["choice"] == {"step": 1.9, "precision": 1.0, "nbeta": 1.0}
    assert summary["nearest"] == {"step": 2.0, "precision": 1.0, "nbeta": 1.0}
    assert summary["plateau"] == [[[True, True]]]
    assert found.to_dict()["ok"] == found.ok
    again = cr.Sweep.from_dict(found.to_dict())
    assert again == found
    for name in ("cells", "around"):
        with pytest.raises(cr.InputError, match="was it cut"):
            cr.Sweep.from_dict(found.to_dict() | {name: found.to_dict()[name][:-1]})
