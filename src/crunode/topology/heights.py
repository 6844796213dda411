"""The loss and its gradient at many points at once, in double precision where the model allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import preserved_rng
from crunode.curvature.jacobian import Evaluation
from crunode.errors import InputError

__all__ = ["Heights", "end_point"]

# Numbers of activations that may be held at once.
_TOGETHER = 1 << 24


def end_point(land: Landscape, weights: nn.Module | dict[str, Tensor] | Tensor, name: str) -> Tensor:
    """The flat vector of weights on this landscape, in double precision.

    Raises:
        InputError: They are of another shape, are not finite, or come with other fixed parameters or buffers.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
        >>> end_point(land, torch.ones(2), "a")
        tensor([1., 1.], dtype=torch.float64)
    """
    try:
        other = land.at(weights)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if not land.same_model(other):
        raise InputError(
            f"expected {name} with the fixed parameters and buffers of the landscape, got others; a path moves free "
            "parameters only: make them parameters, or set the same statistics in both networks"
        )
    return other.center.double()


class Heights:
    """L_n and its gradient at the rows of a matrix of points.

    A loss that is not a number counts as infinite.

    Args:
        land: The landscape.

    Attributes:
        dim: Number of free parameters.
        device: Where points have to be.
        evaluations: At how many points the loss was computed so far, with or without its gradient.

    Example:
        >>> heights = Heights(Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2)))
        >>> heights.values(torch.tensor([[1.0, 1.0], [0.0, 3.0]]))
        tensor([2., 9.], dtype=torch.float64)
    """

    def __init__(self, land: Landscape) -> None:
        self._land, self._seen = land, Evaluation(land)
        self.dim, self.device = land.dim, land.device
        self._chunk = max(1, _TOGETHER // (land.activations * land.data.rows))
        self._batched = True
        self.evaluations = 0

    def values(self, points: Tensor) -> Tensor:
        """Losses at points (count, dim), in double precision."""
        with torch.no_grad():
            found, _ = self._over(points, False)
        return torch.where(torch.isfinite(found), found, torch.inf)

    def slopes(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Losses, shape (count,), and gradients, shape (count, dim)."""
        with torch.enable_grad():
            values, slopes = self._over(points, True)
        finite = torch.isfinite(values) & torch.isfinite(slopes).all(1)
        return torch.where(finite, values, torch.inf), torch.where(finite[:, None], slopes, 0.0)

    def _over(self, points: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        """Losses and gradients in chunks that fit into memory."""
        self.evaluations += len(points)
        with preserved_rng():
            parts = [self._over_data(p, slopes) for p in torch.split(points.detach().to(self._seen.dtype), self._chunk)]
        losses, gradients = zip(*parts, strict=True)
        return torch.cat(losses).double(), torch.cat(gradients).double()

    def _over_data(self, points: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        total, gradient = points.new_zeros(len(points)), torch.zeros_like(points)
        for batch in self._land.passes():
            share = leaves(batch)[0].shape[0] / self._land.data.rows
            leaf = points.clone().requires_grad_(slopes)
            losses = self._losses(leaf, batch) * share
            if slopes:
                # Rows do not see one another, so that the gradient of the sum holds the gradient of each.
                gradient += torch.autograd.grad(losses.sum(), leaf)[0]
            total += losses.detach()
        return total, gradient

    def _losses(self, points: Tensor, batch: Any) -> Tensor:
        def loss(w: Tensor) -> Tensor:
            return self._seen.losses(w, batch).mean()

        if self._batched:
            try:
                found: Tensor = vmap(loss, randomness="different")(points)
                return found
            except RuntimeError:  # no batching rule for something in the model, or an error that comes again below
                self._batched = False
        return torch.stack([loss(w) for w in points])
