"""Ladders whose swap rates and lengths are known: which rounds are run, where rungs go, and when it is enough."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode import HMC, Exchange, Gaussian, Landscape, Posterior, sample_each
from crunode.core.execute import Serial
from crunode.errors import EstimationError
from crunode.sampling import ladders
from crunode.sampling.evaluate import is_narrow
from crunode.sampling.ladders import ladder, rate_of, separation
from crunode.sampling.layout import step_memory


def gaussian(dim=4):
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(dim, dtype=torch.float64), n=1000)
    return Posterior(land, prior=Gaussian(1e-3))


def measured(monkeypatch, rate):
    """Let rates be a function of two neighbours; what was measured, round by round."""
    seen = []

    def measure(posterior, levels, exchange, longer, seed):
        rates = [rate(a, b) for a, b in itertools.pairwise(levels)]
        seen.append((levels, longer))
        return rates, [separation(r) for r in rates]

    monkeypatch.setattr(ladders, "_measure", measure)
    return seen


def test_lengths_of_a_quadratic_loss_are_those_of_its_logarithms(monkeypatch):
    # σ dt is √(d/2) d(log t): rungs in geometric progression, as many as the rate asks for.
    full = math.sqrt(4 / 2) * math.log(1000)
    seen = measured(monkeypatch, lambda a, b: rate_of(math.sqrt(4 / 2) * math.log(b / a)))
    levels = ladder(gaussian(), 1.0, 1000.0, swap=0.7)
    pairs = math.ceil(full / separation(0.7) - 0.25)
    np.testing.assert_allclose(levels, np.geomspace(1, 1000, pairs + 1), rtol=1e-6)
    assert levels == seen[-1][0]
    assert [longer for _, longer in seen[-2:]] == [1, 4]
    np.testing.assert_allclose(seen[0][0], np.geomspace(1, 1000, math.ceil(math.log(1000, 3)) + 1))


def test_levels_divide_lengths_evenly_from_wherever_they_begin(monkeypatch):
    # As hot as 10 to as cold as 1000 are 100 times colder, not 10000.
    seen = measured(monkeypatch, lambda a, b: rate_of(math.sqrt(4 / 2) * math.log(b / a)))
    ladder(gaussian(), 10.0, 1000.0)
    np.testing.assert_allclose(seen[0][0], np.geomspace(10, 1000, math.ceil(math.log(100, 3)) + 1))
    # Three times as long above 30 as below, for each factor: there, rungs are three times as dense in logarithms.
    monkeypatch.undo()

    def length(a, b):
        return 3 * math.log(max(b, 30) / max(a, 30)) + math.log(min(b, 30) / min(a, 30))

    seen = measured(monkeypatch, lambda a, b: rate_of(length(a, b)))
    levels = ladder(gaussian(), 1.0, 1000.0, swap=0.5)
    lengths = [length(a, b) for a, b in itertools.pairwise(levels)]
    assert min(map(rate_of, lengths)) >= 0.25
    assert len(lengths) <= math.ceil(sum(lengths) / separation(0.5)) + 1
    assert max(lengths) < 3 * min(lengths)


def spread_of(monkeypatch, rates, spreads):
    """What is measured of runs with these swap rates and deviations of the loss at each level."""
    levels = (1.0, 4.0, 20.0)

    class Run:
        def at(self, level):
            far = spreads[levels.index(level)]
            return {"excess": np.array([[-far, far]])}

    monkeypatch.setattr(ladders, "sample", lambda *_, **__: Run())
    monkeypatch.setattr(ladders, "exchange_report", lambda _: {"swap_rate": list(rates)})
    return ladders._measure(gaussian(), levels, Exchange(HMC()), 1, 0)


def test_lengths_are_those_of_rates_in_the_middle_and_of_deviations_elsewhere(monkeypatch):
    spreads = (0.5, 0.2, 0.1)
    between = [(1.0 * 0.5 + 4.0 * 0.2) / 2 * math.log(4), (4.0 * 0.2 + 20.0 * 0.1) / 2 * math.log(5)]
    found, lengths = spread_of(monkeypatch, (0.3, 0.95), spreads)
    assert found == [0.3, 0.95]
    assert lengths == pytest.approx([separation(0.3), between[1]])
    # A low rate is a lower bound, and so is a deviation: the larger counts, of rates from one percent up.
    _, lengths = spread_of(monkeypatch, (0.1, 0.0), spreads)
    assert separation(0.1) > between[0]
    assert lengths == pytest.approx([separation(0.1), separation(0.01)])
    _, lengths = spread_of(monkeypatch, (0.1, 0.0), (5.0, 2.0, 1.0))
    assert lengths == pytest.approx([10 * b for b in between])


def test_a_gap_that_no_rung_divides_gets_one_at_its_geometric_mean():
    levels = (1.0, 4.0, 9.0, 36.0)
    new = ladders._respaced(levels, [0.5, 0.05, 0.5], [1.0, 1.0, 1.0], 3)
    assert new == pytest.approx((1, 4, 6, 9, 36))
    new = ladders._respaced(levels, [0.5, 0.05, 0.5], [1.0, 1.0, 1.0], 6)  # divided already
    assert new == pytest.approx((1, 2, 4, 6, 9, 18, 36))
    assert ladders._respaced(levels, [0.5] * 3, [1.0, 0.0, 1.0], 2) == pytest.approx((1, 6, 36), rel=1e-5)


@pytest.mark.parametrize(("spare", "rounds"), [(0, 2), (1, 2), (2, 3)])
def test_one_rung_more_than_needed_is_kept_and_two_are_not(monkeypatch, spare, rounds):
    pairs = math.ceil(math.log(1000, 3))
    seen = []

    def measure(posterior, levels, exchange, longer, seed):
        seen.append(levels)
        lengths = [separation(0.35) * (pairs - spare) / pairs] * (len(levels) - 1)
        return [0.4] * len(lengths), lengths if len(lengths) == pairs else [separation(0.35)] * len(lengths)

    monkeypatch.setattr(ladders, "_measure", measure)
    assert len(ladder(gaussian(), 1.0, 1000.0)) == (pairs + 1 if spare < 2 else pairs + 1 - spare)
    assert len(seen) == rounds


@pytest.mark.parametrize(("swap", "rate", "good"), [(0.35, 0.18, True), (0.35, 0.17, False), (0.2, 0.14, False)])
def test_no_rate_may_be_below_half_of_what_was_asked_for_or_fifteen_percent(monkeypatch, swap, rate, good):
    lengths = {2: separation(swap)}

    def measure(posterior, levels, exchange, longer, seed):
        return [0.5] * (len(levels) - 2) + [rate], [lengths[2]] * (len(levels) - 1)

    monkeypatch.setattr(ladders, "_measure", measure)
    if good:
        assert len(ladder(gaussian(), 1.0, 100.0, swap=swap)) == 6
    else:
        with pytest.raises(EstimationError, match="no ladder"):
            ladder(gaussian(), 1.0, 100.0, swap=swap)


def test_a_gap_gets_a_rung_in_its_middle_until_there_are_too_many(monkeypatch):
    seen = measured(monkeypatch, lambda a, b: 0.01 if a < 7 < b else 0.5)
    with pytest.raises(EstimationError) as caught:
        ladder(gaussian(), 1.0, 100.0)
    first, second = seen[0][0], seen[1][0]
    assert len(seen) == 10
    (gap,) = [(a, b) for a, b in itertools.pairwise(first) if a < 7 < b]
    assert any(gap[0] < t < gap[1] for t in second)
    assert caught.value.partial[0] == pytest.approx(1)


def test_first_round_has_eighty_draws_of_four_chains_and_the_last_four_times_as_many(monkeypatch):
    runs, real = [], ladders.sample

    def counted(posterior, kernel, *, chains, draws, warmup, seed):
        runs.append((chains, draws, warmup))
        return real(posterior, kernel, chains=chains, draws=draws, warmup=warmup, seed=seed)

    monkeypatch.setattr(ladders, "sample", counted)
    levels = ladder(gaussian(), 1.0, 3.0, kernel=Exchange(HMC(leaps=2)))
    assert runs[0] == (4, 80, 60)
    assert runs[-1] == (4, 320, 240)
    assert (levels[0], levels[-1]) == (1.0, 3.0)


def test_rates_and_lengths_are_those_of_normal_losses():
    for length in (0.3, 1.0, 2.5):
        rate = rate_of(length)
        # Two normals of variance 1 that are apart by the length: the difference D has mean and half variance length².
        draws = np.random.default_rng(0).normal(length**2, math.sqrt(2) * length, 200_000)
        assert np.minimum(1, np.exp(-draws)).mean() == pytest.approx(rate, abs=0.005)
        assert separation(rate) == pytest.approx(length)


def test_examples_of_few_features_are_narrow():
    assert is_narrow(torch.zeros(10, 3), 0)
    assert is_narrow(torch.zeros(5, 10, 3), 1)
    assert not is_narrow(torch.zeros(10, 3), 1)
    assert not is_narrow(torch.zeros(5, 10, 3), 0)
    assert not is_narrow(torch.zeros(10, 1), 0)
    assert not is_narrow(torch.zeros(10, 1000), 0)
    assert not is_narrow(torch.zeros(10, 3, dtype=torch.int64), 0)


class Counted(Serial):
    """How many jobs there were."""

    def map(self, fn, jobs):
        self.jobs = list(jobs)
        return super().map(fn, self.jobs)


def test_groups_of_data_sets_take_half_of_the_memory(monkeypatch):
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    posts = [Posterior(Landscape(nn.Linear(2, 1), (x, x[:, :1]), "gaussian"), 20.0, Gaussian(1.0)) for _ in range(6)]
    land = posts[0].landscape
    each = 2 * (step_memory(land, 1, None) + 4 * (20 * 2 + 20))
    monkeypatch.setattr("crunode.sampling.each.enough_for_a_worker", lambda *_: 1 << 40)
    for sets, groups in ((3, 2), (2, 3), (1, 6)):
        monkeypatch.setattr("crunode.sampling.each.memory_class", lambda _, s=sets: 2 * each * s + 1)
        executor = Counted()
        sample_each(posts, HMC(step=0.01, leaps=1), chains=2, draws=4, warmup=0, executor=executor)
        assert len(executor.jobs) == groups
