"""What layers of a model are given on each example, and a place to take derivatives in what they give.

A layer whose outputs are linear in its own parameters gives z_t = W a_t + b at each position t of an example. Second
derivatives of the example's loss ℓ in these parameters are then those of ℓ in z: with A the matrix whose rows are
(a_t, 1), and G = A Aᵀ,

    Σ_jk ∂²ℓ/∂W_jk² + Σ_j ∂²ℓ/∂b_j² = Σ_j Σ_tt' G_tt' ∂²ℓ/∂z_jt ∂z_jt',

and the square of the parameters' gradient is Σ_j Σ_tt' G_tt' δ_jt δ_jt' for δ = ∂ℓ/∂z. Linear layers and convolutions
have that form, and so have the scale and shift of a normalization layer, one channel at a time. It holds where the
layer is used once and its parameters nowhere else, which `coverage` finds out.

References:
    Goodfellow 2015, Efficient per-example gradient computations; Rochette, Manoel & Tramel 2019 (convolutions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from crunode.core.data import leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.errors import InputError

__all__ = ["Coverage", "Layer", "Record", "coverage", "free_tensors", "losses_at", "outputs_at", "recorded"]

_PREFIX = "model."
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_KINDS = (nn.Linear, *_CONVOLUTIONS, *_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm)
# Examples on which formulas are held against autograd, and the relative difference they may have.
_EXAMPLES = 2
_HALF = (torch.float16, torch.bfloat16)
_AGREE = {torch.float64: 1e-7, torch.float32: 1e-2}


def free_tensors(land: Landscape) -> dict[str, Tensor]:
    """The free parameters at the center, by name."""
    return {name: value.detach() for name, value in land.packing.unravel(land.center).items()}


def losses_at(land: Landscape, free: Mapping[str, Tensor], batch: Any) -> Tensor:
    """Losses of the examples in `batch` with the free parameters given by name, or their scalar mean."""
    given = map_tree(torch.clone, batch) if land._in_place else batch
    named = {**land._fixed, **{_PREFIX + name: value for name, value in free.items()}}
    values: Tensor = functional_call(land._module, named, (given, False))
    return values


def outputs_at(land: Landscape, free: Mapping[str, Tensor], batch: Any) -> Any:
    """What the model gives on `batch` with the free parameters given by name, for a loss of (outputs, target)."""
    given = map_tree(torch.clone, batch[:-1]) if land._in_place else batch[:-1]
    named = {name.removeprefix(_PREFIX): value for name, value in land._fixed.items()}
    return functional_call(land._module.model, {**named, **free}, given)


@dataclass(frozen=True)
class Layer:
    """A layer that is linear in its parameters, and which of them are free.

    Attributes:
        module: The layer, inside the landscape's own copy of the model.
        names: Names of its free parameters.
        weight: Whether its weights are free.
        bias: Whether its biases are free.
    """

    module: nn.Module
    names: tuple[str, ...]
    weight: bool
    bias: bool

    def root(self, given: Tensor) -> Tensor:
        """A with A Aᵀ = G for each example, shape (examples, groups, positions, columns); one column if one position.

        Groups are parts of a layer that share no inputs: those of a grouped convolution, channels of a normalization.
        """
        rows = _rows(self.module, given.float() if given.dtype in _HALF else given)
        count, groups, positions, inputs = rows.shape
        if positions == 1:
            squares = torch.linalg.vecdot(rows, rows) if self.weight else torch.zeros_like(rows[..., 0])
            return (squares + 1 if self.bias else squares).sqrt_().unsqueeze(-1)
        width = inputs * self.weight + self.bias
        # Always a copy, as what a layer was given may be changed later; positions last, as convolutions have them.
        whole = rows.new_ones(count, groups, width, positions).transpose(2, 3)
        if self.weight:
            whole[..., :inputs] = rows
        return whole

    def grouped(self, signal: Tensor) -> Tensor:
        """What belongs to the layer's outputs as (examples, groups, outputs of a group, positions)."""
        count, module = signal.shape[0], self.module
        signal = signal.float() if signal.dtype in _HALF else signal
        if isinstance(module, nn.Linear):
            return signal.reshape(count, 1, -1, module.out_features).transpose(2, 3)
        if isinstance(module, nn.LayerNorm):
            return signal.reshape(count, -1, _size(module), 1).permute(0, 2, 3, 1)
        groups = module.groups if isinstance(module, _CONVOLUTIONS) else signal.shape[1]
        return signal.reshape(count, groups, signal.shape[1] // groups, -1)

    def ungrouped(self, parts: Tensor, shape: Sequence[int]) -> Tensor:
        """Inverse of `grouped`, for layer outputs of the given shape."""
        if isinstance(self.module, nn.Linear):
            parts = parts.transpose(2, 3)
        elif isinstance(self.module, nn.LayerNorm):
            parts = parts.permute(0, 3, 1, 2)
        return parts.reshape(tuple(shape))


@dataclass(frozen=True)
class Record:
    """What a layer did in one pass.

    Attributes:
        layer: The layer.
        root: Its `Layer.root`.
        shift: Zeros that were added to what it gives; derivatives in them are derivatives in z.
        given: z itself.
    """

    layer: Layer
    root: Tensor
    shift: Tensor
    given: Tensor


@dataclass(frozen=True)
class Coverage:
    """Which free parameters are seen by layers, and why others are not.

    Attributes:
        layers: Layers for which the formulas hold.
        rest: The other free parameters, with the reason.
    """

    layers: tuple[Layer, ...]
    rest: Mapping[str, str]


def recorded(layers: Sequence[Layer], run: Callable[[], Any]) -> tuple[Any, list[Record]]:
    """What `run` gives with a differentiable shift in each layer's outputs, and the records of the layers.

    Hooks stand on the landscape's own copy of the model, and are gone afterwards. Layers that are not used have none.

    Raises:
        InputError: A layer is used more than once.

    Example:
        >>> land = Landscape(nn.Linear(2, 3), (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> layers, free, batch = coverage(land).layers, free_tensors(land), next(land.passes())
        >>> outputs, (record,) = recorded(layers, lambda: outputs_at(land, free, batch))
        >>> tuple(record.shift.shape), record.root.flatten().tolist()  # square root of 1 + 1 + 1
        ((4, 3), [1.7320507764816284, 1.7320507764816284, 1.7320507764816284, 1.7320507764816284])
    """
    by_module = {layer.module: layer for layer in layers}
    found: dict[nn.Module, Record] = {}

    def note(module: nn.Module, given: tuple[Any, ...], after: Tensor) -> Tensor:
        if module in found:
            raise InputError(
                f"expected a model that uses each layer once on all examples, got one that uses the layer of "
                f"{', '.join(by_module[module].names)} again on some; use method='hutchinson'"
            )
        shift = torch.zeros((), dtype=after.dtype, device=after.device).expand(after.shape).requires_grad_()
        with torch.no_grad():
            root = by_module[module].root(given[0].detach())
        found[module] = Record(by_module[module], root, shift, after.detach())
        return after + shift

    value = _hooked(by_module, note, run)
    return value, [found[layer.module] for layer in layers if layer.module in found]


def coverage(land: Landscape) -> Coverage:
    """Which free parameters belong to layers that `recorded` sees, each used once and nowhere else.

    Looked for in the graph of operations on a small batch, so that parameters shared between layers, used outside of
    them, or made from others are found whatever the model's code is. What is left is held against autograd: gradients
    of single examples, in all parameters of each layer.

    Example:
        >>> land = Landscape(nn.Linear(2, 3), (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> coverage(land).layers[0].names
        ('weight', 'bias')
    """
    batch = map_tree(lambda t: t[:_EXAMPLES], next(iter(land.passes(_EXAMPLES))))
    try:
        return _agreeing(land, _structure(land, batch), batch)
    except (InputError, RuntimeError) as error:  # recomputed layers, transforms inside of the model
        reason = f"in a model that does not run with hooks ({type(error).__name__})"
        return Coverage((), dict.fromkeys(land.packing.names, reason))


def _structure(land: Landscape, batch: Any) -> Coverage:
    size = leaves(batch)[0].shape[0]
    free = {name: value.clone().requires_grad_() for name, value in free_tensors(land).items()}
    names = {id(value): name for name, value in free.items()}
    reasons: dict[str, str] = {}
    layers: dict[nn.Module, Layer] = {}
    ends: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...], after: Any) -> Tensor | None:
        held = {kind: names.get(id(getattr(module, kind, None))) for kind in ("weight", "bias")}
        own = tuple(name for name in held.values() if name)
        reason = _refused(module, given, after, size, module in layers)
        for name in own:
            if reason or any(name in other.names for other in layers.values()):
                reasons[name] = reason or "shared between layers"
        if not own or reason:
            return None
        layers[module] = Layer(module, own, held["weight"] is not None, held["bias"] is not None)
        ends.append(given[0])
        return after.detach().requires_grad_() + 0  # cuts the graph: what is found behind it is another use

    candidates = [m for m in land._module.model.modules() if _known(m)]
    with torch.enable_grad():
        ends.append(_hooked(candidates, note, lambda: losses_at(land, free, batch)))
    for leaf in _leaves_behind(ends):
        if id(leaf) in names:
            reasons.setdefault(names[id(leaf)], "used outside of the layer it belongs to, or in no layer known here")
    kept = tuple(layer for layer in layers.values() if not any(name in reasons for name in layer.names))
    seen = {name for layer in kept for name in layer.names}
    other = "in no layer known here, or in one that shares a parameter"
    return Coverage(kept, {name: reasons.get(name, other) for name in free if name not in seen})


