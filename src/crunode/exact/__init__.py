"""Exact learning coefficients of model families with a theorem. Needs the standard library only.

Names are resolved when first used, so that one family does not cost the import of all others. `evaluate` takes a family
by name; functions with `local` in their name, and those on quadratic networks, give the coefficient at a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crunode._lazy import resolver

if TYPE_CHECKING:
    from crunode.exact.algebra.ideals import monomial_ideal
    from crunode.exact.algebra.newton import ideal, polynomial
    from crunode.exact.combine import power, product_of, strata, sum_of
    from crunode.exact.families import (
        gaussian_mixture_two_components,
        interpolation_manifold,
        lda,
        linearised,
        naive_bayes_binary,
        normal_crossing,
        regular,
        tanh_zero_truth,
    )
    from crunode.exact.hypotheses import (
        HypothesisCheck,
        features_independent,
        features_span,
        identifies_quadratics,
        units_independent,
    )
    from crunode.exact.linear_networks import (
        deep_linear,
        deep_linear_depth_limit,
        reduced_rank,
        reduced_rank_local,
        relu_three_layer,
    )
    from crunode.exact.local_linear import deep_linear_local, deep_linear_local_at
    from crunode.exact.modular_addition import fourier_solution, lazy_random_features, quadratic_modular_addition
    from crunode.exact.quadratic import quadratic_multi_output, quadratic_single_output, stage_two
    from crunode.exact.rank import RankResult, exact_rank, matrix_rank, modular_rank, numerical_rank
    from crunode.exact.registry import Family, catalog, evaluate
    from crunode.exact.result import STATUSES, LearningCoefficient

_HOMES = {
    "combine": ("power", "product_of", "strata", "sum_of"),
    "families": (
        "gaussian_mixture_two_components",
        "interpolation_manifold",
        "lda",
        "linearised",
        "naive_bayes_binary",
        "normal_crossing",
        "regular",
        "tanh_zero_truth",
    ),
    "hypotheses": (
        "HypothesisCheck",
        "features_independent",
        "features_span",
        "identifies_quadratics",
        "units_independent",
    ),
    "algebra.ideals": ("monomial_ideal",),
    "linear_networks": (
        "deep_linear",
        "deep_linear_depth_limit",
        "reduced_rank",
        "reduced_rank_local",
        "relu_three_layer",
    ),
    "local_linear": ("deep_linear_local", "deep_linear_local_at"),
    "modular_addition": ("fourier_solution", "lazy_random_features", "quadratic_modular_addition"),
    "algebra.newton": ("ideal", "polynomial"),
    "quadratic": ("quadratic_multi_output", "quadratic_single_output", "stage_two"),
    "rank": ("RankResult", "exact_rank", "matrix_rank", "modular_rank", "numerical_rank"),
    "registry": ("Family", "catalog", "evaluate"),
    "result": ("STATUSES", "LearningCoefficient"),
}

__all__ = [
    "STATUSES",
    "Family",
    "HypothesisCheck",
    "LearningCoefficient",
    "RankResult",
    "catalog",
    "deep_linear",
    "deep_linear_depth_limit",
    "deep_linear_local",
    "deep_linear_local_at",
    "evaluate",
    "exact_rank",
    "features_independent",
    "features_span",
    "fourier_solution",
    "gaussian_mixture_two_components",
    "ideal",
    "identifies_quadratics",
    "interpolation_manifold",
    "lazy_random_features",
    "lda",
    "linearised",
    "matrix_rank",
    "modular_rank",
    "monomial_ideal",
    "naive_bayes_binary",
    "normal_crossing",
    "numerical_rank",
    "polynomial",
    "power",
    "product_of",
    "quadratic_modular_addition",
    "quadratic_multi_output",
    "quadratic_single_output",
    "reduced_rank",
    "reduced_rank_local",
    "regular",
    "relu_three_layer",
    "stage_two",
    "strata",
    "sum_of",
    "tanh_zero_truth",
    "units_independent",
]

__getattr__ = resolver("crunode.exact", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
