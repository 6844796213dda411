"""What is measured along a training: accuracy, times of memorization and generalization, severity of grokking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode import InputError

__all__ = ["GrokkingTimes", "accuracy", "centring_offset", "first_reached", "grokking_times", "severity"]


def accuracy(outputs: Tensor, classes: Tensor, offset: Tensor | None = None) -> float:
    """Part of the examples whose largest output, less `offset`, is that of their class.

    Args:
        outputs: Shape (n, p).
        classes: Right ones, shape (n,), or one-hot rows.
        offset: Taken off every example's outputs, as `centring_offset` gives it; none by default.

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.8, 0.7]]), torch.tensor([0, 1]))
        0.5
    """
    right = classes.argmax(1) if classes.ndim == 2 else classes
    if len(right) == 0 or outputs.ndim != 2 or len(outputs) != len(right):
        shapes = f"{tuple(outputs.shape)} and {tuple(classes.shape)}"
        raise InputError(f"expected outputs of shape (n, p) and n classes, n from 1 up, got {shapes}")
    if not torch.isfinite(outputs).all():
        raise InputError("expected finite outputs, got others; the network has no accuracy")
    return float(((outputs if offset is None else outputs - offset).argmax(1) == right).double().mean())


def centring_offset(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the training examples of Ŷ − Y, which the centred loss leaves open, shape (p,).

    ½‖P⊥(Y − Ŷ)‖² is the same for Ŷ and Ŷ + 1bᵀ, so b is set by initialization and weight decay alone. The predictor
    that is trained is Ŷ less this offset.

    Example:
        >>> y = torch.eye(2)
        >>> wrong = y + torch.tensor([0.0, 3.0])
        >>> accuracy(wrong, y), accuracy(wrong, y, centring_offset(wrong, y))
        (0.5, 1.0)
    """
    if outputs.shape != targets.shape or outputs.ndim != 2:
        raise InputError(
            f"expected outputs and one-hot targets of one shape (n, p), got shapes "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    return (outputs - targets).mean(0)


def first_reached(epochs: Any, values: Any, threshold: float = 0.95) -> int | None:
    """First recorded epoch at which an accuracy is at the threshold or above; None if there is none.

    Example:
        >>> first_reached([0, 100, 200, 300], [0.1, 0.4, 0.97, 1.0])
        200
    """
    when, (what,) = _columns(epochs, values)
    found = np.flatnonzero(what >= threshold)
    return int(when[found[0]]) if len(found) else None


@dataclass(frozen=True)
class GrokkingTimes:
    """When a training memorized and when it generalized.

    Attributes:
        memorization: First recorded epoch with training accuracy at the threshold; None if never.
        generalization: The same for validation accuracy.
    """

    memorization: int | None
    generalization: int | None

    @property
    def delay(self) -> int | None:
        """Epochs between the two; None where one of them is missing."""
        if self.memorization is None or self.generalization is None:
            return None
        return self.generalization - self.memorization


def grokking_times(
    epochs: Any, training_accuracy: Any, validation_accuracy: Any, threshold: float = 0.95
) -> GrokkingTimes:
    """Times of memorization and generalization: first recorded epochs with accuracy ≥ threshold.

    The paper speaks of both and defines neither; the threshold is that of its severity measure. Times are known to the
    distance of the records.

    Example:
        >>> grokking_times([0, 10, 20, 30], [0.2, 1.0, 1.0, 1.0], [0.2, 0.2, 0.6, 0.99]).delay
        20

    References:
        Cullen 2026, section 6.4.
    """
    return GrokkingTimes(
        first_reached(epochs, training_accuracy, threshold), first_reached(epochs, validation_accuracy, threshold)
    )


def severity(epochs: Any, training_accuracy: Any, validation_accuracy: Any, threshold: float = 0.95) -> float:
    """Grokking severity measure GSM = 1{a_V(T) ≥ 0.95} · (1/T) Σ_{x=1}^T |a_T(x) − a_V(x)|.

    An epoch that is not recorded counts with the next one that is, so evenly spaced records give their mean. The value
    lies between 0 and 1, and is 0 for a training that never generalizes as well as for one without delay: look at
    `grokking_times` to tell them apart. It depends on T: after generalization it falls as 1/T.

    Args:
        epochs: Recorded epochs, ascending; the last is T. Epoch 0 does not count.
        training_accuracy: a_T at these.
        validation_accuracy: a_V.
        threshold: In place of 0.95.

    Example:
        >>> severity([0, 1, 2, 3, 4], [0, 1, 1, 1, 1], [0, 0, 0.5, 1, 1])
        0.375

    References:
        Cullen 2026, section 6.4.
    """
    when, (train, held) = _columns(epochs, training_accuracy, validation_accuracy)
    if when[-1] == 0:
        raise InputError("expected records after epoch 0, got none")
    if held[-1] < threshold:
        return 0.0
    spans = np.diff(when, prepend=0)
    return float((spans * np.abs(train - held)).sum() / when[-1])


def _columns(epochs: Any, *columns: Any) -> tuple[np.ndarray, Sequence[np.ndarray]]:
    when, values = np.asarray(epochs, dtype=float), [np.asarray(column, dtype=float) for column in columns]
    if when.ndim != 1 or not len(when) or any(column.shape != when.shape for column in values):
        lengths = [column.shape for column in (when, *values)]
        raise InputError(f"expected epochs and accuracies of one length, from 1 up, got shapes {lengths}")
    if when[0] < 0 or (np.diff(when) <= 0).any():
        raise InputError("expected epochs in ascending order, each once, got others; sort the records")
    for column in values:
        if not ((column >= 0) & (column <= 1)).all():
            raise InputError("expected accuracies between 0 and 1, got others or NaN; did the training fail?")
    return when, values
