"""What holds for the local coefficient of every deep linear network, at every point of the fiber."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from crunode.exact.linear_networks import deep_linear, reduced_rank_local
from crunode.exact.local_linear import deep_linear_local, deep_linear_local_at


@st.composite
def decompositions(draw, largest=4):
    """How often each interval occurs, for two to seven maps."""
    length = draw(st.integers(2, 7))
    names = [(i, j) for i in range(length + 1) for j in range(i, length + 1)]
    counts = draw(st.dictionaries(st.sampled_from(names), st.integers(1, largest), min_size=1, max_size=9))
    for at in range(length + 1):
        if not any(i <= at <= j for i, j in counts):
            counts[at, at] = 1
    return length, counts


def value(length, counts):
    widths = [sum(n for (i, j), n in counts.items() if i <= at <= j) for at in range(length + 1)]
    ranks = [
        [sum(n for (i, j), n in counts.items() if i <= s and t <= j) for t in range(s + 1, length + 1)]
        for s in range(length)
    ]
    return widths, ranks, deep_linear_local(widths, ranks)


@given(decompositions())
def test_bounds(chain):
    widths, ranks, found = value(*chain)
    parameters = sum(a * b for a, b in pairwise(widths))
    assert 0 < found.value <= Fraction(parameters, 2)
    assert Fraction(found.details["jacobian_rank"], 2) <= found.value
    assert found.value <= Fraction(widths[0] * widths[-1], 2)
    rank = ranks[0][-1]
    worst = deep_linear_local(widths, [[rank] * len(row) for row in ranks])
    assert worst.value <= found.value
    if worst.value == found.value and found.multiplicity is not None:
        assert found.multiplicity <= worst.multiplicity


@given(decompositions())
def test_transposing_changes_nothing(chain):
    length, counts = chain
    turned = {(length - j, length - i): n for (i, j), n in counts.items()}
    one, other = value(length, counts)[2], value(length, turned)[2]
    assert (one.value, one.multiplicity) == (other.value, other.multiplicity)
    assert one.details["jacobian_rank"] == other.details["jacobian_rank"]


@given(decompositions(), st.integers(1, 3))
def test_a_direction_that_passes_all_layers_adds_its_regular_part(chain, more):
    length, counts = chain
    widths, ranks, before = value(length, counts)
    longer = {**counts, (0, length): counts.get((0, length), 0) + more}
    after = value(length, longer)[2]
    rank = ranks[0][-1]
    fixed = (rank + more) * (widths[0] + widths[-1] + 2 * more) - (rank + more) ** 2
    fixed -= rank * (widths[0] + widths[-1]) - rank**2
    assert after.value - before.value == Fraction(fixed, 2)
    assert after.multiplicity == before.multiplicity


@given(decompositions(), st.data())
def test_less_degenerate_points_have_no_smaller_coefficient(chain, data):
    """Joining [a, b] and [c, d] with a < c ≤ b + 1 ≤ d into [a, d] and [c, b] leads to a point nearby."""
    length, counts = chain
    pairs = [
        (left, right)
        for left in counts
        for right in counts
        if left[0] < right[0] <= left[1] + 1 <= right[1] and (left[0], right[1]) != (0, length)
    ]
    assume(pairs)
    (a, b), (c, d) = data.draw(st.sampled_from(pairs))
    near = dict(counts)
    for name, change in (((a, b), -1), ((c, d), -1), ((a, d), 1), ((c, b), 1)):
        if name[0] <= name[1]:
            near[name] = near.get(name, 0) + change
    special, general = value(length, counts)[2], value(length, near)[2]
    assert special.value <= general.value
    assert special.details["jacobian_rank"] <= general.details["jacobian_rank"]
    if special.value == general.value and None not in (special.multiplicity, general.multiplicity):
        assert general.multiplicity <= special.multiplicity


@given(decompositions(largest=2), st.randoms(use_true_random=False))
def test_weights_give_the_value_of_their_ranks(chain, draw):
    length, counts = chain
    basis = [[] for _ in range(length + 1)]
    for (i, j), n in counts.items():
        for copy in range(n):
            for at in range(i, j + 1):
                basis[at].append((i, j, copy))
    for place in basis:
        draw.shuffle(place)
    weights = [[[int(a == b) for b in basis[s + 1]] for a in basis[s]] for s in range(length)]
    assert deep_linear_local_at(weights) == value(length, counts)[2]


@given(st.lists(st.integers(1, 40), min_size=2, max_size=9), st.data(), st.booleans())
def test_most_singular_point_has_the_global_value(widths, data, bias):
    rank = data.draw(st.integers(0, min(widths)))
    local = deep_linear_local(widths, [[rank] * (len(widths) - 1 - s) for s in range(len(widths) - 1)], bias)
    everywhere = deep_linear(widths, rank, bias)
    assert (local.value, local.multiplicity) == (everywhere.value, everywhere.multiplicity)


@given(st.tuples(*[st.integers(0, 6)] * 6))
def test_two_layers_agree_with_reduced_rank_regression(counts):
    names = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    assume(all(sum(n for (i, j), n in zip(names, counts, strict=True) if i <= at <= j) for at in range(3)))
    (out, hidden, into), ranks, found = value(2, dict(zip(names, counts, strict=True)))
    other = reduced_rank_local(
        into, hidden, out, rank=ranks[0][1], rank_out_factor=ranks[0][0], rank_in_factor=ranks[1][0]
    )
    assert (found.value, found.multiplicity) == (other.value, other.multiplicity)
