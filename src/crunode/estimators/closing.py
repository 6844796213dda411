"""From where a cooled chain ended down to the valley, and the rank of the Jacobian there.

What a chain has not seen at its last temperature belongs to directions that are flatter by orders of magnitude than
what it saw, and that only show away from the center. At a smooth point of the valley {f(w) = f(w*)} all of them count:
half the rank of J is λ there, which is λ(w*) or more if the piece of the valley leads to w*. Where a chain ended, it is
more by a few percent at most.

The way down is by damped Gauss-Newton steps −SSᵀJᵀ(JSSᵀJᵀ + μ)⁻¹F, with conjugate gradients. Each divides the loss L
by about ten. A loss L belongs to the temperature 1/t with t = λ / L, at which directions as flat as 1/t are only just
seen. S holds those closer that are steeper than some hundred times that, in the coordinates of `Balanced` at the point.
Were none held closer, steps would take too many products. Were all, they would end where pieces of the valley cross:
for a loss x²y² plain steps keep x² − y², and lead to a point of one piece, while steps with all directions made alike
keep x / y, and lead to the origin, where both x and y count on the way.

References:
    Martens & Grosse 2015; Nocedal & Wright 2006, chapter 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.progress import Progress
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.balanced import Balanced
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.curvature.krylov import Krylov, KrylovMap
from crunode.curvature.rounding import unrounded
from crunode.errors import InputError
from crunode.estimators.prior_scale import PriorScale
from crunode.sampling.layout import memory_class

__all__ = ["Closed", "Closing"]

# What is so many times as steep as 1/t is held closer, and the damping. With 30 it takes half as many products and the
# rank is higher by some percent, and with thousands twice as many for nothing.
_STEEP, _DAMPING = 300.0, 0.3
# Conjugate gradients: at most, until so much is left, and between looks.
_CG, _TO, _LOOK = 150, 0.03, 10
# Steps at most, halvings of one, and how much of the loss one may leave after the first few.
_STEPS, _HALVINGS, _FIRST, _LEAVES = 30, 8, 3, 0.8
# Curvatures that belong to the loss at the end, relative to the largest, and at most: what is real is above.
_END, _REACHED = 1e-15, 1e-11
# Coordinates serve for two steps at first, until the loss has fallen by this; below this curvature that would take more
# steps than it saves.
_AGAIN, _EARLY = 50.0, 1e-6
# Gradients that are held, and the share of the memory that they may take.
_HELD, _MEMORY = 50, 0.4
# Passes over the examples that are kept back for the rank, and a rank that is less certain than this is none.
_RANK, _CERTAIN, _CUT, _BAND = 750, 0.03, 1e-5, 10.0


@dataclass(frozen=True)
class Closed:
    """A point of the valley.

    Attributes:
        rank: Of the Jacobian there.
        error: How far that is uncertain.
        loss: How far the loss is above that at the center.
        moved: How far it is from where steps began, relative to how far that was from the center.
    """

    rank: float
    error: float
    loss: float
    moved: float


class Closing:
    """Steps into the valley of a landscape.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        index: Examples to look at, ascending.
        share: How far weights move, relative to their size.
        seed: Random vectors come from it.

    Raises:
        NoOutputs: Outputs cannot be seen in double precision, or the machine has too little memory.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> land = reduced_rank(40, 20, 40, rank=10)
        >>> offset = PriorScale(land, 0.1, 1.0)(torch.randn(land.dim, generator=torch.Generator().manual_seed(0)))
        >>> found = Closing(land, torch.arange(60), 0.1).close(offset.double(), 600.0)
        >>> 0.98 < found.rank / 975 < 1.06  # the least on pieces that lead to the center
        True
    """

    def __init__(self, land: Landscape, index: Tensor, share: float, seed: int = 0) -> None:
        if 8 * _HELD * land.dim > _MEMORY * memory_class(land.device):
            raise NoOutputs(f"{_HELD} gradients of {land.dim} weights take too much memory")
        try:
            with preserved_rng():
                seen = Evaluation(land)
                if seen.dtype != torch.float64:
                    raise NoOutputs("the model does not run in double precision")
                seen.center, _ = unrounded(seen.center, land.packing.shapes, land.packing.dtypes)
                self._outputs = KrylovMap(seen, index, scaling=Balanced)
        except (InputError, RuntimeError) as error:
            raise NoOutputs(str(error)) from error
        self._plain, self._center, self._shapes = PriorScale(land, share, share), seen.center, land.packing.shapes
        self._chance = torch.Generator(land.device).manual_seed(derived_seed(seed, 75))
        self._even: Balanced | None = None

    @property
    def gradients(self) -> int:
        """Passes over the examples so far."""
        return self._outputs.gradients

    def close(self, offset: Tensor, guess: float, most: int | None = None) -> Closed:
        """The rank of the Jacobian at the point of the valley that steps lead to.

        Args:
            offset: From the center to where to begin.
            guess: About λ.
            most: The most passes over the examples to take.

        Raises:
            NoOutputs: The valley is not reached, the rank there is not certain, or there is not enough memory.
        """
        try:
            with preserved_rng():
                return self._close(offset, guess, most)
        except RuntimeError as error:  # no memory, a derivative that is not implemented
            raise NoOutputs(str(error)) from error

    def _close(self, offset: Tensor, guess: float, most: int | None) -> Closed:
        outputs, begin = self._outputs, self._center + offset
        point, residual = begin, outputs.residual(begin)
        losses, built, least = [self._loss(residual)], 0.0, 1.0
        with Progress(_STEPS, "steps into the valley") as bar:
            for _ in range(_STEPS):
                linear = outputs.at(point)
                if self._even is None or least < _EARLY or losses[-1] < built / _AGAIN:
                    self._even, built = self._stiffness(linear), losses[-1]
                least = losses[-1] / guess * outputs.examples / self._even.top
                if least <= _END:
                    break
                step = self._step(linear, residual, least)
                share, residual = self._along(point, step, losses[-1])
                point = point - share * step
                losses.append(self._loss(residual))
                bar.advance(1)
                if most is not None and outputs.gradients + _RANK > most:
                    raise NoOutputs(f"the valley is further than {most} passes over the examples")
                if not share or (len(losses) > _FIRST + 1 and losses[-1] > _LEAVES * losses[-2]):
                    break
        if not least <= _REACHED:
            raise NoOutputs(f"the valley is not reached, with {losses[-1]:.1e} of the loss left")
        rank, error = outputs.at(point).rank(_CUT, _BAND, self._random)
        if not rank > 0 or error > _CERTAIN * rank:
            raise NoOutputs(f"the rank in the valley is {rank:.0f} ± {error:.0f}")
        return Closed(rank, error, losses[-1], float((point - begin).norm() / offset.norm().clamp(min=1e-300)))

    def _random(self, count: int) -> Tensor:
        return torch.randn(count, generator=self._chance, dtype=torch.float64, device=self._center.device)

    def _loss(self, residual: Tensor) -> float:
        return float(residual.square().sum()) / (2 * self._outputs.examples)

    def _stiffness(self, linear: Krylov) -> Balanced:
        wide = self._plain.double()
        return Balanced(self._shapes, lambda: wide.back(linear.back(self._random(self._outputs.rows))), self._even)

    def _step(self, linear: Krylov, residual: Tensor, least: float) -> Tensor:
        """What to go back by, for 1/t relative to the largest curvature."""
        assert self._even is not None
        scale = self._plain.evened(self._even.whitening(_STEEP * least)).double()
        mu = _DAMPING * least * self._even.top

        def pulled(u: Tensor) -> Tensor:
            return scale(scale.back(linear.back(u)))

        return pulled(_inverse(lambda u: linear.push(pulled(u)).add_(u, alpha=mu), residual))

    def _along(self, point: Tensor, step: Tensor, loss: float) -> tuple[float, Tensor]:
        """What share of a step lowers the loss, and the residual there; 0 if none does."""
        share = 1.0
        for _ in range(_HALVINGS):
            there = self._outputs.residual(point - share * step)
            if self._loss(there) < loss:
                return share, there
            share /= 2
        return 0.0, self._outputs.residual(point)


def _inverse(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """The inverse of a product times a vector by conjugate gradients, until little is left."""
    found, rest = torch.zeros_like(right), right.clone()
    along, size = rest.clone(), rest @ rest
    goal = _TO * float(right.norm())
    for step in range(1, _CG + 1):
        image = product(along)
        share = size / (along @ image).clamp(min=1e-300)
        found.addcmul_(along, share)
        rest.addcmul_(image, share, value=-1)
        size, before = rest @ rest, size
        along = torch.addcmul(rest, along, size / before.clamp(min=1e-300))
        # A graphics card would have to be waited for each time.
        if step % _LOOK == 0 and float(rest.norm()) <= goal:
            break
    return found
