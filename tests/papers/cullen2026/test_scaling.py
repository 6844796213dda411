"""Rows of `cullen2026-scaling` on estimates made by hand: closed forms, lines in p and K, what generalizes."""

import math

import numpy as np
import pytest

from crunode.jobs.recipe import Cell, Result
from crunode_papers.cullen2026 import scaling


def numbers(value, error=0.25, findings=(), se=0.125):
    return {"value": value, "se": se, "error": error, "findings": list(findings)}


def case(**held):
    cell = Cell("case: modular p=5 K=12", {"kind": "case", "case": "modular"})
    return Result(cell, {"exact": 60.0, "paper": None, "paper_bounds": None, "source": "theorem", **held}, 0.0)


def test_each_way_to_an_estimate_has_its_row_with_its_error_and_findings():
    ways = {"estimate": numbers(60.1), "sampled": numbers(61.0, 2.0, ["MC201", "MC206"]), "line": numbers(59.0, 3.0)}
    rows = scaling.rows([case(**ways)], "toy")
    assert [row.name for row in rows] == [
        f"modular p=5 K=12: {what}" for what in ("llc", "chains alone", "regression on 1/log nβ")
    ]
    assert [(row.paper, row.ours, row.se) for row in rows] == [
        (60.0, 60.1, 0.125),
        (60.0, 61.0, 2.0),
        (60.0, 59.0, 3.0),
    ]
    assert [row.note for row in rows] == ["", "findings MC201, MC206", ""]
    assert {row.verdict for row in rows} == {"agrees"}


@pytest.mark.parametrize(
    ("bounds", "verdicts"), [((50.0, 70.0), ["agrees"] * 2), ((61.0, 70.0), ["differs", "agrees"])]
)
def test_bounds_of_the_paper_hold_from_both_sides(bounds, verdicts):
    _, low, high = scaling.rows([case(estimate=numbers(60.0), paper_bounds=bounds)], "toy")
    assert [low.verdict, high.verdict] == verdicts
    assert [(low.paper, low.side), (high.paper, high.side)] == [(bounds[0], "at least"), (bounds[1], "at most")]


def test_too_small_a_value_of_the_paper_is_told_by_how_much():
    printed = scaling.rows([case(estimate=numbers(60.0), paper=45.0)], "toy")[1]
    assert (printed.paper, printed.ours) == (45.0, 60.0)
    assert "25% too small" in printed.note


def exact(p, k):
    """λ of networks on all pairs: K(3p − 2)/2 as long as that is less than p(p² − 1)/2."""
    return min(k * (3 * p - 2) / 2, p * (p * p - 1) / 2)


def grid(places, key="estimate", off=lambda p, k: 0.0):
    return [
        Result(
            Cell(f"grid {p} {k}", {"kind": "grid", "modulus": p, "hidden": k}),
            {"exact": exact(p, k), key: numbers(exact(p, k) + off(p, k), 0.01)},
            0.0,
        )
        for p, k in places
    ]


def test_slopes_in_k_change_at_the_critical_width_and_slopes_in_p_are_those_of_k():
    # p(p² − 1)/(3p − 2) is 8/7 · 3 = 24/7 for p = 3, and 120/13 for p = 5.
    assert [float(scaling.critical_width(p, p * p, 2 * p - 1)) for p in (3, 5)] == pytest.approx([24 / 7, 120 / 13])
    rows = scaling.rows(grid([(p, k) for p in (3, 5) for k in (2, 3, 12, 14)]), "toy")
    named = {row.name: row for row in rows}
    for p, width in ((3, "3.4"), (5, "9.2")):
        below = named[f"all pairs, p = {p}: slope of λ in K up to K = {width}, llc"]
        assert (below.paper, below.verdict) == ((3 * p - 2) / 2, "agrees")
        assert below.ours == pytest.approx((3 * p - 2) / 2)
        printed = named[f"{below.name}, as printed"]
        assert (printed.paper, printed.verdict) == ((3 * p - 1) / 2, "explained")
        above = named[f"all pairs, p = {p}: slope of λ in K above K = {width}, llc"]
        assert (above.paper, above.verdict) == (0.0, "agrees")
    for k in (2, 3):
        slope, rest = (named[f"all pairs, K = {k}: {what} of λ in p, llc"] for what in ("slope", "intercept"))
        assert [(slope.paper, slope.verdict), (rest.paper, rest.verdict)] == [(1.5 * k, "agrees"), (-k, "agrees")]
        assert (slope.ours, rest.ours) == (pytest.approx(1.5 * k), pytest.approx(-k))
    assert not any(f"K = {k}:" in name for name in named for k in (12, 14))
    wrong = scaling.rows(grid([(3, 2), (3, 3), (5, 2), (5, 3)], off=lambda p, k: (0.2 * p + 0.3) * k), "toy")
    assert {row.verdict for row in wrong if "printed" not in row.name} == {"differs"}


