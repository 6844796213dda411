"""`FindingKind`: what a finding code means."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FindingKind"]


@dataclass(frozen=True)
class FindingKind:
    """What a finding code means; `severity` "error" makes an estimate not ok."""

    code: str
    title: str
    severity: str
    meaning: str
    remedy: str
