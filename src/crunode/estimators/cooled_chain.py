"""A chain with inertia that is cooled down in steps, in coordinates in which its prior is standard normal.

At inverse temperature t, with a normal prior around w*, λ̂(t) = t E[L − L(w*)] counts half the directions whose
curvature exceeds 1/t of the prior's, and rises to λ with t. In a large network λ is in the thousands, so that λ̂
scatters by less than a percent from draw to draw: a single chain tells all, if only it gets around. Three things see to
that. The prior is wide where that helps, and narrow where the loss is steep (`crunode.estimators.prior_scale`); how
much so is settled by short runs, of which the one that shows most is gone on with, as λ̂ is below λ in all of them.

The chain has inertia (underdamped Langevin dynamics): it crosses the prior in a number of steps that grows with the
root of the condition number and not with the number itself. And each level begins where the last one ended.

References:
    Cheng et al. 2018 (underdamped Langevin dynamics).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import Examples, leaves
from crunode.core.deadline import check_deadline
from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import derived_seed
from crunode.curvature.jacobian import NoOutputs
from crunode.curvature.kronecker import Whitening
from crunode.estimators.prior_scale import PriorScale, stiffness
from crunode.sampling.engine import Engine
from crunode.sampling.posterior import Gaussian, Posterior

__all__ = ["FACTOR", "MOVES", "STEP", "CooledChain", "Level"]

# How far weights move, relative to their size, and matrices of low rank where they have nothing: far, and held closer.
MOVES = ((0.1, 1.0), (0.03, 0.3), (0.01, 0.1))
# Curvature of the loss relative to the prior's, at the first level; each further one has so many times as much.
_FIRST, FACTOR = 1e4, 10.0
# From what curvature on, relative to the largest, directions are made alike; further ones are tried while more shows.
_EVEN = (1e-2, 1e-3, 1e-4, 1e-5)
# Steps in units of the fastest frequency, and what they may add to the loss and to the energy of motion.
STEP, _MARGIN, _LONG, _HEAT = 0.7, 1.5, 0.12, 0.01
# Length of a level in periods of the prior, and what part of it is for getting there and what part is kept.
_PERIODS, _RAMP, _KEPT = 0.7, 0.35, 0.3
# Velocities are refreshed once in so many steps, at this rate in units of the prior's frequency.
_EVERY, _FRICTION = 4, 3.0
# Steps of power iteration, and how far gradients are apart for it.
_POWER, _DIFFERENCE = 16, 0.3
# Examples to begin with, at least and for each number that a layer is given, and by how much the loss on others may
# exceed that on them.
_EXAMPLES, _EACH, _OTHERS = 512, 1.25, 4.0
_RETRIES = 6
# What products in half precision, in three parts, may be off by, relative to the loss.
_ROUGH = 0.03


@dataclass(frozen=True)
class Level:
    """What the chain saw at one temperature.

    Attributes:
        nbeta: t, with which the mean loss is multiplied.
        value: λ̂(t).
        se: Its Monte-Carlo error.
        steps: Gradients it took.
    """

    nbeta: float
    value: float
    se: float
    steps: int


class CooledChain:
    """Position and velocity in coordinates in which the prior is standard normal, w = w* + S z.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        share: How far weights move, relative to their size.
        reach: How far matrices of low rank move where they have nothing, relative to their size.
        seed: Everything random comes from it.
        most: The most gradients to take.
        examples: How many to begin with, at least; more are taken where the loss on others is larger.

    Attributes:
        examples: How many are in use.
        scale: S.
        spent: Gradients so far.
        seen: Examples in all of them.
        top: The largest curvature in these coordinates.
        even: From what curvature on, relative to the largest, directions are alike; 0 where they were left alone.

    Example:
        >>> from crunode.examples.toys import quadratic
        >>> chain = CooledChain(quadratic(400), 0.1, 1.0, 0, 5000)
        >>> level = chain.level(chain.first(), first=True)
        >>> abs(level.value / 200 - 1) < 0.2
        True
    """

    def __init__(
        self, land: Landscape, share: float, reach: float, seed: int, most: int, examples: int = _EXAMPLES
    ) -> None:
        examples = max(examples, math.ceil(_EACH * _given(land)))
        self._land, self._seed, self.most = land, seed, most
        self.scale = PriorScale(land, share, reach)
        self._chance = torch.Generator(land.device).manual_seed(derived_seed(seed, 71))
        order = torch.randperm(land.data.rows, generator=torch.Generator().manual_seed(derived_seed(seed, 72)))
        self._order = order.to(land.device)
        self.spent, self.seen, self.top, self.even = 0, 0, 0.0, 0.0
        self._halved = land.device.type == "cuda"
        self._use(min(examples, land.data.rows))

    def _use(self, examples: int) -> None:
        """Take that many examples, and as many others to check by."""
        self.examples = examples
        self._chart = _chart(self._land, self.scale, self._order[:examples])
        others = self._order[examples : 2 * examples]
        enough = len(others) >= max(examples // 2, 1)
        self._others = _chart(self._land, self.scale, others) if enough else None
        self._engine = _engine(self._chart, self._seed, self._halved)
        self._move(torch.zeros_like(self._land.center))

    def _move(self, z: Tensor) -> None:
        self._z = z
        self._gradient, self._loss = self._at(z)

    @property
    def index(self) -> Tensor:
        """Which examples are in use, ascending."""
        return self._order[: self.examples].sort().values

    @property
    def moved(self) -> Tensor:
        """The offset w − w* at present, in double precision."""
        return self.scale(self._z).double()

    def _random(self) -> Tensor:
        center = self._land.center
        return torch.randn(center.shape, generator=self._chance, dtype=center.dtype, device=center.device)

    def _at(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and excess of the loss; the former is overwritten by the next one."""
        gradient, excess = self._engine.likelihood(z[None])
        self.spent, self.seen = self.spent + 1, self.seen + self.examples
        return gradient[0], excess[0]

    def begin(self) -> float:
        """The first t, settled at a tenth of it with directions made alike as far as that shows more; 0 for none."""
        plain, best, first = self.scale, -math.inf, 0.0
        kept: dict[str, Any] = {}
        for least, by in self._choices():
            self.scale, self.even = plain if by is None else plain.evened(by), least
            self._use(self.examples)
            first = self.first()
            level = self.level(first / FACTOR, first=True) if first > 0 else None
            if level is None or level.value <= best:
                break
            best = level.value
            kept = {name: value for name, value in vars(self).items() if name not in ("spent", "seen")}
        vars(self).update(kept)
        return _FIRST / self.top if kept else first

    def _choices(self) -> Iterator[tuple[float, Whitening | None]]:
        before = self.spent
        try:
            stiff = stiffness(self._land, self.index, self.scale, self._seed)
        except NoOutputs:
            yield 0.0, None
            return
        self.spent += 2 * stiff.gradients
        self.seen += (self.spent - before) * self.examples
        for least in _EVEN:
            yield least, stiff.whitening(least)

    def first(self) -> float:
        """The first t, from the largest curvature around the center; 0 where there is none."""
        self.top = max(self._curvature(self._random()), self._curvature(torch.zeros_like(self._z)))
        return _FIRST / self.top if 0 < self.top < math.inf else 0.0

    def _curvature(self, z: Tensor) -> float:
        """The largest curvature of the loss at z, by power iteration on differences of gradients."""
        v, size = self._random(), 0.0
        for _ in range(_POWER):
            length = float(v.norm())
            if not 0 < length < math.inf:
                return length
            v = v * (_DIFFERENCE / length)
            up = self._at(z + v)[0].clone()
            v = (up - self._at(z - v)[0]) / 2
            size = float(v.norm()) / _DIFFERENCE
        return size

    def level(self, t: float, *, first: bool) -> Level | None:
        """λ̂ at t; None where the budget does not allow for it or no step is short enough."""
        before = self.spent
        check_deadline()
        for _ in range(_RETRIES):
            stiff = _MARGIN * t * self.top
            steps = math.ceil(_PERIODS * 2 * math.pi * math.sqrt(stiff) / STEP)
            if self.spent + steps > self.most:
                return None
            start = self._z.clone()
            scaled = self._run(t, stiff, steps, t if first else t / FACTOR)
            if scaled is None:  # too long a step
                self.top *= 2
                self._move(start)
                continue
            if self._rough():
                self._halved = False
                self._engine = _engine(self._chart, self._seed, self._halved)
                self._move(start)
                continue
            if first and self._alone():
                self._use(min(2 * self.examples, self._land.data.rows))
                continue
            value = float(scaled.mean())
            # t L has the variance λ, and forgets at the rate of the friction.
            apart = 1 + _KEPT * _PERIODS * math.pi * _FRICTION
            return Level(t, value, math.sqrt(max(value, 0.0) / apart), self.spent - before)
        return None

    def _run(self, t: float, stiff: float, steps: int, start: float) -> Tensor | None:
        """Values of t (L − L(w*)) at the end of a way from `start` to t, by velocities of variance 1 / stiff.

        Leapfrog steps of length h keep the energy with t L − h²/8 |t∇L|²/stiff in place of t L, exactly so where L is
        quadratic; what they add is taken away by that. None where that is much, or where velocities have become larger
        than they may: steps are too long then.
        """
        z, h, mass, size = self._z, STEP, 1 / stiff, float(len(self._z))
        v = self._random() * math.sqrt(mass)
        stay = math.exp(-_EVERY * _FRICTION * h * math.sqrt(mass))
        fresh = math.sqrt((1 - stay**2) * mass)
        losses, slopes, speeds = torch.zeros(3, steps, device=z.device, dtype=torch.float64)
        with Progress(steps, f"cooling, nbeta {t:.1e}") as bar:
            for k in range(steps):
                # All at once, what has to leave as heat would be nine times what is there.
                now = t * (start / t) ** max(1 - k / (_RAMP * steps), 0.0)
                v.add_(self._gradient, alpha=-0.5 * h * now * mass).add_(z, alpha=-0.5 * h * mass)
                z = z.add(v, alpha=h)
                self._gradient, self._loss = self._at(z)
                losses[k] = self._loss
                slopes[k] = self._gradient.norm()
                v.add_(self._gradient, alpha=-0.5 * h * now * mass).add_(z, alpha=-0.5 * h * mass)
                speeds[k] = v.norm()
                if k % _EVERY == 0:
                    v.mul_(stay).add_(self._random(), alpha=fresh)
                if k % 256 == 255:
                    bar.advance(256)
                    if not t * float(losses[k]) <= FACTOR * size:
                        return None
        kept = slice(int(steps * (1 - _KEPT)), None)
        scaled, added = t * losses[kept], (h * t * slopes[kept]).square() * (mass / 8)
        heat = float(speeds[kept].square().mean()) * stiff / size - 1
        if not (float(added.mean()) <= _LONG * float(scaled.mean()) and heat <= _HEAT + 4 * math.sqrt(2 / size)):
            return None
        self._z = z
        return torch.sub(scaled, added)

    def _alone(self) -> bool:
        """Whether the chain has moved to where other examples are not predicted as at the center."""
        return self._others is not None and self._excess(self._others) > _OTHERS * float(self._loss)

    def _rough(self) -> bool:
        """Whether the loss is too small to be told by products in half precision."""
        if not self._halved:
            return False
        exact = self._excess(self._chart)
        return not abs(float(self._loss) - exact) <= _ROUGH * exact

    def _excess(self, chart: Landscape) -> float:
        """How far the loss on some examples exceeds that at the center, by products in full precision."""
        return float(chart.loss(self._z) - chart.loss())


def _given(land: Landscape) -> int:
    """How many numbers the widest layer is given, as far as an example has as many, its label apart."""
    fans = [math.prod(shape[1:]) for shape in land.packing.shapes if len(shape) > 1]
    batch = next(iter(land.data.passes(1)))
    sizes = [math.prod(t.shape[1:]) for t in leaves(batch if land.loss_form.takes_model else batch[:-1])]
    return min(max(fans, default=1), max(sizes, default=1))


def _chart(land: Landscape, scale: PriorScale, index: Tensor) -> Landscape:
    """The loss of some examples as a function of z, at w* + S z."""
    some = land.with_data(Examples([land.data.take(index.sort().values)], land.data.findings))
    return some.in_coordinates(lambda z: land.center + scale(z))


def _engine(chart: Landscape, seed: int, halved: bool) -> Engine:
    posterior = Posterior(chart, 1.0, Gaussian(1.0))
    one = torch.ones(1)
    return Engine(posterior, [0], one, seed=seed, batch=None, layout="sequential", overwrite=True, halved=halved)
