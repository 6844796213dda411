"""Replica exchange: what travels and what stays, which rungs try, groups, run folders, refusals and findings."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import crunode as cr
from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.sampling import layout
from crunode.sampling.engine import Engine
from crunode.sampling.exchange import exchange_findings, ladder_rows, round_trips
from crunode.sampling.kernel import Kernel
from crunode.sampling.ladders import rate_of, separation
from crunode.sampling.tuning import Plan, tune

LEVELS = (1.0, 3.0, 9.0)
SIZE = {"chains": 3, "draws": 40, "warmup": 50}


def well(w):
    return (w[0] ** 2 - 1) ** 2 + w[1:].square().sum()


def target(nbeta=LEVELS, prior=None):
    land = cr.Landscape.of_function(well, torch.tensor([1.0, 0.0], dtype=torch.float64), n=1000)
    return cr.Posterior(land, nbeta, prior or cr.Gaussian(0.5))


def same(one, other):
    return one.arrays.keys() == other.arrays.keys() and all(
        np.array_equal(getattr(one, kind)[name], getattr(other, kind)[name], equal_nan=True)
        for kind in ("arrays", "warmup")
        for name in getattr(one, kind)
    )


@dataclass(frozen=True)
class Still(Kernel):
    """A kernel that stays where it is, so that only swaps move anything."""

    step: float = 1.0
    metropolis: ClassVar[bool] = True

    def init(self, w, gradient):
        slope, excess = gradient(w)
        return {"slope": slope, "excess": excess, "own": torch.arange(len(w))}

    def advance(self, state, gradient, step, noise, uniform, warming):
        return {"excess": state["excess"].clone(), "accept": torch.ones_like(state["excess"])}


def drive(kernel, engine, w, steps, seed=0):
    """States and records of a kernel on an engine, from given positions."""
    generator = torch.Generator().manual_seed(seed)
    state = {"w": w.clone(), **kernel.init(w, engine)}
    records = []
    for _ in range(steps):
        noise = torch.randn(w.shape, generator=generator, dtype=w.dtype)
        uniform = torch.rand(len(w), kernel.uniforms, generator=generator, dtype=w.dtype)
        records.append(
            kernel.advance(state, engine, torch.full((len(w), 1), 0.01, dtype=w.dtype), noise, uniform, True)
        )
    return state, records


def engine_of(posterior, nbeta):
    nbeta = torch.as_tensor(nbeta, dtype=torch.float64)
    return Engine(posterior, range(len(nbeta)), nbeta, seed=0, batch=None, layout="batched")


# What travels


@pytest.mark.heavy
@settings(max_examples=30)
@given(
    rungs=st.integers(2, 6),
    chains=st.integers(1, 4),
    seed=st.integers(0, 1000),
    every=st.integers(1, 3),
    data=st.data(),
)
def test_replicas_stay_in_their_chain_and_take_everything_along(rungs, chains, seed, every, data):
    levels = data.draw(st.permutations([2.0**k for k in range(rungs)]))
    nbeta = [level for level in levels for _ in range(chains)]
    engine = engine_of(target(), nbeta)
    w = torch.randn(len(nbeta), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    state, records = drive(cr.Exchange(Still(), every=every), engine, w, 12, seed)
    ladder = ladder_rows(engine.nbeta)
    assert torch.equal(engine.nbeta[ladder], engine.nbeta[ladder].sort(0).values)
    for record in records:
        labels = record["replica"][ladder]
        assert torch.equal(labels.sort(0).values, torch.arange(rungs)[:, None].expand(-1, chains))
    came_from = torch.gather(ladder, 0, state["replica"][ladder])  # the row at which a replica began
    assert torch.equal(state["w"][ladder], w[came_from])
    slope, excess = engine(state["w"])
    torch.testing.assert_close(state["excess"], excess)
    torch.testing.assert_close(state["slope"], slope, rtol=1e-9, atol=1e-9)
    assert torch.equal(records[-1]["excess"], state["excess"])
    assert torch.equal(state["own"], torch.arange(len(w)))  # what belongs to a row stays there


@pytest.mark.parametrize(
    "prior",
    [cr.Flat(), cr.Gaussian(30.0), cr.Gaussian(30.0, mean="origin"), cr.Density(lambda w: -10 * w.cosh().log().sum())],
    ids=["flat", "center", "origin", "density"],
)
def test_slopes_fit_the_new_temperature_under_any_prior(prior):
    engine = engine_of(target(prior=prior), [1.0, 1.0, 2.0, 2.0, 30.0, 30.0])
    w = 0.3 * torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state, records = drive(cr.Exchange(Still()), engine, w, 9)
    assert (torch.stack([r["replica"] for r in records]).diff(dim=0) != 0).sum() > 10
    torch.testing.assert_close(state["slope"], engine(state["w"])[0], rtol=1e-9, atol=1e-9)


def test_swaps_are_accepted_as_often_as_stated():
    """At fixed losses: 4000 tries at one probability, at four standard errors; a false alarm in 15 000."""
    rows = 4000
    engine = engine_of(target(prior=cr.Flat()), [1.0] * rows + [2.0] * rows)
    places = torch.tensor([[1.3, 0.0], [1.0, 0.9]], dtype=torch.float64)
    apart = float(well(places[1]) - well(places[0]))
    for ahead in (1, -1):  # the colder rung has the higher loss, or the lower one
        w = places if ahead > 0 else places.flip(0)
        state, records = drive(cr.Exchange(Still()), engine, w.repeat_interleave(rows, 0), 1)
        p = min(1.0, np.exp(ahead * apart))
        np.testing.assert_allclose(records[0]["swap"][:rows], p)
        taken = float((state["replica"][:rows] == 1).double().mean())
        assert abs(taken - p) <= 4 * (p * (1 - p) / rows) ** 0.5
    assert p < 0.9


@pytest.mark.parametrize(
    ("rungs", "every", "tried"),
    [
        (2, 1, [[0]] * 4),
        (3, 1, [[0], [1], [0], [1]]),
        (5, 1, [[0, 2], [1, 3], [0, 2], [1, 3]]),
        (4, 2, [[0, 2], [], [1], [], [0, 2]]),
    ],
)
def test_neighbours_take_turns(rungs, every, tried):
    engine = engine_of(target(), [2.0**k for k in range(rungs)])
    _, records = drive(cr.Exchange(Still(), every=every), engine, torch.ones(rungs, 2, dtype=torch.float64), len(tried))
    assert [torch.isfinite(r["swap"]).nonzero()[:, 0].tolist() for r in records] == tried


@given(
    walk=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=40), hot=st.integers(0, 1), cold=st.integers(0, 1)
)
def test_round_trips_are_counted_from_the_hot_end(walk, hot, cold):
    order = np.array([[k, (k + 1 + hot) % 3, (k + 2 - cold) % 3] for k in walk]).T
    expected = 0
    for label in range(3):
        stage = "before"  # a second way to count: by hand, step after step
        for column in order.T:
            if column[0] == label and stage in ("before", "cold"):
                expected += stage == "cold"
                stage = "hot"
            elif column[-1] == label and stage == "hot":
                stage = "cold"
    assert round_trips(order) == expected


# Runs


def test_what_is_recorded():
    draws = cr.sample(target(), cr.Exchange(cr.HMC(leaps=3)), **SIZE)
    assert draws.arrays["swap"].shape == draws.arrays["replica"].shape == (9, 40)
    assert np.isnan(draws.at(9.0)["swap"]).all()
    assert (np.isfinite(draws.at(1.0)["swap"]) != np.isfinite(draws.at(3.0)["swap"])).all()
    assert not (draws.nbeta.reshape(3, 3) != np.array(LEVELS)[:, None]).any()
    assert len(draws.spec["kernel"]["step"]) == 3
    assert draws.spec["kernel"]["inner"]["name"] == "HMC"
    report = cr.exchange_report(draws)
    assert report["nbeta"] == list(LEVELS)
    assert all(0 < rate < 1 for rate in report["swap_rate"])
    assert report["steps_per_round_trip"] == 360 / report["round_trips"]


class Groups:
    """Runs in this process, and knows the groups."""

    def __init__(self):
        self.sizes = []

    def map(self, fn, jobs):
        self.sizes = [len(job.chains) for job in jobs]
        return (fn(job) for job in jobs)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "inner", [cr.HMC(0.02, leaps=3), cr.HMC(0.02, leaps=3, metric="diagonal"), cr.MALA(0.02)], ids=repr
)
def test_chains_do_not_depend_on_those_beside_them(inner, tmp_path, monkeypatch):
    kernel = cr.Exchange(inner)
    whole = cr.sample(target(), kernel, **SIZE)
    for enough, sizes in ((8, [3, 6]), (4, [3, 3, 3]), (1, [3, 3, 3])):
        monkeypatch.setattr(layout, "enough_for_a_worker", lambda land, rows, enough=enough: enough)
        executor = Groups()
        split = cr.sample(target(), kernel, executor=executor, **SIZE)
        assert executor.sizes == sizes
        for name in whole.arrays:
            np.testing.assert_allclose(split.arrays[name], whole.arrays[name], rtol=1e-7, atol=1e-9)
    stored = cr.sample(target(), kernel, executor=Groups(), store=tmp_path / "run", **SIZE)
    assert same(stored, split)


class Interrupted(Exception):
    """What stops a run in these tests."""


class StopAfter:
    def __init__(self, calls):
        self.left = calls

    def __call__(self, landscape, w):
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return w.sum()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kernel", "nbeta"),
    [
        (cr.Exchange(cr.HMC((0.1, 0.05, 0.02), leaps=3)), LEVELS),
        (cr.Exchange(cr.HMC(0.02, leaps=3, metric="diagonal"), every=3), LEVELS),
        (cr.HMC(leaps=3, metric="diagonal"), 9.0),
    ],
    ids=["plain", "diagonal", "alone"],
)
@pytest.mark.parametrize("warmup", [0, 75])
def test_interrupted_runs_go_on_as_if_nothing_had_happened(kernel, nbeta, warmup, tmp_path):
    size = {"chains": 2, "draws": 110, "warmup": warmup, "layout": "batched"}
    whole = cr.sample(target(nbeta), kernel, observe={"sum": StopAfter(10**9)}, **size)
    with pytest.raises(Interrupted):
        cr.sample(target(nbeta), kernel, observe={"sum": StopAfter(150)}, store=tmp_path / "run", **size)
    resumed = cr.sample(target(nbeta), kernel, observe={"sum": StopAfter(10**9)}, store=tmp_path / "run", **size)
    assert same(whole, resumed)
    assert [f.code for f in whole.findings] == [f.code for f in resumed.findings]


@pytest.mark.heavy
def test_interrupted_in_warmup(tmp_path, monkeypatch):
    from crunode.sampling import group

    kernel = cr.Exchange(cr.HMC(leaps=3, metric="diagonal"))
    size = {"chains": 2, "draws": 30, "warmup": 120}
    whole = cr.sample(target(), kernel, **size)
    count, advance = [0], group._Runner._advance

    def stopped(self, *args):
        count[0] += 1
        if count[0] == 83:
            raise Interrupted
        return advance(self, *args)

    monkeypatch.setattr(group._Runner, "_advance", stopped)
    with pytest.raises(Interrupted):
        cr.sample(target(), kernel, store=tmp_path / "run", **size)
    assert same(whole, cr.sample(target(), kernel, store=tmp_path / "run", **size))


def test_plans_can_be_stored():
    for kernel in (cr.Exchange(cr.HMC(leaps=5), every=2), cr.Exchange(cr.MALA()), cr.HMC(metric="diagonal")):
        plan = tune(target(), kernel, chains=1, draws=10, warmup=0)
        assert len(plan.kernel.step) == 3
        assert Plan.from_spec(plan.spec(), kernel).kernel == Plan.from_spec(plan.spec()).kernel == plan.kernel


def test_what_was_learned_is_frozen_after_warmup():
    engine = engine_of(target(), [1.0, 9.0])
    kernel = cr.HMC(leaps=3, metric="diagonal")
    w = torch.ones(2, 2, dtype=torch.float64)
    state = {"w": w.clone(), **kernel.init(w, engine)}
    generator = torch.Generator().manual_seed(0)

    def advance(warming):
        noise, uniform = (f(2, 2, generator=generator, dtype=torch.float64) for f in (torch.randn, torch.rand))
        kernel.advance(state, engine, torch.full((2, 1), 0.01, dtype=torch.float64), noise, uniform, warming)

    for _ in range(100):
        advance(True)
    learned = {name: state[name].clone() for name in state if name not in ("w", "slope", "excess")}
    assert (learned["scale"] != 1).all()
    assert not torch.equal(learned["scale"][0], learned["scale"][1])  # each chain its own
    for _ in range(5):
        advance(False)
    assert all(torch.equal(learned[name], state[name]) for name in learned)


# Refusals


@pytest.mark.parametrize("nbeta", [9.0, (9.0,), "wbic"])
def test_one_level_is_refused(nbeta):
    with pytest.raises(InputError, match="two or more levels of nbeta for Exchange"):
        cr.sample(target(nbeta), cr.Exchange(), **SIZE)


def test_one_by_one_is_refused():
    with pytest.raises(InputError, match="layout='batched' for Exchange"):
        cr.sample(target(), cr.Exchange(), layout="sequential", **SIZE)


def test_memory_for_a_ladder_is_needed(monkeypatch):
    from crunode.sampling import run

    monkeypatch.setattr(run, "free_memory", lambda device: 1.0)
    with pytest.raises(InputError, match="a step of 3 rungs to fit the memory"):
        cr.sample(target(), cr.Exchange(cr.HMC(1e-2)), **SIZE)


@pytest.mark.parametrize("inner", [cr.SGLD(), None, cr.Exchange(), "HMC"])
def test_inner_kernels_need_a_test(inner):
    with pytest.raises(InputError, match="a kernel with a Metropolis test"):
        cr.Exchange(inner)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None])
def test_every(every):
    with pytest.raises(InputError, match="expected every"):
        cr.Exchange(every=every)


@pytest.mark.parametrize("metric", ["dense", "", True, 1])
def test_metric(metric):
    with pytest.raises(InputError, match="expected metric as None or 'diagonal'"):
        cr.HMC(metric=metric)


def test_levels_that_rounding_makes_equal_are_refused():
    with pytest.raises(InputError, match="differ by more than rounding"):
        ladder_rows(torch.tensor([1.0, 1.0 + 1e-12, 2.0]).float())


def test_steps_are_one_or_one_for_each_level():
    with pytest.raises(InputError, match="one step for each of 3 levels"):
        cr.sample(target(), cr.Exchange(cr.HMC((0.1, 0.2))), **SIZE)


def test_report_needs_swaps():
    draws = cr.sample(target(), cr.HMC(1e-2, leaps=1), chains=1, draws=5, warmup=0)
    with pytest.raises(InputError, match="draws made with Exchange"):
        cr.exchange_report(draws)


@pytest.mark.parametrize(
    ("ends", "swap"),
    [((2.0, 1.0), 0.35), ((1.0, 1.0), 0.35), ((0.0, 1.0), 0.35), ((1.0, 2.0), 0.95), ((1.0, 2.0), 0.1)],
)
def test_ladders_need_ends_in_order_and_a_rate(ends, swap):
    with pytest.raises(InputError, match="expected"):
        cr.ladder(target(None), *ends, swap=swap)


# Findings


def records(swap, replica):
    """Draws on two rungs with given records, shape (draw,)."""
    arrays = {
        "excess": np.zeros((2, len(swap))),
        "swap": np.stack([np.array(swap, float), np.full(len(swap), np.nan)]),
        "replica": np.stack([np.array(replica), 1 - np.array(replica)]),
    }
    return Draws(arrays, {}, np.array([1.0, 2.0]), {})


@pytest.mark.parametrize(
    ("swap", "replica", "codes"),
    [
        ([0.5] * 4, [0, 1, 0, 0], []),
        ([0.019] * 4, [0, 1, 0, 0], ["MC206"]),
        ([0.021] * 4, [0, 1, 0, 0], []),
        ([0.5] * 4, [0, 0, 1, 1], ["MC207"]),
        ([0.0] * 4, [0, 0, 0, 0], ["MC206", "MC207"]),
        ([np.nan] * 4, [0, 0, 0, 0], ["MC207"]),
    ],
)
def test_findings(swap, replica, codes):
    assert [f.code for f in exchange_findings(records(swap, replica))] == codes


def test_findings_reach_estimates_and_run_folders(tmp_path):
    land = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(30), n=1000)
    posterior = cr.Posterior(land, (1.0, 30.0, 60.0), cr.Gaussian(1.0))
    options = {"chains": 2, "draws": 60, "warmup": 30, "store": tmp_path / "run"}
    draws = cr.sample(posterior, cr.Exchange(cr.HMC(leaps=3)), **options)
    again = cr.sample(posterior, cr.Exchange(cr.HMC(leaps=3)), **options)
    assert {"MC206", "MC207"} <= {f.code for f in draws.findings} & {f.code for f in again.findings}
    estimate = cr.rlct(draws)
    assert {"MC206", "MC207"} <= {f.code for f in estimate.findings}
    assert not estimate.ok


def test_lengths_and_rates_are_inverse():
    for rate in (0.01, 0.2, 0.35, 0.9):
        assert rate_of(separation(rate)) == pytest.approx(rate)
