"""Exact coefficients against published and derived cases, and against ranks computed by brute force."""

import itertools
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest

from crunode.exact import (
    evaluate,
    fourier_solution,
    modular_addition,
    modular_rank,
    quadratic_modular_addition,
    quadratic_multi_output,
    quadratic_single_output,
    secants,
    stage_two,
)

CASES = json.loads((Path(__file__).parent / "exact_vectors.json").read_text(encoding="utf-8"))
PRIME = (1 << 61) - 1


def named(case):
    return f"{case['family']}-{json.dumps(case['params'])[:60]}"


@pytest.mark.parametrize("case", CASES, ids=map(named, CASES))
def test_published_and_derived_cases(case):
    found = evaluate(case["family"], **case["params"])
    assert (found.value, found.multiplicity) == (Fraction(case["lambda"]), case["multiplicity"])
    assert found.status in ("exact", "conditional")
    assert found.citation


def test_all_cases_are_there():
    assert len(CASES) == 87
    assert len({case["family"] for case in CASES}) == 18


def numbers(draw, count):
    return [draw.randrange(1, PRIME) for _ in range(count)]


def outer_rows(outputs, units):
    """Rows of the derivative of Σ_j v_j ⊗ x_j: units are (v, feature, tangents)."""
    for v, feature, tangents in units:
        for k in range(outputs):
            yield [x if k == at else 0 for at in range(outputs) for x in feature]
        for tangent in tangents:
            yield [a * x % PRIME for a in v for x in tangent]


def quadratic_unit(w):
    pairs = list(itertools.combinations_with_replacement(range(len(w)), 2))
    feature = [w[i] * w[j] % PRIME for i, j in pairs]
    return feature, [[(i == t) * w[j] + (j == t) * w[i] for i, j in pairs] for t in range(len(w))]


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_quadratic_network_with_many_outputs_has_the_rank_of_its_derivative(dim):
    draw = random.Random(dim)
    span = dim * (dim + 1) // 2
    for outputs in range(1, span + 2):
        for hidden in range(1, span + 2):
            units = [(numbers(draw, outputs), *quadratic_unit(numbers(draw, dim))) for _ in range(hidden)]
            found = quadratic_multi_output(dim, outputs, hidden)
            assert found.value == Fraction(modular_rank(list(outer_rows(outputs, units))), 2), (outputs, hidden)
            assert (found.status, found.multiplicity) == ("exact", 1)


