"""Criteria as their definitions have them, and their errors by derivatives with respect to the weight of each draw."""

import math

import numpy as np
import pytest

from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.estimators import criteria
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat
from crunode.sampling.pareto import smoothed_log_weights

CHAINS, DRAWS, ROWS, N, LEVEL = 3, 40, 5, 8, 4.8
BETA = LEVEL / N


def losses(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.4, (CHAINS, DRAWS, 1)) + rng.gamma(2.0, 0.5, (CHAINS, DRAWS, ROWS)) * np.arange(1, ROWS + 1)


def drawn(values, level=LEVEL, n=N, **spec):
    mean = values.mean(2)
    known = {"n": n, "asked": {"seed": 11}, **spec}
    return Draws({"excess": mean, "distance2": mean, "pointwise": values}, {}, np.full(len(values), level), known)


def means(w, x):
    """Mean of each example over weighted draws."""
    return np.einsum("cd,cdi->i", w, x) / w.sum()


def spread(w, x):
    return means(w, (x - means(w, x)) ** 2)


def leave_one_out(w, x):
    return -np.log(means(w, np.exp((BETA - 1) * x)) / means(w, np.exp(BETA * x)))


def smoothed_leave_one_out(w, x):
    efficiency = min(ess(x.mean(2)) / (CHAINS * DRAWS), 1.0)
    logs = [smoothed_log_weights(BETA * x[..., i].ravel(), efficiency=efficiency)[0] for i in range(x.shape[2])]
    r = np.exp(np.stack(logs, -1)).reshape(x.shape)
    return -np.log(means(w, r * np.exp(-x)) / means(w, r))


# Of each: the mean over examples that it is a multiple of, by weighted draws, and the multiple.
DEFINED = {
    "gibbs_training_loss": (means, 1.0),
    "bayes_training_loss": (lambda w, x: -np.log(means(w, np.exp(-x))), 1.0),
    "functional_variance": (spread, N),
    "singular_fluctuation": (spread, LEVEL / 2),
    "waic": (lambda w, x: -np.log(means(w, np.exp(-x))) + BETA * spread(w, x), 1.0),
    "loo": (smoothed_leave_one_out, 1.0),
    "plain loo": (leave_one_out, 1.0),
}


def estimate(name, draws):
    return criteria.loo(draws, smooth=False) if name == "plain loo" else getattr(criteria, name)(draws)


@pytest.mark.parametrize("name", DEFINED)
def test_criteria_are_what_they_are_defined_as_with_the_error_of_their_influence(name):
    x, even = losses(), np.ones((CHAINS, DRAWS))
    defined, scale = DEFINED[name]
    values = defined(even, x)
    if defined is spread or name == "waic":  # the variance has one degree of freedom less than there are draws
        share = 1 / (CHAINS * DRAWS - 1)
        values = values + share * spread(even, x) * (BETA if name == "waic" else 1.0)
    est = estimate(name, drawn(x))
    assert est.value == pytest.approx(scale * values.mean(), rel=1e-9)
    influence = np.empty_like(even)
    for place in np.ndindex(even.shape):
        more, less = even.copy(), even.copy()
        more[place] += 1e-4
        less[place] -= 1e-4
        influence[place] = (defined(more, x).mean() - defined(less, x).mean()) / 2e-4
    assert est.se == pytest.approx(scale * mcse_mean(influence * even.size), rel=1e-5)
    assert est.diagnostics["data_se"] == pytest.approx(scale * values.std(ddof=1) / math.sqrt(ROWS), rel=1e-9)
    seen = {k: est.diagnostics[k] for k in ("nbeta", "beta", "rhat", "ess")}
    mean = x.mean(2)
    assert seen == pytest.approx({"nbeta": LEVEL, "beta": BETA, "rhat": split_rhat(mean), "ess": ess(mean)})
    assert est.name == name.removeprefix("plain ")
    assert est.seed == 11


@pytest.mark.parametrize("name", DEFINED)
def test_criteria_are_the_same_in_small_blocks_of_examples(name, monkeypatch):
    whole = estimate(name, drawn(losses()))
    for block in (1, 2 * CHAINS * DRAWS, 3 * CHAINS * DRAWS + 1):
        monkeypatch.setattr(criteria, "_BLOCK", block)
        parts = estimate(name, drawn(losses()))
        assert (parts.value, parts.se) == pytest.approx((whole.value, whole.se), rel=1e-12)
        assert parts.diagnostics.get("pareto_k") == whole.diagnostics.get("pareto_k")


