"""What docs/errata.md says about the papers, each claim shown by a calculation that does not use the claim.

The lecture on loss landscapes and the paper on grokking are in test_errata_networks.py.
"""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from crunode.exact.local_linear import deep_linear_local

PAGE = Path(__file__).parents[2] / "docs" / "errata.md"


def test_page_and_tests_name_each_other():
    listed = re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    files = Path(__file__).parent.glob("test_errata*.py")
    here = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}
    assert set(listed) == here - {"test_page_and_tests_name_each_other"}
    assert len(listed) == len(set(listed))


# --- the normal mean: x ~ N(0, 1), model N(w, 1), flat prior; the posterior at inverse temperature β is N(x̄, 1/(nβ)).


def log_mean(x, center, variance, power):
    """log E_w[p(x|w)^power] for w ~ N(center, variance)."""
    wide = 1 + power * variance
    return -power / 2 * np.log(2 * np.pi) - np.log(wide) / 2 - power * (x - center) ** 2 / (2 * wide)


def normal_mean(n, beta=1.0, seed=0):
    x = np.random.default_rng(seed).standard_normal(n)
    center, variance = x.mean(), 1 / (n * beta)
    gap = (x - center) ** 2
    return {
        "training": -log_mean(x, center, variance, 1).mean(),
        "gibbs": (gap + variance).mean() / 2 + np.log(2 * np.pi) / 2,
        "V": (gap * variance + variance**2 / 2).sum(),
        "Y3": (variance**3 + 3 * variance**2 * gap).mean(),
        "cross": -(log_mean(x, center, variance, 1 - beta) - log_mean(x, center, variance, -beta)).mean(),
        "entropy": (x**2).mean() / 2 + np.log(2 * np.pi) / 2,
        "error": (np.log(1 + variance) + (1 + center**2) / (1 + variance) - 1) / 2,
    }


def test_waic_adds_the_functional_variance():
    for n, beta in ((100, 1.0), (1000, 1.0), (1000, 0.5)):
        found = normal_mean(n, beta)
        plus, minus = (found["training"] + sign * beta / n * found["V"] for sign in (1, -1))
        assert abs(plus - found["cross"]) < 5 / n**2
        assert n * (minus - found["cross"]) == pytest.approx(-2, abs=0.2)


def test_bayes_losses_are_of_the_mean_density():
    # n E[error] over data: λ = 1/2 for the predictive density, λ + ν = 1 for the posterior mean of the loss.
    n = 1000
    errors = [normal_mean(n, seed=seed)["error"] for seed in range(2000)]
    assert n * np.mean(errors) == pytest.approx(0.5, abs=0.06)
    found = normal_mean(n)
    assert n * (found["gibbs"] - found["training"]) == pytest.approx(0.5, abs=0.05)
    assert n * (found["training"] + found["V"] / n - found["cross"]) == pytest.approx(0, abs=0.01)
    assert n * (found["gibbs"] + found["V"] / n - found["cross"]) == pytest.approx(0.5, abs=0.05)


def test_cumulant_averages_shrink_by_half_powers():
    for n in (100, 10_000):
        found = normal_mean(n)
        assert found["V"] / n == pytest.approx(1 / n, rel=0.2)  # Y_2: printed as of order 1
        assert found["Y3"] < 4 / n**2  # printed as of order n^(−1/2)


def test_signs_of_the_cumulant_expansions():
    for n, beta in ((1000, 0.5), (1000, 0.3)):
        found = normal_mean(n, beta)
        waic = found["training"] + beta / n * found["V"]
        expansion = found["gibbs"] + (2 * beta - 1) / 2 * found["V"] / n + found["Y3"] / 6
        assert waic == pytest.approx(expansion, abs=50 / (n * beta) ** 3)
        assert (found["cross"] - waic) / (beta * (beta - 1) / 2 * found["Y3"]) == pytest.approx(1, abs=0.05)


def test_cross_validation_needs_the_entropy_subtracted():
    n = 1000
    for seed in range(20):
        found = normal_mean(n, seed=seed)
        assert n * (found["error"] + found["cross"] - found["entropy"]) == pytest.approx(1, abs=0.1)  # 2λ
        assert found["error"] + found["cross"] > 1


