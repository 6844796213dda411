"""Phase diagrams of a line with two wells, against quadrature: a wide quartic and a narrow, deeper quadratic one."""

import json
import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws

CUT, RAISED, STEEP = 1.0, 0.02, 4000.0
# The quartic well is at 0 with λ = 1/4, the quadratic one at 2 with λ = 1/2 and the least loss.
GRID = np.concatenate([np.linspace(-1.5, CUT, 40_001), np.linspace(CUT, 3.0, 40_001)[1:]])
LEVELS = [2.0**k for k in range(2, 14)]


def potential(w):
    return np.where(w < CUT, RAISED + w**4, STEEP * (w - 2) ** 2)


def parts(t):
    """Weights of both wells, and mean losses in them."""
    density = np.exp(-t * potential(GRID)) * np.gradient(GRID)
    deep = GRID >= CUT
    sums = [density[~deep].sum(), density[deep].sum()]
    means = [(density * potential(GRID))[where].sum() / density[where].sum() for where in (~deep, deep)]
    return sums, means


def crossing():
    low, high = 10.0, 1e4
    for _ in range(60):
        middle = math.sqrt(low * high)
        (wide, deep), _ = parts(middle)
        low, high = (low, middle) if deep > wide else (middle, high)
    return low


def drawn(seed=0, levels=LEVELS, chains=4, draws=1500, sticky=0.0, name="HMC", flip=False):
    """Independent draws by the inverse of the distribution function; with `sticky`, regions seldom change."""
    rng = np.random.default_rng(seed)
    losses, labels = [], []
    for t in levels:
        density = np.exp(-t * potential(GRID)) * np.gradient(GRID)
        total = np.cumsum(density)
        share = density[GRID >= CUT].sum() / total[-1]
        if sticky:
            u = rng.random((chains, draws))
            second = np.empty((chains, draws), bool)
            state = rng.random(chains) < share
            for k in range(draws):
                state = np.where(rng.random(chains) < sticky, state, rng.random(chains) < share)
                second[:, k] = state
            u = np.where(second, 1 - share + share * u, (1 - share) * u)
        else:
            u = rng.random((chains, draws))
        w = np.interp(u, total / total[-1], GRID)
        losses.append(potential(w))
        labels.append((w >= CUT).astype(float))
    arrays = {"excess": np.concatenate(losses), "deep": np.concatenate(labels)}
    spec = {"n": 1000, "asked": {"seed": seed}, "kernel": {"name": name}}
    return Draws(arrays, {}, np.repeat(np.asarray(levels, float), chains), spec)


NAMES = {0: "wide", 1: "deep"}


def test_occupations_and_energies():
    """96 numbers within 4.5 standard errors: one false alarm in 1500."""
    found = cr.phases(drawn(), "deep", names=NAMES)
    first = sum(parts(LEVELS[0])[0])
    for k, t in enumerate(LEVELS):
        (wide, deep), _ = parts(t)
        for a, weight in enumerate((wide, deep)):
            exact = weight / (wide + deep)
            assert abs(found.occupation[k, a] - exact) < 4.5 * found.occupation_se[k, a]
            if exact > 0.005:
                assert abs(found.energy[k, a] + math.log(weight / first)) < 4.5 * found.energy_se[k, a]
    assert found.holder(LEVELS[0]) == "wide"
    assert found.holder(LEVELS[-1]) == "deep"


def test_transition_and_jump():
    found = cr.phases(drawn(), "deep", names=NAMES)
    (change,) = found.transitions
    exact = crossing()
    (_, _), (wide, deep) = parts(exact)
    assert change.sure
    assert change.low < exact < change.high
    assert change.high / change.low < 1.3
    assert abs(change.jump - (wide - deep)) < 4 * change.jump_se
    assert (change.before, change.after, change.order) == ("wide", "deep", "first-order")
    assert found.ok


def test_intervals_cover():
    """24 repeats of a 95 % interval: fewer than 19 hits are one false alarm in 1000."""
    exact = crossing()
    found = [cr.phases(drawn(seed, draws=200), "deep").transitions[0] for seed in range(24)]
    assert sum(x.low < exact < x.high for x in found) >= 19
    spread = np.std([math.log(x.nbeta) for x in found], ddof=1)
    stated = np.mean([math.log(x.high / x.low) / (2 * 1.96) for x in found])
    assert 0.55 < spread / stated < 1.6


def test_coefficients_floors_and_critical_size():
    found = cr.phases(drawn(draws=4000), "deep", names=NAMES)
    for name, exact, floor in (("wide", 0.25, RAISED), ("deep", 0.5, 0.0)):
        est = found.coefficients[name]
        assert abs(est.value - exact) < 4 * math.hypot(est.se, est.terms["law"])
        assert est.value == pytest.approx(exact, rel=0.05)
        assert abs(found.floors[name][0] - floor) < 4 * found.floors[name][1]
    known = cr.phases(drawn(draws=4000), "deep", names=NAMES, floors={"wide": RAISED, "deep": 0.0})
    for name, exact in (("wide", 0.25), ("deep", 0.5)):
        assert abs(known.coefficients[name].value - exact) < 4 * known.coefficients[name].se + 0.002
        assert known.coefficients[name].se <= found.coefficients[name].se
    est = found.critical["wide", "deep"]
    n = 2.0
    for _ in range(200):
        n = 0.25 / RAISED * math.log(n)  # n ΔL = Δλ log n
    assert abs(est.value - n) < 4 * est.error
    assert est.error < 0.3 * n