def test_losses_far_apart_do_not_overflow():
    """Half the draws foresee the examples for certain and half not at all."""
    x = np.zeros((2, 50, 3))
    x[:, ::2] = 3000.0
    draws = drawn(x, level=3.0, n=3)
    assert criteria.bayes_training_loss(draws).value == pytest.approx(math.log(2))
    # At β = 1: −log(1 / (½ e^0 + ½ e^3000)).
    assert criteria.loo(draws, smooth=False).value == pytest.approx(3000 - math.log(2))
    cold = criteria.loo(drawn(x, level=1.5, n=3), smooth=False)
    assert cold.value == pytest.approx(1500.0)  # ½ e^(−0) over ½ e^1500
    assert math.isfinite(criteria.loo(drawn(x, level=0.3, n=3)).value)


def test_autocorrelated_draws_shorten_the_tail_that_is_smoothed():
    rng = np.random.default_rng(2)
    walk = np.zeros((4, 400))
    for k in range(1, 400):
        walk[:, k] = 0.9 * walk[:, k - 1] + rng.standard_normal(4)
    x = (walk[..., None] ** 2) * np.array([0.05, 0.2])
    found = criteria.loo(drawn(x, level=2.0, n=2))
    efficiency = ess(x.mean(2)) / x[..., 0].size
    assert efficiency < 0.3
    for i in range(2):
        _, k = smoothed_log_weights(x[..., i].ravel(), efficiency=efficiency)
        assert found.diagnostics["pareto_k"][i] == pytest.approx(k)


def test_heavy_weights_are_counted_with_the_worst():
    rng = np.random.default_rng(4)
    x = np.stack([rng.standard_exponential((4, 500)) * s for s in (0.1, 0.9, 1.3)], 2)
    est = criteria.loo(drawn(x, level=3.0, n=3))
    k = np.array(est.diagnostics["pareto_k"])
    assert k[0] < 0.5
    assert k[2] > 0.7
    (finding,) = [f for f in est.findings if f.code == "CRIT701"]
    assert f"{(k > 0.7).sum()} of 3, the worst k {k.max():.2f}" in finding.message
    assert "pareto_k" not in criteria.waic(drawn(x, level=3.0, n=3)).diagnostics
    mild = criteria.loo(drawn(x[..., :1], level=3.0, n=3))
    assert not [f for f in mild.findings if f.code == "CRIT701"]


def test_one_example_has_no_error_from_data():
    assert math.isnan(criteria.waic(drawn(losses()[..., :1])).diagnostics["data_se"])


def test_a_prior_around_the_center_is_told_with_its_precision():
    asked = {"seed": 0, "prior": {"mean": "center", "precision": 3.0}}
    (finding,) = [f for f in criteria.waic(drawn(losses(), asked=asked)).findings if f.code == "CRIT702"]
    assert "precision 3" in finding.message
    (finding,) = [f for f in criteria.waic(drawn(losses(), asked=asked, precision=7.0)).findings if f.code == "CRIT702"]
    assert "precision 7" in finding.message


@pytest.mark.parametrize("n", [3, 8, 500])
def test_wbic_is_taken_at_its_temperature_only(n):
    x, level = losses(), n / math.log(n)
    est = criteria.wbic(drawn(x, level=level, n=n))
    assert est.value == pytest.approx(n * x.mean())
    assert est.se == pytest.approx(n * mcse_mean(x.mean(2)))
    for off in (0.98, 1.02):
        with pytest.raises(InputError, match="n / log n"):
            criteria.wbic(drawn(x, level=off * level, n=n))
    for off in (0.995, 1.005):
        assert criteria.wbic(drawn(x, level=off * level, n=n)).value == pytest.approx(n * x.mean())


def test_parts_are_the_estimate_and_its_examples():
    x = losses()
    even = np.ones((CHAINS, DRAWS))
    est, values = criteria.with_parts(drawn(x), "loo")
    assert values == pytest.approx(smoothed_leave_one_out(even, x))
    assert (est.name, est.value) == ("loo", pytest.approx(values.mean()))
    est, values = criteria.with_parts(drawn(x), "waic")
    exact = DEFINED["waic"][0](even, x) + BETA * spread(even, x) / (CHAINS * DRAWS - 1)
    assert values == pytest.approx(exact)
    assert (est.name, est.value) == ("waic", pytest.approx(values.mean()))


def test_losses_in_single_precision_are_added_up_in_double():
    x = losses().astype(np.float32)
    one, two = criteria.waic(drawn(x)), criteria.waic(drawn(x.astype(np.float64)))
    assert (one.value, one.se) == (two.value, two.se)
