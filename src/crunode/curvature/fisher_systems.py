"""The linear systems of natural gradient steps: what goes into them, checked, and their solutions in data space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from crunode.core.data import leaves
from crunode.core.result import Finding
from crunode.curvature.gram import damped_solve
from crunode.errors import EstimationError, InputError

__all__ = [
    "Solution",
    "example_losses",
    "finite_gradients",
    "mean_loss",
    "refuse_coupled",
    "refuse_infinite",
    "single_output",
    "solved",
    "solved_by_drawn",
    "unsure_trace",
    "whole_norm",
]

# Relative error of the trace of a sampled Fisher matrix above which it is told.
_UNSURE = 0.5


@dataclass(frozen=True)
class Solution:
    """Coefficients of rows, and what was found on the way."""

    coefficients: Tensor
    kappa: float
    trace: float
    gradient_norm: float
    singular: bool


def solved(gram: Tensor, right: Tensor, examples: int, share: float, epsilon: float) -> Solution:
    """Coefficients c of F_s⁻¹∇L = Aᵀc for rows A with F = AᵀA/B and ∇L = Aᵀr/B: c = (AAᵀ + BκI)⁻¹r."""
    trace = float(gram.diagonal().sum()) / examples
    norm = math.sqrt(max(float(right @ gram @ right), 0.0)) / examples
    kappa = share * max(trace, epsilon)
    found, singular = damped_solve(gram, examples * kappa, right)
    return Solution(found, kappa, trace, norm, singular)


def solved_by_drawn(gram: Tensor, right: Tensor, examples: int, share: float, epsilon: float) -> Solution:
    """The same where F = AᵀA/B has other rows than ∇L = Gᵀ𝟏/B: (∇L − Aᵀ(AAᵀ + BκI)⁻¹A∇L)/κ.

    Rows of `gram` are first those of G, then those of A.
    """
    size = examples
    drawn = gram[size:, size:]
    trace = float(drawn.diagonal().mean())
    norm = math.sqrt(max(float(right @ gram[:size, :size] @ right), 0.0)) / size
    kappa = share * max(trace, epsilon)
    inside, singular = damped_solve(drawn, size * kappa, gram[size:, :size] @ right / size)
    return Solution(torch.cat([right / size, -inside]) / kappa, kappa, trace, norm, singular)


def unsure_trace(squares: Tensor, surprises: float) -> list[Finding]:
    """Whether a trace from drawn labels, so many of which surprise, is known to half of its value."""
    spread = float(squares.std()) / math.sqrt(len(squares)) if len(squares) > 1 else 0.0
    error = max(spread / max(float(squares.mean()), 1e-300), 1 / math.sqrt(max(surprises, 1e-300)))
    if error <= _UNSURE:
        return []
    return [Finding.of("CURV832", f"{surprises:.2g} of {len(squares)} drawn labels are not the likeliest ones")]


def example_losses(losses: Any, batch: tuple[Any, ...]) -> Tensor:
    """Losses as a vector with one for each example."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        raise InputError(f"expected a tensor with one loss per example, got {type(losses).__name__}")
    if losses.ndim != 1:
        what = "a scalar" if losses.ndim == 0 else f"shape {tuple(losses.shape)}"
        raise InputError(
            f"expected one loss per example, got {what}, which cannot be split per example; give a loss with "
            "reduction='none' averaged over all axes but the first, or use fisher='kaldi'"
        )
    examples = leaves(batch)[0].shape[0] if leaves(batch) else len(losses)
    if len(losses) == 0 or len(losses) != examples:
        raise InputError(f"expected one loss per example of a batch of {examples}, got {len(losses)}")
    if not losses.requires_grad:
        raise InputError("expected losses that depend on the parameters, got some that do not; is grad disabled?")
    return losses


def single_output(outputs: list[Any], examples: int) -> Tensor:
    """What the model gave, where it was called once."""
    if len(outputs) != 1 or not isinstance(outputs[0], Tensor) or outputs[0].shape[:1] != (examples,):
        raise InputError(
            f"expected the model to be called once, with one row of outputs per example, got {len(outputs)} calls; use "
            "fisher='empirical'"
        )
    return outputs[0]


def mean_loss(losses: Tensor) -> float:
    """Their mean, which has to be finite."""
    found = float(losses.detach().double().mean())
    if not math.isfinite(found):
        raise EstimationError(
            f"expected finite losses, got a mean of {found}; the weights are as before: lower lr, or check the data"
        )
    return found


def refuse_infinite(size: Tensor | float, loss: float) -> None:
    """Refuse gradients whose size is not finite."""
    if not math.isfinite(float(size)):
        raise EstimationError(
            f"expected finite gradients, got some that are not, at a loss of {loss}; the weights are as before: "
            "lower lr, or look for a square root, a norm or a logarithm at zero"
        )


def refuse_coupled(modules: Iterable[nn.Module]) -> None:
    """Refuse layers that make the outputs of an example depend on the others."""
    for module in modules:
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise InputError(
                "expected examples that do not change one another's outputs, got batch normalization in training "
                "mode; call eval() on these layers, use other normalization, or fisher='kaldi'"
            )


def finite_gradients(gradients: Mapping[str, Tensor | None]) -> tuple[dict[str, Tensor], float]:
    """Those that there are, dense and finite, and the norm of them together."""
    present = {name: g for name, g in gradients.items() if g is not None}
    if not present:
        raise InputError("expected gradients, got none; call backward first, or give inputs and targets")
    if any(g.is_sparse for g in present.values()):
        raise InputError("expected dense gradients, got sparse ones; set sparse=False on embeddings")
    norm = whole_norm(present)
    if not math.isfinite(norm):
        raise EstimationError(f"expected finite gradients, got a norm of {norm}; the weights are as before: lower lr")
    return present, norm


def whole_norm(parts: dict[str, Tensor]) -> float:
    """The norm of all parts together, in double precision."""
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts.values()]
    return float(torch.stack(norms).norm())
