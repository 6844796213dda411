import itertools
import time
from fractions import Fraction

import pytest

import crunode as cr
from crunode import exact
from crunode.errors import InputError


def pair(found):
    return found.value, found.multiplicity


def test_names_are_reached_through_the_package():
    assert pair(cr.exact.reduced_rank(6, 4, 6, rank=2)) == (Fraction(27, 2), 1)
    assert set(exact.__all__) == set(dir(exact))
    assert all(getattr(exact, name) is not None for name in exact.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = exact.nothing


@pytest.mark.parametrize("features", range(1, 7))
def test_naive_bayes_from_its_moments(features):
    # Means are regular; with c = t(1−t) and u_i the differences of the classes, covariances are c u_i u_j.
    pairs = list(itertools.combinations(range(features), 2))
    rows = [[1] + [int(i in chosen) for i in range(features)] for chosen in pairs]
    parts = [exact.regular(features)] + ([exact.monomial_ideal(rows)] if rows else [])
    assert pair(exact.naive_bayes_binary(features)) == pair(exact.sum_of(*parts))


@pytest.mark.parametrize("dim", range(1, 7))
def test_mixture_from_its_moments(dim):
    # The mean is regular; the second moments are α b_i b_j.
    rows = [[1, *(int(i == j) * 2 for i in range(dim))] for j in range(dim)]
    parts = exact.regular(dim), exact.monomial_ideal(rows)
    assert pair(exact.gaussian_mixture_two_components(dim)) == pair(exact.sum_of(*parts))


def test_tanh_with_one_unit_is_a_normal_crossing():
    assert pair(exact.tanh_zero_truth(1)) == pair(exact.normal_crossing([1, 1]))


def test_tanh_grows_with_the_width_and_stays_below_the_parameter_count():
    values = [exact.tanh_zero_truth(h) for h in range(1, 40)]
    assert all(a.value < b.value for a, b in itertools.pairwise(values))
    assert [h for h, found in enumerate(values, 1) if found.multiplicity == 2] == [1, 4, 9, 16, 25, 36]
    assert all(found.value <= h for h, found in enumerate(values, 1))


def test_topics_in_the_middle_case_have_the_published_form():
    for m, n, h in itertools.product(range(2, 8), repeat=3):
        for r in range(1, min(m, n, h) + 1):
            if n + r <= m + h and m + r <= n + h and h + r <= m + n:
                found = exact.lda(m, n, h, r)
                odd = (m + n + h + r) % 2
                shown = Fraction(2 * (h + r) * (m + n) - (m - n) ** 2 - (h + r) ** 2 + odd, 8) - Fraction(n, 2)
                assert pair(found) == (shown, 1 + odd)


@pytest.mark.parametrize(
    ("sizes", "value"), [((5, 6, 1, 1), 2), ((5, 1, 3, 1), 2), ((1, 4, 2, 1), 0), ((2, 2, 9, 1), 1)]
)
def test_topic_models_at_the_edges(sizes, value):
    assert pair(exact.lda(*sizes)) == (value, 1)


def test_one_group_of_units_is_a_linear_network_with_a_bias_input():
    for outputs, hidden, inputs in itertools.product(range(1, 4), repeat=3):
        for rank in range(min(outputs, hidden, inputs + 1) + 1):
            group = {"outputs": outputs, "hidden": hidden, "rank": rank}
            found = exact.relu_three_layer(inputs, [group])
            assert pair(found) == pair(exact.deep_linear([outputs, hidden, inputs + 1], rank))
            assert found.status == "conditional"


def test_multiplicities_of_groups_add():
    group = {"outputs": 1, "hidden": 1, "rank": 0}
    alone = exact.deep_linear([2, 2, 2], 1)
    assert alone.multiplicity == 2
    twice = exact.relu_three_layer(1, [{"outputs": 2, "hidden": 2, "rank": 1}] * 2)
    assert pair(twice) == (2 * alone.value, 3)
    assert exact.relu_three_layer(1, [group]).multiplicity == 1


def test_depth_limit_is_reached_and_kept():
    for i, h, o in itertools.product(range(1, 6), repeat=3):
        for r, bias in itertools.product(range(min(i, h, o) + 1), (False, True)):
            limit = exact.deep_linear_depth_limit(i, h, o, rank=r, bias=bias)
            start, growth = limit.details["from_depth"], limit.details["multiplicity_per_layer"]
            found = [exact.deep_linear([o, *[h] * (depth - 1), i], r, bias) for depth in (start, start + 1, start + 40)]
            assert {deep.value for deep in found} == {limit.value}
            assert found[1].multiplicity - found[0].multiplicity == growth
            assert found[2].multiplicity - found[1].multiplicity == 39 * growth
            assert limit.multiplicity == (None if growth else 1)


def test_square_networks_fall_to_their_depth_limit():
    values = [exact.deep_linear([9] * (depth + 1), 3).value for depth in range(1, 30)]
    assert all(a >= b for a, b in itertools.pairwise(values))
    assert values[0] == Fraction(81, 2)
    assert values[-1] == exact.deep_linear_depth_limit(9, 9, 9, rank=3).value == Fraction(45, 2) + Fraction(42, 4)


def test_bias_adds_half_the_outputs():
    found = exact.deep_linear([3, 2, 4, 2], 1)
    assert pair(exact.deep_linear([3, 2, 4, 2], 1, bias=True)) == (found.value + Fraction(3, 2), found.multiplicity)


def test_one_layer_is_linear_regression():
    for r in range(4):
        assert pair(exact.deep_linear([3, 5], r)) == (Fraction(15, 2), 1)


def test_local_coefficient_can_exceed_the_global_one():
    local = exact.reduced_rank_local(2, 2, 2, rank=0, rank_out_factor=0, rank_in_factor=2)
    assert (local.value, exact.reduced_rank(2, 2, 2, rank=0).value) == (2, Fraction(3, 2))


def test_normal_crossing_with_a_prior_agrees_with_the_linear_program():
    for k in itertools.product(range(3), repeat=3):
        for h in ((0, 0, 0), (1, 0, 2), ("-1/2", "1/3", 0)):
            if any(k):
                priors = [Fraction(x) for x in h]
                assert pair(exact.normal_crossing(k, h)) == pair(exact.monomial_ideal([k], priors))


def test_linearised_with_fractions_floats_and_open_ranks():
    assert pair(exact.linearised([["1/2", 1], [1, 2]])) == (Fraction(1, 2), 1)
    assert exact.linearised([[0, 0]]).value == 0
    numerical = exact.linearised([[0.1, 0.2], [0.2, 0.4]])
    assert (numerical.value, numerical.status) == (Fraction(1, 2), "conditional")
    assert exact.linearised([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).value == 1
    vague = exact.linearised([[1.0, 1.0], [1.0, 1.0 + 2e-5]])
    assert (vague.status, vague.bounds) == ("interval", (Fraction(1, 2), 1))


@pytest.mark.parametrize("activation", ["t^2", "t**2", "x^2", " T^2 ", "square", "t^3", "tanh", "exp"])
def test_every_analytic_activation_spans_all_functions_of_two_inputs(activation):
    assert exact.lazy_random_features(3, 20, centred=False, activation=activation).value == Fraction(27, 2)


def test_affine_activation_spans_sums_only():
    assert exact.lazy_random_features(3, 20, centred=False, activation="t").value == Fraction(15, 2)
    assert exact.lazy_random_features(3, 20, centred=True, activation="t^1").value == Fraction(12, 2)


@pytest.mark.parametrize("activation", ["relu", "t^0", "t^-1", "t^", "", 2, None, "t^99999", "__import__('os')"])
def test_activations_no_theorem_covers_are_refused(activation):
    with pytest.raises(InputError, match="activation"):
        exact.lazy_random_features(3, 4, centred=False, activation=activation)


def test_conjecture_is_named_where_the_value_rests_on_it():
    found = exact.quadratic_multi_output(100, 50, 1000)
    assert (found.value, found.status) == (Fraction(149000, 2), "conditional")
    assert any("Abo & Brambilla" in text for text in found.hypotheses)
    assert exact.quadratic_multi_output(100, 50, 50).status == "exact"
    assert exact.quadratic_multi_output(10, 50, 52).status == "exact"
    assert exact.quadratic_multi_output(100, 2, 2000).status == "exact"
    assert exact.quadratic_modular_addition(97, 500, centred=True).status == "conditional"
    assert exact.quadratic_modular_addition(97, 90, centred=True).status == "exact"
    assert exact.quadratic_modular_addition(13, 59, centred=True).status == "exact"
    assert exact.stage_two(100, 3, 50, 2).status == "conditional"


def test_pairs_and_their_numbers_say_the_same():
    pairs = [(a, b) for a in range(5) for b in range(5) if (a + b) % 5 != 1]
    given = exact.quadratic_modular_addition(5, 4, centred=True, pairs=pairs)
    by_numbers = exact.quadratic_modular_addition(5, 4, centred=True, examples=20, data_rank=9)
    assert given.value == by_numbers.value == 26
    assert given.details["data_rank"] == 9


LARGE = [
    lambda: exact.deep_linear([10**5] * 1001, 17),
    lambda: exact.deep_linear(list(range(1, 10**5)), 0),
    lambda: exact.deep_linear_depth_limit(10**5, 10**5, 10**5, rank=10),
    lambda: exact.quadratic_multi_output(10**5, 10, 10**5 + 1),
    lambda: exact.quadratic_multi_output(9, 33, 35),
    lambda: exact.quadratic_modular_addition(10**5, 10**6, centred=True),
    lambda: exact.quadratic_modular_addition(9, 28, centred=False),
    lambda: exact.stage_two(10**4, 10, 10**5, 10**4),
]


@pytest.mark.parametrize("compute", LARGE)
def test_large_inputs_answer_within_a_second(compute):
    start = time.process_time()
    assert compute().value > 0
    assert time.process_time() - start < 1


BAD = {
    "regular": [{"dim": 0}, {"dim": -1}, {"dim": 2.0}, {"dim": True}, {"dim": "3"}, {"dim": None}],
    "dln": [
        {"widths": [], "rank": 0},
        {"widths": [3], "rank": 0},
        {"widths": [3, -1, 2], "rank": 0},
        {"widths": [3, 0, 2], "rank": 0},
        {"widths": [3, 2.5, 2], "rank": 0},
        {"widths": [3, 2.0], "rank": 0},
        {"widths": [3, True], "rank": 0},
        {"widths": "332", "rank": 0},
        {"widths": 3, "rank": 0},
        {"widths": {"a": 3}, "rank": 0},
        {"widths": [3, 2], "rank": 3},
        {"widths": [3, 2], "rank": -1},
        {"widths": [3, 2], "rank": "1"},
        {"widths": [3, 2], "rank": None},
    ],
    "dln_depth_limit": [
        {"in_dim": 3, "hidden": 2, "out_dim": 3, "rank": 3},
        {"in_dim": 3, "hidden": 2, "out_dim": 3, "rank": 1, "bias": 1},
    ],
    "relu_three_layer_fixed_regions": [
        {"input_dim": 2, "groups": []},
        {"input_dim": 0, "groups": [{"outputs": 1, "hidden": 1, "rank": 0}]},
        {"input_dim": 2, "groups": [{"outputs": 1, "hidden": 1, "rank": 2}]},
        {"input_dim": 2, "groups": [{"outputs": 1, "hidden": 0, "rank": 0}]},
        {"input_dim": 2, "groups": [{"outputs": 1, "hidden": 1}]},
        {"input_dim": 2, "groups": [{"outputs": 1, "hidden": 1, "rank": 0, "extra": 1}]},
        {"input_dim": 2, "groups": [3]},
        {"input_dim": 2, "groups": {"outputs": 1, "hidden": 1, "rank": 0}},
    ],
    "reduced_rank_regression": [
        {"in_dim": 3, "hidden": 2, "out_dim": 3, "rank": 3},
        {"in_dim": 3, "hidden": 0, "out_dim": 3, "rank": 0},
        {"in_dim": -3, "hidden": 2, "out_dim": 3, "rank": 0},
    ],
    "reduced_rank_regression_local": [
        {"in_dim": 2, "hidden": 2, "out_dim": 2, "rank": 1, "rank_out_factor": 0, "rank_in_factor": 2},
        {"in_dim": 2, "hidden": 2, "out_dim": 2, "rank": 0, "rank_out_factor": 2, "rank_in_factor": 2},
        {"in_dim": 2, "hidden": 2, "out_dim": 2, "rank": 0, "rank_out_factor": 3, "rank_in_factor": 0},
        {"in_dim": 2, "hidden": 2, "out_dim": 2, "rank": 0, "rank_out_factor": -1, "rank_in_factor": 0},
    ],
    "quadratic_single_output_bias": [{"input_dim": 0, "hidden": 1}, {"input_dim": 2, "hidden": 1.5}],
    "quadratic_multi_output_generic": [{"input_dim": 2, "outputs": 0, "hidden": 1}],
    "quadratic_stage_two": [{"input_dim": 2, "outputs": 1, "hidden": 2, "effective_width": 3}],
    "quadratic_modular_addition_generic": [
        {"modulus": 0, "hidden": 1, "centred": True},
        {"modulus": 3, "hidden": 0, "centred": True},
        {"modulus": 3, "hidden": 1, "centred": 1},
        {"modulus": 3, "hidden": 1, "centred": True, "data": "half of the pairs"},
        {"modulus": 3, "hidden": 1, "centred": True, "data": []},
        {"modulus": 3, "hidden": 1, "centred": True, "data": [[0, 3]]},
        {"modulus": 3, "hidden": 1, "centred": True, "data": [[0, 1, 2]]},
        {"modulus": 3, "hidden": 1, "centred": True, "data": [[0, 1], [0, 1]]},
        {"modulus": 3, "hidden": 1, "centred": True, "data": {"examples": 5}},
        {"modulus": 3, "hidden": 1, "centred": True, "data": {"examples": 10, "data_rank": 5}},
        {"modulus": 3, "hidden": 1, "centred": True, "data": {"examples": 4, "data_rank": 6}},
        {"modulus": 3, "hidden": 1, "centred": True, "data": {"pairs": [[0, 1]], "examples": 1, "data_rank": 1}},
        {"modulus": 3, "hidden": 1, "centred": True, "data": {"rows": 4}},
    ],
    "quadratic_modular_addition_fourier": [{"modulus": 4}, {"modulus": 11}],
    "linearised_ntk": [
        {"jacobian_rows": []},
        {"jacobian_rows": [[]]},
        {"jacobian_rows": [[1, 2], [3]]},
        {"jacobian_rows": [[1, "a"]]},
        {"jacobian_rows": [[1, "1/0"]]},
        {"jacobian_rows": [[1, float("nan")]]},
        {"jacobian_rows": [[1, float("inf")]]},
        {"jacobian_rows": [[1, True]]},
        {"jacobian_rows": [[1, None]]},
        {"jacobian_rows": [1, 2]},
    ],
    "interpolation_manifold": [
        {"n_params": 5, "n_data": 3, "output_dim": 2},
        {"n_params": 5, "n_data": 0, "output_dim": 2},
    ],
    "normal_crossing": [
        {"k": []},
        {"k": [0, 0]},
        {"k": [-1, 1]},
        {"k": [0.5]},
        {"k": [1, 1], "h": [0]},
        {"k": [1], "h": [-1]},
        {"k": [1], "h": [0.1]},
        {"k": [1], "h": ["x"]},
    ],
    "tanh_zero_truth": [{"hidden": 0}],
    "gaussian_mixture_two_components": [{"dim": 0}],
    "naive_bayes_binary": [{"features": 0}, {"features": 3, "truth": "dependent"}, {"features": 3, "truth": None}],
    "lda_stochastic_matrix_factorisation": [
        {"vocab": 5, "docs": 6, "topics": 3, "rank": 0},
        {"vocab": 5, "docs": 6, "topics": 3, "rank": 4},
        {"vocab": 0, "docs": 6, "topics": 3, "rank": 1},
    ],
}


@pytest.mark.heavy
@pytest.mark.parametrize(("family", "params"), [(family, params) for family, rows in BAD.items() for params in rows])
def test_wrong_values_never_yield_a_number(family, params):
    with pytest.raises(InputError, match="expected"):
        exact.evaluate(family, **params)


@pytest.mark.parametrize(
    ("family", "params", "message"),
    [
        ("dnl", {}, "did you mean dln"),
        ("reduced_rank_regresion", {}, "did you mean reduced_rank_regression"),
        ("zzz", {}, "crunode exact list"),
        (3, {}, "name of a family as text"),
        ("dln", {"widths": [1, 1]}, "got no rank"),
        ("dln", {"widths": [1, 1], "rank": 0, "depth": 3}, "got depth too"),
    ],
)
def test_wrong_names_are_told(family, params, message):
    with pytest.raises(InputError, match=message):
        exact.evaluate(family, **params)


def test_hyphens_and_aliases_name_the_same_family():
    for name in ("reduced_rank_regression", "reduced-rank-regression", "Reduced-Rank", "rrr"):
        found = exact.evaluate(name, in_dim=6, hidden=4, out_dim=6, rank=2)
        assert pair(found) == (Fraction(27, 2), 1)


def test_catalog_says_for_each_family_what_it_takes_and_where_it_is_from():
    families = exact.catalog()
    assert len({family.name for family in families}) == len(families) >= 18
    aliases = [alias for family in families for alias in family.aliases]
    assert len(set(aliases)) == len(aliases)
    for family in families:
        assert family.scope in ("global", "local")
        assert family.theorem
        assert family.citation
        assert set(family.defaults) <= set(family.parameters)
        assert set(family.lists) | set(family.texts) <= set(family.parameters)
        assert family.to_dict()["parameters"] == family.parameters
