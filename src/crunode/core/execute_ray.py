"""Jobs on a Ray cluster, or on the cores of this machine through Ray."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from crunode._extras import need
from crunode.core.deadline import Deadline
from crunode.core.execute import check_counts
from crunode.core.ledger import Ledger, pickled
from crunode.core.logs import log
from crunode.core.workers import answer, loaded
from crunode.errors import EstimationError, InputError

__all__ = ["Ray"]

J = TypeVar("J")
R = TypeVar("R")

_AHEAD = 2  # jobs handed to Ray for each that can run, so that no slot waits for the driver
_LOOK = 5.0  # seconds after which it is looked again how many can run


@dataclass(frozen=True)
class Ray:
    """Runs the jobs on a Ray cluster.

    As with `Processes`, function, jobs and results travel as plain pickles between processes of one user, never through
    a file, so functions and classes have to be found under their names in a module that every node can import. Jobs
    that write to a run folder need it at the same path on every node: a shared file system. Results equal those of
    `Serial` bit for bit on the same kind of processor.

    At most twice as many jobs as can run are handed over at a time. A job whose worker or node was lost is run again,
    before all that wait.

    Args:
        address: Of the cluster: "HOST:PORT" or "auto" from one of its nodes, or all else that `ray.init` takes. By
            default that of the environment variable RAY_ADDRESS, or else a cluster of this machine alone, which ends
            with this process. Where Ray is connected already, that connection is used.
        gpus_per_job: GPUs that a job takes; 0.25 lets four share one.
        cpus_per_job: Processor cores that a job takes.
        retries: How often a job is run again after its worker was lost.
        workers: The most jobs to run at a time; by default as many as fit.
        threads: Threads of torch in each worker.
        until: When to begin no more jobs; those that have begun are ended.

    Example:
        >>> Ray(gpus_per_job=0.25, retries=5).gpus_per_job
        0.25
    """

    address: str | None = None
    gpus_per_job: float = 0.0
    cpus_per_job: float = 1.0
    retries: int = 3
    workers: int | None = None
    threads: int = 1
    until: Deadline | None = None

    def __post_init__(self) -> None:
        check_counts(self)
        for name in ("gpus_per_job", "cpus_per_job"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0 or (value > 1 and value != int(value)):
                raise InputError(f"expected {name} as a share of one or a whole number, got {value!r}")
        if not self.gpus_per_job and not self.cpus_per_job:
            raise InputError("expected jobs that take something, got cpus_per_job=0 and gpus_per_job=0; give one")
        if self.address is not None and (not isinstance(self.address, str) or not self.address):
            raise InputError(f"expected address as text such as 'auto' or '10.0.0.1:6379', got {self.address!r}")

    def map(self, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """Yield `fn(job)` for each job, in order.

        Raises:
            MissingExtra: Ray is not installed.
            InputError: The function or a job cannot be pickled, no cluster answers, or none of its nodes has what a job
                takes.
            EstimationError: A job lost its worker more than `retries` times.
            DeadlineReached: There are jobs left at the deadline.
        """
        jobs = list(jobs)
        if not jobs:
            return iter(())
        pickled(fn, jobs[0], 0)  # before anything starts
        ray = need("ray", extra="ray")
        self._connect(ray)
        return self._map(ray, fn, jobs)

    def _connect(self, ray: Any) -> None:
        if ray.is_initialized():
            return
        # What Ray would print belongs to nobody's results, and its dashboard is a server that nobody asked for.
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
        try:
            ray.init(address=self.address, **quiet)
        except Exception as error:
            where = self.address or "this machine"
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(
                f"expected a Ray cluster at {where}, got {type(error).__name__}: {first[:300]}; start one with "
                "`ray start --head`, and give its address"
            ) from error

    def _map(self, ray: Any, fn: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        # Ray's own retries are off: they would neither be counted nor logged.
        options: dict[str, Any] = {"num_cpus": self.cpus_per_job, "num_gpus": self.gpus_per_job, "max_retries": 0}
        task = ray.remote(answer).options(**options)
        ledger = Ledger(jobs, retries=self.retries, until=self.until)
        most = self._most(ray)
        log("ray", jobs=len(jobs), in_flight=most)
        flying: dict[Any, int] = {}
        try:
            for index in range(len(jobs)):
                while ledger.pending(index):
                    while len(flying) < most and (job := ledger.begin()) is not None:
                        flying[task.remote(pickled(fn, jobs[job], job, self.until), self.threads)] = job
                    ready, _ = ray.wait(list(flying), num_returns=1, timeout=self._patience())
                    if not ready:
                        most = self._most(ray)  # nodes come and go
                    for ref in ready:
                        _receive(ray, ref, ledger, flying.pop(ref))
                yield ledger.result(index)
        finally:
            for ref in flying:
                # Not by force, which in Ray 2.60 ends this process when the job finishes at the same moment.
                ray.cancel(ref)

    def _patience(self) -> float:
        return _LOOK if self.until is None else min(self.until.left + 0.05, _LOOK)

    def _most(self, ray: Any) -> int:
        """How many jobs may be with Ray at a time.

        Raises:
            InputError: No node has what one takes.
        """
        nodes = [node.get("Resources", {}) for node in ray.nodes() if node.get("Alive")]
        slots = sum(self._fitting(node) for node in nodes)
        if not slots:
            has = ", ".join(f"{node.get('CPU', 0):g} cores and {node.get('GPU', 0):g} GPUs" for node in nodes[:5])
            raise InputError(
                f"expected a node with {self.cpus_per_job:g} cores and {self.gpus_per_job:g} GPUs for a job, got "
                f"{len(nodes)} nodes ({has or 'none'}); start one that has, or let a job take less"
            )
        return self.workers or _AHEAD * slots

    def _fitting(self, node: dict[str, float]) -> int:
        takes = {"CPU": self.cpus_per_job, "GPU": self.gpus_per_job}
        # Ray counts in parts of 1e-4; without the rounding three thirds of a GPU would be two.
        return int(min((node.get(name, 0.0) + 1e-4) // share for name, share in takes.items() if share))


def _receive(ray: Any, ref: Any, ledger: Ledger, job: int) -> None:
    """Take what came of a job: its answer, or that its worker, its node or its result was lost."""
    try:
        found = loaded(ray.get(ref))
    except ray.exceptions.RayTaskError as error:  # the function that gives answers raises nothing by itself
        first = next((line for line in reversed(str(error).strip().splitlines()) if line.strip()), "")
        raise EstimationError(
            f"expected crunode, in the same version, on every node of the Ray cluster, but a job could not be begun "
            f"({first.strip()[:300]}); install it there"
        ) from error
    except ray.exceptions.RayError as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        ledger.lost(job, f"{type(error).__name__}: {reason[:200]}")
    else:
        ledger.finish(job, found)
