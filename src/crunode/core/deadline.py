"""A time to stop at: units of work that have begun are ended, no other is begun, and the same call goes on later."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from crunode.errors import DeadlineReached, InputError

__all__ = ["Deadline", "check_deadline", "seconds_of", "working_until"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_end: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@dataclass(frozen=True)
class Deadline:
    """So many seconds from now on, by a clock that nobody can set.

    Args:
        seconds: How many.

    Example:
        >>> Deadline(60).passed, Deadline(0).passed
        (False, True)
    """

    seconds: float
    end: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not number or not 0 <= self.seconds < 1e9:
            raise InputError(f"expected a deadline as seconds from 0 up, got {self.seconds!r}")
        object.__setattr__(self, "end", time.monotonic() + self.seconds)

    @property
    def left(self) -> float:
        """Seconds that are left; none are less than 0."""
        return max(self.end - time.monotonic(), 0.0)

    @property
    def passed(self) -> bool:
        """Whether none are left."""
        return self.left == 0.0

    def __reduce__(self) -> tuple[type[Deadline], tuple[float]]:
        return type(self), (self.left,)  # another process may have another clock

    def error(self, what: str = "") -> DeadlineReached:
        """What is raised when it has passed."""
        return DeadlineReached(
            f"stopped at the deadline of {self.seconds:g} s{f', {what}' if what else ''}; what was finished is kept "
            "where a store was given, and the same command with it goes on from there"
        )


@contextlib.contextmanager
def working_until(deadline: Deadline | None) -> Iterator[None]:
    """Let `check_deadline` inside the block look at `deadline`; None leaves the one around it."""
    if deadline is None:
        yield
        return
    token = _end.set(deadline)
    try:
        yield
    finally:
        _end.reset(token)


def check_deadline() -> None:
    """Raise `DeadlineReached` when the deadline has passed; to be called where all that was done is stored.

    Example:
        >>> with working_until(Deadline(0)):
        ...     check_deadline()
        Traceback (most recent call last):
        crunode.errors.DeadlineReached: stopped at the deadline of 0 s; ...
    """
    deadline = _end.get()
    if deadline is not None and deadline.passed:
        raise deadline.error()


def seconds_of(text: str) -> float:
    """Seconds from words such as "90", "90s", "10m" or "1h30m".

    Raises:
        InputError: It is something else.

    Example:
        >>> seconds_of("1h30m")
        5400.0
    """
    parts = _PART.findall(text) if isinstance(text, str) and len(text) < 40 else []
    units = [unit for _, unit in parts]
    if "".join(f"{n}{u}" for n, u in parts) != text or not parts or (len(parts) > 1 and "" in units):
        raise InputError(f"expected a time such as 90s, 10m or 1h30m, got {str(text)[:40]!r}")
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
