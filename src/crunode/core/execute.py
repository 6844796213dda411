"""Where jobs run: in this process, or in several. Anything with the same `map` will do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from crunode.core.deadline import Deadline, working_until
from crunode.core.ledger import Ledger, pickled
from crunode.core.logs import log
from crunode.core.workers import Loss, Pool
from crunode.errors import EstimationError, InputError

__all__ = ["Executor", "Processes", "Serial", "check_counts"]

J = TypeVar("J")
R = TypeVar("R")


@runtime_checkable
class Executor(Protocol):
    """Runs one function over many jobs.

    The contract: results come in the order of the jobs; when a job raises, the results of the jobs before it
    come first, then its error; a job whose worker was lost is run again, so jobs must be safe to repeat.
    """

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order."""
        ...


@dataclass(frozen=True)
class Serial:
    """Runs the jobs one after the other in this process.

    Args:
        until: When to begin no more jobs.

    Example:
        >>> list(Serial().map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    until: Deadline | None = None

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order.

        Raises:
            DeadlineReached: There are jobs left at the deadline.
        """
        for index, job in enumerate(jobs):
            if self.until is not None and self.until.passed:
                log("deadline", done=index, of=len(jobs))
                raise self.until.error(f"{index} of {len(jobs)} jobs done")
            with working_until(self.until):
                result = fn(job)
            log("job done", job=index)
            yield result


@dataclass(frozen=True)
class Processes:
    """Runs the jobs in fresh processes of this machine.

    Function, jobs and results travel as pickles, so the function has to be found under its name in a module,
    and a script must start the work under `if __name__ == "__main__":`. Results equal those of `Serial` bit
    for bit when this process has the same number of threads. Workers end with the iterator, with an error,
    with Ctrl-C, and when this process is killed.

    Args:
        workers: Number of processes; by default the processor cores divided by `threads`.
        threads: Threads of torch in each worker.
        retries: How often a job is run again after its worker was lost.
        until: When to begin no more jobs; those that have begun are ended.

    Example:
        >>> list(Processes(workers=1).map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    workers: int | None = None
    threads: int = 1
    retries: int = 2
    until: Deadline | None = None

    def __post_init__(self) -> None:
        check_counts(self)

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order.

        Raises:
            InputError: The function or a job cannot be pickled.
            EstimationError: A job lost its worker more than `retries` times.
            DeadlineReached: There are jobs left at the deadline.
        """
        jobs = list(jobs)
        if jobs:
            pickled(fn, jobs[0], 0)  # before any process starts
        return self._map(fn, jobs)

    def _map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        most = self.workers or max(cores // self.threads, 1)
        ledger = Ledger(jobs, retries=self.retries, until=self.until)
        stillborn = 0
        with Pool(self.threads) as pool:
            for index in range(len(jobs)):
                while ledger.pending(index):
                    pool.grow(min(most, pool.busy() + ledger.waiting()))
                    for worker in pool.idle():
                        if (job := ledger.begin()) is not None:
                            worker.take(job, pickled(fn, jobs[job], job, self.until))
                    for event in pool.events(None if self.until is None else self.until.left + _SLACK):
                        if not isinstance(event, Loss):
                            ledger.finish(*event)
                        elif event.job is not None:
                            ledger.lost(event.job, event.reason())
                        else:
                            stillborn += 1
                            if stillborn > self.retries:
                                raise EstimationError(_STILLBORN.format(event.reason()))
                yield ledger.result(index)
            pool.dismiss()


_SLACK = 0.05  # seconds to wait beyond a deadline, so that it has passed when one looks
_STILLBORN = (
    "expected worker processes to start, but each ended before its first job ({}); "
    "start the work of a script under `if __name__ == '__main__':`, or use Serial()"
)


def check_counts(executor: object) -> None:
    """Refuse an executor with a wrong number of workers, threads or retries.

    Raises:
        InputError: One is no whole number, or too small.
    """
    for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
        value = getattr(executor, name)
        if name == "workers" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"expected {name} to be an integer of at least {least}, got {value!r}")
    until = getattr(executor, "until", None)
    if until is not None and not isinstance(until, Deadline):
        raise InputError(f"expected until as a Deadline, got {until!r}; give Deadline(seconds)")
