"""Ranks of derivatives of sums of terms v ⊗ x, against dense matrices, and networks that have them."""

import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from crunode.exact.quadratic import quadratic_multi_output, quadratic_single_output, stage_two
from crunode.exact.secants import search_rank, secant_bound, tangent_rank, veronese_features, veronese_rank


def dense(terms, weights, still=()):
    """The rank of all e_i ⊗ x and v ⊗ t, by singular values."""
    p = len(weights[0])
    rows = [np.kron(e, x) for x in [x for x, _ in terms] + list(still) for e in np.eye(p)]
    rows += [np.kron(v, t) for v, (_, tangents) in zip(weights, terms, strict=True) for t in tangents]
    return int(np.linalg.matrix_rank(np.array(rows, dtype=float)))


def squares(rng, d, count):
    """w wᵀ at random w, and its derivatives in all directions, written out."""
    upper = np.triu_indices(d)
    found = []
    for w in rng.integers(-9, 10, (count, d)):
        w = np.where(w == 0, 1, w)
        along = [np.outer(e, w) + np.outer(w, e) for e in np.eye(d, dtype=int)]
        found.append((np.outer(w, w)[upper].tolist(), [a[upper].tolist() for a in along]))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_tangent_ranks_are_those_of_dense_matrices(seed):
    rng = np.random.default_rng(seed)
    size, p = 6, int(rng.integers(1, 4))
    count, tangents, idle = (int(k) for k in rng.integers(1, 4, 3))
    terms = [(rng.integers(-4, 5, size).tolist(), rng.integers(-4, 5, (tangents, size)).tolist()) for _ in range(count)]
    if seed % 2:  # a feature that is a multiple of another
        terms.append(([3 * x for x in terms[0][0]], rng.integers(-4, 5, (tangents, size)).tolist()))
    still = rng.integers(-4, 5, (idle, size)).tolist()
    weights = rng.integers(1, 9, (len(terms), p)).tolist()
    assert tangent_rank(terms, p, weights=weights) == dense(terms, weights)
    assert tangent_rank(terms, p, weights=weights, still=still) == dense(terms, weights, still)
    generic = rng.normal(size=(len(terms), p)).tolist()
    assert tangent_rank(terms, p, still=still) == dense(terms, generic, still)
    for exponent in (31, 61):
        assert tangent_rank(terms, p, weights=weights, still=still, exponent=exponent) == dense(terms, weights, still)


def test_equal_output_weights_lower_the_rank_of_parallel_tangents():
    terms = [([1, 0, 0, 0], [[0, 0, 1, 0]]), ([0, 1, 0, 0], [[0, 0, 1, 0]])]
    assert tangent_rank(terms, 2, weights=[[1, 2], [2, 4]]) == 5
    assert tangent_rank(terms, 2, weights=[[1, 2], [2, 5]]) == 6


@pytest.mark.parametrize("d", [2, 3, 4])
def test_features_are_squares_with_their_derivatives(d):
    for feature, tangents in veronese_features(d, 3)(random.Random(1), 31):
        full = np.zeros((d, d), int)
        full[np.triu_indices(d)] = feature
        w = np.sqrt(np.diag(full)).round().astype(int)
        assert (full[np.triu_indices(d)] == np.outer(w, w)[np.triu_indices(d)]).all()
        assert ((w >= 1) & (w < 31)).all()
        assert len(tangents) == d - 1
        for k, tangent in enumerate(tangents, start=1):
            e = np.eye(d, dtype=int)[k]
            assert tangent == (np.outer(e, w) + np.outer(w, e))[np.triu_indices(d)].tolist()


