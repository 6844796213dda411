"""What values say of how they were found, and where floating point draws its lines."""

from fractions import Fraction

import pytest

from crunode import exact
from crunode.errors import InputError
from crunode.exact.algebra.polynomials import Polynomial
from crunode.exact.algebra.splitting import split_quadratic
from crunode.exact.algebra.torus import crossing_without_tangency, has_zero
from crunode.exact.local_linear import partial_ranks
from crunode.exact.rank import numerical_rank
from crunode.exact.result import LearningCoefficient
from crunode.exact.secants import search_rank, veronese_features


def test_ranks_and_arguments_are_under_their_own_names():
    whole = exact.linearised([[1, 2], [3, 4]]).details
    assert (whole["rank"], whole["exact_arithmetic"], whole["gap"]) == (2, True, None)
    rounded = exact.linearised([[0.1, 0.2], [0.2, 0.4]]).details
    assert (rounded["rank"], rounded["exact_arithmetic"]) == (1, False)
    assert rounded["gap"] > 1e4
    known = exact.quadratic_multi_output(4, 3, 5)
    assert known.details["rank"] == 2 * known.value == 29
    assert "Ottaviani" in known.details["rank_by"]
    added = exact.quadratic_modular_addition(5, 12, centred=True)
    assert added.details["rank"] == 2 * added.value == 120
    assert isinstance(added.details["rank_by"], str)
    assert (added.details["examples"], added.details["data_rank"]) == (25, 9)


