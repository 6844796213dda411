import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crunode import exact
from crunode.exact import modular_rank

widths = st.lists(st.integers(1, 12), min_size=2, max_size=7)
SIZES = range(1, 7)


def pair(found):
    return found.value, found.multiplicity


def all_small():
    for m, h, n in itertools.product(SIZES, repeat=3):
        for r in range(min(m, h, n) + 1):
            yield m, h, n, r


def strata(m, h, n, r):
    """Ranks (b, a) of the factors that a product of rank r over hidden width h allows."""
    for b in range(r, min(n, h) + 1):
        for a in range(r, min(m, h) + 1):
            if a + b - h <= r:
                yield b, a


def test_two_layers_are_reduced_rank_regression():
    for m, h, n, r in all_small():
        assert pair(exact.deep_linear([n, h, m], r)) == pair(exact.reduced_rank(m, h, n, rank=r))


def test_least_local_coefficient_is_the_global_one():
    for m, h, n, r in all_small():
        found = [
            exact.reduced_rank_local(m, h, n, rank=r, rank_out_factor=b, rank_in_factor=a)
            for b, a in strata(m, h, n, r)
        ]
        assert pair(exact.strata(*found)) == pair(exact.reduced_rank(m, h, n, rank=r)), (m, h, n, r)


def test_local_coefficient_lies_between_half_the_jacobian_rank_and_half_the_dimension():
    for m, h, n in itertools.product(range(1, 4), repeat=3):
        for r in range(min(m, h, n) + 1):
            for b, a in strata(m, h, n, r):
                # B keeps the first b hidden units; A fills r of those and a − r others.
                units = [*range(r), *range(b, b + a - r)]
                outer = [[int(i == j and j < b) for j in range(h)] for i in range(n)]
                inner = [[int(i in units and units.index(i) == j) for j in range(m)] for i in range(h)]
                rows = [
                    [outer[i][k] * (j == t) for i in range(n) for j in range(m)] for k in range(h) for t in range(m)
                ] + [[(i == s) * inner[k][j] for i in range(n) for j in range(m)] for s in range(n) for k in range(h)]
                found = exact.reduced_rank_local(m, h, n, rank=r, rank_out_factor=b, rank_in_factor=a)
                assert modular_rank(rows) == found.details["jacobian_rank"]
                assert Fraction(found.details["jacobian_rank"], 2) <= found.value <= Fraction(h * (m + n), 2)
                assert pair(found) == pair(exact.deep_linear_local([n, h, m], [[b, r], [a]]))


@given(widths, st.data())
def test_order_of_widths_and_transposition_do_not_matter(sizes, data):
    rank = data.draw(st.integers(0, min(sizes)))
    found = pair(exact.deep_linear(sizes, rank))
    hidden = data.draw(st.permutations(sizes[1:-1]))
    assert pair(exact.deep_linear([sizes[0], *hidden, sizes[-1]], rank)) == found
    assert pair(exact.deep_linear(sizes[::-1], rank)) == found


@given(widths, st.data())
def test_deep_linear_is_monotone_in_rank_and_width(sizes, data):
    rank = data.draw(st.integers(0, min(sizes)))
    found = exact.deep_linear(sizes, rank).value
    if rank:
        assert exact.deep_linear(sizes, rank - 1).value <= found
    at = data.draw(st.integers(0, len(sizes) - 1))
    wider = [*sizes[:at], sizes[at] + 1, *sizes[at + 1 :]]
    assert found <= exact.deep_linear(wider, rank).value


@given(widths, st.data())
def test_more_layers_never_raise_the_coefficient_at_equal_width(sizes, data):
    rank = data.draw(st.integers(0, min(sizes)))
    deeper = [sizes[0], min(sizes[0], sizes[-1]), *sizes[1:]]
    assert exact.deep_linear(deeper, rank).value <= exact.deep_linear(sizes, rank).value