def _refused(module: nn.Module, given: tuple[Any, ...], after: Any, size: int, again: bool) -> str:
    """Why a call of a layer does not fit, or nothing."""
    if again:
        return "its layer is used more than once"
    if len(given) != 1 or not isinstance(given[0], Tensor) or not isinstance(after, Tensor):
        return "its layer is called in another way than with one tensor"
    if after.shape[0] != size or given[0].shape[0] != size or given[0].ndim < 2 or _unbatched(module, given[0]):
        return "the leading axis of what its layer is given is not that of the examples"
    with torch.no_grad():
        plain = type(module).forward(module, given[0])
    return "" if torch.equal(plain, after) else "a hook changes what its layer gives"


def _agreeing(land: Landscape, found: Coverage, batch: Any) -> Coverage:
    """The layers whose formula gives the gradient norms that autograd gives, one example at a time."""
    if not found.layers or not land.pointwise:
        return found
    free = free_tensors(land)
    size = leaves(batch)[0].shape[0]
    with torch.enable_grad():
        values, records = recorded(found.layers, lambda: _probed(land, free, batch))
        signals = torch.autograd.grad(values.sum(), [r.shift for r in records], allow_unused=True)
        norms = {r.layer: _norms(r, s).double() for r, s in zip(records, signals, strict=True) if s is not None}
        theirs = torch.zeros(len(found.layers), size, dtype=torch.float64, device=land.device)
        own = {name: free[name].clone().requires_grad_() for layer in found.layers for name in layer.names}
        for i in range(size):
            one = map_tree(lambda t, k=i: t[k : k + 1], batch)  # type: ignore[misc]
            slopes = torch.autograd.grad(
                _probed(land, {**free, **own}, one, i).sum(), list(own.values()), allow_unused=True
            )
            named = dict(zip(own, slopes, strict=True))
            for k, layer in enumerate(found.layers):
                theirs[k, i] = sum(s.flatten().dot(s.flatten()) for n in layer.names if (s := named[n]) is not None)
    rest = dict(found.rest)
    kept = []
    for layer, exact in zip(found.layers, theirs, strict=True):
        mine = norms.get(layer, torch.zeros_like(exact))
        allowed = _AGREE.get(land.center.dtype, 0.1) * float(exact.max())
        if bool((mine - exact).abs().max() <= allowed):
            kept.append(layer)
        else:
            rest |= dict.fromkeys(
                layer.names, "gradients of single examples do not follow from what its layer is given"
            )
    return Coverage(tuple(kept), rest)


