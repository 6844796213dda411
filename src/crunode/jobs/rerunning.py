"""`rerun()`: the call behind a run folder made again, into a new folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Draws
from crunode.errors import InputError
from crunode.jobs.call import Call
from crunode.jobs.loading import settings_from
from crunode.store.atomic import digest
from crunode.store.calls import read_call, write_call
from crunode.store.catalog_scan import LEFTOVER
from crunode.store.documents import diff, dumps
from crunode.store.run_record import HEADERS, RunRecord, header_of, read_run

__all__ = ["Replay", "plan_rerun", "record_call", "rerun", "weights_mark"]

_AXES = ("steps", "precisions", "nbetas")


@dataclass(frozen=True)
class Replay:
    """How a run can be made again.

    Attributes:
        kind: "recipe", "llc", "sweep" or "draws".
        words: The call in words.
        imports: The `module:factory` whose code it runs; None where no code but crunode's and that of installed
            recipes runs.
        make: Makes it, into a folder and on an executor.
    """

    kind: str
    words: str
    imports: str | None
    make: Callable[[Path, Executor | None], Any]


def plan_rerun(folder: str | os.PathLike[str], *, landscape: Landscape | None = None) -> Replay:
    """See whether the call behind a run folder can be made again; nothing is computed or imported.

    Args:
        folder: The run folder.
        landscape: For draws that were made by a call from Python.

    Raises:
        InputError: It is no run folder, or something is missing; the message says what.
        StoreError: The folder is damaged.

    Example:
        >>> plan_rerun("no such folder")
        Traceback (most recent call last):
        crunode.errors.InputError: expected a run folder, got no such folder; ...
    """
    home = Path(folder).absolute()
    header = header_of(home)
    if header is None or LEFTOVER.fullmatch(home.name):
        raise InputError(f"expected a run folder, got {folder}; it has none of {', '.join(HEADERS)}")
    record = read_run(home, header)
    if record.status == "damaged":
        raise InputError(f"expected a run folder that can be read, got {folder}: {record.note}")
    if record.kind == "recipe":
        return _recipe(record)
    call = read_call(home) if landscape is None else None
    if call is not None:
        return _call(call, home)
    if record.kind == "draws" and landscape is not None:
        return _draws(record, landscape)
    raise InputError(f"cannot make {folder} again: {_MISSING[record.kind]}")


def rerun(
    folder: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    landscape: Landscape | None = None,
    trust: bool = False,
    executor: Any = None,
) -> Any:
    """Make the call behind a run folder again, with the settings that it has stored, into a new folder.

    Recipes are run again by name, size and seed. Runs of `crunode llc` and `crunode sweep` are made again from the
    `module:factory` that the command was given, which runs that code: only with `trust`. Draws of a call from Python
    need the landscape, which must be the one they were drawn on.

    Args:
        folder: The run folder.
        into: The new one; it must be absent or empty.
        landscape: Landscape of draws.
        trust: Whether the code that the folder names may be imported and called.
        executor: Where the work runs; the numbers do not depend on it.

    Returns:
        What the call returns: a `Run`, an `Estimate`, a `Sweep` or `Draws`.

    Raises:
        InputError: Something is missing; the message says what.
        StoreError: A folder is damaged, or the new one cannot be written.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from crunode.sampling.metropolis import HMC
        >>> from crunode.sampling.posterior import Posterior
        >>> from crunode.sampling.run import sample
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=100)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     kernel = HMC(step=1e-2, leaps=2)
        ...     one = sample(Posterior(land, 10.0), kernel, chains=1, draws=5, warmup=2, store=f"{root}/a")
        ...     other = rerun(f"{root}/a", f"{root}/b", landscape=land)
        >>> bool((one.arrays["excess"] == other.arrays["excess"]).all())
        True
    """
    replay = plan_rerun(folder, landscape=landscape)
    target = Path(into).absolute()
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise InputError(f"expected a new folder for the run, got {into}, which is there; choose another")
    if replay.imports is not None and not trust:
        raise InputError(
            f"making {folder} again runs the code of {replay.imports}, as the folder says; look at it, then repeat "
            "with trust=True (crunode rerun: --yes)"
        )
    return replay.make(target, executor)


def record_call(
    store: Path | None,
    command: str,
    target: str,
    settings: Sequence[str],
    seed: int,
    weights: Path | None = None,
    axes: Mapping[str, Any] | None = None,
) -> None:
    """Keep the call of a command in the run folder that it wrote, so that `rerun` can make it again.

    Args:
        store: The run folder; None for nowhere.
        command: "llc" or "sweep".
        target: The `module:factory` that it was given.
        settings: Its words "key=value".
        seed: Its seed.
        weights: Its weights, where it was given some.
        axes: Values on the axes of a sweep.
    """
    if store is None or header_of(store.absolute()) is None:
        return
    given = {"target": target, "settings": list(settings), "seed": seed, **(axes or {})}
    if weights is not None:
        given |= {"weights": str(weights.absolute()), "weights_sha256": weights_mark(weights)}
    write_call(store, command, given)


def weights_mark(path: Path) -> str:
    """SHA-256 of a file with weights, to know it again."""
    return digest(path.read_bytes())


_MISSING = {
    "draws": "the landscape is missing, since it was drawn by a call from Python; pass landscape= to cr.rerun",
    "sweep": "the landscape is missing, since it was made by a call from Python; repeat cr.sweep with another store",
    "training": "model, data and optimizer are not stored, only their settings; repeat the call with another store",
    "tracker": "landscape and probes are not stored, only their settings; repeat the call with another store",
}


def _recipe(record: RunRecord) -> Replay:
    from crunode.jobs.registry import recipe

    asked = record.settings
    name, version, size, seed = (asked.get(key) for key in ("recipe", "recipe_version", "size", "seed"))
    if not isinstance(name, str) or not isinstance(size, str) or record.seed is None:
        raise InputError("expected a recipe's name, size and seed in the folder, got others; it is damaged")
    found = recipe(name)
    if found.version != version:
        raise InputError(
            f"the folder holds version {version} of recipe {name}, and version {found.version} is installed; install "
            "the release that the folder's provenance names"
        )
    words = f"crunode recipe run {name} --size {size} --seed {seed}"
    return Replay("recipe", words, None, Call("recipe", name, record.seed, size=size).make)


def _call(call: Mapping[str, Any], home: Path) -> Replay:
    command, given = call.get("command"), call.get("arguments")
    if command not in ("llc", "sweep") or not isinstance(given, dict):
        raise InputError(f"expected a call of llc or sweep in {home}, got {str(command)[:80]!r}; the folder is damaged")
    settings = given.get("settings", [])
    words = isinstance(settings, list) and all(isinstance(word, str) for word in settings)
    weights = given.get("weights")
    plain = isinstance(given.get("target"), str) and (weights is None or isinstance(weights, str))
    axes = [given.get(name) for name in _AXES]
    if not words or not plain or not all(axis is None or isinstance(axis, list) for axis in axes):
        raise InputError(f"expected target, settings and weights as text in {home}, got others; the folder is damaged")
    shown = [f"crunode {command} {given['target']}", *(f"--set {word}" for word in settings)]
    for name, axis in zip(_AXES, axes, strict=True):
        shown += [f"--{name.removesuffix('s')} {value}" for value in axis or ()]
    shown += [f"--weights {weights}"] if weights is not None else []
    seed, values = given.get("seed", 0), dict(zip(_AXES, axes, strict=True))
    options = settings_from(settings)
    made = Call(command, given["target"], seed, options, None if weights is None else Path(weights), axes=values)
    return Replay(command, " ".join([*shown, f"--seed {seed}"]), given["target"], partial(_made, made, given))


def _draws(record: RunRecord, landscape: Landscape) -> Replay:
    asked = record.settings.get("asked")
    if not isinstance(asked, dict):
        raise InputError(
            "expected the settings that were asked for under spec.asked, got none; repeat the call by hand"
        )
    lines = diff(asked.get("landscape"), landscape.fingerprint())
    if lines:
        shown = "\n  ".join(lines[:10])
        raise InputError(f"expected the landscape that the draws are of, got another:\n  {shown}")
    if asked.get("observe"):
        names = ", ".join(map(str, asked["observe"]))
        raise InputError(f"the functions that were observed ({names}) are not stored; repeat cr.sample by hand")
    words = f"cr.sample with the settings {dumps({k: v for k, v in asked.items() if k != 'landscape'})}"
    return Replay("draws", words, None, partial(_run_draws, asked, landscape))


def _made(call: Call, kept: Mapping[str, Any], target: Path, executor: Executor | None) -> Any:
    if call.weights is not None and not call.weights.is_file():
        raise InputError(f"cannot make the run again: its weights {call.weights} are not there; put them back")
    if call.weights is not None and weights_mark(call.weights) != kept.get("weights_sha256"):
        raise InputError(f"cannot make the run again: its weights {call.weights} have changed; put the old ones back")
    found = call.make(target, executor)
    write_call(target, call.kind, kept)
    return found


def _run_draws(asked: Mapping[str, Any], landscape: Landscape, target: Path, executor: Executor | None) -> Draws:
    from crunode.sampling.posterior import Flat, Gaussian, Posterior
    from crunode.sampling.run import sample
    from crunode.sampling.tuning import KERNELS, kernel_of

    try:
        prior = asked["prior"]
        known = isinstance(prior, dict) and prior.keys() <= set(vars(Gaussian()))
        if prior != "flat" and not known:
            raise InputError("the prior is a function that is not stored; repeat cr.sample by hand")
        nbeta = tuple(asked["nbeta"]) if isinstance(asked["nbeta"], list) else asked["nbeta"]
        posterior = Posterior(landscape, nbeta, Flat() if prior == "flat" else Gaussian(**prior))
        kernel = None
        if asked["kernel"] is not None:
            if asked["kernel"]["name"] not in KERNELS:
                raise InputError(
                    f"the kernel {asked['kernel']['name']!r} is not one of crunode; repeat the call by hand"
                )
            kernel = kernel_of(asked["kernel"])
        counts = {key: asked[key] for key in ("chains", "draws", "warmup", "budget", "seed", "checks")}
        keep = tuple(asked["keep"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"expected the settings of cr.sample under spec.asked, got others ({error!r})") from error
    return sample(posterior, kernel, store=target, executor=executor, keep=keep, **counts)
