import io
import sys

import matplotlib
import numpy as np
import pytest

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import MissingExtra
from crunode.estimators.coefficient import llc
from crunode.examples.toys import reduced_rank
from crunode.reporting.overview import plot_overview
from crunode.reporting.plots import plot_estimate
from crunode.sampling.metropolis import HMC
from crunode.store.run_store import load_estimate


def png(figure):
    """The picture's bytes, which makes matplotlib draw everything."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def texts(figure):
    return " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


def made(levels, chains=3, draws=40, warmup=10):
    """An estimate from invented draws."""
    rng = np.random.default_rng(0)
    nbeta = np.repeat(np.asarray(levels, float), chains)
    arrays, before = (
        {"excess": rng.gamma(2.0, 1.0, (nbeta.size, steps)) / nbeta[:, None]} for steps in (draws, warmup)
    )
    rows = [{"nbeta": float(t), "value": 2.0, "se": 0.1} for t in levels]
    spec = {"asked": {"seed": 0}}
    return Estimate(
        "llc",
        2.1,
        se=0.1,
        systematic=0.2,
        spec=spec,
        diagnostics={"levels": rows},
        draws=Draws(arrays, before, nbeta, spec),
    )


@pytest.mark.heavy
@pytest.mark.parametrize("levels", [[50.0], [10.0, 30.0, 90.0], list(range(1, 11))], ids=["one", "ladder", "many"])
@pytest.mark.parametrize("chains", [1, 3, 300])
def test_levels_and_chains_of_any_number(levels, chains):
    figure = made(levels, chains=chains).plot()
    assert png(figure).startswith(b"\x89PNG")
    assert "Running estimate" in texts(figure)
    assert ("extrapolated: 2.1" in texts(figure)) == (len(levels) > 1)


def test_value_of_one_level_is_not_called_extrapolated():
    estimate = made([10.0, 30.0, 90.0])
    estimate.diagnostics["plain"] = {"nbeta": 30.0, "value": 2.1, "se": 0.1}
    assert "at nβ = 30: 2.1" in texts(estimate.plot())


def test_warmup_is_shaded_apart():
    figure = made([50.0], warmup=25).plot()
    strip = figure.subfigs[0].axes[0]
    assert strip.get_xlim() == (-25.0, 40.0)
    assert "warm-up" in strip.get_title(loc="left")
    assert "warm-up" not in made([50.0], warmup=0).plot().subfigs[1].axes[0].get_title(loc="left")


@pytest.mark.heavy
@pytest.mark.parametrize("draws", [0, 15])
def test_failed_estimate_is_drawn_as_far_as_it_went(draws):
    good = made([50.0], draws=draws).draws
    good.arrays["excess"][1, 10:] = np.nan
    good.warmup["excess"][0, -3:] = [1e30, np.inf, np.nan]
    nan = float("nan")
    failed = Estimate("llc", nan, se=nan, systematic=nan, findings=(Finding.of("MC204", "chain 0"),), draws=good)
    figure = failed.plot()
    png(figure)
    assert "a chain diverged" in texts(figure)
    assert "no value" in texts(figure)


@pytest.mark.parametrize("value", [2.5, float("nan"), float("inf")])
def test_estimate_without_draws(value):
    figure = plot_estimate(Estimate("llc", value, se=0.1))
    png(figure)
    assert "no draws in this estimate" in texts(figure)


def test_errors_that_are_not_finite():
    estimate = made([10.0, 30.0, 90.0])
    png(Estimate("llc", 2.0, se=float("nan"), diagnostics=estimate.diagnostics, draws=estimate.draws).plot())


def test_constant_loss():
    estimate = made([10.0])
    estimate.draws.arrays["excess"][:] = 0
    png(estimate.plot())


@pytest.mark.heavy
def test_estimate_from_a_run_folder_looks_the_same(tmp_path):
    land = reduced_rank(3, 2, 3, 1, n=100)
    kernel = HMC(step=0.01, leaps=4)
    with pytest.warns(UserWarning, match="MC"):
        estimate = llc(
            land, nbeta=20.0, kernel=kernel, precision=5.0, chains=2, draws=20, warmup=5, store=tmp_path / "a"
        )
    assert png(load_estimate(tmp_path / "a").plot()) == png(estimate.plot())


def test_no_global_state_is_touched(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would raise
    # Asking for the backend would itself choose one, and import pyplot.
    names = [name for name in matplotlib.rcParams if name != "backend"]
    before = {name: matplotlib.rcParams[name] for name in names}
    png(made([10.0]).plot())
    assert {name: matplotlib.rcParams[name] for name in names} == before


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"crunode\[plot\]"):
        made([10.0]).plot()


def test_overview_shows_what_agrees():
    rows = [
        {"name": "known", "value": 2.1, "error": 0.2, "exact": "2"},
        {"name": "failed", "value": float("nan"), "error": float("nan"), "exact": "1/2"},
        {"name": "network", "value": 9.0, "error": 1.0, "exact": None},
    ]
    figure = plot_overview(rows, reduced_rank(3, 2, 3, 1, n=100), made([10.0, 30.0, 90.0]))
    png(figure)
    assert "known" in texts(figure)
    assert "network" not in texts(figure)
