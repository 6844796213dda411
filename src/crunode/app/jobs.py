"""Recipes that the dashboard has started: processes of their own, few at a time, which can be stopped."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from crunode.errors import InputError, StoreError
from crunode.jobs.registry import recipes
from crunode.store.atomic import make_folder
from crunode.store.guarded import inside

__all__ = ["FOLDER", "Job", "Jobs"]

FOLDER = "dashboard"
"""Where, below the folder of runs, those of the dashboard go."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KEPT, _TAIL, _GRACE = 20, 4000, 5.0


@dataclass
class Job:
    """A recipe at work, or ended.

    Attributes:
        key: What pages call it.
        recipe: Its name.
        seed: Its seed.
        run: The run folder that it writes, relative to the folder of runs.
        home: That folder.
        command: The command line that would do the same.
        started: When, in seconds since 1970.
        stopped: Whether it was asked to stop.
    """

    key: str
    recipe: str
    seed: int
    run: str
    home: Path
    command: str
    started: float
    stopped: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    output: IO[bytes] | None = field(default=None, repr=False)

    @property
    def alive(self) -> bool:
        """Whether it is still at work."""
        return self.process is not None and self.process.poll() is None

    @property
    def state(self) -> str:
        """How it stands, in words."""
        if self.alive:
            return "stopping" if self.stopped else "running"
        if self.process is not None and self.process.returncode in (0, 1) and (self.home / "result.json").is_file():
            return "complete"  # with 1 the results are not ok, which its page says
        return "stopped" if self.stopped else "failed"

    def tail(self) -> str:
        """The end of what it has printed."""
        if self.output is None or not hasattr(os, "pread"):
            return ""
        # The process shares our place in the file, so it must not be moved.
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), _TAIL, max(0, size - _TAIL)).decode("utf-8", "replace").strip()


class Jobs:
    """The recipes that were started.

    Args:
        root: The folder of runs.
        shown: The same as the user calls it, for command lines.
        most: How many may be at work at the same time.

    Example:
        >>> Jobs(Path("."), most=0).start("toy-volumes", 0)
        Traceback (most recent call last):
        crunode.errors.InputError: expected at most 0 recipes at work at a time, got one more; wait, or stop one
    """

    def __init__(self, root: Path, shown: Path | None = None, most: int = 2) -> None:
        self.root, self.shown, self.most = root, root if shown is None else shown, most
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, recipe: str, seed: int) -> Job:
        """Start a recipe at toy size, in a process of its own and a new run folder.

        Raises:
            InputError: There is no recipe of that name, or as many as allowed are at work.
            StoreError: The folder for it is a link, or cannot be made.
        """
        if recipe not in recipes() or not _NAME.fullmatch(recipe):
            raise InputError(f"expected the name of a recipe, got {recipe[:100]!r}; choose one of the list")
        with self._lock:
            if sum(job.alive for job in self._jobs.values()) >= self.most:
                most = f"expected at most {self.most} recipes at work at a time"
                raise InputError(f"{most}, got one more; wait, or stop one")
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            run = f"{FOLDER}/{recipe}-{stamp}-{secrets.token_hex(2)}"
            home = inside(self.root, run)
            try:
                make_folder(home.parent)
            except OSError as error:
                raise StoreError(f"could not make {home.parent}: {error.strerror or error}") from error
            words = ["recipe", "run", recipe, "--size", "toy", "--seed", str(seed), "--store"]
            command = " ".join(["crunode", *words, shlex.quote(str(self.shown / run))])
            job = Job(secrets.token_hex(8), recipe, seed, run, home, command, time.time())
            job.output = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the job is remembered)
            job.process = subprocess.Popen(
                [sys.executable, "-m", "crunode", *words, str(home)],
                stdin=subprocess.DEVNULL,
                stdout=job.output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its workers can be stopped with it, and Ctrl-C is ours alone
            )
            self._jobs[job.key] = job
            self._forget()
        return job

    def get(self, key: str) -> Job | None:
        """The job of a key; None when there is none."""
        return self._jobs.get(key)

    def all(self) -> list[Job]:
        """The jobs, newest first."""
        return sorted(self._jobs.values(), key=lambda job: -job.started)

    def stop(self, key: str) -> None:
        """Ask a job to end; after five seconds it is ended. Finished cells stay in its folder.

        Raises:
            InputError: There is none of that key.
        """
        job = self._jobs.get(key)
        if job is None:
            raise InputError("expected a job that was started here, got another; it may have been forgotten")
        if job.alive:
            job.stopped = True
            threading.Thread(target=_end, args=(job,), daemon=True).start()

    def close(self) -> None:
        """Stop all, and wait for them."""
        for job in self._jobs.values():
            if job.alive:
                job.stopped = True
                _signal(job, signal.SIGTERM)
        for job in self._jobs.values():
            _end(job)
            if job.output is not None:
                job.output.close()
        self._jobs.clear()

    def _forget(self) -> None:
        ended = [job for job in self.all() if not job.alive]
        for job in ended[_KEPT:]:
            if job.output is not None:
                job.output.close()
            del self._jobs[job.key]


def _end(job: Job) -> None:
    assert job.process is not None
    _signal(job, signal.SIGTERM)
    try:
        job.process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        _signal(job, getattr(signal, "SIGKILL", signal.SIGTERM))
        job.process.wait()


def _signal(job: Job, number: signal.Signals) -> None:
    assert job.process is not None
    if job.process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(job.process.pid, number)
        else:
            job.process.send_signal(number)
