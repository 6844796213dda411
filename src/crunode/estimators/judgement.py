"""From draws to an estimate of the learning coefficient: value, errors, findings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from crunode.core.landscape import Landscape
from crunode.core.result import Draws, Estimate, Finding, provenance
from crunode.estimators.extrapolate import Extrapolation, extrapolate, growth
from crunode.estimators.limits import Limit
from crunode.estimators.precision import moves_of_chains, moves_of_draws
from crunode.estimators.richardson import remove_step_bias, step_terms, without_step_bias
from crunode.sampling.diagnostics import drift, ess, mcse_mean, split_rhat

__all__ = ["estimate_from", "failed_estimate", "valley_estimate"]

_RHAT_LIMIT = 1.05
# Distances from the center wander more slowly than losses: only chains that differ by much have not met.
_SPREAD_LIMIT = 1.2
_ESS_LIMIT = 100
_DRIFT_LIMIT = 4.0
_GROWTH_LIMIT = 1.15
_SENSITIVE, _DOUBLED = 0.1, 1.8
# κ from which labels count as noisy.
_NOISY = 0.25
# A rank is a whole number: half of it is wrong by a half or not at all.
_HALF_STEP = 0.25
# A limit that all points agree on still is not known better than this.
_CERTAIN = 0.005
_SHARP = 0.05
_REPEATS = 40
_LEVEL = 1e-6
_ABOUT_CHAINS = ("MC201", "MC202", "MC203")

Level = dict[str, float]


def failed_estimate(draws: Draws, findings: tuple[Finding, ...]) -> Estimate:
    """An estimate that is not ok, from draws that ended early."""
    return Estimate(
        "llc",
        math.nan,
        se=math.nan,
        systematic=math.nan,
        findings=(*findings, *draws.findings),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        provenance=draws.provenance,
        draws=draws,
    )


def valley_estimate(land: Landscape, limit: Limit, seed: int) -> Estimate:
    """The estimate by the valley alone, without chains.

    At a smooth point it is half the rank of the Jacobian, which chains would add nothing to. Elsewhere it is the limit,
    with half the way to the lower bound in the systematic error.

    Args:
        land: The landscape.
        limit: What was found around its center.
        seed: Examples, points and probes came from it.
    """
    few = (Finding.of("LLC105", f"n = {land.n}"),) if land.n < 100 else ()
    terms = {"rank": max(limit.error, _HALF_STEP)}
    if not limit.smooth:
        terms["valley"] = (limit.value - limit.lowest) / 2
    where = Finding.of("LLC109" if limit.smooth else "LLC110", f"{limit.value:g}; no chains were run")
    why = "half the rank of the Jacobian is the coefficient, and chains would add nothing"
    why = f"none: {why if limit.smooth else 'the budget does not allow for chains'}"
    return Estimate(
        "llc",
        float(limit.value),
        se=float(limit.spread),
        systematic=math.hypot(*terms.values()),
        findings=(*land.findings, *few, where),
        spec={
            "asked": {"seed": seed},
            "n": land.n,
            "dim": land.dim,
            "limit": limit.summary(),
            "kernel": None,
            "reasons": {"kernel": why},
        },
        seed=seed,
        diagnostics={
            "limit": limit.summary(),
            "by_valley": True,
            "cost": {"gradients": float(limit.gradients), "examples": float(limit.gradients * limit.examples)},
        },
        terms=terms,
        provenance=provenance(),
    )


def estimate_from(draws: Draws, findings: tuple[Finding, ...] = ()) -> Estimate:
    """Estimate, errors and verdict from draws alone.

    On a ladder of three levels or more the levels are extrapolated (`crunode.estimators.extrapolate`). Where the valley
    around the center gave a limit, in `draws.spec["limit"]`, it takes part: alone where the center is a smooth point or
    the chains did not get around, otherwise as one of the laws.

    Args:
        draws: Draws on a ladder or at one level.
        findings: What was noticed about the landscape.
    """
    if not np.isfinite(draws.arrays["excess"]).all() or draws.draws == 0:
        return failed_estimate(draws, findings)
    levels = draws.levels()
    removed = remove_step_bias(draws)
    rows = without_step_bias([_level(draws, t) for t in levels], removed)
    n, dim = draws.spec["n"], draws.spec["dim"]
    wbic = n / math.log(max(n, 3))
    nearest = min(rows, key=lambda r: abs(math.log(r["nbeta"] / wbic)))
    limit = Limit.from_summary(draws.spec.get("limit"))
    found = _Answer(draws, rows, nearest, limit)
    found.answer()
    terms = found.terms if found.by_valley else found.terms | step_terms(draws, nearest["nbeta"], removed)
    total = math.hypot(*terms.values()) if terms else 0.0
    seen = [*found.findings, *_findings(draws, rows, nearest, found.value, math.hypot(found.se, total), terms, dim)]
    if found.by_valley:
        seen = [f for f in seen if f.code not in _ABOUT_CHAINS]
    return Estimate(
        "llc",
        float(found.value),
        se=float(found.se),
        systematic=float(total),
        findings=(*findings, *draws.findings, *seen),
        spec=draws.spec,
        seed=draws.spec["asked"]["seed"],
        diagnostics={
            "levels": rows,
            "rhat": max(r["rhat"] for r in rows),
            "ess": min(r["ess"] for r in rows),
            "plain": {"nbeta": nearest["nbeta"], "value": nearest["value"], "se": nearest["se"]},
            "laws": None if found.fit is None else found.fit.weights,
            "limit": draws.spec.get("limit"),
            "by_valley": found.by_valley,
            "precision": found.moves,
            "step": None if removed is None else removed.summary(levels),
            "cost": _cost(draws, limit),
        },
        terms=terms,
        provenance=draws.provenance,
        draws=draws,
    )


def _contradicted(limit: Limit, rows: list[Level]) -> bool:
    """Whether chains see more directions than the limit counts: it has missed what is of higher order."""
    # Half of the levels, since a single one may be far off where chains do not mix.
    above = [r["value"] - 3 * r["se"] > 1.05 * limit.value + 2 * limit.error for r in rows]
    return sum(above) > len(rows) / 2


class _Answer:
    """The value and what it rests on."""

    def __init__(self, draws: Draws, rows: list[Level], nearest: Level, limit: Limit | None) -> None:
        self.draws, self.rows, self.nearest, self.limit = draws, rows, nearest, limit
        self.value, self.se = nearest["value"], nearest["se"]
        self.terms: dict[str, float] = {}
        self.findings: list[Finding] = []
        self.fit: Extrapolation | None = None
        self.by_valley = False
        self.moves = moves_of_chains(draws, nearest)

    def answer(self) -> None:
        """Fill in value, standard error, terms and findings."""
        if len(self.rows) >= 3:
            self._extrapolate()
        else:
            self._one_level()
        if not self.by_valley:
            self._precision()

    def _one_level(self) -> None:
        # λ̂ − Var(nβ L) is the derivative of λ̂ in log nβ: how far the answer moves when nβ grows by a factor e.
        # Minibatches add their own variance, so it is only known where the loss is that of all data.
        row = self.nearest
        change = abs(row["value"] - row["variance"])
        known = "accept" in row and change > 2 * row["variance_se"]
        self.terms["temperature"] = change if known else 0.0

    def _extrapolate(self) -> None:
        rows, limit = self.rows, self.limit
        # Colder chains travel more slowly, which the errors below allow for; the hottest have to get around.
        mixed = all(r["rhat"] < _RHAT_LIMIT for r in rows) and not rows[0]["spread_rhat"] > _SPREAD_LIMIT
        levels = [r["nbeta"] for r in rows]
        # Where chains still spread along the flat directions, their losses are known less well than they scatter.
        errors = [r["se"] * float(np.clip(np.nan_to_num(r["spread_rhat"], nan=1.0), 1.0, 10.0)) for r in rows]
        n, kappa = self.draws.spec["n"], self.draws.spec["measures"].get("label_noise")
        noisy = kappa is None or kappa >= _NOISY
        # A limit that is known well is better than chains that have not met; one that is not is weighed against them.
        sharp = limit is not None and (limit.smooth or limit.error <= _SHARP * limit.value)
        within = None
        if limit is not None and (mixed or not sharp):
            within = limit.value, max(limit.error, _CERTAIN * limit.value)
        fit = self.fit = extrapolate(levels, [r["value"] for r in rows], errors, n, noisy, limit=within)
        if limit is not None and _contradicted(limit, rows):
            limit = None
        if limit is not None and (limit.smooth or (sharp and not mixed)):
            self._take(limit, fit.value)
            return
        self.value, self.terms["temperature"] = fit.value, fit.spread
        self.se = self._repeated(levels, errors, n, noisy, within)
        # What the fit is unsure of beyond that: chains that still spread, laws that fit badly.
        self.terms["mixing"] = math.sqrt(max(fit.se**2 - self.se**2, 0.0))
        if noisy and fit.noise_slope > 0:
            self.terms["label_noise"] = math.sqrt((kappa or 1.0) * levels[0] / n * max(fit.value, 0.0) / 2)
        # What label noise takes away is put back before asking whether the rest settles.
        settled = [r["value"] + fit.noise_slope * r["nbeta"] / n for r in rows]
        if growth(levels, settled) > _GROWTH_LIMIT and np.any(self.draws.arrays["excess"]):
            if limit is not None:
                self._take(limit, fit.value)
                return
            here = rows.index(self.nearest)
            self.value, self.se = self.nearest["value"], self.nearest["se"]
            self.terms = {"temperature": abs(settled[min(here + 1, len(rows) - 1)] - settled[max(here - 1, 0)]) / 2}
            ends = f"{settled[0]:.3g} at nbeta {levels[0]:.3g} but {settled[-1]:.3g} at {levels[-1]:.3g}"
            self.findings.append(Finding.of("LLC103", ends))

    def _repeated(
        self, levels: list[float], errors: list[float], n: int, noisy: bool, within: tuple[float, float] | None
    ) -> float:
        """How far a repeat with another seed would move: the answer when levels move by their Monte-Carlo errors."""
        chance = np.random.default_rng(self.draws.spec["asked"]["seed"])
        values = np.array([r["value"] for r in self.rows])
        moved = values + np.array([r["se"] for r in self.rows]) * chance.standard_normal((_REPEATS, len(values)))
        found = [extrapolate(levels, row.tolist(), errors, n, noisy, limit=within).value for row in moved]
        return float(np.std(found, ddof=1))

    def _take(self, limit: Limit, sampled: float) -> None:
        """The valley's limit for the answer."""
        self.by_valley, self.value, self.se = True, limit.value, limit.spread
        self.terms = {"rank": max(limit.error, _HALF_STEP)}
        where = f"{limit.value:g}, the ladder {sampled:.3g}"
        if limit.smooth:
            self.findings.append(Finding.of("LLC109", where))
            return
        # λ lies between what chains that start at the center have come to and the limit.
        lowest = max(limit.lowest, min(sampled, limit.value))
        self.terms["valley"] = (limit.value - lowest) / 2
        self.findings.append(Finding.of("LLC110", where))

    def _precision(self) -> None:
        settled = len(self.rows) >= 3 and not any(f.code == "LLC103" for f in self.findings)
        noisy = (self.draws.spec["measures"].get("label_noise") or 0.0) >= _NOISY
        # A ladder that settles far from n / log n gives its limit, which the prior has no part in; with label noise it
        # does not get that far.
        if settled and not noisy:
            return
        self.moves = self.moves or moves_of_draws(self.draws, self.nearest["nbeta"])
        if self.moves is None:
            return
        here, half, double = self.moves["value"], self.moves["half"], self.moves["double"]
        move, noise = max(abs(half - here), abs(double - here)), 2 * self.moves["se"]
        self.terms["precision"] = math.sqrt(max(move**2 - noise**2, 0.0))
        if move > max(noise, _SENSITIVE * abs(here)):
            # A direction that the prior alone holds adds as 1/γ to second order, and by a higher power beyond.
            code = "TUNE402" if half - noise > _DOUBLED * abs(here) else "TUNE401"
            how = f"{half:.3g} at half the precision, {here:.3g}, {double:.3g} at twice"
            self.findings.append(Finding.of(code, how))


