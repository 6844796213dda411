"""What a report asks of chains and series: diagnostics and change points, or nothing where the data allow no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crunode.errors import CrunodeError
from crunode.sampling.diagnostics import chain_means, ess, split_rhat
from crunode.training.transitions import find_transitions

__all__ = ["chain_figures", "changes_of"]

_LEAST, _MOST = 6, 400


def chain_figures(values: Any, alone: int) -> dict[str, Any]:
    """Split R-hat and effective sample size of chains together, and means, R-hat and sizes of each by itself.

    Args:
        values: One scalar along the chains, shape (chain, draw).
        alone: How many chains to look at by themselves.

    Example:
        >>> found = chain_figures(np.random.default_rng(0).normal(size=(2, 400)), alone=2)
        >>> found["rhat"] < 1.05, len(found["each"])
        (True, 2)
    """
    each = [
        {"mean": float(mean), "rhat": float(split_rhat(row)), "ess": float(ess(row))}
        for row, mean in zip(values[:alone], chain_means(values[:alone]), strict=True)
    ]
    return {"rhat": float(split_rhat(values)), "ess": float(ess(values)), "each": each}


def changes_of(steps: Sequence[int], values: Sequence[float], errors: Sequence[float], name: str) -> Any:
    """Change points of a series, as `Trajectory.transitions` finds them; None for too few or too many points.

    Example:
        >>> y = [9.0, 9.2, 8.9, 9.1, 9.0, 4.0, 4.1, 3.9, 4.0, 4.1]
        >>> len(changes_of(range(10), y, [0.1] * 10, "llc").changes)
        1
    """
    if not _LEAST <= len(steps) <= _MOST:
        return None
    try:
        with np.errstate(all="ignore"):
            return find_transitions(list(steps), list(values), list(errors), name=name)
    except (CrunodeError, ArithmeticError, ValueError, np.linalg.LinAlgError):  # numbers that no training gives
        return None
