"""Maxima and minima inside a fitted series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from crunode.training.segments import Line

__all__ = ["CriticalPoint", "find_turns"]


@dataclass(frozen=True)
class CriticalPoint:
    """A maximum or minimum inside a series, that stands out on both sides.

    Attributes:
        kind: "maximum" or "minimum".
        low: It is between this step
        high: and this one.
        value: The fitted value there.
        se: The value's error.
        z: By how many standard errors it stands out on the side where it does less.

    Example:
        >>> print(CriticalPoint("maximum", 100, 300, 12.5, 0.2, 8.1))
        maximum 12.5 ± 0.2, steps 100 to 300 (8.1 se)
    """

    kind: str
    low: int
    high: int
    value: float
    se: float
    z: float

    def __str__(self) -> str:
        return f"{self.kind} {self.value:.3g} ± {self.se:.2g}, steps {self.low} to {self.high} ({self.z:.1f} se)"


@dataclass(frozen=True)
class _Node:
    """An end of a stretch."""

    segment: int
    index: int
    x: float
    low: int
    high: int


def find_turns(
    lines: Sequence[Line],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    steps: Sequence[int],
    changes: Sequence[tuple[int, int]],
    alarm: float,
) -> tuple[CriticalPoint, ...]:
    """Turns of a fit from a rise to a fall, or back, where both are larger than their errors explain.

    A line through values that lie on a curve has ends beyond them. So a turn of the fit counts only if the values at it
    and on both sides of it turn too.

    Args:
        lines: The fitted stretches.
        x: Where the points are.
        y: Their values.
        steps: Their steps.
        changes: Intervals of the changes between the stretches.
        alarm: Chance that a turn comes from errors alone, over all of them together (Bonferroni).

    Example:
        >>> from crunode.training.segments import fit_line
        >>> y = np.array([0.0, 0.0, 5.0, 5.0, 1.0, 1.0])
        >>> lines = [fit_line(np.arange(6.0), y, np.ones(6), "level", k, k + 2) for k in (0, 2, 4)]
        >>> print(*find_turns(lines, np.arange(6.0), y, range(6), [(1, 2), (3, 4)], 0.05))
        maximum 5 ± 0.71, steps 2 to 3 (4.0 se)
    """
    nodes = [node for k, line in enumerate(lines) for node in _ends(k, line, x, steps, changes)]
    needed = NormalDist().inv_cdf(1 - alarm / (2 * len(nodes)))

    def height(node: _Node) -> tuple[float, float]:
        return lines[node.segment].at(node.x)

    def rise(one: _Node, other: _Node) -> float:
        """From one to the other, in standard errors."""
        (low, low_se), (high, high_se) = height(one), height(other)
        error = math.hypot(low_se, high_se)
        if one.segment == other.segment:  # two points of one line share the error of its middle
            error = lines[one.segment].slope_se * abs(other.x - one.x)
        return (high - low) / error if error > 0 else 0.0

    turns: list[tuple[int, _Node]] = []
    going = 0  # 1 after a rise that is sure, -1 after a fall
    ends = {1: nodes[0], -1: nodes[0]}  # the highest and the lowest since the last turn
    for node in nodes[1:]:
        for sign in (1, -1):
            if sign * height(node)[0] > sign * height(ends[sign])[0]:
                ends[sign] = node
        for sign in (1, -1):
            if going != -sign and sign * rise(node, ends[sign]) > needed:
                turns += [(sign, ends[sign])] if going == sign else []
                going, ends = -sign, {1: node, -1: node}
                break
    found = []
    for j, (sign, node) in enumerate(turns):
        # It stands out from the turns beside it; the first and the last one from the farthest value beyond.
        place = nodes.index(node)
        sides = []
        for beside, rest in ((j - 1, nodes[:place]), (j + 1, nodes[place + 1 :])):
            known = turns[beside][1] if 0 <= beside < len(turns) else None
            sides.append(known or min(rest, key=lambda other: sign * height(other)[0]))
        seen = max(sign * y[k] for k in range(len(y)) if node.low <= steps[k] <= node.high)
        if any(sign * y[side.index] >= seen for side in sides):
            continue
        value, se = height(node)
        z = min(abs(rise(side, node)) for side in sides)
        found.append(CriticalPoint("maximum" if sign == 1 else "minimum", node.low, node.high, value, se, z))
    return tuple(found)


def _ends(
    k: int, line: Line, x: NDArray[np.float64], steps: Sequence[int], changes: Sequence[tuple[int, int]]
) -> list[_Node]:
    """A level has one height, which it has from its first to its last step; a line is highest at one of its ends."""
    if line.slope_se == 0:
        return [_Node(k, line.first, float(x[line.first]), steps[line.first], steps[line.last])]
    before = changes[k - 1] if k > 0 else (steps[line.first], steps[line.first])
    after = changes[k] if k < len(changes) else (steps[line.last], steps[line.last])
    return [_Node(k, line.first, float(x[line.first]), *before), _Node(k, line.last, float(x[line.last]), *after)]