def _cost(draws: Draws, limit: Limit | None) -> dict[str, float]:
    """Gradients (of one chain on one batch), pilots included, and the examples they went over."""
    spec = draws.spec
    kernel = spec["kernel"]
    rows = spec.get("rows", spec["n"])
    steps = draws.gradients
    pilots = spec["measures"].get("pilot_gradients", 0)
    # Pilots of unadjusted kernels run on a part of the data, a moderate one.
    found = {
        "gradients": steps + pilots,
        "examples": steps * (kernel.get("batch") or rows) + pilots * spec["measures"].get("pilot_rows", rows),
    }
    if limit is not None:
        found["gradients"] += limit.gradients
        found["examples"] += limit.gradients * limit.examples
    return {name: float(value) for name, value in found.items()}


def _level(draws: Draws, nbeta: float) -> Level:
    arrays = draws.at(nbeta)
    scaled = nbeta * arrays["excess"].astype(np.float64)
    square = (scaled - scaled.mean()) ** 2
    row = {
        "nbeta": nbeta,
        "value": float(scaled.mean()),
        "se": mcse_mean(scaled),
        "variance": float(scaled.var()),
        "variance_se": mcse_mean(square),
        "rhat": split_rhat(scaled),
        "spread_rhat": split_rhat(arrays["distance2"].astype(np.float64)),
        "ess": ess(scaled),
        "drift": drift(scaled),
        "lowest": float(scaled.min()),
    }
    if "accept" in arrays:
        row["accept"] = float(arrays["accept"].mean())
    return row


