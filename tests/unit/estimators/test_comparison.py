"""Comparisons of models on the same examples."""

import math

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.comparison import Comparison, Row
from crunode.estimators.criteria import with_parts


def drawn(losses, n=None):
    n = n or losses.shape[2]
    arrays = {"excess": losses.mean(2), "distance2": losses.mean(2), "pointwise": losses}
    return Draws(arrays, {}, np.full(len(losses), float(n)), {"n": n, "asked": {"seed": 0}})


def models(gap, n=200, seed=0):
    """Two models whose losses share what is hard about each example, and differ by `gap` with a scatter of 0.1."""
    rng = np.random.default_rng(seed)
    hard = rng.chisquare(2, n)
    noise = 0.01 * rng.standard_normal((2, 4, 300, n))
    other = hard + gap + 0.1 * rng.standard_normal(n)
    return {"one": drawn(hard + noise[0]), "two": drawn(other + noise[1])}


@pytest.mark.parametrize("criterion", ["loo", "waic"])
def test_differences_are_paired(criterion):
    found = cr.compare(models(0.05), criterion)
    assert found.best == "one"
    worse = found.rows[1]
    assert worse.difference == pytest.approx(0.05, abs=0.025)
    assert worse.data_se == pytest.approx(0.1 / math.sqrt(200), rel=0.15)
    # Unpaired, the error would be twenty times as large and nothing would be clear.
    assert worse.clear
    assert found.tied == ("one",)
    assert worse.estimate.diagnostics["data_se"] > 10 * worse.data_se


def test_models_that_are_alike_are_tied():
    found = cr.compare(models(0.0))
    assert set(found.tied) == {"one", "two"}
    assert "not clear" in str(found)


@pytest.mark.heavy
def test_the_difference_is_calibrated():
    """Over data sets the difference scatters by its stated error: 40 of them know it to 11 %."""
    rows = [next(r for r in cr.compare(models(0.2, seed=k)) if r.name == "two") for k in range(40)]
    spread = np.std([r.difference for r in rows], ddof=1)
    assert 0.7 < spread / np.mean([r.data_se for r in rows]) < 1.4


def test_order_and_content():
    rng = np.random.default_rng(1)
    base = rng.chisquare(1, 50) + 0.01 * rng.standard_normal((4, 200, 50))
    found = cr.compare({"c": drawn(base + 2), "a": drawn(base), "b": drawn(base + 1)}, "waic")
    assert [row.name for row in found] == ["a", "b", "c"]
    assert found.rows[0].difference == 0.0
    assert [round(r.difference, 6) for r in found] == [0, 1, 2]
    assert [r["name"] for r in found.to_dict()["rows"]] == ["a", "b", "c"]
    assert found.ok


def test_plot():
    figure = cr.compare(models(0.05)).plot()
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["two", "one"]
    assert right.get_xlabel()


def test_bad_input():
    good = models(0.1)
    with pytest.raises(cr.InputError, match="two models"):
        cr.compare({"one": good["one"]})
    with pytest.raises(cr.InputError, match="criterion"):
        cr.compare(good, "aic")
    with pytest.raises(cr.InputError, match="same examples"):
        cr.compare({"one": good["one"], "two": models(0.1, n=100)["two"]})


def row(difference, data_se, mc_se, ok=True):
    est = cr.Estimate("loo", 1.0, se=0.1)
    if not ok:
        est = cr.Estimate("loo", 1.0, se=0.1, findings=(cr.Finding.of("MC204", "one chain"),))
    return Row("x", est, difference, data_se, mc_se)


def test_two_of_both_errors_in_quadrature_make_a_difference_clear():
    assert row(10.1, 3.0, 4.0).clear
    assert not row(9.9, 3.0, 4.0).clear
    assert not row(0.0, 0.0, 0.0).clear


def test_one_bad_criterion_is_enough():
    good, bad = row(0.0, 0.1, 0.1), row(0.0, 0.1, 0.1, ok=False)
    assert not bad.estimate.ok
    assert Comparison("loo", (good, good)).ok
    assert not Comparison("loo", (good, bad)).ok
    lines = str(Comparison("loo", (good, bad))).splitlines()
    assert "not ok" not in lines[1]
    assert "not ok  (MC204)" in lines[2]


def test_errors_of_a_difference_are_those_of_the_pairs_and_of_both_runs():
    rng = np.random.default_rng(5)
    hard = rng.chisquare(2, 30)
    losses = [hard + 0.3 * k + 0.2 * rng.standard_normal((4, 100, 30)) for k in range(3)]
    found = cr.compare({f"m{k}": drawn(x) for k, x in enumerate(losses)}, "waic")
    values = [with_parts(drawn(x), "waic")[1] for x in losses]
    errors = [cr.waic(drawn(x)).se for x in losses]
    assert (found.rows[0].difference, found.rows[0].data_se, found.rows[0].mc_se) == (0.0, 0.0, 0.0)
    for k in (1, 2):
        apart = values[k] - values[0]
        told = found.rows[k]
        assert told.name == f"m{k}"
        assert told.difference == pytest.approx(apart.mean())
        assert told.data_se == pytest.approx(apart.std(ddof=1) / math.sqrt(30))
        assert told.mc_se == pytest.approx(math.hypot(errors[0], errors[k]))


def test_a_single_example_leaves_the_error_open():
    found = cr.compare({k: drawn(np.random.default_rng(k == "a").random((2, 50, 1))) for k in "ab"}, "waic")
    assert all(math.isnan(x.data_se) for x in found)
