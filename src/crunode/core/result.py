"""What computations return: `Finding`, `Draws`, `Estimate`."""

from __future__ import annotations

import copy
import html
import importlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from crunode._extras import need
from crunode.core.origin import provenance
from crunode.errors import FINDINGS, InputError

__all__ = ["Draws", "Estimate", "Finding", "provenance"]


@dataclass(frozen=True)
class Finding:
    """One thing found about a result: a stable code, what was seen, and what to do.

    Example:
        >>> Finding.of("MC202", "ESS 40 of 2400 draws").severity
        'warning'
    """

    code: str
    severity: str
    message: str
    remedy: str

    @classmethod
    def of(cls, code: str, message: str) -> Finding:
        """Build a finding of a registered `code` with the particulars in `message`."""
        kind = FINDINGS[code]
        return cls(code, kind.severity, f"{kind.title}: {message}", str(kind.remedy))

    def __str__(self) -> str:
        return f"{self.code} {self.message}. {self.remedy}"


@dataclass(frozen=True)
class Draws:
    """Named arrays over (chain, draw, ...), warm-up apart, with the settings that made them.

    Arrays always present: `excess`, the loss at the draw minus the loss at the center on the same examples, and
    `distance2`, the squared distance from the center. Metropolis kernels add `accept`, the acceptance probability.
    `positions` and `pointwise` are there when they were asked for.

    Attributes:
        arrays: Kept draws, each array of shape (chain, draw, ...).
        warmup: Warm-up draws with the same names; no estimate reads them.
        nbeta: Inverse temperature of each chain, shape (chain,).
        spec: Resolved settings as JSON-able values.
        findings: What was noticed while sampling.
        provenance: Versions and source state.
    """

    arrays: Mapping[str, np.ndarray]
    warmup: Mapping[str, np.ndarray]
    nbeta: np.ndarray
    spec: Mapping[str, Any]
    findings: tuple[Finding, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chains(self) -> int:
        """Number of chains over all levels of nbeta."""
        return int(self.arrays["excess"].shape[0])

    @property
    def draws(self) -> int:
        """Kept draws per chain."""
        return int(self.arrays["excess"].shape[1])

    @property
    def gradients(self) -> int:
        """Gradients that the chains took, warm-up included: as recorded, or as many as the kernel takes for a draw."""
        if "leaps" in self.arrays:
            return int(sum(source["leaps"].sum() for source in (self.arrays, self.warmup) if "leaps" in source))
        kernel = self.spec.get("kernel") or {}
        return int(self.chains * (self.draws + self.spec.get("warmup", 0)) * kernel.get("leaps", 1))

    @property
    def prior(self) -> Any:
        """The prior that was asked for: "flat", its settings, or None where the draws do not tell."""
        return self.spec.get("asked", {}).get("prior")

    def role(self, role: str) -> np.ndarray:
        """Which chains have that role: "ladder", or one that shows how far an estimate depends on a setting."""
        roles = self.spec.get("role_per_chain", ["ladder"] * len(self.nbeta))
        return np.array([r == role for r in roles], dtype=bool)

    def levels(self) -> list[float]:
        """The distinct values of nbeta, ascending."""
        return sorted({float(b) for b in self.nbeta[self.role("ladder")]})

    def at(self, nbeta: float, role: str = "ladder") -> dict[str, np.ndarray]:
        """The arrays of the chains that ran at `nbeta`, without those that ran beside the ladder for a check."""
        rows = np.flatnonzero((self.nbeta == nbeta) & self.role(role))
        if rows.size == 0:
            raise InputError(f"expected one of the sampled nbeta {self.levels()}, got {nbeta}; sample it first")
        return {name: value[rows] for name, value in self.arrays.items()}

    def only(self, levels: Iterable[float]) -> Draws:
        """The draws at some of the levels, without those that ran beside the ladder.

        Raises:
            InputError: One of them was not sampled, or none was given.

        Example:
            >>> excess = np.ones((2, 3))
            >>> both = Draws({"excess": excess}, {}, np.array([1.0, 2.0]), {})
            >>> both.only([2.0]).levels()
            [2.0]
        """
        wanted, known = sorted({float(t) for t in levels}), self.levels()
        missing = [t for t in wanted if t not in known]
        if missing or not wanted:
            raise InputError(f"expected some of the sampled nbeta {known}, got {missing or 'none'}; sample them first")
        rows = np.flatnonzero(np.isin(self.nbeta, wanted) & self.role("ladder"))
        spec = {**self.spec, "nbeta": wanted, "nbeta_per_chain": self.nbeta[rows].tolist()}
        spec["role_per_chain"] = ["ladder"] * len(rows)
        arrays, warmup = ({k: v[rows] for k, v in source.items()} for source in (self.arrays, self.warmup))
        return replace(self, arrays=arrays, warmup=warmup, nbeta=self.nbeta[rows], spec=spec)

    def to_datatree(self) -> Any:
        """The draws in the ArviZ schema, as an xarray DataTree (extra `arviz`)."""
        xarray = need("xarray", extra="arviz")
        homes = {"positions": "posterior", "pointwise": "log_likelihood"}
        groups: dict[str, dict[str, Any]] = {}
        for prefix, source in (("", self.arrays), ("warmup_", self.warmup)):
            for name, value in source.items():
                dims = ["chain", "draw", *(f"{name}_dim_{k}" for k in range(value.ndim - 2))]
                # ArviZ reads log-likelihoods; ours are losses, which are their negatives.
                content = -value if name == "pointwise" else value
                groups.setdefault(prefix + homes.get(name, "sample_stats"), {})[name] = (dims, content)
        coords = {"chain": np.arange(self.chains), "nbeta": ("chain", self.nbeta)}
        attrs = {"crunode_spec": json.dumps(dict(self.spec), default=str)}
        return xarray.DataTree.from_dict(
            {name: xarray.Dataset(content, coords=coords, attrs=attrs) for name, content in groups.items()}
        )


@dataclass(frozen=True)
class Estimate:
    """A number that does not travel alone.

    Attributes:
        name: What was estimated.
        value: The estimate.
        se: Monte-Carlo standard error: how far a repeat with another seed would move.
        systematic: Size of the errors that more draws would not remove; `terms` gives its parts.
        findings: What was noticed; any of severity "error" makes the estimate not ok.
        spec: Resolved settings, as JSON-able values.
        seed: The seed all randomness came from.
        diagnostics: R-hat, effective sample size, per-level values and the like.
        terms: Parts of the systematic error by name.
        provenance: Versions and source state.
        draws: The draws behind it, when there are any.

    Example:
        >>> e = Estimate("llc", 2.5, se=0.1, systematic=0.05)
        >>> print(e)
        llc 2.50 ± 0.1 mc ± 0.05 sys | ok
        >>> float(e), e.ok
        (2.5, True)
    """

    name: str
    value: float
    se: float
    systematic: float = 0.0
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    draws: Draws | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True when value and errors are finite and no finding of severity "error" stands against it."""
        return math.isfinite(self.value + self.error) and all(f.severity != "error" for f in self.findings)

    @property
    def error(self) -> float:
        """Total stated error: Monte-Carlo and systematic parts in quadrature."""
        return math.hypot(self.se, self.systematic)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        parts = [f"{self.name} {_rounded(self.value, self.error)} ± {self.se:.2g} mc ± {self.systematic:.2g} sys"]
        seen = self.diagnostics
        if self.draws is not None:
            levels = len(self.draws.levels())
            per_level = int(self.draws.role("ladder").sum()) // levels
            ladder = f"{levels} nbeta × " if levels > 1 else ""
            parts.append(f"{ladder}{per_level} chains × {self.draws.draws} draws")
        if "rhat" in seen and "ess" in seen:
            parts.append(f"R-hat {seen['rhat']:.2f}, ESS {seen['ess']:.0f}")
        serious = [f.code for f in self.findings if f.severity != "info"]
        parts.append(("ok" if self.ok else "not ok") + (f" ({', '.join(serious)})" if serious else ""))
        return " | ".join(parts)

    def _repr_html_(self) -> str:
        rows = [
            ("value", _rounded(self.value, self.error)),
            ("Monte-Carlo error", f"{self.se:.2g}"),
            ("systematic error", f"{self.systematic:.2g}"),
            ("verdict", "ok" if self.ok else "not ok"),
            *((f.code, f.message) for f in self.findings),
        ]
        body = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows)
        return f"<table><caption>{html.escape(self.name)}</caption>{body}</table>"

    def plot(self) -> Any:
        """Traces, running estimate and per-chain values as a matplotlib figure (extra `plot`)."""
        # Drawing lives above this layer; results only know how to ask for it.
        return importlib.import_module("crunode.reporting.plots").plot_estimate(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the draws, as JSON-able values that share nothing with this estimate."""
        content = {k: copy.deepcopy(v) for k, v in self.__dict__.items() if k not in ("draws", "findings")}
        return {**content, "findings": [asdict(f) for f in self.findings], "ok": self.ok}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], draws: Draws | None = None) -> Estimate:
        """Inverse of `to_dict`.

        Example:
            >>> e = Estimate("llc", 2.5, se=0.1, findings=(Finding.of("LLC105", "n = 12"),))
            >>> Estimate.from_dict(e.to_dict()) == e
            True
        """
        try:
            known = {k: v for k, v in content.items() if k not in ("ok", "findings")}
            for key in ("value", "se", "systematic"):
                math.isfinite(known.get(key, 0.0))  # raises for what is no number
            return cls(**known, findings=tuple(Finding(**f) for f in content["findings"]), draws=draws)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"expected the content of an estimate as to_dict gives it, got one that does not fit ({error}); was it "
                "written by another version?"
            ) from error

    def with_findings(self, *findings: Finding) -> Estimate:
        """A copy with further findings."""
        return replace(self, findings=(*self.findings, *findings))


def _rounded(value: float, error: float) -> str:
    """`value` with as many digits as `error` supports (two digits of the error)."""
    if not math.isfinite(value) or not math.isfinite(error) or error <= 0:
        return f"{value:.4g}"
    digits = 1 - math.floor(math.log10(error))
    return f"{value:.{max(digits, 0)}f}" if digits > 0 else f"{value:.0f}"
