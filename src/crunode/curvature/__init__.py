"""First and second derivatives of a landscape: operators, what is estimated from them, and steps that use them.

Names are resolved when first used. The operator of the Jacobian is `crunode.curvature.operators.jacobian`: under its
own name this package has the module of Jacobian rows in double precision.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.curvature.dimension import effective_dimension as effective_dimension
    from crunode.curvature.dimension import matrix_rank as matrix_rank
    from crunode.curvature.dimension import participation_ratio as participation_ratio
    from crunode.curvature.dimension import sharpness as sharpness
    from crunode.curvature.gauss_newton import Descent as Descent
    from crunode.curvature.gauss_newton import GaussNewton as GaussNewton
    from crunode.curvature.gauss_newton import gauss_newton_step as gauss_newton_step
    from crunode.curvature.gauss_newton import linearized_descent as linearized_descent
    from crunode.curvature.gram import ExampleRows as ExampleRows
    from crunode.curvature.gram import damped_solve as damped_solve
    from crunode.curvature.gram import example_rows as example_rows
    from crunode.curvature.gram import ggn_eigenvalues as ggn_eigenvalues
    from crunode.curvature.gram import tangent_kernel as tangent_kernel
    from crunode.curvature.lanczos import Eigenvalues as Eigenvalues
    from crunode.curvature.lanczos import SpectralDensity as SpectralDensity
    from crunode.curvature.lanczos import function_trace as function_trace
    from crunode.curvature.lanczos import log_determinant as log_determinant
    from crunode.curvature.lanczos import spectral_density as spectral_density
    from crunode.curvature.lanczos import top_eigenvalues as top_eigenvalues
    from crunode.curvature.lazy import Laziness as Laziness
    from crunode.curvature.lazy import gradient_change_bound as gradient_change_bound
    from crunode.curvature.lazy import lazy_diagnostics as lazy_diagnostics
    from crunode.curvature.lazy import linearization_error as linearization_error
    from crunode.curvature.lazy import width_exponent as width_exponent
    from crunode.curvature.linalg import Products as Products
    from crunode.curvature.linalg import VectorEstimate as VectorEstimate
    from crunode.curvature.linalg import diagonal as diagonal
    from crunode.curvature.linalg import trace as trace
    from crunode.curvature.linearized import Linearized as Linearized
    from crunode.curvature.linearized import linearize as linearize
    from crunode.curvature.natural import NaturalGradient as NaturalGradient
    from crunode.curvature.natural import NaturalStep as NaturalStep
    from crunode.curvature.operators import Operator as Operator
    from crunode.curvature.operators import fisher as fisher
    from crunode.curvature.operators import ggn as ggn
    from crunode.curvature.operators import hessian as hessian
    from crunode.curvature.operators import ntk as ntk
    from crunode.curvature.operators import residual_part as residual_part
    from crunode.curvature.traces import ggn_trace as ggn_trace
    from crunode.curvature.traces import hessian_trace as hessian_trace
else:
    __getattr__, __dir__, __all__ = exports(__name__)
