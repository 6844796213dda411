"""Where a command runs and until when: the options `--on`, `--workers` and `--deadline`, read in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crunode.errors import InputError

if TYPE_CHECKING:
    from crunode.core.execute import Executor

__all__ = ["DeadlineOption", "On", "Workers", "executor_from"]

On = Annotated[
    str | None, typer.Option("--on", metavar="WHERE", help="serial, processes[:N], ray or ray://ADDRESS[,gpus=0.5].")
]
Workers = Annotated[int, typer.Option(help="The same as --on processes:N.")]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="Stop after 90s, 10m, 1h30m; the same command goes on.")
]

_FORMS = "serial, processes, processes:4, ray, ray://10.0.0.1:6379 or ray,gpus=0.5,retries=5"


def executor_from(on: str | None, workers: int = 1, deadline: str | None = None) -> Executor | None:
    """The executor that words name; None for the default of the call.

    Args:
        on: "serial", "processes" or "processes:N", "ray" or "ray://ADDRESS"; Ray's `gpus`, `cpus`, `retries` and
            `workers` go behind commas.
        workers: Processes, where `on` is left out.
        deadline: When to stop, as "10m".

    Raises:
        InputError: A word is wrong, or `on` and `workers` are both given.

    Example:
        >>> executor_from("ray://auto,gpus=0.5")
        Ray(address='auto', gpus_per_job=0.5, ...)
        >>> executor_from("proceses")
        Traceback (most recent call last):
        crunode.errors.InputError: expected --on as serial, processes, ..., got 'proceses'
    """
    from crunode.core.deadline import Deadline, seconds_of
    from crunode.core.execute import Processes, Serial

    until = None if deadline is None else Deadline(seconds_of(deadline))
    if on is None:
        if workers != 1:
            return Processes(workers, until=until)
        return None if until is None else Serial(until=until)
    if workers != 1:
        raise InputError(f"expected --on or --workers, got both; --on processes:{workers} says the same")
    head, *parts = on.strip().split(",")
    name, mark, rest = head.partition(":")
    if name == "serial" and not mark and not parts:
        return Serial(until=until)
    if name == "processes" and not parts and (rest or not mark):
        return Processes(_number(on, rest, int) if mark else None, until=until)
    if name == "ray" and (not mark or rest.startswith("//")):
        from crunode.core.execute_ray import Ray

        return Ray(address=rest[2:] or None, until=until, **_settings(on, parts))
    raise InputError(f"expected --on as {_FORMS}, got {on!r}")


_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "gpus": ("gpus_per_job", float),
    "cpus": ("cpus_per_job", float),
    "retries": ("retries", int),
    "workers": ("workers", int),
}


def _settings(on: str, parts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        key, equals, text = part.strip().partition("=")
        if not equals or key not in _SETTINGS or _SETTINGS[key][0] in found:
            raise InputError(f"expected {', '.join(f'{k}=...' for k in _SETTINGS)} once each behind ray, got {on!r}")
        name, kind = _SETTINGS[key]
        found[name] = _number(on, text, kind)
    return found


def _number(on: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"expected a number in place of {text!r} in --on {on!r}; it reads {_FORMS}") from None
