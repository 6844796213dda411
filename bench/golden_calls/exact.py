"""Golden calls of exact coefficients: every family with a theorem, and what decides its hypotheses."""

from __future__ import annotations

from crunode import exact
from golden_calls import call, refused

FAMILIES: dict[str, tuple[dict[str, object], ...]] = {
    "regular": ({"dim": 5},),
    "normal_crossing": ({"k": [1, 2], "h": [0, 1]}, {"k": [2, 2, 1]}),
    "monomial_ideal": ({"exponents": [[2, 0], [1, 1], [0, 3]]},),
    "toy_function": (
        {"K": "(x**2-y**3)**2"},
        {"K": "x**2*y**4"},
        {"K": "(x*y-1)**2*(x-1)**2", "point": [1, 1]},
        {"K": "x**4+y**6+x**2*y**2*z**2"},
    ),
    "dln": ({"widths": [3, 2, 2, 3], "rank": 1}, {"widths": [5, 5, 5, 5, 5], "rank": 2}),
    "dln_bias": ({"widths": [3, 2, 3], "rank": 1},),
    "dln_depth_limit": ({"in_dim": 4, "hidden": 3, "out_dim": 4, "rank": 1},),
    "dln_local": (
        {"widths": [2, 2, 2], "ranks": [[1, 1], [1]]},
        {"widths": [2, 2, 2], "ranks": [[2, 1, 0], [2, 1], [2]]},
    ),
    "reduced_rank_regression": tuple({"in_dim": 6, "hidden": h, "out_dim": 6, "rank": 2} for h in (2, 3, 4, 5, 9)),
    "reduced_rank_regression_local": (
        {"in_dim": 4, "hidden": 3, "out_dim": 4, "rank": 1, "rank_out_factor": 2, "rank_in_factor": 1},
    ),
    "relu_three_layer_fixed_regions": (
        {"input_dim": 3, "groups": [{"outputs": 2, "hidden": 2, "rank": 1}]},
        {"input_dim": 3, "groups": [[2, 2, 1], [1, 2, 0]]},
    ),
    "quadratic_single_output_bias": ({"input_dim": 4, "hidden": 2}, {"input_dim": 3, "hidden": 6}),
    "quadratic_multi_output_generic": ({"input_dim": 4, "outputs": 3, "hidden": 3},),
    "quadratic_stage_two": ({"input_dim": 6, "outputs": 3, "hidden": 9, "effective_width": 6},),
    "quadratic_modular_addition_generic": (
        {"modulus": 3, "hidden": 4, "centred": True},
        {"modulus": 5, "hidden": 2, "centred": False, "data": [[0, 1], [2, 3], [4, 4]]},
    ),
    "quadratic_modular_addition_fourier": ({"modulus": 3},),
    "lazy_random_features_modular_addition": ({"modulus": 5, "hidden": 12, "centred": True},),
    "linearised_ntk": ({"jacobian_rows": [[1, 2, 3], [2, 4, 6], [0, 1, 1]]},),
    "interpolation_manifold": ({"n_params": 50, "n_data": 8, "output_dim": 2},),
    "tanh_zero_truth": tuple({"hidden": h} for h in (1, 4, 7)),
    "gaussian_mixture_two_components": ({"dim": 1}, {"dim": 3}),
    "naive_bayes_binary": tuple({"features": n} for n in (1, 2, 5)),
    "lda_stochastic_matrix_factorisation": ({"vocab": 5, "docs": 6, "topics": 3, "rank": 2},),
}

for _family in FAMILIES:
    call(f"exact {_family}")(
        lambda family=_family: [refused(lambda p=p: exact.evaluate(family, **p)) for p in FAMILIES[family]]
    )


@call("exact catalog")
def _() -> object:
    return [[family.name, family.scope, family.defaults, family.aliases] for family in exact.catalog()]


@call("exact combinations")
def _() -> object:
    one, other = exact.regular(3), exact.normal_crossing([1, 1])
    return [exact.sum_of(one, other), exact.product_of(one, other), exact.power(other, 2), exact.strata(one, other)]


@call("exact ideals and intervals")
def _() -> object:
    return [
        exact.ideal(["x*y", "x**2-y"]),
        exact.ideal(["x*y", "x+y**2"], point=[0, 0]),
        exact.polynomial("x**2+y**4", local=True),
        refused(lambda: exact.polynomial("(x**3+y**3+z**3-3*x*y*z)**2")),
        exact.LearningCoefficient.interval(1, 2, citation="none"),
        exact.deep_linear_local_at([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]]),
        exact.quadratic_multi_output(5, 4, 6),
        exact.fourier_solution(3),
    ]


@call("exact ranks")
def _() -> object:
    rows = [[1, 2, 3], [2, 4, 6], [1, 0, 1]]
    return [
        exact.exact_rank(rows),
        exact.matrix_rank(rows),
        exact.modular_rank(rows),
        exact.numerical_rank([[float(x) for x in row] for row in rows]),
        exact.numerical_rank([[1.0, 0.0], [0.0, 1e-9]]),
        exact.features_independent(rows),
        exact.features_span(rows),
        exact.identifies_quadratics([[1, 0], [0, 1], [1, 1], [1, -1]]),
        exact.units_independent(rows[:2], [[1, 0], [0, 1]]),
    ]


@call("exact: wrong input")
def _() -> object:
    return [
        refused(lambda: exact.evaluate("no such family")),
        refused(lambda: exact.evaluate("regular", dim=-1)),
        refused(lambda: exact.evaluate("dln", widths=[2, 2], rank=5)),
        refused(lambda: exact.polynomial("x**y")),
    ]
