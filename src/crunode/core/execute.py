"""Where jobs run: in this process, or in several. Anything with the same `map` will do."""

from __future__ import annotations

import heapq
import os
import pickle
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from crunode.core.workers import Loss, Pool
from crunode.errors import EstimationError, InputError

__all__ = ["Executor", "Processes", "Serial"]

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

    Example:
        >>> list(Serial().map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order."""
        for job in jobs:
            yield fn(job)


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

    Example:
        >>> list(Processes(workers=1).map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    workers: int | None = None
    threads: int = 1
    retries: int = 2

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            value = getattr(self, name)
            if name == "workers" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"expected {name} to be an integer of at least {least}, got {value!r}")

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order.

        Raises:
            InputError: The function or a job cannot be pickled.
            EstimationError: A job lost its worker more than `retries` times.
        """
        jobs = list(jobs)
        if jobs:
            _pickled(fn, jobs[0], 0)  # before any process starts
        return self._map(fn, jobs)

    def _map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        most = self.workers or max(cores // self.threads, 1)
        waiting = list(range(len(jobs)))  # a heap: lost jobs come back to the front
        losses = [0] * len(jobs)
        stillborn = 0
        done: dict[int, tuple[bool, Any]] = {}
        with Pool(self.threads) as pool:
            for index in range(len(jobs)):
                while index not in done:
                    # After an error only the jobs before it matter, as in a serial run.
                    stop = min((job for job, (good, _) in done.items() if not good), default=len(jobs))
                    pool.grow(min(most, pool.busy() + sum(job < stop for job in waiting)))
                    for worker in pool.idle():
                        if waiting and waiting[0] < stop:
                            job = heapq.heappop(waiting)
                            worker.take(job, _pickled(fn, jobs[job], job))
                    for event in pool.events():
                        if not isinstance(event, Loss):
                            done[event[0]] = event[1]
                        elif event.job is None:
                            stillborn += 1
                            if stillborn > self.retries:
                                raise EstimationError(_STILLBORN.format(event.reason()))
                        else:
                            losses[event.job] += 1
                            heapq.heappush(waiting, event.job)
                            if losses[event.job] > self.retries:
                                waiting.remove(event.job)
                                done[event.job] = False, _obituary(event, jobs, losses[event.job])
                good, value = done.pop(index)
                if not good:
                    raise value
                yield value
            pool.dismiss()


_STILLBORN = (
    "expected worker processes to start, but each ended before its first job ({}); "
    "start the work of a script under `if __name__ == '__main__':`, or use Serial()"
)


def _obituary(loss: Loss, jobs: Sequence[Any], times: int) -> EstimationError:
    return EstimationError(
        f"expected job {loss.job} of {len(jobs)} ({reprlib.repr(jobs[loss.job or 0])}) to return, but its "
        f"worker process ended {times} times ({loss.reason()}); often the memory ran out: use fewer workers, "
        "or run it with Serial() to see"
    )


def _pickled(fn: Callable[[Any], Any], job: Any, index: int) -> bytes:
    """Plain pickles: those of multiprocessing would move the caller's tensors to shared memory."""
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
    return pickle.dumps(parts)
