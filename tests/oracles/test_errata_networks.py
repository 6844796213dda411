"""What docs/errata.md says about a lecture on loss landscapes and a paper on grokking; see test_errata.py."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

# --- Tanner's lecture


def linear_problem():
    rng = np.random.default_rng(3)
    return rng.standard_normal((3, 8)), rng.standard_normal(3)


def test_descent_adds_the_initial_residual():
    jacobian, residual = linear_problem()  # residual = ŷ − y, loss ‖residual + J Δθ‖²
    alpha, moved = 0.01, np.zeros(8)
    for _ in range(2000):
        before = jacobian @ moved
        moved = moved - alpha * 2 * jacobian.T @ (residual + before)
        after = jacobian @ moved
        assert after == pytest.approx(before - 2 * alpha * jacobian @ jacobian.T @ (before + residual))
    assert after == pytest.approx(-residual)  # the printed recursion has +(ŷ − y) as its fixed point


def test_descent_rate_needs_the_best_step():
    jacobian, _ = linear_problem()
    kernel = jacobian @ jacobian.T
    low, *_, high = np.linalg.eigvalsh(kernel)
    rate = (high - low) / (high + low)
    best = 2 / (high + low)
    slow = np.linalg.eigh(kernel)[1][:, 0]
    for alpha, holds in ((best, True), (best / 10, False)):
        shrunk = slow - alpha * kernel @ slow
        assert bool(shrunk @ shrunk <= rate * (slow @ slow)) == holds
    shrunk = slow - best * kernel @ slow
    assert shrunk @ shrunk == pytest.approx(rate**2)  # the loss is squared, and so is its rate


def test_gauss_newton_moves_least():
    jacobian, residual = linear_problem()
    start = np.random.default_rng(4).standard_normal(8)
    moved = np.zeros(8)
    for _ in range(5000):
        moved = moved - 0.02 * jacobian.T @ (residual + jacobian @ moved)
    step = -np.linalg.pinv(jacobian) @ residual
    assert moved == pytest.approx(step)
    shortest = start + step - (np.eye(8) - np.linalg.pinv(jacobian) @ jacobian) @ (start + step)
    assert jacobian @ (shortest - start) == pytest.approx(-residual)
    assert np.linalg.norm(shortest) < np.linalg.norm(start + step)  # it fits as well, so ‖θ‖ is not what is least


def test_gradient_is_lipschitz_with_the_fourth_power_of_the_input():
    p, x = 4, np.array([3.0, 4.0])
    one = np.zeros((p, 2))
    two = 1e-3 * np.tile(x / 5, (p, 1))
    bend = 7.0  # φ' = bend · z, with Lipschitz constant 7
    left = ((bend * (one @ x - two @ x))[:, None] * x / math.sqrt(p)) ** 2
    distance = ((one - two) ** 2).sum()
    assert left.sum() == pytest.approx(bend**2 * 5**4 * distance / p)
    assert left.sum() > bend * 5**2 * distance / p


def test_semicircle_needs_entries_that_shrink():
    n, sigma = 200, 1.5
    draw = np.random.default_rng(0).standard_normal((n, n))
    wigner = np.triu(draw) + np.triu(draw, 1).T
    edge = np.abs(np.linalg.eigvalsh(sigma * wigner / math.sqrt(n))).max()
    assert edge == pytest.approx(2 * sigma, rel=0.05)
    assert np.abs(np.linalg.eigvalsh(sigma * wigner)).max() > 10 * 2 * sigma


def test_marchenko_pastur_scales_with_the_variance():
    n, p, sigma = 200, 800, 2.0
    sample = sigma / math.sqrt(p) * np.random.default_rng(0).standard_normal((n, p))
    eigenvalues = np.linalg.eigvalsh(sample @ sample.T)
    tau = n / p

    def law(scale):
        low, high = scale * (1 - math.sqrt(tau)) ** 2, scale * (1 + math.sqrt(tau)) ** 2
        t = np.linspace(low, high, 200_001)
        density = np.sqrt(np.maximum((t - low) * (high - t), 0)) / (2 * np.pi * t * scale * tau)
        return low, high, density.sum() * (t[1] - t[0]), (density * t).sum() * (t[1] - t[0])

    low, high, mass, mean = law(sigma**2)
    assert mass == pytest.approx(1, abs=1e-3)
    assert mean == pytest.approx(eigenvalues.mean(), rel=0.02)
    assert (eigenvalues.min(), eigenvalues.max()) == pytest.approx((low, high), rel=0.08)
    assert law(sigma)[3] == pytest.approx(eigenvalues.mean() / sigma, rel=0.02)  # as printed: too small by σ


def test_gauss_newton_part_lives_on_parameters():
    jacobian, _ = linear_problem()  # examples by parameters, as on the slides before
    theta = np.random.default_rng(1).standard_normal(8)

    def loss(t):
        return ((jacobian @ t) ** 2).sum() / 6

    step, basis = 1e-3, np.eye(8) * 1e-3
    hessian = [
        [(loss(theta + a + b) - loss(theta + a) - loss(theta + b) + loss(theta)) / step**2 for b in basis]
        for a in basis
    ]
    assert np.array(hessian) == pytest.approx(jacobian.T @ jacobian / 3, abs=1e-5)
    assert (jacobian @ jacobian.T).shape != (8, 8)


def left_edge(inner, deepest):
    """Left edge of the spectrum with the given R transform: the largest R(G) + 1/G over negative G."""
    g = -np.geomspace(1e-3, deepest, 40_001)
    return (inner(g) + 1 / g).max()


def critical_energy(inner_at, deepest_at):
    low, high = 1e-6, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if left_edge(inner_at(middle), deepest_at(middle)) > 0 else (low, middle)
    return low


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.8])
def test_relu_critical_energy_has_no_prefactor(tau):
    found = critical_energy(
        lambda e: lambda g: 1 / (1 - tau * g) + e * tau * g / (2 - e * tau**2 * g**2),
        lambda e: 0.999999 * math.sqrt(2 / e) / tau,
    )
    xi = 1 + 16 * tau - 8 * tau**2
    right = (27 - 18 * xi - xi**2 + 8 * xi**1.5) / (32 * tau * (1 - tau) ** 3)
    assert found == pytest.approx(right, rel=1e-3)
    assert abs(tau**2 * right / found - 1) > 0.3  # φ = τ on these slides
    linear = critical_energy(lambda e: lambda g: 1 / (1 - tau * g) + 2 * e * g, lambda e: 1e4)
    assert linear == pytest.approx((1 - 20 * tau - 8 * tau**2 + (1 + 8 * tau) ** 1.5) / 16, rel=1e-3)


def test_error_part_has_second_moment_below_the_model():
    n, m, energy = 60, 400, 0.3
    rng = np.random.default_rng(0)
    x, e = rng.standard_normal((n, m)), math.sqrt(2 * energy) * rng.standard_normal((n, m))
    block = e @ x.T / m  # ∂²/∂W2_ij ∂W1_jk of the loss, for each hidden unit j
    moment = 2 * n * (block**2).sum() / (2 * n**2)
    tau = 2 * n / m
    assert moment == pytest.approx(energy * tau, rel=0.1)
    assert moment < 0.4 * 2 * energy


def test_zero_loss_set_has_as_many_equations_as_outputs_on_data():
    rng = np.random.default_rng(0)
    inputs, hidden, outputs, examples = 3, 6, 2, 4
    w, b, v = rng.standard_normal((hidden, inputs)), rng.standard_normal(hidden), rng.standard_normal((outputs, hidden))
    rows = []
    for x in rng.standard_normal((examples, inputs)):
        value = np.tanh(w @ x + b)
        for k in range(outputs):
            slope = v[k] * (1 - value**2)
            last = np.zeros((outputs, hidden))
            last[k] = value
            rows.append(np.concatenate([np.outer(slope, x).ravel(), slope, last.ravel()]))
    jacobian = np.stack(rows)
    parameters = jacobian.shape[1]
    assert np.linalg.matrix_rank(jacobian) == outputs * examples
    # A regular value, so the dimension is d − rm; the printed m − rn is negative here.
    assert parameters - outputs * examples == 28
    assert examples - outputs * inputs < 0


# --- Cullen et al.


def quadratic_jacobian(w, v):
    """Directions of (W, V) ↦ (Q_1, …, Q_p) with Q_k = Σ_j v_kj w_j w_jᵀ; w is (K, d), v is (p, K)."""
    rows = []
    for j in range(len(w)):
        for i in range(w.shape[1]):
            unit = np.eye(w.shape[1])[i]
            change = np.outer(unit, w[j]) + np.outer(w[j], unit)
            rows.append(np.concatenate([v[k, j] * change.ravel() for k in range(len(v))]))
        for k in range(len(v)):
            blocks = np.zeros((len(v), w.shape[1] ** 2))
            blocks[k] = np.outer(w[j], w[j]).ravel()
            rows.append(blocks.ravel())
    return np.stack(rows)


def generic(d, p, width, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((width, d)), rng.standard_normal((p, width))


@pytest.mark.parametrize(
    ("d", "p", "width", "rank"),
    [(3, 1, 2, 5), (3, 2, 4, 12), (3, 6, 5, 35), (4, 3, 5, 29), (6, 3, 8, 62), (4, 5, 6, 47), (3, 2, 2, 8)],
)
def test_injectivity_is_not_generic(d, p, width, rank):
    found = max(np.linalg.matrix_rank(quadratic_jacobian(*generic(d, p, width, seed))) for seed in range(3))
    assert found == rank
    assert width < d * (d + 1) / 2
    as_printed = found == width * (d + p - 1)
    assert as_printed == ((d, p, width) == (3, 2, 2))  # a case where the printed count holds


def test_inactive_units_still_count():
    d, p, width, active = 4, 3, 4, 2
    w, v = generic(d, p, width)
    v[:, active:] = 0
    rank = np.linalg.matrix_rank(quadratic_jacobian(w, v))
    assert rank == active * (d + p - 1) + p * (width - active)
    assert rank > active * (d + p - 1)


def pairs(p):
    return np.array([np.concatenate([np.eye(p)[a], np.eye(p)[b]]) for a in range(p) for b in range(p)])


def data_rank(w, v, x, centred):
    rows = []
    for j in range(len(w)):
        value = x @ w[j]
        for i in range(x.shape[1]):
            rows.append(np.stack([2 * v[k, j] * value * x[:, i] for k in range(len(v))]))
        for k in range(len(v)):
            single = np.zeros((len(v), len(x)))
            single[k] = value**2
            rows.append(single)
    outputs = np.stack(rows)
    if centred:
        outputs = outputs - outputs.mean(-1, keepdims=True)
    return np.linalg.matrix_rank(outputs.reshape(len(rows), -1))


@pytest.mark.parametrize(
    ("p", "width", "centred"), [(3, 2, False), (3, 3, True), (3, 5, True), (5, 12, True), (5, 3, False)]
)
def test_modular_addition_is_seen_on_pairs_only(p, width, centred):
    rank = data_rank(*generic(2 * p, p, width), pairs(p), centred)
    assert rank == min(width * (3 * p - 2), p * (p * p - centred))
    assert rank < width * (3 * p - 1)
    if (p, width) == (5, 12):
        assert (rank, width * (3 * p - 1)) == (120, 168)  # λ = 60, printed 84


def test_lazy_features_span_all_pairs():
    for p in (3, 5):
        x = pairs(p)
        w = np.random.default_rng(0).standard_normal((2 * p, p * (2 * p - 1)))
        features = (x @ w) ** 2
        assert np.linalg.matrix_rank(features) == p * p < p * (2 * p - 1)
        assert np.linalg.matrix_rank(features - features.mean(0)) == p * p - 1


@pytest.mark.parametrize(("p", "rank"), [(3, 21), (5, 94)])
def test_fourier_solutions_are_not_generic(p, rank):
    residues, w, v = np.arange(p), [], []
    for k in range(1, (p - 1) // 2 + 1):
        for phase, sign in itertools.product((0, 1, 2), (1, -1)):
            wave = np.cos(2 * np.pi * k * residues / p + np.pi * phase / 3)
            w.append(np.concatenate([wave, sign * wave]))
            v.append(sign * np.cos(2 * np.pi * k * residues / p + 2 * np.pi * phase / 3))
    w, v, x = np.array(w), np.array(v).T, pairs(p)
    logits = (v @ ((x @ w.T) ** 2).T).T
    assert (logits.argmax(1) == (x[:, :p].argmax(1) + x[:, p:].argmax(1)) % p).all()
    assert len(w) == 3 * (p - 1)
    assert data_rank(w, v, x, True) == rank < min(len(w) * (3 * p - 2), p * (p * p - 1))


def test_opposite_output_weights_do_not_matter():
    d, width = 4, 2
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((width, d)), rng.standard_normal(width)
    for v in (np.array([1.0, -1.0]), np.array([1.0, 2.0])):
        rows = [np.concatenate([np.zeros(d * d + d), [1.0]])]
        for j in range(width):
            extended = np.append(w[j], b[j])
            for i in range(d + 1):
                unit = np.eye(d + 1)[i]
                change = v[j] * (np.outer(unit, extended) + np.outer(extended, unit))
                rows.append(np.concatenate([change[:d, :d].ravel(), change[:d, d], [change[d, d]]]))
            square = np.outer(extended, extended)
            rows.append(np.concatenate([square[:d, :d].ravel(), square[:d, d], [square[d, d]]]))
        assert np.linalg.matrix_rank(np.stack(rows)) == width * (2 * d - width + 1) // 2 + width + 1


def test_off_diagonal_solution_swaps_its_divisors():
    rng = np.random.default_rng(0)
    v, draw = np.array([1.0, 3.0, -2.0]), rng.standard_normal((3, 3))
    wanted = draw + draw.T
    right, printed = wanted / (2 * v[None, :]), wanted / (2 * v[:, None])
    assert right * v[None, :] + (right * v[None, :]).T == pytest.approx(wanted)
    assert np.abs(printed * v[None, :] + (printed * v[None, :]).T - wanted).max() > 0.1


def test_divergence_is_loss_minus_entropy():
    q, p = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    entropy, loss = -(q * np.log(q)).sum(), -(q * np.log(p)).sum()
    divergence = (q * np.log(q / p)).sum()
    assert divergence == pytest.approx(loss - entropy)
    assert divergence != pytest.approx(loss + entropy, rel=0.1)
    assert (q * q / np.log(p)).sum() < 0  # the first printed form


def test_penalty_on_the_mean_loss_is_a_prior_that_sharpens_with_n():
    n, penalty, theta = 7, 0.3, np.array([0.4, -1.2])
    x = np.random.default_rng(0).standard_normal((n, 2))

    def likelihood(t):
        return (-((x - t) ** 2).sum(1) / 2).sum()

    def mean_loss(t):
        return -likelihood(t) / n + penalty * (t**2).sum()

    def posterior(t, precision):
        return likelihood(t) - precision * (t**2).sum() / 2

    change = -n * (mean_loss(theta) - mean_loss(0 * theta))
    assert change == pytest.approx(posterior(theta, 2 * n * penalty) - posterior(0 * theta, 2 * n * penalty))
    assert change != pytest.approx(posterior(theta, 2 * penalty) - posterior(0 * theta, 2 * penalty), rel=0.1)


def test_batches_without_replacement_have_small_covariance():
    gradients = np.random.default_rng(0).standard_normal(8)
    centred = ((gradients - gradients.mean()) ** 2).mean()
    for size in (2, 4):
        means = [np.mean(batch) for batch in itertools.combinations(gradients, size)]
        right = (8 - size) / (size * (8 - 1)) * centred
        assert np.var(means) == pytest.approx(right)
        assert (8 - size) / (size - 1) * (gradients**2).mean() > 3 * right
