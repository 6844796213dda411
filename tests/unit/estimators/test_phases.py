"""Phase diagrams of made-up draws, against least squares, roots and sums by numpy and scipy."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import digamma, logsumexp

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.covariance import combination_se
from crunode.estimators.energy_curve import increments
from crunode.sampling.diagnostics import ess, mcse_mean

RAISED, LEVELS = 0.01, [64.0, 128.0, 256.0, 512.0, 1024.0]


def drawn(levels=LEVELS, draws=300, scale=1.0, seed=0, name="HMC"):
    """Regions 0 (L = 0.01 + u², λ = 1/2) and 1 (L = 9 |v|², λ = 1), whose weights are √t e^(−t/100) · 3 to 1."""
    rng = np.random.default_rng(seed)
    losses, labels = [], []
    for t in levels:
        second = rng.random((4, draws)) < 1 / (1 + 3 * t**0.5 * np.exp(-t * RAISED))
        losses.append(np.where(second, rng.gamma(1.0, 1 / t, (4, draws)), RAISED + rng.gamma(0.5, 1 / t, (4, draws))))
        labels.append(second.astype(float))
    arrays = {"excess": np.concatenate(losses) / scale, "deep": np.concatenate(labels)}
    spec = {"n": 1000, "asked": {"seed": seed}, "kernel": {"name": name}}
    return Draws(arrays, {}, np.repeat(np.asarray(levels) * scale, 4), spec)


def by_level(draws):
    return [(t, draws.at(t)["excess"], draws.at(t)["deep"]) for t in draws.levels()]


def labelled(rows, levels=(100.0, 200.0), seed=0, replica=None):
    """Draws with given labels (one array (chain, draw) a level); deep ones have the lower loss."""
    rng = np.random.default_rng(seed)
    losses = [np.where(x > 0, 0.0, 0.02) + rng.gamma(0.5, 1 / t, x.shape) for x, t in zip(rows, levels, strict=True)]
    arrays = {"excess": np.concatenate(losses), "deep": np.concatenate(rows).astype(float)}
    if replica is not None:
        arrays["replica"] = np.concatenate(replica)
    name = "HMC" if replica is None else "Exchange"
    spec = {"n": 100, "asked": {"seed": 7}, "kernel": {"name": name}}
    return Draws(arrays, {}, np.repeat(levels, len(rows[0])), spec)


def test_each_level_says_its_shares_and_its_scaled_loss():
    draws = drawn()
    found = cr.phases(draws, "deep")
    assert (found.label, found.regions, found.nbeta) == ("deep", ("0", "1"), tuple(LEVELS))
    for k, (t, x, deep) in enumerate(by_level(draws)):
        assert found.occupation[k] == pytest.approx([1 - deep.mean(), deep.mean()])
        assert found.occupation_se[k] == pytest.approx([mcse_mean(1 - deep), mcse_mean(deep)])
        assert found.scaled_loss[k] == pytest.approx(t * x.mean())
        assert found.scaled_loss_se[k] == pytest.approx(t * mcse_mean(x))


def test_energies_of_regions_are_those_of_the_whole_less_the_log_of_their_share():
    draws = drawn()
    found = cr.phases(draws, "deep")
    steps = increments(LEVELS, [x for _, x, _ in by_level(draws)], joint=False)
    for k in range(len(LEVELS)):
        whole, variance = steps.change[:k].sum(), steps.covariance[:k, :k].sum()
        share, se = found.occupation[k], found.occupation_se[k]
        assert found.energy[k] == pytest.approx(whole - np.log(share))
        assert found.energy_se[k] == pytest.approx(np.sqrt(variance + (se / share) ** 2))


def test_a_region_that_was_not_visited_has_no_energy_and_an_error_of_one_draw():
    rng = np.random.default_rng(1)
    rows = [np.zeros((2, 100)), rng.integers(0, 2, (2, 100)), rng.integers(0, 2, (2, 100))]
    draws = labelled(rows, (50.0, 100.0, 200.0))
    found = cr.phases(draws, "deep")
    assert found.occupation[0].tolist() == [1.0, 0.0]
    assert found.occupation_se[0] == pytest.approx([1 / (2 + ess(draws.at(50.0)["excess"]))] * 2)
    assert np.isfinite(found.energy).tolist() == [[True, False], [True, True], [True, True]]
    assert np.isfinite(found.energy_se).tolist() == [[True, False], [True, True], [True, True]]
    assert found.to_dict()["energy"][0][1] is None


class Oracle:
    """Both regions at t, from the draws of each level: log weights, means and variances under exp(−(t − t_k) L)."""

    def __init__(self, draws):
        self.rows = by_level(draws)
        self.joint = draws.spec["kernel"]["name"] == "Exchange"

    def at(self, t):
        found = []
        for level, x, deep in self.rows:
            sides = []
            for one in (deep == 0, deep > 0):
                logs = np.where(one, -(t - level) * x, -np.inf)
                p = np.exp(logs - logsumexp(logs))
                mean = (p * x).sum()
                sides.append((logsumexp(logs), mean, (p * x**2).sum() - mean**2, p * x.size, 1 / (p**2).sum()))
            found.append(sides)
        return found

    def ratio(self, t, shares):
        return sum(s * (b[0] - a[0]) for s, (a, b) in zip(shares, self.at(t), strict=True) if s)

    def shares(self, t):
        errors = [mcse_mean(b[3] - a[3]) if min(a[4], b[4]) >= 30 else math.inf for a, b in self.at(t)]
        return np.array([e**-2 for e in errors]) / sum(e**-2 for e in errors)

    def crossing(self, low, high):
        t = math.sqrt(low * high)
        for _ in range(3):
            t = brentq(self.ratio, low / 2, 2 * high, args=(self.shares(t),), xtol=1e-9)
        return t, self.shares(t)


@pytest.mark.parametrize("name", ["HMC", "Exchange"])
def test_both_regions_weigh_the_same_at_a_transition_and_its_error_is_that_of_the_ratio(name):
    draws = drawn(name=name)
    (change,) = cr.phases(draws, "deep", names={0: "wide", 1: "deep"}).transitions
    oracle = Oracle(draws)
    t, shares = oracle.crossing(256.0, 512.0)
    sides = oracle.at(t)
    assert change.nbeta == pytest.approx(t, rel=1e-8)
    jump = sum(s * (a[1] - b[1]) for s, (a, b) in zip(shares, sides, strict=True))
    spread = math.sqrt(sum(s * (a[2] + b[2]) / 2 for s, (a, b) in zip(shares, sides, strict=True)))
    losses = [x for _, x, _ in oracle.rows]
    of_jump = [a[3] * (x - a[1]) - b[3] * (x - b[1]) for x, (a, b) in zip(losses, sides, strict=True)]
    jump_se = combination_se(shares, of_jump, oracle.joint)
    ratio_se = combination_se(shares, [b[3] - a[3] for a, b in sides], oracle.joint)
    assert (change.jump, change.jump_se) == pytest.approx((jump, jump_se), rel=1e-6)
    assert change.separation == pytest.approx(jump / spread, rel=1e-6)
    # d(log ratio)/dt is the jump, and 95 % of a normal law lie within 1.96 of its spreads.
    wide = 1.96 * ratio_se / (jump * t)
    assert math.log(change.high / t) == pytest.approx(wide, rel=1e-6)
    assert math.log(t / change.low) == pytest.approx(wide, rel=1e-6)
    assert change.sure
    assert (change.before, change.after, change.order) == ("wide", "deep", "first-order")


def test_between_levels_that_do_not_reach_each_other_a_transition_is_a_guess():
    rng = np.random.default_rng(0)
    found = cr.phases(labelled([*(rng.random((2, 4, 200)) < 0.3), np.ones((4, 200))], (50.0, 100.0, 1e9)), "deep")
    (change,) = found.transitions
    assert (change.nbeta, change.low, change.high) == (pytest.approx(10**5.5), 100.0, 1e9)
    assert (change.before, change.after, change.order) == ("0", "1", "unknown")
    assert all(math.isnan(x) for x in (change.jump, change.jump_se, change.separation))
    assert change.visits > 50
    assert not change.sure
    (gap,) = [f for f in found.findings if f.code == "CRIT703"]
    assert "between nbeta 100 and 1e+09" in gap.message


def test_regions_whose_losses_overlap_cross_over():
    """The same two laws of the loss but for a gap of less than twice their spreads."""
    rng = np.random.default_rng(2)
    rows = [rng.random((4, 400)) < share for share in (0.4, 0.6)]
    arrays = {"excess": np.concatenate([rng.gamma(4.0, 0.01, x.shape) + 0.02 * (1 - x) for x in rows])}
    arrays["deep"] = np.concatenate(rows).astype(float)
    (change,) = cr.phases(Draws(arrays, {}, np.repeat([20.0, 40.0], 4), labelled(rows).spec), "deep").transitions
    assert change.order == "crossover"
    assert change.jump > 3 * change.jump_se
    assert change.separation == pytest.approx(1.0, abs=0.15)


def test_levels_with_few_draws_left_in_one_region_have_no_say():
    """A level whose draws are all but in one region changes nothing, whatever it says."""
    draws = drawn()
    far = drawn([32.0], seed=5)
    rare = np.zeros((4, 300))
    rare[:, :5] = 1.0
    arrays = {
        "excess": np.concatenate([far.arrays["excess"], draws.arrays["excess"]]),
        "deep": np.concatenate([rare, draws.arrays["deep"]]),
    }
    more = Draws(arrays, {}, np.concatenate([far.nbeta, draws.nbeta]), draws.spec)
    (one,), (two,) = (cr.phases(x, "deep").transitions for x in (draws, more))
    assert (two.nbeta, two.low, two.high, two.jump) == (one.nbeta, one.low, one.high, one.jump)


def test_a_scale_of_the_loss_only_scales_temperatures():
    one, two = (cr.phases(drawn(scale=s), "deep") for s in (1.0, 8.0))
    (a,), (b,) = one.transitions, two.transitions
    assert (b.nbeta, b.low, b.high) == pytest.approx((8 * a.nbeta, 8 * a.low, 8 * a.high), rel=1e-6)
    assert (b.jump, b.jump_se, b.separation) == pytest.approx((a.jump / 8, a.jump_se / 8, a.separation), rel=1e-6)
    assert two.scaled_loss == pytest.approx(one.scaled_loss)
    for name in ("0", "1"):
        p, q = one.coefficients[name], two.coefficients[name]
        assert (q.value, q.se, q.terms["law"]) == pytest.approx((p.value, p.se, p.terms["law"]), rel=1e-4)
        assert q.diagnostics["hottest"] == pytest.approx(8 * p.diagnostics["hottest"])
        # What a second logarithm could take away falls as 1 / (log t − ψ(λ)).
        weights = [math.log(x.diagnostics["hottest"]) - digamma(max(x.value, 0.5)) for x in (p, q)]
        # At 95 % it covers d/d log t of log(log t − ψ(λ)), by which F of a multiplicity of two falls behind.
        assert 1 < 1.96 * p.terms["multiplicity"] * weights[0] < 1.25
        assert p.terms["multiplicity"] / q.terms["multiplicity"] == pytest.approx(weights[1] / weights[0], rel=1e-6)


def lines(draws, region, floor=None):
    """All lines of the mean loss in a region against 1/t by least squares: (L, λ), covariances, chi² and degrees."""
    rows = [(t, x, deep == region) for t, x, deep in by_level(draws)]
    means = np.array([x[one].mean() for _, x, one in rows])
    errors = []
    for (_, x, one), mean in zip(rows, means, strict=True):
        series = one * (x - mean) / one.mean()
        within = series.std(ddof=1) / math.sqrt(ess(series))
        whole = mcse_mean(series)
        errors.append(whole if whole**2 > 2.1 * within**2 else within)
    errors, slopes = np.array(errors), 1 / np.array([t for t, _, _ in rows])
    found = []
    for first in range(len(rows) - 2):
        design = np.stack([np.ones_like(slopes), slopes], 1)[first:] / errors[first:, None]
        target = (means - (floor or 0.0))[first:] / errors[first:]
        design = design if floor is None else design[:, 1:]
        value = np.linalg.lstsq(design, target, rcond=None)[0]
        pull = np.zeros((len(value), len(rows)))
        pull[:, first:] = np.linalg.pinv(design) / errors[first:]
        found.append((value, pull, float(((target - design @ value) ** 2).sum()), len(target) - len(value)))
    return found, errors, rows


@pytest.mark.parametrize("region", [0, 1])
@pytest.mark.parametrize("known", [False, True])
def test_a_coefficient_is_the_slope_of_the_mean_loss_averaged_over_where_lines_begin(region, known):
    draws = drawn(LEVELS[:4], draws=600)
    floor = (RAISED, 0.0)[region] if known else None
    found = cr.phases(draws, "deep", floors={str(region): floor} if known else None)
    fits, errors, rows = lines(draws, region, floor)
    likely = np.array([-chi2 / 2 - k for k, (_, _, chi2, _) in enumerate(fits)])
    weights = np.exp(likely - logsumexp(likely))
    values = np.array([value for value, _, _, _ in fits])
    mean = weights @ values
    best = int(weights.argmax())
    misfit = fits[best][2] / fits[best][3]
    pull = sum(w * p for w, (_, p, _, _) in zip(weights, fits, strict=True))
    covariance = max(1.0, misfit) * (pull * errors**2) @ pull.T
    spread = np.sqrt(weights @ (values - mean) ** 2)
    est = found.coefficients[str(region)]
    assert est.value == pytest.approx(mean[-1], rel=1e-6)
    assert est.se == pytest.approx(math.sqrt(covariance[-1, -1]), rel=1e-6)
    assert est.terms["law"] == pytest.approx(spread[-1], rel=1e-5)
    assert est.systematic == pytest.approx(math.hypot(*est.terms.values()))
    assert est.diagnostics["misfit"] == pytest.approx(misfit, rel=1e-5)
    assert est.diagnostics["levels"] == len(rows)
    hottest = math.exp(weights @ np.log([t for t, _, _ in rows][: len(weights)]))
    assert est.diagnostics["hottest"] == pytest.approx(hottest)
    assert est.seed == 0
    least, error = found.floors[str(region)]
    if known:
        assert (least, error) == (floor, 0.0)
    else:
        assert least == pytest.approx(mean[0], rel=1e-5)
        assert error == pytest.approx(math.hypot(math.sqrt(covariance[0, 0]), spread[0]), rel=1e-5)


def test_a_critical_size_solves_its_equation_with_the_errors_of_both_lines():
    found = cr.phases(drawn(draws=1200), "deep", floors={"0": RAISED, "1": 0.0})
    (pair, est), *_ = found.critical.items()
    assert pair == ("0", "1")
    a, b = (found.coefficients[x] for x in pair)
    depth, more = est.diagnostics["depth"], est.diagnostics["more"]
    assert depth == pytest.approx(RAISED)
    assert more == pytest.approx(b.value - a.value)

    def size(ratio):
        return brentq(lambda n: n - ratio * math.log(n), ratio, 1e6, xtol=1e-9)

    assert est.value == pytest.approx(size(more / depth), rel=1e-8)
    by = (size((more + 1e-4) / depth) - size((more - 1e-4) / depth)) / 2e-4
    assert est.se == pytest.approx(by * math.hypot(a.se, b.se), rel=1e-5)
    law = by * math.hypot(a.terms["law"], b.terms["law"])
    assert (est.systematic, est.terms["law"]) == pytest.approx((law, law), rel=1e-5)


def test_a_critical_size_is_less_sure_where_the_least_losses_are_not_known():
    draws = drawn(LEVELS[:4], draws=1200)
    found = cr.phases(draws, "deep")
    ((_, est),) = found.critical.items()
    parts = []
    for region in (0, 1):
        fits, errors, _ = lines(draws, region)
        likely = np.array([-chi2 / 2 - k for k, (_, _, chi2, _) in enumerate(fits)])
        weights = np.exp(likely - logsumexp(likely))
        pull = sum(w * p for w, (_, p, _, _) in zip(weights, fits, strict=True))
        best = int(weights.argmax())
        values = np.array([value for value, _, _, _ in fits])
        spread = np.sqrt(weights @ (values - weights @ values) ** 2)
        parts.append((weights @ values, max(1.0, fits[best][2] / fits[best][3]) * (pull * errors**2) @ pull.T, spread))

    def size(change):
        low, slope = (parts[0][0] - parts[1][0]) + change
        return brentq(lambda n: n * low + slope * math.log(n), 3.0, 1e6, xtol=1e-10)

    nudge = np.diag([1e-6, 1e-4])
    by = np.array([(size(h) - size(-h)) / (2 * h.sum()) for h in nudge])
    assert est.value == pytest.approx(size(np.zeros(2)), rel=1e-6)
    assert est.se == pytest.approx(math.sqrt(by @ (parts[0][1] + parts[1][1]) @ by), rel=1e-4)
    assert est.terms["law"] == pytest.approx(math.hypot(*(by * parts[0][2]), *(by * parts[1][2])), rel=1e-4)


def test_no_critical_size_without_a_gap_in_losses_or_in_coefficients():
    draws = drawn(LEVELS[:4])
    for floors in ({"0": 0.0, "1": 0.0}, {"0": -RAISED, "1": 0.0}):
        assert not cr.phases(draws, "deep", floors=floors).critical


@pytest.mark.parametrize(("visits", "sure"), [(9, False), (10, True), (11, True)])
def test_ten_visits_to_and_fro_make_a_transition_sure(visits, sure):
    """A chain goes `visits` times to the other region and returns; levels hold 40 % and 60 % of deep draws."""
    rows = []
    for share in (0.4, 0.6):
        x = np.zeros((1, 1000))
        for low, high in pairwise(np.linspace(0, 999, visits + 1).astype(int)):
            x[0, low + round((1 - share) * (high - low)) : high] = 1
        rows.append(x)
    (change,) = cr.phases(labelled(rows), "deep").transitions
    assert change.visits == visits
    assert change.sure == sure
    if not sure:
        assert change.low <= 100.0
        assert change.high >= 200.0


def test_visits_at_either_side_of_a_transition_are_enough():
    often, seldom = np.tile([0.0, 0.0, 1.0], 40)[None], np.repeat([0.0, 1.0, 0.0], [10, 100, 10])[None]
    (first,) = cr.phases(labelled([often, seldom]), "deep").transitions
    (last,) = cr.phases(labelled([1 - seldom, 1 - often]), "deep").transitions
    assert (first.visits, last.visits) == (39, 39)
    assert (first.sure, last.sure) == (True, True)


def test_visits_of_exchanged_states_are_counted_along_each_state():
    """Two states change places at every draw; the first goes to the other region three times, the second never."""
    now = np.arange(400)
    region = np.stack([(now // 50) % 2, np.zeros(400, int)])
    region[0, 350:] = 0
    place = np.stack([now % 2, 1 - now % 2])  # which state is at each level
    rows = [region[p, now][None] for p in place]
    rows[1] = np.where(now % 2 == 0, 1, rows[1])  # the second state is always deep while at the second level
    found = cr.phases(labelled(rows, (100.0, 101.0), replica=place[:, None]), "deep").transitions
    assert [x.visits for x in found] == [3]


def test_chains_that_disagree_on_a_share_make_no_sure_transition():
    rng = np.random.default_rng(0)
    shares = np.array([0.05, 0.05, 0.75, 0.75])[:, None]
    rows = [rng.random((4, 500)) < shares, rng.random((4, 500)) < 0.6]
    apart = cr.phases(labelled([rows[0], rng.random((4, 500)) < shares + 0.2]), "deep").transitions
    assert [x.sure for x in apart] == [False]
    assert apart[0].visits > 100
    assert cr.phases(labelled([rng.random((4, 500)) < 0.4, rows[1]]), "deep").transitions[0].sure


def test_an_observable_of_many_values_is_no_region():
    rng = np.random.default_rng(0)
    for count, fits in ((32, True), (33, False)):
        labels = np.tile(np.arange(count), 10)[None]
        arrays = {"excess": rng.gamma(0.5, 0.01, (4, labels.size)), "k": np.repeat(labels, 4, 0)}
        draws = Draws(arrays, {}, np.array([1.0, 1.0, 2.0, 2.0]), {"n": 9, "asked": {"seed": 0}})
        if fits:
            assert len(cr.phases(draws, "k").regions) == count
        else:
            with pytest.raises(cr.InputError, match="32 values or fewer, got 33"):
                cr.phases(draws, "k")


def test_coefficients_are_given_where_a_region_was_seen_enough_at_three_levels():
    draws = drawn(LEVELS[1:4], draws=800)
    found = cr.phases(draws, "deep")
    assert set(found.coefficients) == {"0", "1"}
    assert found.coefficients["0"].diagnostics["levels"] == 3
    assert found.coefficients["0"].terms["law"] == 0.0
    assert not cr.phases(drawn(LEVELS[1:3], draws=800), "deep").coefficients
    assert not cr.phases(drawn(LEVELS[1:4], draws=10), "deep").coefficients


def test_a_table_has_all_levels_regions_and_errors():
    draws = drawn(draws=600)
    found = cr.phases(draws, "deep", names={0: "a region of a long name", 1: "deep"})
    head, *rows = found.table().split("\n\n")[0].splitlines()
    assert head.split() == ["nbeta", "t", "E[L]", *["a", "region", "of", "a", "long", "name"], "deep"]
    assert {len(row) for row in rows} == {len(head)}
    for k, row in enumerate(rows):
        cells = row.split()
        assert float(cells[0]) == LEVELS[k]
        assert float(cells[1]) == pytest.approx(found.scaled_loss[k], rel=5e-3)
        numbers = [float(x) for x in cells[2:] if x != "±"]
        told = np.stack([found.occupation[k], found.occupation_se[k]], 1).ravel()
        assert numbers == pytest.approx(told, abs=5e-4)
    est, (floor, error) = found.coefficients["deep"], found.floors["deep"]
    assert f"λ in deep: {est.value:.3g} ± {est.error:.2g}, least loss {floor:.3g} ± {error:.1g}" in found.table()
    assert "critical n of a region of a long name → deep: " in found.table()
    assert "phases by deep | 2 regions, 5 levels | " in str(found)


def test_a_region_without_draws_is_a_dot_in_the_table():
    rng = np.random.default_rng(1)
    found = cr.phases(labelled([np.zeros((2, 100)), rng.integers(0, 2, (2, 100))]), "deep")
    assert found.table().splitlines()[1].split()[-1] == "·"
    assert found.table().splitlines()[2].split()[-1] != "·"
