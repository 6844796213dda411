"""Callbacks that carry a tracker into the training loops of other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from crunode._extras import need
from crunode.errors import InputError, MissingExtra
from crunode.training.tracker import Tracker

__all__ = ["huggingface_callback", "lightning_callback"]

Part = Callable[[Any], nn.Module]


def lightning_callback(tracker: Tracker, part: Part | None = None) -> Any:
    """A Lightning callback that visits after every step of the optimizer (extra `track`).

    Steps are those that the Trainer counts (`trainer.global_step`), from 1; batches whose gradients are only gathered
    are none. With several processes the first one measures.

    Args:
        tracker: The tracker.
        part: Finds the landscape's model in the Lightning module, as in `lambda module: module.net`. By default it is
            the module itself, or else the one of its parts whose parameters have the landscape's names and shapes.

    Returns:
        An object to put into `Trainer(callbacks=[...])`.

    Raises:
        MissingExtra: Lightning is not installed.
    """
    try:
        base = need("lightning.pytorch", extra="track").Callback
    except MissingExtra:
        base = need("pytorch_lightning", extra="track").Callback

    class TrackerCallback(base):  # type: ignore[misc, valid-type]
        """Visits after every step."""

        _last = -1

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
            """After each batch."""
            step = int(trainer.global_step)
            if step == self._last or step == 0 or not getattr(trainer, "is_global_zero", True):
                return
            self._last = step
            tracker.visit(step, _model_of(tracker, pl_module, part))

    return TrackerCallback()


def huggingface_callback(tracker: Tracker, part: Part | None = None) -> Any:
    """A callback for the Hugging Face Trainer that visits after every step of the optimizer (extra `hf`).

    Steps are those that the Trainer counts (`state.global_step`), from 1. With several processes the first one
    measures.

    Args:
        tracker: The tracker.
        part: Finds the landscape's model in the one that is trained; by default as in `lightning_callback`.

    Returns:
        An object to put into `Trainer(callbacks=[...])`.

    Raises:
        MissingExtra: transformers is not installed.
    """
    base = need("transformers", extra="hf").TrainerCallback

    class TrackerCallback(base):  # type: ignore[misc, valid-type]
        """Visits after every step."""

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            """After each step."""
            if getattr(state, "is_world_process_zero", True):
                tracker.visit(int(state.global_step), _model_of(tracker, model, part))

    return TrackerCallback()


def _model_of(tracker: Tracker, trained: Any, part: Part | None) -> nn.Module:
    if part is not None:
        return part(trained)
    if not isinstance(trained, nn.Module):
        raise InputError(f"expected the Trainer to hand over its model, got {type(trained).__name__}")
    packing = tracker.landscape.packing
    wanted = dict(zip(packing.names, packing.shapes, strict=True))
    fitting = []
    for module in trained.modules():
        own = {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False)}
        if all(own.get(name) == shape for name, shape in wanted.items()):
            if module is trained:
                return trained
            fitting.append(module)
    if len(fitting) != 1:
        what = "none" if not fitting else f"{len(fitting)} of them"
        raise InputError(
            f"expected one part of {type(trained).__name__} with the parameters of the landscape's model, got {what}; "
            "say which one by part=lambda module: module.net"
        )
    return fitting[0]
