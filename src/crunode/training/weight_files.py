"""Weights of a training in a folder: checkpoints of this library, or files that others wrote."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from crunode.errors import InputError, StoreError
from crunode.store.atomic import read_bytes
from crunode.training.checkpoints import list_checkpoints, load_checkpoint

__all__ = ["WeightFile", "WeightFiles", "find_weights"]

_OWN = re.compile(r"step-\d{8,}(\.state)?\.(safetensors|json)(\.tmp)?")
_KINDS = (".safetensors", ".pt", ".pth")
_NUMBER = re.compile(r"(\d+)$")
# Said of what a training that is killed, or still runs, leaves behind. Nothing is lost by it.
_HARMLESS = ("was being written", "never finished")


@dataclass(frozen=True)
class WeightFile:
    """The weights of one step, still on disk."""

    step: int
    path: Path

    def load(self) -> dict[str, Tensor]:
        """The named tensors; nothing in the file is executed.

        Raises:
            StoreError: The file is gone, corrupt or of another kind.
        """
        if self.path.is_dir():  # checkpoints of this library, which know their checksums
            kept = load_checkpoint(self.path, self.step).weights
            return {name: value for name, value in kept.items() if isinstance(value, Tensor)}
        try:
            content = (
                load(read_bytes(self.path))
                if self.path.suffix == ".safetensors"
                else torch.load(self.path, map_location="cpu", weights_only=True)
            )
        except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
            raise StoreError(f"{self.path.name} could not be read as named tensors ({reason})") from error
        if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
            raise StoreError(f"{self.path.name} holds no named tensors; save model.state_dict()")
        return {str(name): value for name, value in content.items()}


@dataclass(frozen=True)
class WeightFiles:
    """What a folder holds.

    Attributes:
        files: One for each step, ascending.
        problems: One sentence for each file that cannot be used, and each that is gone.
    """

    files: tuple[WeightFile, ...]
    problems: tuple[str, ...]


def find_weights(folder: str | os.PathLike[str]) -> WeightFiles:
    """The weights in a folder, by step.

    That is a folder with checkpoints as `train` and `save_checkpoint` write them; or one with files .safetensors, .pt
    or .pth whose names end with the step (`model-200.pt`), or with folders of such names that hold a
    `model.safetensors` (`checkpoint-200`, as the Hugging Face Trainer makes them).

    Args:
        folder: The folder, or one of a training with `checkpoints` in it.

    Raises:
        InputError: There is no such folder, or nothing in it.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (200, 1000):
        ...         save_file({"w": torch.zeros(1)}, Path(folder, f"model-{step}.safetensors"))
        ...     [found.step for found in find_weights(folder).files]
        [200, 1000]
    """
    home = Path(folder).absolute()
    if (home / "training.json").is_file() and (home / "checkpoints").is_dir():
        home = home / "checkpoints"
    if not home.is_dir():
        raise InputError(f"expected a folder of checkpoints, got {home}, which is none; check the path")
    entries = sorted(home.iterdir())
    if any(_OWN.fullmatch(path.name) for path in entries):
        listed = list_checkpoints(home)
        problems = [p for p in listed.problems if not any(words in p for words in _HARMLESS)]
        problems += [f"{name} repeats step {int(name[5:-5])}" for name in _long_names(entries)]
        files = tuple(WeightFile(step, home) for step in listed.steps)
    else:
        files, problems = _of_others(entries)
    if not files:
        told = f": {'; '.join(problems[:8])}" if problems else ""
        raise InputError(
            f"expected checkpoints in {home}, got none{told}. Files are known by a step at the end of their name, as "
            "in model-200.safetensors"
        )
    return WeightFiles(files, tuple(problems))


def _long_names(entries: list[Path]) -> list[str]:
    """Checkpoints under names that nothing reads, with more zeros than they need."""
    found = [p.name for p in entries if re.fullmatch(r"step-\d+\.json", p.name)]
    return [name for name in found if name != f"step-{int(name[5:-5]):08d}.json"]


def _of_others(entries: list[Path]) -> tuple[tuple[WeightFile, ...], list[str]]:
    by_step: dict[int, list[Path]] = {}
    problems = []
    for path in entries:
        inside = path / "model.safetensors"
        file = inside if path.is_dir() and inside.is_file() else path
        number = _NUMBER.search(path.name if path.is_dir() else path.stem)
        if file.is_file() and file.suffix in _KINDS and number:
            by_step.setdefault(int(number[1]), []).append(file)
        else:
            problems.append(f"{path.name} is no file with weights of a step")
    files = []
    for step, paths in sorted(by_step.items()):
        if len({path.suffix for path in paths}) == 1 and len({path.read_bytes() for path in paths}) == 1:
            files.append(WeightFile(step, paths[0]))  # copies of one file do no harm
        else:
            names = ", ".join(path.name if path.name != "model.safetensors" else path.parent.name for path in paths)
            problems.append(f"step {step} does not count: it is there more than once ({names})")
    return tuple(files), problems
