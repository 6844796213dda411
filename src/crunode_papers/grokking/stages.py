"""Stages of training: the signal that reaches the units, what they climb, and the lazy solution of the output layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode import InputError
from crunode_papers.grokking.networks import QuadraticNetwork

__all__ = ["StageSignal", "lazy_ridge", "stage_signal", "unit_energies"]


@dataclass(frozen=True)
class StageSignal:
    """The gradient that reaches the units, and how much of it is aligned with the task.

    Attributes:
        norm: ‖G_F‖_F.
        alignment: Cosine between G_F and ỸỸᵀF̃: 0 for noise, 1 for what the paper calls stage II.
        coefficient: c for which c·ỸỸᵀF̃ is nearest to G_F.
    """

    norm: float
    alignment: float
    coefficient: float


def stage_signal(network: QuadraticNetwork, inputs: Tensor, targets: Tensor) -> StageSignal:
    """G_F = P⊥(Y − FV)Vᵀ, the signal back to the features F, held against ỸỸᵀF̃.

    Stage I is said to have a signal like noise, stage II one with G_F ≈ c_η ỸỸᵀF̃; Ỹ = P⊥Y, F̃ = P⊥F.

    Args:
        network: The network.
        inputs: Of the training examples, one-hot rows or (a, b).
        targets: One-hot rows Y.

    Raises:
        InputError: The signal is exactly zero, so that it has no direction.

    Example:
        >>> from crunode_papers.grokking.tasks import ModularTask
        >>> found = stage_signal(QuadraticNetwork(5, 8), *ModularTask(5).data())
        >>> found.norm > 0, -1 <= found.alignment <= 1
        (True, True)

    References:
        Cullen 2026, section 5 (G_F) and section 5.2; Tian 2025.
    """
    with torch.no_grad():
        features, y = network.features(inputs).double(), _one_hot(targets)
        second = network.second.weight.double().T
        signal = _centred(y - features @ second) @ second.T
        tilde = _centred(y)
        task = tilde @ (tilde.T @ _centred(features))
        inner, size, other = (float((a * b).sum()) for a, b in ((signal, task), (signal, signal), (task, task)))
    if not size > 0 or not other > 0 or not math.isfinite(size + other):
        raise InputError("expected a signal with a direction, got one that is zero or not finite")
    return StageSignal(math.sqrt(size), inner / math.sqrt(size * other), inner / other)


def unit_energies(network: QuadraticNetwork, inputs: Tensor, targets: Tensor) -> Tensor:
    """E(w_j) = ½‖Ỹᵀf_j‖² of each unit, with f_j = (Xw_j)²: what a unit climbs in stage II; shape (K,), float64.

    Example:
        >>> from crunode_papers.grokking.tasks import ModularTask
        >>> tuple(unit_energies(QuadraticNetwork(5, 8), *ModularTask(5).data()).shape)
        (8,)

    References:
        Cullen 2026, section 5.2.
    """
    with torch.no_grad():
        return 0.5 * (_centred(_one_hot(targets)).T @ network.features(inputs).double()).square().sum(0)


def lazy_ridge(features: Tensor, targets: Tensor, penalty: float, centred: bool = True) -> Tensor:
    """V_ridge = (F̃ᵀF̃ + ηI)⁻¹F̃ᵀỸ, the output layer that minimizes ½‖Ỹ − F̃V‖²_F + (η/2)‖V‖²_F; shape (K, p), float64.

    η belongs to the sum over examples: with the mean over N, as trainings here have it, a weight decay of η/N gives the
    same. η = 0 gives the solution of smallest norm among the least squares ones.

    Args:
        features: F of the training examples, shape (N, K), as `QuadraticNetwork.features` gives it.
        targets: Y, one-hot rows of shape (N, p).
        penalty: η, from 0 up.
        centred: Whether P⊥ is there.

    Example:
        >>> f, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[2.0], [4.0], [6.0]])
        >>> [round(float(lazy_ridge(f, y, penalty)), 9) for penalty in (0.0, 2.0)]
        [2.0, 1.0]

    References:
        Cullen 2026, eq. (4).
    """
    if features.ndim != 2 or targets.ndim != 2 or len(features) != len(targets):
        raise InputError(
            f"expected features (N, K) and targets (N, p), got shapes "
            f"{tuple(features.shape)} and {tuple(targets.shape)}"
        )
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty < math.inf:
        raise InputError(f"expected penalty as a finite number from 0 up, got {penalty!r}")
    with torch.no_grad():
        f, y = features.double(), _one_hot(targets)
        f, y = (_centred(f), _centred(y)) if centred else (f, y)
        left, values, right = torch.linalg.svd(f, full_matrices=False)
        # Singular values below this are rounding; with a penalty they do no harm, without one they would be inverted.
        zero = values <= values.max() * max(f.shape) * torch.finfo(f.dtype).eps
        factors = torch.where(zero, 0.0, values / torch.where(zero, 1.0, values.square() + penalty))
        return torch.matmul(right.T, factors[:, None] * (left.T @ y))


def _centred(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(0, keepdim=True)


def _one_hot(targets: Tensor) -> Tensor:
    if targets.ndim != 2:
        raise InputError(f"expected targets as rows of shape (n, p), got shape {tuple(targets.shape)}")
    return targets.double()
