"""Many independent trainings of quadratic networks as one batch: seeds × learning rates × weight decays × widths.

All trainings of the same shapes are stacked and take each step together; gradients are written out, as there are only
four products in them. A training's weights, its split and the order of its minibatches come from its own settings, so
that it goes the same way in any company, up to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode import EstimationError, InputError
from crunode.core import Progress, provenance
from crunode.store import write_document
from crunode.training import save_checkpoint
from crunode_papers.grokking.networks import QuadraticNetwork
from crunode_papers.grokking.settings import RECORDED, GrokkingRun, TrainingSettings
from crunode_papers.grokking.stacked import Stack
from crunode_papers.grokking.tasks import check_whole

__all__ = ["train_many"]

Epochs = int | Sequence[int]


def train_many(
    settings: Sequence[TrainingSettings],
    *,
    epochs: int,
    at: Epochs = 100,
    keep: Epochs | None = None,
    store: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    on_failure: str = "raise",
) -> list[GrokkingRun]:
    """Train quadratic networks on modular arithmetic, all of the same shapes as one batch.

    Trainings that agree in modulus, width, numbers of training and validation pairs, batch size, optimizer and centring
    run together; such groups run one after another. They may differ in split, seed, learning rate, weight decay, scale
    and operation. Each ends with the same numbers as alone, up to rounding. On a GPU an epoch is one CUDA graph; the
    host waits for the device only where weights go to disk.

    Args:
        settings: One for each training.
        epochs: How many; each goes through all training pairs once.
        at: Epochs at which losses and accuracies are taken: a distance between them, from 0 on and the last one too, or
            the epochs themselves.
        keep: Epochs whose weights are kept, in the same two forms; by default the last one.
        store: An empty or new folder that kept weights go to, as checkpoints, instead of memory: `training-0000`, …
            in the order of `settings`, with steps counted in epochs.
        dtype: Of all computations.
        device: Where.
        on_failure: "raise" or "return": what to do when a training's loss is not finite. The others are not touched by
            it.

    Returns:
        One run for each training, in order.

    Raises:
        InputError: Something given cannot be trained with.
        EstimationError: The loss of a training became infinite or not a number; `partial` has all runs.

    Example:
        >>> from crunode_papers.grokking.tasks import ModularTask
        >>> grid = [TrainingSettings(ModularTask(5), width=16, rate=rate, batch=None) for rate in (1e-3, 1e-2)]
        >>> slow, fast = train_many(grid, epochs=200, at=50)
        >>> fast.epochs.tolist(), bool(fast.training_loss[-1] < slow.training_loss[-1])
        ([0, 50, 100, 150, 200], True)

    References:
        Cullen 2026, appendix H.1.
    """
    settings = list(settings)
    if not settings or not all(isinstance(s, TrainingSettings) for s in settings):
        raise InputError("expected settings as TrainingSettings, one or more, got others or none")
    check_whole(epochs, "epochs")
    if on_failure not in ("raise", "return"):
        raise InputError(f"expected on_failure among raise, return, got {on_failure!r}")
    marks, kept = _marks(at, epochs, "at"), _marks([epochs] if keep is None else keep, epochs, "keep")
    home = None if store is None else _folder(store, settings)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, one in enumerate(settings):
        groups.setdefault(_shapes(one), []).append(index)
    runs: dict[int, GrokkingRun] = {}
    with torch.no_grad(), Progress(len(groups) * epochs, "train") as bar:
        for members in groups.values():
            stack = Stack([settings[i] for i in members], dtype, device)
            folders = None if home is None else [home / f"training-{i:04d}" for i in members]
            for index, run in zip(members, _group(stack, epochs, marks, kept, folders, bar), strict=True):
                runs[index] = run
    ordered = [runs[index] for index in range(len(settings))]
    lost = [index for index, run in enumerate(ordered) if run.failed_at is not None]
    if lost and on_failure == "raise":
        first = ordered[lost[0]]
        raise EstimationError(
            f"expected finite losses, got others in trainings {lost}, first seen at epoch {first.failed_at} of "
            f"{lost[0]} with rate {first.settings.rate:.4g}; lower the rate, or give on_failure='return'",
            ordered,
        )
    return ordered


def _shapes(one: TrainingSettings) -> tuple[Any, ...]:
    task = one.task
    return task.modulus, one.width, one.examples, len(task.pairs), one.size, one.optimizer, one.centred


def _group(
    stack: Stack, epochs: int, marks: list[int], kept: list[int], folders: list[Path] | None, bar: Progress
) -> list[GrokkingRun]:
    epoch_of = _launcher(stack)
    recorded, weights = [], [dict[int, tuple[Tensor, Tensor]]() for _ in stack.settings]
    due, held = set(marks), set(kept)
    for epoch in range(epochs + 1):
        if epoch:
            epoch_of(stack.orders(epoch))
            bar.advance()
        if epoch in due:
            recorded.append(stack.evaluate())
        if epoch in held:
            for index in range(len(stack.settings)):
                pair = stack.weights(index)
                if folders is None:
                    weights[index][epoch] = pair
                else:
                    save_checkpoint(folders[index], epoch, QuadraticNetwork.of(*pair), meta={"epoch": epoch})
    values = torch.stack(recorded).cpu().numpy()
    origin = provenance()
    return [
        GrokkingRun(
            settings=one,
            epochs=np.array(marks),
            **{name: values[:, column, index].copy() for column, name in enumerate(RECORDED)},
            weights=weights[index],
            folder=None if folders is None else folders[index],
            provenance=origin,
        )
        for index, one in enumerate(stack.settings)
    ]


def _launcher(stack: Stack) -> Callable[[Tensor], Any]:
    """An epoch of the stack, as one CUDA graph where there is one."""
    if stack.device.type != "cuda":
        return stack.epoch
    from crunode.sampling import Captured

    def epoch(order: Tensor) -> tuple[Tensor, ...]:
        stack.epoch(order)
        return (stack.state()[-1],)

    before = [tensor.clone() for tensor in stack.state()]
    captured = Captured(epoch, [stack.orders(0)], overwrite=True)
    for tensor, value in zip(stack.state(), before, strict=True):  # capturing takes steps of its own
        tensor.copy_(value)
    return captured


def _marks(given: Any, epochs: int, name: str) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool):
        check_whole(given, name)
        return sorted({*range(0, epochs + 1, given), epochs})
    try:
        marks = list(given)
    except TypeError:
        raise InputError(f"expected {name} as a whole number or several epochs, got {given!r}") from None
    for mark in marks:
        check_whole(mark, name, low=0)
    if not marks or max(marks) > epochs or len(set(marks)) < len(marks):
        raise InputError(f"expected {name} as epochs from 0 to {epochs}, each once, got {marks}")
    return sorted(marks)


def _folder(store: str | os.PathLike[str], settings: list[TrainingSettings]) -> Path:
    home = Path(store).absolute()
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise InputError(f"expected store as a new or empty folder, got {home}, which holds files; choose another")
    write_document(home / "trainings.json", "crunode-grokking", 1, {"trainings": [asdict(one) for one in settings]})
    return home
