import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crunode.sampling import diagnostics


@st.composite
def chains(draw):
    """Quarters of integers, so that the affine maps below are exact: many or few levels, slow or fast."""
    shape = draw(st.tuples(st.integers(1, 9), st.integers(4, 60)))
    levels = draw(st.sampled_from([1, 2, 3, 10, 400]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = rng.integers(-levels, levels + 1, shape)
    offset = draw(st.sampled_from([0, levels])) * np.arange(shape[0])[:, None]
    return ((np.cumsum(steps, axis=1) if draw(st.booleans()) else steps) + offset) / 4


VALUES = chains()
ANY = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=6), elements=st.floats())
SCALES = st.sampled_from([2.0**k for k in (-60, -3, -1, 1, 4, 80)])
SHIFTS = st.integers(-1000, 1000)

INVARIANT = [diagnostics.split_rhat, diagnostics.ess, diagnostics.ess_bulk, diagnostics.integrated_time]
SCALING = {diagnostics.mcse_mean: 1, diagnostics.mcse_variance: 2}
SCALARS = [*INVARIANT, *SCALING, diagnostics.drift]
each = pytest.mark.parametrize("function", SCALARS, ids=lambda f: f.__name__)


def close(value, power=0, tolerance=1e-6):
    return pytest.approx(value, rel=tolerance, abs=tolerance * (1.0 if power == 0 else 1e-300), nan_ok=True)


def smooth(x):
    """Whether no rule of the estimators (end of a sum, choice of a branch) hangs on the last bit."""
    return np.ptp(x, axis=1).min() > 0 and len(np.unique(x)) > 4


@each
@given(x=ANY)
def test_no_value_raises_or_warns(function, x):
    value = function(x)
    assert isinstance(value, float)
    if x.size and not np.isfinite(x).all():
        assert math.isnan(value)


@each
@given(x=VALUES, seed=st.integers(0, 99))
def test_order_of_chains_does_not_matter(function, x, seed):
    shuffled = np.random.default_rng(seed).permutation(x, axis=0)
    assert function(shuffled) == close(function(x))


@pytest.mark.parametrize("function", INVARIANT, ids=lambda f: f.__name__)
@given(x=VALUES, scale=SCALES, sign=st.sampled_from([-1, 1]))
def test_dimensionless_figures_do_not_depend_on_units(function, x, scale, sign):
    assert function(sign * scale * x) == close(function(x))


@pytest.mark.parametrize("function", [*INVARIANT, diagnostics.drift], ids=lambda f: f.__name__)
@given(x=VALUES, shift=SHIFTS)
def test_dimensionless_figures_do_not_depend_on_the_origin(function, x, shift):
    if smooth(x):
        assert function(x + shift) == close(function(x))


@pytest.mark.parametrize("function", SCALING, ids=lambda f: f.__name__)
@given(x=VALUES, scale=SCALES)
def test_errors_carry_the_units(function, x, scale):
    assert function(-scale * x) == pytest.approx(function(x) * scale ** SCALING[function], rel=1e-6, abs=0)


@given(x=VALUES, scale=SCALES)
def test_drift_changes_sign_with_the_values(x, scale):
    score = diagnostics.drift(x)
    assert diagnostics.drift(scale * x) == close(score)
    assert diagnostics.drift(-x) == close(-score)


@given(x=VALUES)
def test_rhat_is_at_least_about_one(x):
    assert diagnostics.split_rhat(x) >= math.sqrt(1 - 1 / (x.shape[1] // 2)) - 1e-12


@given(x=VALUES)
def test_ess_is_positive_and_bounded(x):
    size = len(x) * (x.shape[1] // 2 * 2)
    for function in (diagnostics.ess, diagnostics.ess_bulk):
        assert 0 < function(x) <= max(size, size * math.log10(size)) * (1 + 1e-12)


@given(x=VALUES)
def test_bulk_figures_see_only_ranks(x):
    assert diagnostics.ess_bulk(np.arctan(x / 10)) == diagnostics.ess_bulk(x)


@given(x=VALUES)
def test_error_of_the_mean_is_at_least_that_of_the_chain_means(x):
    if len(x) > 1:
        spread = x.mean(axis=1).std(ddof=1) / math.sqrt(len(x))
        assert diagnostics.mcse_mean(x) >= spread * (1 - 1e-9) - 1e-12
