"""The intercept in 1/log nβ, on draws whose law is known exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.estimators import multitemperature
from crunode.estimators.covariance import combination_se
from crunode.estimators.multitemperature import intercept_weights, multi_temperature
from crunode.examples import toys
from crunode.sampling.metropolis import HMC

LEVELS = (1e2, 1e3, 1e4, 1e5, 1e6)


def drawn(losses, levels=LEVELS, name="HMC"):
    chains = len(losses[0])
    spec = {"n": 1000, "dim": 4, "asked": {"seed": 0}, "kernel": {"name": name}}
    return Draws({"excess": np.concatenate(losses)}, {}, np.repeat(levels, chains), spec)


def from_density(rng, log_density, shape):
    """Draws of exp(u), u real, by inverting the distribution function of u on a fine grid."""
    u = np.linspace(-60, 6, 200_001)
    weight = np.exp(log_density(u) - log_density(u).max())
    cumulated = np.cumsum(weight)
    return np.exp(np.interp(rng.random(shape) * cumulated[-1], cumulated, u))


def crossing(t, rng, shape):
    """K = x²y² with a standard normal prior: |y| has density exp(−y²/2)(1 + 2ty²)^−½, and x is normal given y."""
    y = from_density(rng, lambda u: u - np.exp(2 * u) / 2 - 0.5 * np.log1p(2 * t * np.exp(2 * u)), shape)
    return rng.standard_normal(shape) ** 2 / (1 + 2 * t * y**2) * y**2


def regression(t, rng, shape):
    """K = ½‖BA‖² with A 2 × 2 and B 1 × 2, standard normal priors: |B|² has density exp(−b/2)/(1 + tb)."""
    b = from_density(rng, lambda u: u - np.exp(u) / 2 - np.log1p(t * np.exp(u)), shape)
    return rng.chisquare(2, shape) / 2 * b / (1 + t * b)


@pytest.mark.heavy
@pytest.mark.parametrize(("law", "exact"), [(crossing, 0.5), (regression, float(toys.exact_reduced_rank(2, 2, 1, 0)))])
def test_the_intercept_is_nearer_than_any_level_where_the_multiplicity_is_two(law, exact):
    rng = np.random.default_rng(0)
    est = multi_temperature(drawn([law(t, rng, (8, 20_000)) for t in LEVELS]))
    plain = [row["value"] for row in est.diagnostics["levels"]]
    assert est.ok
    assert abs(est.value - exact) < 0.5 * min(abs(value - exact) for value in plain)
    assert abs(est.value - exact) < 2 * est.error
    assert est.error < 0.1 * exact
    assert -1.1 < est.diagnostics["slope"] < -0.4  # −(m − 1) in the limit


def flat(rng, d=6, draws=300, levels=LEVELS):
    return drawn([rng.chisquare(d, (4, draws)) / (2 * t) for t in levels], levels)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_the_stated_error_is_the_spread_over_repeats():
    """80 repeats know their spread to 8 %: bounds are four deviations or more away, one in 10⁴ false alarms."""
    found = [multi_temperature(flat(np.random.default_rng(k))) for k in range(80)]
    values = np.array([e.value for e in found])
    assert abs(values.mean() - 3) < 4 * values.std(ddof=1) / math.sqrt(len(values))
    assert 0.65 < values.std(ddof=1) / np.mean([e.se for e in found]) < 1.4


def together(seed, name):
    """Levels that share 95 % of their noise, as replica exchange has them."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((4, 400))
    own = rng.standard_normal((len(LEVELS), 4, 400))
    mixed = math.sqrt(0.95) * shared + math.sqrt(0.05) * own
    return drawn([(3 + mixed[k]) / t for k, t in enumerate(LEVELS)], name=name)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_levels_that_exchange_states_are_one_ladder():
    """Shared noise leaves the slope alone, so that its joint error is far smaller; the bounds are as above."""
    found = [multi_temperature(together(k, "Exchange")) for k in range(60)]
    for values, errors in (
        ([e.value for e in found], [e.se for e in found]),
        ([e.diagnostics["slope"] for e in found], [e.diagnostics["slope_se"] for e in found]),
    ):
        assert 0.65 < np.std(values, ddof=1) / np.mean(errors) < 1.4
    apart = multi_temperature(together(0, "HMC")).diagnostics["slope_se"]
    assert apart > 2 * np.mean([e.diagnostics["slope_se"] for e in found])


