"""Loss and accuracy of a model on validation data, and what is told when they are not finite."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core import Examples, LossModule

__all__ = ["NotFinite", "modes_kept", "validated"]


class NotFinite(Exception):
    """What became not finite, and when."""


def validated(module: LossModule, held: Examples | None, size: int, epoch: int) -> dict[str, float | None]:
    """Mean loss and accuracy on the validation data, in evaluation mode."""
    if held is None:
        return {"validation_loss": None, "validation_accuracy": None}
    outputs: list[Any] = []
    losses: list[Tensor] = []
    right: list[Tensor] = []
    counted = 0
    hook = module.model.register_forward_hook(lambda _module, _given, output: outputs.append(output))
    try:
        with modes_kept(module.model), torch.no_grad():
            module.model.eval()
            for batch in held.passes(size):
                found = module(batch)
                count = found.shape[0] if found.ndim else Examples([batch]).rows
                losses.append(found.sum().double() if found.ndim else found.double() * count)
                output, target = outputs[-1] if outputs else None, batch[-1] if isinstance(batch, tuple) else None
                outputs.clear()
                if _are_classes(output, target):
                    right.append((output.argmax(1) == target).sum())  # type: ignore[union-attr]
                    counted += target.numel()  # type: ignore[union-attr]
    finally:
        hook.remove()
    mean = float(torch.stack(losses).sum()) / held.rows
    if not math.isfinite(mean):
        raise NotFinite(f"{mean} on the validation data after epoch {epoch}")
    return {"validation_loss": mean, "validation_accuracy": int(torch.stack(right).sum()) / counted if right else None}


def _are_classes(output: Any, target: Any) -> bool:
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return False
    whole = not target.is_floating_point() and not target.is_complex() and target.dtype != torch.bool
    return whole and output.ndim == target.ndim + 1 and output.shape[2:] == target.shape[1:]


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Give every part of the model its mode back."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
