"""What a training on modular arithmetic is told, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from crunode import InputError
from crunode.training import load_checkpoint
from crunode_papers.grokking.networks import QuadraticNetwork
from crunode_papers.grokking.tasks import ModularTask, check_seed, check_whole

__all__ = ["OPTIMIZERS", "RECORDED", "GrokkingRun", "TrainingSettings"]

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Optimizers by name: with "sgd" and "adam" weight decay is added to the gradient, with "adamw" to the step."""

RECORDED = (
    "training_loss",
    "validation_loss",
    "training_accuracy",
    "validation_accuracy",
    "raw_training_accuracy",
    "raw_validation_accuracy",
)
"""What is taken at every recorded epoch."""


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that one training of a quadratic network depends on, apart from its length.

    The loss of a step is ½‖P⊥(Y − Ŷ)‖²_F / B over its B examples, with P⊥ taken along them. The paper prints the sum,
    without 1/B: under SGD the same steps come from rate · B here, and its penalty (η/2)‖w‖² is a weight decay of η/B.
    Adam does not feel the factor, but for the decay.

    Attributes:
        task: The table, its training fraction and its split.
        width: K.
        rate: Learning rate.
        weight_decay: η.
        batch: Examples of a step; None takes all of them. The last step of an epoch takes what is left.
        optimizer: One of `OPTIMIZERS`; the paper does not name its own.
        centred: Whether P⊥ is in the loss.
        scale: Factor of the initial weights (see `initial_weights`).
        seed: Initial weights and the order of minibatches come from it; the split comes from the task's own.

    Raises:
        InputError: A value is out of its range.

    Example:
        >>> TrainingSettings(ModularTask(53), width=1024, rate=1e-3).batch
        128

    References:
        Cullen 2026, appendix H.1, which the defaults follow where it speaks.
    """

    task: ModularTask
    width: int = 1024
    rate: float = 1e-3
    weight_decay: float = 1e-5
    batch: int | None = 128
    optimizer: str = "adam"
    centred: bool = True
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.task, ModularTask):
            raise InputError(f"expected task as a ModularTask, got {type(self.task).__name__}")
        check_whole(self.width, "width")
        check_seed(self.seed)
        if self.batch is not None:
            check_whole(self.batch, "batch")
            if self.batch == 1 and self.centred:
                raise InputError("expected batch from 2 up when centred, got 1; the centred loss of one example is 0")
        for name, value, low in (("rate", self.rate, True), ("weight_decay", self.weight_decay, False)):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not (value > 0 if low else value >= 0) or not value < math.inf:
                raise InputError(f"expected {name} as a finite number {'above' if low else 'from'} 0, got {value!r}")
        if not isinstance(self.scale, int | float) or not 0 < self.scale < math.inf:
            raise InputError(f"expected scale as a positive number, got {self.scale!r}")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"expected optimizer among {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")

    @property
    def examples(self) -> int:
        """N, the number of training pairs."""
        return len(self.task.training)

    @property
    def size(self) -> int:
        """Examples of a full step."""
        return self.examples if self.batch is None else min(self.batch, self.examples)

    @property
    def steps(self) -> int:
        """Steps of an epoch.

        Example:
            >>> TrainingSettings(ModularTask(53)).steps
            9
        """
        return math.ceil(self.examples / self.size)


@dataclass(frozen=True)
class GrokkingRun:
    """One training, as it was recorded.

    Losses are means over the part's examples, L = ½‖P⊥(Y − Ŷ)‖²_F / n with P⊥ along all n of them. A centred loss says
    nothing about the mean of an output over the training examples, so the largest of the raw outputs may be the wrong
    one at zero loss. Accuracies are therefore taken after each output was given the mean that its target has on the
    training examples; raw ones are there beside them. Where a loss is not finite, all are NaN.

    Attributes:
        settings: What it was told.
        epochs: Epochs at which the following were taken; 0 is before the first step.
        training_loss: On the training pairs.
        validation_loss: On the others.
        training_accuracy: Part of the training pairs whose largest output is the right one.
        validation_accuracy: Part of the others, with the means of the training pairs.
        raw_training_accuracy: The same, of the outputs as they are.
        raw_validation_accuracy: Likewise.
        weights: W of shape (K, 2p) and V of shape (p, K) at kept epochs.
        folder: Checkpoints at kept epochs, where they went to disk.
        provenance: Versions and source state.
    """

    settings: TrainingSettings
    epochs: np.ndarray
    training_loss: np.ndarray
    validation_loss: np.ndarray
    training_accuracy: np.ndarray
    validation_accuracy: np.ndarray
    raw_training_accuracy: np.ndarray
    raw_validation_accuracy: np.ndarray
    weights: Mapping[int, tuple[Tensor, Tensor]] = field(repr=False, default_factory=dict)
    folder: Path | None = None
    provenance: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def failed_at(self) -> int | None:
        """First recorded epoch at which the loss was not finite; None for a training that went well."""
        bad = np.flatnonzero(~np.isfinite(self.training_loss))
        return int(self.epochs[bad[0]]) if len(bad) else None

    def network(self, epoch: int | None = None) -> QuadraticNetwork:
        """The network as it was at a kept epoch, by default the last.

        Raises:
            InputError: No weights were kept then.
        """
        if self.folder is not None:
            state = load_checkpoint(self.folder, epoch).weights
            return QuadraticNetwork.of(state["first.weight"], state["second.weight"])
        kept = sorted(self.weights)
        if not kept or (epoch is not None and epoch not in self.weights):
            raise InputError(
                f"expected an epoch whose weights were kept, {kept or 'of which there is none'}, got {epoch}"
            )
        return QuadraticNetwork.of(*self.weights[kept[-1] if epoch is None else epoch])
