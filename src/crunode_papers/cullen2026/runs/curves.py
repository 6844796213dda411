"""From a training with λ̂ along it to numbers: times, correlations with the validation loss, and which came first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from crunode import InputError
from crunode.training import find_transitions
from crunode_papers.claims.statistics import TTest, mean_test
from crunode_papers.cullen2026.runs.statistics import fall_time, rank_correlation
from crunode_papers.grokking.measures import GrokkingTimes, grokking_times, severity

__all__ = [
    "change_epochs",
    "curve_numbers",
    "diverged",
    "gathered",
    "llc_curve",
    "severity_of",
    "summarized",
    "times_of",
]

Training = Mapping[str, Any]


def times_of(training: Training) -> GrokkingTimes:
    """When a training memorized and generalized, by accuracies of 0.95.

    Example:
        >>> one = {"epochs": [0, 5, 9], "training_accuracy": [0.1, 1.0, 1.0], "validation_accuracy": [0.1, 0.2, 1.0]}
        >>> times_of(one).delay
        4
    """
    return grokking_times(training["epochs"], *_accuracies(training))


def severity_of(training: Training) -> float:
    """Its grokking severity measure, with the last epoch for T.

    Example:
        >>> one = {"epochs": [0, 5, 10], "training_accuracy": [0.1, 1.0, 1.0], "validation_accuracy": [0.1, 0.2, 1.0]}
        >>> severity_of(one)
        0.4
    """
    return severity(training["epochs"], *_accuracies(training))


def _accuracies(training: Training) -> tuple[np.ndarray, np.ndarray]:
    found = [np.array(training[f"{part}_accuracy"], dtype=np.float64) for part in ("training", "validation")]
    if any(not np.isfinite(values).all() for values in found):
        raise InputError("expected a training that did not diverge, got one without accuracies")
    return found[0], found[1]


def diverged(training: Training) -> bool:
    """Whether the training loss was not finite at some epoch.

    Example:
        >>> diverged({"training_loss": [0.5, None]})
        True
    """
    return any(value is None for value in training["training_loss"])


def llc_curve(training: Training, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Epochs from 1 on at which λ̂ has a value, the values and errors, and losses and accuracies at these epochs."""
    points = training["points"]
    where = {epoch: index for index, epoch in enumerate(training["epochs"])}
    kept = [
        (epoch, one["value"], one["se"] or 0.0, where[epoch])
        for epoch, one in zip(points["epochs"], points[name], strict=True)
        if epoch > 0 and one["value"] is not None
    ]
    index = [row[3] for row in kept]
    columns = ("training_loss", "validation_loss", "training_accuracy", "validation_accuracy")
    beside = {column: np.array([training[column][k] for k in index], dtype=np.float64) for column in columns}
    epochs, values, errors = (np.array([row[k] for row in kept], dtype=np.float64) for k in range(3))
    return epochs, values, errors, beside


def curve_numbers(training: Training, name: str) -> dict[str, float | None]:
    """What a curve of λ̂ says about the validation loss, from memorization on.

    Args:
        training: As `quadratic_trainings` gives it.
        name: Of the chains' settings.

    Returns:
        "correlation": Spearman's, of λ̂ and validation loss from the epoch of memorization on, and "whole" from epoch 1
        on. "changes": the same of
        their changes from point to point, which two curves that merely both fall do not share. "fall": λ̂ at its maximum
        less the last, as part of the maximum. "lead": log₂ of how many times later the validation loss has come down
        half its way than λ̂ has; positive where λ̂ is first. "behind_accuracy": log₂ of how many times later λ̂ has come
        half its way than the validation accuracy has risen to one half. "max" and "final": λ̂. None where there is no
        such number.
    """
    keys = ("correlation", "whole", "changes", "fall", "lead", "behind_accuracy", "max", "final")
    found: dict[str, float | None] = dict.fromkeys(keys)
    if diverged(training):
        return found
    epochs, values, _, beside = llc_curve(training, name)
    if len(values) < len(training["points"]["epochs"]) - 1:  # chains diverged somewhere: no maximum, no fall
        return found
    top, last, loss = float(values.max()), float(values[-1]), beside["validation_loss"]
    found["max"], found["final"], found["fall"] = top, last, 1 - last / top if top > 0 else None
    found["whole"] = rank_correlation(values, loss)
    known = times_of(training).memorization
    late = epochs >= (np.inf if known is None else known)
    if late.sum() < 4:
        return found
    found["correlation"] = rank_correlation(values[late], loss[late])
    found["changes"] = rank_correlation(np.diff(values[late]), np.diff(loss[late]))
    first, second = fall_time(epochs[late], values[late]), fall_time(epochs[late], loss[late])
    if first is not None and second is not None:
        found["lead"] = float(np.log2(second / first))
    # The first time that 1 − accuracy falls to one half, on all records.
    record = np.array(training["epochs"][1:], dtype=np.float64)
    wrong = 1 - np.array(training["validation_accuracy"][1:], dtype=np.float64)
    if first is not None and wrong[-1] < 0.5 < wrong[0]:
        found["behind_accuracy"] = float(np.log2(first / record[int(np.flatnonzero(wrong <= 0.5)[0])]))
    return found


def change_epochs(training: Training, name: str, seed: int) -> list[tuple[int, int]]:
    """Intervals of epochs in which λ̂ goes over to a stretch that is lower than the last one, by `find_transitions`."""
    epochs, values, errors, _ = llc_curve(training, name)
    if len(values) < 6:
        return []
    found = find_transitions([int(e) for e in epochs], values, errors, seed=seed)
    stretches = zip(found.changes, pairwise(found.segments), strict=True)
    return [(change.low, change.high) for change, (before, after) in stretches if after.value < before.value]


def gathered(numbers: Sequence[Mapping[str, float | None]], key: str) -> list[float]:
    """The numbers of that name, without those that are missing.

    Example:
        >>> gathered([{"lead": 1.0}, {"lead": None}, {"lead": 3.0}], "lead")
        [1.0, 3.0]
    """
    return [float(one[key]) for one in numbers if one[key] is not None]  # type: ignore[arg-type]


def summarized(values: Sequence[float], total: int) -> tuple[TTest | None, str]:
    """Their mean over seeds with its error, and a note with the 95 % interval and on seeds without a value.

    Example:
        >>> summarized([1.0, 2.0, 3.0], 4)[1]
        '95 % interval -0.484 to 4.48; 1 of 4 trainings without a value'
    """
    if not values:
        return None, ""
    test = mean_test(list(values))
    margin = test.margin(0.025)
    note = f"95 % interval {test.value - margin:.3g} to {test.value + margin:.3g}" if test.dof > 0 else ""
    if len(values) < total:
        note = "; ".join(part for part in (note, f"{total - len(values)} of {total} trainings without a value") if part)
    return test, note