def codes(est):
    return [f.code for f in est.findings]


def test_findings_about_levels_and_line():
    rng = np.random.default_rng(1)
    assert codes(multi_temperature(flat(rng))) == []
    with pytest.warns(UserWarning, match="LLC117"):
        assert "LLC117" in codes(multi_temperature(flat(rng, levels=(1e3, 1e4, 1e6))))
    with pytest.warns(UserWarning, match="LLC117"):
        assert "LLC117" in codes(multi_temperature(flat(rng, levels=(1000.0, 1100.0, 1200.0, 1300.0))))
    shapes = (3.0, 6.0, 3.0, 6.0, 3.0)
    with pytest.warns(UserWarning, match="LLC118"):
        zigzag = multi_temperature(drawn([rng.gamma(a, 1 / t, (4, 500)) for a, t in zip(shapes, LEVELS, strict=True)]))
    assert "LLC118" in codes(zigzag)
    assert zigzag.se > 1.0
    with pytest.warns(UserWarning, match="LLC119"):
        falls = multi_temperature(
            drawn([rng.gamma(3 + 20 / math.log(t), 1 / t, (4, 500)) for t in LEVELS])  # as label noise has it
        )
    assert codes(falls) == ["LLC119"]


@pytest.mark.heavy
def test_a_bend_is_in_the_systematic_error():
    rng = np.random.default_rng(2)
    shapes = [3 - 40 / math.log(t) ** 2 for t in LEVELS[1:]]
    losses = [rng.gamma(a, 1 / t, (4, 20_000)) for a, t in zip(shapes, LEVELS[1:], strict=True)]
    with pytest.warns(UserWarning, match="LLC118"):
        bent = multi_temperature(drawn(losses, LEVELS[1:]))
    assert bent.terms["bend"] > 3 * multi_temperature(flat(rng, draws=20_000)).systematic
    assert abs(bent.value - 3) < 2 * bent.error


@given(
    st.floats(-5, 5),
    st.floats(-5, 5),
    st.lists(st.floats(0.1, 10), min_size=4, max_size=4),
    st.integers(1, 2),
)
def test_lines_are_found_whatever_the_errors(start, slope, errors, degree):
    x = np.array([0.05, 0.1, 0.2, 0.4])
    a, b = intercept_weights(x, np.diag(np.square(errors)), degree)
    y = start + slope * x
    assert float(a @ y) == pytest.approx(start, abs=1e-6)
    assert float(b @ y) == pytest.approx(slope, abs=1e-5)


def test_draws_may_be_used_in_part():
    whole = flat(np.random.default_rng(3))
    part = multi_temperature(whole, levels=LEVELS[:4])
    assert [row["nbeta"] for row in part.diagnostics["levels"]] == list(LEVELS[:4])
    assert part == multi_temperature(whole.only(LEVELS[:4]))


@pytest.mark.parametrize(
    "levels", [(1e2, 1e3), (1e2, 1e2, 1e3), (2.0, 1e2, 1e3, 1e4), "1e4", (1e2, math.inf, 1e4), 5.0]
)
def test_levels_that_make_no_line_are_refused(levels):
    with pytest.raises(InputError, match="expected 3 different levels"):
        multi_temperature(toys.quadratic(2), levels=levels)


