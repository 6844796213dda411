"""What `phases` returns: the phase diagram of a posterior, and its transitions."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Estimate, Finding

__all__ = ["PhaseDiagram", "Transition"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Transition:
    """Where the largest part of the posterior passes from one region to another.

    Attributes:
        before: Region that is larger on the hot side.
        after: Region that is larger on the cold side.
        nbeta: Where both are equal.
        low: Lower end of the 95 % interval of that.
        high: Upper end.
        order: "first-order" where the losses of both regions stand apart there, otherwise "crossover"; "unknown" where
            no level's draws reach there.
        jump: Mean loss before less mean loss after, both at the transition.
        jump_se: Its Monte-Carlo error.
        separation: The jump over the spread of losses within a region.
        visits: How often chains at the level beside it went from one region to the other and back.
        sure: Whether that is often enough, and chains agree.

    Example:
        >>> print(Transition("0", "3", 420.0, 400.0, 441.0, "first-order", 0.02, 0.001, 4.0, 60, True))
        0 → 3 at nbeta 420 (400 to 441), first-order, jump 0.02 ± 0.001, 60 visits
    """

    before: str
    after: str
    nbeta: float
    low: float
    high: float
    order: str
    jump: float
    jump_se: float
    separation: float
    visits: int
    sure: bool

    def doubt(self) -> str:
        """Why the transition is not sure."""
        return f"{self.visits} between {self.before} and {self.after} near nbeta {self.nbeta:.3g}, or chains disagree"

    def __str__(self) -> str:
        return (
            f"{self.before} → {self.after} at nbeta {self.nbeta:.4g} ({self.low:.3g} to {self.high:.3g}), "
            f"{self.order}, jump {self.jump:.2g} ± {self.jump_se:.1g}, {self.visits} visits"
            + ("" if self.sure else ", not sure")
        )


@dataclass(frozen=True)
class PhaseDiagram:
    """Which region holds the posterior at each level of a ladder.

    Attributes:
        label: The observable that names regions.
        regions: Their names.
        nbeta: The levels t.
        occupation: Share of each region, (level, region).
        occupation_se: Monte-Carlo errors.
        scaled_loss: t E_t[L_n − L_n(w*)] at each level.
        scaled_loss_se: Monte-Carlo errors.
        energy: F_a(t) of each region relative to F at the first level, (level, region); nan where it was not visited.
        energy_se: Monte-Carlo errors.
        transitions: Where the largest region changes.
        coefficients: λ in each region that was visited enough.
        floors: The least loss in each of these above the center's, and its error.
        critical: n_c of each transition by its two regions.
        findings: What was noticed.

    Example:
        >>> one = np.ones((2, 1))
        >>> kept = (one, one * 0.01, one[:, 0], one[:, 0], one, one)
        >>> print(PhaseDiagram("live", ("0",), (1.0, 2.0), *kept, (), {}, {}, {}, ()))
        phases by live | 1 region, 2 levels | no transition | ok
    """

    label: str
    regions: tuple[str, ...]
    nbeta: tuple[float, ...]
    occupation: Array
    occupation_se: Array
    scaled_loss: Array
    scaled_loss_se: Array
    energy: Array
    energy_se: Array
    transitions: tuple[Transition, ...]
    coefficients: Mapping[str, Estimate]
    floors: Mapping[str, tuple[float, float]]
    critical: Mapping[tuple[str, str], Estimate]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True when no finding of severity "error" stands against it."""
        return all(f.severity != "error" for f in self.findings)

    def holder(self, nbeta: float) -> str:
        """The region that holds most of the posterior at a level.

        Example:
            >>> one = np.ones((2, 1))
            >>> kept = (one, one * 0.01, one[:, 0], one[:, 0], one, one)
            >>> PhaseDiagram("live", ("0",), (1.0, 2.0), *kept, (), {}, {}, {}, ()).holder(2.0)
            '0'
        """
        return self.regions[int(self.occupation[self.nbeta.index(nbeta)].argmax())]

    def table(self) -> str:
        """Occupations at each level, transitions, and λ in each region, as text."""
        width = max(12, *(len(name) for name in self.regions))
        lines = ["nbeta".rjust(10) + "  t E[L]".rjust(10) + "".join(name.rjust(width + 2) for name in self.regions)]
        for k, t in enumerate(self.nbeta):
            shares = zip(self.occupation[k], self.occupation_se[k], strict=True)
            cells = "".join(
                f"{p:.3f} ± {se:.3f}".rjust(width + 2) if p > 0 else "·".rjust(width + 2) for p, se in shares
            )
            lines.append(f"{t:10.4g}{self.scaled_loss[k]:10.3g}{cells}")
        lines += ["", *(str(x) for x in self.transitions)]
        for name, est in self.coefficients.items():
            floor, error = self.floors[name]
            lines.append(f"λ in {name}: {est.value:.3g} ± {est.error:.2g}, least loss {floor:.3g} ± {error:.1g}")
        lines += [f"{est.name}: {est.value:.3g} ± {est.error:.2g}" for est in self.critical.values()]
        return "\n".join([*lines, *(str(f) for f in self.findings)])

    def __str__(self) -> str:
        count = f"{len(self.regions)} region{'s' if len(self.regions) > 1 else ''}, {len(self.nbeta)} levels"
        where = "; ".join(str(x) for x in self.transitions) or "no transition"
        serious = [f.code for f in self.findings if f.severity != "info"]
        verdict = ("ok" if self.ok else "not ok") + (f" ({', '.join(serious)})" if serious else "")
        return f"phases by {self.label} | {count} | {where} | {verdict}"

    def plot(self) -> Any:
        """Occupations and scaled losses against nbeta, with the transitions, as a matplotlib figure (extra `plot`)."""
        return importlib.import_module("crunode.reporting.phase_plots").plot_phases(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; None where a region was not visited."""
        return {
            "label": self.label,
            "regions": list(self.regions),
            "nbeta": list(self.nbeta),
            **{
                name: _plain(getattr(self, name))
                for name in ("occupation", "occupation_se", "scaled_loss", "scaled_loss_se", "energy", "energy_se")
            },
            "transitions": [asdict(x) for x in self.transitions],
            "coefficients": {name: est.to_dict() for name, est in self.coefficients.items()},
            "floors": {name: list(pair) for name, pair in self.floors.items()},
            "critical": [{"before": a, "after": b, **est.to_dict()} for (a, b), est in self.critical.items()],
            "findings": [asdict(f) for f in self.findings],
            "ok": self.ok,
        }


def _plain(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return [_plain(x) for x in values]
    return float(values) if math.isfinite(values) else None
