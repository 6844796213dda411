"""What a landscape reads from a model and its data, and what it refuses: weights, names, devices, modes."""

from __future__ import annotations

import copy
import fnmatch
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crunode.core.data import Examples
from crunode.core.losses import LossModule
from crunode.core.result import Finding
from crunode.errors import InputError

__all__ = [
    "Potential",
    "check_finite",
    "device_of",
    "evaluation_copy",
    "fitting_weights",
    "free_names",
    "match",
    "mode_findings",
    "named_tensors",
    "placed",
    "potential_loss",
    "refuse_coordinates",
]

_STOCHASTIC = (
    nn.modules.dropout._DropoutNd,
    nn.modules.batchnorm._NormBase,
    nn.RReLU,
    nn.MultiheadAttention,
    nn.RNNBase,
)


class Potential(nn.Module):
    """A function of a vector as a module, so that it can be a model."""

    def __init__(self, fn: Callable[[Tensor], Tensor], at: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.w = nn.Parameter(at.detach().clone())


def potential_loss(model: nn.Module, batch: Tensor) -> Tensor:
    """The function of a `Potential`, once for each example of the batch."""
    value: Tensor = model.fn(model.w)  # type: ignore[operator]
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"expected a potential that maps a vector to one number as a tensor, got {got}")
    return value.reshape(1).expand(batch.shape[0])


def device_of(parameters: Mapping[str, Tensor], model: nn.Module, device: torch.device | str | None) -> torch.device:
    """Where a model with these parameters is to be evaluated."""
    devices = {t.device for t in (*parameters.values(), *model.buffers())}
    if torch.device("meta") in devices:
        raise InputError("expected a model with weights, got parameters on the meta device; load its weights first")
    if device is not None:
        try:
            return torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"expected device= as a torch device that is here, got {device!r} ({reason})") from error
    if len(devices) > 1:
        raise InputError(f"expected a model on one device, got parts on {sorted(map(str, devices))}; pass device=")
    return next(iter(devices)) if devices else torch.device("cpu")


def free_names(parameters: Mapping[str, Tensor], patterns: tuple[str, ...] | None) -> list[str]:
    """Names of the trainable parameters that patterns match, or of all."""
    names = list(parameters) if patterns is None else match(list(parameters), patterns)
    odd = [f"{name} ({p.dtype})" for name in names if not (p := parameters[name]).is_floating_point()]
    unset = [name for name in names if isinstance(parameters[name], nn.parameter.UninitializedParameter)]
    if unset:
        raise InputError(
            f"expected initialized parameters, got {unset} without a shape; run the model on a batch first"
        )
    free = [name for name in names if parameters[name].requires_grad]
    if any(parameters[name].is_complex() for name in free):
        raise InputError(
            f"expected real floating-point parameters, got {', '.join(odd)}; hold real and imaginary parts as two real "
            "parameters, or freeze these by requires_grad_(False)"
        )
    if not free:
        others = f", {', '.join(odd)} among them" if odd else ""
        raise InputError(
            f"expected at least one floating-point parameter with requires_grad, got {len(names)} without{others}; "
            "call requires_grad_(True) on those to be sampled"
        )
    return free


def match(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    """The names that some pattern matches; each pattern has to match one."""
    if not patterns:
        raise InputError('expected at least one pattern of parameter names, got none; for example "layers.0.*"')
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise InputError(f"expected a pattern that matches parameter names, got {pattern!r}; there are {names}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def evaluation_copy(model: nn.Module, loss: Any, device: torch.device) -> LossModule:
    """The module's structure in evaluation mode, sharing no state with the caller's but the tensors themselves."""
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    # Results of a former forward pass, kept as attributes, cannot be copied with their history.
    kept = [v for m in model.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf]
    shared |= {id(t): t.detach() for t in kept}
    try:
        module = LossModule(copy.deepcopy(model, shared), loss, device)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"expected a model and a loss that copy.deepcopy can copy, got {type(error).__name__}: {error}; drop "
            "attributes that hold locks, generators or tensors with a history"
        ) from error
    return module.eval()


def named_tensors(weights: Any) -> dict[str, Tensor]:
    """The weights of a module or mapping, by name."""
    if isinstance(weights, nn.Module):
        return {**dict(weights.named_parameters()), **dict(weights.named_buffers())}
    if isinstance(weights, Mapping) and all(isinstance(value, Tensor) for value in weights.values()):
        return dict(weights)
    raise InputError(
        f"expected weights as a module, a mapping of names to tensors or a flat tensor, got {type(weights).__name__}"
    )


def fitting_weights(
    weights: Mapping[str, Tensor], free: Mapping[str, Tensor], fixed: Mapping[str, Tensor], aliases: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Those of the weights that are free or fixed ones by name, once they are known to fit; `aliases` may be there."""
    missing = [name for name in free if name not in weights]
    if missing:
        raise InputError(f"expected weights for all free parameters, got none for {missing}")
    shapes = {**fixed, **free}
    unknown = [name for name in weights if name not in shapes and name not in aliases]
    if unknown:
        raise InputError(f"expected names of parameters and buffers of the model, got {unknown} besides")
    known = {name: value for name, value in weights.items() if name in shapes}
    for name, value in known.items():
        if value.shape != shapes[name].shape:
            raise InputError(
                f"expected {name} of shape {tuple(shapes[name].shape)}, got shape {tuple(value.shape)}; weights "
                "have to come from a model of the same sizes"
            )
    return known


def placed(examples: Examples, device: torch.device) -> Examples:
    """The examples on the device; those on the CPU are moved there."""
    devices = {t.device for t in examples.tensors()}
    if devices - {torch.device("cpu"), device}:
        raise InputError(
            f"expected data on the model's device {device} or on the CPU, got {sorted(map(str, devices))}; move one of "
            "them, or pass device="
        )
    return examples if devices == {device} else examples.to(device)


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors, by name, that are not finite."""
    known = {name: t for name, t in tensors.items() if t.numel() and (t.is_floating_point() or t.is_complex())}
    sizes = [torch.linalg.vector_norm(t, math.inf) for t in known.values()]
    wide = functools.reduce(torch.promote_types, (size.dtype for size in sizes), torch.bfloat16)
    # The host waits for the device once, not for each tensor.
    found = torch.stack([size.to(wide) for size in sizes]).tolist() if sizes else []
    bad = [name for name, size in zip(known, found, strict=True) if not math.isfinite(size)]
    if bad:
        raise InputError(f"expected finite weights, got non-finite values in {bad}; was the training diverging?")


def mode_findings(model: nn.Module) -> Iterator[Finding]:
    """What a model would do otherwise in training mode, and hooks that see only copies."""
    noisy = sorted({type(m).__name__ for m in model.modules() if m.training and changes_with_mode(m)})
    if noisy:
        yield Finding.of("MODEL501", f"{', '.join(noisy)} in training mode")
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        yield Finding.of("MODEL503", "found on the model")


def changes_with_mode(module: nn.Module) -> bool:
    """Whether a layer computes something else in training mode."""
    active = getattr(module, "dropout", True) if isinstance(module, nn.MultiheadAttention | nn.RNNBase) else True
    return isinstance(module, _STOCHASTIC) and bool(active)


def refuse_coordinates(map_to_weights: Callable[[Tensor], Tensor] | None) -> None:
    """Refuse a landscape that is a function of coordinates where weights are meant."""
    if map_to_weights is not None:
        raise InputError(
            "expected a landscape of the weights themselves, got one in other coordinates; restrict it or set its "
            "weights before in_coordinates"
        )
