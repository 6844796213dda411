"""Which jobs of a `map` wait, run, are done or were lost: what all executors that run several at a time share."""

from __future__ import annotations

import heapq
import pickle
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

from crunode.core.deadline import Deadline
from crunode.core.logs import log
from crunode.errors import DeadlineReached, EstimationError, InputError

__all__ = ["Ledger", "pickled"]

_CAUSE = "often the memory ran out: use fewer workers, or run it with Serial() to see"


class Ledger:
    """The state of the jobs of one `map`.

    Jobs are begun in order, and a lost one before all others. After an error, and after the deadline, only jobs before
    the first one without a result matter, as in a serial run; those that were begun are ended all the same.

    Args:
        jobs: The jobs.
        retries: How often a job is run again after its worker was lost.
        until: When to begin no more; None for never.

    Example:
        >>> ledger = Ledger(["a", "b"], retries=1)
        >>> ledger.begin(), ledger.begin(), ledger.begin()
        (0, 1, None)
        >>> ledger.lost(0, "signal 9")
        >>> ledger.begin()
        0
        >>> ledger.finish(0, (True, "result of a"))
        >>> ledger.result(0)
        'result of a'
    """

    def __init__(self, jobs: Sequence[Any], *, retries: int, until: Deadline | None = None) -> None:
        self.jobs, self.retries, self.until = jobs, retries, until
        self.done: dict[int, tuple[bool, Any]] = {}
        self._waiting = list(range(len(jobs)))  # a heap: lost jobs come back to the front
        self._losses = [0] * len(jobs)
        self._running: set[int] = set()
        self._stop = len(jobs)  # the first job that failed

    def waiting(self) -> int:
        """Number of jobs that are to be begun."""
        if self.until is not None and self.until.passed:
            return 0
        if self._stop == len(self.jobs):
            return len(self._waiting)
        return sum(job < self._stop for job in self._waiting)

    def begin(self) -> int | None:
        """The next job to begin; None when there is none to begin now."""
        if not self.waiting():
            return None
        job = heapq.heappop(self._waiting)
        self._running.add(job)
        return job

    def finish(self, job: int, answer: tuple[bool, Any]) -> None:
        """Take the answer `(good, value)` to a job."""
        self._running.discard(job)
        good, value = answer
        if self.until is not None and isinstance(value, DeadlineReached):
            return  # it stopped halfway, where it can go on; the others shall come to such a place too
        self.done[job] = answer
        self._stop = self._stop if good else min(self._stop, job)
        log("job done" if good else "job failed", job=job, error=None if good else repr(value))

    def lost(self, job: int, reason: str) -> None:
        """Put a job back whose worker was lost; after too many times it has failed."""
        self._running.discard(job)
        self._losses[job] += 1
        log("worker lost", job=job, times=self._losses[job], reason=reason)
        if self._losses[job] <= self.retries:
            heapq.heappush(self._waiting, job)
            return
        self.done[job] = (
            False,
            EstimationError(
                f"expected job {job} of {len(self.jobs)} ({reprlib.repr(self.jobs[job])}) to return, but its worker "
                f"process ended {self._losses[job]} times ({reason}); {_CAUSE}"
            ),
        )

    def pending(self, job: int) -> bool:
        """Whether the answer to a job is still to come; raises when the deadline keeps it from being begun.

        Raises:
            DeadlineReached: It has not been begun, and all that were have ended.
        """
        if job in self.done:
            return False
        if self.until is not None and self.until.passed and not self._running:
            log("deadline", done=job, of=len(self.jobs))
            raise self.until.error(f"{len(self.jobs) - len(self._waiting)} of {len(self.jobs)} jobs begun")
        return True

    def result(self, job: int) -> Any:
        """The result of a job, which is then forgotten; raises its error where it has one."""
        good, value = self.done.pop(job)
        if not good:
            raise value
        return value


def pickled(fn: Callable[[Any], Any], job: Any, index: int, until: Deadline | None = None) -> bytes:
    """A job on its way to another process, with the seconds it may take.

    Plain pickles: those of multiprocessing would move the caller's tensors to shared memory.

    Raises:
        InputError: Something cannot be pickled.

    Example:
        >>> len(pickle.loads(pickled(abs, -3, 0)))
        3
    """
    parts = []
    for what, value in (("function", fn), (f"job {index}", job)):
        try:
            parts.append(pickle.dumps(value))
        except Exception as error:
            raise InputError(
                f"expected a {what} that can be sent to another process, got {reprlib.repr(value)}, which "
                f"cannot be pickled ({error}); use functions and classes defined at the top of a module in "
                "place of lambdas and local ones, or run with Serial()"
            ) from error
    return pickle.dumps([*parts, pickle.dumps(until)])
