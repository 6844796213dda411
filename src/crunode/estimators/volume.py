"""`volume_scaling()`: λ and m from how fast the volume of {K < t} shrinks, independent of posteriors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.result import Estimate, Finding, provenance
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation
from crunode.errors import DiagnosticWarning, EstimationError, InputError
from crunode.estimators.volume_law import VolumeLaw, fit_law

__all__ = ["volume_scaling"]

_LARGEST_DIM = 12
_LARGEST_MULTIPLICITY = 6
_FEWEST_LEVELS = 16
_PRIORS = ("box", "gaussian")
Potential = Callable[[Tensor], Tensor]


def volume_scaling(
    target: Landscape | Potential,
    at: Tensor | None = None,
    *,
    radius: float = 1.0,
    prior: str = "box",
    levels: int = 90,
    particles: int = 768,
    replicas: int = 24,
    moves: int = 24,
    seed: int = 0,
) -> Estimate:
    """Learning coefficient λ and multiplicity m from V(t) = prior volume of {K < t} ~ c t^λ (−log t)^(m−1).

    The volume is followed through halvings of t by multilevel splitting: particles spread over {K < t_k}, those that
    also lie in {K < t_{k+1}} are counted and copied, and all then move by Metropolis steps of many sizes inside the
    smaller set. The levels are fixed beforehand, so the estimate of each volume is unbiased whatever the steps do.
    Independent replicas give the noise, and a regression averaged over m gives λ (`crunode.estimators.volume_law`).

    It sees all minima inside the prior: the value is the smallest λ among them. For up to a dozen parameters.

    Args:
        target: A `Landscape`, of which K = L_n(w) − L_n(w*) is taken, or a function K that maps points, a tensor of
            shape (points, dim), to their values, shape (points,); K has to be 0 at its minimum and nowhere below.
        at: The point to look at, for a function; a landscape has its own.
        radius: Half the side of the box, or the standard deviation of the Gaussian.
        prior: "box" or "gaussian", around the point.
        levels: Halvings of t, from the median of K on.
        particles: Particles of each replica.
        replicas: Independent repetitions, from 4 up.
        moves: Metropolis steps at each level.
        seed: All randomness comes from it.

    Returns:
        The estimate "volume" of λ. In `diagnostics`: `multiplicity` (the most probable m), `weights` (the probability
        of each m), `by_multiplicity` (λ for each), and the curve `log_volume` with its error `log_volume_se` over `t`.

    Raises:
        InputError: Something about potential or settings is wrong, or K is negative somewhere.
        EstimationError: The particles died out before there was enough of a curve.

    Example:
        >>> found = volume_scaling(lambda w: (w[:, 0] * w[:, 1]) ** 2, torch.zeros(2), levels=60, particles=512, seed=0)
        >>> found.diagnostics["multiplicity"], abs(found.value - 0.5) < 3 * found.error
        (2, True)

    References:
        Murfet et al. 2020, eq. 5-6; Watanabe 2009, theorem 7.1; Cérou et al. 2012 (multilevel splitting).
    """
    counts = {"levels": levels, "particles": particles, "replicas": replicas, "moves": moves}
    _check(counts, radius, prior, seed)
    potential, center, floor = _potential(target, at)
    with preserved_rng():
        run = _Splitting(potential, center, radius, prior, particles, replicas, seed, floor)
        shares, top = run.descend(levels, moves)
    if len(shares) < _FEWEST_LEVELS + 1:
        raise EstimationError(
            f"expected at least {_FEWEST_LEVELS} halvings of t, got {len(shares) - 1} before no particle was left or "
            "the rounding of K was reached; use more particles, or a potential computed with less rounding"
        )
    law = fit_law(shares[1:], particles, min(len(center), _LARGEST_MULTIPLICITY))
    spec = {**counts, "radius": radius, "prior": prior, "dim": len(center), "at": center.tolist(), "highest": top}
    estimate = Estimate(
        "volume",
        law.value,
        se=law.se,
        systematic=math.hypot(*law.terms.values()),
        findings=tuple(_findings(law, shares, levels, run)),
        spec=spec,
        seed=seed,
        diagnostics=_diagnostics(law, shares, top, run),
        terms=law.terms,
        provenance=provenance(),
    )
    doubts = [str(f) for f in estimate.findings if f.severity != "info"]
    if doubts:
        warnings.warn("; ".join(doubts), DiagnosticWarning, stacklevel=2)
    return estimate


def _check(counts: dict[str, Any], radius: Any, prior: Any, seed: Any) -> None:
    least = {"levels": _FEWEST_LEVELS, "particles": 16, "replicas": 4, "moves": 1}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least[name]:
            raise InputError(f"expected {name} as a whole number from {least[name]} up, got {value!r}")
    if isinstance(radius, bool) or not isinstance(radius, int | float) or not 0 < radius < math.inf:
        raise InputError(f"expected radius as a positive finite number, got {radius!r}")
    if prior not in _PRIORS:
        raise InputError(f"expected prior as 'box' or 'gaussian', got {prior!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")


def _potential(target: Any, at: Any) -> tuple[Potential, Tensor, float]:
    """K on points, the point to look at, and the value of K below which it is rounding."""
    if isinstance(target, Landscape):
        if at is not None:
            raise InputError("expected no point beside a Landscape, got at=; use landscape.at(weights)")
        return _of_landscape(target)
    if not callable(target) or isinstance(target, torch.nn.Module):
        raise InputError(f"expected a Landscape or a function of points, got {type(target).__name__}")
    if not isinstance(at, Tensor) or at.ndim != 1 or not at.is_floating_point() or not torch.isfinite(at).all():
        raise InputError("expected at= as a finite floating-point vector beside a function; for example torch.zeros(2)")
    center = at.detach().double()
    _check_dim(len(center))

    def potential(points: Tensor) -> Tensor:
        try:
            values = target(points)
        except (IndexError, RuntimeError) as error:
            values = error
        if not isinstance(values, Tensor) or values.shape != points.shape[:1]:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else repr(values)
            raise InputError(
                f"expected a potential that maps {tuple(points.shape)} points to as many values, got {got}; index the "
                "last axis, as in lambda w: (w[:, 0] * w[:, 1]) ** 2"
            )
        return values.detach().double()

    return potential, center, _floor(potential(center[None]), 0.0)


def _of_landscape(land: Landscape) -> tuple[Potential, Tensor, float]:
    _check_dim(land.dim)
    seen = Evaluation(land)
    depth = torch.zeros((), dtype=torch.float64, device=land.device)

    def loss(w: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=w.device)
        for batch in land.passes():
            total = total + seen.losses(w, batch).double().mean() * (leaves(batch)[0].shape[0] / land.data.rows)
        return total

    size = max(1, (1 << 24) // (land.activations * land.data.rows))
    batched = torch.func.vmap(loss, chunk_size=size)

    def potential(points: Tensor) -> Tensor:
        with torch.no_grad():
            try:
                return batched(points.to(seen.dtype)) - depth
            except RuntimeError:  # no batching rule for something in the model
                return torch.stack([loss(w.to(seen.dtype)) for w in points]) - depth

    depth = potential(seen.center[None])[0]
    return potential, seen.center.double(), _floor(torch.zeros(1), float(depth), seen.dtype)


def _check_dim(dim: int) -> None:
    if not 1 <= dim <= _LARGEST_DIM:
        raise InputError(
            f"expected 1 to {_LARGEST_DIM} parameters, got {dim}; volumes of more cannot be followed, use llc(), or "
            "restrict the landscape to some of its parameters"
        )


def _floor(value: Tensor, depth: float, dtype: torch.dtype = torch.float64) -> float:
    if float(value) != 0:
        raise InputError(f"expected a potential that is 0 at the point looked at, got {float(value):.3g}; subtract it")
    # A loss of zero at the minimum is computed with a relative error, any other one with an absolute error.
    return 1e3 * torch.finfo(dtype).eps * abs(depth) if depth else torch.finfo(dtype).eps ** 2


class _Splitting:
    """Particles of several replicas side by side, on their way down through levels of K."""

    def __init__(
        self,
        potential: Potential,
        center: Tensor,
        radius: float,
        prior: str,
        particles: int,
        replicas: int,
        seed: int,
        floor: float,
    ) -> None:
        self._potential, self._center, self._radius, self._box = potential, center, radius, prior == "box"
        self._particles, self._replicas, self._dim, self._floor = particles, replicas, len(center), floor
        self._generator = torch.Generator().manual_seed(derived_seed(seed, 60))
        self.accepted: list[float] = []

    def descend(self, levels: int, moves: int) -> tuple[np.ndarray, float]:
        """Shares of particles that survive each level, shape (level, replica), and the highest t."""
        count = self._replicas * self._particles
        # From other particles than those counted: levels that depend on them would bias the volumes.
        top = float(self._values(self._start(4096)).median())
        if not 0 < top < math.inf:
            what = "is 0 on half the volume of the prior" if top == 0 else f"has the median {top} over the prior"
            raise InputError(f"expected a potential that is positive and finite almost everywhere, got one that {what}")
        x = self._start(count)
        k = self._values(x)
        shares = []
        with Progress(levels + 1, "volumes") as bar:
            for level in range(levels + 1):
                t = top * 0.5**level
                alive = (k < t).view(self._replicas, -1)
                if t < self._floor or not alive.any(1).all():
                    break
                shares.append(alive.double().mean(1).cpu().numpy())
                source = self._survivors(alive)
                x, k = x[source], k[source]
                decades = max(3.0, 0.5 * level * math.log10(2) + 1)
                for move in range(moves):
                    x, k = self._moved(x, k, t, move % 4, decades)
                self.accepted[-moves:] = [float(np.mean(self.accepted[-moves:]))]
                bar.advance()
        return np.array(shares).reshape(-1, self._replicas), top

    def _start(self, count: int) -> Tensor:
        shape = count, self._dim
        unit = self._uniform(*shape) * 2 - 1 if self._box else self._normal(*shape)
        return unit * self._radius

    def _values(self, x: Tensor) -> Tensor:
        values = self._potential(self._center + x.to(self._center.device)).to(x.device)
        if (values < 0).any():
            lowest = int(values.nan_to_num(math.inf).argmin())
            point = (self._center.to(x.device) + x[lowest]).tolist()
            rounding = max(self._floor, 1e-12 * float(values.nan_to_num(0.0, 0.0, 0.0).abs().max()))
            if float(values[lowest]) < -rounding:
                raise InputError(
                    f"expected a potential that is nowhere below 0, got {float(values[lowest]):.3g} at {point}; look "
                    "at a minimum, or lower radius so that no deeper one is inside"
                )
            values = values.clamp(min=0)
        return values

    def _survivors(self, alive: Tensor) -> Tensor:
        """Index of the particle each one is a copy of: survivors of its replica, equally often up to one."""
        order = torch.argsort((~alive).to(torch.uint8), dim=1, stable=True)
        places = torch.arange(self._particles, dtype=torch.float64) + self._uniform(self._replicas, 1)
        rank = (places / self._particles * alive.sum(1, keepdim=True)).long()
        rank = torch.minimum(rank, alive.sum(1, keepdim=True) - 1)
        first = torch.arange(self._replicas)[:, None] * self._particles
        return (torch.gather(order, 1, rank) + first).reshape(-1)

    def _moved(self, x: Tensor, k: Tensor, t: float, kind: int, decades: float) -> tuple[Tensor, Tensor]:
        """One Metropolis step that keeps the prior inside {K < t}, of a random size for each particle."""
        rows, logs = len(x), torch.zeros(len(x), dtype=torch.float64)
        if kind == 0:  # some coordinates stretched or shrunk towards the center: moves along the arms of a crossing
            chosen = (self._uniform(rows, self._dim) < 0.5).double() if self._dim > 1 else 1.0
            stretch = self._normal(rows, self._dim) * 10 ** (2.5 * self._uniform(rows, 1) - 1.5) * chosen
            y, logs = x * stretch.exp(), stretch.sum(1)
        elif kind == 1:
            y = x + self._radius * self._normal(rows, self._dim) * 10 ** (-decades * self._uniform(rows, 1))
        elif kind == 2:  # one coordinate
            which = torch.randint(self._dim, (rows, 1), generator=self._generator)
            step = self._radius * self._normal(rows, 1) * 10 ** (-decades * self._uniform(rows, 1))
            y = x.scatter_add(1, which, step)
        else:  # stretched along a random direction
            axis = torch.nn.functional.normalize(self._normal(rows, self._dim), dim=1)
            logs = self._normal(rows) * 10 ** (2 * self._uniform(rows) - 1.5)
            y = x + torch.expm1(logs)[:, None] * (x * axis).sum(1, keepdim=True) * axis
        if self._box:
            inside = (y.abs() <= self._radius).all(1)
        else:
            inside = torch.isfinite(y).all(1)
            logs = logs + (x.square().sum(1) - y.square().sum(1)) / (2 * self._radius**2)
        inside &= self._uniform(rows).log() < logs
        y = torch.where(inside[:, None], y, x)
        new = self._values(y)
        inside &= new < t
        self.accepted.append(float(inside.double().mean()))
        return torch.where(inside[:, None], y, x), torch.where(inside, new, k)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._generator, dtype=torch.float64)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)


def _diagnostics(law: VolumeLaw, shares: np.ndarray, top: float, run: _Splitting) -> dict[str, Any]:
    logs = np.log(shares)
    noise = logs.cumsum(0).std(1, ddof=1) / math.sqrt(shares.shape[1])
    return {
        "multiplicity": law.multiplicity,
        "weights": {str(m): w for m, w in law.weights.items()},
        "by_multiplicity": {str(m): v for m, v in law.by_multiplicity.items()},
        "misfit": law.misfit,
        "acceptance": min(run.accepted),
        "t": (top * 0.5 ** np.arange(len(shares))).tolist(),
        "log_volume": np.log(shares.mean(1)).cumsum().tolist(),
        "log_volume_se": noise.tolist(),
    }


def _findings(law: VolumeLaw, shares: np.ndarray, levels: int, run: _Splitting) -> Iterator[Finding]:
    if law.surprise > 5:
        yield Finding.of("VOL601", f"χ² is {law.misfit:.2g} per degree of freedom")
    if law.weights[law.multiplicity] < 0.9:
        likely = sorted(((w, m) for m, w in law.weights.items() if w > 0.05), reverse=True)
        yield Finding.of("VOL602", " or ".join(f"m = {m} ({100 * w:.0f} %)" for w, m in likely))
    if len(shares) < levels + 1:
        yield Finding.of("VOL603", f"{len(shares) - 1} of {levels} halvings of t")
    if min(run.accepted) < 0.02:
        yield Finding.of("VOL604", f"{100 * min(run.accepted):.2g} % of the steps were accepted at the worst level")
