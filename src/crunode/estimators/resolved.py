"""How much of the rank at the center a temperature shows.

In coordinates in which the prior is standard normal, with JᵀJ the Gauss-Newton matrix at w*, chains at inverse
temperature t that stay where the loss is quadratic have 2λ̂(t) = N(t) = Tr tJᵀJ / (tJᵀJ + 1): directions with less
curvature than 1/t are not seen yet. As t grows N(t) rises to the rank r of J, which is known by other means (see
`crunode.curvature.krylov`). So N(t) / r is the share of the center's own directions that temperature t shows, and what
the same temperature shows elsewhere in the valley is a similar share of what there is.

N(t) comes from Lanczos steps on JJᵀ in the space of outputs. For Tr of x ↦ tx/(tx + 1), whose derivatives alternate in
sign, Gauss quadrature is above and Gauss-Radau quadrature with a node at zero below. Vectors are not made orthogonal
again to all before: copies of eigenvalues that rounding brings back share the weight of the one they belong to.

Whether there is more elsewhere shows at the center too. Around a smooth point of the valley {f(w) = f(w*)} it has the
dimension of the kernel of J: along any v with Jv = 0 it can be followed, which takes a second step u with
Ju = −½ f''[v, v]. So where f''[v, v] of a random v in the kernel is not in the image of J, the point is not smooth, and
the rank of J is larger elsewhere. Where it is, that is no proof: higher orders may stand in the way.

References:
    Golub & Meurant 2010, chapter 6; MacKay 1992 (the effective number of parameters); Greenbaum 1989; Whitney 1965
    (tangents to a variety).
"""

from __future__ import annotations

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs
from crunode.curvature.krylov import KrylovMap
from crunode.curvature.recurrence import Recurrence
from crunode.curvature.rounding import unrounded
from crunode.errors import InputError
from crunode.estimators.prior_scale import PriorScale

__all__ = ["SMOOTH", "Resolved"]

# Lanczos steps between looks and at most, and what the two quadratures may be apart by.
_LOOK, _MOST, _APART = 50, 700, 0.02
# A rank that is less certain than this is not a measure, and where the ranks are counted.
_CERTAIN, _CUT, _BAND = 0.03, 1e-5, 10.0
# How far a flat direction is followed, which share of what that does may be out of reach at a smooth point, and what is
# nothing beside the first order, there and all the way.
_AHEAD, SMOOTH, _NOTHING, _STRAIGHT = 0.01, 1e-3, 1e-9, 1e-5


