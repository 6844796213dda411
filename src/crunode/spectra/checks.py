"""What numbers and spectra have to be before anything is computed from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crunode.errors import InputError

__all__ = ["checked_number", "checked_spectrum"]


def checked_number(value: Any, name: str, *, least: float = -math.inf, above: bool = False, advice: str = "") -> float:
    """`value` as a float.

    Args:
        value: What was given.
        name: How the caller calls it.
        least: The smallest value allowed.
        above: Whether it has to be larger than `least`.
        advice: What to do, for the message.

    Raises:
        InputError: It is no finite number, or too small.

    Example:
        >>> checked_number(2, "ratio", least=0, above=True)
        2.0
    """
    wanted = "a finite number" if least == -math.inf else f"a finite number {'above' if above else 'from'} {least:g}"
    wanted += " up" if least > -math.inf and not above else ""
    numeric = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value) or value < least or (above and value == least):
        raise InputError(f"expected {name} as {wanted}, got {value!r}{'; ' + advice if advice else ''}")
    return float(value)


def checked_spectrum(eigenvalues: Any, name: str = "eigenvalues", least: int = 1) -> np.ndarray:
    """Eigenvalues in ascending order, as a new array of doubles.

    Args:
        eigenvalues: A sequence, array or tensor of one axis.
        name: How the caller calls it.
        least: How many there have to be.

    Raises:
        InputError: They are not real and finite, not in one row, or too few.

    Example:
        >>> checked_spectrum([2.0, 1.0])
        array([1., 2.])
    """
    given = eigenvalues.detach().cpu() if hasattr(eigenvalues, "detach") else eigenvalues
    try:
        values = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected {name} as one row of numbers, got {type(eigenvalues).__name__} ({error})"
        ) from error
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InputError(
            f"expected {name} as one row of real numbers, got shape {values.shape} of {values.dtype}; for a symmetric "
            "matrix take np.linalg.eigvalsh of it"
        )
    if len(values) < least:
        raise InputError(f"expected at least {least} {name}, got {len(values)}")
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise InputError(
            f"expected finite {name}, got {bad} of {len(values)} that are not; look for overflow in the matrix they "
            "come from"
        )
    return np.sort(values.astype(np.float64))
