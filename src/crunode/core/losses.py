"""Ways of naming a loss, made into one form: a module that maps a batch to losses."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.errors import InputError

__all__ = ["NAMED_LOSSES", "LossModule", "check_mean"]

_MODEL_NAMES = ("model", "module", "net", "network")


def _gaussian(output: Tensor, target: Tensor) -> Tensor:
    """½‖f(x) − y‖² per example: −log p of unit-variance Gaussian regression, up to its constant."""
    return 0.5 * (output - target.reshape(output.shape)).square().flatten(1).sum(1)


def _bernoulli(output: Tensor, target: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(output, target.reshape(output.shape).to(output.dtype), reduction="none")
    return losses.flatten(1).sum(1) if losses.ndim > 1 else losses


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return _example_means(F.cross_entropy(output, target, reduction="none"))


def _causal_lm(model: nn.Module, batch: Any) -> Tensor:
    """Mean next-token loss of each sequence, over positions whose next token is not masked out."""
    if not isinstance(batch, Mapping):
        batch = {"input_ids": batch[0] if isinstance(batch, tuple) else batch}
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    output = model(ids) if mask is None else model(input_ids=ids, attention_mask=mask)
    logits = getattr(output, "logits", output)
    labels = batch.get("labels", ids)[:, 1:]
    keep = labels >= 0 if mask is None else (labels >= 0) & mask[:, 1:].bool()
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels.clamp(min=0), reduction="none") * keep
    means: Tensor = losses.sum(1) / keep.sum(1).clamp(min=1)
    return means


NAMED_LOSSES: dict[str, Callable[..., Tensor]] = {
    "gaussian": _gaussian,
    "bernoulli": _bernoulli,
    "cross-entropy": _cross_entropy,
    "causal-lm": _causal_lm,
}


def _example_means(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


@dataclass(frozen=True)
class _PerExample:
    """An unreduced torch loss, averaged over all axes but the first (a class, so that it can be pickled)."""

    fn: Callable[..., Tensor]
    options: Mapping[str, str]

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return _example_means(self.fn(output, target, **self.options))


class LossModule(nn.Module):
    """A model and a loss as one module: `forward(batch)` gives losses per example, or a scalar mean.

    Having the loss inside the module lets `torch.func.functional_call` swap the weights for everything the loss
    does with the model, also for methods other than its forward pass.

    A callable whose first argument is called `model`, `module`, `net` or `network` is called with (model, batch);
    any other one with (output, target), where a batch is (inputs..., target). When a loss has an argument
    `reduction` it is called with "none", and further axes (outputs, positions) are averaged.
    """

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.label, self._takes_model, self._fn = _resolve(loss)

    def forward(self, batch: Any) -> Tensor:
        """Losses of the examples in `batch`."""
        if self._takes_model:
            return _checked_type(self._fn(self.model, batch), self.label)
        if not isinstance(batch, tuple) or len(batch) < 2:
            kind = "a mapping" if isinstance(batch, Mapping) else type(batch).__name__
            raise InputError(
                f"expected batches (inputs, target) for the loss {self.label}, got {kind}; for other batch formats "
                "give loss=fn(model, batch), which returns one loss per example"
            )
        return _checked_type(self._fn(self.model(*batch[:-1]), batch[-1]), self.label)


def _checked_type(losses: Any, label: str) -> Tensor:
    if not isinstance(losses, Tensor):
        raise InputError(
            f"expected the loss {label} to return a tensor (one loss per example, or a scalar mean), got "
            f"{type(losses).__name__}"
        )
    return losses


def _resolve(loss: Any) -> tuple[str, bool, Callable[..., Any]]:
    if isinstance(loss, str):
        if loss not in NAMED_LOSSES:
            raise InputError(f"expected a loss name among {sorted(NAMED_LOSSES)}, got {loss!r}")
        return loss, loss == "causal-lm", NAMED_LOSSES[loss]
    if isinstance(loss, nn.Module):
        label = type(loss).__name__
        if hasattr(loss, "reduction"):
            per_example = copy.copy(loss)
            per_example.reduction = "none"  # type: ignore[assignment]
            return label, False, _PerExample(per_example, {})
        return label, False, loss
    if not callable(loss):
        raise InputError(
            f"expected loss as a torch loss, a name among {sorted(NAMED_LOSSES)}, or fn(model, batch), got "
            f"{type(loss).__name__}"
        )
    label = f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}"
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        names = []
    if "reduction" in names:
        return label, False, _PerExample(loss, {"reduction": "none"})
    return label, bool(names) and names[0] in _MODEL_NAMES, loss


def check_mean(whole: Tensor, parts: Tensor, label: str) -> bool:
    """Compare the loss of a batch with those of its halves: False when examples are coupled.

    Raises:
        InputError: The loss is a sum over examples, which would make every estimate wrong by a factor n.
    """
    mean, total = parts.mean(), parts.sum()
    scale = torch.maximum(whole.abs(), total.abs()) + 1e-30
    if (whole - mean).abs() <= 1e-3 * scale:
        return True
    if (whole - total).abs() <= 1e-3 * scale:
        raise InputError(f"expected a mean over examples from the loss {label}, got a sum; divide by the batch size")
    return False