def _probed(land: Landscape, free: Mapping[str, Tensor], batch: Any, first: int = 0) -> Tensor:
    """One number for each example that depends on all its outputs, also where the loss has no slope."""
    if not land._module._loss.takes_model:
        found = outputs_at(land, free, batch)
        if isinstance(found, Tensor) and found.is_floating_point() and found.ndim > 0:
            flat = found.reshape(found.shape[0], -1)
            index = torch.arange(1, flat.shape[1] + 1, dtype=flat.dtype, device=flat.device)
            offset = torch.arange(first, first + len(flat), dtype=flat.dtype, device=flat.device)
            return (flat * torch.cos(index + offset[:, None])).sum(1)
    return losses_at(land, free, batch)


def _norms(record: Record, signal: Tensor) -> Tensor:
    """‖Σ_t δ_t (a_t, 1)ᵀ‖² for each example."""
    return (record.layer.grouped(signal) @ record.root).square().flatten(1).sum(1)


def _known(module: nn.Module) -> bool:
    kind = next((k for k in _KINDS if isinstance(module, k)), None)
    if kind is None or type(module).forward is not kind.forward or "forward" in vars(module):
        return False
    return not isinstance(module, _BATCH_NORMS) or module.running_mean is not None


def _unbatched(module: nn.Module, given: Tensor) -> bool:
    if isinstance(module, nn.LayerNorm):
        return given.ndim <= len(module.normalized_shape)
    return isinstance(module, _CONVOLUTIONS) and given.ndim != 2 + len(module.kernel_size)


