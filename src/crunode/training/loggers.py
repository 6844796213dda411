"""Numbers of a trajectory to TensorBoard, Weights & Biases or MLflow.

A logger is any object with `log(step, numbers)`. One that is down loses nothing: the trajectory has all numbers, and
what could not be sent is sent with the next visit.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from crunode._extras import need
from crunode.errors import DiagnosticWarning, InputError
from crunode.training.trajectory import Visit

__all__ = ["Logger", "MLflowLogger", "Outbox", "TensorBoardLogger", "WandbLogger"]


@runtime_checkable
class Logger(Protocol):
    """Takes the numbers of a visit."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers by name at a step."""
        ...


class TensorBoardLogger:
    """Writes scalars for TensorBoard (extra `track`).

    Args:
        folder: Where event files go; or a `SummaryWriter` that is there already.

    Example:
        >>> class Writer:
        ...     def add_scalar(self, name, value, step): print(name, value, step)
        ...     def flush(self): pass
        >>> TensorBoardLogger(Writer()).log(10, {"llc": 2.5})
        llc 2.5 10
    """

    def __init__(self, folder: str | os.PathLike[str] | Any) -> None:
        self._writer: Any = folder
        if not hasattr(folder, "add_scalar"):
            self._writer = need("torch.utils.tensorboard", extra="track").SummaryWriter(os.fspath(folder))

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers by name at a step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class WandbLogger:
    """Writes to a run of Weights & Biases (extra `track`).

    Args:
        run: The run; by default the one that `wandb.init` began in this process.

    Example:
        >>> class Run:
        ...     def log(self, numbers): print(numbers)
        >>> WandbLogger(Run()).log(10, {"llc": 2.5})
        {'llc': 2.5, 'crunode/step': 10}
    """

    def __init__(self, run: Any = None) -> None:
        self._run = need("wandb", extra="track").run if run is None else run
        if self._run is None:
            raise InputError("expected a run of Weights & Biases, got none; call wandb.init() first, or pass run=")

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers by name at a step."""
        # Not as the run's own step: that one only goes up, and the training's own logging may be ahead.
        self._run.log({**numbers, "crunode/step": step})


class MLflowLogger:
    """Writes metrics to MLflow (extra `track`).

    Args:
        client: Something with `log_metrics(numbers, step=...)`; by default the module `mlflow`, that is its active run.

    Example:
        >>> class Client:
        ...     def log_metrics(self, numbers, step): print(numbers, step)
        >>> MLflowLogger(Client()).log(10, {"llc": 2.5})
        {'llc': 2.5} 10
    """

    def __init__(self, client: Any = None) -> None:
        self._client = need("mlflow", extra="track") if client is None else client

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Record numbers by name at a step."""
        self._client.log_metrics(dict(numbers), step=step)


class Outbox:
    """Sends visits to loggers, and keeps what could not be sent for the next time.

    Args:
        loggers: The loggers.

    Raises:
        InputError: One of them has no `log`.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        given = list(loggers) if isinstance(loggers, Sequence) else [loggers]
        for logger in given:
            if isinstance(logger, type) or not isinstance(logger, Logger):
                raise InputError(f"expected loggers with log(step, numbers), such as WandbLogger(), got {logger!r}")
        self._waiting: list[tuple[Logger, list[tuple[int, dict[str, float]]]]] = [(logger, []) for logger in given]
        self._warned: set[int] = set()

    def send(self, visit: Visit) -> None:
        """Tell all loggers; one that raises is warned about once."""
        numbers = _numbers(visit)
        for logger, waiting in self._waiting:
            waiting.append((visit.step, numbers))
            try:
                while waiting:
                    logger.log(*waiting[0])
                    waiting.pop(0)
            except Exception as error:
                if id(logger) not in self._warned:
                    self._warned.add(id(logger))
                    warnings.warn(
                        f"{type(logger).__name__} failed at step {visit.step} ({type(error).__name__}: {error}); the "
                        "trajectory has all numbers, and it is tried again at the next visit",
                        DiagnosticWarning,
                        stacklevel=5,
                    )


def _numbers(visit: Visit) -> dict[str, float]:
    found = {"loss": visit.loss}
    for name, estimate in visit.estimates.items():
        found |= {name: estimate.value, f"{name}/se": estimate.se, f"{name}/ok": float(estimate.ok)}
    return {name: value for name, value in found.items() if math.isfinite(value)}
