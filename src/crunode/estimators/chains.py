"""What every estimate from draws has to ask first: which level is meant, and did the chains get around?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Finding
from crunode.errors import InputError
from crunode.sampling.diagnostics import ess, split_rhat

__all__ = ["chain_findings", "chosen_level"]

_RHAT_LIMIT, _FEWEST = 1.05, 100


def chosen_level(draws: Draws, nbeta: float | None) -> float:
    """The level of nbeta that is meant: the one given, or the only one there is.

    Example:
        >>> draws = Draws({"excess": np.zeros((2, 5))}, {}, np.array([3.0, 3.0]), {})
        >>> chosen_level(draws, None)
        3.0
    """
    if not isinstance(draws, Draws):
        raise InputError(f"expected Draws from sample(...), got {type(draws).__name__}")
    levels = draws.levels()
    if nbeta is None:
        if len(levels) > 1:
            raise InputError(f"expected nbeta= to say which of the levels {levels} is meant, got none")
        return levels[0]
    draws.at(nbeta)  # raises, saying which levels there are
    return float(nbeta)


def chain_findings(draws: Draws, losses: Mapping[float, NDArray[np.float64]]) -> Iterator[Finding]:
    """What was noticed while sampling, and how chains did by their losses.

    Left out is what was noticed about the learning coefficient.

    Args:
        draws: The draws.
        losses: Losses (chain, draw) at each level of nbeta that is used.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> draws = Draws({"excess": np.zeros((2, 5))}, {}, np.array([3.0, 3.0]), {})
        >>> [f.code for f in chain_findings(draws, {3.0: rng.standard_normal((2, 500)) + np.array([[0.0], [5.0]])})]
        ['MC201', 'MC202']
    """
    yield from (f for f in draws.findings if not f.code.startswith("LLC"))
    rhats = {t: split_rhat(x) for t, x in losses.items()}
    worst = max(rhats, key=lambda t: rhats[t] if np.isfinite(rhats[t]) else np.inf)
    if not rhats[worst] < _RHAT_LIMIT:
        yield Finding.of("MC201", f"R-hat {rhats[worst]:.3f} (limit {_RHAT_LIMIT}) at nbeta {worst:.3g}")
    sizes = {t: ess(x) for t, x in losses.items()}
    few = min(sizes, key=lambda t: sizes[t] if np.isfinite(sizes[t]) else 0.0)
    if not sizes[few] >= _FEWEST:
        yield Finding.of("MC202", f"{sizes[few]:.0f} at nbeta {few:.3g}")