def _size(module: nn.LayerNorm) -> int:
    return int(torch.Size(module.normalized_shape).numel())


def _rows(module: nn.Module, given: Tensor) -> Tensor:
    """What weights are multiplied with, as (examples, groups, positions, inputs of an output)."""
    count = given.shape[0]
    if isinstance(module, nn.Linear):
        return given.reshape(count, 1, -1, module.in_features)
    if isinstance(module, _CONVOLUTIONS):
        return _patches(module, given)
    if isinstance(module, nn.LayerNorm):
        normal = F.layer_norm(given, module.normalized_shape, eps=module.eps)
        return normal.reshape(count, -1, _size(module), 1).transpose(1, 2)
    if isinstance(module, nn.GroupNorm):
        normal = F.group_norm(given, module.num_groups, eps=module.eps)
    else:
        assert isinstance(module, _BATCH_NORMS)
        assert module.running_mean is not None
        assert module.running_var is not None
        mean, var = module.running_mean.to(given.dtype), module.running_var.to(given.dtype)
        normal = F.batch_norm(given, mean, var, eps=module.eps)
    return normal.reshape(count, given.shape[1], -1, 1)


def _patches(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, given: Tensor) -> Tensor:
    """What the kernel lies on at each position, for any padding, stride, dilation and grouping."""
    axes = len(module.kernel_size)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    found = F.pad(given, module._reversed_padding_repeated_twice, mode=mode)
    sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    for axis, (kernel, stride, dilation) in enumerate(sizes, start=2):
        found = found.unfold(axis, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    found = found.unflatten(1, (module.groups, -1))  # examples, groups, channels, positions..., kernel...
    order = (0, 1, 2, *range(3 + axes, 3 + 2 * axes), *range(3, 3 + axes))
    return found.permute(order).flatten(3 + axes).flatten(2, 2 + axes).transpose(2, 3)


def _leaves_behind(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """All leaves that autograd would reach from the tensors."""
    yield from (t for t in tensors if t.is_leaf)
    nodes = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def _hooked(modules: Any, note: Callable[..., Any], run: Callable[[], Any]) -> Any:
    handles = [module.register_forward_hook(note) for module in modules]
    try:
        return run()
    finally:
        for handle in handles:
            handle.remove()
