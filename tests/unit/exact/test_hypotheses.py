import random
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact import (
    features_independent,
    features_span,
    identifies_quadratics,
    quadratic_multi_output,
    units_independent,
)


def whole_weights(rows, columns, seed=0):
    draw = random.Random(seed)
    return [[draw.randint(-50, 50) for _ in range(columns)] for _ in range(rows)]


@pytest.mark.parametrize("convert", [lambda x: x, float, lambda x: Fraction(x, 7)], ids=["whole", "float", "fraction"])
def test_generic_weights_span_once_there_are_enough(convert):
    for dim in (1, 2, 3, 5):
        span = dim * (dim + 1) // 2
        for hidden in (span - 1, span, span + 2):
            if hidden:
                weights = [[convert(x) for x in row] for row in whole_weights(hidden, dim)]
                assert features_span(weights).verdict == ("holds" if hidden >= span else "fails")
                assert features_independent(weights).verdict == ("holds" if hidden <= span else "fails")


def test_parallel_and_zero_weights_are_not_independent():
    assert features_independent([[1, 2, 3], [-2, -4, -6]]).verdict == "fails"
    assert features_independent([[1, 2, 3], [0, 0, 0]]).verdict == "fails"
    assert features_independent([[0.1, 0.2], [0.3, 0.6]]).verdict == "fails"


def test_one_hot_pairs_do_not_tell_quadratics_apart():
    pairs = [[int(i == a) for i in range(3)] + [int(i == b) for i in range(3)] for a in range(3) for b in range(3)]
    check = identifies_quadratics(pairs)
    assert check.verdict == "fails"
    assert (check.rank, check.needed) == (None, 21)  # nine examples cannot
    assert str(check) == "fails: the inputs tell all quadratic functions apart (too few for rank 21)"
    repeated = identifies_quadratics(pairs * 3)
    assert (repeated.verdict, repeated.rank, repeated.needed) == ("fails", 9, 21)


def test_bias_asks_for_more_examples():
    inputs = whole_weights(3, 2)
    assert identifies_quadratics(inputs)
    assert not identifies_quadratics(inputs, bias=True)
    assert identifies_quadratics(whole_weights(6, 2), bias=True)
    # Points on a conic satisfy one quadratic equation.
    circle = [[3, 4], [4, 3], [5, 0], [0, 5], [-3, 4], [-4, 3], [3, -4]]
    assert identifies_quadratics(circle)
    assert not identifies_quadratics(circle, bias=True)


def test_units_independent_where_the_generic_value_is_the_parameter_count():
    for dim, outputs, hidden in ((3, 2, 2), (3, 2, 3), (4, 3, 5), (2, 1, 1), (3, 1, 2)):
        check = units_independent(whole_weights(hidden, dim, 1), whole_weights(outputs, hidden, 2))
        rank = 2 * quadratic_multi_output(dim, outputs, hidden).value
        assert check.verdict == ("holds" if rank == check.needed else "fails")
        assert check.rank in (None, rank)


def test_arrays_and_tensors_are_taken():
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    weights = np.random.default_rng(0).normal(size=(6, 3))
    assert features_span(weights).verdict == "holds"
    assert features_span(torch.tensor(weights, dtype=torch.float32)).verdict == "holds"
    assert features_span(torch.tensor([[1, 0], [0, 1], [1, 1]])).exact
    assert features_span([np.float32(1.0) * row for row in weights.astype(np.float32)]).verdict == "holds"


def test_near_dependence_is_left_open():
    check = features_independent([[1.0, 0.0], [1.0, 2e-5]])
    assert check.verdict == "undecided"
    assert not check
    assert "undecided" in str(check)
    assert "rank open" in str(check)


@pytest.mark.heavy
def test_layers_of_some_hundred_weights_are_decided():
    draw = random.Random(0)
    weights = [[draw.gauss(0, 1) for _ in range(20)] for _ in range(210)]
    check = features_span(weights)
    assert (check.verdict, check.rank) == ("holds", 210)
    assert "numerical, gap" in str(check)


def test_larger_ones_are_refused_with_a_way_out():
    with pytest.raises(InputError, match="numpy"):
        features_span([[1.0 + i * j % 7 for j in range(26)] for i in range(400)])


@pytest.mark.parametrize("weights", [[], [[]], [[1, 2], [3]], [["a"]], "12", None, [[float("nan")]]])
def test_what_is_no_matrix_is_refused(weights):
    for check in (features_span, features_independent, identifies_quadratics):
        with pytest.raises(InputError, match="expected"):
            check(weights)


def test_output_weights_have_to_fit():
    with pytest.raises(InputError, match="one column for each of the 2 hidden units"):
        units_independent([[1, 0], [0, 1]], [[1, 2, 3]])