def test_a_count_above_the_rank_is_an_upper_bound():
    found = exact.stage_two(4, 3, hidden=6, effective_width=2)
    assert found.details["count"] == 2 * (4 + 3 - 1) + 3 * 4
    assert found.details["rank"] == 24 == 2 * found.value
    seen = 0
    for d in (2, 3, 4):
        for k in range(2, d * (d + 1) // 2):
            for active in range(1, k):
                found = exact.stage_two(d, 4, hidden=k, effective_width=active)
                rank, count = found.details["rank"], found.details["count"]
                assert rank <= min(count, 4 * d * (d + 1) // 2)
                assert found.bounds[0] == Fraction(rank, 2)
                assert found.bounds[1] == (found.bounds[0] if rank in (count, 2 * d * (d + 1)) else Fraction(count, 2))
                seen += rank < min(count, 2 * d * (d + 1))
    assert seen


def test_a_group_of_the_relu_network_has_outputs_hidden_units_and_a_rank_of_its_own():
    group = {"outputs": 5, "hidden": 3, "rank": 2}
    one = exact.relu_three_layer(3, [group])
    plain = exact.deep_linear([5, 3, 4], 2)
    assert (one.value, one.multiplicity) == (plain.value, plain.multiplicity)


def test_a_curve_shows_the_order_and_the_jacobian_of_its_divisors():
    # The cusp (x − y)² = y³ is resolved by weights (3, 2): order 6, twice for the square, and Jacobian 3 + 2.
    found = exact.polynomial("((x-y)**2-y**3)**2")
    assert found.value == Fraction(5, 12)
    rows = [(int(row["order"]), int(row["jacobian"])) for row in found.details["divisors"]]
    assert (12, 5) in rows
    assert min(Fraction(cost, order) for order, cost in rows) == found.value


def test_a_bound_without_a_lower_one_begins_at_zero():
    assert LearningCoefficient.at_most(3, citation="").bounds == (0, 3)


def diagonal_pivots(*sizes):
    """A matrix whose elimination has these pivots: ones, and the sizes added along the diagonal."""
    return [[1.0 + (size if i == j else 0.0) for j in range(len(sizes) + 1)] for i, size in enumerate([0.0, *sizes])]


def test_one_drop_by_more_than_ten_thousand_into_the_noise_of_single_precision_decides():
    eps = 2.0**-23
    assert numerical_rank(diagonal_pivots(0.01, 0.01 / 15_000)).rank == 2
    assert numerical_rank(diagonal_pivots(0.002, 0.002 / 7_000)).rank == 3  # no drop at all
    assert numerical_rank(diagonal_pivots(4 * eps)).rank == 1
    assert numerical_rank(diagonal_pivots(16 * eps)).rank is None
    assert numerical_rank(diagonal_pivots(16 * eps), noise=3e-6).rank == 1
    found = numerical_rank(diagonal_pivots(0.01, 1e-8))
    assert found.gap == pytest.approx(1e6, rel=0.1)
    assert (found.low, found.high) == (2, 2)


def test_pivots_near_the_tolerance_leave_local_ranks_open():
    def at(size, **options):
        return exact.deep_linear_local_at([[[1.0, 0.0], [0.0, size]], [[0.0, 0.0], [0.0, 0.0]]], **options).value

    full, less = (exact.deep_linear_local([2, 2, 2], [[r, 0], [0]]).value for r in (2, 1))
    assert at(0.9e-8) == less != full == at(1.1e-5)
    for size in (1.1e-8, 0.9e-5):
        with pytest.raises(InputError, match="clear rank"):
            at(size)
    assert at(0.9e-5, tolerance=1e-4) == less
    assert at(1.1e-8, tolerance=1e-12) == full
    assert partial_ranks([[[1.0, 0.0], [0.0, 0.9e-8]]]) == [[1]]
    with pytest.raises(InputError, match="clear rank"):
        partial_ranks([[[1.0, 0.0], [0.0, 1.1e-8]]])


def test_all_terms_are_active_unless_said_otherwise():
    options = {"outputs": 4, "terms": 3, "tangents": 2, "span": 6, "bound": 100}
    assert search_rank(veronese_features(3, 3), **options) == 3 * (3 + 4 - 1)
    assert search_rank(veronese_features(3, 3), **options, inactive=1) == 2 * (3 + 4 - 1) + 4


def test_a_critical_path_is_followed_to_twice_the_degree_and_one():
    x, y = Polynomial.unknowns("x", "y")
    steep = (x - y**2 + x**2 * y) ** 2 + y**20
    found = split_quadratic(steep)
    wide = split_quadratic(steep, degree=6)
    assert found.known == 9
    assert wide.known == 13
    assert not found.rest.terms or found.rest.order > 9


def polynomial(*coefficients):
    return {(k,): Fraction(c) for k, c in enumerate(coefficients) if c}


def test_a_product_with_a_double_root_is_no_proof_of_a_crossing():
    one, both = polynomial(-1, 1), polynomial(-2, 1, 1)  # x − 1 and (x − 1)(x + 2)
    assert crossing_without_tangency([one, both]) is None
    assert crossing_without_tangency([one, polynomial(-6, 1, 1)]) is True  # (x − 2)(x + 3)
    assert crossing_without_tangency([polynomial(1, -2, 1), polynomial(2, 3, 1)]) is None  # (x − 1)²
    assert crossing_without_tangency([polynomial(-1, 0, 1), polynomial(1, 1, 1)]) is True
    # A sum that cancels: (x² + x − 1)(x − 1) = x³ − 2x + 1 has the simple roots 1 and (−1 ± √5)/2.
    assert crossing_without_tangency([polynomial(-1, 1, 1), polynomial(-1, 1)]) is True


@pytest.mark.parametrize("at", [(1, 2), (2, Fraction(1, 2)), (3, Fraction(1, 3)), (Fraction(5, 4), 1)])
def test_small_circles_around_simple_points_are_found(at):
    a, b = map(Fraction, at)
    circle = {(2, 0): 1, (1, 0): -2 * a, (0, 2): 1, (0, 1): -2 * b, (0, 0): a * a + b * b - Fraction(1, 10**4)}
    assert has_zero({e: Fraction(c) for e, c in circle.items()}) is True
    assert has_zero({e: Fraction(c) for e, c in {**circle, (0, 0): a * a + b * b + 1}.items()}) is not True


def test_beyond_what_was_computed_the_parameter_count_is_a_condition():
    assert exact.quadratic_multi_output(10, 30, 40).status == "exact"
    assert exact.quadratic_multi_output(11, 30, 40).status == "conditional"
    assert exact.quadratic_modular_addition(13, 60, centred=True).status == "exact"
    assert exact.quadratic_modular_addition(17, 60, centred=True).status == "conditional"
