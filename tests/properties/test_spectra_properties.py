"""What holds for every law of the form R(z) = a + σ²z + Σ r t/(1 − t z)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.spectra import Law

number = st.floats(-3, 3, allow_nan=False)
rate = st.floats(0.01, 5)
jump = st.floats(0.05, 5).flatmap(lambda t: st.sampled_from([t, -t]))


@st.composite
def laws(draw):
    parts = draw(st.lists(st.tuples(rate, jump), min_size=1, max_size=4))
    variance = draw(st.sampled_from([0.0, 0.01, 1.0]))
    return Law(draw(number), variance, tuple(r for r, _ in parts), tuple(t for _, t in parts))


def around(law, points=60):
    ends = [*law.edges.ravel(), *(at for at, _ in law.atoms)]
    return np.linspace(min(ends) - 1, max(ends) + 1, points)


@settings(max_examples=40, deadline=None)
@given(laws())
def test_distribution_rises_from_zero_to_one(law):
    x = around(law)
    found = law.cdf(x)
    assert found[0] == 0
    assert found[-1] == pytest.approx(1, abs=1e-12)
    assert np.diff(found).min() > -1e-9
    assert law.masses.sum() + sum(mass for _, mass in law.atoms) == pytest.approx(1, abs=1e-9)
    assert (law.masses > -1e-9).all()
    assert (np.diff(law.edges.ravel()) > -1e-9).all()


@settings(max_examples=40, deadline=None)
@given(laws(), laws())
def test_free_addition_adds_cumulants_and_commutes(first, second):
    both = first + second
    for k in (1, 2, 3, 4):
        parts = first.cumulant(k), second.cumulant(k)
        assert both.cumulant(k) == pytest.approx(sum(parts), rel=1e-9, abs=1e-9 * sum(map(abs, parts)))
    x = around(both, 20)
    np.testing.assert_allclose((second + first).cdf(x), both.cdf(x), atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(laws(), st.sampled_from([-2.0, -0.5, 0.1, 3.0]), number)
def test_scaling_and_shift_move_edges_and_densities(law, factor, shift):
    moved = factor * law + shift
    expected = np.sort((factor * law.edges + shift).ravel())
    np.testing.assert_allclose(moved.edges.ravel(), expected, atol=1e-8 * (1 + math.fabs(factor)))
    x = around(law, 20)
    np.testing.assert_allclose(moved.density(factor * x + shift) * abs(factor), law.density(x), atol=1e-5)
