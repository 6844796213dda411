"""Units of work of a tracker: one probe at the weights of one step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core.execute import Executor
from crunode.core.fingerprints import tensor_bytes
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.errors import EstimationError, InputError
from crunode.store.atomic import digest
from crunode.training.probes import Probe, failed_estimate, measure
from crunode.training.weight_files import WeightFile

__all__ = ["GivenWeights", "Job", "Result", "Source", "fitting_weights", "run_job", "run_jobs", "weights_mark"]


@dataclass(frozen=True)
class GivenWeights:
    """Weights in memory."""

    weights: Mapping[str, Tensor]

    def load(self) -> Mapping[str, Tensor]:
        """The weights."""
        return self.weights


Source = GivenWeights | WeightFile


@dataclass(frozen=True)
class Job:
    """One probe at one step."""

    landscape: Landscape
    step: int
    source: Source
    name: str
    probe: Probe
    seed: int
    settings: Mapping[str, Any] | None

    def __repr__(self) -> str:
        return f"probe {self.name!r} at step {self.step}"


@dataclass(frozen=True)
class Result:
    """What a job gives: the estimate, L_n, and the mark of the weights."""

    estimate: Estimate
    loss: float
    weights: str


def run_job(job: Job) -> Result:
    """Measure; an error becomes a result."""
    named = fitting_weights(job.landscape, job.source.load())
    weights = weights_mark(job.landscape, named)
    try:
        here = job.landscape.at(named)
        loss = float(here.loss())
    except InputError as error:  # the weights fit, so they, or the loss at them, are not finite
        return Result(failed_estimate(job.name, error), math.nan, weights)
    return Result(measure(here, job.probe, job.seed, job.settings), loss, weights)


def run_jobs(executor: Executor, jobs: Sequence[Job]) -> Iterator[Result]:
    """Results in the order of the jobs; one whose worker was lost is a failure, and the others go on."""
    done = 0
    while done < len(jobs):
        try:
            for result in executor.map(run_job, jobs[done:]):
                done += 1
                yield result
        except EstimationError as error:
            job = jobs[done]
            named = fitting_weights(job.landscape, job.source.load())
            yield Result(failed_estimate(job.name, error), math.nan, weights_mark(job.landscape, named))
            done += 1


def fitting_weights(land: Landscape, weights: Any) -> dict[str, Tensor]:
    """Named tensors that fit the landscape.

    Raises:
        InputError: They are of another model, or no weights at all.
    """
    if isinstance(weights, Tensor):
        if weights.shape != land.center.shape:
            raise InputError(f"expected a flat vector of {land.dim} weights, got shape {tuple(weights.shape)}")
        return dict(land.packing.unravel(weights))
    if isinstance(weights, nn.Module):
        weights = {**dict(weights.named_parameters()), **dict(weights.named_buffers())}
    if not isinstance(weights, Mapping):
        raise InputError(f"expected a model, its state_dict or a flat vector, got {type(weights).__name__}")
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    wanted = dict(zip(land.packing.names, land.packing.shapes, strict=True))
    missing = [name for name in wanted if name not in tensors]
    other = [name for name, shape in wanted.items() if name in tensors and tuple(tensors[name].shape) != shape]
    if missing or other:
        parts = [f"without {missing[:6]}" if missing else "", f"with other shapes of {other[:6]}" if other else ""]
        raise InputError(
            f"expected weights of the landscape's model, got some {' and '.join(p for p in parts if p)}; give the "
            "model that the landscape was made of"
        )
    return tensors


def weights_mark(land: Landscape, named: Mapping[str, Tensor]) -> str:
    """SHA-256 of the free parameters, as the landscape holds them."""
    with torch.no_grad():
        return digest(tensor_bytes(land.packing.ravel({name: named[name] for name in land.packing.names})))
