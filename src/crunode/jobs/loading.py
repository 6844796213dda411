"""Landscapes, weights and settings named by text, as a command line has them."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import pickle
import sys
import tomllib
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.errors import CrunodeError, InputError
from crunode.sampling.tuning import KERNELS

__all__ = ["landscape_from", "options_from", "options_of", "settings_from", "weights_from"]

_OPTIONS = ("chains", "draws", "warmup", "nbeta", "precision", "layout", "budget", "labels", "target", "polish")


def landscape_from(target: str) -> Landscape:
    """Call the factory named by "module:factory", the current folder being importable.

    Args:
        target: A module's dotted name and the name of a function in it, which takes no arguments.

    Raises:
        InputError: There is no such module or function, it raised, or it did not return a `Landscape`.

    Example:
        >>> landscape_from("crunode.examples.toys:normal_crossing")
        Traceback (most recent call last):
        crunode.errors.InputError: calling crunode.examples.toys:normal_crossing raised TypeError: ...
    """
    module_name, _, factory_name = target.partition(":")
    if not module_name or not factory_name.isidentifier():
        raise InputError(f"expected a target like mypkg.exp:landscape, got {target!r}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except CrunodeError:
        raise
    except Exception as error:
        raise InputError(f"could not import {module_name}: {_where(error)}") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        names = [name for name in vars(module) if callable(getattr(module, name)) and not name.startswith("_")]
        near = difflib.get_close_matches(factory_name, names, n=3) or sorted(names)[:5]
        raise InputError(f"expected a function {factory_name!r} in {module_name}, got none; there are {near}")
    try:
        land = factory()
    except CrunodeError:
        raise
    except Exception as error:
        raise InputError(f"calling {target} raised {_where(error)}") from error
    if not isinstance(land, Landscape):
        raise InputError(
            f"expected {target} to return a crunode.Landscape, got {type(land).__name__}; return "
            "Landscape(model, data, loss)"
        )
    return land


def _where(error: BaseException) -> str:
    """What an error says, and the line of the user's own code that it came from."""
    text = f"{type(error).__name__}: {error}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    last = frames[-1] if len(frames) > 1 else None
    return text if last is None else f"{text} ({Path(last.filename).name}, line {last.lineno})"


def weights_from(path: Path) -> dict[str, Tensor]:
    """Named tensors from a .safetensors file, or from a .pt or .pth file that holds tensors only.

    Args:
        path: The file. Nothing in it is executed.

    Raises:
        InputError: The file is absent, or of another kind.

    Example:
        >>> weights_from(Path("weights.h5"))
        Traceback (most recent call last):
        crunode.errors.InputError: expected weights as .safetensors, .pt or .pth, got weights.h5
    """
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise InputError(f"expected weights as .safetensors, .pt or .pth, got {path.name}")
    if not path.is_file():
        raise InputError(f"expected a file with weights, got {path}, which is not there")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (Exception, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"expected named tensors in {path}, but it could not be read ({reason}); save model.state_dict(), best "
            "with safetensors.torch.save_file"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"expected named tensors in {path}, got {type(content).__name__}; save model.state_dict()")
    return {str(name): value for name, value in content.items()}


def options_from(pairs: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments of `llc` from words "key=value".

    Values are read as TOML (numbers, text in quotes, lists); a word that is no TOML stands for itself. The fields of a
    kernel go beside its name: kernel=SGLD, step=1e-5, batch=64.

    Args:
        pairs: The words.

    Raises:
        InputError: A key is unknown or given twice, or a kernel field comes without a kernel.

    Example:
        >>> options_from(["chains=8", "nbeta=wbic", "kernel=SGLD", "step=1e-5"])
        {'chains': 8, 'nbeta': 'wbic', 'kernel': SGLD(step=1e-05, batch=None)}
    """
    return options_of(settings_from(pairs))


def settings_from(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings by name from words "key=value"; see `options_from`.

    Raises:
        InputError: A word has another form, or comes twice.

    Example:
        >>> settings_from(["chains=8", "kernel=SGLD"])
        {'chains': 8, 'kernel': 'SGLD'}
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or key in given:
            raise InputError(f"expected each setting once, as key=value, got {pair!r}{' again' if equals else ''}")
        given[key] = _value(text.strip())
    return given


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `llc` from settings by name; see `options_from`.

    Raises:
        InputError: A key is unknown, or a kernel field comes without a kernel.

    Example:
        >>> options_of({"kernel": "SGLD", "step": 1e-5})
        {'kernel': SGLD(step=1e-05, batch=None)}
    """
    given = dict(settings)
    name = given.pop("kernel", None)
    if name is not None and (not isinstance(name, str) or name not in KERNELS):
        raise InputError(f"expected a kernel among {', '.join(KERNELS)}, got {name!r}")
    fields = [f.name for f in dataclasses.fields(KERNELS[name])] if name is not None else []
    known = [*_OPTIONS, "kernel", *fields]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            if name is None and any(key == f.name for kernel in KERNELS.values() for f in dataclasses.fields(kernel)):
                hint = f"; {key} belongs to a kernel: name one too, as in --set kernel=SGLD"
            raise InputError(f"expected settings among {', '.join(known)}, got {key!r}{hint}")
    options = {key: value for key, value in given.items() if key in _OPTIONS}
    if name is not None:
        options["kernel"] = KERNELS[name](**{key: value for key, value in given.items() if key in fields})
    return options


def _value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None if text in ("null", "None") else text
    if list(value) != ["value"]:  # a line break would smuggle in a second setting
        raise InputError(f"expected one value, got {text!r}")
    content = value["value"]
    return tuple(content) if isinstance(content, list) else content
