"""Random matrices with a given spectral law, and how far a spectrum is from one."""

from __future__ import annotations

from typing import Any

import numpy as np

from crunode.core.rng import derived_seed
from crunode.errors import InputError
from crunode.spectra.checks import checked_number, checked_spectrum
from crunode.spectra.laws import Law

__all__ = ["kolmogorov_distance", "merged_at_atoms", "random_matrix", "random_spectrum"]


def random_matrix(law: Law, size: int, seed: int = 0) -> np.ndarray:
    """A symmetric matrix whose spectrum tends to `law` as it grows: Wishart and Wigner matrices with normal entries.

    A jump t at the rate r gives t XᵀX/n with X of shape (r n, n), r n rounded to a whole number.

    Args:
        law: The law.
        size: n, its rows and columns.
        seed: Where all randomness comes from.

    Raises:
        InputError: `law` is none, or the size is not a whole number from 1 up.

    Example:
        >>> from crunode.spectra.laws import semicircle
        >>> random_matrix(semicircle(1.0), 3).shape
        (3, 3)
    """
    if not isinstance(law, Law):
        raise InputError(f"expected a law, as marchenko_pastur(0.5) gives, got {type(law).__name__}")
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise InputError(f"expected size as a whole number from 1 up, got {size!r}")
    rng = np.random.default_rng(derived_seed(seed, size))
    found = law.shift * np.eye(size)
    if law.semicircular:
        square = rng.standard_normal((size, size))
        found += np.sqrt(law.semicircular / (2 * size)) * (square + square.T)
    for rate, jump in zip(law.rates, law.jumps, strict=True):
        rows = rng.standard_normal((round(rate * size), size))
        found += jump / size * (rows.T @ rows)
    return found


def random_spectrum(law: Law, size: int, seed: int = 0) -> np.ndarray:
    """The eigenvalues of a `random_matrix`, ascending.

    Example:
        >>> from crunode.spectra.laws import marchenko_pastur
        >>> law = marchenko_pastur(0.5)
        >>> kolmogorov_distance(random_spectrum(law, 200), law) < 0.02
        True
    """
    return np.linalg.eigvalsh(random_matrix(law, size, seed))


def merged_at_atoms(values: np.ndarray, law: Law, resolution: float = 1e-9) -> np.ndarray:
    """Sorted `values` with those that rounding set apart from an atom of `law` put back on it.

    Args:
        values: Eigenvalues, ascending.
        law: The law.
        resolution: How near they have to be, as a share of the largest eigenvalue: rounding of the computation.

    Example:
        >>> from crunode.spectra.laws import marchenko_pastur
        >>> merged_at_atoms(np.array([-1e-15, 1e-15, 9.0]), marchenko_pastur(4.0))
        array([0., 0., 9.])
    """
    size = np.abs(values).max(initial=0.0)
    for at, _ in law.atoms:
        values = np.where(np.abs(values - at) <= resolution * size, at, values)
    return values


def kolmogorov_distance(eigenvalues: Any, other: Any, resolution: float = 1e-9) -> float:
    """The largest difference, over x, between the share of eigenvalues up to x and a law or another spectrum.

    Eigenvalues of large random matrices are rigid: for n of them it is of the order of 1/n, up to logarithms, where
    independent draws would give 1/√n.

    Args:
        eigenvalues: A spectrum.
        other: A law, or eigenvalues.
        resolution: Eigenvalues this near to an atom of the law, as a share of the largest, count as lying on it.

    Raises:
        InputError: The spectra are empty or not finite.

    Example:
        >>> from crunode.spectra.laws import marchenko_pastur
        >>> kolmogorov_distance([0.0, 0.0, 0.0, 4.5], marchenko_pastur(4.0))
        0.156...
        >>> kolmogorov_distance([1.0, 2.0], [1.0, 3.0])
        0.5
    """
    values = checked_spectrum(eigenvalues)
    checked_number(resolution, "resolution", least=0.0)
    if not isinstance(other, Law):
        second = checked_spectrum(other, "other eigenvalues")
        points = np.concatenate([values, second])
        shares = [np.searchsorted(v, points, side="right") / len(v) for v in (values, second)]
        return float(np.abs(shares[0] - shares[1]).max())
    values = merged_at_atoms(values, other, resolution)
    at = other.cdf(values)
    below = at - sum(mass * (values == place) for place, mass in other.atoms)
    upper = np.searchsorted(values, values, side="right") / len(values)
    lower = np.searchsorted(values, values, side="left") / len(values)
    found = [np.abs(upper - at).max(), np.abs(lower - below).max()]
    # An atom may lie where there is no eigenvalue.
    for place, mass in other.atoms:
        found.append(abs(np.searchsorted(values, place, side="right") / len(values) - float(other.cdf(place))))
        found.append(abs(np.searchsorted(values, place, side="left") / len(values) - float(other.cdf(place)) + mass))
    return float(max(found))
