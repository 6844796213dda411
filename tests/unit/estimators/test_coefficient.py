"""What llc() says about draws of which the truth is known because they were made up."""

import math
import warnings

import numpy as np
import pytest

import crunode as cr

N, DIM, CHAINS, COUNT = 1000, 10, 4, 800
WBIC = N / math.log(N)


def made_up(excess, nbeta=WBIC, *, accept=None, measures=None, kernel=None):
    """Draws with the given excess losses, (chain, draw), at one level."""
    arrays = {"excess": np.asarray(excess), "distance2": np.ones_like(excess)}
    if accept is not None:
        arrays["accept"] = np.full_like(arrays["excess"], accept)
    spec = {
        "asked": {"seed": 0},
        "n": N,
        "dim": DIM,
        "nbeta": [nbeta],
        "precision": 1.0,
        "measures": measures or {},
        "kernel": kernel or {"name": "HMC", "step": 0.1},
    }
    return cr.Draws(arrays, {}, np.full(len(excess), nbeta), spec)


def gamma(coefficient, seed=0, shape=(CHAINS, COUNT)):
    """nβ times the excess loss of a posterior with this coefficient is Gamma distributed."""
    return np.random.default_rng(seed).gamma(coefficient, size=shape) / WBIC


def quiet(draws):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.llc(draws)


def codes(estimate):
    return {f.code for f in estimate.findings}


def test_clean_draws_give_the_value_without_findings():
    estimate = cr.llc(made_up(gamma(3.0), accept=0.8))
    assert estimate.ok
    assert not estimate.findings
    assert estimate.value == pytest.approx(3.0, abs=4 * estimate.se)
    assert estimate.se == pytest.approx(math.sqrt(3.0 / (CHAINS * COUNT)), rel=0.35)
    assert estimate.diagnostics["plain"]["value"] == estimate.value


@pytest.mark.parametrize(
    ("code", "excess", "options"),
    [
        ("LLC101", gamma(3.0) - 8 / WBIC, {}),
        ("LLC102", gamma(3.0) - 8 / WBIC, {}),
        ("LLC104", gamma(30.0), {}),
        ("LLC106", np.zeros((CHAINS, COUNT)), {}),
        ("MC201", gamma(3.0) + np.arange(CHAINS)[:, None] / WBIC, {}),
        ("MC202", gamma(3.0, shape=(2, 20)), {}),
        ("MC203", gamma(3.0) + np.linspace(0, 3, COUNT) / WBIC, {}),
        ("MC205", gamma(3.0), {"accept": 0.05}),
    ],
)
def test_each_flaw_is_found_and_announced(code, excess, options):
    draws = made_up(excess, **options)
    with pytest.warns(cr.DiagnosticWarning, match=code):
        estimate = cr.llc(draws)
    assert code in codes(estimate)
    assert estimate.ok == all(f.severity != "error" for f in estimate.findings)


def test_heating_and_step_errors_are_predicted_and_found():
    measures = {"gradient_noise": 40.0, "curvature_trace": 50.0}
    kernel = {"name": "SGLD", "step": 1e-3, "batch": 100}
    estimate = quiet(made_up(gamma(3.0), measures=measures, kernel=kernel))
    assert estimate.terms["heating"] == pytest.approx(1e-3 * WBIC**2 * 40 / 800)
    assert estimate.terms["discretisation"] == pytest.approx(1e-3 * WBIC * 50 / 8)
    assert {"MC301", "MC302"} <= codes(estimate)
    assert estimate.systematic >= math.hypot(estimate.terms["heating"], estimate.terms["discretisation"])


def test_a_full_batch_has_no_heating():
    measures = {"gradient_noise": 40.0, "curvature_trace": 0.0}
    estimate = quiet(made_up(gamma(3.0), measures=measures, kernel={"name": "SGLD", "step": 1e-3, "batch": N}))
    assert estimate.terms["heating"] == 0


def test_draws_that_are_not_finite_give_no_number():
    excess = gamma(3.0)
    excess[2, 400:] = np.inf
    estimate = quiet(made_up(excess))
    assert math.isnan(estimate.value)
    assert not estimate.ok


def test_a_ladder_that_keeps_growing_gives_the_conventional_value():
    levels = [WBIC * f for f in (0.25, 0.5, 1.0, 2.0)]
    values = [2.0, 3.0, 4.5, 6.75]
    rng = np.random.default_rng(0)
    excess = np.concatenate([rng.gamma(v, size=(CHAINS, COUNT)) / t for v, t in zip(values, levels, strict=True)])
    draws = made_up(excess)
    spec = {**draws.spec, "nbeta": levels, "measures": {"label_noise": 1.0}}
    estimate = quiet(cr.Draws(draws.arrays, {}, np.repeat(levels, CHAINS), spec))
    assert "LLC103" in codes(estimate)
    assert estimate.value == pytest.approx(4.5, abs=0.3)
    assert estimate.terms["temperature"] == pytest.approx((6.75 - 3.0) / 2, rel=0.3)


def test_wrong_arguments_are_refused():
    with pytest.raises(cr.InputError, match="on_failure"):
        cr.llc(made_up(gamma(3.0)), on_failure="ignore")
    with pytest.raises(cr.InputError, match="Landscape or Draws"):
        cr.llc("model")
