"""Transformers on modular arithmetic: trained together, and with λ̂ along their trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from crunode import InputError
from crunode.core import derived_seed
from crunode.jobs import place
from crunode.sampling import Captured
from crunode_papers.cullen2026.runs.langevin import coefficients, held_settings
from crunode_papers.cullen2026.runs.quadratic import log_epochs
from crunode_papers.grokking.networks import ModularTransformer
from crunode_papers.grokking.tasks import ModularTask

__all__ = ["TransformerPoints", "transformer_trainings"]

_BETAS, _EPS = (0.9, 0.999), 1e-8
_PARTS = ("training", "validation")
# Numbers of a tensor of examples × places × inner width that may be held at once.
_ROOM = {"cpu": 1 << 24, "cuda": 1 << 28}


class _Packed:
    """A transformer as a function of one flat vector of weights."""

    def __init__(self, model: ModularTransformer) -> None:
        self.model = model
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]

    def flat(self, model: ModularTransformer) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])

    def logits(self, w: Tensor, pairs: Tensor) -> Tensor:
        parts = zip(self.shapes.items(), torch.split(w, self.sizes), strict=True)
        found: Tensor = functional_call(self.model, {name: part.view(shape) for (name, shape), part in parts}, (pairs,))
        return found

    def loss(self, w: Tensor, pairs: Tensor, shares: Tensor) -> Tensor:
        """Mean over examples of −Σ_c y_c log p_c, with shares y of classes for labels."""
        return -(shares * self.logits(w, pairs).log_softmax(-1)).sum(-1).mean()


class TransformerPoints:
    """Weights at points of trainings, and the cross-entropy on their training pairs.

    With `labels="own"` labels are the probabilities that the network of a point gives, of which it is an exact minimum.

    Args:
        model: A transformer of the right shape; its weights do not matter.
        centers: Weights, shape (trainings, points, dimensions).
        pairs: Training pairs, shape (trainings, n, 2).
        results: Their classes, shape (trainings, n).
        labels: "given" or "own".

    Example:
        >>> model = ModularTransformer(5, width=8, heads=2)
        >>> w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])[None, None]
        >>> pairs, results = ModularTask(5).data(inputs="tokens", targets="classes")
        >>> points = TransformerPoints(model, w, pairs[None], results[None])
        >>> torch.allclose(points.losses(w, points.targets())[0, 0], F.cross_entropy(model(pairs), results))
        True
    """

    def __init__(
        self, model: ModularTransformer, centers: Tensor, pairs: Tensor, results: Tensor, labels: str = "given"
    ) -> None:
        if labels not in ("given", "own"):
            raise InputError(f"expected labels as 'given' or 'own', got {labels!r}")
        self.packed, self.centers, self.pairs, self.own = _Packed(model), centers, pairs, labels == "own"
        self.given = F.one_hot(results, model.modulus).to(centers.dtype)
        self.n, self._inner = pairs.shape[1], 12 * model.embedding.shape[1]

    @property
    def at_once(self) -> int:
        """Networks whose inner layers on all training pairs fit the room that there is."""
        return max(1, _ROOM[self.centers.device.type] // (self.n * self._inner))

    def targets(self, part: slice = slice(None)) -> Tensor:
        """Shares of classes, shape (trainings, points or 1, n, p)."""
        if not self.own:
            return self.given[:, None]
        w = self.centers[:, part]
        pairs = self.pairs[:, None].expand(-1, w.shape[1], -1, -1).flatten(0, 1)
        logits = vmap(self.packed.logits)(w.flatten(0, 1), pairs)
        return torch.unflatten(logits.softmax(-1), 0, w.shape[:2])

    def _examples(self, rows: int, targets: Tensor, index: Tensor | None) -> tuple[Tensor, Tensor]:
        pairs = self.pairs[:, None].expand(-1, rows, -1, -1)
        shares = targets.repeat_interleave(rows // targets.shape[1], 1)
        if index is not None:
            pairs = pairs.gather(2, index[..., None].expand(-1, -1, -1, 2))
            shares = shares.gather(2, index[..., None].expand(-1, -1, -1, shares.shape[-1]))
        return pairs.flatten(0, 1), shares.flatten(0, 1)

    def slopes(self, w: Tensor, targets: Tensor, index: Tensor | None) -> Tensor:
        """∇L by all weights."""
        found: Tensor = vmap(grad(self.packed.loss))(w.flatten(0, 1), *self._examples(w.shape[1], targets, index))
        return found.view_as(w)

    def losses(self, w: Tensor, targets: Tensor) -> Tensor:
        """L_n on all training pairs."""
        return vmap(self.packed.loss)(w.flatten(0, 1), *self._examples(w.shape[1], targets, None)).view(w.shape[:2])


def transformer_trainings(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Train transformers together, one for each seed, and estimate λ̂ at kept epochs.

    Steps are those of Adam with weight decay in the gradient ("adam") or in the step ("adamw"), as in torch.

    Args:
        settings: "modulus", "fraction", "layers", "width", "heads", "batch" (None for all pairs), "epochs", "rate",
            "weight_decay", "optimizer", "seeds", "points" and "chains" as for quadratic networks. Losses are taken at
            "records" even distances and at the points.

    Returns:
        As `quadratic_trainings`.

    Raises:
        InputError: The optimizer is neither of the two.

    Example:
        >>> plan = {"modulus": 5, "fraction": 0.6, "layers": 1, "width": 8, "heads": 2, "batch": None, "epochs": 20}
        >>> plan |= {"rate": 1e-2, "weight_decay": 0.0, "optimizer": "adam", "seeds": [0, 1], "records": 2, "points": 2}
        >>> first, second = transformer_trainings({**plan, "chains": {}})
        >>> first["training_loss"][-1] < first["training_loss"][0]
        True
    """
    if settings["optimizer"] not in ("adam", "adamw"):
        raise InputError(f"expected optimizer among adam, adamw, got {settings['optimizer']!r}")
    device, epochs = place(), settings["epochs"]
    marks = log_epochs(epochs, settings["points"])
    due = {*range(0, epochs + 1, max(1, epochs // settings["records"])), *marks, epochs}
    shape = {name: settings[name] for name in ("layers", "width", "heads")}
    made = [ModularTransformer(settings["modulus"], seed=derived_seed(s, 2), **shape) for s in settings["seeds"]]
    packed = _Packed(made[0].to(device))
    tasks = [
        ModularTask(settings["modulus"], fraction=settings["fraction"], seed=derived_seed(s, 1))
        for s in settings["seeds"]
    ]
    data = {part: _stacked(tasks, part, device) for part in _PARTS}
    w = torch.stack([packed.flat(model.to(device)) for model in made])
    steps = _Steps(packed, w, data["training"], settings)
    records: list[dict[str, list[float | None]]] = []
    kept: list[Tensor] = []
    for epoch in range(epochs + 1):
        if epoch:
            steps.epoch()
        if epoch in due:
            records.append(_evaluated(packed, w, data))
        if epoch in marks:
            kept.append(w.clone())
    centers, noise = torch.stack(kept, 1), [derived_seed(seed, 3) for seed in settings["seeds"]]
    found: dict[str, Any] = {}
    for name, (labels, fields) in settings["chains"].items():
        points = TransformerPoints(made[0], centers, *data["training"], labels)
        found[name] = coefficients(points, held_settings(points, fields, noise[0]), noise)
    return [
        {
            "seed": seed,
            "rate": settings["rate"],
            "weight_decay": settings["weight_decay"],
            "epochs": sorted(due),
            **{name: [record[name][k] for record in records] for name in records[0]},
            "points": {"epochs": marks, **{name: values[k] for name, values in found.items()}},
        }
        for k, seed in enumerate(settings["seeds"])
    ]


class _Launched:
    """A function of tensors, with many small operations; on a GPU one CUDA graph for each size of batch."""

    def __init__(self, fn: Callable[..., Tensor]) -> None:
        self.fn = fn
        self.by_size: dict[torch.Size, Callable[..., tuple[Tensor, ...]]] = {}

    def __call__(self, w: Tensor, *batch: Tensor) -> Tensor:
        if w.device.type != "cuda":
            return self.fn(w, *batch)
        size = batch[0].shape
        if size not in self.by_size:
            self.by_size[size] = self._captured(w, batch)
        return self.by_size[size](w, *batch)[0]

    def _captured(self, w: Tensor, batch: Sequence[Tensor]) -> Callable[..., tuple[Tensor, ...]]:
        def plain(*tensors: Tensor) -> tuple[Tensor, ...]:
            return (self.fn(*tensors),)

        try:
            captured = Captured(plain, [w, *batch], overwrite=True)
        except RuntimeError:  # an operation that cannot be part of a graph
            return plain
        elsewhere = [w * 1.01, *(tensor.flip(1) for tensor in batch)]
        found, wanted = captured(*elsewhere)[0], plain(*elsewhere)[0]
        return captured if torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max())) else plain


class _Steps:
    """Epochs of all trainings together."""

    def __init__(self, packed: _Packed, w: Tensor, data: tuple[Tensor, Tensor], settings: Mapping[str, Any]) -> None:
        self.w, (self.pairs, results) = w, data
        self.shares = F.one_hot(results, packed.model.modulus).to(w.dtype)
        self.rate, self.decay = settings["rate"], settings["weight_decay"]
        self.coupled = settings["optimizer"] == "adam"
        self.size = min(settings["batch"] or self.pairs.shape[1], self.pairs.shape[1])
        self.slope = _Launched(vmap(grad(packed.loss)))
        self.mean, self.square, self.count = torch.zeros_like(w), torch.zeros_like(w), 0
        self.generators = [torch.Generator().manual_seed(derived_seed(s, 4)) for s in settings["seeds"]]

    def epoch(self) -> None:
        """All training pairs once, in an order of its own for each training."""
        n = self.pairs.shape[1]
        order = torch.stack([torch.randperm(n, generator=g) for g in self.generators]).to(self.w.device)
        for start in range(0, n, self.size):
            index = order[:, start : start + self.size, None]
            shares = self.shares.gather(1, index.expand(-1, -1, self.shares.shape[2]))
            with torch.no_grad():
                self._step(self.slope(self.w, self.pairs.gather(1, index.expand(-1, -1, 2)), shares))

    def _step(self, slope: Tensor) -> None:
        if self.coupled:
            slope = slope.add(self.w, alpha=self.decay)
        else:
            self.w.mul_(1 - self.rate * self.decay)
        self.count += 1
        late, root = 1 - _BETAS[0] ** self.count, math.sqrt(1 - _BETAS[1] ** self.count)
        self.mean.lerp_(slope, 1 - _BETAS[0])
        self.square.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
        self.w.addcdiv_(self.mean, self.square.sqrt().add_(_EPS * root), value=-self.rate * root / late)


def _stacked(tasks: Sequence[ModularTask], part: str, device: torch.device) -> tuple[Tensor, Tensor]:
    data = [task.data(part, inputs="tokens", targets="classes") for task in tasks]
    pairs, results = (torch.stack(column).to(device) for column in zip(*data, strict=True))
    return pairs, results


def _evaluated(packed: _Packed, w: Tensor, data: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = {}
    with torch.no_grad():
        for part, (pairs, results) in data.items():
            logits = vmap(packed.logits)(w, pairs)
            loss = F.cross_entropy(logits.flatten(0, 1), results.flatten(), reduction="none").view_as(results)
            right = (logits.argmax(-1) == results).double().mean(1)
            finite = torch.isfinite(loss.mean(1)).tolist()
            values = {"loss": loss.mean(1).tolist(), "accuracy": right.tolist()}
            for name, column in values.items():
                found[f"{part}_{name}"] = [v if ok else None for v, ok in zip(column, finite, strict=True)]
    return found
