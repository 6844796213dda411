"""What a small batch shows about a loss: whether it is a fixed, finite, differentiable mean over examples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves, map_tree
from crunode.core.losses import check_mean
from crunode.core.params import Packing
from crunode.core.result import Finding
from crunode.errors import InputError

__all__ = ["Probe", "examine"]

Losses = Callable[[Tensor, Any], Tensor]
_TOLERANCE = 1e-3
_ROUNDING = 1e-6
# Random numbers of a move in weight space, repeated along it: a prime, so that no layer sees a pattern.
_DRAWN = 8191


@dataclass(frozen=True)
class Probe:
    """What was seen.

    Attributes:
        pointwise: The loss gives one value per example.
        activations: Numbers kept per example for a backward pass.
        in_place: The model or the loss changes the batch it is given.
        findings: What was noticed.
    """

    pointwise: bool
    activations: int
    in_place: bool
    findings: tuple[Finding, ...]


def examine(losses: Losses, own: Losses | None, center: Tensor, packing: Packing, batch: Any, label: str) -> Probe:
    """Evaluate `losses` on `batch` at and near the center.

    Args:
        losses: Losses at a flat vector on a batch, per example or as a scalar mean.
        own: The mean that the loss itself would take, if it has one.
        center: The point to look at.
        packing: How parameters lie in it.
        batch: A small batch; it is copied, so that models that work in place do not change the data.
        label: Name of the loss.

    Raises:
        InputError: The loss is not a fixed, finite, differentiable function of the parameters, or is a sum.
    """
    size = leaves(batch)[0].shape[0]
    w, near = center.clone().requires_grad_(), _nearby(center).requires_grad_()
    given = _copied(batch)
    values, saved = _evaluate(losses, w, given, label)
    in_place = any(leaf._version for leaf in leaves(given))
    _check(values, losses(w, _copied(batch)), size, label)
    activations, beside = saved, losses(near, _copied(batch))
    findings: list[Finding] = []
    if size >= 2:
        half = size // 2
        parts = [map_tree(lambda t, a=a: t[a : a + half], batch) for a in (0, half)]  # type: ignore[misc]
        first, held = _evaluate(losses, w, _copied(parts[0]), label)
        activations = (saved - held) // (size - half)
        # Where the model predicts its labels, losses at the center are what rounding left, other for each batch size.
        floor = _ROUNDING * abs(float(beside.detach().mean()))
        with torch.no_grad():
            both = map_tree(lambda t: t[: 2 * half], batch)
            wholes = [values, beside] if size == 2 * half else [losses(point, _copied(both)) for point in (w, near)]
            pieces = [[first, losses(w, _copied(parts[1]))], [losses(near, _copied(part)) for part in parts]]
        if not all(_is_mean(whole, piece, label, floor) for whole, piece in zip(wholes, pieces, strict=True)):
            findings.append(Finding.of("DATA502", f"seen on a batch of {2 * half}"))
    findings += _gradient_findings([(values, w), (beside, near)], packing, label)
    if own is not None:
        ours, theirs = float(values.detach().mean()), float(own(w.detach(), _copied(batch)))
        if abs(ours - theirs) > _TOLERANCE * max(abs(ours), abs(theirs)):
            findings.append(Finding.of("DATA503", f"{ours:.4g} over examples, {theirs:.4g} by {label} itself"))
    return Probe(values.ndim == 1, max(1, activations), in_place, tuple(findings))


def _copied(batch: Any) -> Any:
    return map_tree(torch.clone, batch)


def _nearby(center: Tensor) -> Tensor:
    """The center moved by about a hundredth of the weights, the same way each time."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(_DRAWN, generator=generator, dtype=torch.float32, device="cpu").to(center)
    move = drawn.repeat(-(-center.numel() // _DRAWN))[: center.numel()].reshape(center.shape)
    return center + 0.01 * max(float(center.double().square().mean().sqrt()), 0.1) * move


def _evaluate(losses: Losses, w: Tensor, batch: Any, label: str) -> tuple[Tensor, int]:
    """Losses, and how many numbers autograd and the batch itself hold for them."""
    held = [leaf.numel() for leaf in leaves(batch)]

    def count(tensor: Tensor) -> Tensor:
        held.append(tensor.numel())
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            values = losses(w, batch)
    except InputError:
        raise
    except Exception as error:
        kinds = ", ".join(f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves(batch))
        raise InputError(
            f"expected the model and the loss {label} to take a batch of the data, got {type(error).__name__}: "
            f"{error}; the batch holds {kinds}. A batch (inputs..., target) is used as loss(model(*inputs), target); "
            "for anything else give loss=fn(model, batch)"
        ) from error
    return values, sum(held)


def _check(values: Tensor, again: Tensor, size: int, label: str) -> None:
    if values.ndim > 1 or (values.ndim == 1 and values.shape[0] != size):
        raise InputError(
            f"expected one loss per example, shape ({size},), or a scalar mean from the loss {label}, got shape "
            f"{tuple(values.shape)}; average or sum the other axes"
        )
    if not torch.isfinite(values).all():
        raise InputError(
            f"expected finite losses at the center, got {values.detach().flatten()[:4].tolist()} from the loss "
            f"{label}; check the weights, and the data for missing values"
        )
    if not values.requires_grad:
        raise InputError(
            f"expected the loss {label} to depend on the free parameters, got a value without gradient; look for "
            "detach(), no_grad() or numpy in the model or the loss"
        )
    if again.shape != values.shape or not torch.allclose(values, again, rtol=1e-4, atol=1e-6):
        raise InputError(
            "expected the same loss when evaluated twice, got different values although the model is in "
            "evaluation mode; remove the randomness (dropout with training=True, noise, sampling) from the model"
        )


def _is_mean(whole: Tensor, pieces: list[Tensor], label: str, floor: float) -> bool:
    # Read at once, as each reading waits for the device.
    of_whole, *of_pieces = torch.stack([losses.detach().mean() for losses in (whole, *pieces)]).tolist()
    known = math.isfinite(of_whole) and max(abs(of_whole), abs(sum(of_pieces)) / len(of_pieces)) > floor
    return not known or check_mean(of_whole, of_pieces, label)


def _gradient_findings(seen: list[tuple[Tensor, Tensor]], packing: Packing, label: str) -> list[Finding]:
    """What gradients at the center and near it show, given losses and the point for each."""
    slopes = torch.stack([_gradient(values, point, label) for values, point in seen])
    parts = torch.split(slopes, packing.sizes, dim=1)
    # A parameter may be empty; an empty maximum is an error.
    largest = [part.abs().amax(1) if part.shape[1] else part.new_zeros(2) for part in parts]
    sizes = torch.stack(largest).tolist()
    bad = [name for name, (here, _) in zip(packing.names, sizes, strict=True) if not math.isfinite(here)]
    if bad:
        raise InputError(
            f"expected finite gradients at the center, got non-finite ones for {bad}; look for a square root, a norm "
            "or a logarithm at zero"
        )
    unused = [name for name, both in zip(packing.names, sizes, strict=True) if not any(both)]
    return [Finding.of("MODEL502", ", ".join(unused))] if unused else []


def _gradient(values: Tensor, point: Tensor, label: str) -> Tensor:
    (slope,) = torch.autograd.grad(values.mean(), point, allow_unused=True)
    if slope is None:
        raise InputError(
            f"expected the loss {label} to depend on the free parameters, got one that does not use them; a loss "
            "fn(model, batch) has to use the model it is given, not one from outside"
        )
    return slope
