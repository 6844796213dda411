"""Golden calls of spectral laws, Hessian models made of them, and fits."""

from __future__ import annotations

import numpy as np

import crunode as cr
from crunode import spectra
from golden_calls import call, refused


def law() -> spectra.Law:
    return spectra.marchenko_pastur(0.5) + spectra.semicircle(0.3)


@call("laws")
def _() -> object:
    found = []
    for one in (
        law(),
        spectra.free_poisson(0.5, 2.0),
        spectra.semicircle(1.0, 0.5),
        spectra.point_mass(1.0),
        2 * law() + 1,
    ):
        found.append([one.edges, one.atoms, one.moments(4), one.cdf(0.4), one.cumulant(3), one.inverse(3.0 + 0.1j)])
    return [*found, law().density(np.linspace(-1, 4, 21)), law().quantile(0.9)]


@call("random matrices")
def _() -> object:
    values = spectra.random_spectrum(law(), 60, seed=1)
    matrix = spectra.random_matrix(law(), 30, seed=2)
    return [
        values,
        matrix,
        spectra.kolmogorov_distance(values, law()),
        spectra.kolmogorov_distance(values, values[:30]),
    ]


@call("fit_bulk")
def _() -> object:
    bulk = spectra.random_spectrum(spectra.marchenko_pastur(0.5, 2.0), 80, seed=1)
    round_bulk = spectra.random_spectrum(spectra.semicircle(1.0), 60, seed=1)
    return [spectra.fit_bulk([*bulk, 12.0]), spectra.fit_bulk(round_bulk, "semicircle")]


@call("tails and index fits")
def _() -> object:
    rng = np.random.default_rng(0)
    energy = np.linspace(0.21, 0.3, 10)
    share = 0.1 * (energy / 0.2 - 1) ** 1.5 * (1 + 0.01 * rng.standard_normal(10))
    return [
        spectra.tail_exponent(rng.pareto(2.0, 200) + 1),
        spectra.tail_exponent(rng.exponential(1.0, 200)),
        spectra.fit_index(energy, share),
        spectra.fit_index(energy, share, np.full(10, 1e-3), exponent=1.5),
    ]


@call("Hessian models")
def _() -> object:
    models = []
    for model in ("linear", "relu"):
        models.append(
            [
                spectra.critical_energy(0.25, model),
                spectra.index([0.05, 0.1, 0.5], 0.25, model),
                spectra.index_limit(2.0, model),
                spectra.index_prefactor(0.25, model),
                spectra.index_near_critical(0.05, 0.25, model),
                spectra.hessian_law(0.2, 0.25, model).edges,
                spectra.residual_law(0.2, 0.25, model).moments(4),
            ]
        )
    edge = spectra.edge_energy(lambda energy: spectra.hessian_law(energy, 0.25), 1e-3, 1.0)
    return [*models, edge, spectra.linear_network_residual(0.2, 0.25)]


@call("spectra: wrong input")
def _() -> object:
    return [
        refused(lambda: spectra.marchenko_pastur(-1.0)),
        refused(lambda: spectra.fit_bulk([1.0, 2.0])),
        refused(lambda: spectra.critical_energy(0.25, "cubic")),
        refused(lambda: spectra.random_spectrum(law(), 0)),
        refused(lambda: cr.spectra.index([-1.0], 0.25)),
    ]
