"""First and second derivatives of a landscape: operators, what is estimated from them, and steps that use them.

Names are resolved when first used. The operator of the Jacobian is `crunode.curvature.operators.jacobian`: under its
own name this package has the module of Jacobian rows in double precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crunode._lazy import resolver

if TYPE_CHECKING:
    from crunode.curvature.dimension import effective_dimension, matrix_rank, participation_ratio, sharpness
    from crunode.curvature.gauss_newton import Descent, GaussNewton, gauss_newton_step, linearized_descent
    from crunode.curvature.gram import ExampleRows, damped_solve, example_rows, ggn_eigenvalues, tangent_kernel
    from crunode.curvature.lanczos import (
        Eigenvalues,
        SpectralDensity,
        function_trace,
        log_determinant,
        spectral_density,
        top_eigenvalues,
    )
    from crunode.curvature.lazy import (
        Laziness,
        gradient_change_bound,
        lazy_diagnostics,
        linearization_error,
        width_exponent,
    )
    from crunode.curvature.linalg import Products, VectorEstimate, diagonal, trace
    from crunode.curvature.linearized import Linearized, linearize
    from crunode.curvature.natural import NaturalGradient, NaturalStep
    from crunode.curvature.operators import Operator, fisher, ggn, hessian, ntk, residual_part
    from crunode.curvature.traces import ggn_trace, hessian_trace

_HOMES = {
    "dimension": (
        "effective_dimension",
        "matrix_rank",
        "participation_ratio",
        "sharpness",
    ),
    "gauss_newton": (
        "Descent",
        "GaussNewton",
        "gauss_newton_step",
        "linearized_descent",
    ),
    "gram": (
        "ExampleRows",
        "damped_solve",
        "example_rows",
        "ggn_eigenvalues",
        "tangent_kernel",
    ),
    "lanczos": (
        "Eigenvalues",
        "SpectralDensity",
        "function_trace",
        "log_determinant",
        "spectral_density",
        "top_eigenvalues",
    ),
    "lazy": (
        "Laziness",
        "gradient_change_bound",
        "lazy_diagnostics",
        "linearization_error",
        "width_exponent",
    ),
    "linalg": (
        "Products",
        "VectorEstimate",
        "diagonal",
        "trace",
    ),
    "linearized": (
        "Linearized",
        "linearize",
    ),
    "natural": (
        "NaturalGradient",
        "NaturalStep",
    ),
    "operators": (
        "Operator",
        "fisher",
        "ggn",
        "hessian",
        "ntk",
        "residual_part",
    ),
    "traces": (
        "ggn_trace",
        "hessian_trace",
    ),
}

__all__ = [
    "Descent",
    "Eigenvalues",
    "ExampleRows",
    "GaussNewton",
    "Laziness",
    "Linearized",
    "NaturalGradient",
    "NaturalStep",
    "Operator",
    "Products",
    "SpectralDensity",
    "VectorEstimate",
    "damped_solve",
    "diagonal",
    "effective_dimension",
    "example_rows",
    "fisher",
    "function_trace",
    "gauss_newton_step",
    "ggn",
    "ggn_eigenvalues",
    "ggn_trace",
    "gradient_change_bound",
    "hessian",
    "hessian_trace",
    "lazy_diagnostics",
    "linearization_error",
    "linearize",
    "linearized_descent",
    "log_determinant",
    "matrix_rank",
    "ntk",
    "participation_ratio",
    "residual_part",
    "sharpness",
    "spectral_density",
    "tangent_kernel",
    "top_eigenvalues",
    "trace",
    "width_exponent",
]

__getattr__ = resolver("crunode.curvature", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