class Resolved:
    """Shares of the rank at the center of a landscape that temperatures show.

    Args:
        land: A landscape whose labels are the model's predictions at the center.
        index: Examples to look at, ascending.
        scale: How far each direction may go.
        seed: Random vectors come from it.

    Attributes:
        rank: The rank of J at the center.
        error: How far that is uncertain.
        gradients: Passes over the examples so far.

    Raises:
        NoOutputs: Outputs cannot be seen in double precision, or the rank is not certain.

    Example:
        >>> from crunode.examples.toys import reduced_rank
        >>> land = reduced_rank(60, 20, 60, rank=20)
        >>> found = Resolved(land, torch.arange(80), PriorScale(land, 0.1, 1.0))
        >>> abs(found.rank / 2000 - 1) < 0.03, found.share(1e9)[0] > 0.95  # 20 (60 + 60 − 20)
        (True, True)
    """

    def __init__(self, land: Landscape, index: Tensor, scale: PriorScale, seed: int = 0) -> None:
        try:
            with preserved_rng():
                seen = Evaluation(land)
                if seen.dtype != torch.float64:
                    raise NoOutputs("the model does not run in double precision")
                seen.center, _ = unrounded(seen.center, land.packing.shapes, land.packing.dtypes)
                self._outputs = KrylovMap(seen, index)
                self._linear = self._outputs.at(seen.center)
                chance = torch.Generator(land.device).manual_seed(derived_seed(seed, 73))
                size, device = self._outputs.rows, land.device

                def random(count: int) -> Tensor:
                    return torch.randn(count, generator=chance, dtype=torch.float64, device=device)

                self.rank, self.error = self._linear.rank(_CUT, _BAND, random)
                self._seen, self._random = seen, random
        except (InputError, RuntimeError) as error:  # no memory, a derivative that is not implemented
            raise NoOutputs(str(error)) from error
        if not self.rank > 0 or self.error > _CERTAIN * self.rank:
            raise NoOutputs(f"the rank at the center is {self.rank:.0f} ± {self.error:.0f}")
        self._start = random(size)
        self._weight = float(self._start.square().sum())
        self._wide = scale.double()
        self.rescale(scale)

    def rescale(self, scale: PriorScale) -> None:
        """Measure shares in other coordinates from now on."""
        self._scale = scale.double()
        self._now, self._before = self._start / self._start.norm(), torch.zeros_like(self._start)
        self._diagonal: list[Tensor] = []
        self._beside: list[Tensor] = []
        self._ended = False

    @property
    def gradients(self) -> int:
        """Passes over the examples so far."""
        return self._outputs.gradients

    def bent(self) -> float:
        """The share of f''[v, v], for a random v in the kernel of J, that is not in the image of J: 0 if it is smooth.

        Raises:
            NoOutputs: There is not enough memory, or a derivative is missing.

        Example:
            >>> from crunode.examples.toys import reduced_rank
            >>> for rank in (20, 10):  # hidden layers of full rank, and of less
            ...     land = reduced_rank(60, 20, 60, rank=rank)
            ...     print(Resolved(land, torch.arange(80), PriorScale(land, 0.1, 1.0)).bent() < SMOOTH)
            True
            False
        """
        try:
            with preserved_rng():
                step = self._wide(self._random(self._seen.dim))
                flat, here = self._linear.kernel(step) * _AHEAD, self._seen.center
                moved = self._outputs.residual(here + flat) + self._outputs.residual(here - flat)
                size = float(moved.norm())
                first = float(self._linear.push(step).norm())
                if size > _NOTHING * _AHEAD * first:
                    return float(self._linear.beyond(moved).norm()) / size
                # There is no second order; a third one shows all the way, where odd orders do not cancel.
                ahead = float(self._outputs.residual(here + flat / _AHEAD).norm())
                return 0.0 if ahead <= _STRAIGHT * first else 1.0
        except RuntimeError as error:
            raise NoOutputs(str(error)) from error

    def share(self, t: float, most: int | None = None) -> tuple[float, float]:
        """N(t) / r, and how far that is uncertain.

        Args:
            t: Inverse temperature, that the mean loss is multiplied by.
            most: The most passes over the examples to take for it.

        Raises:
            NoOutputs: There is not enough memory.
        """
        begin = self.gradients
        while True:
            low, high = self._bounds(t) if self._diagonal else (0.0, self._weight)
            spent = self.gradients - begin
            short = most is not None and spent + 4 * _LOOK > most
            if high - low <= _APART * high or self._ended or short or len(self._diagonal) >= _MOST:
                return (low + high) / 2 / self.rank, ((high - low) / 2 + self.error) / self.rank
            try:
                self._more()
            except RuntimeError as error:
                raise NoOutputs(str(error)) from error

    def _bounds(self, t: float) -> tuple[float, float]:
        run = Recurrence(torch.stack(self._diagonal).cpu().numpy(), torch.stack(self._beside).cpu().numpy())
        found = []
        for nodes, weights in (run.radau(0.0), run.rule()[:2]):
            found.append(self._weight * float((weights * (t * nodes / (t * nodes + 1)).clip(0)).sum()))
        return found[0], max(found)

    def _more(self) -> None:
        """Lanczos steps up to the next look."""
        examples = self._outputs.examples
        with preserved_rng():
            for _ in range(_LOOK):
                pulled = self._scale(self._scale.back(self._linear.back(self._now)))
                v = self._linear.push(pulled) / examples
                if self._beside:
                    v = v - self._beside[-1] * self._before
                along = v @ self._now
                v = v - along * self._now
                size = v.norm()
                self._diagonal.append(along)
                self._beside.append(size)
                self._before, self._now = self._now, v / size
        sizes = torch.stack(self._beside)
        # Once nothing new is left the vectors are rounding alone, and so is all that follows.
        none = torch.nonzero(~(sizes > 1e-12 * torch.stack(self._diagonal).max()))
        if len(none):
            end = int(none[0]) + 1
            self._diagonal, self._beside = self._diagonal[:end], self._beside[:end]
            self._beside[-1] = torch.zeros_like(sizes[0])
            self._ended = True
