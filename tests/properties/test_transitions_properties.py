import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crunode.training.schedules import Every, Steps, log_spaced
from crunode.training.transitions import find_transitions

SERIES = st.integers(6, 14).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(-100, 100), min_size=n, max_size=n),
        st.lists(st.floats(0.01, 10), min_size=n, max_size=n),
        st.lists(st.integers(1, 50), min_size=n, max_size=n),
    )
)


@settings(max_examples=25, deadline=None)
@given(SERIES)
def test_what_is_found_fits_together(given_series):
    values, errors, gaps = given_series
    steps = np.cumsum(gaps).tolist()
    found = find_transitions(steps, values, errors)
    assert len(found.segments) == len(found) + 1
    assert [s.start for s in found.segments[1:]] == [c.step for c in found.changes]
    assert [s.stop for s in found.segments[:-1]] == [c.previous for c in found.changes]
    assert sum(s.points for s in found.segments) == len(values)
    assert all(c.low <= c.previous < c.step <= c.high and 0 < c.p_value <= 1 for c in found.changes)
    kinds = [point.kind for point in found.critical]
    assert all(a != b for a, b in itertools.pairwise(kinds))  # maxima and minima take turns


@settings(max_examples=15, deadline=None)
@given(SERIES, st.floats(-50, 50), st.sampled_from([0.125, 2.0, 64.0]))
def test_units_do_not_matter(given_series, shift, factor):
    values, errors, gaps = given_series
    assume(np.ptp(values) > 1e-3)
    steps = np.cumsum(gaps).tolist()
    one = find_transitions(steps, values, errors)
    other = find_transitions(steps, [shift + factor * v for v in values], [factor * e for e in errors])
    assert one.kind == other.kind
    assert [c.step for c in one.changes] == [c.step for c in other.changes]


@given(st.integers(2, 60), st.integers(0, 5), st.integers(1, 10_000))
def test_log_spaced_steps(count, start, more):
    found = log_spaced(count, start=start, stop=start + count - 1 + more).steps
    assert len(set(found)) == count == len(found)
    assert found[0] == start
    assert found[-1] == start + count - 1 + more
    assert list(found) == sorted(found)


LISTS = st.sets(st.integers(0, 60), min_size=1).map(lambda steps: Steps(tuple(sorted(steps))))


@given(st.one_of(LISTS, st.builds(Every, st.integers(1, 20))), st.integers(0, 60))
def test_a_schedule_cut_anywhere_gives_the_same_steps(schedule, cut):
    """A training that is killed after a step and goes on from the last measured one misses nothing."""
    whole, known = [], -1
    for step in range(61):
        if schedule.due(max(known, step - 1), step):
            whole.append(step)
            known = step
    parts = [step for step in whole if step <= cut]
    known, called = max(parts, default=-1), -1
    for step in range(61):
        before, called = max(known, called), step
        if step > known and schedule.due(before, step):
            parts.append(step)
            known = step
    assert parts == whole
