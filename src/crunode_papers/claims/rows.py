"""From results to rows: differences between optimizers, changes and trends, each tested over seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crunode.jobs import Result, Row
from crunode_papers.claims.statistics import TTest, mean_test, paired_test, welch_test

__all__ = [
    "LEVEL",
    "QUANTITIES",
    "absence_row",
    "by_seed",
    "claim_row",
    "difference_row",
    "measured",
    "pairs",
    "tested",
]

LEVEL = 0.01
"""One-sided probability below which a claim counts as confirmed, or as refuted on the other side."""

QUANTITIES = {"llc": "λ̂", "own": "λ̂ with own labels", "trace": "Tr H", "wbic": "WBIC"}
"""What claims are about, by its name in results."""


def claim_row(name: str, test: TTest | None, source: str, *, above: bool, size: str, note: str = "") -> Row:
    """A row that says whether a value is above 0 (or below), as a claim has it.

    It agrees where the value is on that side with a one-sided probability below `LEVEL`, differs where it is on the
    other side with the same certainty, and is only shown in between. At toy size nothing is judged.

    Args:
        name: What was measured.
        test: The value with its error; None where there is none.
        source: Where the claim is made.
        above: Whether it is claimed to be above 0.
        size: Size of the run.
        note: Anything to know.

    Example:
        >>> test = mean_test([1.0, 1.2, 0.9, 1.1])
        >>> claim_row("gap", test, "Fig. 1", above=True, size="paper").verdict
        'agrees'
        >>> claim_row("gap", test, "Fig. 1", above=False, size="paper").verdict
        'differs'
    """
    side = "at least" if above else "at most"
    if test is None:
        return Row(name, None, None, None, None, "shown", _joined("no seed gave a value", note), f"paper: {source}")
    said = _joined(_statistics(test, above), note)
    margin = test.margin(LEVEL)
    toward = test.value if above else -test.value
    judged = size != "toy" and math.isfinite(margin)
    verdict = "shown" if not judged or abs(toward) <= margin else "agrees" if toward > 0 else "differs"
    if judged and verdict == "shown":
        said = _joined("not significant either way", said)
    return _row(name, test, margin, verdict, said, source, side)


def absence_row(name: str, test: TTest | None, source: str, *, size: str, note: str = "") -> Row:
    """A row for what is claimed not to rise: it differs where it rises with a one-sided probability below `LEVEL`.

    Example:
        >>> absence_row("change", mean_test([0.1, -0.2, 0.1]), "Fig. 6", size="paper").verdict
        'agrees'
    """
    row = claim_row(name, test, source, above=False, size=size, note=note)
    if test is None or size == "toy" or not math.isfinite(test.margin(LEVEL)):
        return row
    verdict = "agrees" if test.value <= test.margin(LEVEL) else "differs"
    return _row(name, test, test.margin(LEVEL), verdict, _joined(_statistics(test, True), note), source, "at most")


def _row(name: str, test: TTest, margin: float, verdict: str, note: str, source: str, side: str) -> Row:
    known = math.isfinite(margin)
    se, tolerance = (test.se, margin) if known else (None, None)
    return Row(name, 0.0, test.value, se, tolerance, verdict, note, f"paper: {source}", side)


def _statistics(test: TTest, above: bool) -> str:
    if not test.dof > 0:
        return f"{test.count} seed alone: no error"
    p = test.above if above else test.below
    return f"t = {test.t:.3g} with {test.dof:.3g} degrees of freedom, one-sided p = {p:.2g}, {test.count} seeds"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def by_seed(results: Sequence[Result], **wanted: Any) -> dict[int, Result]:
    """Results whose settings are as wanted, by the number of their repeat."""
    found = [r for r in results if all(r.settings.get(key) == value for key, value in wanted.items())]
    return {r.settings["repeat"]: r for r in found}


def measured(point: Mapping[str, Any], name: str) -> float | None:
    """A number measured at a point; None where chains diverged there.

    Example:
        >>> measured({"trace": {"value": 3.0, "se": 0.1}, "loss": 0.5}, "trace")
        3.0
    """
    content = point.get(name)
    value = content["value"] if isinstance(content, Mapping) else content
    return None if value is None or not math.isfinite(value) else float(value)


def pairs(
    first: Mapping[int, Result], second: Mapping[int, Result], value: Callable[[Result], float | None]
) -> tuple[list[float], list[float], int]:
    """Values of the two at the seeds where both have one, and how many seeds were left out."""
    both = sorted(set(first) & set(second))
    found = [(value(first[k]), value(second[k])) for k in both]
    kept = [(a, b) for a, b in found if a is not None and b is not None]
    return [a for a, _ in kept], [b for _, b in kept], len(set(first) | set(second)) - len(kept)


def tested(results: Mapping[int, Result], value: Callable[[Result], float | None]) -> tuple[TTest | None, str]:
    """The mean of a value over seeds, and a note on seeds that have none."""
    found = [value(results[k]) for k in sorted(results)]
    kept = [x for x in found if x is not None]
    note = f"{len(found) - len(kept)} of {len(found)} seeds diverged" if len(kept) < len(found) else ""
    return (mean_test(kept) if kept else None), note


def difference_row(
    name: str,
    first: Mapping[int, Result],
    second: Mapping[int, Result],
    value: Callable[[Result], float | None],
    source: str,
    size: str,
) -> Row:
    """Is a value higher for the first than for the second, over seeds that both share? Welch's t is in the note."""
    a, b, left_out = pairs(first, second, value)
    if not a:
        note = f"in {left_out} one of the two diverged" if left_out else ""
        return claim_row(name, None, source, above=True, size=size, note=note)
    welch = welch_test(a, b)
    means = f"{sum(a) / len(a):.4g} against {sum(b) / len(b):.4g}"
    note = _joined(means, f"Welch's t = {welch.t:.3g}" if welch.dof > 0 else "")
    if left_out:
        note = _joined(note, f"{left_out} seeds left out: one of the two diverged")
    return claim_row(name, paired_test(a, b), source, above=True, size=size, note=note)


