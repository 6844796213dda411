"""`crunode track`: probes along the checkpoints of a training."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from crunode.cli.on_option import DeadlineOption, On, Workers, executor_from
from crunode.cli.printing import print_json, quiet
from crunode.errors import InputError

__all__ = ["probes_from", "track"]


def track(
    target: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="A function that returns a Landscape.")],
    folder: Annotated[Path, typer.Argument(metavar="CHECKPOINT_DIR", help="A folder with checkpoints.")],
    probe: Annotated[
        list[str] | None, typer.Option(help="llc, trace, or MODULE:FUNCTION of your own; repeat it for more.")
    ] = None,
    at: Annotated[list[int] | None, typer.Option(help="A step to visit; repeat it. All when left out.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Settings of llc: chains, draws, nbeta, kernel, ..."),
    ] = None,
    retune_at: Annotated[list[int] | None, typer.Option(help="A step to tune settings anew at; repeat it.")] = None,
    store: Annotated[Path | None, typer.Option(help="Folder to keep visits in, or to resume from.")] = None,
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 0,
    on: On = None,
    workers: Workers = 1,
    deadline: DeadlineOption = None,
    skip_damaged: Annotated[bool, typer.Option("--skip-damaged", help="Use what is good of a damaged folder.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Picture to draw: .png, .pdf or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")] = False,
) -> None:
    """Follow llc and others through training, e.g. crunode track mypkg.exp:landscape runs/checkpoints --probe llc."""
    from crunode.cli.sweep_command import check_picture
    from crunode.jobs.loading import landscape_from
    from crunode.training.tracker import track as track_folder

    check_picture(plot)
    executor = executor_from(on, workers, deadline)
    with quiet(as_json):
        probes = probes_from(probe or ["llc"], settings or ())
        found = track_folder(
            landscape_from(target),
            folder,
            probes,
            at=sorted(set(at)) if at else None,
            retune_at=sorted(set(retune_at)) if retune_at else None,
            damaged="skip" if skip_damaged else "raise",
            executor=executor,
            store=store,
            seed=seed,
        )
        changes = {}
        for name in found.names:
            with contextlib.suppress(InputError):  # too few estimates to look for changes in
                changes[name] = found.transitions(name)
        if plot is not None:
            found.plot().savefig(plot)
    if as_json:
        print_json({**found.to_dict(), "transitions": {name: each.to_dict() for name, each in changes.items()}})
    else:
        print("\n".join([found.table(), *(str(each) for each in changes.values())]))
    raise typer.Exit(0 if found.is_ok else 1)


def probes_from(words: Sequence[str], settings: Sequence[str] = ()) -> dict[str, Any]:
    """Probes by name from words.

    Args:
        words: "llc", "trace" (of the Hessian), or "module:function", the current folder being importable.
        settings: Words "key=value" for llc.

    Raises:
        InputError: A word is unknown or comes twice, or there are settings without llc.

    Example:
        >>> list(probes_from(["llc", "trace"], ["chains=8"]))
        ['llc', 'trace']
        >>> probes_from(["lcl"])
        Traceback (most recent call last):
        crunode.errors.InputError: expected a probe as llc, trace or mypkg.exp:function, got 'lcl'
    """
    from crunode.curvature.traces import hessian_trace
    from crunode.estimators.coefficient import llc
    from crunode.jobs.loading import options_from

    options = options_from(settings)
    if options and "llc" not in words:
        raise InputError(f"expected settings with --probe llc, got {', '.join(options)} for {', '.join(words)}")
    known: dict[str, Any] = {"llc": functools.partial(llc, **options) if options else llc, "trace": hessian_trace}
    names = [word.rpartition(":")[2] for word in words]
    if len(set(names)) < len(names):
        raise InputError(f"expected each probe once, by a name of its own, got {', '.join(words)}")
    return {name: known[word] if word in known else _own(word) for name, word in zip(names, words, strict=True)}


def _own(word: str) -> Any:
    module_name, _, name = word.partition(":")
    if not module_name or not name.isidentifier():
        raise InputError(f"expected a probe as llc, trace or mypkg.exp:function, got {word!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:
        raise InputError(f"could not import the probe {word}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise InputError(f"expected a function Landscape -> Estimate at {word}, got {type(found).__name__}")
    return found