@given(widths, st.data(), st.booleans())
def test_deep_linear_lies_between_its_bounds(sizes, data, bias):
    rank = data.draw(st.integers(0, min(sizes)))
    found = exact.deep_linear(sizes, rank, bias)
    parameters = sum(a * b for a, b in itertools.pairwise(sizes)) + (sum(sizes[:-1]) if bias else 0)
    regular = Fraction(rank * (sizes[0] + sizes[-1] - rank) + (sizes[0] if bias else 0), 2)
    assert 0 < found.value <= Fraction(parameters, 2)
    # The manifold of maps of that rank is seen, and no more than all maps.
    assert regular <= found.value <= Fraction(sizes[0] * (sizes[-1] + bias), 2)
    assert 1 <= found.multiplicity <= parameters
    if rank == min(sizes):
        assert (found.value, found.multiplicity) == (regular, 1)


@given(st.integers(2, 30), st.integers(1, 40))
def test_square_networks_at_rank_zero_by_hand(width, depth):
    # All widths equal: S = (L+1)H over ℓ = L, so M = H + ⌈H/L⌉ and a = H − (⌈H/L⌉ − 1)L.
    step = -(-width // depth)
    a = width - (step - 1) * depth
    total, ceiling = (depth + 1) * width, width + step
    value = Fraction(ceiling * a + (ceiling - 1) * total - (depth + 1) * width * width, 4)
    assert pair(exact.deep_linear([width] * (depth + 1), 0)) == (value, a * (depth - a) + 1)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
def test_quadratic_networks_grow_with_every_size_up_to_their_bounds(dim, outputs, hidden):
    found = exact.quadratic_multi_output(dim, outputs, hidden).value
    assert 0 < found <= Fraction(min(hidden * (dim + outputs - 1), outputs * dim * (dim + 1) // 2), 2)
    assert found <= exact.quadratic_multi_output(dim, outputs, hidden + 1).value
    assert found <= exact.quadratic_multi_output(dim, outputs + 1, hidden).value
    assert found <= exact.quadratic_multi_output(dim + 1, outputs, hidden).value
    # Increments of secant varieties never grow.
    if hidden > 1:
        before, after = (exact.quadratic_multi_output(dim, outputs, hidden + i).value for i in (-1, 1))
        assert after - found <= found - before


@given(st.integers(1, 30), st.integers(1, 200), st.booleans())
def test_frozen_features_learn_no_more_than_free_ones(modulus, hidden, centred):
    lazy = exact.lazy_random_features(modulus, hidden, centred=centred).value
    bound = Fraction(modulus * (modulus**2 - centred), 2)
    assert lazy <= bound
    if modulus <= 4:
        assert lazy <= exact.quadratic_modular_addition(modulus, hidden, centred=centred).value <= bound


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), st.data())
def test_normal_crossings_follow_the_rule_for_products(powers, data):
    priors = data.draw(st.lists(st.integers(0, 5), min_size=len(powers), max_size=len(powers)))
    parts = [exact.normal_crossing([k], [h]) for k, h in zip(powers, priors, strict=True) if k]
    found = exact.normal_crossing(powers, priors)
    assert pair(found) == pair(exact.product_of(*parts))
    assert found.value > 0
    order = data.draw(st.permutations(range(len(powers))))
    assert pair(exact.normal_crossing([powers[i] for i in order], [priors[i] for i in order])) == pair(found)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.data())
def test_topic_models_lie_between_their_bounds(vocab, docs, topics, data):
    rank = data.draw(st.integers(1, min(vocab, docs, topics)))
    found = exact.lda(vocab, docs, topics, rank)
    parameters = topics * (vocab - 1) + docs * (topics - 1)
    assert Fraction(vocab - 1, 2) <= found.value <= Fraction(parameters, 2)
    assert found.value <= Fraction(docs * (vocab - 1), 2)
    if rank > 1:
        assert exact.lda(vocab, docs, topics, rank - 1).value <= found.value


@given(st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=6))
def test_linearised_does_not_depend_on_the_order_of_rows_or_columns(rows):
    found = exact.linearised(rows).value
    assert found <= Fraction(min(len(rows), 4), 2)
    assert exact.linearised(rows[::-1]).value == found
    assert exact.linearised([row[::-1] for row in rows]).value == found
    assert exact.linearised(list(map(list, zip(*rows, strict=True)))).value == found
    assert exact.linearised([[float(x) for x in row] for row in rows]).value == found


@pytest.mark.parametrize("params", [{"dim": 3}, {"dim": 7}])
def test_evaluate_is_the_function(params):
    assert exact.evaluate("regular", **params) == exact.regular(**params)
