"""λ̂ at many points of many trainings: all chains of all points take their Langevin steps together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from crunode import EstimationError, InputError
from crunode.core import derived_seed
from crunode.sampling import drift, mcse_mean, split_rhat

__all__ = ["PRINTED", "ChainSettings", "Target", "coefficients", "excess_losses", "held_settings", "sharpness"]

_POWER, _NEAR = 20, 1e-3
# Of the sharpest direction: steps move it by a fifth of its distance, and the resolution is a fiftieth of it.
_STEP, _RESOLUTION = 0.4, 0.02


@dataclass(frozen=True)
class ChainSettings:
    """Settings of the chains behind λ̂, the same at all points of a training, so that values can be compared.

    Step and precision are relative to nβ. A direction in which the loss has curvature h is then sampled as one of
    curvature h with precision `resolution` and step `step`; around a minimum that is quadratic

        λ̂ = ½ Σ h / (h + resolution),

    half the number of directions that are stiffer than the resolution. Chains are stable up to h = 4/step and forget in
    2/(step · resolution) steps.

    Attributes:
        step: ε nβ, with noise of variance ε in a step.
        resolution: γ/(nβ).
        nbeta: nβ; None for n / log n.
        chains: Number of chains.
        warmup: Steps before draws are kept.
        draws: Steps after that.
        every: Each so many of these, the loss on all training examples is taken.
        batch: Examples of a gradient; None takes all of them.

    Example:
        >>> ChainSettings(step=0.02, resolution=0.1).memory
        1000.0
        >>> ChainSettings(step=0.02, resolution=0.1, nbeta=30.0).epsilon(1123)
        0.0006666666666666666
    """

    step: float
    resolution: float
    nbeta: float | None = None
    chains: int = 3
    warmup: int = 100
    draws: int = 600
    every: int = 10
    batch: int | None = None

    def __post_init__(self) -> None:
        for name in ("step", "resolution", "nbeta"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"expected {name} as a positive number, got {value!r}")
        for name, low in (("chains", 1), ("warmup", 0), ("draws", 1), ("every", 1), ("batch", 2)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise InputError(f"expected {name} as a whole number from {low} up, got {value!r}")
        if self.every > self.draws:
            raise InputError(f"expected every within the {self.draws} draws, got {self.every}")

    @property
    def memory(self) -> float:
        """Steps in which the flattest directions forget."""
        return 2 / (self.step * self.resolution)

    def scale(self, n: int) -> float:
        """The value of nβ for n examples."""
        return n / math.log(n) if self.nbeta is None else self.nbeta

    def epsilon(self, n: int) -> float:
        """ε, the variance of the noise in a step."""
        return self.step / self.scale(n)


PRINTED = ChainSettings(step=3e-3, resolution=1 / 6, nbeta=30.0, batch=128)
"""As the paper has them: step 1e-4, β = 30/n, γ = 5, 3 chains, 100 steps of burn-in, 600 draws (appendix H.1)."""


class Target(Protocol):
    """Points of trainings and the loss around them.

    Attributes:
        centers: Weights w*, shape (trainings, points, dimensions).
        n: Training examples of each training.
    """

    centers: Tensor
    n: int

    def targets(self, part: slice) -> Tensor:
        """What the outputs of the points of a part are held against."""
        ...

    def slopes(self, w: Tensor, targets: Tensor, index: Tensor | None) -> Tensor:
        """∇L of weights (trainings, rows, dimensions) on the examples `index` (trainings, rows, batch), or on all.

        Rows are those of the part's points, each as often as it has chains.
        """
        ...

    def losses(self, w: Tensor, targets: Tensor) -> Tensor:
        """L_n of weights (trainings, rows, dimensions), shape (trainings, rows)."""
        ...

    @property
    def at_once(self) -> int:
        """Rows (points × chains) of all trainings that fit the memory."""
        ...


def sharpness(target: Target, seed: int = 0) -> float:
    """The largest curvature of the loss among all points, by power iterations with differences of gradients.

    Args:
        target: The points.
        seed: First directions come from it.

    Raises:
        EstimationError: It is not finite, or zero.

    Example:
        >>> from crunode_papers.cullen2026.runs.quadratic import QuadraticPoints
        >>> from crunode_papers.grokking.batched import train_many
        >>> from crunode_papers.grokking.settings import ModularTask, TrainingSettings
        >>> runs = train_many([TrainingSettings(ModularTask(5), width=6)], epochs=2, keep=[0, 2])
        >>> points = QuadraticPoints(runs, [0, 2], labels="own")
        >>> 0 < sharpness(points) < 1
        True
    """
    trainings, points, _ = target.centers.shape
    width = max(1, target.at_once // trainings)
    largest = 0.0
    with torch.no_grad():
        for start in range(0, points, width):
            part = slice(start, start + width)
            w, targets = target.centers[:, part], target.targets(part)
            generator = torch.Generator(w.device).manual_seed(derived_seed(seed, 1))
            v = torch.randn(w.shape, generator=generator, device=w.device, dtype=w.dtype)
            reach = _NEAR * w.norm(dim=-1, keepdim=True)
            for _ in range(_POWER):
                v = v / v.norm(dim=-1, keepdim=True)
                ahead, behind = (target.slopes(w + sign * reach * v, targets, None) for sign in (1, -1))
                v = (ahead - behind) / (2 * reach)
            largest = max(largest, float(v.norm(dim=-1).max()))
    if not 0 < largest < math.inf:
        raise EstimationError(f"expected a finite curvature at the points of the trainings, got {largest}")
    return largest


def held_settings(target: Target, fields: Mapping[str, Any], seed: int = 0) -> ChainSettings:
    """Settings to hold at all points: as given, or with step and resolution from the sharpest of all points.

    Args:
        target: The points.
        fields: Of `ChainSettings`; without "step", both are chosen.
        seed: For what is random about the choice.

    Example:
        >>> held_settings(None, {"step": 1.0, "resolution": 0.1}).memory
        20.0
    """
    if "step" in fields:
        return ChainSettings(**fields)
    sharp = sharpness(target, seed)
    return ChainSettings(step=_STEP / sharp, resolution=_RESOLUTION * sharp, **fields)


def excess_losses(target: Target, settings: ChainSettings, seeds: Sequence[int]) -> np.ndarray:
    """L_n(w) − L_n(w*) along chains, shape (trainings, points, chains, kept draws); not finite where one diverged.

    w ← w − (ε/2)(nβ∇L(w) + γ(w − w*)) + N(0, ε). The noise of a chain, and its minibatches, are the same at all points
    of a training: differences between points have less error than their values.

    Args:
        target: The points.
        settings: Of the chains.
        seeds: One for each training.

    Example:
        >>> from crunode_papers.cullen2026.runs.quadratic import QuadraticPoints
        >>> from crunode_papers.grokking.batched import train_many
        >>> from crunode_papers.grokking.settings import ModularTask, TrainingSettings
        >>> runs = train_many([TrainingSettings(ModularTask(5), width=6)], epochs=2, keep=[0, 2])
        >>> points = QuadraticPoints(runs, [0, 2], labels="own")
        >>> chosen = ChainSettings(step=0.5, resolution=0.1, nbeta=1e6, warmup=5, draws=20, every=5)
        >>> excess_losses(points, chosen, [0]).shape
        (1, 2, 3, 4)

    References:
        Welling & Teh 2011; Lau et al. 2023.
    """
    if len(seeds) != len(target.centers):
        raise InputError(f"expected a seed for each of {len(target.centers)} trainings, got {len(seeds)}")
    points, chains = target.centers.shape[1], settings.chains
    width = max(1, target.at_once // (chains * len(seeds)))
    with torch.no_grad():
        parts = [_chunk(target, slice(a, min(a + width, points)), settings, seeds) for a in range(0, points, width)]
    return np.concatenate(parts, 1)


def _chunk(target: Target, part: slice, settings: ChainSettings, seeds: Sequence[int]) -> np.ndarray:
    center = target.centers[:, part].repeat_interleave(settings.chains, 1)
    targets = target.targets(part)
    base = target.losses(target.centers[:, part], targets).double().repeat_interleave(settings.chains, 1)
    trainings, rows, dim = center.shape
    points, epsilon = rows // settings.chains, settings.epsilon(target.n)
    pull = settings.step / 2
    batch = None if settings.batch is None or settings.batch >= target.n else settings.batch
    generators = [torch.Generator(center.device).manual_seed(derived_seed(seed, 0)) for seed in seeds]
    w, noise, kept = center.clone(), center.new_empty(trainings, settings.chains, dim), []
    for count in range(1, settings.warmup + settings.draws + 1):
        index = None
        if batch is not None:
            drawn = [torch.rand(settings.chains, target.n, generator=g, device=w.device) for g in generators]
            index = torch.stack(drawn).argsort(-1)[..., :batch].repeat(1, points, 1)
        slope = target.slopes(w, targets, index)
        slope.add_(w, alpha=settings.resolution).sub_(center, alpha=settings.resolution)
        w.sub_(slope, alpha=pull)
        for k, generator in enumerate(generators):
            noise[k].normal_(generator=generator)
        w.view(trainings, points, settings.chains, dim).add_(noise[:, None], alpha=math.sqrt(epsilon))
        if count > settings.warmup and (count - settings.warmup) % settings.every == 0:
            kept.append(target.losses(w, targets).double() - base)
    return torch.stack(kept, -1).view(trainings, points, settings.chains, -1).cpu().numpy()


def coefficients(target: Target, settings: ChainSettings, seeds: Sequence[int]) -> list[list[dict[str, Any]]]:
    """λ̂ = nβ (E[L_n(w)] − L_n(w*)) at each point of each training, with its error and how the chains did.

    Returns:
        For each training and point "value" and "se", "drift" (a normal score of a trend that is left in the losses) and
        "rhat" (whether chains agree); all None where a chain diverged.

    Example:
        >>> from crunode_papers.cullen2026.runs.quadratic import QuadraticPoints
        >>> from crunode_papers.grokking.batched import train_many
        >>> from crunode_papers.grokking.settings import ModularTask, TrainingSettings
        >>> runs = train_many([TrainingSettings(ModularTask(5), width=6)], epochs=2, keep=[0, 2])
        >>> points = QuadraticPoints(runs, [0, 2], labels="own")
        >>> found = coefficients(points, ChainSettings(step=0.5, resolution=0.01, nbeta=1e6), [0])
        >>> found[0][1]["value"] > 0, sorted(found[0][1])
        (True, ['drift', 'rhat', 'se', 'value'])
    """
    excess = settings.scale(target.n) * excess_losses(target, settings, seeds)
    return [[_summary(draws) for draws in training] for training in excess]


def _summary(draws: np.ndarray) -> dict[str, Any]:
    if not np.isfinite(draws).all():
        return dict.fromkeys(("value", "se", "drift", "rhat"))
    found = {"value": float(draws.mean()), "se": mcse_mean(draws), "drift": drift(draws), "rhat": split_rhat(draws)}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