def test_other_bad_input_is_refused():
    draws = flat(np.random.default_rng(4))
    with pytest.raises(InputError, match="beside Draws, got chains"):
        multi_temperature(draws, chains=4)
    with pytest.raises(InputError, match="sample them first"):
        multi_temperature(draws, levels=(1e2, 1e3, 5e3))
    with pytest.raises(InputError, match="expected a Landscape or Draws"):
        multi_temperature(np.ones(3))
    with pytest.raises(InputError, match="finite"):
        multi_temperature(drawn([np.full((2, 50), math.nan) for _ in LEVELS]))
    with pytest.raises(InputError, match="vary"):
        multi_temperature(drawn([np.ones((2, 50)) for _ in LEVELS]))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_a_landscape_is_sampled_from_one_seed():
    options = {"levels": (1e2, 1e3, 1e4, 1e5), "kernel": HMC(leaps=4), "chains": 16, "draws": 20, "warmup": 10}
    one, two = (multi_temperature(toys.quadratic(4), seed=7, **options) for _ in range(2))
    assert one.value == two.value
    assert abs(one.value - 2) < 4 * one.error
    assert one.seed == 7


def intercept(x, y, w, degree=1):
    return np.polyfit(x, y, degree, w=w)[-1]


@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
@pytest.mark.parametrize("bent", [0.0, 30.0])
def test_value_slope_and_terms_are_those_of_weighted_polynomials(bent):
    rng = np.random.default_rng(5)
    levels = (30.0, 1e2, 1e3, 1e4, 1e5)
    shapes = [3 - bent / math.log(t) ** 2 + 3 / math.log(t) for t in levels]
    losses = [rng.gamma(a, 1 / t, (4, 200 * (k + 1))) for k, (a, t) in enumerate(zip(shapes, levels, strict=True))]
    est = multi_temperature(drawn([x[:, :200] for x in losses], levels))
    t, y, se = (np.array([row[name] for row in est.diagnostics["levels"]]) for name in ("nbeta", "value", "se"))
    assert t.tolist() == list(levels)
    assert y == pytest.approx([level * x[:, :200].mean() for level, x in zip(levels, losses, strict=True)])
    x, wide = 1 / np.log(t), np.sqrt(se**2 + (multitemperature._ROUGH * y.max()) ** 2)
    slope, value = np.polyfit(x, y, 1, w=1 / wide)
    assert est.value == pytest.approx(value)
    assert est.diagnostics["slope"] == pytest.approx(slope)
    misfit = (((y - value - slope * x) / wide) ** 2).sum() / 3
    assert est.diagnostics["misfit"] == pytest.approx(misfit)
    unit = np.eye(5)
    weights = np.array([np.polyfit(x, e, 1, w=1 / wide) for e in unit])
    series = [level * x[:, :200] for level, x in zip(levels, losses, strict=True)]
    errors = [math.sqrt(max(misfit, 1)) * combination_se(a, series, False) for a in weights.T]
    assert (est.diagnostics["slope_se"], est.se) == (pytest.approx(errors[0]), pytest.approx(errors[1]))
    change = np.array([intercept(x, e, 1 / wide, 2) - intercept(x, e, 1 / wide) for e in unit])
    beyond = abs(change @ y) - 2 * combination_se(change, series, False)
    assert est.terms["bend"] == pytest.approx(max(beyond, 0), abs=1e-9)
    assert (est.terms["bend"] > 0) == (bent > 0)
    middle = -special.digamma(max(value, 0.02))
    around = (middle - multitemperature._SHIFT, middle, middle + multitemperature._SHIFT)
    ends = [intercept(1 / np.maximum(np.log(t) + c, 1), y, 1 / wide) for c in around]
    assert est.terms["shift"] == pytest.approx(max(abs(end - value) for end in ends))
    assert est.systematic == pytest.approx(math.hypot(*est.terms.values()))


@pytest.mark.parametrize("dof", [1, 2, 3, 8])
def test_lines_are_doubted_where_chance_would_in_one_of_ten_thousand(dof):
    assert multitemperature._limit(dof) == pytest.approx(stats.chi2.isf(1e-4, dof) / dof, rel=0.1)
