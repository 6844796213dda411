"""Spectral laws, their free sums, Hessian models made of them, and fits to measured spectra.

Names are resolved when first used.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.spectra.criticality import critical_energy as critical_energy
    from crunode.spectra.criticality import edge_energy as edge_energy
    from crunode.spectra.criticality import index as index
    from crunode.spectra.criticality import index_limit as index_limit
    from crunode.spectra.criticality import index_near_critical as index_near_critical
    from crunode.spectra.criticality import index_prefactor as index_prefactor
    from crunode.spectra.fitting import BulkFit as BulkFit
    from crunode.spectra.fitting import fit_bulk as fit_bulk
    from crunode.spectra.hessian_models import hessian_law as hessian_law
    from crunode.spectra.hessian_models import linear_network_residual as linear_network_residual
    from crunode.spectra.hessian_models import residual_law as residual_law
    from crunode.spectra.index_fit import IndexFit as IndexFit
    from crunode.spectra.index_fit import fit_index as fit_index
    from crunode.spectra.laws import Law as Law
    from crunode.spectra.laws import free_poisson as free_poisson
    from crunode.spectra.laws import marchenko_pastur as marchenko_pastur
    from crunode.spectra.laws import point_mass as point_mass
    from crunode.spectra.laws import semicircle as semicircle
    from crunode.spectra.random_matrices import kolmogorov_distance as kolmogorov_distance
    from crunode.spectra.random_matrices import random_matrix as random_matrix
    from crunode.spectra.random_matrices import random_spectrum as random_spectrum
    from crunode.spectra.tails import TailFit as TailFit
    from crunode.spectra.tails import tail_exponent as tail_exponent
else:
    __getattr__, __dir__, __all__ = exports(__name__)
