"""Free energies of a bowl drawn without chance: quantiles of the exact distribution stand for draws."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize, special, stats

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.chains import chain_findings, chosen_level
from crunode.estimators.energy_curve import _cut, _laws, increments
from crunode.estimators.phases import _critical, _Crossing, _Inside, _Moved, _size, _visits
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

LEVELS = [2.0**k for k in range(3, 12)]


def shuffled(values, seed=0, chains=4):
    return np.random.default_rng(seed).permutation(values).reshape(chains, -1)


def bowl(d, t, count=800, seed=0, prior=0.0):
    """L = |w|²/2 in d dimensions, at evenly spaced quantiles."""
    return shuffled(stats.gamma.ppf((np.arange(count) + 0.5) / count, d / 2) / (t + prior), seed)


def ladder(losses, levels=LEVELS, n=10**9, prior=None, **spec):
    rows = np.concatenate(losses)
    asked = {"seed": 5, "prior": prior or {"precision": 1.0, "mean": "center"}}
    content = {"n": n, "asked": asked, **spec}
    return Draws({"excess": rows, "distance2": rows}, {}, np.repeat(np.asarray(levels, float), 4), content)


def test_increments_of_a_bowl_are_those_of_the_logarithm():
    found = increments(LEVELS, [bowl(3, t, 4000) for t in LEVELS])
    assert found.change == pytest.approx(1.5 * math.log(2), rel=3e-3)
    # The trapezium of d/2t, and its correction by the variances d/2t².
    assert found.integral == pytest.approx(3 * (3 / 8 - 1 / 32), rel=3e-3)
    assert found.nbeta.tolist() == LEVELS


def test_increments_solve_the_equation_of_bennett():
    one, two = bowl(2, 3.0, 200), bowl(5, 8.0, 200, seed=1)
    found = increments([3.0, 8.0], [one, two])

    def gap(c):
        return special.expit(c - 5 * one).mean() - special.expit(5 * two - c).mean()

    exact = optimize.brentq(gap, -50, 50, xtol=1e-13)
    assert found.change[0] == pytest.approx(exact)
    assert found.overlap[0] == pytest.approx(2 * special.expit(exact - 5 * one).mean())
    assert increments([1.0, 1.0 + 1e-9], [one, one]).overlap[0] == pytest.approx(1)
    constant = np.full((4, 10), 0.3)
    assert increments([3.0, 8.0], [constant, constant]).change[0] == pytest.approx(5 * 0.3)


def test_the_error_of_an_increment_is_that_of_both_means_over_the_slope():
    one, two = bowl(2, 3.0, 400), bowl(2, 8.0, 400, seed=1)
    found = increments([3.0, 8.0], [one, two])
    forth, back = special.expit(found.change[0] - 5 * one), special.expit(5 * two - found.change[0])
    slope = (forth * (1 - forth)).mean() + (back * (1 - back)).mean()
    exact = math.hypot(*(x.std(ddof=1) / math.sqrt(ess(x)) for x in (forth, back))) / slope
    assert math.sqrt(found.covariance[0, 0]) == pytest.approx(exact, rel=1e-6)
    joint = increments([3.0, 8.0], [one, two], joint=True)
    assert math.sqrt(joint.covariance[0, 0]) == pytest.approx(mcse_mean(forth - back) / slope, rel=0.2)


def test_levels_without_overlap_leave_all_between_their_means_open():
    far = increments([1.0, 101.0, 201.0], [np.full((4, 9), x) + bowl(1, 1e3, 36) for x in (5.0, 2.0, 1.0)])
    ends = [float(x.mean()) + bowl(1, 1e3, 36).mean() for x in np.array([5.0, 2.0, 1.0])]
    assert far.change[0] == pytest.approx(100 * (ends[0] + ends[1]) / 2)
    assert math.sqrt(far.covariance[0, 0]) == pytest.approx(100 * (ends[0] - ends[1]) / 2)
    assert far.covariance[0, 1] == pytest.approx(0, abs=1e-9)
    assert far.overlap[0] < 1e-6


def test_the_curve_of_a_coefficient_has_each_number_under_its_name():
    losses = [bowl(3, t) for t in LEVELS]
    losses[6] = losses[6] * np.array([[1.0], [1.0], [1.0], [1.3]])
    est = cr.coefficient_from_energy(ladder(losses), multiplicity=1)
    found = increments(LEVELS, losses)
    assert est.value == pytest.approx(1.5, abs=0.1)
    rows = est.diagnostics["curve"]
    assert [row["nbeta"] for row in rows] == [list(pair) for pair in pairwise(LEVELS)]
    for key, exact in (("value", found.change), ("overlap", found.overlap), ("slope", found.change / math.log(2))):
        assert [row[key] for row in rows] == pytest.approx(exact.tolist())
    assert [row["se"] for row in rows] == pytest.approx(np.sqrt(np.diag(found.covariance)).tolist())
    assert est.diagnostics["rhat"] == max(map(split_rhat, losses))
    assert est.diagnostics["from"] <= LEVELS[-4]
    assert 0 < est.diagnostics["misfit"] < 4
    assert est.terms == {"law": est.systematic}
    laws = est.diagnostics["laws"]
    assert {law["m"] for law in laws} == {1}
    assert sum(law["weight"] for law in laws) == pytest.approx(1) == est.diagnostics["multiplicity"]["1"]
    assert [law["weight"] for law in laws] == sorted((law["weight"] for law in laws), reverse=True)
    assert laws[0]["next"] in (0.0, 1.0, 0.5, 0.25)
    assert all(0 <= law["next"] <= 1 for law in laws)
    assert est.seed == 5


def test_a_ladder_that_says_little_leaves_the_multiplicities_in_the_order_of_what_is_usual():
    rng = np.random.default_rng(0)
    losses = [rng.gamma(1.5, 1 / t, (4, 8)) for t in LEVELS[:4]]
    odds = cr.coefficient_from_energy(ladder(losses, LEVELS[:4])).diagnostics["multiplicity"]
    assert odds["1"] > odds["2"] > odds["3"] > 0
    narrow = cr.coefficient_from_energy(ladder(losses, LEVELS[:4], dim=2)).diagnostics["multiplicity"]
    assert list(narrow) == ["1", "2"]  # no crossing of more than there are coordinates


def test_labels_that_carry_noise_pull_the_loss_below_the_center_and_are_allowed_for():
    # The least loss is lower than the center's by 3/n, which takes 3 t/n from the free energy.
    n, levels = 2000, [2.0**k for k in range(4, 12)]
    losses = [bowl(4, t) - 3 / n for t in levels]
    few, many = (cr.coefficient_from_energy(ladder(losses, levels, n=size), multiplicity=1) for size in (n, 10**7))
    assert few.value == pytest.approx(2, abs=0.15)
    assert many.value < 1.8 or many.diagnostics["misfit"] > 4 * few.diagnostics["misfit"]
    assert few.error > abs(few.value - 2) / 2


def test_laws_are_fitted_by_weighted_least_squares():
    t = np.array([100.0, 200.0, 500.0, 800.0, 3000.0])
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 4))
    wide = root @ root.T / 50 + 0.01 * np.eye(4)
    plain, changes = 0.4 * wide, 1.5 * np.diff(np.log(t)) + 0.1 * rng.normal(size=(3, 4))
    cut = _cut(t, changes, wide, plain, 1.5, {1: 0.5, 2: 0.5}, 2)
    x, inverse = np.diff(np.log(t)), np.linalg.inv(wide)
    laws = _laws(t, 1.5, {1: 0.5, 2: 0.5})
    for repeat in range(3):
        for k in (0, 1, len(laws.names) - 1):
            y = changes[repeat] - laws.added[k]
            value = x @ inverse @ y / (x @ inverse @ x)
            rest = y - value * x
            assert cut.values[repeat, k] == pytest.approx(value)
            assert cut.scores[repeat, k] == pytest.approx(laws.log_prior[k] - 0.5 * rest @ inverse @ rest - 2)
    best = min(
        ((changes[0] - a) - v * x) @ inverse @ ((changes[0] - a) - v * x)
        for a, v in zip(laws.added, cut.values[0], strict=True)
    )
    assert cut.misfit == pytest.approx(best / 3)
    # What the wider covariance adds to the variance of λ.
    assert cut.unsure == pytest.approx(0.6 / (x @ inverse @ x))
    assert cut.start == 100.0
    # Shifts of the logarithm are the likelier the smaller they are.
    double = [p for (m, pole), p in zip(laws.names, laws.log_prior, strict=True) if m == 2 and pole == 0]
    assert double == pytest.approx(double[::-1])
    assert max(double) == double[len(double) // 2]
    assert np.all(np.diff(double[: len(double) // 2 + 1]) > 0)


def test_fits_that_are_poor_or_leave_the_multiplicity_open_are_reported():
    losses = [bowl(3, t) for t in LEVELS]
    assert not cr.coefficient_from_energy(ladder(losses), multiplicity=1).findings
    bent = [x * (1.5 if k % 2 else 1.0) for k, x in enumerate(losses)]
    poor = cr.coefficient_from_energy(ladder(bent), multiplicity=1)
    assert "CRIT707" in [f.code for f in poor.findings]
    rng = np.random.default_rng(0)
    vague = cr.coefficient_from_energy(ladder([rng.gamma(1.5, 1 / t, (4, 60)) for t in LEVELS[:4]], LEVELS[:4]))
    assert "CRIT708" in [f.code for f in vague.findings]
    assert max(vague.diagnostics["multiplicity"].values()) < 0.9


@pytest.mark.parametrize(("m", "poles"), [(1, {0.0, 1 / 6, 0.25, 1 / 3, 0.5, 1.0}), (2, {0.0, 0.5, 1.0})])
def test_laws_beside_the_logarithm(m, poles):
    t = np.array([100.0, 200.0, 400.0, 800.0])
    laws = _laws(t, 1.5, {m: 1.0})
    assert {p for _, p in laws.names} == poles
    assert np.exp(laws.log_prior).sum() == pytest.approx(1)
    plain = [row for (_, p), row in zip(laws.names, laws.added, strict=True) if p == 0]
    if m == 1:
        assert np.abs(plain).max() == 0
    else:  # F falls by (m − 1) log(log t − ψ(λ) + s), which for s = 0 is that of ∫ log(1/x) x^(λ−1) e^(−tx) dx
        exact = -np.diff(np.log(np.log(t) - special.digamma(1.5)))
        assert min(np.abs(row - exact).max() for row in plain) < 1e-9
        double = _laws(t, 1.5, {3: 1.0})
        assert any(np.abs(row - 2 * exact).max() < 1e-9 for row in double.added)
    # A pole at a distance p adds a share q t^(−p) to the partition function.
    nearer = [row for (_, p), row in zip(laws.names, laws.added, strict=True) if p == 0.5]
    half = -np.diff(np.log1p(-0.5 * (t / t[0]) ** -0.5))
    base = plain[len(plain) // 2]
    assert min(np.abs(row - base - half).max() for row in nearer) < 1e-9


def test_the_free_energy_is_that_of_a_gaussian_integral_at_every_level():
    levels = [2.0**k for k in range(-9, 8)]
    losses = [bowl(3, t, 2000, prior=1.0) for t in levels]
    est = cr.free_energy(ladder(losses, levels))
    rows = est.diagnostics["curve"]
    assert [row["nbeta"] for row in rows] == levels
    assert [row["value"] for row in rows] == pytest.approx([1.5 * math.log1p(t) for t in levels], rel=0.02)
    found = increments(levels, losses)
    assert [row["overlap"] for row in rows[1:]] == found.overlap.tolist()
    assert [row["integral"] for row in rows[1:]] == found.integral.tolist()
    assert est.diagnostics["integral"] == pytest.approx(rows[0]["value"] + found.integral.sum())
    assert (est.value, est.se) == (rows[-1]["value"], rows[-1]["se"])
    for k in (2, len(rows) - 1):
        assert rows[k]["se"] ** 2 == pytest.approx(rows[0]["se"] ** 2 + found.covariance[:k, :k].sum())
    assert rows[0]["se"] == pytest.approx(mcse_mean(np.exp(levels[0] * losses[0])), rel=0.02)
    assert est.diagnostics["pareto_k"] < 0.7
    part = cr.free_energy(ladder(losses, levels), nbeta=levels[5])
    assert (part.value, part.se) == (rows[5]["value"], rows[5]["se"])
    losses[3] = losses[3] * np.array([[1.0], [1.0], [1.0], [1.5]])
    assert cr.free_energy(ladder(losses, levels)).diagnostics["rhat"] == split_rhat(losses[3]) > 1.02


def test_findings_of_chains_name_what_is_wrong():
    fine = np.random.default_rng(0).standard_normal((4, 300))
    draws = ladder([bowl(1, t) for t in LEVELS])
    assert list(chain_findings(draws, {1.0: fine, 2.0: fine})) == []
    apart = fine + np.array([[0.0], [0.0], [0.0], [2.0]])
    (doubt,) = [f for f in chain_findings(draws, {1.0: fine, 2.0: np.tile(apart, 3)}) if f.code == "MC201"]
    assert "nbeta 2" in doubt.message
    slow = np.repeat(np.random.default_rng(1).standard_normal((4, 20)), 15, axis=1)
    codes = [f.code for f in chain_findings(draws, {1.0: slow, 2.0: fine})]
    assert "MC202" in codes
    (few,) = [f for f in chain_findings(draws, {1.0: slow, 2.0: fine}) if f.code == "MC202"]
    assert "nbeta 1" in few.message
    assert chosen_level(draws, 16.0) == 16.0


def inside(least, coefficient, covariance=((0.0, 0.0), (0.0, 0.0)), spread=(0.0, 0.0)):
    return _Inside(np.array([least, coefficient]), np.array(covariance), np.array(spread), 10.0, 5, 1.0)


def test_the_critical_size_has_the_error_of_its_equation():
    # n ΔL = Δλ log n, whose derivatives are taken by differences.
    def size(l_a, lambda_a, l_b, lambda_b):
        return optimize.brentq(lambda n: n * (l_a - l_b) - (lambda_b - lambda_a) * math.log(n), 5.0, 1e7, xtol=1e-9)

    at = np.array([0.02, 0.5, 0.003, 2.0])
    n = size(*at)
    assert _size(1.5 / 0.017) == pytest.approx(n)
    pull = np.array([(size(*(at + e)) - size(*(at - e))) / 2e-5 for e in 1e-5 * np.eye(4)])
    rng = np.random.default_rng(0)
    roots = 1e-4 * rng.standard_normal((2, 2, 2))
    first, second = (root @ root.T for root in roots)
    lines = {"a": inside(at[0], at[1], first, (1e-4, 0.01)), "b": inside(at[2], at[3], second, (2e-4, 0.03))}
    change = type("Change", (), {"before": "a", "after": "b"})
    ((names, found),) = _critical((change,), lines, ladder([bowl(1, t) for t in LEVELS]))
    assert names == ("a", "b")
    assert found.value == pytest.approx(n)
    exact = pull[:2] @ first @ pull[:2] + pull[2:] @ second @ pull[2:]
    assert found.se == pytest.approx(math.sqrt(exact), rel=1e-3)
    assert found.systematic == pytest.approx(math.hypot(*(pull * [1e-4, 0.01, 2e-4, 0.03])), rel=1e-3)
    assert found.diagnostics["depth"] == pytest.approx(0.017)
    assert found.diagnostics["more"] == pytest.approx(1.5)
    flat = {"a": lines["b"], "b": lines["a"]}  # the second one lies higher: they never cross
    assert not list(_critical((change,), flat, ladder([bowl(1, t) for t in LEVELS])))


def test_a_coefficient_in_a_region_shows_where_it_is_from():
    line = inside(0.1, 0.75, ((4e-4, 0.0), (0.0, 9e-4)), (0.003, 0.04))
    found = line.coefficient("a", ladder([bowl(1, t) for t in LEVELS]))
    assert (found.value, found.se, found.terms["law"]) == (0.75, pytest.approx(0.03), 0.04)
    assert found.diagnostics == {"hottest": 10.0, "levels": 5, "misfit": 1.0}
    assert found.systematic == pytest.approx(math.hypot(0.04, found.terms["multiplicity"]))
    # A multiplicity of two lowers the slope by 1 / (log t − ψ(λ)); about half of that is allowed for.
    assert 0.3 < found.terms["multiplicity"] * (math.log(10) - special.digamma(0.75)) < 0.9
    assert line.floor() == (0.1, pytest.approx(math.hypot(0.02, 0.003)))


def test_reweighting_moves_a_gaussian_loss_by_its_variance():
    # Under exp(−s L) a normal loss keeps its variance v and moves by s v, and its weight is exp(−s m + s² v / 2).
    def normal(m, v):
        return shuffled(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000, m, math.sqrt(v)))

    one, two = normal(1.0, 0.09), normal(0.7, 0.04)
    losses = np.concatenate([one, two], axis=1)
    first = np.repeat([1.0, 0.0], 5000) * np.ones((4, 1))
    moved = _Moved.of(0.8, losses, first, 1 - first)
    assert moved.ratio == pytest.approx(-0.8 * (0.7 - 1.0) + 0.32 * (0.04 - 0.09), rel=1e-3)
    assert moved.means == pytest.approx((1 - 0.8 * 0.09, 0.7 - 0.8 * 0.04), rel=1e-3)
    assert moved.variances == pytest.approx((0.09, 0.04), rel=5e-3)
    assert _Moved.of(0.0, losses, first, 1 - first).count == pytest.approx(20_000)
    assert moved.count == pytest.approx(20_000 * math.exp(-0.64 * 0.09), rel=1e-2)
    assert moved.ratio_series.mean() == pytest.approx(0, abs=1e-9)
    assert moved.jump_series.mean() == pytest.approx(0, abs=1e-9)
    assert _Moved.of(0.8, losses, first, 0 * first) is None
    # At a mean loss that differs by 0.3 both weigh the same where 0.3 s = 0.025 s² + log of the ratio of sizes.
    some = np.where(np.arange(10_000) % 3 > 0, 1.0, 0.0) * (1 - first)
    pair = _Crossing([10.0], [losses], [first], [some], False)
    place, shares = pair.solve(10.0, 14.0)
    size = math.log(some.sum() / first.sum())
    exact = optimize.brentq(lambda s: size + 0.3 * s - 0.025 * s**2, 0.0, 4.0)
    assert place - 10.0 == pytest.approx(exact, rel=0.05)
    assert shares.tolist() == [1.0]


def test_visits_are_changes_there_and_back():
    one = np.array([[1, 1, 0, 0, 1, 0, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]], float)
    changes, _ = _visits(one, 1 - one)
    assert changes == (4 + 1) // 2
    followed = np.array([[0, 1, 1, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1]])
    # State 0 of the first chain sees 1, 0, 1, 1 and state 1 sees 1, 0, 0, 1; those of the second never change.
    assert _visits(one, 1 - one, followed)[0] == (2 + 2) // 2