def free_energy(x, beta):
    """−log ∫ Π p(x_i|w)^β φ(w) dw with φ = N(0, 1)."""
    n = len(x)
    return (
        n * beta / 2 * math.log(2 * math.pi)
        + math.log(1 + n * beta) / 2
        + beta / 2 * (x**2).sum()
        - (beta * x.sum()) ** 2 / (2 * (1 + n * beta))
    )


def test_free_energy_grows_with_beta():
    x = np.random.default_rng(1).standard_normal(500)
    n, beta, step = 500, 0.7, 1e-4
    variance = 1 / (1 + n * beta)
    center = beta * x.sum() * variance
    loss = ((x - center) ** 2 + variance).sum() / 2 + n / 2 * math.log(2 * math.pi)
    slope = (free_energy(x, beta + step) - free_energy(x, beta - step)) / (2 * step)
    assert slope == pytest.approx(loss, rel=1e-6)
    entropy = (x**2).mean() / 2 + math.log(2 * math.pi) / 2
    assert free_energy(x, 2.0) == pytest.approx(2 * n * entropy, rel=0.01)  # printed without the factor β = 2


def test_constant_of_the_free_energy_does_not_vanish():
    # Cullen A.1 prints o_p(1); the remainder is −n x̄²/2 + …, a random variable that does not shrink.
    rests = []
    for seed in range(300):
        x = np.random.default_rng(seed).standard_normal(2000)
        loss = (x**2).sum() / 2 + 1000 * math.log(2 * math.pi)
        rests.append(free_energy(x, 1.0) - loss - math.log(2000) / 2)
    assert np.std(rests) == pytest.approx(1 / math.sqrt(2), rel=0.2)


def test_increments_of_the_free_energy_contain_the_entropy():
    n, steps = 400, []
    for seed in range(4000):
        x = np.random.default_rng(seed).standard_normal(n + 1)
        surprise = x[-1] ** 2 / 2 + math.log(2 * math.pi) / 2
        steps.append((free_energy(x, 1.0) - free_energy(x[:-1], 1.0), surprise))
    increment, entropy = np.mean(steps, axis=0)
    assert n * (increment - entropy) == pytest.approx(0.5, abs=0.3)  # λ, once the entropy is taken away
    assert increment > 1


def test_threshold_is_the_smallest_pole():
    # K = x²y⁴ on the unit square: V(t) = 2 t^(1/4) − t^(1/2), so λ = 1/4 = min(1/2, 1/4).
    y = (np.arange(2_000_000) + 0.5) / 2_000_000
    volume = [np.minimum(1, math.sqrt(t) / y**2).mean() for t in (1e-8, 1e-12)]
    assert math.log(volume[1] / volume[0]) / math.log(1e-4) == pytest.approx(1 / 4, abs=0.01)


def test_lowest_point_coefficient_does_not_mean_multiplicity_one():
    # K = x²y²: λ = 1/2 at the crossing and next to it, yet V(t) / t^λ = 1 − log(t)/2 grows.
    y = (np.arange(2_000_000) + 0.5) / 2_000_000
    ratio = [np.minimum(1, math.sqrt(t) / y).mean() / math.sqrt(t) for t in (1e-4, 1e-8)]
    assert ratio == pytest.approx([1 + 2 * math.log(10), 1 + 4 * math.log(10)], rel=1e-3)


# --- deep linear networks


def definition_four(widths, divisor):
    """The survey's Definition 4 for true rank 0, with its last divisor 4ℓ or 4."""
    m = sorted(widths)
    last = max(k for k in range(1, len(m)) if sum(m[: k + 1]) >= k * m[k])
    total = sum(m[: last + 1])
    high = -(-total // last)
    a = total - (high - 1) * last
    squares = Fraction(sum(x * x for x in m[: last + 1]), 4)
    return Fraction(high * a + (high - 1) * total, 4 * last if divisor == "4l" else 4) - squares


def test_deep_linear_formula_divides_by_four():
    for widths in ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2), (1, 2, 3, 2)):
        length = len(widths) - 1
        exact = deep_linear_local(widths, [[0] * (length - s) for s in range(length)]).value
        assert definition_four(widths, "4") == exact > 0
        assert definition_four(widths, "4l") != exact
    assert definition_four((2, 2, 2), "4l") < 0
    # Independent of any formula: B A = 0 near generic rank-one factors of 2 by 2 matrices has codimension 3.
    b, a = np.outer([1, 2], [3, 1]), np.outer([1, -3], [2, 5])
    assert not (b @ a).any()
    jacobian = np.hstack([np.kron(np.eye(2), a.T), np.kron(b, np.eye(2))])
    assert np.linalg.matrix_rank(jacobian) == 3


