"""The calls of the golden runs, by subject: each is a function of a name of its own, small, and the same every time.

They use public names and the command line alone, so that they mean the same whatever module a thing lives in.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

SUBJECTS = (
    "recipes",
    "ways",
    "estimates",
    "kernels",
    "criteria",
    "topology",
    "curvature",
    "training",
    "spectra",
    "exact",
)
"""Modules with calls, the longest first."""

CALLS: dict[str, Callable[[], object]] = {}


def call(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Make a function a golden call under a name that no other has."""

    def add(function: Callable[[], object]) -> Callable[[], object]:
        if name in CALLS:
            raise ValueError(f"expected a name of its own for each golden call, got {name!r} twice")
        CALLS[name] = function
        return function

    return add


def refused(function: Callable[[], object]) -> object:
    """The error that a call is expected to raise, or what it returned instead."""
    try:
        return {"returned": function()}
    except Exception as error:
        return {"error": error}


def all_calls() -> dict[str, Callable[[], object]]:
    """Every call by its name."""
    for subject in SUBJECTS:
        importlib.import_module(f"golden_calls.{subject}")
    return CALLS
