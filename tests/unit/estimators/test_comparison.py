"""Comparisons of models on the same examples."""

import math

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws


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
