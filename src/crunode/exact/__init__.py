"""Exact learning coefficients of model families with a theorem. Needs the standard library only.

Names are resolved when first used, so that one family does not cost the import of all others. `evaluate` takes a family
by name; functions with `local` in their name, and those on quadratic networks, give the coefficient at a parameter.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.exact.algebra.ideals import monomial_ideal as monomial_ideal
    from crunode.exact.algebra.newton import ideal as ideal
    from crunode.exact.algebra.newton import polynomial as polynomial
    from crunode.exact.combine import power as power
    from crunode.exact.combine import product_of as product_of
    from crunode.exact.combine import strata as strata
    from crunode.exact.combine import sum_of as sum_of
    from crunode.exact.families import gaussian_mixture_two_components as gaussian_mixture_two_components
    from crunode.exact.families import interpolation_manifold as interpolation_manifold
    from crunode.exact.families import lda as lda
    from crunode.exact.families import linearised as linearised
    from crunode.exact.families import naive_bayes_binary as naive_bayes_binary
    from crunode.exact.families import normal_crossing as normal_crossing
    from crunode.exact.families import regular as regular
    from crunode.exact.families import tanh_zero_truth as tanh_zero_truth
    from crunode.exact.hypotheses import HypothesisCheck as HypothesisCheck
    from crunode.exact.hypotheses import features_independent as features_independent
    from crunode.exact.hypotheses import features_span as features_span
    from crunode.exact.hypotheses import identifies_quadratics as identifies_quadratics
    from crunode.exact.hypotheses import units_independent as units_independent
    from crunode.exact.linear_networks import deep_linear as deep_linear
    from crunode.exact.linear_networks import deep_linear_depth_limit as deep_linear_depth_limit
    from crunode.exact.linear_networks import reduced_rank as reduced_rank
    from crunode.exact.linear_networks import reduced_rank_local as reduced_rank_local
    from crunode.exact.linear_networks import relu_three_layer as relu_three_layer
    from crunode.exact.local_linear import deep_linear_local as deep_linear_local
    from crunode.exact.local_linear import deep_linear_local_at as deep_linear_local_at
    from crunode.exact.modular_addition import fourier_solution as fourier_solution
    from crunode.exact.modular_addition import lazy_random_features as lazy_random_features
    from crunode.exact.modular_addition import quadratic_modular_addition as quadratic_modular_addition
    from crunode.exact.quadratic import quadratic_multi_output as quadratic_multi_output
    from crunode.exact.quadratic import quadratic_single_output as quadratic_single_output
    from crunode.exact.quadratic import stage_two as stage_two
    from crunode.exact.rank import RankResult as RankResult
    from crunode.exact.rank import exact_rank as exact_rank
    from crunode.exact.rank import matrix_rank as matrix_rank
    from crunode.exact.rank import modular_rank as modular_rank
    from crunode.exact.rank import numerical_rank as numerical_rank
    from crunode.exact.registry import Family as Family
    from crunode.exact.registry import catalog as catalog
    from crunode.exact.registry import evaluate as evaluate
    from crunode.exact.result import STATUSES as STATUSES
    from crunode.exact.result import LearningCoefficient as LearningCoefficient
else:
    __getattr__, __dir__, __all__ = exports(__name__)
