"""What a model with given outputs predicts, for losses that are minus the logarithm of a likelihood.

With r the derivative of an example's loss in its outputs and labels drawn from the model, E rrᵀ is the Fisher matrix of
the outputs, SSᵀ. For softmax it is diag(p) − ppᵀ, whose Cholesky factor is known in closed form.

References:
    Tanabe & Sagae 1992 (the factor); Kunstner, Balles & Hennig 2019 (Fisher matrices).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.core.losses import LossForm
from crunode.errors import InputError

__all__ = ["Predictive", "predictive"]

# Probabilities below this are taken for this: their square roots and quotients are still numbers.
_TINY = 1e-290


@dataclass(frozen=True)
class Predictive:
    """The distribution of labels that a loss stands for.

    Attributes:
        kind: "categorical" (outputs are logits), "bernoulli" (log odds) or "gaussian" (means).
        mean: Whether the loss is a mean over the outputs of an example instead of a sum.

    Example:
        >>> logits = torch.tensor([[0.0, 1.0, 3.0]]).double()
        >>> p = logits.softmax(1)[0]
        >>> root = Predictive("categorical", False).root(logits)[0]
        >>> bool(torch.allclose(root @ root.T, torch.diag(p) - p[:, None] * p))
        True
    """

    kind: str
    mean: bool

    def root(self, outputs: Tensor) -> Tensor:
        """S for each example, shape (examples, outputs, columns), in double precision."""
        flat = self._flat(outputs)
        if self.kind != "categorical":
            return torch.diag_embed(self._deviations(flat))
        p, rest, before = _shares(flat)
        below = torch.tril(torch.ones(p.shape[1], p.shape[1] - 1, dtype=p.dtype, device=p.device), -1)
        columns = -p[:, :, None] * (p[:, :-1] / (before * rest)).sqrt()[:, None, :] * below
        columns.diagonal(dim1=1, dim2=2).copy_((p[:, :-1] * (rest / before)).sqrt())
        return columns

    def whitened(self, outputs: Tensor, slope: Tensor) -> Tensor:
        """S⁺r for each example, shape (examples, columns)."""
        flat, slope = self._flat(outputs), slope.reshape(len(outputs), -1).double()
        if self.kind != "categorical":
            return slope / self._deviations(flat)
        p, rest, before = _shares(flat)
        # Slopes sum to zero. The one of the likeliest class is a small difference of large numbers: the others say it.
        likeliest = p.argmax(1, keepdim=True)
        others = slope.scatter(1, likeliest, 0.0)
        slope = others.scatter(1, likeliest, -others.sum(1, keepdim=True))
        earlier = slope.cumsum(1)[:, :-1] - slope[:, :-1]
        return (slope[:, :-1] + p[:, :-1] * (earlier / before)) / (p[:, :-1] * (rest / before)).sqrt()

    def drawn(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """The slopes r for labels drawn from the model, scaled so that E rrᵀ = SSᵀ, with the shape of the outputs.

        Args:
            outputs: Outputs of the model.
            generator: On the CPU, so that labels do not depend on the device.
        """
        flat = self._flat(outputs)
        if self.kind == "gaussian":
            noise = torch.randn(flat.shape, generator=generator, dtype=torch.float64).to(flat.device)
            return (self._deviations(flat) * noise).reshape(outputs.shape)
        if self.kind == "bernoulli":
            chance = torch.rand(flat.shape, generator=generator, dtype=torch.float64).to(flat.device)
            share = math.sqrt(self._share(flat))
            return (share * (flat.sigmoid() - (chance < flat.sigmoid()).double())).reshape(outputs.shape)
        chance = torch.rand(len(flat), 1, generator=generator, dtype=torch.float64).to(flat.device)
        p = flat.softmax(1)
        labels = (p.cumsum(1) < chance).sum(1, keepdim=True).clamp(max=p.shape[1] - 1)
        return p.scatter_add(1, labels, -torch.ones_like(chance)).reshape(outputs.shape)

    def surprises(self, outputs: Tensor) -> float:
        """How many drawn labels are expected not to be the likeliest ones; infinite where no label is."""
        flat = self._flat(outputs)
        if self.kind == "gaussian":
            return math.inf
        if self.kind == "bernoulli":
            return float((-flat.abs()).sigmoid().sum())
        return float((1 - flat.softmax(1).amax(1)).sum())

    def _share(self, flat: Tensor) -> float:
        return 1 / flat.shape[1] if self.mean else 1.0

    def _deviations(self, flat: Tensor) -> Tensor:
        if self.kind == "gaussian":
            # ½‖f − y‖² has the second derivative 1, the mean of squares 2 / outputs.
            return torch.full_like(flat, math.sqrt(2 * self._share(flat) if self.mean else 1.0))
        return (self._share(flat) * flat.sigmoid() * (-flat).sigmoid()).clamp(min=_TINY).sqrt()

    def _flat(self, outputs: Tensor) -> Tensor:
        if self.kind == "categorical" and outputs.ndim != 2:
            raise InputError(
                f"expected outputs of shape (examples, classes) for the Fisher matrix of a classifier, got "
                f"{tuple(outputs.shape)}; take fisher='empirical' for labels at several positions"
            )
        return outputs.detach().reshape(len(outputs), -1).double()


def predictive(loss: LossForm) -> Predictive | None:
    """The distribution that a loss stands for; None where it is not known.

    Example:
        >>> from crunode.core.losses import LossModule
        >>> predictive(LossModule(torch.nn.Identity(), "cross-entropy").form).kind
        'categorical'
    """
    kind = loss.likelihood
    return None if kind is None else Predictive(kind, loss.label not in ("gaussian", "bernoulli"))


def _shares(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p; the sum of all later ones for each but the last; and that with the one itself."""
    p = flat.softmax(1).clamp(min=_TINY)
    tails = p.flip(1).cumsum(1).flip(1)
    return p, tails[:, 1:], tails[:, :-1]