@pytest.mark.parametrize(("key", "least"), [("estimate", 2), ("sampled", 3)])
def test_two_points_make_a_line_where_ranks_leave_no_doubt_and_three_of_chains(key, least):
    for count in (least - 1, least):
        rows = scaling.rows(grid([(7, k) for k in range(1, count + 1)], key), "toy")
        assert bool(rows) == (count == least)


def training(values, accuracy=1.0):
    points = {name: [{"value": 0.0}, {"value": v}] for name, v in values.items()}
    return {"points": points, "validation_accuracy": [0.1, accuracy]}


def trained(widths, values, **options):
    found = []
    for k, seeds in zip(widths, values, strict=True):
        runs = [training({"printed": v, "local": v}, **options) for v in seeds]
        cell = Cell(f"trained {k}", {"kind": "trained", "modulus": 53, "width": k})
        found.append(Result(cell, {"trainings": runs, "exact": [2.0 * k, 4.0 * k]}, 0.0))
    return found


def test_values_of_trainings_share_one_relative_spread():
    values = [[10.0, 12.0, 11.0], [30.0, 33.0, 33.0]]
    found = scaling.trained_values(dict(enumerate(trained((1, 2), values))), "local")
    spread = math.sqrt(np.mean([np.var(v, ddof=1) / np.mean(v) ** 2 for v in values]))
    for k, v in enumerate(values):
        assert found[k] == pytest.approx((np.mean(v), spread * np.mean(v) / math.sqrt(3)))


def test_lines_of_trainings_take_three_widths_whose_chains_hold():
    widths, values = (1, 2, 3), [[3.0, 3.01], [6.0, 6.01], [9.0, 9.01]]
    rows = {row.name: row for row in scaling.rows(trained(widths, values), "paper") if "p = 53" in row.name}
    slopes = [row for name, row in rows.items() if "slope of λ̂ in K" in name and "sign" not in name]
    assert len(slopes) == 2
    for slope in slopes:
        assert slope.paper == pytest.approx(3)  # the mean of what is exact: 2K and 4K
        assert slope.ours == pytest.approx(3, rel=0.01)
        assert slope.verdict == "agrees"
    (sign,) = [row for name, row in rows.items() if "sign of the slope" in name]
    assert sign.verdict == "agrees"
    for row in (row for name, row in rows.items() if "R²" in name):
        assert row.ours == pytest.approx(1, abs=1e-3)
    lost = scaling.rows(trained(widths, [*values[:2], [None, 9.0]]), "paper")
    assert [row.verdict for row in lost if "slope" in row.name and "p = 53" in row.name] == ["no value"] * 2


@pytest.mark.parametrize(("accuracy", "share"), [(1.0, 1.0), (0.5, 0.0), (None, 0.0)])
def test_networks_that_generalize_are_counted(accuracy, share):
    results = trained((1, 2, 3), [[3.0, 3.01], [6.0, 6.01], [9.0, 9.01]], accuracy=accuracy)
    (row,) = [row for row in scaling.rows(results, "toy") if "generalize" in row.name]
    assert (row.ours, row.verdict) == (share, "shown")
    assert f"{-1.0 if accuracy is None else accuracy:.2f}" in row.note
