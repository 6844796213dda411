"""Every exception and warning of the library, on one screen. Finding codes are in `crunode.findings`."""

from __future__ import annotations

from typing import Any

from crunode.findings import FINDINGS, FindingKind

__all__ = [
    "FINDINGS",
    "CrunodeError",
    "DeadlineReached",
    "DiagnosticWarning",
    "EstimationError",
    "FindingKind",
    "InputError",
    "MissingExtra",
    "StoreError",
    "StoreMismatch",
]


class CrunodeError(Exception):
    """Base of all errors raised on purpose by crunode."""


class InputError(CrunodeError, ValueError):
    """Wrong input: the message says what was expected, what came, and what to do."""


class EstimationError(CrunodeError, RuntimeError):
    """A computation failed. `partial` holds what was computed before it did (or None)."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class DeadlineReached(CrunodeError):
    """The time given for a run is over; finished work is kept, and the same call goes on from it."""


class StoreError(CrunodeError, OSError):
    """A run folder is unreadable, corrupt, truncated, of another version, or cannot be written."""


class StoreMismatch(StoreError):
    """A run folder belongs to another run; the message shows the settings that differ."""


class MissingExtra(CrunodeError, ImportError):
    """An optional package is absent; the message names the extra that brings it."""


class DiagnosticWarning(UserWarning):
    """A result was computed but there are findings about how far it can be trusted."""