@pytest.mark.parametrize("d", [1, 2, 3, 4])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 7])
def test_generic_ranks_are_those_of_random_dense_matrices(d, p):
    rng = np.random.default_rng(100 * d + p)
    for k in range(1, d * (d + 1) // 2 + 2):
        exact = max(dense(squares(rng, d, k), rng.normal(size=(k, p))) for _ in range(2))
        found = veronese_rank(d, p, k)
        assert found.value == exact, (d, p, k)
        assert found.proven
        assert exact <= secant_bound(p, k, d, d * (d + 1) // 2)
        known = quadratic_multi_output(d, p, k)
        assert (known.value, known.multiplicity) == (Fraction(exact, 2), 1)
        assert known.details["rank"] == exact


def test_bounds_count_parameters_spans_and_matrices_of_low_rank():
    for p, k, n, span in itertools.product((1, 2, 4), (1, 2, 3, 6), (2, 3), (3, 5)):
        bounds = [k * (n + p - 1), p * span]
        if k <= min(p, span):
            bounds.append(k * (p + span - k))
        assert secant_bound(p, k, n, span) == min(bounds)


@pytest.mark.parametrize(("d", "p", "k"), [(2, 2, 3), (3, 2, 4), (3, 3, 5), (4, 2, 6)])
def test_stages_have_the_rank_of_active_units_and_of_the_others_output_weights(d, p, k):
    rng = np.random.default_rng(d + p + k)
    full = d * (d + 1) // 2
    for active in range(k + 1):
        units = squares(rng, d, k)
        still = [x for x, _ in units[active:]]
        rank = dense(units[:active], rng.normal(size=(active, p)), still) if active else p * min(k, full)
        count = (dense(units[:active], rng.normal(size=(active, p))) if active else 0) + p * (k - active)
        found = stage_two(d, p, k, active)
        assert found.details["rank"] == rank
        assert found.details["count"] == count
        if rank in (count, p * full):
            assert (found.value, found.status, found.multiplicity) == (Fraction(rank, 2), "exact", 1)
        else:
            assert (found.status, found.bounds) == ("interval", (Fraction(rank, 2), Fraction(count, 2)))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_one_output_with_biases_has_the_rank_of_its_derivative(d, k):
    """f = Σ v (w·x + b)² + c by the coefficients of x xᵀ, x and 1."""
    rng = np.random.default_rng(10 * d + k)
    rows = [np.eye((d + 1) * (d + 2) // 2)[-1]]  # of c
    upper = np.triu_indices(d + 1)
    for _ in range(k):
        w, v = rng.normal(size=d + 1), rng.normal()  # the last entry is the bias
        rows.append(np.outer(w, w)[upper])
        rows += [v * (np.outer(e, w) + np.outer(w, e))[upper] for e in np.eye(d + 1)]
    rank = np.linalg.matrix_rank(np.array(rows))
    found = quadratic_single_output(d, k)
    assert (found.value, found.details["rank"], found.multiplicity) == (Fraction(int(rank), 2), rank, 1)
    assert f"rank {min(d, k)} " in found.hypotheses[1]
    assert ("G.1" in found.citation) == (k >= d)


def test_a_search_stops_at_its_bound_and_at_sizes_beyond_seconds():
    calls = []

    def make(draw, prime):
        calls.append(prime)
        return veronese_features(3, 2)(draw, prime)

    sizes = {"outputs": 2, "terms": 2, "tangents": 2, "span": 6}
    assert search_rank(make, **sizes, bound=8) == 8
    assert len(calls) == 1
    assert search_rank(make, **sizes, bound=9) == 8
    assert len(calls) == 3
    assert len(set(calls)) == 2
    assert search_rank(make, **sizes, bound=9, inactive=1) == dense(
        squares(np.random.default_rng(0), 3, 1), [[1.0, 2.0]], [x for x, _ in squares(np.random.default_rng(1), 3, 1)]
    )
    assert search_rank(make, outputs=400, terms=400, tangents=30, span=900, bound=1) is None


def test_ranks_that_rest_on_a_conjecture_say_so():
    assert veronese_rank(10, 100, 50).proven
    far = veronese_rank(20, 50, 90)
    assert not far.proven
    assert far.value == min(90 * (20 + 50 - 1), 50 * 210)
    assert quadratic_multi_output(20, 50, 90).status == "conditional"
    assert quadratic_multi_output(10, 100, 50).status == "exact"