def at_equal_loss(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], name: str
) -> tuple[float, float] | None:
    """Values of two trainings at the training loss that the slower one reached in the end.

    Those of the faster one lie on straight lines between its points; None where it had passed that loss before the
    first of them.

    Args:
        first: Points of a training, by epoch.
        second: Points of the other.
        name: What was measured.

    Example:
        >>> slow = [{"loss": 2.0, "trace": 1.0}, {"loss": 1.0, "trace": 4.0}]
        >>> fast = [{"loss": 1.5, "trace": 6.0}, {"loss": 0.5, "trace": 8.0}]
        >>> at_equal_loss(slow, fast, "trace")
        (4.0, 7.0)
    """
    if not first or not second:
        return None
    level = max(first[-1]["loss"], second[-1]["loss"])
    found = [_at_loss(points, level, name) for points in (first, second)]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _at_loss(points: Sequence[Mapping[str, Any]], level: float, name: str) -> float | None:
    """The value at the last time that the loss fell to a level."""
    if points[-1]["loss"] == level:
        return measured(points[-1], name)
    for before, after in reversed(list(itertools.pairwise(points))):
        if before["loss"] >= level >= after["loss"]:
            a, b = measured(before, name), measured(after, name)
            share = (before["loss"] - level) / (before["loss"] - after["loss"])
            return None if a is None or b is None else a + share * (b - a)
    return None


def equal_loss_row(
    name: str, first: Mapping[int, Result], second: Mapping[int, Result], key: str, source: str, size: str
) -> Row:
    """Is a value higher for the first than for the second where both have the same training loss?"""
    both = sorted(set(first) & set(second))
    ended = [k for k in both if first[k]["diverged"] is None and second[k]["diverged"] is None]
    found = [at_equal_loss(first[k]["points"], second[k]["points"], key) for k in ended]
    kept = [pair for pair in found if pair is not None]
    note = f"{len(both) - len(kept)} of {len(both)} seeds without a common loss" if len(kept) < len(both) else ""
    test = paired_test([a for a, _ in kept], [b for _, b in kept]) if kept else None
    return claim_row(name, test, source, above=True, size=size, note=note)
