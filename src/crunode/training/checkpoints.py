"""Weights and the state of an optimizer on disk: safetensors and JSON, whole or absent, checked when read.

A checkpoint of step 1200 is three files: `step-00001200.safetensors` with the weights under the names that the model's
`state_dict` has, `step-00001200.state.safetensors` with the tensors of optimizer and scheduler, and
`step-00001200.json`, written last, with checksums and all that is no tensor. Without the last one it does not count.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from crunode.errors import InputError, StoreError
from crunode.store.atomic import digest, read_bytes, write_bytes
from crunode.store.documents import read_document, write_document

__all__ = [
    "Checkpoint",
    "CheckpointList",
    "list_checkpoints",
    "load_checkpoint",
    "save_checkpoint",
    "stated_digest",
    "weights_digest",
]

_FORMAT, _VERSION = "crunode-checkpoint", 1
_NAME = re.compile(r"step-(\d{8,})(\.state\.safetensors|\.safetensors|\.json)")


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training after a step.

    Attributes:
        step: Steps taken.
        weights: The model's `state_dict`, on the CPU.
        optimizer: The optimizer's, or None.
        scheduler: The scheduler's, or None.
        meta: Small values kept beside, such as the epoch.
    """

    step: int
    weights: dict[str, Any]
    optimizer: dict[str, Any] | None = None
    scheduler: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def restore(self, model: nn.Module, optimizer: Any = None, scheduler: Any = None) -> None:
        """Put the state into a model, and into its optimizer and scheduler where given; all or nothing is checked.

        Raises:
            InputError: The state is that of another model, or of an optimizer of another kind or with other groups.
        """
        _check_fits(self.weights, model)
        given = {"optimizer": (self.optimizer, optimizer), "scheduler": (self.scheduler, scheduler)}
        for name, (stored, target) in given.items():
            if target is None:
                continue
            kind = self.meta.get(f"{name}_kind")
            if stored is None or kind not in (None, type(target).__name__):
                had = "none" if stored is None else f"that of {kind}"
                raise InputError(
                    f"expected the state of the {name} {type(target).__name__} at step {self.step}, got {had}; give "
                    f"the {name} that was trained with"
                )
        if optimizer is not None:
            _check_groups(self.optimizer or {}, optimizer)
        model.load_state_dict(self.weights)
        if optimizer is not None:
            optimizer.load_state_dict(self.optimizer)
        if scheduler is not None:
            scheduler.load_state_dict(self.scheduler)


@dataclass(frozen=True)
class CheckpointList:
    """What a folder of checkpoints holds.

    Attributes:
        folder: The folder.
        steps: Steps whose checkpoint is there, ascending.
        problems: One sentence for each file that is missing, unfinished, corrupt or foreign.
    """

    folder: Path
    steps: tuple[int, ...]
    problems: tuple[str, ...]