def test_chains_that_hardly_change_region_are_reported():
    loose, stuck = (cr.phases(drawn(sticky=s), "deep") for s in (0.5, 0.9995))
    assert loose.transitions[0].sure
    assert "CRIT706" not in [f.code for f in loose.findings]
    assert "CRIT706" in [f.code for f in stuck.findings]
    assert not any(x.sure for x in stuck.transitions)


def test_a_transition_between_two_far_levels_is_not_sure():
    found = cr.phases(drawn(levels=[4.0, 8.0, 8192.0, 16384.0]), "deep")
    (change,) = found.transitions
    assert not change.sure
    assert change.low <= 8.0
    assert change.high >= 8192.0
    assert not found.ok  # CRIT703


def test_a_cut_through_one_well_is_no_first_order_transition():
    """L = w²: the region |w| < 0.2 takes over smoothly as the well contracts."""
    rng = np.random.default_rng(0)
    levels = [2.0**k for k in range(0, 8)]
    w = np.concatenate([rng.normal(0, (2 * t) ** -0.5, (4, 1500)) for t in levels])
    arrays = {"excess": w**2, "near": (abs(w) < 0.2).astype(float)}
    found = cr.phases(Draws(arrays, {}, np.repeat(levels, 4), {"n": 100, "asked": {"seed": 0}}), "near")
    assert [x.order for x in found.transitions] == ["crossover"]


def test_levels_that_exchange_states():
    """The same draws as one ladder: the same place, and an interval of about the same width."""
    apart, joint = (cr.phases(drawn(name=name), "deep").transitions[0] for name in ("HMC", "Exchange"))
    assert joint.nbeta == pytest.approx(apart.nbeta, rel=1e-6)
    assert 0.5 < math.log(joint.high / joint.low) / math.log(apart.high / apart.low) < 2


def test_states_that_only_change_levels_are_no_visits():
    """Two replicas that sit in one region each and swap levels at every draw: both levels see both regions."""
    rng = np.random.default_rng(0)
    at_hot = rng.integers(0, 2, (4, 1000))  # which of the two is at the hotter level
    replica = np.concatenate([at_hot, 1 - at_hot])
    deep = replica.astype(float)
    excess = np.where(deep > 0, rng.gamma(0.5, 0.1, deep.shape), 0.02 + rng.gamma(0.25, 0.1, deep.shape))
    spec = {"n": 100, "asked": {"seed": 0}, "kernel": {"name": "Exchange"}}
    arrays = {"excess": excess, "deep": deep, "replica": replica}
    draws = Draws(arrays, {}, np.repeat([10.0, 11.0], 4), spec)
    (change,) = cr.phases(draws, "deep").transitions
    assert change.visits == 0
    assert not change.sure


def test_table_dict_and_picture():
    found = cr.phases(drawn(), "deep", names=NAMES)
    text = found.table()
    assert "λ in deep" in text
    assert str(found.transitions[0]) in text
    assert str(found.transitions[0]) in str(found)
    content = json.loads(json.dumps(found.to_dict()))
    assert content["regions"] == ["wide", "deep"]
    assert content["transitions"][0]["nbeta"] == pytest.approx(found.transitions[0].nbeta)
    pytest.importorskip("matplotlib")
    figure = found.plot()
    upper, lower = figure.axes
    assert len(upper.get_lines()) >= 2
    assert lower.get_xscale() == "log"


def test_sampled_draws_with_an_observable():
    land = cr.Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.tensor([1.0]), n=1000)
    posterior = cr.Posterior(land, (1.0, 2.0, 4.0), cr.Gaussian(1.0, mean="origin"))
    seen = {"side": lambda _, w: (w[0] > 0).to(w.dtype)}
    draws = cr.sample(posterior, cr.HMC(step=0.2, leaps=5), chains=2, draws=200, warmup=50, seed=0, observe=seen)
    found = cr.phases(draws, "side", names={0: "left", 1: "right"})
    assert np.abs(found.occupation - 0.5).max() < 4.5 * found.occupation_se.max()


def test_bad_input():
    draws = drawn(draws=50)
    with pytest.raises(cr.InputError, match="Draws"):
        cr.phases(1.0, "deep")
    with pytest.raises(cr.InputError, match="observe"):
        cr.phases(draws, "live")
    with pytest.raises(cr.InputError, match="region"):
        cr.phases(Draws({**draws.arrays, "deep": draws.arrays["excess"]}, {}, draws.nbeta, draws.spec), "deep")
    with pytest.raises(cr.InputError, match="floors"):
        cr.phases(draws, "deep", names=NAMES, floors={"narrow": 0.0})
    with pytest.raises(cr.InputError, match="name of its own"):
        cr.phases(draws, "deep", names={0: "a", 1: "a"})
    with pytest.raises(cr.InputError, match="levels"):
        cr.phases(drawn(levels=[4.0], draws=50), "deep")
    wide = {**draws.arrays, "deep": np.zeros((*draws.arrays["excess"].shape, 2))}
    with pytest.raises(cr.InputError, match="one finite number"):
        cr.phases(Draws(wide, {}, draws.nbeta, draws.spec), "deep")
