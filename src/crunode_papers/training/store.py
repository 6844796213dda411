"""The folder of a training: settings, history and checkpoints, for one process at a time.

`training.json` has the settings, `history.json` the epochs so far, `checkpoints/` the states. The history is written
before the checkpoint of the same epoch, so it never has fewer epochs than the last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from crunode import StoreError
from crunode.core import identity
from crunode.store import Header, read_document, refuse, write_document
from crunode.training import list_checkpoints, load_checkpoint, save_checkpoint, stated_digest, weights_digest

__all__ = ["TrainingStore", "model_spec", "optimizer_spec", "scheduler_spec"]

_HEADER = Header("training", "training.json", "crunode-training", "settings")
_HISTORY, _FORMAT = "crunode-training-history", 1
# Attributes of optimizers and schedulers that change while they run.
_MOVING = {"last_epoch", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter", "steps"}


class TrainingStore:
    """A folder held by this process: see `opened`.

    Args:
        home: The folder.
        model: Whose weights are kept.
        optimizer: Whose state is kept.
        scheduler: Likewise; or None.
    """

    def __init__(self, home: Path, model: nn.Module, optimizer: Any, scheduler: Any) -> None:
        self.home = home
        self._parts = (model, optimizer, scheduler)

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, folder: str | os.PathLike[str], asked: Mapping[str, Any], model: nn.Module, optimizer: Any, scheduler: Any
    ) -> Iterator[TrainingStore]:
        """Hold the folder while the block runs, once it is known to be of this very training.

        Raises:
            StoreMismatch: It holds a training with other settings, or one that began from other weights.
            StoreError: It is something else, is corrupt, cannot be written, or another process holds it.
        """
        home = Path(folder).absolute()
        with _HEADER.held(home, asked):
            yield cls(home, model, optimizer, scheduler)

    def begin(self, epochs: int) -> list[dict[str, Any]]:
        """Put the last checkpoint into model, optimizer and scheduler; the rows of the epochs up to it.

        A folder without one gets that of step 0.

        Raises:
            StoreMismatch: The model has neither the weights that the training began from nor those of its last
                checkpoint, or more than `epochs` epochs are stored.
            StoreError: A checkpoint is gone or corrupt.
        """
        folder = self.home / "checkpoints"
        found = list_checkpoints(folder) if folder.is_dir() else None
        lost = [p for p in found.problems if "does not count" in p and "never finished" not in p] if found else []
        if lost:
            raise StoreError(
                f"{folder} is damaged: {'; '.join(lost)}. Restore the files from a copy, delete all files of these "
                "steps to go on from the step before, or train again in a new folder."
            )
        if found is None or not found.steps:
            self.keep(0, 0, [])
            return []
        own = weights_digest(self._parts[0])
        if own not in {stated_digest(folder, step) for step in (found.steps[0], found.steps[-1])}:
            refuse(
                self.home,
                "this training",
                [f"weights at the start: stored {stated_digest(folder, 0)[:12]}…, asked {own[:12]}…"],
            )
        rows = self.put_back()
        if len(rows) > epochs:
            refuse(self.home, "this training", [f"epochs: stored {len(rows)}, asked {epochs}"])
        return rows

    def keep(self, epoch: int, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the history and a checkpoint."""
        write_document(self.home / "history.json", _HISTORY, _FORMAT, {"rows": [dict(row) for row in rows]})
        save_checkpoint(self.home / "checkpoints", step, *self._parts, meta={"epoch": epoch})

    def put_back(self) -> list[dict[str, Any]]:
        """The state of the last checkpoint into model, optimizer and scheduler, and the rows up to it."""
        kept = load_checkpoint(self.home / "checkpoints")
        rows = read_document(self.home / "history.json", _HISTORY, _FORMAT)["rows"]
        epoch = int(kept.meta["epoch"])
        if len(rows) < epoch:
            raise StoreError(
                f"{self.home / 'history.json'} has {len(rows)} epochs, fewer than the last checkpoint ({epoch}). "
                "Restore it from a copy, or train again in a new folder."
            )
        kept.restore(*self._parts)
        return [dict(row) for row in rows[:epoch]]


def model_spec(model: nn.Module) -> dict[str, Any]:
    """What makes two models the same but for their weights.

    Example:
        >>> model_spec(nn.Linear(2, 1))["shapes"]
        {'weight': '(1, 2) float32', 'bias': '(1,) float32'}
    """
    shapes = {
        name: f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }
    return {"kind": type(model).__name__, "shapes": shapes, "code": identity(model, weights=False)}


def optimizer_spec(optimizer: Any) -> dict[str, Any]:
    """Class and settings of an optimizer as its caller gave them, whatever a scheduler has made of them since.

    Example:
        >>> import torch
        >>> optimizer_spec(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5))["groups"][0]["lr"]
        0.5
    """
    groups = []
    for group in optimizer.param_groups:
        settings = {key: _setting(value) for key, value in group.items() if key != "params"}
        if "initial_lr" in settings:
            del settings["lr"]
        groups.append({**settings, "parameters": len(group["params"])})
    return {"kind": type(optimizer).__name__, **_attributes(optimizer), "groups": groups}


def scheduler_spec(scheduler: Any) -> dict[str, Any] | None:
    """Class of a scheduler and those of its settings that stay as they were given.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.5)
        >>> scheduler_spec(torch.optim.lr_scheduler.StepLR(optimizer, 3))
        {'kind': 'StepLR', 'step_size': 3, 'gamma': 0.1}
    """
    return None if scheduler is None else {"kind": type(scheduler).__name__, **_attributes(scheduler)}


def _attributes(value: Any) -> dict[str, Any]:
    """Plain attributes that stay as they were given."""
    return {
        key: held
        for key, held in vars(value).items()
        if not key.startswith("_") and key not in _MOVING and isinstance(held, bool | int | float | str)
    }


def _setting(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_setting(item) for item in value]
    return identity(value)[:12]
