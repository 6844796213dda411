"""What the exact part returns: a learning coefficient with the theorem it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from crunode.errors import InputError

__all__ = ["STATUSES", "LearningCoefficient"]

STATUSES = {
    "exact": "a theorem gives the value",
    "conditional": "a theorem gives the value under hypotheses that were not checked here",
    "upper_bound": "the learning coefficient is at most the value",
    "interval": "only the bounds are known",
}


@dataclass(frozen=True)
class LearningCoefficient:
    """A learning coefficient λ and its multiplicity m, as far as theory knows them.

    The volume of {K < t} behaves as t^λ (−log t)^(m−1) for t → 0 (Watanabe 2009).

    Attributes:
        value: λ; an upper bound of it when `status` says so, None when only an interval is known.
        multiplicity: m, None where it is not known.
        status: One of `STATUSES`.
        bounds: λ lies between these two.
        hypotheses: What has to hold for `status` to be right, in words.
        citation: The theorem and where it is published.
        details: Further facts by name: the rank that was computed, the certificate found.

    Example:
        >>> found = LearningCoefficient.exact(Fraction(27, 2), 1, citation="Aoyagi & Watanabe 2005")
        >>> print(found)
        λ = 27/2, m = 1 (exact) [Aoyagi & Watanabe 2005]
        >>> float(found), found.bounds
        (13.5, (Fraction(27, 2), Fraction(27, 2)))
    """

    value: Fraction | None
    multiplicity: int | None
    status: str
    bounds: tuple[Fraction, Fraction]
    hypotheses: tuple[str, ...] = ()
    citation: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        low, high = self.bounds
        if self.status not in STATUSES:
            raise InputError(f"expected a status out of {', '.join(STATUSES)}, got {self.status!r}")
        if not 0 <= low <= high:
            raise InputError(f"expected bounds 0 <= low <= high, got {low} and {high}")
        wanted = {"interval": None, "upper_bound": high}.get(self.status, low)
        if self.value != wanted or (self.status in ("exact", "conditional") and low != high):
            raise InputError(f"a value of {self.value} with status {self.status} does not fit the bounds {low}, {high}")
        if self.multiplicity is not None and self.multiplicity < 1:
            raise InputError(f"expected a multiplicity from 1 up, got {self.multiplicity}")

    @classmethod
    def exact(
        cls,
        value: Fraction | int,
        multiplicity: int | None,
        *,
        citation: str,
        hypotheses: tuple[str, ...] = (),
        conditional: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> LearningCoefficient:
        """A known value; `conditional` if its hypotheses were not checked."""
        value = Fraction(value)
        status = "conditional" if conditional else "exact"
        return cls(value, multiplicity, status, (value, value), hypotheses, citation, details or {})

    @classmethod
    def interval(
        cls,
        low: Fraction | int,
        high: Fraction | int,
        *,
        citation: str,
        hypotheses: tuple[str, ...] = (),
        details: Mapping[str, Any] | None = None,
    ) -> LearningCoefficient:
        """Known bounds alone."""
        bounds = Fraction(low), Fraction(high)
        return cls(None, None, "interval", bounds, hypotheses, citation, details or {})

    @classmethod
    def at_most(
        cls,
        value: Fraction | int,
        *,
        low: Fraction | int = 0,
        citation: str,
        hypotheses: tuple[str, ...] = (),
        details: Mapping[str, Any] | None = None,
    ) -> LearningCoefficient:
        """An upper bound, and a lower one where there is any better than 0."""
        value = Fraction(value)
        return cls(value, None, "upper_bound", (Fraction(low), value), hypotheses, citation, details or {})

    def __float__(self) -> float:
        if self.value is None:
            raise InputError(f"λ is only known to lie in [{self.bounds[0]}, {self.bounds[1]}]; read `bounds`")
        return float(self.value)

    def __str__(self) -> str:
        low, high = self.bounds
        if self.status == "interval":
            shown = f"{low} ≤ λ ≤ {high} (interval)"
        elif self.status == "upper_bound":
            shown = f"{low} ≤ λ ≤ {high} (upper bound)" if low else f"λ ≤ {high} (upper bound)"
        else:
            shown = f"λ = {self.value}, m = {self.multiplicity or 'unknown'} ({self.status})"
        return f"{shown} [{self.citation}]" if self.citation else shown

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; rationals as text such as "27/2".

        Example:
            >>> LearningCoefficient.interval(1, 2, citation="").to_dict()["bounds"]
            ['1/1', '2/1']
        """
        return {
            "lambda": None if self.value is None else _text(self.value),
            "multiplicity": self.multiplicity,
            "status": self.status,
            "bounds": [_text(bound) for bound in self.bounds],
            "hypotheses": list(self.hypotheses),
            "citation": self.citation,
            "details": dict(self.details),
        }


def _text(value: Fraction) -> str:
    return f"{value.numerator}/{value.denominator}"