def save_checkpoint(
    folder: str | os.PathLike[str],
    step: int,
    model: nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    meta: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint, so that a kill at any moment leaves it whole or absent.

    Args:
        folder: Where to; made when absent.
        step: Steps taken.
        model: Whose weights and buffers.
        optimizer: Whose state, if wanted.
        scheduler: Likewise.
        meta: JSON-able values to keep beside.

    Returns:
        Path of the file with the weights, which `safetensors.torch.load_file` reads.

    Raises:
        InputError: Part of a state has no JSON form and is no tensor.
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> net = nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(folder, 1200, net, meta={"epoch": 3}).name
        ...     kept = load_checkpoint(folder)
        ...     kept.step, kept.meta["epoch"], bool(kept.weights["bias"] == net.bias)
        'step-00001200.safetensors'
        (1200, 3, True)
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise InputError(f"expected step as a whole number from 0 up, got {step!r}")
    home = Path(folder).absolute()
    held = model.state_dict()
    tensors: dict[str, Tensor] = {}
    extra = {name: value for name, value in held.items() if not isinstance(value, Tensor)}
    parts = {"optimizer": optimizer, "scheduler": scheduler}
    state = {
        **{name: None if part is None else _split(part.state_dict(), name, tensors) for name, part in parts.items()},
        "extra": _split(extra, "extra", tensors),
    }
    kinds = {f"{name}_kind": type(part).__name__ for name, part in parts.items() if part is not None}
    before = [known for known in _steps(home) if known < step]
    files = {_weights_name(step): write_bytes(home / _weights_name(step), _packed(held))}
    if tensors:
        files[_state_name(step)] = write_bytes(home / _state_name(step), _packed(tensors))
    content = {
        "step": step,
        "previous": max(before, default=None),
        "files": files,
        "state": state,
        "meta": {**kinds, **(meta or {})},
    }
    write_document(home / _sheet_name(step), _FORMAT, _VERSION, content)  # last: what it names is there
    return home / _weights_name(step)


def load_checkpoint(folder: str | os.PathLike[str], step: int | None = None) -> Checkpoint:
    """Read a checkpoint, by default the last one.

    Raises:
        InputError: There is no such folder, or no such step in it.
        StoreError: A file of it is missing, truncated or corrupt; the message names it.
    """
    home = _existing(folder)
    known = sorted(_steps(home))
    if step is None and known:
        step = known[-1]
    if step is None or step not in known:
        asked = "" if step is None else f" of step {step}"
        raise InputError(f"expected a checkpoint{asked} in {home}, found steps {known or 'none'}; check the folder")
    sheet = _sheet(home, step)
    weights = _tensors(home, _weights_name(step), sheet)
    tensors = _tensors(home, _state_name(step), sheet) if _state_name(step) in sheet["files"] else {}
    state = {name: _join(part, tensors) for name, part in sheet["state"].items()}
    return Checkpoint(step, weights | state["extra"], state["optimizer"], state["scheduler"], dict(sheet["meta"]))


def list_checkpoints(folder: str | os.PathLike[str], check: bool = False) -> CheckpointList:
    """The checkpoints of a folder, and what is wrong with it.

    Args:
        folder: The folder.
        check: Also read every file and hold it against its checksum; otherwise only sizes are looked at.

    Raises:
        InputError: There is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = [save_checkpoint(folder, step, nn.Linear(2, 1)) for step in (0, 10, 20)]
        ...     _ = Path(folder, "notes.txt").write_text("mine")
        ...     Path(folder, "step-00000010.safetensors").unlink()
        ...     found = list_checkpoints(folder)
        >>> found.steps
        (0, 20)
        >>> for problem in found.problems:
        ...     print(problem)
        notes.txt is no file of a checkpoint
        step 10 does not count: step-00000010.safetensors is missing
    """
    home = _existing(folder)
    names = sorted(path.name for path in home.iterdir())
    matches = [match for match in (_NAME.fullmatch(name) for name in names) if match]
    problems = [
        name + (" was being written when its process ended" if name.endswith(".tmp") else " is no file of a checkpoint")
        for name in names
        if not _NAME.fullmatch(name)
    ]
    stated = {int(match[1]) for match in matches if match[2] == ".json"}
    for step in sorted({int(match[1]) for match in matches} - stated):
        problems.append(f"step {step} does not count: {_sheet_name(step)} is missing, so it was never finished")
    good: list[int] = []
    explained = {int(match[1]) for match in matches}
    for step in sorted(stated):
        try:
            sheet = _sheet(home, step)
            for name, expected in sheet["files"].items():
                _check_file(home / name, expected, check)
        except StoreError as error:
            problems.append(f"step {step} does not count: {error}")
            continue
        good.append(step)
        previous = sheet["previous"]
        if previous is not None and previous not in explained:
            explained.add(previous)
            problems.append(f"step {previous} is gone: step {step} was written after it")
    return CheckpointList(home, tuple(good), tuple(problems))


def weights_digest(model: nn.Module) -> str:
    """The SHA-256 that the file of the model's weights would have.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> before = weights_digest(net)
        >>> net.requires_grad_(False).bias.add_(1).shape, weights_digest(net) == before
        (torch.Size([1]), False)
    """
    return digest(_packed(model.state_dict()))


def stated_digest(folder: Path, step: int) -> str:
    """The SHA-256 of the weights of a checkpoint, as its JSON file states it.

    Example:
        >>> import tempfile
        >>> net = nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_checkpoint(folder, 0, net)
        ...     stated_digest(Path(folder), 0) == weights_digest(net)
        True
    """
    return str(_sheet(folder, step)["files"][_weights_name(step)]["sha256"])


def _weights_name(step: int) -> str:
    return f"step-{step:08d}.safetensors"


def _state_name(step: int) -> str:
    return f"step-{step:08d}.state.safetensors"


def _sheet_name(step: int) -> str:
    return f"step-{step:08d}.json"


def _steps(home: Path) -> list[int]:
    if not home.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in home.iterdir())
    return [int(match[1]) for match in matches if match and match[2] == ".json"]


