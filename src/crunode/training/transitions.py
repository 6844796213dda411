"""Change points, plateaus, maxima and minima of a series of estimates with errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.errors import InputError
from crunode.training.segments import LEAST, Line, Sums, best_gains, extra_noise, fit_line, null_series, partition
from crunode.training.turns import CriticalPoint, find_turns

__all__ = ["ChangePoint", "Segment", "Transitions", "find_transitions"]

Array = NDArray[np.float64]
_SIMULATED, _MOST = 999, 4_000_000
# Variances below this part of the squared range would only add up rounding.
_FLOOR = 1e-10


@dataclass(frozen=True)
class ChangePoint:
    """Where a series goes over to another level or line.

    Attributes:
        step: The first step of the new stretch.
        previous: The last step of the old one; the change is between the two.
        low: The interval's lower end: the change came after this step,
        high: and not after this one.
        jump: By how much the series jumps there, new less old.
        jump_se: The jump's error.
        p_value: How often a series without change has one that takes as much from the sum of squares.

    Example:
        >>> print(ChangePoint(200, 150, 120, 260, -3.0, 0.4, 0.001))
        between steps 150 and 200 (120 to 260), jump -3 ± 0.4, p 0.001
    """

    step: int
    previous: int
    low: int
    high: int
    jump: float
    jump_se: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"between steps {self.previous} and {self.step} ({self.low} to {self.high}), jump {self.jump:.3g} ± "
            f"{self.jump_se:.2g}, p {self.p_value:.2g}"
        )


@dataclass(frozen=True)
class Segment:
    """A stretch between two changes.

    Attributes:
        start: Its first step.
        stop: Its last step.
        points: How many visits.
        value: The value at its middle (weighted by errors).
        se: The value's error.
        slope: Slope per unit of the scale; zero where levels were fitted.
        slope_se: The slope's error.
        plateau: Whether it has at least three points and a slope within its 95 % interval of zero.
    """

    start: int
    stop: int
    points: int
    value: float
    se: float
    slope: float
    slope_se: float
    plateau: bool


@dataclass(frozen=True)
class Transitions:
    """What was found in a series.

    Attributes:
        name: Name of the series.
        kind: "level" or "linear".
        changes: The change points, in order.
        segments: The stretches between them.
        critical: Maxima and minima.
        noise: Standard deviation of what scatters beyond the stated errors.
        chi2: Sum of squares around the fit, in units of all variances.
        points: Number of points.
        settings: alarm, level, scale, penalty and seed.
    """

    name: str
    kind: str
    changes: tuple[ChangePoint, ...]
    segments: tuple[Segment, ...]
    critical: tuple[CriticalPoint, ...]
    noise: float
    chi2: float
    points: int
    settings: dict[str, Any]

    @property
    def plateaus(self) -> tuple[Segment, ...]:
        """The stretches that are flat."""
        return tuple(segment for segment in self.segments if segment.plateau)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        head = f"{self.name}: {len(self)} change{'s' * (len(self) != 1)} in {self.points} visits ({self.kind})"
        return "\n  ".join([head, *(str(change) for change in self.changes), *(str(point) for point in self.critical)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return asdict(self)


def find_transitions(
    steps: Sequence[int],
    values: Sequence[float] | Array,
    errors: Sequence[float] | Array,
    *,
    kind: str | None = None,
    scale: str = "log",
    alarm: float = 0.05,
    level: float = 0.95,
    seed: int = 0,
    name: str = "series",
) -> Transitions:
    """Where a series of estimates with known errors changes.

    The series is cut into stretches with a level each, or a line each, so that Σ ((y_i − f_i) / σ_i)² + m·P is least
    over all sets of m cuts (dynamic programming). Here σ_i² = se_i² + τ², where τ is what neighbors differ by beyond
    the stated errors. The penalty P of a cut is the larger of a BIC term, (q + 1) log N for q coefficients of a stretch
    and N points, and the quantile of what the best cut takes from the sum of squares of simulated series without
    change, so that a series without change has a change point with chance `alarm` at most. Of levels and lines the one
    with the smaller penalised sum is taken.

    The interval of a change is the set of places where the profile of the sum of squares, within the stretches on both
    sides, is below a bound: the quantile of the profile at the true place in series simulated from the fit.

    Args:
        steps: Steps, ascending.
        values: The values.
        errors: Their standard errors; zeros where values are exact.
        kind: "level", "linear", or None to choose.
        scale: Lines are straight in log(1 + step) ("log") or in the step ("step").
        alarm: Chance of a change point where there is none.
        level: Chance of an interval to hold its change.
        seed: Simulations come from it.
        name: What the series is called.

    Returns:
        Change points, stretches, plateaus, maxima and minima.

    Raises:
        InputError: The columns do not fit one another, are not finite, or have fewer than six points.

    Example:
        >>> y = [9.0, 9.2, 8.9, 9.1, 9.0, 4.0, 4.1, 3.9, 4.0, 4.1]
        >>> found = find_transitions(range(0, 1000, 100), y, [0.1] * 10, name="llc")
        >>> print(found)
        llc: 1 change in 10 visits (level)
          between steps 400 and 500 (400 to 500), jump -5.02 ± 0.15, p 0.001
        >>> [round(segment.value, 2) for segment in found.plateaus]
        [9.04, 4.02]

    References:
        Yao 1988 (number of change points by a criterion); Jackson et al. 2005 (optimal partitions); Siegmund 1988
        (confidence sets of change points by likelihood ratios).
    """
    at, x, y, stated = _columns(steps, values, errors, scale)
    kinds = ("level", "linear") if kind is None else (kind,)
    if not set(kinds) <= set(LEAST):
        raise InputError(f"expected kind as 'level', 'linear' or None, got {kind!r}")
    for what, part in (("alarm", alarm), ("level", level)):
        if not 0 < part < 1:
            raise InputError(f"expected {what} as a number between 0 and 1, got {part!r}")
    generator = np.random.default_rng(np.random.SeedSequence(seed))
    size = len(y)
    floor = _FLOOR * float(np.ptp(y)) ** 2 or 1.0
    tau = float(extra_noise(x, y, stated))
    variance = np.maximum(stated + tau**2, floor)
    without = null_series(x, stated, tau, _simulated(size), generator, floor)
    fits = []
    for each in kinds:
        gains = best_gains(x, *without, each)
        q = 1 if each == "level" else 2
        bound = float(np.quantile(gains, 1 - alarm / len(kinds), method="higher"))
        penalty = max((q + 1) * math.log(size), bound)
        sums = Sums(x, y, variance, each)
        edges = [0, *partition(sums, size, penalty, LEAST[each]), size]
        chi2 = float(sum(sums.cost(a, b) for a, b in itertools.pairwise(edges)))
        fits.append((chi2 + (len(edges) - 2) * penalty + q * math.log(size), each, edges, chi2, penalty, gains, sums))
    _, chosen, edges, chi2, penalty, gains, sums = min(fits, key=lambda fit: fit[0])
    lines = [fit_line(x, y, variance, chosen, a, b) for a, b in itertools.pairwise(edges)]
    changes = []
    for k, cut in enumerate(edges[1:-1]):
        low, high = _interval(sums, x, stated, variance, chosen, lines[k], lines[k + 1], level, generator)
        middle = (x[cut - 1] + x[cut]) / 2
        (before, before_se), (after, after_se) = lines[k].at(middle), lines[k + 1].at(middle)
        gain = float(sums.cost(edges[k], edges[k + 2]) - sums.cost(edges[k], cut) - sums.cost(cut, edges[k + 2]))
        chance = float(1 + np.sum(gains >= gain)) / (1 + len(gains))
        jump_se = math.hypot(before_se, after_se)
        changes.append(ChangePoint(at[cut], at[cut - 1], at[low - 1], at[high], after - before, jump_se, chance))
    settings = {"alarm": alarm, "level": level, "scale": scale, "penalty": penalty, "seed": seed}
    segments = tuple(_segment(line, at, chosen) for line in lines)
    ranges = [(change.low, change.high) for change in changes]
    critical = find_turns(lines, x, y, at, ranges, alarm)
    return Transitions(name, chosen, tuple(changes), segments, critical, tau, chi2, size, settings)


def _columns(steps: Any, values: Any, errors: Any, scale: str) -> tuple[list[int], Array, Array, Array]:
    at = [int(step) for step in steps]
    y, se = (np.asarray(column, dtype=np.float64).reshape(-1) for column in (values, errors))
    if not len(at) == len(y) == len(se):
        raise InputError(f"expected as many values and errors as steps, got {len(y)} and {len(se)} for {len(at)}")
    if len(at) < 6:
        raise InputError(f"expected at least 6 points to look for changes in, got {len(at)}")
    if at[0] < 0 or any(a >= b for a, b in itertools.pairwise(at)):
        raise InputError(f"expected steps from 0 up in ascending order, each once, got {at[:12]}")
    bad = [step for step, v, s in zip(at, y, se, strict=True) if not math.isfinite(v) or not 0 <= s < math.inf]
    if bad:
        raise InputError(
            f"expected finite values with errors from 0 up, got others at steps {bad[:12]}; leave them out"
        )
    if scale not in ("log", "step"):
        raise InputError(f"expected scale as 'log' or 'step', got {scale!r}")
    x = np.asarray(at, dtype=np.float64)
    return at, np.log1p(x) if scale == "log" else x, y, se**2


def _simulated(size: int) -> int:
    """Series to simulate: fewer of long ones, for the memory they take."""
    return min(_SIMULATED, max(199, _MOST // size))


def _interval(
    sums: Sums,
    x: Array,
    stated: Array,
    variance: Array,
    kind: str,
    left: Line,
    right: Line,
    level: float,
    generator: np.random.Generator,
) -> tuple[int, int]:
    """First and last place of the change at which the profile of the sum of squares is below its bound."""
    start, stop, cut, least = left.first, right.last + 1, right.first, LEAST[kind]
    places, totals = sums.splits(start, stop, least)
    x, stated, variance = x[start:stop], stated[start:stop], variance[start:stop]
    fit = np.array([(left if k < cut else right).at(x[k - start])[0] for k in range(start, stop)])
    series = fit + generator.normal(size=(_simulated(len(fit)), len(fit))) * np.sqrt(variance)
    own = np.broadcast_to(variance, series.shape)
    if float((variance - stated).max()) > 0 and len(fit) >= 5:  # the noise was estimated, so it is here
        tau = extra_noise(x, series, np.broadcast_to(stated, series.shape))
        own = np.maximum(stated + tau[:, None] ** 2, 1e-3 * variance)
    inside = Sums(x, series, own, kind).splits(0, stop - start, least)[1]
    ratios = inside[:, cut - start - least] - inside.min(axis=-1)
    bound = float(np.quantile(ratios, level, method="higher"))
    near = places[totals - totals.min() <= bound]
    return int(min(near[0], cut)), int(max(near[-1], cut))


def _segment(line: Line, at: Sequence[int], kind: str) -> Segment:
    value, se = line.at(line.center)
    flat = kind == "level" or abs(line.slope) <= NormalDist().inv_cdf(0.975) * line.slope_se
    flat = flat and line.points >= 3
    return Segment(at[line.first], at[line.last], line.points, value, se, line.slope, line.slope_se, flat)