@pytest.mark.parametrize(
    ("case", "rank", "count"), [((4, 3, 5), 29, 30), ((4, 5, 6), 47, 48), ((6, 3, 8), 62, 63), ((8, 3, 11), 107, 108)]
)
def test_defective_secant_varieties(case, rank, count):
    dim, outputs, hidden = case
    draw = random.Random(0)
    units = [(numbers(draw, outputs), *quadratic_unit(numbers(draw, dim))) for _ in range(hidden)]
    assert modular_rank(list(outer_rows(outputs, units))) == rank
    assert min(hidden * (dim + outputs - 1), outputs * dim * (dim + 1) // 2) == count
    assert quadratic_multi_output(*case).value == Fraction(rank, 2)


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_one_output_with_bias_has_the_rank_of_its_derivative(dim):
    draw = random.Random(dim)
    for hidden in range(1, dim + 3):
        rows = [[0] * ((dim + 1) * (dim + 2) // 2 - 1) + [1]]  # the constant c
        for _ in range(hidden):
            v, w = draw.randrange(1, PRIME), [*numbers(draw, dim), draw.randrange(1, PRIME)]
            feature, tangents = quadratic_unit(w)  # of (x, 1): the last entry is the constant
            rows += [feature, *([v * x % PRIME for x in tangent] for tangent in tangents)]
        assert quadratic_single_output(dim, hidden).value == Fraction(modular_rank(rows), 2)


def addition_rank(p, hidden, pairs, centred, seed=0):
    draw = random.Random(seed)
    units = []
    for _ in range(hidden):
        u, t, v = numbers(draw, p), numbers(draw, p), numbers(draw, p)
        z = [(u[a] + t[b]) % PRIME for a, b in pairs]
        along = [[x * (pair[side] == i) for x, pair in zip(z, pairs, strict=True)] for side in (0, 1) for i in range(p)]
        units.append((v, [x * x % PRIME for x in z], along))
    rows = list(outer_rows(p, units))
    if centred:  # the projection orthogonal to constants along the examples, scaled by their number
        size = len(pairs)
        blocks = [[row[k * size : (k + 1) * size] for k in range(p)] for row in rows]
        rows = [[(size * x - sum(block)) % PRIME for block in row for x in block] for row in blocks]
    return modular_rank(rows)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("centred", [False, True])
def test_modular_addition_on_all_pairs_has_the_rank_of_its_derivative(p, centred):
    pairs = list(itertools.product(range(p), repeat=2))
    for hidden in [*range(1, p * p + 2)][:: 1 if p < 5 else 3]:
        found = quadratic_modular_addition(p, hidden, centred=centred)
        assert found.status == "exact"
        assert found.value == Fraction(addition_rank(p, hidden, pairs, centred), 2)
        assert found.value == Fraction(min(hidden * (3 * p - 2), p * (p * p - centred)), 2)


def test_modular_addition_on_training_pairs_has_the_rank_of_its_derivative():
    draw = random.Random(3)
    for _ in range(60):
        p, centred = draw.choice((2, 3, 4)), draw.random() < 0.5
        pairs = draw.sample(list(itertools.product(range(p), repeat=2)), draw.randrange(1, p * p + 1))
        hidden = draw.randrange(1, p * p + 2)
        found = quadratic_modular_addition(p, hidden, centred=centred, pairs=pairs)
        assert (found.status, found.value) == ("exact", Fraction(addition_rank(p, hidden, pairs, centred), 2))


@pytest.mark.parametrize(("hidden", "rank", "counted"), [(5, 60, 60), (6, 71, 72), (7, 82, 84)])
def test_rare_inputs_lower_the_rank_below_the_parameter_count(hidden, rank, counted):
    pairs = [*itertools.product(range(4), repeat=2), (4, 0)]  # the input 4 occurs once
    assert addition_rank(5, hidden, pairs, centred=False) == rank
    assert quadratic_modular_addition(5, hidden, centred=False, pairs=pairs).value == Fraction(rank, 2)
    by_numbers = quadratic_modular_addition(5, hidden, centred=False, examples=17, data_rank=8)
    assert by_numbers.value == Fraction(counted, 2)
    assert (by_numbers.status == "conditional") == (rank < counted)


@pytest.mark.parametrize(("p", "rank"), [(3, 21), (5, 94), (7, 219)])
def test_fourier_solution_has_the_published_rank(p, rank):
    found = fourier_solution(p)
    assert found.status == "interval"
    assert found.bounds == (Fraction(rank, 2), Fraction(3 * (p - 1) * (3 * p - 2), 2))
    assert found.bounds[0] < quadratic_modular_addition(p, 3 * (p - 1), centred=True).value


def test_stage_two_has_the_rank_of_its_derivative():
    draw = random.Random(5)
    for dim, outputs in itertools.product((2, 3, 4), (1, 2, 3)):
        span = dim * (dim + 1) // 2
        for hidden in range(1, span + 2):
            for active in range(hidden + 1):
                units = [(numbers(draw, outputs), *quadratic_unit(numbers(draw, dim))) for _ in range(active)]
                units += [([0] * outputs, *quadratic_unit(numbers(draw, dim))) for _ in range(hidden - active)]
                rank = Fraction(modular_rank(list(outer_rows(outputs, units))), 2)
                found = stage_two(dim, outputs, hidden, active)
                assert found.bounds[0] == rank
                assert found.status in ("exact", "interval")
                if found.status == "exact":
                    assert found.value == rank


@pytest.fixture
def unlimited(monkeypatch):
    monkeypatch.setattr(secants, "_LARGEST", float("inf"))
    monkeypatch.setattr(secants, "_LARGEST_BEFORE", float("inf"))


@pytest.mark.slow
@pytest.mark.parametrize("dim", range(3, secants.DIMENSION_COMPUTED + 1))
def test_ranks_beside_the_critical_width(unlimited, dim):
    span = dim * (dim + 1) // 2
    for outputs in range(3, span):
        critical = outputs * span // (dim + outputs - 1)
        for hidden in range(max(outputs + 1, critical - 1), min(span, critical + 3)):
            defective = (dim, outputs, hidden) == (4, 5, 6) or (outputs == 3 and 2 * hidden == 3 * dim - 2 and dim > 2)
            found = secants.veronese_rank(dim, outputs, hidden)
            assert found.value == min(hidden * (dim + outputs - 1), outputs * span) - defective
            assert "computed" in found.reason or hidden <= dim
            assert "beside" not in found.reason


@pytest.mark.slow
@pytest.mark.parametrize("p", range(2, modular_addition.MODULUS_COMPUTED + 1))
@pytest.mark.parametrize("centred", [False, True])
def test_ranks_of_modular_addition_beside_the_critical_width(unlimited, p, centred):
    full = p * (p * p - centred)
    for hidden in (full // (3 * p - 2), full // (3 * p - 2) + 1):
        found = quadratic_modular_addition(p, hidden, centred=centred)
        assert found.details["rank"] == min(hidden * (3 * p - 2), full)
        assert found.details["rank_by"] == "rank computed modulo a prime; it meets the parameter count"