def _existing(folder: str | os.PathLike[str]) -> Path:
    home = Path(folder).absolute()
    if not home.is_dir():
        raise InputError(f"expected a folder of checkpoints, got {home}, which is none; check the path")
    return home


def _sheet(home: Path, step: int) -> dict[str, Any]:
    path = home / _sheet_name(step)
    sheet = read_document(path, _FORMAT, _VERSION)
    if sheet.get("step") != step or _weights_name(step) not in sheet.get("files", {}):
        raise StoreError(f"{path} states another step than its name does; restore its name, or delete it")
    return sheet


def _check_file(path: Path, expected: Mapping[str, Any], check: bool) -> None:
    if not path.is_file():
        raise StoreError(f"{path.name} is missing")
    if check:
        read_bytes(path, expected)
    elif path.stat().st_size != expected["bytes"]:
        raise StoreError(f"{path.name} has {path.stat().st_size} bytes in place of {expected['bytes']}")


def _tensors(home: Path, name: str, sheet: Mapping[str, Any]) -> dict[str, Any]:
    data = read_bytes(home / name, sheet["files"][name])
    try:
        return dict(load(data))
    except SafetensorError as error:
        raise StoreError(f"{home / name} is no safetensors file: {error}") from error


def _packed(tensors: Mapping[str, Any]) -> bytes:
    # Copies, as safetensors refuses tensors that share memory, such as tied weights.
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items() if isinstance(t, Tensor)}
    return save(whole)


def _split(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as JSON, its tensors moved to `tensors`."""
    if isinstance(value, Tensor):
        tensors[name] = value
        # Products with a transposed matrix are rounded in another way, so the order in memory is part of the state.
        return {"$tensor": name} if value.is_contiguous() else {"$tensor": name, "$strides": list(value.stride())}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _split(item, f"{name}.{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str | int) for key in value):
            pairs = [[key, _split(item, f"{name}.{key}", tensors)] for key, item in value.items()]
            return {"$counter" if isinstance(value, Counter) else "$pairs": pairs}
    if isinstance(value, tuple | list):
        items = [_split(item, f"{name}.{k}", tensors) for k, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    raise InputError(
        f"expected tensors, numbers, text and nests of them in the state to keep, got {type(value).__name__} at {name}"
    )


def _join(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Inverse of `_split`."""
    if isinstance(value, list):
        return [_join(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return _laid_out(tensors[value["$tensor"]], value.get("$strides"))
    if value.keys() == {"$tuple"}:
        return tuple(_join(item, tensors) for item in value["$tuple"])
    if value.keys() in ({"$pairs"}, {"$counter"}):
        ((kind, pairs),) = value.items()
        content = {key: _join(item, tensors) for key, item in pairs}
        return Counter(content) if kind == "$counter" else content
    return {key: _join(item, tensors) for key, item in value.items()}


def _laid_out(tensor: Tensor, strides: list[int] | None) -> Tensor:
    """The tensor in another order in memory, where that is one without gaps and overlaps."""
    if strides is None or sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + 1 != tensor.numel():
        return tensor
    return torch.empty_strided(tuple(tensor.shape), strides, dtype=tensor.dtype).copy_(tensor)


def _check_fits(weights: Mapping[str, Any], model: nn.Module) -> None:
    own = model.state_dict()
    missing = [name for name in own if name not in weights]
    foreign = sorted(name for name in weights if name not in own)
    other = [
        f"{name} {_like(weights[name])} for {_like(value)}"
        for name, value in own.items()
        if name in weights and _like(weights[name]) != _like(value)
    ]
    if missing or foreign or other:
        parts = [f"without {missing[:8]}" if missing else "", f"with {foreign[:8]}" if foreign else ""]
        parts.append(f"of other shapes or types: {', '.join(other[:8])}" if other else "")
        raise InputError(
            f"expected weights of this model, got those of another, {'; '.join(p for p in parts if p)}; build the "
            "model as it was when the checkpoint was written"
        )


def _like(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def _check_groups(state: Mapping[str, Any], optimizer: Any) -> None:
    stored = [len(group["params"]) for group in state.get("param_groups", [])]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if stored != own:
        raise InputError(
            f"expected the state of an optimizer with groups of {own} parameters, got one with groups of {stored}; "
            "build the optimizer as it was when the checkpoint was written"
        )
