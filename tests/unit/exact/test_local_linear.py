"""The local coefficient of deep linear networks against formulas, brute force over strata and counts of arcs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from fractions import Fraction

import pytest

from crunode.errors import InputError
from crunode.exact.algebra.ideals import monomial_ideal
from crunode.exact.intervals import excess, flag_length, intervals, jacobian_rank, lowest_steps
from crunode.exact.local_linear import deep_linear_local, deep_linear_local_at, partial_ranks
from crunode.exact.rank import modular_rank


def aoyagi(widths, rank):
    """The global value (Aoyagi 2024)."""
    core = sorted(h - rank for h in widths)
    fixed = Fraction(rank * (widths[0] + widths[-1]) - rank * rank, 2)
    if core[0] == 0:
        return fixed, 1
    last = max(k for k in range(1, len(core)) if sum(core[: k + 1]) >= k * core[k])
    total = sum(core[: last + 1])
    high = -(-total // last)
    a = total - (high - 1) * last
    squares = sum(m * m for m in core[: last + 1])
    return fixed + Fraction(high * a + (high - 1) * total - squares, 4), a * (last - a) + 1


def strata(widths):
    """Every decomposition of a chain of these widths into intervals, as ranks by (from, to)."""
    length = len(widths) - 1
    names = [(i, j) for i in range(length + 1) for j in range(i, length + 1)]

    def fill(k, left):
        if k == len(names):
            yield {}
            return
        i, j = names[k]
        for count in range(min(left[i : j + 1]) + 1):
            rest = [x - count * (i <= at <= j) for at, x in enumerate(left)]
            if j == length and rest[i]:
                continue
            for found in fill(k + 1, rest):
                yield {(i, j): count, **found}

    for counts in fill(0, list(widths)):
        yield {(i, j): sum(c for (a, b), c in counts.items() if a <= i and j <= b) for i, j in names}


def rows(ranks, length):
    return [[ranks[s, t] for t in range(s + 1, length + 1)] for s in range(length)]


def orbit_codimension(ranks, length):
    """Codimension of the weights with these ranks and this product: self-extensions plus the rank-r matrices."""
    counts = intervals(ranks, length)
    pairs = itertools.product(counts.items(), repeat=2)
    extensions = sum(x * y for ((a, b), x), ((c, d), y) in pairs if a < c <= b + 1 <= d)
    rank = ranks[0, length]
    return extensions + rank * (ranks[0, 0] + ranks[length, length]) - rank * rank


def representative(ranks, length, seed=0):
    """Integer weights with these ranks, in random bases."""
    draw, counts = random.Random(seed), intervals(ranks, length)
    basis = [[] for _ in range(length + 1)]
    for (i, j), count in counts.items():
        for copy in range(count):
            for at in range(i, j + 1):
                basis[at].append((i, j, copy))

    def mixed(matrix):
        matrix = [list(row) for row in matrix]
        for _ in range(2):
            for k in range(1, len(matrix)):
                factor = draw.randint(-2, 2)
                matrix[k] = [x + factor * y for x, y in zip(matrix[k], matrix[k - 1], strict=True)]
            matrix.reverse()
        return matrix

    changes = [mixed([[int(a == b) for b in place] for a in place]) for place in basis]
    return [
        times(times(changes[s], [[int(a == b) for b in basis[s + 1]] for a in basis[s]]), inverse(changes[s + 1]))
        for s in range(length)
    ]


def times(left, right):
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in zip(*right, strict=True)] for row in left
    ]


def inverse(matrix):
    size = len(matrix)
    work = [[Fraction(x) for x in row] + [Fraction(i == j) for j in range(size)] for i, row in enumerate(matrix)]
    for k in range(size):
        at = next(i for i in range(k, size) if work[i][k])
        work[k], work[at] = work[at], work[k]
        work[k] = [x / work[k][k] for x in work[k]]
        for i in range(size):
            if i != k:
                work[i] = [x - work[i][k] * y for x, y in zip(work[i], work[k], strict=True)]
    return [[int(x) for x in row[size:]] for row in work]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_the_most_singular_point_has_the_global_value(length):
    for widths in itertools.product(range(1, 4 if length == 4 else 5), repeat=length + 1):
        for rank in range(min(widths) + 1):
            found = deep_linear_local(widths, [[rank] * (length - s) for s in range(length)])
            assert (found.value, found.multiplicity) == aoyagi(widths, rank), (widths, rank)


def test_two_layers_match_the_closed_form_for_given_factor_ranks():
    for out, hidden, into in itertools.product(range(1, 6), repeat=3):
        for ranks in strata((out, hidden, into)):
            b, r, a = ranks[0, 1], ranks[0, 2], ranks[1, 2]
            core, multiplicity = Fraction(0), 1
            if out > b and into > a:
                core, multiplicity = aoyagi((out - b, hidden - a - b + r, into - a), 0)
            found = deep_linear_local((out, hidden, into), [[b, r], [a]])
            assert found.value == Fraction(b * into + (out - b) * a, 2) + core, (out, hidden, into, ranks)
            assert found.multiplicity == multiplicity, (out, hidden, into, ranks)


@pytest.mark.parametrize(
    "widths", [(2, 2, 2, 2), (3, 2, 3, 2), (2, 3, 3, 1), (1, 3, 2, 3), (3, 3, 3, 3), (2, 2, 2, 2, 2)]
)
def test_codimension_is_the_least_over_the_strata_that_come_near(widths):
    length = len(widths) - 1
    everything = [(ranks, orbit_codimension(ranks, length)) for ranks in strata(widths)]
    lowest = {}
    for ranks, _ in everything:
        near = min(
            codimension
            for other, codimension in everything
            if other[0, length] == ranks[0, length] and all(other[k] >= ranks[k] for k in ranks)
        )
        found = deep_linear_local(widths, rows(ranks, length))
        assert found.details["codimension"] == near == 2 * found.value
        assert found.details["jacobian_rank"] <= near
        lowest[ranks[0, length]] = min(lowest.get(ranks[0, length], found.value), found.value)
    for rank, value in lowest.items():
        assert value == aoyagi(widths, rank)[0]


@pytest.mark.parametrize("widths", [(2, 3, 2), (2, 2, 3, 2), (1, 2, 2, 1, 2)])
def test_jacobian_rank_is_that_of_the_matrices(widths):
    length = len(widths) - 1
    for seed, ranks in enumerate(strata(widths)):
        weights = representative(ranks, length, seed)
        assert partial_ranks(weights) == rows(ranks, length)
        directions = []
        for s in range(length):
            for i, j in itertools.product(range(widths[s]), range(widths[s + 1])):
                product = [[int((a, b) == (i, j)) for b in range(widths[s + 1])] for a in range(widths[s])]
                for left in reversed(weights[:s]):
                    product = times(left, product)
                for right in weights[s + 1 :]:
                    product = times(product, right)
                directions.append([x for row in product for x in row])
        assert jacobian_rank(ranks, length) == modular_rank(directions), ranks


@pytest.mark.parametrize(("widths", "largest"), [((2, 2, 2, 2, 2), 5), ((1, 2, 1, 2, 1, 2), 2), ((3, 3, 2, 3), 3)])
def test_multiplicity_is_the_longest_flag_of_sub_chains(widths, largest):
    """Brute force: all sub-chains as sums of ends of intervals, and the longest nested sequence of best ones."""
    length, met = len(widths) - 1, 0
    for ranks in strata(widths):
        counts = intervals(ranks, length)
        copies = [(i, j) for (i, j), c in counts.items() if i >= 1 and j < length for _ in range(c)]
        found = set()
        for starts in itertools.product(*(range(i, j + 2) for i, j in copies)):
            dims = [
                ranks[0, k] + sum(start <= k <= j for start, (_, j) in zip(starts, copies, strict=True))
                for k in range(length + 1)
            ]
            steps = tuple(a - b for a, b in itertools.pairwise(dims))
            if min(steps) >= 0:
                found.add((excess(ranks, length, steps), starts, steps))
        least = min(found)[0]
        best = sorted(((starts, steps) for value, starts, steps in found if value == least), key=lambda x: -sum(x[0]))
        longest = {}
        for starts, steps in best:
            below = [
                number + (old != steps)
                for (larger, old), number in longest.items()
                if all(x >= y for x, y in zip(larger, starts, strict=True))
            ]
            longest[starts, steps] = max(below, default=1)
        answer = max(longest.values())
        assert flag_length(ranks, length, lowest_steps(ranks, length)) == (answer, answer), ranks
        met = max(met, answer)
    assert met == largest


def test_monomial_core_agrees_with_the_linear_program():
    # One copy each of 0-0, 0-1, 1-2, 2-3, 3-3: the product is a coordinate, and ⟨gb, hb, hc⟩.
    found = deep_linear_local([2, 2, 2, 2], [[1, 0, 0], [1, 0], [1]])
    core = monomial_ideal([(1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1)])
    assert found.value == Fraction(1, 2) + core.value == Fraction(3, 2)
    assert found.multiplicity == core.multiplicity == 3


def test_multiplicity_where_not_every_chain_of_minimizers_is_a_flag():
    """Intervals 0-0, 0-1, 1-3, 2-2, 3-4, 4-4: the ideal ⟨gb, hb, hc, gc + id⟩, and five components of codimension 3.

    Arcs of order e, by the orders of g, h, b, c: those of codimension 3e are counted, and their number is a
    polynomial in e of degree m − 1.
    """
    numbers = []
    for e in range(1, 9):
        found = Counter()
        for g, h, b, c in itertools.product(range(e + 1), repeat=4):
            if g + b >= e and h + b >= e and h + c >= e:
                found[g + h + b + c + e] += min(g + c, e) + 1  # ways to split the order of id = −gc
        assert min(found) == 3 * e
        numbers.append(found[3 * e])
    differences, degree = numbers, 0
    while any(differences):
        differences, degree = [y - x for x, y in itertools.pairwise(differences)], degree + 1
    counts = {(0, 0): 1, (0, 1): 1, (1, 3): 1, (2, 2): 1, (3, 4): 1, (4, 4): 1}
    table = [[sum(n for (a, b), n in counts.items() if a <= s and t <= b) for t in range(s + 1, 5)] for s in range(4)]
    found = deep_linear_local([2] * 5, table)
    assert (found.value, found.multiplicity) == (Fraction(3, 2), degree)
    assert (numbers[0], degree) == (5, 4)


def test_local_exceeds_global_at_an_asymmetric_point():
    assert deep_linear_local([2, 2, 2], [[0, 0], [2]]).value == 2
    assert deep_linear_local([2, 2, 2], [[0, 0], [0]]).value == Fraction(3, 2)


def test_bias_adds_half_the_outputs():
    plain, biased = (deep_linear_local([3, 2, 4], [[1, 1], [2]], bias=bias) for bias in (False, True))
    assert biased.value - plain.value == Fraction(3, 2)
    assert biased.multiplicity == plain.multiplicity
    assert biased.details["jacobian_rank"] - plain.details["jacobian_rank"] == 3


@pytest.mark.heavy
def test_large_widths_and_depths_answer_at_once():
    length, width = 64, 100_003
    found = deep_linear_local([width] * (length + 1), [[0] * (length - s) for s in range(length)])
    assert (found.value, found.multiplicity) == aoyagi([width] * (length + 1), 0)


def test_weights_as_floats_agree_with_exact_ones():
    for seed, ranks in enumerate(strata((2, 3, 2, 2))):
        if seed % 3 == 0:
            weights = representative(ranks, 3, seed)
            rounded = [[[x * 0.1 / 3 for x in row] for row in weight] for weight in weights]
            assert partial_ranks(rounded) == partial_ranks(weights) == rows(ranks, 3)
            assert deep_linear_local_at(rounded) == deep_linear_local_at(weights)


def test_a_product_that_is_rounding_error_has_rank_zero():
    projection = [[0.3, 0.1], [0.9, 0.3]]
    away = [[0.1, 0.7], [-0.3, -2.1]]
    assert partial_ranks([projection, away]) == [[1, 0], [1]]


class Array:
    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values


def test_arrays_and_fractions_are_taken():
    assert deep_linear_local_at([Array([[0, 0], [0, 0]]), [[Fraction(1, 3), 0], [0, 1]]]).value == 2


@pytest.mark.parametrize(
    ("widths", "ranks", "message"),
    [
        ([2, 2, 2], [[1, 2], [2]], r"ranks\[0\]\[1\] = 2 above ranks\[0\]\[0\] = 1"),
        ([2, 2, 2], [[3, 0], [0]], r"ranks\[0\]\[0\] = 3 above widths\[0\] = 2"),
        ([2, 2, 2], [[2, 0], [2]], r"ranks\[0\]\[0\] = 2 plus ranks\[1\]\[0\] = 2 above widths\[1\] = 2 plus"),
        ([2, 2, 2], [[1, 0]], "rows of 2, 1 entries, got 2"),
        ([2, 2, 2], [[1, 0], [1, 1]], "rows of 2, 1 entries, got 2, 2"),
        ([2], [[1]], "2 to 65 widths"),
        ([2] * 67, [[0]], "2 to 65 widths"),
        ([2, 0, 2], [[0, 0], [0]], r"widths\[1\]"),
        ([2, 2.0, 2], [[0, 0], [0]], r"widths\[1\]"),
        ([2, True, 2], [[0, 0], [0]], r"widths\[1\]"),
        ([2, 2, 2], [[-1, 0], [0]], r"ranks\[0\]\[0\]"),
        ([2, 2, 2], [], "ranks"),
        ([], [[1]], "widths"),
        ("22", [[1]], "widths"),
    ],
)
def test_impossible_tables_are_refused(widths, ranks, message):
    with pytest.raises(InputError, match=message):
        deep_linear_local(widths, ranks)


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([], {}, "weights"),
        ([[[1, 2]], [[1, 2]]], {}, "output side first"),
        ([[[1, 2], [1]]], {}, "equally long"),
        ([[[1, "x"]]], {}, "numbers"),
        ([[[1.0, float("nan")]]], {}, "finite"),
        ([[[True]]], {}, "numbers"),
        ([[[1.0, 0.0], [0.0, 1e-6]]], {}, "clear rank"),
        ([[[1.0]]], {"tolerance": 0.5}, "tolerance"),
        ([[[1.0]]], {"tolerance": -1e-8}, "tolerance"),
        ([[[1.0]]], {"tolerance": True}, "tolerance"),
        ([[[1]]], {"bias": 1}, "bias"),
        ([[[1] * 400] * 400] * 3, {}, "plain Python"),
    ],
)
def test_weights_without_clear_ranks_are_refused(weights, options, message):
    with pytest.raises(InputError, match=message):
        deep_linear_local_at(weights, **options)


def test_a_tolerance_decides_what_the_default_leaves_open():
    weights = [[[1.0, 0.0], [0.0, 1e-6]]]
    assert partial_ranks(weights, tolerance=1e-5) == [[1]]
    assert partial_ranks(weights, tolerance=1e-10) == [[2]]


def test_ranks_of_floats_do_not_depend_on_the_scale_of_each_factor():
    one, two = [[1.0, 2.0], [0.0, 1.0]], [[3.0, 6.0], [1.0, 2.0]]
    for a, b in ((1e-9, 1.0), (1e-9, 1e9), (1e9, 1e-12)):
        scaled = [[[a * x for x in row] for row in one], [[b * x for x in row] for row in two]]
        assert partial_ranks(scaled) == [[2, 1], [1]]


def test_one_float_makes_all_ranks_numerical():
    assert partial_ranks([[[1, 2], [2, 4]], [[0.1, 0.2], [0.3, 0.5]]]) == [[1, 1], [2]]
    assert partial_ranks([[[1, 2], [2, 4]], [[1, 0.2], [3, 5]]]) == [[1, 1], [2]]
