"""`Sweep`: estimates on a grid of settings, and how far the answer depends on them."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from crunode.core.result import Draws, Estimate
from crunode.errors import InputError

__all__ = ["AXES", "Cell", "Sweep"]

AXES = ("step", "precision", "nbeta")
_POINTS = 200


@dataclass(frozen=True)
class Cell:
    """One point of a sweep: settings, the plain estimate there, and what the chains did.

    Attributes:
        step: ε.
        precision: γ.
        nbeta: nβ.
        value: λ̂ = nβ (E[L_n(w)] − L_n(w*)); not a number where a chain diverged.
        se: Monte-Carlo standard error.
        systematic: Errors that more draws would not remove.
        ok: The verdict of `llc`.
        findings: Codes of what was noticed.
        accept: Mean acceptance of a Metropolis kernel; None for others.
        trace: Pairs (step number, nβ times the excess loss averaged over chains and neighboring steps); warm-up has
            negative numbers. It ends where a chain turned non-finite.
        provenance: Versions and source state.
    """

    step: float
    precision: float
    nbeta: float
    value: float
    se: float
    systematic: float
    ok: bool
    findings: tuple[str, ...] = ()
    accept: float | None = None
    trace: tuple[tuple[float, float], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, estimate: Estimate, point: tuple[float, float, float]) -> Cell:
        """What a sweep keeps of an estimate made at `point` (step, precision, nbeta)."""
        drawn = estimate.draws
        accept = None if drawn is None else drawn.arrays.get("accept")
        return cls(
            *point,
            value=estimate.value,
            se=estimate.se,
            systematic=estimate.systematic,
            ok=estimate.ok,
            findings=tuple(f.code for f in estimate.findings),
            accept=None if accept is None or accept.size == 0 else float(accept.mean()),
            trace=() if drawn is None else _trace(drawn, point[2]),
            provenance=dict(estimate.provenance),
        )

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Cell:
        """Inverse of `dataclasses.asdict`, also after JSON, where numbers that are not finite may be null."""
        numbers = {k: math.nan if content[k] is None else content[k] for k in ("value", "se", "systematic")}
        listed = {"findings": tuple(content["findings"]), "trace": tuple((x, y) for x, y in content["trace"])}
        return cls(**{**content, **numbers, **listed})

    @property
    def point(self) -> tuple[float, float, float]:
        """(step, precision, nbeta)."""
        return self.step, self.precision, self.nbeta

    @property
    def error(self) -> float:
        """All stated errors in quadrature."""
        return math.hypot(self.se, self.systematic)

    @property
    def diverged(self) -> bool:
        """A chain turned non-finite."""
        return "MC204" in self.findings


@dataclass(frozen=True)
class Sweep:
    """Estimates of the learning coefficient over steps, precisions and nbetas, around what the tuner chooses.

    Attributes:
        steps: Values of ε, ascending.
        precisions: Values of γ, ascending.
        nbetas: Values of nβ, ascending.
        cells: One for each point of the grid, in the order of (nbeta, precision, step), the last running fastest.
        around: The tuner's choice first, then half and twice its step, precision and nbeta.
        estimate: What `llc` gives with nothing set, ladder and all.
        spec: Kernel, lengths, seed and the tuner's reasons.
    """

    steps: tuple[float, ...]
    precisions: tuple[float, ...]
    nbetas: tuple[float, ...]
    cells: tuple[Cell, ...]
    around: tuple[Cell, ...]
    estimate: Estimate
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> Cell:
        """The cell of the tuner's own choice of (step, precision, nbeta)."""
        return self.around[0]

    @property
    def ok(self) -> bool:
        """The verdict on `estimate`; cells of the grid may well be bad."""
        return self.estimate.ok

    @property
    def nearest(self) -> Cell:
        """The cell of the grid nearest to the tuner's choice, all axes taken by their logarithms."""
        here = np.log(self.choice.point)
        return min(self.cells, key=lambda cell: float(np.square(np.log(cell.point) - here).sum()))

    def values(self) -> np.ndarray:
        """λ̂ on the grid, shape (nbeta, precision, step)."""
        return np.array([cell.value for cell in self.cells]).reshape(self._shape())

    def plateau(self) -> np.ndarray:
        """Which cells belong to the region around the tuner's choice where the answer stays the same.

        A cell is a member if it is ok, differs from the tuner's choice by no more than twice √(se² + e²), se being its
        own Monte-Carlo error and e all stated errors of the choice, and is a neighbor of a member. Its own systematic
        error does not count, as otherwise the worst cells, which state the largest errors, would all belong.

        Returns:
            True or False for each cell, shape (nbeta, precision, step); all False if the nearest cell is none itself.
        """
        shape, choice = self._shape(), self.choice
        agree = np.array([_agrees(cell, choice) for cell in self.cells]).reshape(shape)
        found = np.zeros(shape, dtype=bool)
        waiting = [tuple(int(k) for k in np.unravel_index(self.cells.index(self.nearest), shape))]
        while waiting:
            here = waiting.pop()
            if not agree[here] or found[here]:
                continue
            found[here] = True
            for axis, move in itertools.product(range(3), (-1, 1)):
                there = tuple(k + move * (axis == number) for number, k in enumerate(here))
                if all(0 <= k < size for k, size in zip(there, shape, strict=True)):
                    waiting.append(there)
        return found

    def sensitivity(self) -> dict[str, dict[str, Any]]:
        """How far λ̂ moves when one setting is halved or doubled and the others stay as the tuner chose them.

        Returns:
            For each axis `low` and `high` (the least and the largest λ̂ of the three), their difference `range`, its
            Monte-Carlo error `se`, the `share` of λ̂ it is, and `diverged`, the values at which a chain diverged (and
            which the range leaves out).
        """
        found: dict[str, dict[str, Any]] = {}
        for number, axis in enumerate(AXES):
            three = [self.choice, *self.around[1 + 2 * number : 3 + 2 * number]]
            finite = [cell for cell in three if math.isfinite(cell.value)]
            low, high = (pick(finite, key=lambda c: c.value, default=None) for pick in (min, max))
            moved = math.nan if low is None or high is None else high.value - low.value
            found[axis] = {
                "low": math.nan if low is None else low.value,
                "high": math.nan if high is None else high.value,
                "range": moved,
                "se": math.nan if low is None or high is None else math.hypot(low.se, high.se),
                "share": moved / abs(self.choice.value) if self.choice.value else math.nan,
                "diverged": [getattr(cell, axis) for cell in three if cell.diverged],
            }
        return found

    def table(self) -> str:
        """The grid in words: one table for each nbeta, what the tuner chose, and how far the answer moves.

        Example:
            >>> cell = Cell(1e-4, 1.0, 50.0, value=2.0, se=0.1, systematic=0.0, ok=True)
            >>> one = Sweep((1e-4,), (1.0,), (50.0,), (cell,), (cell,) * 7, Estimate("llc", 2.1, se=0.1))
            >>> for line in one.table().splitlines()[:2]:
            ...     print(line)
               nbeta 50  precision 1
            step 0.0001         [2=]
        """
        plateau, nearest = dict(zip((c.point for c in self.cells), self.plateau().flat, strict=True)), self.nearest
        lines = []
        for nbeta in self.nbetas:
            rows = [[f"nbeta {nbeta:.4g}", *(f"precision {p:.3g}" for p in self.precisions)]]
            for step in self.steps:
                here = [c for c in self.cells if (c.step, c.nbeta) == (step, nbeta)]
                marks = [_marked(c, bool(plateau[c.point]), c is nearest) for c in here]
                rows.append([f"step {step:.3g}" if len(rows) == 1 else f"{step:.3g}", *marks])
            lines += [*_columns(rows), ""]
        lines.append("[ ] nearest to the tuner's choice   = same answer as there   ? not ok   diverged: no answer")
        c = self.choice
        lines.append(f"tuner's choice    step {c.step:.3g}, precision {c.precision:.3g}, nbeta {c.nbeta:.4g}")
        lines.append(f"estimate there    {_short(c.value)} ± {c.se:.2g} mc ± {c.systematic:.2g} sys{_doubts(c)}")
        lines.append(f"default estimate  {self.estimate}")
        for axis, seen in self.sensitivity().items():
            text = f"{axis} / 2 to × 2"
            moved = f"moves it by {_short(seen['range'])} ± {seen['se']:.2g} ({100 * seen['share']:.0f} %)"
            lost = "".join(f"; diverged at {value:.3g}" for value in seen["diverged"])
            lines.append(f"{text:<24}{moved}{lost}")
        lines.append(self._describe_plateau())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values, with what follows from the cells under `summary`."""
        content = {k: list(getattr(self, k)) for k in ("steps", "precisions", "nbetas")}
        cells = {k: [_listed(c) for c in getattr(self, k)] for k in ("cells", "around")}
        summary = {
            "choice": dict(zip(AXES, self.choice.point, strict=True)),
            "nearest": dict(zip(AXES, self.nearest.point, strict=True)),
            "plateau": self.plateau().tolist(),
            "sensitivity": self.sensitivity(),
        }
        return {
            **content,
            **cells,
            "estimate": self.estimate.to_dict(),
            "spec": dict(self.spec),
            "ok": self.ok,
            "summary": summary,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Sweep:
        """Inverse of `to_dict`; draws are not part of it.

        Raises:
            InputError: The content is not that of a sweep.

        Example:
            >>> cell = Cell(1e-4, 1.0, 50.0, value=2.0, se=0.1, systematic=0.0, ok=True)
            >>> one = Sweep((1e-4,), (1.0,), (50.0,), (cell,), (cell,) * 7, Estimate("llc", 2.1, se=0.1))
            >>> Sweep.from_dict(one.to_dict()) == one
            True
        """
        try:
            estimate = dict(content["estimate"])
            for name in ("value", "se", "systematic"):
                estimate[name] = math.nan if estimate[name] is None else estimate[name]
            known = {f.name: content[f.name] for f in fields(cls)}
            known |= {k: tuple(content[k]) for k in ("steps", "precisions", "nbetas")}
            known |= {k: tuple(Cell.from_dict(c) for c in content[k]) for k in ("cells", "around")}
            made = cls(**{**known, "estimate": Estimate.from_dict(estimate)})
        except (TypeError, KeyError, ValueError) as error:
            raise InputError(
                f"expected the content of a sweep as to_dict gives it, got one that does not fit ({error}); was it "
                "written by another version?"
            ) from error
        if len(made.cells) != math.prod(made._shape()) or len(made.around) != 7:
            raise InputError(
                f"expected {math.prod(made._shape())} cells and 7 around the choice, got {len(made.cells)} and "
                f"{len(made.around)}; was it cut?"
            )
        return made

    def plot(self) -> Any:
        """Heat maps of λ̂ over (ε, γ), λ̂ against γ, and loss traces, for each nβ, as a matplotlib figure."""
        return importlib.import_module("crunode.reporting.sweep_plots").plot_sweep(self.to_dict())

    def _shape(self) -> tuple[int, int, int]:
        return len(self.nbetas), len(self.precisions), len(self.steps)

    def _describe_plateau(self) -> str:
        members = [c for c, inside in zip(self.cells, self.plateau().flat, strict=True) if inside]
        if not members:
            return "plateau           none: the cell nearest to the tuner's choice has another answer, or is not ok"
        spans = []
        for axis in AXES:
            seen = [getattr(cell, axis) for cell in members]
            spans.append(f"{axis} {min(seen):.3g}" + (f" to {max(seen):.3g}" if max(seen) > min(seen) else ""))
        return f"plateau           {len(members)} of {len(self.cells)} cells: {', '.join(spans)}"


def _agrees(cell: Cell, choice: Cell) -> bool:
    return cell.ok and abs(cell.value - choice.value) <= 2 * math.hypot(cell.se, choice.error)


def _listed(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "findings": list(cell.findings), "trace": [list(pair) for pair in cell.trace]}


def _trace(draws: Draws, nbeta: float) -> tuple[tuple[float, float], ...]:
    """Means over chains and over as many neighboring steps as leave 200 points."""
    spec = draws.spec
    width = max(1, -(-(spec["warmup"] + spec["draws"]) // _POINTS))
    points: list[tuple[float, float]] = []
    for source, start in ((draws.warmup, -spec["warmup"]), (draws.arrays, 0)):
        if "excess" not in source:
            continue
        mean = nbeta * source["excess"].astype(np.float64).mean(0)
        bad = np.flatnonzero(~np.isfinite(mean))
        mean = mean[: bad[0]] if bad.size else mean
        for left in range(0, len(mean), width):
            part = mean[left : left + width]
            points.append((start + left + (len(part) - 1) / 2, float(part.mean())))
        if bad.size:
            break
    return tuple(points)


def _short(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "no answer"


def _doubts(cell: Cell) -> str:
    return f" ({', '.join(cell.findings)})" if cell.findings else ""


def _marked(cell: Cell, inside: bool, nearest: bool) -> str:
    text = "diverged" if cell.diverged else _short(cell.value) + ("=" if inside else "" if cell.ok else "?")
    return f"[{text}]" if nearest else text


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
