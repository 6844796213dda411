"""Which region of parameter space holds the posterior at each temperature, and where it moves to another one.

A posterior at t = nβ weighs regions a of parameter space by exp(−F_a(t)), F_a ≈ t L_a + λ_a log t: at small t by their
size, at large t by their loss. As t grows it passes from simple regions (small λ) to accurate ones (small L), by
first-order transitions. Given draws on a ladder and an observable that names the region of each draw,

    occupation p_a(t),   F_a(t) = F(t) − log p_a(t),   E_t[L | a] ≈ L_a + λ_a / t,

and regions a and b weigh the same at n = n_c with n (L_a − L_b) = (λ_b − λ_a) log n. Between levels the draws of each
are reweighted by exp(−(t − t_k) L); the ratio of two regions needs no free energies for that.

References:
    Watanabe 2009, section 7.6; Ferrenberg & Swendsen 1988, Phys. Rev. Lett. 61, 2635 (reweighting); Jay & Neil
    2021, Phys. Rev. D 103, 114502 (averages over where to begin a fit).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError
from crunode.estimators.chains import chain_findings
from crunode.estimators.covariance import combination_se, exchanged, finite_losses, means_covariance
from crunode.estimators.energy_curve import gap_findings, increments
from crunode.estimators.extrapolate import digamma
from crunode.estimators.phase_diagram import PhaseDiagram, Transition
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

__all__ = ["phases"]

Array = NDArray[np.float64]
Labels = NDArray[np.float64]

_MOST_REGIONS = 32
# Draws of a region at a level, effectively, from which its mean loss counts.
_ENOUGH, _FEWEST_LEVELS = 50, 3
# Visits to both regions near a transition from which its place is sure, and how far chains may disagree.
_VISITS, _RHAT = 10, 1.1
# Draws that a level has to have left in both regions once they are reweighted, for it to count there.
_REACH = 30.0
# Difference of mean losses at a transition over their spread, from which the two stand apart.
_APART = 2.0
_WIDE = 1.96
# What a multiplicity of two would take away is within 1.96 of these.
_DOUBLE = 0.55


def phases(
    draws: Draws, label: str, *, names: Mapping[float, str] | None = None, floors: Mapping[str, float] | None = None
) -> PhaseDiagram:
    """The phase diagram of a posterior over its ladder of nbeta.

    Args:
        draws: Draws on a ladder of nbeta, sampled with observe={label: fn}.
        label: Name of the observable; each of its values is a region, such as the number of units that are alive.
        names: What to call them, by value.
        floors: The least loss in a region above that of the center, by name, where it is known. Without, it comes from
            the fit of E_t[L | region] against 1/t, whose slope is λ.

    Returns:
        Occupations, free energies, transitions with intervals, λ in each region, and critical sample sizes.

    Raises:
        InputError: There is no such observable, it has too many values, or there is one level only.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> levels, rows, labels = [4.0**k for k in range(1, 8)], [], []
        >>> for t in levels:  # L = 0.01 + u² (λ = 1/2) or 9 |v|² (λ = 1): weights t^(-1/2) e^(-t/100) and 1 / (3 t)
        ...     second = rng.random((4, 2000)) < 1 / (1 + 3 * t**0.5 * np.exp(-t / 100))
        ...     rows.append(np.where(second, rng.gamma(1.0, 1 / t, (4, 2000)), 0.01 + rng.gamma(0.5, 1 / t, (4, 2000))))
        ...     labels.append(second.astype(float))
        >>> arrays = {"excess": np.concatenate(rows), "deep": np.concatenate(labels)}
        >>> draws = Draws(arrays, {}, np.repeat(levels, 4), {"n": 1000, "asked": {"seed": 0}})
        >>> found = phases(draws, "deep", names={0: "wide", 1: "deep"})
        >>> [(x.before, x.after, x.sure) for x in found.transitions]  # 3 √t = exp(t / 100) at t = 411
        [('wide', 'deep', True)]
        >>> bool(found.transitions[0].low < 411 < found.transitions[0].high)
        True
    """
    levels, losses, labels = _checked(draws, label)
    values = sorted({float(v) for x in labels for v in np.unique(x)})
    if len(values) > _MOST_REGIONS:
        raise InputError(
            f"expected {label!r} to name a region by one of {_MOST_REGIONS} values or fewer, got {len(values)}; record "
            "a whole number, such as a rounded or counted one"
        )
    regions = [(names or {}).get(v, f"{v:g}") for v in values]
    if len(set(regions)) < len(regions):
        raise InputError(f"expected a name of its own for each region, got {regions}")
    unknown = [name for name in floors or {} if name not in regions]
    if unknown:
        raise InputError(f"expected floors for regions among {regions}, got {unknown} besides")
    joint = exchanged(draws)
    member = [np.stack([(x == v).astype(np.float64) for v in values]) for x in labels]
    occupation = np.array([m.mean(axis=(1, 2)) for m in member])
    occupation_se = np.array([[_share_se(one, loss) for one in m] for m, loss in zip(member, losses, strict=True)])
    found = increments(levels, losses, joint=joint)
    energy = np.concatenate([[0.0], np.cumsum(found.change)])
    energy_se = np.sqrt([0.0, *(found.covariance[:k, :k].sum() for k in range(1, len(levels)))])
    with np.errstate(divide="ignore", invalid="ignore"):
        seen = occupation > 0
        region_energy = np.where(seen, energy[:, None] - np.log(occupation), np.nan)
        region_se = np.where(seen, np.hypot(energy_se[:, None], occupation_se / occupation), np.nan)
    replicas = [draws.at(t)["replica"] for t in levels] if joint and "replica" in draws.arrays else None
    transitions = tuple(_transitions(levels, losses, member, occupation, regions, replicas, joint))
    lines = {
        name: line
        for k, name in enumerate(regions)
        if (line := _inside(levels, losses, [m[k] for m in member], joint, (floors or {}).get(name))) is not None
    }
    return PhaseDiagram(
        label=label,
        regions=tuple(regions),
        nbeta=tuple(levels),
        occupation=occupation,
        occupation_se=occupation_se,
        scaled_loss=np.array([t * x.mean() for t, x in zip(levels, losses, strict=True)]),
        scaled_loss_se=np.array([t * mcse_mean(x) for t, x in zip(levels, losses, strict=True)]),
        energy=region_energy,
        energy_se=region_se,
        transitions=transitions,
        coefficients={name: line.coefficient(name, draws) for name, line in lines.items()},
        floors={name: line.floor() for name, line in lines.items()},
        critical=dict(_critical(transitions, lines, draws)),
        findings=(
            *chain_findings(draws, dict(zip(levels, losses, strict=True))),
            *(Finding.of("CRIT706", x.doubt()) for x in transitions if not x.sure),
            *gap_findings(levels, found.overlap),
        ),
    )


def _checked(draws: Draws, label: str) -> tuple[list[float], list[Array], list[Labels]]:
    if not isinstance(draws, Draws):
        raise InputError(f"expected Draws on a ladder of nbeta, got {type(draws).__name__}")
    if label not in draws.arrays:
        there = sorted(set(draws.arrays) - {"excess", "distance2", "positions", "pointwise"})
        raise InputError(
            f"expected label as the name of a recorded observable, got {label!r} where there are {there}; sample with "
            f"observe={{{label!r}: fn}}"
        )
    levels = draws.levels()
    if len(levels) < 2:
        raise InputError(f"expected a ladder of two levels of nbeta or more, got {levels}")
    labels = [draws.at(t)[label].astype(np.float64) for t in levels]
    if labels[0].ndim != 2 or not all(np.isfinite(x).all() for x in labels):
        raise InputError(
            f"expected {label!r} as one finite number for each draw, got an array of shape {labels[0].shape} for "
            "(chain, draw)"
        )
    return levels, finite_losses(draws), labels


def _share_se(one: Array, losses: Array) -> float:
    """The error of an occupation. One that is 0 or 1 in all draws is known to one in as many as are independent."""
    found = mcse_mean(one)
    return found if found > 0 else 1 / (2 + max(ess(losses), 1.0))


@dataclass(frozen=True)
class _Moved:
    """What the draws of one level say of two regions at another t, by reweighting with exp(−(t − t_k) L).

    Attributes:
        ratio: Log of the weight of the second region over that of the first.
        means: Mean loss in each.
        variances: Its variance in each.
        ratio_series: Influence of each draw on the ratio.
        jump_series: Influence of each draw on the difference of the means.
        count: Draws that are left in the region that has fewer, by their weights.
    """

    ratio: float
    means: tuple[float, float]
    variances: tuple[float, float]
    ratio_series: Array
    jump_series: Array
    count: float

    @classmethod
    def of(cls, step: float, losses: Array, first: Array, second: Array) -> _Moved | None:
        """From a level `step` away; None where one of the regions was not visited there."""
        logs = -step * losses
        sizes, means, variances, influence, counts = [], [], [], [], []
        for one in (first, second):
            if not one.any():
                return None
            top = float(logs[one > 0].max())
            w = np.exp(np.where(one > 0, logs - top, -np.inf))
            total = float(w.sum())
            mean = float((w * losses).sum()) / total
            sizes.append(top + math.log(total))
            means.append(mean)
            variances.append(float((w * (losses - mean) ** 2).sum()) / total)
            influence.append(w * (losses.size / total))
            counts.append(total**2 / float((w * w).sum()))
        jump = influence[0] * (losses - means[0]) - influence[1] * (losses - means[1])
        return cls(
            sizes[1] - sizes[0],
            (means[0], means[1]),
            (variances[0], variances[1]),
            influence[1] - influence[0],
            jump,
            min(counts),
        )


@dataclass(frozen=True)
class _Crossing:
    """Where two regions weigh the same, from all levels whose draws reach there."""

    levels: list[float]
    losses: list[Array]
    first: list[Array]
    second: list[Array]
    joint: bool

    def moved(self, t: float) -> list[_Moved | None]:
        """All levels at t; None for those whose draws do not reach there."""
        found = []
        for level, x, one, two in zip(self.levels, self.losses, self.first, self.second, strict=True):
            moved = _Moved.of(t - level, x, one, two)
            found.append(moved if moved is not None and moved.count >= _REACH else None)
        return found

    def shares(self, t: float) -> Array | None:
        """How much each level counts at t; None where no level reaches there."""
        errors = [math.inf if m is None else mcse_mean(m.ratio_series) for m in self.moved(t)]
        weights = np.array([0.0 if not 0 < e < math.inf else e**-2 for e in errors])
        return weights / weights.sum() if weights.sum() > 0 else None

    def turned(self, t: float, shares: Array) -> bool:
        """Whether the second region weighs more than the first at t."""
        rows = zip(self.levels, self.losses, self.first, self.second, shares.tolist(), strict=True)
        parts = [(share, _Moved.of(t - level, x, one, two)) for level, x, one, two, share in rows if share]
        return bool(sum(share * m.ratio for share, m in parts if m is not None) > 0)

    def solve(self, hot: float, cold: float) -> tuple[float, Array] | None:
        """Where the ratio is zero, and how much each level counted."""
        t = math.sqrt(hot * cold)
        shares = self.shares(t)
        for _ in range(3):
            if shares is None:
                return None
            low, high = math.log(hot / 2), math.log(2 * cold)
            for _ in range(40):
                middle = 0.5 * (low + high)
                if self.turned(math.exp(middle), shares):
                    high = middle
                else:
                    low = middle
            t = math.exp(0.5 * (low + high))
            shares = self.shares(t)
        return None if shares is None else (t, shares)


def _transitions(
    levels: list[float],
    losses: list[Array],
    member: list[Array],
    occupation: Array,
    regions: list[str],
    replicas: list[Array] | None,
    joint: bool,
) -> Iterator[Transition]:
    first = occupation.argmax(axis=1)
    for k in range(len(first) - 1):
        a, b = int(first[k]), int(first[k + 1])
        if a == b:
            continue
        hot, cold = levels[k], levels[k + 1]
        visits, agree = max(
            _visits(member[j][a], member[j][b], None if replicas is None else replicas[j]) for j in (k, k + 1)
        )
        pair = _Crossing(levels, losses, [m[a] for m in member], [m[b] for m in member], joint)
        place = pair.solve(hot, cold)
        if place is None:
            guess = math.sqrt(hot * cold)
            nothing = (math.nan, math.nan, math.nan)
            yield Transition(regions[a], regions[b], guess, hot, cold, "unknown", *nothing, visits, False)
            continue
        yield _transition(pair, *place, (hot, cold), (regions[a], regions[b]), (visits, agree))


def _transition(
    pair: _Crossing,
    t: float,
    shares: Array,
    between: tuple[float, float],
    names: tuple[str, str],
    seen: tuple[int, bool],
) -> Transition:
    used = [(share, m) for share, m in zip(shares.tolist(), pair.moved(t), strict=True) if share and m is not None]
    parts = [share for share, _ in used]
    jump = sum(share * (m.means[0] - m.means[1]) for share, m in used)
    width = math.sqrt(sum(share * (m.variances[0] + m.variances[1]) / 2 for share, m in used))
    jump_se = combination_se(parts, [m.jump_series for _, m in used], pair.joint)
    ratio_se = combination_se(parts, [m.ratio_series for _, m in used], pair.joint)
    # The log ratio of the weights of both regions grows with t at the rate of the jump.
    wide = min(_WIDE * ratio_se / max(abs(jump) * t, 1e-300), 700.0)
    low, high = t * math.exp(-wide), t * math.exp(wide)
    visits, agree = seen
    sure = visits >= _VISITS and agree
    if not sure:  # what lies between two levels is then a guess
        low, high = min(low, between[0]), max(high, between[1])
    apart = jump / max(width, 1e-300)
    order = "first-order" if jump > 3 * jump_se and apart >= _APART else "crossover"
    return Transition(*names, t, low, high, order, jump, jump_se, apart, visits, sure)


def _visits(one: Array, other: Array, replica: Array | None = None) -> tuple[int, bool]:
    """How often chains went from one region to the other and back, and whether they agree on its share.

    Where chains exchange states, a level sees both regions in turn without any state having changed its region: then
    the states that come by are followed, each by itself.
    """
    changes = 0
    for c, (x, y) in enumerate(zip(one, other, strict=True)):
        here = (x + y) > 0
        where = (x - y)[here]
        if replica is None:
            changes += int((np.diff(where) != 0).sum())
        else:
            for number in np.unique(replica[c][here]):
                changes += int((np.diff(where[replica[c][here] == number]) != 0).sum())
    rhat = split_rhat(one)
    return changes // 2, bool(rhat < _RHAT)


@dataclass(frozen=True)
class _Inside:
    """L_a and λ_a of E_t[L | a] = L_a + λ_a / t: values, covariance from Monte Carlo, spread between ranges of t."""

    value: Array
    covariance: Array
    spread: Array
    hottest: float
    levels: int
    misfit: float

    def coefficient(self, name: str, draws: Draws) -> Estimate:
        """λ in the region."""
        value = float(self.value[1])
        double = _DOUBLE / max(math.log(max(self.hottest, 1.0)) - digamma(max(value, 0.5)), 1.0)
        terms = {"law": float(self.spread[1]), "multiplicity": double}
        return Estimate(
            f"coefficient in {name}",
            value,
            se=math.sqrt(float(self.covariance[1, 1])),
            systematic=math.hypot(*terms.values()),
            seed=draws.spec["asked"]["seed"],
            diagnostics={"hottest": self.hottest, "levels": self.levels, "misfit": self.misfit},
            terms=terms,
            provenance=draws.provenance,
        )

    def floor(self) -> tuple[float, float]:
        """The least loss in the region, above that of the center, and its error."""
        return float(self.value[0]), math.hypot(math.sqrt(float(self.covariance[0, 0])), float(self.spread[0]))


def _inside(
    levels: list[float], losses: list[Array], member: list[Array], joint: bool, floor: float | None
) -> _Inside | None:
    """The line of the mean loss in a region against 1/t, averaged over which levels it begins from."""
    used = [k for k, m in enumerate(member) if m.sum() and m.mean() * ess(losses[k]) >= _ENOUGH]
    if len(used) < _FEWEST_LEVELS:
        return None
    means = np.array([float((losses[k] * member[k]).sum() / member[k].sum()) for k in used])
    series = [member[k] * (losses[k] - mean) / member[k].mean() for k, mean in zip(used, means, strict=True)]
    covariance = means_covariance(series, joint)
    if not (np.diag(covariance) > 0).all():
        return None
    x = 1 / np.array([levels[k] for k in used])
    above = means - (floor or 0.0)
    maps, scores, fits = [], [], []
    for first in range(len(used) - _FEWEST_LEVELS + 1):
        part = slice(first, None)
        precision = np.linalg.inv(covariance[part, part])
        design = np.stack([np.ones_like(x[part]), x[part] / x[0]], axis=1)
        if floor is not None:
            design = design[:, 1:]
        pull = design.T @ precision
        solve = np.linalg.solve(pull @ design, pull)
        rest = above[part] - design @ (solve @ above[part])
        chi2 = float(rest @ precision @ rest)
        whole = np.zeros((2, len(used)))
        whole[-len(solve) :, part] = solve
        whole[1] /= x[0]
        maps.append(whole)
        fits.append(chi2 / max(len(rest) - len(solve), 1))
        # A level left out costs as much as a parameter that fits it.
        scores.append(-0.5 * chi2 - first)
    weights = np.exp(np.array(scores) - max(scores))
    weights /= weights.sum()
    values = np.array([m @ above for m in maps])
    stretch = max(1.0, fits[int(weights.argmax())])
    combined = sum(w * m for w, m in zip(weights, maps, strict=True))
    value = weights @ values
    spread = np.sqrt(weights @ (values - value) ** 2)
    value[0] += floor or 0.0
    return _Inside(
        value,
        stretch * combined @ covariance @ combined.T,
        spread,
        float(np.exp(weights @ -np.log(x[: len(weights)]))),
        len(used),
        fits[int(weights.argmax())],
    )


def _critical(
    transitions: tuple[Transition, ...], lines: Mapping[str, _Inside], draws: Draws
) -> Iterator[tuple[tuple[str, str], Estimate]]:
    """n_c of each transition, where both regions' lines are known and cross."""
    for change in transitions:
        if change.before not in lines or change.after not in lines:
            continue
        a, b = lines[change.before], lines[change.after]
        depth, more = float(a.value[0] - b.value[0]), float(b.value[1] - a.value[1])
        if depth <= 0 or more <= math.e * depth:
            continue
        n = _size(more / depth)
        # n / log n = r has dn/dr = log² n / (log n − 1), and r = Δλ / ΔL.
        slope = math.log(n) ** 2 / max(math.log(n) - 1, 1e-9)
        pull = slope * np.array([-more / depth**2, -1 / depth])
        chance = float(pull @ (a.covariance + b.covariance) @ pull)
        law = float(((pull * a.spread) ** 2 + (pull * b.spread) ** 2).sum())
        found = Estimate(
            f"critical n of {change.before} → {change.after}",
            n,
            se=math.sqrt(chance),
            systematic=math.sqrt(law),
            seed=draws.spec["asked"]["seed"],
            diagnostics={"depth": depth, "more": more},
            terms={"law": math.sqrt(law)},
            provenance=draws.provenance,
        )
        yield (change.before, change.after), found


def _size(ratio: float) -> float:
    """The larger solution n of n / log n = ratio, for ratios above e."""
    n = ratio * math.log(ratio) + 1.0
    for _ in range(200):
        n = ratio * math.log(max(n, math.e))
    return n