def test_scalar_regressor_does_not_feel_the_hidden_width():
    rng = np.random.default_rng(0)
    for d, m in ((3, 2), (4, 6)):
        out, into = rng.standard_normal((1, m)), rng.standard_normal((m, d))
        jacobian = np.hstack([np.kron(np.eye(1), into.T), np.kron(out, np.eye(d))])
        # Full rank: the map onto the d coefficients is a submersion, and K a quadratic form of them.
        assert np.linalg.matrix_rank(jacobian) == d
        assert deep_linear_local([1, m, d], [[1, 1], [min(m, d)]]).value == Fraction(d, 2)
        assert deep_linear_local([1, m, d], [[1, 1], [min(m, d)]], bias=True).value == Fraction(d + 1, 2)


def test_additive_rule_fails_where_kinks_coincide():
    x = np.linspace(-1, 1, 400_001)

    def network(kinks, slopes=(0.5, 0.5)):
        return sum(a * np.maximum(x - b, 0) for a, b in zip(slopes, kinks, strict=True))

    spread = np.array([0.02, 0.04, 0.08])
    loss = np.array([((network((-e, e)) - network((0, 0))) ** 2).mean() for e in spread])
    assert np.diff(np.log(loss)) / np.diff(np.log(spread)) == pytest.approx(3, abs=0.05)
    # Otherwise only the common slope and the common kink count: two quadratic directions, λ = 2/2 + 1/3 = 4/3.
    active = (x > 0).astype(float)
    gradients = np.stack([active * x, 0.5 * active * x, -0.5 * active] * 2)
    assert np.linalg.matrix_rank(gradients @ gradients.T / len(x), tol=1e-9) == 2
    block = deep_linear_local([1, 2, 2], [[1, 1], [1]]).value
    assert (block, Fraction(2, 2) + Fraction(1, 3)) == (1, Fraction(4, 3))


def test_silu_units_have_no_scaling_direction():
    x = np.linspace(-2, 2, 4001)
    w, b, q, t = 0.7, -0.2, 1.3, 100.0

    def gradients(slope, value):
        return np.stack([q * slope * x, q * slope, value, np.ones_like(x)])

    u = w * x + b
    gate = 1 / (1 + np.exp(-np.clip(t * u, -500, 500)))
    silu = gradients(gate + u * t * gate * (1 - gate), u * gate)
    relu = gradients((u > 0).astype(float), np.maximum(u, 0))
    assert np.linalg.matrix_rank(relu @ relu.T / len(x), tol=1e-9) == 3
    assert np.linalg.matrix_rank(silu @ silu.T / len(x), tol=1e-9) == 4


# --- Murfet et al.


def gauss(points=40):
    nodes, weights = np.polynomial.hermite_e.hermegauss(points)
    return nodes, weights / weights.sum()


def test_loss_at_the_truth_contains_the_noise():
    nodes, weights = gauss()
    loss = weights @ (nodes**2 / 2 + math.log(2 * math.pi) / 2)
    assert loss == pytest.approx(math.log(2 * math.pi * math.e) / 2)
    assert loss - math.log(2 * math.pi) / 2 == pytest.approx(0.5)


def test_fisher_information_has_constant_one():
    nodes, weights = gauss()
    for outputs in (1, 2, 3):
        slope = np.arange(1, outputs + 1.0)  # f(w) = slope · w
        score = np.zeros([len(nodes)] * outputs)
        mass = np.ones_like(score)
        for axis in range(outputs):
            shape = [1] * outputs
            shape[axis] = -1
            score = score + slope[axis] * nodes.reshape(shape)
            mass = mass * weights.reshape(shape)
        fisher = (mass * score**2).sum()
        printed = 2 ** ((3 - outputs) / 2) * math.pi ** ((2 - outputs) / 2) * (slope @ slope)
        assert fisher == pytest.approx(slope @ slope)
        assert abs(printed / fisher - 1) > 0.4


