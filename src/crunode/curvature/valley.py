"""The rank of the Jacobian at smooth points of the valley of minima around a point: the valley's codimension.

Where the labels are what the model predicts at w*, the loss is least on the valley W0 = {w : f(w) = f(w*)}. At a smooth
point of W0 where the Jacobian J of the outputs f has the rank r of the codimension, the learning coefficient is r/2
with multiplicity 1, whatever happens elsewhere. It is lower semicontinuous: λ(w*) ≤ r/2 at all smooth points close to
w*. Equality holds where the pieces of W0 that meet at w* cross mildly, as in deep linear networks (there λ is half the
least codimension); it fails at cusps, for which estimates have to be sampled.

Points of W0 are found from random points around w* by Levenberg-Marquardt steps w ← w − Jᵀ(JJᵀ + μ)⁻¹(f(w) − f(w*)).
Everything is done in the space of outputs on as few examples as show the whole rank: with dense matrices while these
are small, made from the factors of the rows of J where all layers are linear, otherwise by conjugate gradients and by
Lanczos quadrature of the spectral density of JJᵀ.

References:
    Watanabe 2009, chapter 7; Ubaru, Chen & Saad 2017 (Lanczos quadrature).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crunode.core.deadline import check_deadline
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.curvature.outputs import Random
from crunode.curvature.rounding import unrounded
from crunode.curvature.surroundings import Surroundings
from crunode.curvature.valley_rows import BAND, CUT, Rows, enough_rows
from crunode.curvature.valley_steps import into_valley, is_smooth
from crunode.errors import InputError

__all__ = ["Valley", "valley"]

# An error of the rank that leaves it useful.
_CLEAR = 0.02
# How much nearer to look at pieces of least rank, how often at one or until how near, and how often at all.
_FROM_CLOSE, _FROM_AFAR, _LOOKS = (0.5, 1, 0.0), (0.5, 8, 0.03), 32
# A piece that is lost from sight farther away than this does not count, unless all that lead there have so much more.
_LOST, _MORE = 0.06, 1.1
# Rows up to which more points are looked at.
_QUICK = 700
# Tries before choices are made after the best so far, how far from it, and how much closer the first one is.
_FIRST_TRIES, _MUTATION, _CLOSE = 3, 0.7, 0.4
# Parameters from which on one point is enough, and the steps to a point that should be close.
_MANY, _SHORT = 200_000, 10


@dataclass(frozen=True)
class Valley:
    """Ranks of J around a point.

    Attributes:
        here: Rank at the point itself.
        ranks: Ranks at smooth points of the valley near it; empty where none was found.
        errors: How far each is uncertain: singular values near the limit, random probes.
        distances: How far these points are, relative to the size of the weights.
        examples: Examples used.
        rows: Rows of J on them.
        gradients: Passes over these examples, forward and backward, that it took.
        method: "dense" or "krylov".
        beyond: How much less than any piece that was followed to the point those have that could not be.
    """

    here: float
    ranks: tuple[float, ...]
    errors: tuple[float, ...]
    distances: tuple[float, ...]
    examples: int
    rows: int
    gradients: int
    method: str
    beyond: float = 0.0

    @property
    def smooth(self) -> bool:
        """Whether the point itself is smooth: the rank is the same all around."""
        return bool(self.ranks) and all(
            abs(r - self.here) <= max(e, 0.5) for r, e in zip(self.ranks, self.errors, strict=True)
        )


def valley(
    land: Landscape,
    *,
    around: Sequence[float] = (0.03, 0.1),
    starts: int = 3,
    reach: float = 0.0,
    seed: int = 0,
    krylov: bool | None = None,
    offsets: Callable[[], Iterable[Tensor]] | None = None,
) -> Valley | None:
    """Ranks of the Jacobian at the center and at smooth points of the valley around it.

    Args:
        land: A landscape whose labels are the model's predictions at the center, with visible outputs.
        around: How far to start from the center, relative to the root mean square of the weights.
        starts: Random points for each of these.
        reach: How far to start in directions that matrices of low rank have nothing in, relative to their singular
            values. Around such matrices the valley is a cone in these directions, and seen more clearly from farther.
        seed: Examples, points and probes come from it.
        krylov: Without dense matrices; None decides by their size.
        offsets: Gives further starts, relative to the center; asked for where the center is not a smooth point.

    Returns:
        The ranks; None where outputs cannot be seen in double precision, or do not fit the memory.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5, bias=False)).double()
        >>> for p in net.parameters():
        ...     _ = nn.init.zeros_(p)
        >>> x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> found = valley(Landscape(net, (x, x @ x.new_zeros(4, 5)), "gaussian"))
        >>> found.here, min(found.ranks)  # λ = 11/2 there
        (0.0, 11.0)
    """
    if starts < 1 or not around or any(not a > 0 for a in around) or not reach >= 0:
        raise InputError(
            f"expected one start or more at positive distances, got starts={starts}, around={around}, reach={reach}"
        )
    seen = Evaluation(land)
    if seen.dtype != torch.float64:
        return None
    seen.center, spaces = unrounded(seen.center, land.packing.shapes, land.packing.dtypes)
    try:
        with preserved_rng():
            where = Surroundings(seen.center, land.packing.shapes, spaces)
            asked = _Asked(tuple(around), starts, reach if where.low else 0.0, seed, krylov, offsets)
            return _look(land, seen, where, asked)
    except (NoOutputs, InputError, RuntimeError):  # no memory, a derivative that is not implemented
        return None


@dataclass(frozen=True)
class _Asked:
    around: tuple[float, ...]
    starts: int
    reach: float
    seed: int
    krylov: bool | None
    offsets: Callable[[], Iterable[Tensor]] | None


def _look(land: Landscape, seen: Evaluation, around: Surroundings, asked: _Asked) -> Valley:
    generator = torch.Generator().manual_seed(derived_seed(asked.seed, 66))

    def random(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(land.device)

    order = torch.randperm(land.data.rows, generator=torch.Generator().manual_seed(derived_seed(asked.seed, 67)))
    even = torch.ones(len(around.sizes), dtype=torch.float64)
    generic = seen.center + around.step(max(asked.around), even, random, asked.reach)
    rows = enough_rows(land, seen, generic, order, random, asked.krylov)
    outputs = rows.outputs
    here, doubt = outputs.at(seen.center).rank(CUT, BAND, random)
    found, beyond = [_Smooth(here, doubt, 0.0, seen.center)], 0.0
    if not _same((here, doubt), (rows.rank, rows.doubt)):
        # Otherwise the rank is the largest there is and constant around the center, which is a smooth point.
        walk = _Walk(rows, (here, doubt), around, random)
        # From afar: close to the center, directions of higher order are too weak to be told from none.
        quick = asked.reach > 0 and outputs.exact and asked.offsets is None
        quick = quick and (outputs.rows <= _QUICK or land.device.type == "cuda")
        shares = [a for a in sorted(asked.around, reverse=True) for _ in range(asked.starts * (2 if quick else 1))]
        if not (asked.reach and walk.smooth_at(min(asked.around))):
            walk.look(shares, asked.reach, 1 if land.dim > _MANY else len(shares))
            if asked.offsets is not None and not walk.all_alike():
                walk.look_from(asked.offsets())
            walk.approach(*(_FROM_AFAR if asked.reach else _FROM_CLOSE))
        found, beyond = walk.found, walk.beyond
    return Valley(
        here,
        tuple(s.rank for s in found),
        tuple(s.error for s in found),
        tuple(s.distance for s in found),
        outputs.examples,
        outputs.rows,
        rows.gradients + outputs.gradients,
        outputs.method,
        beyond,
    )


class _Walk:
    """From random points around the center to smooth points of the valley."""

    def __init__(self, rows: Rows, here: tuple[float, float], around: Surroundings, random: Random) -> None:
        self._rows, self._here, self._around, self._random = rows, here, around, random
        self._center, self._nearer = rows.outputs.seen.center, 1.0
        self.found: list[_Smooth] = []
        self.beyond = 0.0

    def smooth_at(self, share: float) -> bool:
        """Whether a step that J does not see leads to a point of the valley with the rank of the center."""
        step = self._rows.outputs.at(self._center).kernel(self._around.step(share, self._factors(0), self._random))
        # Without matrices what J sees is taken away at a slant, which may have made the step longer.
        step = step * min(1.0, share * self._around.unit / max(float(step.norm()), 1e-300))
        closed = into_valley(self._rows.outputs, self._center + step, _SHORT)
        smooth = None if closed is None else self._smooth(closed)
        if smooth is None or not _same((smooth.rank, smooth.error), self._here):
            return False
        self.found.append(smooth)
        return True

    def look(self, shares: Sequence[float], reach: float, enough: int) -> None:
        """Look from random points at these distances, until all is known to have the rank of the center.

        Or until as many points as are enough were found.
        """
        with Progress(len(shares), "points of the valley") as bar:
            for k, share in enumerate(shares):
                check_deadline()
                factors = self._factors(k)
                far = reach * self._nearer * (_CLOSE if k == 0 and len(shares) > 1 else 1.0)
                smooth = self._smooth(self._center + self._around.step(share, factors, self._random, far))
                if smooth is not None:
                    self.found.append(replace(smooth, factors=factors))
                    if len(self.found) == enough or self.all_alike():
                        return
                bar.advance(1)

    def all_alike(self) -> bool:
        """Whether all points so far, and there are some, have the rank of the center."""
        return bool(self.found) and all(_same((s.rank, s.error), self._here) for s in self.found)

    def look_from(self, offsets: Iterable[Tensor]) -> None:
        """Look from the given points."""
        for offset in offsets:
            smooth = self._smooth(self._center + offset)
            if smooth is not None:
                self.found.append(smooth)

    def _factors(self, k: int) -> Tensor:
        """How much more than others to move each tensor: other pieces are met, and near a good choice better ones."""
        factors = torch.ones(len(self._around.sizes), dtype=torch.float64)
        if k in (0, 2):
            return factors
        chance = self._random(len(factors)).cpu()
        best = min((s for s in self.found if s.factors is not None), key=lambda s: s.rank, default=None)
        if k % 2 == 0 or k < _FIRST_TRIES or best is None or best.factors is None:
            return chance.exp()
        return best.factors * (_MUTATION * chance).exp()

    def _smooth(self, point: Tensor) -> _Smooth | None:
        closed = into_valley(self._rows.outputs, point)
        step = self._random(len(point))
        if closed is None or not is_smooth(self._rows, closed, step * (self._around.unit / step.norm())):
            return None
        rank, error = self._rows.outputs.at(closed).rank(CUT, BAND, self._random)
        if rank < self._here[0] - max(2 * math.hypot(error, self._here[1]), 0.5):
            self._nearer *= 0.5  # too far: nowhere near the center the rank is less than there
            return None
        return _Smooth(rank, error, float((closed - self._center).norm()) / self._around.unit, closed)

    def approach(self, share: float, times: int, near: float) -> None:
        """Follow pieces of least rank towards the center, and give them up where they do not lead there."""
        clear = [s for s in self.found if s.clear]
        if self.found:
            # Random probes leave none as clear as that, but some with more than their error.
            usual = 2 * min(s.error / max(s.rank, 1.0) for s in self.found)
            self.found = clear or [s for s in self.found if s.error <= usual * max(s.rank, 1.0)]
        for _ in range(_LOOKS):
            least = min((s for s in self.found if not s.lost), key=lambda s: s.rank, default=None)
            if least is None or least.nearer >= times:
                break
            shares = (share, math.sqrt(share)) if near > 0 else (share,)
            tries = (self._smooth(self._center + (least.point - self._center) * s) for s in shares)
            nearer = next((s for s in tries if s is not None), None)
            if nearer is None or (clear and not nearer.clear) or _sank(least, nearer):
                nearer = replace(least, nearer=times, lost=near > 0 and least.distance > _LOST)
            else:
                nearer = replace(nearer, nearer=times if nearer.distance <= near else least.nearer + 1)
            self.found = [nearer if s is least else s for s in self.found]
        arrived = [s for s in self.found if s.nearer >= times and not s.lost]
        most = min((s.rank for s in arrived), default=math.inf)
        lost = [s for s in self.found if s.lost and s.rank < most / _MORE]
        if arrived:
            on_the_way = [s.rank for s in self.found if not s.lost and s.nearer < times]
            self.beyond = most - min([most, *on_the_way, *(s.rank for s in lost)])
        self.found = arrived + lost or self.found


def _same(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether two ranks agree, as far as they are certain, and that is far."""
    doubt = math.hypot(one[1], other[1])
    return abs(one[0] - other[0]) <= max(0.5, 2 * doubt) and doubt <= max(0.5, 2 * _CLEAR * one[0])


@dataclass(frozen=True)
class _Smooth:
    rank: float
    error: float
    distance: float
    point: Tensor
    factors: Tensor | None = None
    nearer: int = 0
    lost: bool = False

    @property
    def clear(self) -> bool:
        return self.error <= max(0.5, _CLEAR * self.rank)


def _sank(far: _Smooth, near: _Smooth) -> bool:
    """Whether a rank is less than farther away because directions are lost in rounding."""
    certain = near.error == 0 and near.distance > _LOST  # on another piece
    apart = 0.5 if far.clear and near.clear else max(0.5, 2 * math.hypot(far.error, near.error))
    return near.rank < far.rank - apart and not certain
