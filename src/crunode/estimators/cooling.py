"""Large networks: one chain that is cooled down in steps, and where its estimates lead.

Without label noise the temperature is free: λ̂ at falling temperatures rises to λ (`crunode.estimators.cooled_chain`).
What is missing at the last level is told in two ways. At the center, the share of the rank of the Jacobian that the
same temperature shows can be computed (`crunode.estimators.resolved`), and for the directions that the center has that
is all. What belongs to other directions, that only show away from it, is bounded from above by the rank at a point of
the valley that steps from where the chain ended lead to (`crunode.estimators.closing`), and from below by λ̂. Where
there is no such point it is extrapolated from level to level: increments as a geometric series, and all by laws in
powers and logarithms of t.

References:
    Lau et al. 2023 (networks of up to 1e8 parameters).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.jacobian import NoOutputs
from crunode.estimators.closing import Closed, Closing
from crunode.estimators.cooled_chain import FACTOR, MOVES, STEP, CooledChain, Level
from crunode.estimators.extrapolate import extrapolate
from crunode.estimators.resolved import SMOOTH, Resolved

__all__ = ["cooled_estimate", "extrapolated"]

# How far weights move, relative to their size, and matrices of low rank where they have nothing; and again, held
# closer, where the chain leaves for where there is less: λ̂ falls by so many errors as it gets colder.
_MOVES, _FALLEN = {"local": MOVES, "basin": ((1.0, 1.0),)}, 4.0
# Gradients to spend unless told, and what may be missing at the end, relative to the value.
_BUDGET, _SMALL = 40_000, 0.02
# The largest ratio of a series that is believed, and the error of leapfrog steps.
_RATIO, _LEAP = 0.75, 0.005
# What may be missing at a last level that the center is the only measure of, and gradients that are worth while for it.
_NEARLY, _LEFT = 0.1, 2000
# A last level that shows less than this of the rank at the center says little about the rest.
_FEW = 0.4
# Directions that the center does not have are none below this part of all.
_NONE = 0.03
# How far the directions that the center does not have may be off, since the chain also reaches pieces of the valley
# that do not lead to the center.
_ASTRAY = 0.2
# Directions that only show away from the center, and are known to be there, add this much where none of them shows yet;
# where some do, as many again and more.
_HIDDEN, _UNSEEN = 0.1, 3.0
# The valley is looked for after so many levels, if so many gradients are left. The rank there is above the least by
# this part of what no level has shown, and at most by this part of itself; that is in doubt, and this much in any case.
_CLOSE, _ENOUGH = 2, 3000
_OVER, _MORE, _TYPICAL = 0.1, 0.02, 0.015
# A point of the valley that has less than this part of λ̂ is on another one.
_FAR = 0.95
# What part of what was added is in doubt: where the rank tells it, and where a series does. All of it is for directions
# that the center does not have.
_TENTH, _HALF = 0.1, 0.5


def extrapolated(levels: Sequence[Level]) -> tuple[float, float]:
    """Where levels at temperatures that fall by the same factor lead, and how unsure the law behind that is.

    Increments d₁, d₂, … as a geometric series: with r = d_k / d_(k−1) the rest is d_k r / (1 − r), but where the last
    increment is not told from chance. That, and the laws of `extrapolate` with their fixed powers and logarithms of t,
    bound what is likely from two sides; the answer is in the middle.

    Args:
        levels: From hot to cold, three or more.

    Returns:
        The limit, and its error: half the distance of the two with the spread of the laws.

    Example:
        >>> value, error = extrapolated([Level(10.0 ** (k + 4), 8000 - 2000 * 0.4**k, 1.0, 1) for k in range(3)])
        >>> abs(value - 8000) < error < 400
        True
    """
    values, errors = [level.value for level in levels], [level.se for level in levels]
    before, last = values[-2] - values[-3], values[-1] - values[-2]
    series = values[-1]
    if before > 0 and last > 2 * math.hypot(*errors[-2:]):
        ratio = min(last / before, _RATIO)
        series += last * ratio / (1 - ratio)
    # Labels have no noise, so that n plays no part.
    fit = extrapolate([level.nbeta for level in levels], values, errors, 1 << 40, False)
    return (series + fit.value) / 2, math.hypot((series - fit.value) / 2, fit.spread)


def cooled_estimate(land: Landscape, target: str = "local", *, seed: int = 0, budget: int | None = None) -> Estimate:
    """λ of a large network without label noise, from a single chain on a falling temperature.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        target: "local" moves weights by a small share of their size, "basin" by all of it.
        seed: Everything random comes from it.
        budget: The most gradients to take; None for as many as it takes to have nearly all, and at most 40 000.

    Returns:
        The estimate. `diagnostics["levels"]` has λ̂ at each temperature, and the share of the rank at the center that
        it shows.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> est = cooled_estimate(reduced_rank(20, 10, 20, rank=2, n=2000))
        >>> abs(est.value / 102 - 1) < 0.1  # 102 is exact
        True
    """
    most, spent, seen = _BUDGET if budget is None else budget, 0, 0
    for share, reach in _MOVES[target]:
        run = _cooled(land, share, reach, seed, most - spent, held=target == "local")
        run.chain.spent += spent
        run.chain.seen += seen
        spent, seen = run.chain.spent, run.chain.seen
        if not run.astray or most - spent < _LEFT:
            break
    return _estimate(land, run, seed, (share, reach))


@dataclass
class _Run:
    """A chain that was cooled down, what it saw, and what that leads to."""

    chain: CooledChain
    held: bool
    levels: list[Level] = field(default_factory=list)
    measure: _Measure | None = None
    answer: _Answer | None = None
    valley: Closed | None = None
    sought: bool = False

    @property
    def astray(self) -> bool:
        """Whether λ̂ has fallen as it got colder: a chain that was to stay has left for where there is less."""
        if len(self.levels) < 2 or not self.held:
            return False
        before, last = self.levels[-2:]
        return before.value - last.value > _FALLEN * math.hypot(before.se, last.se)


def _cooled(land: Landscape, share: float, reach: float, seed: int, most: int, held: bool) -> _Run:
    run = _Run(CooledChain(land, share, reach, seed, most), held)
    chain = run.chain
    run.measure = _Measure(land, chain, seed, held)
    t = chain.begin()
    if run.measure.examples != chain.examples:
        run.measure = _Measure(land, chain, seed, held)
    run.measure.rescale()
    while t > 0:
        level = chain.level(t, first=False)
        if level is None:
            break
        run.levels.append(level)
        run.measure.add(level)
        run.answer = _answered(run)
        if run.answer is not None and run.answer.hidden and len(run.levels) >= _CLOSE and not run.astray:
            _close(land, run, share, seed)
        if run.astray or (run.answer is not None and run.answer.enough):
            break
        t *= FACTOR
    return run


def _close(land: Landscape, run: _Run, share: float, seed: int) -> None:
    """Look for the valley, once, and answer by that."""
    chain, left = run.chain, run.chain.most - run.chain.spent
    if run.sought or left < _ENOUGH:
        return
    run.sought = True
    try:
        closing = Closing(land, chain.index, share, seed)
    except NoOutputs:
        return
    with contextlib.suppress(NoOutputs):
        run.valley = closing.close(chain.moved, run.levels[-1].value, left)
    chain.spent += closing.gradients
    chain.seen += closing.gradients * chain.examples
    run.answer = _answered(run)


class _Measure:
    """The share of the rank at the center that each level shows; none where it cannot be had.

    Attributes:
        center: The rank.
        bent: How far the center is from a smooth point, where that was looked at.
        examples: How many it is of.
        shares: For each level, with their errors.
    """

    def __init__(self, land: Landscape, chain: CooledChain, seed: int, held: bool) -> None:
        self._chain, self._counted, self.examples = chain, 0, chain.examples
        self.shares: list[tuple[float, float]] = []
        self.center: Resolved | None = None
        self.bent: float | None = None
        self._look = held
        if chain.most - chain.spent < _LEFT:
            return
        try:
            self.center = Resolved(land, chain.index, chain.scale, seed)
            self._count()
        except NoOutputs:
            pass

    @property
    def singular(self) -> bool:
        """Whether the center of a chain that is to stay is known to be no smooth point; looked at when asked for."""
        if self._look and self.center is not None:
            self._look = False
            with contextlib.suppress(NoOutputs):
                self.bent = self.center.bent()
            self._count()
        return self.bent is not None and self.bent > SMOOTH

    def rescale(self) -> None:
        """Measure in the coordinates that the chain is in now."""
        if self.center is not None:
            self.center.rescale(self._chain.scale)

    def add(self, level: Level) -> None:
        if self.center is None:
            return
        try:
            found = self.center.share(level.nbeta, max(self._chain.most - self._chain.spent, 0))
        except NoOutputs:
            self.center = None
            return
        self.shares.append((min(found[0], 1.0), found[1]))
        self._count()

    def _count(self) -> None:
        assert self.center is not None
        more = self.center.gradients - self._counted
        self._counted += more
        self._chain.spent += more
        self._chain.seen += more * self._chain.examples

    def summary(self) -> dict[str, float] | None:
        if self.center is None:
            return None
        found = {"rank": self.center.rank, "error": self.center.error}
        return found if self.bent is None else {**found, "bent": self.bent}


@dataclass(frozen=True)
class _Answer:
    """What there is to say.

    Attributes:
        value: λ.
        terms: Parts of its error.
        enough: Further levels would not change much.
        hidden: There are directions that only show away from the center.
        followed: Increments of these were followed over three levels or more.
    """

    value: float
    terms: dict[str, float]
    enough: bool
    hidden: bool = False
    followed: bool = False


def _answer(levels: Sequence[Level], measure: _Measure) -> _Answer | None:
    """What the levels lead to; None where there are too few of them.

    λ̂ has a part that belongs to the directions that the center has too, whose limit is half the rank there, and a part
    that belongs to directions that only show away from it. The former is known, the latter extrapolated.
    """
    last, few = levels[-1].value, len(levels) < 3
    if measure.center is None or len(levels) < 2 or not last > 0:
        if few:
            return None
        value, law = extrapolated(levels)
        terms = {"temperature": _HALF * abs(value - last), "law": law}
        return _Answer(value, _and_steps(terms, value), abs(value - last) <= _SMALL * last)
    known = measure.center.rank / 2
    (share, doubt), (earlier, _) = measure.shares[-1], measure.shares[-2]
    others = [
        Level(x.nbeta, x.value - s * known, math.hypot(x.se, d * known), x.steps)
        for x, (s, d) in zip(levels, measure.shares, strict=True)
    ]
    more = others[-1].value
    if more <= max(_NONE * last, 2 * others[-1].se):
        # Next to none: all directions are seen as those of the center are. Half the rank there is a lower bound, and a
        # chain that sees less has left for where there is less.
        value, before = max(last / share, known), max(levels[-2].value / earlier, known)
        terms = {"temperature": _TENTH * abs(value - last), "center": value * doubt / share, "law": abs(value - before)}
        hidden = measure.singular
        if hidden:
            terms["hidden"] = max(_HIDDEN * value, _UNSEEN * max(more, others[-1].se))
        return _Answer(value, _and_steps(terms, value), not hidden and share >= 1 - _NEARLY, hidden)
    # With two levels there is no telling how increments go on: as much again, give or take that.
    rest = max(more - others[-2].value, 0.0)
    limit, law = (more + rest, rest) if few else extrapolated(others)
    # They are no steeper than those of the center, so that no larger share of them shows.
    limit, law = max(limit, more / share), math.hypot(law, max(more / share - limit, 0.0) / 2)
    value = known + limit
    terms = {"temperature": limit - more, "law": law, "center": known * doubt, "reach": _ASTRAY * limit}
    enough = not few and abs(value - last) <= _SMALL * last
    return _Answer(value, _and_steps(terms, value), enough, hidden=True, followed=not few)


def _answered(run: _Run) -> _Answer | None:
    """What the levels and a point of the valley lead to.

    Levels that were followed count too, each by how certain it is. Fewer of them, or such as show nothing that the
    center does not have, know nothing of what the valley has.
    """
    assert run.measure is not None
    alone, valley, last = _answer(run.levels, run.measure), run.valley, run.levels[-1].value
    if alone is None or valley is None or run.measure.center is None:
        return alone
    known, upper = run.measure.center.rank / 2, valley.rank / 2
    if upper < max(_FAR * last, known - valley.error - run.measure.center.error):
        return alone
    over = min(_OVER * max(upper - last, 0.0), _MORE * upper)
    value, terms = upper - over, {"pieces": math.hypot(over, _TYPICAL * upper), "rank": valley.error / 2}
    if alone.followed:
        others = {name: alone.terms[name] for name in ("temperature", "law", "center")}
        one, other = (math.hypot(*parts.values()) for parts in (terms, others))
        share = other**2 / (one**2 + other**2)
        apart = abs(value - alone.value)
        value = share * value + (1 - share) * alone.value
        terms = {name: share * term for name, term in terms.items()}
        terms |= {name: (1 - share) * term for name, term in others.items()}
        terms["apart"] = max(apart - 2 * math.hypot(one, other), 0.0) / 2
    enough = math.hypot(*terms.values()) <= _SMALL * value
    terms["reach"] = _ASTRAY * max(value - known, 0.0)
    return _Answer(value, _and_steps(terms, value), enough, hidden=True)


def _and_steps(terms: dict[str, float], value: float) -> dict[str, float]:
    return {**terms, "discretisation": _LEAP * abs(value)}


def _estimate(land: Landscape, run: _Run, seed: int, moves: tuple[float, float]) -> Estimate:
    levels, measure, answer, chain = run.levels, run.measure, run.answer, run.chain
    findings = list(land.findings)
    if land.n < 100:
        findings.append(Finding.of("LLC105", f"n = {land.n}"))
    value, se = (levels[-1].value, levels[-1].se) if levels else (math.nan, math.nan)
    if chain.top == 0:
        findings.append(Finding.of("LLC106", "its slope is zero everywhere around the center"))
    terms = {"temperature": abs(value)} if answer is None else answer.terms
    if answer is None:
        findings.append(Finding.of("LLC115", f"{chain.spent} gradients for {len(levels)} of 3 levels or more"))
    else:
        rest, value = answer.value - value, answer.value
        if run.astray:
            fall = f"from {levels[-2].value:.4g} to {levels[-1].value:.4g} at the last of {len(levels)} levels"
            findings.append(Finding.of("LLC120", f"{fall}, {chain.spent} gradients"))
        if run.valley is None and measure is not None and measure.shares and measure.shares[-1][0] < _FEW:
            seen = f"{measure.shares[-1][0]:.0%} of the rank at the center at the last of {len(levels)} levels"
            findings.append(Finding.of("LLC115", f"{seen}, {chain.spent} gradients"))
        findings.append(Finding.of("LLC114", f"{levels[-1].value:.4g} at the last of {len(levels)}, {rest:+.2g} added"))
    shares = [None] * len(levels) if measure is None or measure.center is None else [s for s, _ in measure.shares]
    rows = [
        {"nbeta": x.nbeta, "value": x.value, "se": x.se, "steps": x.steps, "share": s}
        for x, s in zip(levels, shares, strict=True)
    ]
    return Estimate(
        "llc",
        float(value),
        se=float(se),
        systematic=math.hypot(*terms.values()),
        findings=tuple(findings),
        spec={
            "asked": {"seed": seed},
            "n": land.n,
            "dim": land.dim,
            "kernel": {
                "name": "underdamped Langevin, cooled",
                "share": moves[0],
                "reach": moves[1],
                "even": chain.even,
                "step": STEP,
            },
            "reasons": {"kernel": "in a network as large one chain tells the coefficient, if it gets around"},
        },
        seed=seed,
        diagnostics={
            "levels": rows,
            "center_rank": None if measure is None else measure.summary(),
            "valley": None if run.valley is None else asdict(run.valley),
            "examples": chain.examples,
            "cost": {"gradients": float(chain.spent), "examples": float(chain.seen)},
        },
        terms=terms,
        provenance=provenance(),
    )
