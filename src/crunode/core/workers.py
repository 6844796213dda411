"""Worker processes that end when they should: with their pool, on request, and with their parent."""

from __future__ import annotations

import contextlib
import os
import pickle
import reprlib
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from typing import Any

from crunode.core.deadline import working_until
from crunode.errors import EstimationError, InputError

__all__ = ["Loss", "Pool", "Worker", "answer", "loaded"]


@dataclass(frozen=True)
class Loss:
    """A worker that ended by itself, and the job it had."""

    job: int | None
    exitcode: int | None

    def reason(self) -> str:
        """How the process ended."""
        code = self.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


class Worker:
    """A process and the channel to it."""

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self.channel, theirs = context.Pipe()
        # Not a daemon: those may not have children, and a job may load data in processes of its own.
        self.process = context.Process(target=_work, args=(theirs, threads), daemon=False)
        self.process.start()
        theirs.close()
        self.ready = False
        self.job: int | None = None

    def take(self, job: int, payload: bytes) -> None:
        """Send a job to a worker that is ready and has none."""
        self.job = job
        with contextlib.suppress(OSError):  # it is gone, which the next event tells
            self.channel.send_bytes(payload)

    def end(self, *, grace: float) -> None:
        """End the process: after `grace` seconds to end by itself it is terminated, then killed."""
        self.channel.close()
        if grace:
            self.process.join(grace)
        self.process.terminate()
        self.process.join(5)
        self.process.kill()
        self.process.join()
        self.process.close()


class Pool:
    """The living workers; none outlives the block."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.workers: list[Worker] = []
        # An iterator that is never finished must not keep the interpreter from its exit.
        self._finalize = weakref.finalize(self, _end_all, self.workers)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._finalize()

    def busy(self) -> int:
        """Number of workers that have a job."""
        return sum(worker.job is not None for worker in self.workers)

    def idle(self) -> list[Worker]:
        """Workers that wait for a job."""
        return [worker for worker in self.workers if worker.ready and worker.job is None]

    def grow(self, size: int) -> None:
        """Start workers until there are `size`."""
        while len(self.workers) < size:
            self.workers.append(Worker(self.threads))

    def dismiss(self) -> None:
        """Let all workers, which have no jobs left, end by themselves."""
        while self.workers:
            self.workers.pop().end(grace=5)

    def events(self, seconds: float | None = None) -> Iterator[Loss | tuple[int, tuple[bool, Any]]]:
        """Wait for news, at most so long: answers to jobs as `(job, (good, value))`, and workers that were lost."""
        arrived = connection.wait([worker.channel for worker in self.workers], seconds)
        for worker in [worker for worker in self.workers if worker.channel in arrived]:
            try:
                data = worker.channel.recv_bytes()
            except (EOFError, OSError):
                self.workers.remove(worker)
                worker.process.join(5)
                loss = Loss(worker.job, worker.process.exitcode)
                worker.end(grace=0)
                if worker.job is not None or not worker.ready:
                    yield loss
                continue
            job, worker.job = worker.job, None
            if job is None:
                worker.ready = True
            else:
                yield job, loaded(data)


def _end_all(workers: list[Worker]) -> None:
    while workers:
        workers.pop().end(grace=0)


def loaded(data: bytes) -> tuple[bool, Any]:
    """The `(good, value)` that `answer` made the bytes of."""
    try:
        good, value = pickle.loads(data)
    except Exception as error:
        return False, InputError(f"expected a result that can be unpickled, got {error!r}; return plain values")
    return good, value


def _work(channel: connection.Connection, threads: int) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    os.environ.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the parent has gone or has no more jobs
        channel.send_bytes(b"")
        while True:
            channel.send_bytes(answer(channel.recv_bytes(), threads))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def answer(payload: bytes, threads: int) -> bytes:
    """What becomes of a job, in the process of a worker: its result or its error, as bytes; it raises nothing."""
    try:
        try:
            fn, job, until = (pickle.loads(part) for part in pickle.loads(payload))
        except Exception as error:
            raise InputError(
                f"expected a job that can be rebuilt in a worker process, got {error!r}; define its "
                "functions and classes in a module that can be imported, or run with Serial()"
            ) from error
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        with working_until(until):
            value = fn(job)
        try:
            return pickle.dumps((True, value))
        except Exception as error:
            raise InputError(
                f"expected a result that can be pickled, got {reprlib.repr(value)} ({error}); return plain values"
            ) from error
    except BaseException as error:
        story = f"In a worker process:\n{traceback.format_exc()}"
        try:
            error.add_note(story)
            told = pickle.dumps((False, error))
            pickle.loads(told)
        except Exception:
            stand_in = EstimationError(f"{type(error).__name__}: {error}")
            stand_in.add_note(story)
            told = pickle.dumps((False, stand_in))
        return told
