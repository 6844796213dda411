"""Critical points of a landscape: where the gradient vanishes, with their losses, indices and degenerate directions.

The index of a critical point is the number of negative eigenvalues of the Hessian there: 0 at a minimum. Eigenvalues
are known as far as the point is: what the Hessian would still change over the next step of the search is their error,
and one that is smaller than that has no sign. Where a gap sets such eigenvalues apart they are degenerate directions.

References:
    Pennington & Bahri 2017 (index and energy of critical points); Dauphin et al. 2014 (saddles of networks).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.rank import NumericRank
from crunode.errors import InputError
from crunode.store.documents import plain, read_document, write_document
from crunode.topology.critical_starts import check_search, starting_points
from crunode.topology.newton import Ends, PointBatch, moved_to_level, search

__all__ = ["OUTCOMES", "CriticalPoint", "CriticalPoints", "critical_points"]

OUTCOMES = ("converged", "stalled", "unfinished", "escaping", "level not reached", "not finite")
"""What can become of a start. Stalled: the gradient norm has a minimum there that is not zero. Unfinished: the steps
were not enough. Escaping: the gradient falls to nothing along a way without an end, as where units saturate."""

# How long the next step may be at a point, relative to its weights; by how much it may fall short of the way to the
# critical point, which at degenerate points is up to a few steps; and to which part a long step has to bring the
# gradient.
_NEAR = 1e-3
_SHORT, _PARTS = 4.0, 64
_ENDED = 0.1
# An eigenvalue this many errors away from zero is clear of it; and the gap that has to be below it.
_CLEAR, _GAP = 10.0, 100.0
# Errors of eigenvalues up to this, relative to the curvature where the search began, leave room for zeros.
_SMALL = 1e-4
_FORMAT = "crunode-critical-points", 1


@dataclass(frozen=True)
class CriticalPoint:
    """One critical point.

    Attributes:
        weights: The point, a flat vector in double precision.
        loss: Its loss (energy).
        gradient: The gradient norm that was reached.
        index: Number of negative eigenvalues of the Hessian; the systematic error is half the number of eigenvalues
            too small to be signed, which the value counts by half.
        fraction: The index over the number of parameters.
        degenerate: Dimension of the null space of the Hessian.
        eigenvalues: Those of the Hessian, ascending.
        error: How far eigenvalues are uncertain.
        start: Number of the start it was found from.
    """

    weights: Tensor = field(repr=False)
    loss: Estimate
    gradient: float
    index: Estimate
    fraction: Estimate
    degenerate: Estimate
    eigenvalues: np.ndarray = field(repr=False)
    error: float
    start: int

    @property
    def kind(self) -> str:
        """What the Hessian tells: "minimum", "maximum", "saddle", or "degenerate" where it does not tell.

        A point with zero eigenvalues and no negative one may be part of a valley of minima, or none at all: w³.
        """
        positive, negative = int((self.eigenvalues > self.error).sum()), int((self.eigenvalues < -self.error).sum())
        if positive and negative:
            return "saddle"
        if self.degenerate.value or self.index.systematic or not positive + negative:
            return "degenerate"
        return "minimum" if positive else "maximum"


@dataclass(frozen=True)
class CriticalPoints:
    """Critical points that a search found: those only whose search converged.

    Attributes:
        points: The points, in the order of their starts.
        outcomes: One of `OUTCOMES` for each start.
        ends: Where each search ended: arrays "loss", "gradient", "scale", "steps".
        findings: What was noticed.
        spec: Resolved settings.
        seed: The seed all randomness came from.
        provenance: Versions and source state.
    """

    points: tuple[CriticalPoint, ...]
    outcomes: tuple[str, ...]
    ends: Mapping[str, np.ndarray] = field(repr=False)
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seed: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[CriticalPoint]:
        return iter(self.points)

    def __getitem__(self, k: int) -> CriticalPoint:
        return self.points[k]

    @property
    def ok(self) -> bool:
        """True when there are points and no finding of severity "error"."""
        return bool(self.points) and all(f.severity != "error" for f in self.findings)

    @property
    def losses(self) -> np.ndarray:
        """Loss of each point."""
        return np.array([p.loss.value for p in self.points])

    @property
    def indices(self) -> np.ndarray:
        """Index of each point."""
        return np.array([p.index.value for p in self.points])

    @property
    def fractions(self) -> np.ndarray:
        """Index of each point over the number of parameters."""
        return np.array([p.fraction.value for p in self.points])

    def __str__(self) -> str:
        kinds = [p.kind for p in self.points]
        named = ", ".join(f"{kinds.count(k)} {k}" for k in ("minimum", "saddle", "maximum", "degenerate") if k in kinds)
        codes = ", ".join(dict.fromkeys(f.code for f in self.findings if f.severity != "info"))
        verdict = ("ok" if self.ok else "not ok") + (f" ({codes})" if codes else "")
        return f"critical points: {len(self)} from {len(self.outcomes)} starts ({named or 'none'}) | {verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-able values."""
        names = ("loss", "index", "fraction", "degenerate")
        rows = [
            {name: getattr(p, name).to_dict() for name in names}
            | {"weights": p.weights.tolist(), "gradient": p.gradient, "eigenvalues": p.eigenvalues.tolist()}
            | {"error": p.error, "start": p.start}
            for p in self.points
        ]
        content = {"points": rows, "outcomes": self.outcomes, "ends": self.ends, "spec": self.spec, "seed": self.seed}
        findings = [dict(f.__dict__) for f in self.findings]
        found: dict[str, Any] = plain(content | {"findings": findings, "provenance": self.provenance})
        return found

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CriticalPoints:
        """Inverse of `to_dict`."""
        try:
            points = tuple(
                CriticalPoint(
                    torch.tensor(row["weights"], dtype=torch.float64),
                    Estimate.from_dict(row["loss"]),
                    row["gradient"],
                    Estimate.from_dict(row["index"]),
                    Estimate.from_dict(row["fraction"]),
                    Estimate.from_dict(row["degenerate"]),
                    np.array(row["eigenvalues"], dtype=np.float64),
                    row["error"],
                    row["start"],
                )
                for row in content["points"]
            )
            ends = {name: np.array(values) for name, values in content["ends"].items()}
            findings = tuple(Finding(**f) for f in content["findings"])
            rest = content["spec"], content["seed"], content["provenance"]
            return cls(points, tuple(content["outcomes"]), ends, findings, *rest)
        except (TypeError, KeyError) as error:
            raise InputError(
                f"expected the content of critical points as to_dict gives it, got one that does not fit ({error})"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write everything as a JSON document with its checksum; returns its path."""
        target = Path(path)
        write_document(target, *_FORMAT, self.to_dict())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CriticalPoints:
        """Inverse of `save`."""
        return cls.from_dict(read_document(Path(path), *_FORMAT))


def critical_points(
    land: Landscape,
    starts: int | Tensor = 32,
    *,
    level: float | None = None,
    steps: int = 200,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> CriticalPoints:
    """Critical points of a landscape, of any index, from many starts at once.

    From each start ½‖g‖² is minimized by steps s = −(H² + μ)⁻¹Hg in a trust region: Newton steps where they fit, which
    end at saddles as well as at minima. Up to 512 parameters the Hessians are held; beyond that steps come from a
    Krylov space of products with them. A point counts when ‖g‖ is at most `tolerance` times ‖g‖ + ‖H‖ max(1, ‖w‖) at
    its start, and the next step would be short; other ends are told in `outcomes`, and are never counted.

    Args:
        land: The landscape.
        starts: Where to begin: a tensor of shape (starts, dim), or how many to draw around the center, with a standard
            deviation equal to the root mean square of each parameter tensor there (1 where all weights are zero).
        level: Loss to look near: each start goes down its gradient (or up, from below) to that loss first. Losses of
            critical points are what they are; `losses` has them.
        steps: Most steps of the search from each start; ten times as many on the way to the level.
        tolerance: Relative gradient norm at which a search has converged; not below the rounding of the model's dtype.
        seed: Drawn starts come from it.

    Returns:
        The points with loss, index and degenerate directions. Findings: TOPO1101 starts without a critical point,
        TOPO1102 the level was not reached, TOPO1103 no critical point at all, TOPO1104 eigenvalues too small to be
        signed or no clear gap below them.

    Raises:
        InputError: Starts of another shape or that are not finite, more than 4096 parameters, or settings that make
            no sense.

    Example:
        >>> land = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2 + w[1] ** 2, torch.zeros(2))  # two wells
        >>> found = critical_points(land, torch.tensor([[0.9, 0.2], [-0.8, 0.1], [0.1, 0.3]]))
        >>> [(p.kind, round(p.loss.value, 9), p.index.value) for p in found]
        [('minimum', 0.0, 0.0), ('minimum', 0.0, 0.0), ('saddle', 1.0, 1.0)]

    References:
        Pennington & Bahri 2017, Geometry of neural network loss surfaces via random matrix theory, section 5.
    """
    check_search(land, level, steps, tolerance, seed)
    points = PointBatch(land)
    eps = torch.finfo(points.dtype).eps
    tolerance = max(tolerance, 30 * eps * math.sqrt(land.dim))
    start = starting_points(land, starts, seed)
    many = len(start)
    outcomes = ["not finite"] * many
    losses, gradients = points.gradients(start)
    usable = torch.isfinite(losses) & torch.isfinite(gradients).all(1)
    findings: list[Finding] = []
    if level is not None:
        start, losses = moved_to_level(points, start, float(level), 10 * steps)
        missed = usable & ((losses - level).abs() > 1e-3 * max(abs(level), 1e-12))
        for k in missed.nonzero().flatten().tolist():
            outcomes[k] = "level not reached"
        if bool(missed.any()):
            seen = f"{int(missed.sum())} of {many} starts ended between {losses[missed].min():.4g} and "
            findings.append(Finding.of("TOPO1102", seen + f"{losses[missed].max():.4g}, not at {level:.4g}"))
        usable &= ~missed
    chosen = usable.nonzero().flatten()
    record = {name: np.full(many, np.nan) for name in ("loss", "gradient", "scale", "steps")}
    spec = {"dim": land.dim, "n": land.n, "loss": land.loss_name, "level": level, "steps": steps, "starts": many}
    spec |= {"tolerance": tolerance, "dtype": str(points.dtype)}
    origin, kept = provenance(), []
    if len(chosen):
        ends = search(points, start[chosen], steps)
        found = _outcomes(ends, tolerance)
        for k, name in zip(chosen.tolist(), found, strict=True):
            outcomes[k] = name
        for name, values in zip(record, (ends.losses, ends.gradients, ends.scales, ends.steps), strict=True):
            record[name][chosen.cpu().numpy()] = values.cpu().numpy()
        for row in (k for k, name in enumerate(found) if name == "converged"):
            kept.append(_described(points, ends, row, int(chosen[row]), spec, seed, origin, land.findings))
    findings += _doubts(outcomes, kept)
    return CriticalPoints(tuple(kept), tuple(outcomes), record, (*land.findings, *findings), spec, seed, origin)


def _outcomes(ends: Ends, tolerance: float) -> list[str]:
    length = ends.weights.norm(dim=1).clamp(min=1.0)
    flat = ends.gradients <= tolerance * ends.scales
    near = ends.remaining.norm(dim=1) <= _NEAR * length
    # Near a critical point steps become short, unless one of them ended all of the gradient.
    near &= (ends.last <= _NEAR * length) | (ends.shrank <= _ENDED)
    names = []
    for is_flat, is_near, stuck in zip(flat.tolist(), near.tolist(), ends.stalled.tolist(), strict=True):
        names.append(("converged" if is_near else "escaping") if is_flat else "stalled" if stuck else "unfinished")
    return names


def _described(
    points: PointBatch,
    ends: Ends,
    row: int,
    start: int,
    spec: Mapping[str, Any],
    seed: int,
    origin: Mapping[str, Any],
    noticed: tuple[Finding, ...],
) -> CriticalPoint:
    weights, step = ends.weights[row], ends.remaining[row]
    # What a part of the step changes, taken as many times: the whole of it might cross a kink.
    hessian, ahead = points.hessians(torch.stack([weights, weights + step / _PARTS]))
    values = torch.linalg.eigvalsh(hessian).cpu().numpy()
    moved = _PARTS * float(torch.linalg.eigvalsh(ahead - hessian).abs().max())
    dim, eps = len(values), torch.finfo(points.dtype).eps
    top = float(np.abs(values).max())
    error = _SHORT * moved + max(30, 8 * dim) * eps * top
    curved = max(top, float(ends.scales[row]) / max(1.0, float(weights.norm())))
    rank = _rank(values, error, error <= _SMALL * curved)
    # Where there is a gap, eigenvalues below it are zero: degenerate directions, which are in no doubt.
    unsigned = 0 if rank.gap >= _GAP else int((np.abs(values) <= error).sum())
    negative = int((values < -error).sum())
    findings = list(noticed)
    if unsigned or not rank.decided:
        seen = f"{unsigned} of {dim} eigenvalues below {error:.2g}, null space between {dim - rank.high} and "
        findings.append(Finding.of("TOPO1104", seen + f"{dim - rank.low} dimensions, at start {start}"))

    def estimate(name: str, value: float, systematic: float) -> Estimate:
        content = tuple(findings), spec, seed, {"start": start}
        return Estimate(name, value, 0.0, systematic, *content, provenance=origin)

    loss = float(ends.losses[row])
    doubt = abs(float(step @ hessian @ step)) / 2 + 8 * eps * abs(loss)
    middle = negative + unsigned / 2
    return CriticalPoint(
        weights,
        estimate("loss at a critical point", loss, doubt),
        float(ends.gradients[row]),
        estimate("index", middle, unsigned / 2),
        estimate("index fraction", middle / dim, unsigned / 2 / dim),
        estimate("degenerate directions", dim - (rank.low + rank.high) / 2, (rank.high - rank.low) / 2),
        values,
        error,
        start,
    )


def _rank(values: np.ndarray, error: float, small: bool) -> NumericRank:
    """The rank of a Hessian with these eigenvalues, which are known up to `error`.

    Eigenvalues within their error are zero where those that are clear of it are a factor of 100 above them, and the
    error is `small` beside the curvature where the search began.
    """
    sizes = np.abs(values)
    zero, clear = sizes[sizes <= error], sizes[sizes > _CLEAR * error]
    low, high = len(clear), len(values) - len(zero)
    gap = float(clear.min() / max(zero.max(), 1e-300)) if len(zero) and low else math.inf
    if gap < _GAP or (len(zero) and not small):
        gap, high = min(gap, 1.0), len(values)
    return NumericRank(low, low, high, gap, error, low == high)


def _doubts(outcomes: list[str], kept: list[CriticalPoint]) -> list[Finding]:
    found = []
    lost = {name: outcomes.count(name) for name in OUTCOMES[1:] if name in outcomes}
    counts = ", ".join(f"{count} {name}" for name, count in lost.items())
    if not kept:
        found.append(Finding.of("TOPO1103", f"of {len(outcomes)} starts {counts}"))
    elif lost:
        found.append(Finding.of("TOPO1101", f"of {len(outcomes)} starts {counts}"))
    doubtful = [p.start for p in kept if any(f.code == "TOPO1104" for f in p.index.findings)]
    if doubtful:
        found.append(Finding.of("TOPO1104", f"at {len(doubtful)} of {len(kept)} points"))
    return found
