"""Spectral laws, their free sums, Hessian models made of them, and fits to measured spectra.

Names are resolved when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crunode._lazy import resolver

if TYPE_CHECKING:
    from crunode.spectra.criticality import (
        critical_energy,
        edge_energy,
        index,
        index_limit,
        index_near_critical,
        index_prefactor,
    )
    from crunode.spectra.fitting import BulkFit, fit_bulk
    from crunode.spectra.hessian_models import hessian_law, linear_network_residual, residual_law
    from crunode.spectra.index_fit import IndexFit, fit_index
    from crunode.spectra.laws import Law, free_poisson, marchenko_pastur, point_mass, semicircle
    from crunode.spectra.random_matrices import kolmogorov_distance, random_matrix, random_spectrum
    from crunode.spectra.tails import TailFit, tail_exponent

_HOMES = {
    "criticality": (
        "critical_energy",
        "edge_energy",
        "index",
        "index_limit",
        "index_near_critical",
        "index_prefactor",
    ),
    "fitting": (
        "BulkFit",
        "fit_bulk",
    ),
    "hessian_models": (
        "hessian_law",
        "linear_network_residual",
        "residual_law",
    ),
    "index_fit": (
        "IndexFit",
        "fit_index",
    ),
    "laws": (
        "Law",
        "free_poisson",
        "marchenko_pastur",
        "point_mass",
        "semicircle",
    ),
    "random_matrices": (
        "kolmogorov_distance",
        "random_matrix",
        "random_spectrum",
    ),
    "tails": (
        "TailFit",
        "tail_exponent",
    ),
}

__all__ = [
    "BulkFit",
    "IndexFit",
    "Law",
    "TailFit",
    "critical_energy",
    "edge_energy",
    "fit_bulk",
    "fit_index",
    "free_poisson",
    "hessian_law",
    "index",
    "index_limit",
    "index_near_critical",
    "index_prefactor",
    "kolmogorov_distance",
    "linear_network_residual",
    "marchenko_pastur",
    "point_mass",
    "random_matrix",
    "random_spectrum",
    "residual_law",
    "semicircle",
    "tail_exponent",
]

__getattr__ = resolver("crunode.spectra", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
