"""Lines of several data sets put together: value, error and what is left open."""

import math

import numpy as np
import pytest
from scipy import special

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators import tempering
from crunode.estimators.tempering import _Line

LEVELS = [30.0, 60.0, 120.0]


def draws(first=1.0):
    losses = np.random.default_rng(0).gamma(2.0, 1.0, (6, 50)) / np.repeat(LEVELS, 2)[:, None]
    nbeta = first * np.repeat(LEVELS, 2)
    return Draws({"excess": losses, "distance2": losses}, {}, nbeta, {"n": 500, "asked": {"seed": 4}})


def together(monkeypatch, lines, sets=None, **options):
    seen = []
    rows = iter(lines)
    monkeypatch.setattr(tempering, "_line", lambda d, extra: seen.append(extra) or next(rows))
    return cr.rlct(sets or [draws()] * len(lines), **options), seen


def line(slope, se=0.2, r2=0.95, bend=0.0, bend_se=0.1, rhat=1.0):
    return _Line(slope, se, r2, bend, bend_se, rhat)


def test_lines_are_averaged(monkeypatch):
    lines = [line(2.0, 0.2, 0.99, 1.5, 0.3, 1.001), line(3.5, 0.5, 0.91, 0.9, 0.4, 1.009), line(1.0, 0.1, 0.97, 0.3)]
    found, extra = together(monkeypatch, lines)
    assert extra == [0, 0, 0]
    assert found.value == pytest.approx(6.5 / 3)
    assert found.se == pytest.approx(np.std([2.0, 3.5, 1.0], ddof=1) / math.sqrt(3))
    assert found.diagnostics["mc_se"] == pytest.approx(math.sqrt(0.04 + 0.25 + 0.01) / 3)
    assert found.diagnostics["bend"] == pytest.approx(0.9)
    assert found.diagnostics["slopes"] == [2.0, 3.5, 1.0]
    assert found.diagnostics["r2"] == [0.99, 0.91, 0.97]
    assert found.diagnostics["rhat"] == 1.009
    assert found.terms["law"] == pytest.approx(math.sqrt(0.81 - (0.09 + 0.16 + 0.01) / 9) / 2)
    assert found.systematic == pytest.approx(math.hypot(*found.terms.values()))
    assert found.seed == 4
    assert [row["nbeta"] for row in found.diagnostics["levels"]] == LEVELS
    one, _ = together(monkeypatch, lines[:1])
    assert one.se == pytest.approx(0.2) == one.diagnostics["mc_se"]
    # Slopes that agree by chance are not known better than each is.
    same, _ = together(monkeypatch, [line(2.0), line(2.0)])
    assert same.se == pytest.approx(0.2 / math.sqrt(2))
    straight, _ = together(monkeypatch, [line(2.0, bend=0.05)])
    assert straight.terms["law"] == 0.0
    assert together(monkeypatch, [line(2.0, bend=-0.5)])[0].terms["law"] == pytest.approx(math.sqrt(0.25 - 0.01) / 2)


@pytest.mark.parametrize("slope", [0.2, 0.5, 3.0])
def test_multiplicities_that_are_not_known_are_left_open_at_the_hottest_level(monkeypatch, slope):
    far = math.log(30) - special.digamma(max(slope, 0.5))
    unknown, _ = together(monkeypatch, [line(slope)])
    assert 0.3 < unknown.terms["multiplicity"] * far < 0.9  # part of what a multiplicity of two takes away
    colder, _ = together(monkeypatch, [line(slope)] * 2, [draws(), draws(10.0)])
    assert colder.terms["multiplicity"] == pytest.approx(unknown.terms["multiplicity"])
    farther, _ = together(monkeypatch, [line(slope)], [draws(10.0)])
    share = (far + math.log(10)) / far
    assert unknown.terms["multiplicity"] / farther.terms["multiplicity"] == pytest.approx(share)
    known = [together(monkeypatch, [line(slope)], multiplicity=m) for m in (1, 2, 3, 4)]
    assert [extra for _, extra in known] == [[0], [1], [2], [3]]
    rest = [found.terms["multiplicity"] for found, _ in known]
    # Then a shift of the logarithm by about one is left, as often as there are logarithms.
    assert rest[0] == 0
    assert rest == pytest.approx([k * rest[1] for k in range(4)])
    assert 0.5 < rest[1] * far**2 < 2.5


def test_lines_that_fit_badly_are_reported_once(monkeypatch):
    for r2, codes in ((0.95, []), (0.85, ["LLC116"]), (math.nan, ["LLC116"])):
        found, _ = together(monkeypatch, [line(2.0, r2=0.99), line(2.0, r2=r2)])
        assert [f.code for f in found.findings if f.code.startswith("LLC")] == codes
    far, _ = together(monkeypatch, [line(2.0, r2=0.5), line(2.0, r2=0.7)])
    assert "0.50" in next(f.message for f in far.findings if f.code == "LLC116")
