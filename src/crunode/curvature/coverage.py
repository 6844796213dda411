"""Which free parameters belong to layers whose derivatives follow from what they are given and what comes back.

Two examples tell, in four passes, whatever the model's code is: one for the graph of operations, one with places to
take derivatives in what layers give, and one of each example alone. A sequence of torch's own layers has no code of its
own, and the first pass is enough. What is to be compared is read by the host once, as each reading waits for the
device, and the outcome is kept for as long as the landscape lives.

References:
    Goodfellow 2015, Efficient per-example gradient computations.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from crunode.core.data import leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.curvature.activations import (
    BATCH_NORMS,
    CONVOLUTIONS,
    Layer,
    Record,
    free_tensors,
    hooked,
    recorded,
)
from crunode.errors import InputError

__all__ = ["Coverage", "coverage"]

_KINDS = (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)
# What acts on each example alone, and has no parameters but those of layers that are linear in them.
_ALONE = (
    *(nn.Linear, *CONVOLUTIONS, nn.Identity, nn.Dropout, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d),
    *(nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
# Examples on which formulas are held against autograd, and the relative difference they may have.
_EXAMPLES = 2
_AGREE = {torch.float64: 1e-7, torch.float32: 1e-2}
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Coverage:
    """Which free parameters are seen by layers, and why others are not.

    Attributes:
        layers: Layers for which the formulas hold.
        rest: The other free parameters, with the reason.
        outputs: Numbers that the model gives for an example; 0 where that is not one tensor with a row for each.
    """

    layers: tuple[Layer, ...]
    rest: Mapping[str, str]
    outputs: int = 0


@dataclass(frozen=True)
class _Circumstances:
    """All that the outcome rests on beside the landscape's own copy of the model.

    The objects themselves are held, not their numbers, as the number of one that is gone may be given to another.
    """

    objects: tuple[object, ...]
    versions: tuple[int, ...]
    settings: tuple[object, ...]

    @classmethod
    def of(cls, land: Landscape, batch: Any) -> _Circumstances | None:
        """None where changes of the tensors cannot be seen."""
        tensors = [land.center, *land.fixed.values(), *leaves(batch)]
        if any(t.is_inference() for t in tensors):
            return None
        kind = land.device.type
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        settings = (torch.get_default_dtype(), cast, land.pointwise)
        objects = (land.network, land.packing, land.data, land.center, *land.fixed.values())
        return cls(objects, tuple(t._version for t in tensors), settings)

    def same(self, other: _Circumstances) -> bool:
        """Whether nothing has changed."""
        alike = len(self.objects) == len(other.objects) and all(
            mine is theirs for mine, theirs in zip(self.objects, other.objects, strict=True)
        )
        return alike and self.versions == other.versions and self.settings == other.settings


# An attribute of the landscape would go along into copies of it, which are other landscapes.
_known_outcomes: weakref.WeakKeyDictionary[Landscape, tuple[_Circumstances, Coverage]] = weakref.WeakKeyDictionary()


def coverage(land: Landscape) -> Coverage:
    """Which free parameters belong to layers that `recorded` sees, each used once and nowhere else.

    Looked for in the graph of operations on a small batch, so that parameters shared between layers, used outside of
    them, or made from others are found whatever the model's code is. What is left is held against autograd: gradients
    of single examples, in all parameters of each layer. The outcome is kept with the landscape.

    Example:
        >>> land = Landscape(nn.Linear(2, 3), (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> coverage(land).layers[0].names
        ('weight', 'bias')
    """
    batch = map_tree(lambda t: t[:_EXAMPLES], next(iter(land.passes(_EXAMPLES))))
    now = _Circumstances.of(land, batch)
    known = _known_outcomes.get(land)
    if now is not None and known is not None and known[0].same(now):
        return known[1]
    try:
        found = _Examination(land, batch).outcome()
    except (InputError, RuntimeError) as error:  # recomputed layers, transforms inside of the model
        reason = f"in a model that does not run with hooks ({type(error).__name__})"
        return Coverage((), dict.fromkeys(land.packing.names, reason))  # not kept: memory may have been short
    if now is not None:
        _known_outcomes[land] = now, found
    return found


class _Examination:
    """Passes of two examples."""

    def __init__(self, land: Landscape, batch: Any) -> None:
        self._land, self._batch, self._size = land, batch, leaves(batch)[0].shape[0]
        self._fixed = free_tensors(land)
        self._free = {name: value.detach().requires_grad_() for name, value in self._fixed.items()}

    def outcome(self) -> Coverage:
        with torch.enable_grad():
            found = self._structure()
            if not found.layers or not self._land.pointwise or (found.outputs and _is_plain(self._land.network)):
                return found
            return self._agreeing(found)

    def _structure(self) -> Coverage:
        """Layers that are used once, with parameters that are found nowhere else in the graph of operations."""
        names = {id(value): name for name, value in self._free.items()}
        reasons: dict[str, str] = {}
        layers: dict[nn.Module, Layer] = {}
        ends: list[Tensor] = []
        cuts: set[Any] = set()

        def note(module: nn.Module, given: tuple[Any, ...], after: Any) -> None:
            held = {kind: names.get(id(getattr(module, kind, None))) for kind in ("weight", "bias")}
            own = tuple(name for name in held.values() if name)
            reason = _refused(module, given, after, self._size, module in layers)
            for name in own:
                if reason or any(name in other.names for other in layers.values()):
                    reasons[name] = reason or "shared between layers"
            if own and not reason:
                layer = Layer(module, own, held["weight"] is not None, held["bias"] is not None)
                layers[module] = _measured(layer, given[0], after)
                ends.append(given[0])
                cuts.add(after.grad_fn)

        candidates = [m for m in self._land.network.modules() if _known(m)]
        value = hooked(candidates, note, lambda: self._value(self._free, self._batch))
        for leaf in _leaves_behind([*ends, value], cuts):
            if id(leaf) in names:
                reason = "used outside of the layer it belongs to, or in no layer known here"
                reasons.setdefault(names[id(leaf)], reason)
        kept = tuple(layer for layer in layers.values() if not any(name in reasons for name in layer.names))
        seen = {name for layer in kept for name in layer.names}
        other = "in no layer known here, or in one that shares a parameter"
        fits = not self._land.loss_form.takes_model and value.shape[0] == self._size
        rest = {name: reasons.get(name, other) for name in self._free if name not in seen}
        return Coverage(kept, rest, math.prod(value.shape[1:]) if fits else 0)

    def _agreeing(self, found: Coverage) -> Coverage:
        """The layers whose formula gives the gradient norms that autograd gives, one example at a time."""
        wrong = "gradients of single examples do not follow from what its layer is given"
        # As where the formulas are used: parameters themselves are not differentiated.
        value, records = recorded(found.layers, lambda: self._value(self._fixed, self._batch))
        if value.shape[0] != self._size:
            return Coverage((), {**found.rest, **{name: wrong for layer in found.layers for name in layer.names}})
        weights = self._weights(value)
        signals = torch.autograd.grad(value, [r.shift for r in records], weights, allow_unused=True)
        own = [self._free[name] for layer in found.layers for name in layer.names]
        squares: dict[Any, Tensor] = {
            r.layer: _norms(r, s) for r, s in zip(records, signals, strict=True) if s is not None
        }
        for i in range(self._size):
            alone = self._value(self._free, map_tree(lambda t, k=i: t[k : k + 1], self._batch))  # type: ignore[misc]
            slopes = torch.autograd.grad(alone, own, weights[i : i + 1], allow_unused=True)
            names = (name for layer in found.layers for name in layer.names)
            squares |= {(name, i): _square(s) for name, s in zip(names, slopes, strict=True) if s is not None}
        values = _read(squares)
        rest, kept = dict(found.rest), []
        for layer in found.layers:
            mine = values.get(layer, [0.0] * self._size)
            exact = [sum(values.get((name, i), [0.0])[0] for name in layer.names) for i in range(self._size)]
            allowed = _AGREE.get(self._land.center.dtype, 0.1) * max(exact)
            if all(abs(a - b) <= allowed for a, b in zip(mine, exact, strict=True)):  # never so where one is NaN
                kept.append(layer)
            else:
                rest |= dict.fromkeys(layer.names, wrong)
        return Coverage(tuple(kept), rest, found.outputs)

    def _value(self, free: Mapping[str, Tensor], batch: Any) -> Tensor:
        """What is differentiated: outputs, which see all weights also where the loss has no slope, or losses."""
        if self._land.loss_form.takes_model:
            return self._land.functional(free, batch)
        value = self._land.functional_outputs(free, batch)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim == 0:
            raise InputError(f"expected outputs as one floating-point tensor, got {type(value).__name__}")
        return value

    def _weights(self, value: Tensor) -> Tensor:
        """Numbers to multiply that with: other ones for each example and output, so that nothing cancels."""
        if self._land.loss_form.takes_model:
            return torch.ones_like(value)
        flat = value.reshape(value.shape[0], -1)
        index = torch.arange(1, flat.shape[1] + 1, dtype=value.dtype, device=value.device)
        offset = torch.arange(flat.shape[0], dtype=value.dtype, device=value.device)
        return torch.cos(index + offset[:, None]).reshape(value.shape)


def _refused(module: nn.Module, given: tuple[Any, ...], after: Any, size: int, again: bool) -> str:
    """Why a call of a layer does not fit, or nothing."""
    if again:
        return "its layer is used more than once"
    if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(after, Tensor):
        return "its layer is called in another way than with one tensor"
    if after.shape[0] != size or given[0].shape[0] != size or given[0].ndim < 2 or _unbatched(module, given[0]):
        return "the leading axis of what its layer is given is not that of the examples"
    if _plainly_called(module):
        return ""
    with torch.no_grad():
        plain = type(module).forward(module, given[0])
    return "" if torch.equal(plain, after) else "a hook changes what its layer gives"


def _plainly_called(module: nn.Module) -> bool:
    """Whether nothing comes between what the layer's own `forward` gives and the hook that stands on it here."""
    calls = ("__call__", "_call_impl", "_wrapped_call_impl")
    own = any(getattr(type(module), name) is not getattr(nn.Module, name) for name in calls)
    others = len(module._forward_hooks) > 1 or module_hooks._global_forward_hooks
    return not own and not others and getattr(module, "_compiled_call_impl", None) is None


def _is_plain(model: nn.Module) -> bool:
    """Whether the model is a sequence of torch's own layers, each used once on what the one before gives."""
    if type(model) is not nn.Sequential:
        return False
    parts: list[nn.Module] = [model]
    for part in parts:  # it grows
        if type(part) is nn.Sequential:
            parts += list(part)
        elif type(part) not in _ALONE and not (type(part) is nn.Flatten and part.start_dim == 1):
            return False
        if "forward" in vars(part) or part._forward_pre_hooks or part._forward_hooks or part._backward_hooks:
            return False
    weights = [id(p) for part in parts if type(part) is not nn.Sequential for p in part.parameters()]
    return len(set(map(id, parts))) == len(parts) and len(set(weights)) == len(weights)


def _measured(layer: Layer, given: Tensor, after: Tensor) -> Layer:
    """The layer with the sizes of what it holds and gives for an example."""
    gives = math.prod(after.shape[1:])
    if isinstance(layer.module, nn.Linear) and given.ndim == 2:
        return replace(layer, held=1, gives=gives)
    with torch.no_grad():
        root = layer.root(given[:1].detach())
    return replace(layer, held=root.numel(), gives=gives, positions=root.shape[2])


def _square(slope: Tensor) -> Tensor:
    flat = (slope.float() if slope.dtype in _HALF else slope).flatten()
    return flat.dot(flat)


def _norms(record: Record, signal: Tensor) -> Tensor:
    """‖Σ_t δ_t (a_t, 1)ᵀ‖² for each example."""
    return (record.layer.grouped(signal) @ record.root).square().flatten(1).sum(1)


def _read(tensors: Mapping[Any, Tensor]) -> dict[Any, list[float]]:
    """Small tensors as numbers, all of them in one transfer."""
    if not tensors:
        return {}
    values = iter(torch.cat([t.reshape(-1) for t in tensors.values()]).tolist())
    return {key: [next(values) for _ in range(t.numel())] for key, t in tensors.items()}


def _known(module: nn.Module) -> bool:
    kind = next((k for k in _KINDS if isinstance(module, k)), None)
    if kind is None or type(module).forward is not kind.forward or "forward" in vars(module):
        return False
    return not isinstance(module, BATCH_NORMS) or module.running_mean is not None


def _unbatched(module: nn.Module, given: Tensor) -> bool:
    if isinstance(module, nn.LayerNorm):
        return given.ndim <= len(module.normalized_shape)
    return isinstance(module, CONVOLUTIONS) and given.ndim != 2 + len(module.kernel_size)


def _leaves_behind(tensors: Sequence[Tensor], cuts: set[Any]) -> Iterator[Tensor]:
    """All leaves that autograd would reach from the tensors, without going beyond nodes where the graph is cut."""
    yield from (t for t in tensors if t.is_leaf)
    nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node in cuts:  # what is found behind it is the layer's own use
            continue
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