def test_symmetric_relu_network_is_minimally_singular():
    grid = np.linspace(-1, 1, 501)
    x = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
    m, rows = 5, [np.ones(len(x))]
    for k in range(m):
        angle = math.pi / m + 2 * math.pi * k / m
        value = x @ [math.cos(angle), math.sin(angle)] - 1 / 3
        active = (value > 0).astype(float)
        rows += [active * x[:, 0], active * x[:, 1], active, np.maximum(value, 0)]
    gram = np.stack(rows) @ np.stack(rows).T / len(x)
    # Rescaling each unit keeps the function: at least m flat directions out of 21, so 16 is all there can be.
    assert len(rows) == 21
    assert np.linalg.matrix_rank(gram, tol=1e-6 * np.linalg.norm(gram, 2)) == 3 * m + 1 == 16


def test_reduced_rank_fiber_has_singular_points():
    zero, one = np.zeros((2, 2)), np.eye(2)
    assert not (zero @ one).any()  # B = 0, A = I is a true parameter for B0 A0 = 0, and det B = 0
    assert deep_linear_local([2, 2, 2], [[0, 0], [0]]).value == Fraction(3, 2)  # below HM/2 = 2
    jacobian = np.hstack([np.kron(np.eye(2), zero.T), np.kron(zero, np.eye(2))])
    assert np.linalg.matrix_rank(jacobian) == 0  # at A = B = 0 no direction is quadratic


# --- Saghir et al.


def test_inverse_temperature_is_one_over_log_n():
    w = np.linspace(-1, 1, 2_000_001)
    n, loss = 5000, w**2 / 2  # λ = 1/2, L_n(w*) = 0
    found = {}
    for beta in (1 / math.log(n), math.log(n)):
        density = np.exp(-n * beta * loss)
        found[beta] = (n * loss * density).sum() / density.sum()
    energy = -math.log(np.exp(-n * loss).mean())
    assert found[1 / math.log(n)] == pytest.approx(math.log(n) / 2, rel=0.01)
    assert abs(found[1 / math.log(n)] - energy) < 0.3  # the rest of F_n is O(1)
    assert abs(found[math.log(n)] - energy) > 3


def test_minibatch_drift_is_a_mean():
    gradients = np.random.default_rng(0).standard_normal(6)
    batches = list(itertools.combinations(gradients, 3))
    beta, n, size = 0.4, 6, 3
    full = beta * gradients.sum()
    assert np.mean([beta * n / size * sum(batch) for batch in batches]) == pytest.approx(full)
    assert np.mean([beta * n * sum(batch) for batch in batches]) == pytest.approx(size * full)


def test_localization_is_half_the_squared_distance():
    # Drift (ε/2) g with noise variance ε leaves exp(∫ g) invariant: g = γ(w* − w) belongs to exp(−γ(w − w*)²/2).
    gamma, step, variance = 3.0, 1e-4, 1.0
    for _ in range(100_000):
        variance = (1 - step / 2 * gamma) ** 2 * variance + step
    assert variance == pytest.approx(1 / gamma, rel=1e-3)
    assert abs(variance * 2 * gamma - 1) > 0.9  # the printed density has variance 1/(2γ)


def test_bayes_error_is_not_the_mean_divergence():
    # Normal mean: E[K(w)] over posterior and data is (1/n + 1/n)/2, that is (λ + ν)/n; the Bayes error is λ/n.
    n, rng = 50, np.random.default_rng(0)
    center = rng.standard_normal(400_000) / math.sqrt(n)
    gibbs = (center**2 + 1 / n) / 2
    bayes = (np.log(1 + 1 / n) + (1 + center**2) / (1 + 1 / n) - 1) / 2
    assert n * gibbs.mean() == pytest.approx(1.0, abs=0.01)
    assert n * bayes.mean() == pytest.approx(0.5, abs=0.01)


def test_fisher_differs_from_hessian_off_the_truth():
    # f(w) = w² fitted to the target −1: w = 0 is the minimum, where f' = 0 and the residual is 1.
    def loss(w):
        return (w**2 + 1) ** 2 / 2

    step = 1e-4
    hessian = (loss(step) - 2 * loss(0) + loss(-step)) / step**2
    assert hessian == pytest.approx(2, rel=1e-3)
    assert loss(0) == min(loss(w) for w in np.linspace(-1, 1, 101))
    gradient = (step**2 - (-step) ** 2) / (2 * step)  # of f, whose square is the Fisher information
    assert gradient**2 < 1e-12
