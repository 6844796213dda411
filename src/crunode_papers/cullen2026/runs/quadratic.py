"""Quadratic networks at points of their trainings, as a target for chains, and trainings with λ̂ along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode import InputError
from crunode.core import derived_seed
from crunode.jobs import place
from crunode_papers.cullen2026.runs.langevin import coefficients, held_settings
from crunode_papers.grokking.batched import train_many
from crunode_papers.grokking.settings import RECORDED, GrokkingRun, TrainingSettings
from crunode_papers.grokking.tasks import ModularTask

__all__ = ["QuadraticPoints", "log_epochs", "quadratic_trainings"]

# Numbers of a tensor of examples × units, and bytes of weights, that may be held at once.
_ROOM = {"cpu": 1 << 24, "cuda": 1 << 29}


def log_epochs(epochs: int, count: int) -> list[int]:
    """Epoch 0 and about `count` more up to the last one, at even distances of their logarithms.

    Example:
        >>> log_epochs(100, 5)
        [0, 1, 3, 10, 32, 100]
    """
    return [0, *sorted({int(e) for e in np.geomspace(1, epochs, count).round()})]


class QuadraticPoints:
    """Kept weights of trainings of one shape, and the centred loss L_n = ½‖P⊥(Y − Ŷ)‖²/n on their training pairs.

    With `labels="own"` Y is what the network of a point gives: the point is then an exact minimum, of loss zero, and
    the loss around it tells how the outputs change, whatever the weight decay has left of the training loss.

    Args:
        runs: Trainings that agree in modulus, width, centring and number of training pairs.
        epochs: Kept epochs.
        labels: "given" or "own".

    Attributes:
        centers: Weights, shape (trainings, epochs, dimensions): W by input, then V by unit.
        n: Number of training pairs.

    Example:
        >>> run, = train_many([TrainingSettings(ModularTask(5), width=8)], epochs=3, keep=[0, 3])
        >>> points = QuadraticPoints([run], [0, 3])
        >>> bool(abs(points.losses(points.centers, points.targets())[0, 1] - run.training_loss[-1]) < 1e-6)
        True
        >>> own = QuadraticPoints([run], [0, 3], labels="own")
        >>> own.losses(own.centers, own.targets()).tolist()
        [[0.0, 0.0]]
    """

    def __init__(self, runs: Sequence[GrokkingRun], epochs: Sequence[int], labels: str = "given") -> None:
        if labels not in ("given", "own"):
            raise InputError(f"expected labels as 'given' or 'own', got {labels!r}")
        task, self.width = runs[0].settings.task, runs[0].settings.width
        self.modulus, self.centred, self.own = task.modulus, runs[0].settings.centred, labels == "own"
        kept = [[_flat(*run.weights[epoch]) for epoch in epochs] for run in runs]
        self.centers = torch.stack([torch.stack(row) for row in kept])
        data = [run.settings.task.data(inputs="tokens", dtype=self.centers.dtype) for run in runs]
        shift = torch.tensor([0, self.modulus])
        self.rows = torch.stack([pairs + shift for pairs, _ in data]).to(self.centers.device)
        self.given = torch.stack([y for _, y in data]).to(self.centers.device)
        self.n = self.given.shape[1]

    @property
    def at_once(self) -> int:
        """Networks whose units on all training pairs fit the room that there is."""
        return max(1, _ROOM[self.centers.device.type] // (self.n * self.width))

    def targets(self, part: slice = slice(None)) -> Tensor:
        """Y of the points of a part: shape (trainings, points or 1, n, p)."""
        if not self.own:
            return self.given[:, None]
        w = self.centers[:, part]
        features = self._units(w, self._pairs(w.shape[1], None)).square()
        return torch.unflatten(torch.bmm(features, self._layers(w)[1]), 0, w.shape[:2])

    def slopes(self, w: Tensor, targets: Tensor, index: Tensor | None) -> Tensor:
        """∇L by all weights, with P⊥ along the examples that are taken.

        With F = (Wx)² and R = P⊥(Ŷ − Y)/B: ∂V = FᵀR, ∂(Wx) = 2 Wx ⊙ RVᵀ, ∂W = Xᵀ ∂(Wx).
        """
        pairs = self._pairs(w.shape[1], index)
        first, second = self._layers(w)
        units = self._units(w, pairs)
        features = units.square()
        gap = self._gap(features, second, targets, w.shape[1], index).div_(pairs.shape[1])
        by_second = torch.bmm(features.transpose(1, 2), gap)
        by_units = torch.bmm(2 * gap, second.transpose(1, 2)).mul_(units)
        by_first = torch.bmm(_one_hot(pairs, by_units, first.shape[1]).transpose(1, 2), by_units)
        return torch.cat([by_first.flatten(1), by_second.flatten(1)], 1).view_as(w)

    def losses(self, w: Tensor, targets: Tensor) -> Tensor:
        """L_n on all training pairs."""
        features = self._units(w, self._pairs(w.shape[1], None)).square()
        gap = self._gap(features, self._layers(w)[1], targets, w.shape[1], None)
        return (gap.square().sum((1, 2)) / (2 * self.n)).view(w.shape[:2])

    def _layers(self, w: Tensor) -> tuple[Tensor, Tensor]:
        flat, p, k = w.flatten(0, 1), self.modulus, self.width
        return flat[:, : 2 * p * k].view(-1, 2 * p, k), flat[:, 2 * p * k :].view(-1, k, p)

    def _pairs(self, rows: int, index: Tensor | None) -> Tensor:
        """Rows a and p + b of each example, shape (networks, examples, 2)."""
        pairs = self.rows[:, None].expand(-1, rows, -1, -1)
        if index is not None:
            pairs = pairs.gather(2, index[..., None].expand(-1, -1, -1, 2))
        return pairs.flatten(0, 1)

    def _units(self, w: Tensor, pairs: Tensor) -> Tensor:
        """Wx, shape (networks, examples, K)."""
        first = self._layers(w)[0]
        offset = torch.arange(0, len(first) * first.shape[1], first.shape[1], device=w.device)
        table, flat = first.flatten(0, 1), (pairs + offset[:, None, None]).flatten(0, 1)
        units = table.index_select(0, flat[:, 0]).add_(table.index_select(0, flat[:, 1]))
        return units.view(*pairs.shape[:2], -1)

    def _gap(self, features: Tensor, second: Tensor, targets: Tensor, rows: int, index: Tensor | None) -> Tensor:
        gap = torch.unflatten(torch.bmm(features, second), 0, (-1, rows))
        wanted = targets.repeat_interleave(rows // targets.shape[1], 1)
        if index is not None:
            wanted = wanted.gather(2, index[..., None].expand(-1, -1, -1, self.modulus))
        gap = gap.sub_(wanted).flatten(0, 1)
        return gap.sub_(gap.mean(1, keepdim=True)) if self.centred else gap


def _flat(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([first.T.reshape(-1), second.T.reshape(-1)])


def _one_hot(pairs: Tensor, like: Tensor, inputs: int) -> Tensor:
    return like.new_zeros(*pairs.shape[:2], inputs).scatter_(2, pairs, 1.0)


def quadratic_trainings(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train quadratic networks together and estimate λ̂ at kept epochs.

    Args:
        settings: "modulus", "fraction", "width", "batch" (None for all pairs), "epochs"; "rates" and "weight_decays",
            of which all combinations are trained; "seeds", one training of each for every one (split, weights and
            order come from it); "records", evenly spaced epochs at which losses are taken; "points", how many epochs to
            estimate at; and "chains": labels and fields of `ChainSettings` by name.

    Returns:
        For each training "rate", "weight_decay", "seed", "epochs" with what a run records, and "points": the "epochs"
        of the estimates, and for each name λ̂ as `coefficients` gives it.

    Example:
        >>> plan = {"modulus": 5, "fraction": 0.5, "width": 6, "batch": None, "epochs": 4, "records": 2, "points": 2}
        >>> plan |= {"rates": [1e-3, 1e-2], "weight_decays": [1e-4], "seeds": [0]}
        >>> chains = {"local": ["own", {"nbeta": 1e6, "warmup": 5, "draws": 20}]}
        >>> slow, fast = quadratic_trainings({**plan, "chains": chains})
        >>> fast["rate"], fast["points"]["epochs"], fast["points"]["local"][-1]["value"] > 0
        (0.01, [0, 1, 4], True)
    """
    marks = log_epochs(settings["epochs"], settings["points"]) if settings["points"] else []
    even = range(0, settings["epochs"] + 1, max(1, settings["epochs"] // settings["records"]))
    given = [
        TrainingSettings(
            ModularTask(settings["modulus"], fraction=settings["fraction"], seed=derived_seed(seed, 1)),
            width=settings["width"],
            rate=rate,
            weight_decay=decay,
            batch=settings["batch"],
            seed=derived_seed(seed, 2),
        )
        for rate in settings["rates"]
        for decay in settings["weight_decays"]
        for seed in settings["seeds"]
    ]
    at = sorted({*even, *marks, settings["epochs"]})
    options: dict[str, Any] = {"epochs": settings["epochs"], "at": at, "keep": marks or None}
    runs = train_many(given, device=place(), on_failure="return", **options)
    used = [seed for _ in settings["rates"] for _ in settings["weight_decays"] for seed in settings["seeds"]]
    estimates = _estimates(runs, marks, settings["chains"], used)
    return [
        {
            "rate": run.settings.rate,
            "weight_decay": run.settings.weight_decay,
            "seed": seed,
            "epochs": run.epochs.tolist(),
            **{name: _rounded(getattr(run, name)) for name in RECORDED},
            "points": {"epochs": marks, **estimates[index]},
        }
        for index, (run, seed) in enumerate(zip(runs, used, strict=True))
    ]


def _estimates(
    runs: Sequence[GrokkingRun], marks: Sequence[int], chains: Mapping[str, Any], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """λ̂ by name of the chains' settings; diverged trainings are measured as well, and have no values."""
    if not marks or not chains:
        return [{} for _ in runs]
    noise = [derived_seed(seed, 3) for seed in seeds]
    found: dict[str, Any] = {}
    for name, (labels, fields) in chains.items():
        points = QuadraticPoints(runs, marks, labels)
        found[name] = coefficients(points, held_settings(points, fields, noise[0]), noise)
    return [{name: values[k] for name, values in found.items()} for k in range(len(runs))]


def _rounded(values: np.ndarray) -> list[float | None]:
    """Seven digits, which is all that single precision has; None where there is no number."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in values]
