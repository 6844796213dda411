"""At which steps of a training something is measured."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from crunode.errors import InputError

__all__ = ["Every", "Schedule", "Steps", "as_schedule", "every", "log_spaced"]


@runtime_checkable
class Schedule(Protocol):
    """Says whether something is due."""

    def due(self, last: int, step: int) -> bool:
        """Whether a step after `last` and up to `step` is on the schedule; `last` is -1 at the start."""
        ...


@dataclass(frozen=True)
class Steps:
    """A list of steps, ascending.

    Example:
        >>> Steps((10, 100)).due(9, 10), Steps((10, 100)).due(10, 99), Steps((10, 100)).due(50, 120)
        (True, False, True)
    """

    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        whole = all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in self.steps)
        if not self.steps or not whole or any(a >= b for a, b in itertools.pairwise(self.steps)):
            raise InputError(
                f"expected steps as different whole numbers from 0 up in ascending order, got {_short(self.steps)}; "
                "sort them, as in at=sorted(set(steps))"
            )

    def due(self, last: int, step: int) -> bool:
        """Whether one of the steps lies after `last` and up to `step`."""
        return bisect.bisect_right(self.steps, step) > bisect.bisect_right(self.steps, last)


@dataclass(frozen=True)
class Every:
    """The multiples of a number.

    Example:
        >>> Every(10).due(-1, 0), Every(10).due(-1, 1), Every(10).due(9, 10)
        (True, False, True)
    """

    stride: int

    def __post_init__(self) -> None:
        _check_whole("the steps between two visits", self.stride, 1)

    def due(self, last: int, step: int) -> bool:
        """Whether a multiple lies after `last` and up to `step`; 0 counts for itself only, as many loops begin at 1."""
        return step == 0 or step // self.stride > max(last, 0) // self.stride


def every(stride: int) -> Every:
    """A schedule of steps 0, k, 2k and so on.

    Args:
        stride: The k.

    Example:
        >>> every(100).due(99, 100)
        True
    """
    return Every(stride)


def log_spaced(count: int, *, stop: int, start: int = 1) -> Steps:
    """A schedule of `count` different steps from `start` to `stop`, in nearly equal ratios.

    At the beginning, where equal ratios would repeat whole numbers, the steps follow one another.

    Args:
        count: How many.
        stop: The last one.
        start: The first one; with 0, the weights before training are the first, and 1 is the second.

    Raises:
        InputError: There are not that many whole numbers between the two.

    Example:
        >>> log_spaced(8, stop=1000).steps
        (1, 3, 8, 21, 55, 145, 381, 1000)
        >>> log_spaced(5, stop=4, start=0).steps
        (0, 1, 2, 3, 4)
    """
    for name, value, least in (("count", count, 2), ("start", start, 0), ("stop", stop, 1)):
        _check_whole(name, value, least)
    if stop - start + 1 < count:
        raise InputError(
            f"expected at least {count} whole numbers from start = {start} to stop = {stop}, got "
            f"{max(stop - start + 1, 0)}; ask for fewer visits"
        )
    steps = [start]
    while len(steps) < count:
        last, left = steps[-1], count - len(steps)
        wanted = round(last * (stop / last) ** (1 / left)) if last else 1 if left > 1 else stop
        # Each of those that are left needs a whole number of its own.
        steps.append(min(max(last + 1, wanted), stop - left + 1))
    return Steps(tuple(steps))


def as_schedule(given: Any) -> Schedule | None:
    """A schedule from what users write: one of them, a list of steps, or None for always.

    Raises:
        InputError: It is none of these.

    Example:
        >>> as_schedule([1, 10, 100])
        Steps(steps=(1, 10, 100))
    """
    if given is None or (isinstance(given, Schedule) and not isinstance(given, type)):
        return given
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        return Steps(tuple(given))
    raise InputError(
        f"expected a schedule such as log_spaced(40, stop=50_000) or every(100), or a list of steps, got {given!r}"
    )


def schedule_spec(schedule: Schedule | None) -> Any:
    """A schedule as JSON-able values."""
    if schedule is None:
        return None
    content = dict(vars(schedule)) if hasattr(schedule, "__dict__") else {}
    return {"kind": type(schedule).__name__, **{k: list(v) if isinstance(v, tuple) else v for k, v in content.items()}}


def _check_whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")


def _short(steps: tuple[Any, ...]) -> str:
    return f"{list(steps[:8])}{' …' if len(steps) > 8 else ''}"
