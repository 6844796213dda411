"""`check_probe`: is a function of a landscape one that trackers, sweeps and reports can use?"""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.core.rng import preserved_rng
from crunode.errors import DiagnosticWarning
from crunode.store.documents import dumps, loads

__all__ = ["check_probe"]


def check_probe(probe: Callable[..., Estimate], landscape: Landscape, *, seed: int = 0) -> Estimate:
    """Check the contract of a probe, any function `Landscape -> Estimate`.

    It has to return an `Estimate` with a finite value and standard error that survives a trip through JSON; to leave
    the landscape, the global random states, the default dtype, the gradient mode and the number of threads as they
    were; and to give the same value again for the same seed whatever the global random state. A probe with an argument
    `seed` is given one.

    Args:
        probe: The function; it is called twice.
        landscape: A landscape it can measure, small enough for that.
        seed: Seed for a probe that takes one.

    Returns:
        The estimate of the first call.

    Raises:
        AssertionError: The probe breaks the contract; the message says where.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.ones(2))
        >>> def depth(landscape):
        ...     return Estimate("depth", float(landscape.loss()), se=0.0)
        >>> check_probe(depth, land).value
        2.0
    """
    name = getattr(probe, "__name__", type(probe).__name__)
    before = landscape.fingerprint()
    options = {"seed": seed} if _takes_seed(probe) else {}
    first, second = (_called(probe, landscape, options, state, name) for state in (101, 202))
    require(landscape.fingerprint() == before, f"{name} changed the center, the frozen weights or the data")
    for which in ("value", "se", "systematic"):
        number = getattr(first, which)
        require(math.isfinite(number), f"{name}: expected a finite {which}, got {number}")
    require(min(first.se, first.systematic) >= 0, f"{name}: expected errors from 0 up, got {first.se}")
    require(bool(first.name), f"{name}: expected an estimate with a name")
    text = dumps(first.to_dict())
    again = dumps(Estimate.from_dict(loads(text)).to_dict())
    require(again == text, f"{name}: expected an estimate that survives to_dict, JSON and from_dict")
    message = f"{name}: expected the same value from the same seed, got {first.value!r} and {second.value!r}"
    require(first.value == second.value, message)
    return first


def _called(probe: Callable[..., Any], land: Landscape, options: dict[str, Any], noise: int, name: str) -> Estimate:
    with preserved_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        random.seed(noise)
        before = surroundings()
        estimate: Estimate = probe(land, **options)
        changed = [what for what, value in surroundings().items() if value != before[what]]
    require(not changed, f"{name} changed {', '.join(changed)}")
    require(isinstance(estimate, Estimate), f"{name}: expected an Estimate, got {type(estimate).__name__}")
    return estimate


def surroundings() -> dict[str, Any]:
    return {
        "the random state of torch": torch.get_rng_state().tolist(),
        "the random state of numpy": str(np.random.get_state(legacy=False)),  # noqa: NPY002
        "the random state of Python": random.getstate(),
        "the default dtype": torch.get_default_dtype(),
        "the gradient mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
    }


def _takes_seed(probe: Callable[..., Any]) -> bool:
    try:
        return "seed" in inspect.signature(probe).parameters
    except (TypeError, ValueError):
        return False


def require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
