"""`crunode sweep`: one call of `crunode.sweep`, and the picture of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crunode._extras import need
from crunode.errors import InputError

if TYPE_CHECKING:
    from crunode.core.execute import Executor
    from crunode.estimators.sweep_result import Sweep

__all__ = ["check_picture", "run_sweep"]

_PICTURES = (".png", ".pdf", ".svg")
_SETTINGS = ("chains", "draws", "warmup", "kernel")


def run_sweep(
    target: str,
    axes: Mapping[str, list[float] | None],
    settings: Sequence[str] = (),
    weights: Path | None = None,
    *,
    store: Path | None = None,
    seed: int = 0,
    executor: Executor | None = None,
    plot: Path | None = None,
) -> Sweep:
    """Sweep over the landscape that `target` names, and draw it.

    Args:
        target: "module:factory".
        axes: Values for steps, precisions and nbetas; an axis without any is left to the sweep.
        settings: Words "key=value".
        weights: Weights to look at instead of those of the landscape.
        store: Where finished cells are kept.
        seed: All randomness comes from it.
        executor: Where cells run.
        plot: The picture to write.

    Returns:
        The sweep.

    Raises:
        InputError: A word is wrong, or the picture could not be written; said before anything is computed.

    Example:
        >>> run_sweep("mypkg.exp:landscape", {}, plot=Path("sweep.xls"))
        Traceback (most recent call last):
        crunode.errors.InputError: expected a picture as .png, .pdf or .svg, got sweep.xls
    """
    check_picture(plot)
    from crunode.jobs.call import Call
    from crunode.jobs.loading import options_of, settings_from
    from crunode.jobs.rerunning import record_call

    given = settings_from(settings)
    foreign = [key for key in options_of(given) if key not in _SETTINGS]
    if foreign:
        hint = f"; values of it go on an axis, as --{foreign[0]}" if foreign[0] in ("nbeta", "precision") else ""
        raise InputError(f"expected settings among {', '.join(_SETTINGS)} for a sweep, got {foreign[0]!r}{hint}")
    found = Call("sweep", target, seed, given, weights, axes=axes).sweep(store, executor)
    record_call(store, "sweep", target, settings, seed, weights, {name: each or None for name, each in axes.items()})
    if plot is not None:
        found.plot().savefig(plot)
    return found


def check_picture(plot: Path | None) -> None:
    """Refuse a picture that could not be written, before anything is computed.

    Raises:
        InputError: It is of another kind, or its folder is not there.
    """
    if plot is None:
        return
    if plot.suffix not in _PICTURES:
        raise InputError(f"expected a picture as .png, .pdf or .svg, got {plot.name}")
    if not plot.absolute().parent.is_dir():
        raise InputError(f"expected a picture in a folder that is there, got {plot}; make the folder first")
    need("matplotlib.figure", extra="plot")
