"""Which level is meant, and from which numbers on chains are said not to have got around."""

import numpy as np
import pytest

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.chains import chain_findings, chosen_level
from crunode.sampling.diagnostics import ess, split_rhat

BARE = Draws({"excess": np.zeros((2, 5))}, {}, np.array([3.0, 3.0]), {})


def apart(low, high):
    """Chains that stand apart so that R-hat lies between two numbers."""
    noise = np.random.default_rng(0).standard_normal((4, 1000))
    for off in np.linspace(0, 3, 301):
        x = noise + off * np.arange(4)[:, None]
        if low < split_rhat(x) < high:
            return x
    raise AssertionError("no such chains")


def few(low, high):
    """Alike chains of few independent draws."""
    for draws in range(5, 400):
        x = np.random.default_rng(draws).standard_normal((4, draws))
        if low < ess(x) < high and split_rhat(x) < 1.04:
            return x
    raise AssertionError("no such chains")


def codes(losses):
    return [f.code for f in chain_findings(BARE, losses)]


def test_chains_may_differ_by_an_rhat_of_five_percent():
    assert codes({3.0: apart(1.03, 1.05)}) == []
    assert "MC201" in codes({3.0: apart(1.05, 1.07)})


def test_a_hundred_independent_draws_are_enough():
    assert codes({3.0: few(101, 115)}) == []
    assert codes({3.0: few(60, 99)}) == ["MC202"]


def test_the_worst_level_is_named():
    good, bad, worse = few(150, 300), apart(1.1, 1.2), apart(1.4, 1.6)
    found = list(chain_findings(BARE, {1.0: good, 2.0: bad, 4.0: worse, 8.0: bad}))
    assert f"R-hat {split_rhat(worse):.3f} (limit 1.05) at nbeta 4" in found[0].message
    assert f"{ess(worse):.0f} at nbeta 4" in found[1].message
    broken = np.where(np.arange(1000) == 3, np.nan, good[:, :1].repeat(1000, 1))
    found = list(chain_findings(BARE, {1.0: good, 2.0: worse, 4.0: broken}))
    assert [f.code for f in found] == ["MC201", "MC202"]
    assert all("at nbeta 4" in f.message for f in found)


def test_what_was_noticed_while_sampling_is_kept_but_for_the_coefficient():
    kept, left = cr.Finding.of("MC204", "one chain"), cr.Finding.of("LLC101", "negative")
    draws = Draws(BARE.arrays, {}, BARE.nbeta, {}, findings=(kept, left))
    assert list(chain_findings(draws, {3.0: few(150, 300)})) == [kept]


def test_the_only_level_is_meant_unless_one_is_given():
    two = Draws({"excess": np.zeros((2, 5))}, {}, np.array([1.0, 2.0]), {})
    assert chosen_level(BARE, None) == 3.0
    assert chosen_level(two, 2) == 2.0
    with pytest.raises(cr.InputError, match="levels"):
        chosen_level(two, None)
    with pytest.raises(cr.InputError, match="sampled nbeta"):
        chosen_level(two, 3.0)
    with pytest.raises(cr.InputError, match="expected Draws"):
        chosen_level(3.0, None)