def _left(draws: Draws, row: Level) -> bool:
    """Whether the loss grows more slowly than the distance, which it does around no minimum.

    By parts, γ E‖w − w*‖² + nβ E[(w − w*)·∇L] = d, and (w − w*)·∇K = 2k K where K is homogeneous of degree 2k ≥ 2.
    """
    prior = draws.prior
    precision = draws.spec.get("precision")
    if precision is None or (isinstance(prior, dict) and prior.get("mean", "center") != "center"):
        return False
    held = precision * draws.at(row["nbeta"])["distance2"].astype(np.float64)
    grows = max(draws.spec["dim"] - float(held.mean()), 0.0)
    return bool(row["value"] - 3 * row["se"] > grows + 3 * mcse_mean(held))


def _findings(
    draws: Draws,
    rows: list[dict[str, float]],
    nearest: dict[str, float],
    value: float,
    error: float,
    terms: dict[str, float],
    dim: int,
) -> Iterator[Finding]:
    stuck = [r for r in rows if r.get("accept", 1.0) < 0.2]
    if stuck:
        yield Finding.of("MC205", f"{stuck[0]['accept']:.2f} at nbeta {stuck[0]['nbeta']:.3g}")
    # Any minimum adds more than this, at any order that chains could tell from level ground.
    if max(row["nbeta"] for row in rows) * float(np.abs(draws.arrays["excess"]).max()) < _LEVEL:
        yield Finding.of("LLC106", "nbeta times the loss never left its value at the center")
        return
    if _left(draws, nearest):
        yield Finding.of("LLC113", f"{nearest['value']:.3g} at a distance that the prior alone would give")
    if value < -2 * error:
        yield Finding.of("LLC101", f"{value:.3g} ± {error:.2g}")
    below = [r for r in rows if r["value"] < -2 * r["se"] and r["nbeta"] <= 1.01 * nearest["nbeta"]]
    if below:
        r = below[0]
        yield Finding.of("LLC102", f"nbeta times the mean excess loss is {r['value']:.3g} at nbeta {r['nbeta']:.3g}")
    if value - 2 * error > dim / 2:
        yield Finding.of("LLC104", f"{value:.3g} against d/2 = {dim / 2:g}")
    worst = max(rows, key=lambda r: r["rhat"] if math.isfinite(r["rhat"]) else math.inf)
    if not worst["rhat"] < _RHAT_LIMIT:
        yield Finding.of("MC201", f"R-hat {worst['rhat']:.3f} (limit {_RHAT_LIMIT}) at nbeta {worst['nbeta']:.3g}")
    few = min(rows, key=lambda r: r["ess"] if math.isfinite(r["ess"]) else 0.0)
    if not few["ess"] >= _ESS_LIMIT:
        yield Finding.of("MC202", f"{few['ess']:.0f} of {draws.draws} draws a chain at nbeta {few['nbeta']:.3g}")
    trend = max(rows, key=lambda r: abs(r["drift"]) if math.isfinite(r["drift"]) else 0.0)
    if abs(trend["drift"]) > _DRIFT_LIMIT:
        yield Finding.of("MC203", f"{trend['drift']:+.1f} standard errors at nbeta {trend['nbeta']:.3g}")
    for code, name in (("MC301", "heating"), ("MC302", "discretisation")):
        if terms.get(name, 0.0) > 0.1 * abs(value):
            yield Finding.of(code, f"about {terms[name]:.2g} of {value:.3g}")
