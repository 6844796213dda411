"""Ways of naming a loss, made into one form: a module that maps a batch to losses."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.errors import InputError

__all__ = ["NAMED_LOSSES", "LossForm", "LossModule", "check_mean"]

_MODEL_NAMES = ("model", "module", "net", "network")
_HALF = (torch.float16, torch.bfloat16)


def _gaussian(output: Tensor, target: Tensor) -> Tensor:
    """½‖f(x) − y‖² per example: −log p of unit-variance Gaussian regression, up to its constant."""
    return 0.5 * _example_sums((output - _shaped(target, output, "gaussian")).square())


def _bernoulli(output: Tensor, target: Tensor) -> Tensor:
    """−log p of independent coin flips with the outputs as log odds, summed over the outputs of an example."""
    target = _shaped(target, output, "bernoulli").to(output.dtype)
    return _example_sums(F.binary_cross_entropy_with_logits(output, target, reduction="none"))


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return _example_means(F.cross_entropy(output, target, reduction="none"))


def _causal_lm(model: nn.Module, batch: Any) -> Tensor:
    """Mean next-token loss of each sequence, over positions whose next token is not masked out."""
    if isinstance(batch, tuple) and len(batch) == 1:
        (batch,) = batch
    if isinstance(batch, Tensor):
        batch = {"input_ids": batch}
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        kind = f"a mapping with {list(batch)}" if isinstance(batch, Mapping) else f"{len(batch)} tensors"
        raise InputError(
            f"expected token ids, or a mapping with input_ids and if wanted attention_mask and labels, for the loss "
            f"causal-lm, got {kind}; labels stand at the position of their token, they are shifted here"
        )
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    output = model(ids) if mask is None else model(input_ids=ids, attention_mask=mask)
    logits = _widened(_logits(output))
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


def _same(output: Tensor) -> Tensor:
    return output


def _probabilities(output: Tensor) -> Tensor:
    return output.softmax(1)


_EXPECTED: dict[Any, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("gaussian", F.mse_loss, nn.MSELoss), _same),
    **dict.fromkeys(("cross-entropy", F.cross_entropy, nn.CrossEntropyLoss), _probabilities),
    **dict.fromkeys(("bernoulli", F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss), torch.sigmoid),
}

_LIKELIHOODS = {_probabilities: "categorical", torch.sigmoid: "bernoulli", _same: "gaussian"}


def _is_plain(loss: nn.Module) -> bool:
    """True for a loss module without weights, smoothing or other settings that move its minimum."""
    weighted = any(isinstance(v, Tensor) for v in loss.buffers())
    return not weighted and not getattr(loss, "label_smoothing", 0.0)


def _example_means(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def _example_sums(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(1) if losses.ndim > 1 else losses


def _shaped(target: Tensor, output: Tensor, label: str) -> Tensor:
    if target.numel() != output.numel():
        raise InputError(
            f"expected as many target values as model outputs for the loss {label}, got targets of shape "
            f"{tuple(target.shape)} and outputs of shape {tuple(output.shape)}"
        )
    return target.reshape(output.shape)


def _logits(output: Any) -> Any:
    """The logits of a language model: its output itself, or its part of that name, or the first of several."""
    if isinstance(output, Mapping):
        return output["logits"]
    if isinstance(output, tuple) and not hasattr(output, "logits"):
        return output[0]
    return getattr(output, "logits", output)


def _widened(value: Any) -> Any:
    """Half-precision outputs as float32: their losses would keep three digits, fewer than a small excess needs."""
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value


@dataclass(frozen=True)
class _PerExample:
    """An unreduced torch loss, averaged over all axes but the first (a class, so that it can be pickled)."""

    fn: Callable[..., Tensor]
    options: Mapping[str, str]

    def __call__(self, *given: Any) -> Any:
        losses = self.fn(*given, **self.options)
        tensors = [value for value in given if isinstance(value, Tensor)]
        if isinstance(losses, Tensor) and len(tensors) == 2 and losses.numel() > max(t.numel() for t in tensors):
            raise InputError(
                f"expected outputs and targets that go together, got outputs of shape {tuple(tensors[0].shape)} and "
                f"targets of shape {tuple(tensors[1].shape)}, which broadcast to {tuple(losses.shape)}; reshape one"
            )
        return _example_means(losses) if isinstance(losses, Tensor) else losses


@dataclass(frozen=True)
class LossForm:
    """A loss in its parts.

    Attributes:
        label: Its name.
        takes_model: Whether it is called with (model, batch) or with (output, target).
        fn: Gives losses per example where it can.
        own: The same loss with its own reduction, where that is a mean.
        expected_target: Maps outputs to the target for which they are best, where there is one: the mean of what a
            model with these outputs predicts.
        is_cross_entropy: It is the cross-entropy of logits along the second axis, without weights or smoothing.
    """

    label: str
    takes_model: bool
    fn: Callable[..., Any]
    own: Callable[..., Any] | None = None
    expected_target: Callable[[Tensor], Tensor] | None = None
    is_cross_entropy: bool = False

    @property
    def likelihood(self) -> str | None:
        """The distribution of labels that it is minus the logarithm of, by name; None where that is not known."""
        return None if self.expected_target is None else _LIKELIHOODS.get(self.expected_target)


class LossModule(nn.Module):
    """A model and a loss as one module: `forward(batch)` gives losses per example, or a scalar mean.

    Having the loss inside the module lets `torch.func.functional_call` swap the weights for everything the loss
    does with the model, also for methods other than its forward pass.

    A callable whose first argument is called `model`, `module`, `net` or `network`, or is annotated as an `nn.Module`,
    is called with (model, batch); any other one with (output, target), where a batch is (inputs..., target). When a
    loss has an argument `reduction` it is called with "none", and further axes (outputs, positions) are averaged.
    Tensors of a loss module (class weights) are copied to `device` and stay fixed.
    """

    def __init__(self, model: nn.Module, loss: Any, device: torch.device | None = None) -> None:
        super().__init__()
        self.model = model
        # Not a submodule: evaluation mode and parameter names are the model's business alone.
        self.form = _resolve(loss, device)

    @property
    def label(self) -> str:
        """Name of the loss."""
        return self.form.label

    def forward(self, batch: Any, own: bool = False) -> Tensor:
        """Losses of the examples in `batch`; with `own`, the mean as the loss itself reduces."""
        fn = self.form.own if own else self.form.fn
        assert fn is not None
        if self.form.takes_model:
            return _checked_type(fn(self.model, batch), self.label)
        if not isinstance(batch, tuple) or len(batch) < 2:
            kind = "a mapping" if isinstance(batch, Mapping) else type(batch).__name__
            raise InputError(
                f"expected batches (inputs, target) for the loss {self.label}, got {kind}; for other batch formats "
                "give loss=fn(model, batch), its first argument called model, which returns one loss per example"
            )
        return _checked_type(fn(_widened(self.model(*batch[:-1])), _widened(batch[-1])), self.label)

    def has_own_mean(self) -> bool:
        """Whether the loss has a mean of its own to compare with."""
        return self.form.own is not None

    def expected_target(self, output: Tensor) -> Tensor | None:
        """The target for which these outputs are best; None where the loss has no such target that is known here."""
        fn = self.form.expected_target
        return None if fn is None else fn(_widened(output))


def _checked_type(losses: Any, label: str) -> Tensor:
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        kind = f"dtype {losses.dtype}" if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"expected the loss {label} to return a real floating-point tensor (one loss per example, or a scalar "
            f"mean), got {kind}"
        )
    return _widened(losses)  # type: ignore[no-any-return]


def _resolve(loss: Any, device: torch.device | None) -> LossForm:
    if isinstance(loss, str):
        if loss not in NAMED_LOSSES:
            near = difflib.get_close_matches(loss, NAMED_LOSSES, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"expected a loss name among {sorted(NAMED_LOSSES)}, got {loss!r}{hint}")
        plain = loss == "cross-entropy"
        return LossForm(loss, loss == "causal-lm", NAMED_LOSSES[loss], None, _EXPECTED.get(loss), plain)
    if not callable(loss) or isinstance(loss, type):
        what = f"the class {loss.__name__}; make an instance" if isinstance(loss, type) else type(loss).__name__
        raise InputError(
            f"expected loss as a torch loss, a name among {sorted(NAMED_LOSSES)}, or fn(model, batch), got {what}"
        )
    arguments = _arguments(loss.forward if isinstance(loss, nn.Module) else loss)
    takes_model = _is_model(next(iter(arguments.values()), None))
    if isinstance(loss, nn.Module):
        fixed = copy.deepcopy(loss).to(device).eval().requires_grad_(False)
        if not hasattr(loss, "reduction"):
            return LossForm(type(loss).__name__, takes_model, fixed)
        unreduced = copy.copy(fixed)
        unreduced.reduction = "none"  # type: ignore[assignment]
        own = fixed if loss.reduction == "mean" else None
        expected = _EXPECTED.get(type(loss)) if _is_plain(loss) else None
        return LossForm(type(loss).__name__, takes_model, _PerExample(unreduced, {}), own, expected)
    label = _label(loss)
    if "reduction" not in arguments:
        return LossForm(label, takes_model, loss)
    own = loss if arguments["reduction"].default == "mean" else None
    expected = _EXPECTED.get(loss) if isinstance(loss, Hashable) else None
    plain = loss is F.cross_entropy
    return LossForm(label, takes_model, _PerExample(loss, {"reduction": "none"}), own, expected, plain)


def _label(loss: Any) -> str:
    if isinstance(loss, functools.partial):
        return f"partial {_label(loss.func)}"
    return f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}"


def _arguments(fn: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return {}


def _is_model(argument: inspect.Parameter | None) -> bool:
    if argument is None:
        return False
    hint = argument.annotation
    annotated = hint.split(".")[-1] == "Module" if isinstance(hint, str) else hint is nn.Module
    return argument.name in _MODEL_NAMES or annotated


def check_mean(whole: float, parts: Sequence[float], label: str) -> bool:
    """Compare the loss of a batch with those of its halves: False when examples are coupled.

    Raises:
        InputError: The loss is a sum over examples, which would make every estimate wrong by a factor n.
    """
    total = sum(parts)
    scale = max(abs(whole), abs(total)) + 1e-30
    if abs(whole - total / len(parts)) <= 1e-3 * scale:
        return True
    if abs(whole - total) <= 1e-3 * scale:
        raise InputError(f"expected a mean over examples from the loss {label}, got a sum; divide by the batch size")
    return False
