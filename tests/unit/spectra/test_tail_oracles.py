"""Tails of a power law against closed forms, a search over all starts and scipy."""

import math

import numpy as np
import pytest

from crunode.errors import InputError
from crunode.spectra import tail_exponent, tails


def pareto(count, exponent, seed=0, low=1.0):
    return np.sort(low * (1 - np.random.default_rng(seed).random(count)) ** (-1 / (exponent - 1)))


def hill(tail, low):
    """The exponent of greatest likelihood."""
    return 1 + len(tail) / np.log(tail / low).sum()


def apart(tail, low):
    """Distance of a tail from its power law."""
    stats = pytest.importorskip("scipy.stats")
    return stats.kstest(tail, stats.pareto(hill(tail, low) - 1, scale=low).cdf).statistic


def codes(fit):
    return [f.code for f in fit.exponent.findings]


def test_given_start_has_the_likelihood_estimate_and_its_error():
    drawn = pareto(80, 3.0)
    found = tail_exponent(drawn, 1.25)
    tail = drawn[drawn >= 1.25]
    assert (found.start, found.count) == (1.25, len(tail))
    assert found.exponent.value == pytest.approx(hill(tail, 1.25), rel=1e-12)
    assert found.exponent.se == pytest.approx((hill(tail, 1.25) - 1) / math.sqrt(len(tail)), rel=1e-12)
    assert found.distance == pytest.approx(apart(tail, 1.25), rel=1e-9)
    assert found.exponent.spec == {"start": 1.25, "n": len(tail)}


def test_statistic_is_vuongs():
    stats = pytest.importorskip("scipy.stats")
    drawn = pareto(60, 2.5, seed=3)
    found = tail_exponent(drawn, 1.0)
    power = stats.pareto(hill(drawn, 1.0) - 1).logpdf(drawn)
    fast = stats.expon(1.0, (drawn - 1.0).mean()).logpdf(drawn)
    gaps = power - fast
    assert found.against_exponential == pytest.approx(gaps.sum() / math.sqrt(60) / gaps.std(), rel=1e-9)


def test_best_start_is_that_of_a_search_over_all():
    drawn = np.concatenate([pareto(30, 2.5, seed=1), np.random.default_rng(2).random(30)])
    found = tail_exponent(drawn)
    drawn = np.sort(drawn)
    distances = [apart(drawn[k:], drawn[k]) for k in range(51)]
    best = int(np.argmin(distances))
    assert found.distance == pytest.approx(distances[best], rel=1e-9)
    assert found.start == drawn[best]
    assert found.count == 60 - best
    assert found.exponent.value == pytest.approx(hill(drawn[best:], drawn[best]), rel=1e-12)


def test_searched_start_has_the_spread_over_a_hundred_resamples(monkeypatch):
    drawn, exponents, best = pareto(40, 2.5, seed=4), [], tails._best

    def noted(values):
        exponents.append(best(values)[1])
        return best(values)

    monkeypatch.setattr(tails, "_best", noted)
    found = tail_exponent(drawn)
    assert len(exponents) == 1 + 100
    assert found.exponent.value == exponents[0]
    assert found.exponent.se == pytest.approx(np.std(exponents[1:], ddof=1), rel=1e-12)


def test_ten_eigenvalues_are_a_tail_and_nine_are_none():
    rising = np.arange(1.0, 11.0)
    assert tail_exponent(rising, 1.0).count == 10
    assert tail_exponent(rising).count == 10
    with pytest.raises(InputError, match="at least 10"):
        tail_exponent(rising, 1.5)
    with pytest.raises(InputError, match="at least 10"):
        tail_exponent(rising - 1)
    with pytest.raises(InputError, match="different size"):
        tail_exponent(np.full(12, 2.0))


def test_fewer_than_fifty_eigenvalues_are_few():
    drawn = pareto(50, 2.0, seed=5)
    assert "SPEC1004" not in codes(tail_exponent(drawn, drawn[0]))
    few = tail_exponent(drawn, drawn[1])
    assert codes(few)[-1] == "SPEC1004"
    assert few.count == 49


def test_a_tail_is_doubted_unless_it_is_better_at_five_percent():
    normal = pytest.importorskip("scipy.stats").norm.isf(0.05)
    seen = set()
    for seed in range(40):
        found = tail_exponent(pareto(60, 2.6, seed=seed), 1.0)
        doubted = "SPEC1003" in codes(found)
        assert doubted == (found.against_exponential < normal)
        seen.add(doubted)
    assert seen == {True, False}


def test_unit_of_the_eigenvalues_does_not_matter():
    drawn = pareto(70, 2.2, seed=6)
    one, other = tail_exponent(drawn), tail_exponent(1e-3 * drawn)
    assert other.exponent.value == pytest.approx(one.exponent.value, rel=1e-9)
    assert other.exponent.se == pytest.approx(one.exponent.se, rel=1e-6)
    assert other.start == pytest.approx(1e-3 * one.start)
    assert other.against_exponential == pytest.approx(one.against_exponential, rel=1e-9)
