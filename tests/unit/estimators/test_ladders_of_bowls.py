"""Estimates over a ladder of temperatures, on draws without chance and by weighted least squares."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import crunode as cr
from crunode.core.result import Draws
from crunode.core.rng import derived_seed
from crunode.estimators import precision, tempering
from crunode.estimators.equations import _solution
from crunode.estimators.likelihoods import _STREAM, Likelihood
from crunode.estimators.multitemperature import _about_line, _limit, intercept_weights
from crunode.estimators.richardson import StepBias, step_terms, without_step_bias
from crunode.sampling.diagnostics import mcse_mean, split_rhat

LEVELS = [100.0, 200.0, 400.0, 800.0, 1600.0]


def ladder(values, levels=LEVELS, count=400, spread=0.5, seed=0, **spec):
    """Draws whose t E[L] is exactly the given value at each level."""
    rng = np.random.default_rng(seed)
    rows = []
    for t, value in zip(levels, values, strict=True):
        noise = rng.normal(size=(4, count))
        rows.append((value + spread * (noise - noise.mean())) / t)
    content = {"n": 1000, "asked": {"seed": 3}, **spec}
    rows = np.concatenate(rows)
    return Draws({"excess": rows, "distance2": np.abs(rows)}, {}, np.repeat(levels, 4), content)


def least_squares(x, y, covariance):
    design = np.stack([np.ones_like(x), x], 1)
    inverse = np.linalg.inv(covariance)
    both = np.linalg.inv(design.T @ inverse @ design)
    return both @ design.T @ inverse @ y, both


@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_an_intercept_at_infinite_nbeta_is_that_of_least_squares():
    x = 1 / np.log(LEVELS)
    values = 3 - 2 * x + 0.02 * np.array([1, -1, 0, 1, -1])
    draws = ladder(values)
    found = cr.multi_temperature(draws)
    errors = [mcse_mean(t * draws.at(t)["excess"]) for t in LEVELS]
    rows = found.diagnostics["levels"]
    assert [row["nbeta"] for row in rows] == LEVELS
    assert [row["value"] for row in rows] == pytest.approx(values.tolist())
    assert [row["se"] for row in rows] == pytest.approx(errors, rel=0.35)
    wide = np.diag([row["se"] ** 2 + (0.002 * values.max()) ** 2 for row in rows])
    (value, slope), both = least_squares(x, values, wide)
    assert found.value == pytest.approx(value, rel=1e-4)
    assert found.diagnostics["slope"] == pytest.approx(slope, rel=1e-3)
    stretch = max(found.diagnostics["misfit"], 1.0)  # levels that no line fits are worse known than they say
    assert found.se == pytest.approx(math.sqrt(stretch * both[0, 0]), rel=0.1)
    assert found.diagnostics["slope_se"] == pytest.approx(math.sqrt(stretch * both[1, 1]), rel=0.1)
    rest = values - value - slope * x
    assert found.diagnostics["misfit"] == pytest.approx(rest @ np.linalg.inv(wide) @ rest / 3, rel=1e-3)
    assert set(found.terms) == {"bend", "shift"}
    bend = np.polynomial.Polynomial.fit(x, values, 2)(0.0)
    assert found.terms["bend"] <= abs(bend - value)
    # The line in 1/(log t − ψ(λ)) and its neighbours end elsewhere.
    ends = []
    for c in np.linspace(-0.5, 0.5, 3) * 3 - special.digamma(value):
        ends.append(least_squares(1 / (np.log(LEVELS) + c), values, wide)[0][0])
    assert found.terms["shift"] == pytest.approx(np.abs(np.array(ends) - value).max(), rel=1e-3)


@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
def test_a_bend_beyond_chance_is_in_the_error():
    x = 1 / np.log(LEVELS)
    straight, bent = (cr.multi_temperature(ladder(3 - 2 * x + b * x**2, spread=0.02)) for b in (0.0, 40.0))
    assert straight.terms["bend"] < 0.05
    assert bent.terms["bend"] > 0.3
    rising = cr.multi_temperature(ladder(3 + 20 * x, spread=0.02))
    assert "LLC119" in [f.code for f in rising.findings]
    assert "LLC119" not in [f.code for f in straight.findings]
    negative = cr.multi_temperature(ladder(-3 + 0 * x, spread=0.02))
    assert "LLC101" in [f.code for f in negative.findings]
    uneven = cr.multi_temperature(ladder(3 + 0.3 * np.array([1, -1, 1, -1, 1]), spread=0.02))
    assert "LLC118" in [f.code for f in uneven.findings]


def test_chance_exceeds_the_limit_of_a_misfit_once_in_ten_thousand():
    for dof in (2, 3, 8, 30):
        assert _limit(dof) == pytest.approx(stats.chi2.isf(1e-4, dof) / dof, rel=0.06)


def test_few_levels_or_a_far_intercept_are_reported():
    def codes(t, misfit=1.0, slope=-1.0):
        t = np.array(t)
        return [f.code for f in _about_line(t, 1 / np.log(t), misfit, slope, 0.1)]

    wide = [10.0, 100.0, 1e4, 1e8]
    assert codes(wide) == []
    assert codes(wide[:3]) == ["LLC117"]
    assert codes([1e4, 1.1e4, 1.2e4, 1.3e4]) == ["LLC117"]
    assert codes(wide, misfit=50.0) == ["LLC118"]
    assert codes(wide, slope=0.31) == ["LLC119"]
    assert codes(wide, slope=0.29) == []


def test_a_parabola_has_the_intercept_of_a_parabola():
    x = np.array([0.1, 0.2, 0.35, 0.5])
    root = np.random.default_rng(1).normal(size=(4, 4))
    covariance = root @ root.T + np.eye(4)
    weights, slopes = intercept_weights(x, covariance, degree=2)
    y = 3 - 2 * x + 5 * x**2
    assert weights @ y == pytest.approx(3)
    assert slopes @ y == pytest.approx(-2)
    line, tilt = intercept_weights(x, covariance)
    noisy = y + np.array([0.1, -0.2, 0.0, 0.1])
    assert [line @ noisy, tilt @ noisy] == pytest.approx(least_squares(x, noisy, covariance)[0].tolist())


def test_a_regression_on_temperature_is_that_of_least_squares():
    values = np.array([2.0, 2.05, 1.98, 2.02, 2.0])
    draws = ladder(values)
    found = cr.rlct(draws)
    hot = 1000 / np.array(LEVELS)
    means = values * hot
    covariance = np.diag([mcse_mean(1000 * draws.at(t)["excess"]) ** 2 for t in LEVELS])
    (_, slope), both = least_squares(hot, means, covariance)
    assert found.value == pytest.approx(slope, rel=0.01)
    assert found.se == pytest.approx(math.sqrt(both[1, 1]), rel=0.25)
    assert found.diagnostics["slopes"] == [found.value]
    assert found.diagnostics["mc_se"] == found.se
    assert 0.99 < found.diagnostics["r2"][0] < 1
    rows = found.diagnostics["levels"]
    assert [(row["nbeta"], row["value"]) for row in rows] == [
        (t, pytest.approx(v)) for t, v in zip(LEVELS, values, strict=True)
    ]
    assert [row["se"] for row in rows] == pytest.approx([mcse_mean(t * draws.at(t)["excess"]) for t in LEVELS])
    assert found.diagnostics["rhat"] == max(split_rhat(draws.at(t)["excess"]) for t in LEVELS)
    colder, hotter = (
        least_squares(hot[part], means[part], covariance[part, part])[0][1] for part in (slice(3), slice(2, None))
    )
    assert found.diagnostics["bend"] == pytest.approx(hotter - colder, abs=0.01)
    # A multiplicity of two would take 1 / (log t − ψ(λ)) from the slope; about half of that is allowed for.
    assert 0.3 < found.terms["multiplicity"] * (math.log(100) - special.digamma(slope)) < 0.9


def test_several_data_sets_scatter():
    sets = [ladder(np.full(5, v), seed=k) for k, v in enumerate((1.0, 2.0, 4.0))]
    found = cr.rlct(sets)
    assert found.value == pytest.approx(7 / 3, rel=0.02)
    assert found.se == pytest.approx(np.std([1, 2, 4], ddof=1) / math.sqrt(3), rel=0.02)
    single = [cr.rlct(draws).diagnostics["mc_se"] for draws in sets]
    assert found.diagnostics["mc_se"] == pytest.approx(math.sqrt(sum(s**2 for s in single)) / 3)
    assert len(found.diagnostics["r2"]) == 3
    assert found.diagnostics["bend"] == pytest.approx(np.mean([cr.rlct(draws).diagnostics["bend"] for draws in sets]))
    known = cr.rlct(sets[1], multiplicity=2)
    exact = 2.0 - 1 / (math.log(400) - special.digamma(2.0))
    lower = cr.rlct(ladder([2 - 1 / (math.log(t) - special.digamma(2.0)) for t in LEVELS]), multiplicity=2)
    assert lower.value == pytest.approx(2.0, rel=0.02)
    assert known.value > 2.1 > 2 > exact
    assert 0 < known.terms["multiplicity"] < found.terms["multiplicity"]


def test_a_line_of_least_squares_has_its_share_of_the_scatter():
    rng = np.random.default_rng(3)
    x, y = np.arange(6.0), rng.normal(size=6)
    root = rng.normal(size=(6, 6))
    covariance = root @ root.T + np.eye(6)
    weights, r2 = tempering.line_weights(x, y, covariance)
    (level, slope), _ = least_squares(x, y, covariance)
    assert weights @ y == pytest.approx(slope)
    inverse = np.linalg.inv(covariance)
    rest, ones = y - level - slope * x, np.ones(6)
    flat = y - (ones @ inverse @ y) / (ones @ inverse @ ones)
    assert r2 == pytest.approx(1 - (rest @ inverse @ rest) / (flat @ inverse @ flat))


def test_equations_are_solved_by_weighted_least_squares():
    rng = np.random.default_rng(4)
    design, errors, left = rng.normal(size=(4, 2)), np.array([0.1, 1.0, 0.3, 2.0]), rng.normal(size=4)
    exact = np.linalg.lstsq(design / errors[:, None], left / errors, rcond=None)[0]
    assert _solution(design, errors) @ left == pytest.approx(exact)


class Precise(torch.nn.Module):
    """y normal with mean 0 and precision exp(a), without the logarithm of its constant."""

    def __init__(self, a):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor([a], dtype=torch.float64))

    def forward(self, x):
        return self.a.expand(len(x), 1)


@pytest.mark.parametrize("center", [0.0, 0.02, 1.0, 4.0])
def test_a_normalization_is_looked_at_again_at_some_part_of_the_weights(center):
    x = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None]
    land = cr.Landscape(Precise(center), (x, x), lambda out, y: (0.5 * out.exp() * y.square())[:, 0])
    found = cr.normalization(land, examples=2, seed=1)
    here, near = found.diagnostics["log"][:2], found.diagnostics["log"][2:]
    assert here == pytest.approx([0.5 * math.log(2 * math.pi) - center / 2] * 2, abs=1e-5)
    # The integral is √(2π) e^(−a/2): the other point is off by a number of the size of the weights, or near 0.1.
    z = float(torch.randn(1, generator=_after_choice(1)))
    scale = max(abs(center), 0.1)
    assert 0 < abs(near[0] - here[0]) / (scale * abs(z)) < 0.5
    assert abs(near[0] - here[0]) > 0.05 * scale * abs(z)
    assert found.diagnostics["spread"] == pytest.approx(abs(near[0] - here[0]), abs=1e-5)
    assert found.value == pytest.approx(math.exp(np.mean(found.diagnostics["log"])))
    assert [f.code for f in found.findings] == ["CRIT712"]


def _after_choice(seed):
    generator = torch.Generator().manual_seed(derived_seed(seed, _STREAM))
    torch.randperm(9, generator=generator)
    return generator


def test_likelihoods_have_their_constants_and_divergences():
    three = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = three + 0.3
    normal = torch.distributions.Normal(three, 0.7)
    gaussian = Likelihood("gaussian", sd=0.7)
    assert gaussian(three, other).tolist() == pytest.approx((-normal.log_prob(other).sum(1)).tolist())
    assert gaussian.entropy(three).tolist() == pytest.approx(normal.entropy().sum(1).tolist())
    apart = torch.distributions.kl_divergence(normal, torch.distributions.Normal(other, 0.7)).sum(1)
    assert gaussian.divergence(three, other).tolist() == pytest.approx(apart.tolist())
    classes, others = (torch.distributions.Categorical(logits=z) for z in (three, three.flip(1)))
    categorical = Likelihood("categorical")
    labels = torch.tensor([0, 2, 1, 1, 0])
    assert categorical(three, labels).tolist() == pytest.approx((-classes.log_prob(labels)).tolist())
    assert categorical.entropy(three).tolist() == pytest.approx(classes.entropy().tolist())
    exact = torch.distributions.kl_divergence(classes, others).tolist()
    assert categorical.divergence(three, three.flip(1)).tolist() == pytest.approx(exact)
    chance = torch.Generator().manual_seed(1)
    drawn = gaussian.drawn(torch.full((4000, 1), 2.0, dtype=torch.float64), chance)
    assert float(drawn.mean()) == pytest.approx(2, abs=0.05)
    assert float(drawn.std()) == pytest.approx(0.7, rel=0.05)
    picked = categorical.drawn(three[:1].expand(6000, 3), chance)
    assert torch.bincount(picked, minlength=3).numpy() / 6000 == pytest.approx(classes.probs[0].numpy(), abs=0.03)


def test_step_errors_are_shared_out_as_what_was_measured():
    removed = StepBias((10.0, 11.0), (0.1, 0.2), (0.5, 0.4), (2.0, 1.0), (0.1, 0.1), (0.5, 0.0))
    draws = ladder([1.0, 1.0], [10.0, 20.0], measures={"gradient_noise": 1.0, "curvature_trace": 1.0})
    found = step_terms(draws, 10.0, removed)
    assert found == {"discretisation": pytest.approx(0.5 * math.sqrt(0.75)), "heating": pytest.approx(0.25)}
    assert math.hypot(*found.values()) == pytest.approx(0.5)
    assert step_terms(draws, 20.0, removed) == {"discretisation": pytest.approx(0.4), "heating": 0.0}
    rows = without_step_bias(
        [{"nbeta": 10.0, "value": 12.0, "se": 9.0}, {"nbeta": 20.0, "value": 12.5, "se": 8.0}], removed
    )
    assert rows[0] == {"nbeta": 10.0, "value": 10.0, "se": 0.1, "at_step": 12.0}
    assert rows[1] == {"nbeta": 20.0, "value": 11.0, "se": 0.2, "at_step": 12.5}
    summary = removed.summary([10.0, 20.0])[0]
    names = {"nbeta": 10.0, "value": 10.0, "se": 0.1, "left": 0.5, "bias": 2.0, "bias_se": 0.1, "heating": 0.5}
    assert summary == names


def test_other_precisions_are_read_from_their_own_chains():
    base = ladder([2.0], [50.0])
    half, double = ladder([1.7], [50.0], seed=1), ladder([2.6], [50.0], seed=2, spread=1.0)
    arrays = {k: np.concatenate([d.arrays[k] for d in (base, half, double)]) for k in base.arrays}
    roles = ("ladder",) * 4 + ("half-precision",) * 4 + ("double-precision",) * 4
    checks = [{"role": role, "nbeta": 50.0} for role in ("step", "half-precision", "double-precision")]
    draws = Draws(arrays, {}, np.full(12, 50.0), {**base.spec, "role_per_chain": roles, "checks": checks})
    found = precision.moves_of_chains(draws, {"value": 2.0, "se": 0.001, "at_step": 2.1})
    assert (found["half"], found["double"]) == (pytest.approx(1.7), pytest.approx(2.6))
    assert (found["nbeta"], found["value"]) == (50.0, 2.1)
    assert found["se"] == pytest.approx(mcse_mean(50 * double.arrays["excess"]))
    assert precision.moves_of_chains(draws, {"value": 2.0, "se": 7.0})["se"] == 7.0
    assert precision.moves_of_chains(draws, {"value": 2.0, "se": 7.0})["value"] == 2.0
    assert precision.moves_of_chains(base, {"value": 2.0, "se": 7.0}) is None


def test_bounds_say_what_they_rest_on():
    a = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    net = torch.nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(a)
    found = cr.bounds(cr.Landscape(net, (x, net(x).detach()), "gaussian"))
    assert (found.value, found.multiplicity, found.status) == (3, 1, "exact")
    assert isinstance(found.citation, str)
    seen = found.details
    assert seen["rank"] == seen["parameters"] == 6
    assert seen["rank_range"] == [6, 6]
    assert seen["decided"] is True
    assert isinstance(seen["over_a_prime"], bool)
    assert seen["gap"] is None or seen["gap"] > 1e3
    assert 0 <= seen["tolerance"] < 1e-6
    assert (seen["rows_used"], seen["rows"], seen["examples_used"]) == (14, 14, 7)
    assert isinstance(seen["method"], str)
    assert abs(seen["slope"]) < 1e-6
    few = cr.bounds(cr.Landscape(net, (x[:2], net(x[:2]).detach()), "gaussian"))
    assert few.value == 2
    assert few.details["rank_range"] == [4, 4]
