"""What layers of a model are given on each example, and a place to take derivatives in what they give.

A layer whose outputs are linear in its own parameters gives z_t = W a_t + b at each position t of an example. Second
derivatives of the example's loss ℓ in these parameters are then those of ℓ in z: with A the matrix whose rows are
(a_t, 1), and G = A Aᵀ,

    Σ_jk ∂²ℓ/∂W_jk² + Σ_j ∂²ℓ/∂b_j² = Σ_j Σ_tt' G_tt' ∂²ℓ/∂z_jt ∂z_jt',

and the square of the parameters' gradient is Σ_j Σ_tt' G_tt' δ_jt δ_jt' for δ = ∂ℓ/∂z. Linear layers and convolutions
have that form, and so have the scale and shift of a normalization layer, one channel at a time. It holds where the
layer is used once and its parameters nowhere else, which `crunode.curvature.coverage` finds out.

References:
    Goodfellow 2015, Efficient per-example gradient computations; Rochette, Manoel & Tramel 2019 (convolutions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError

__all__ = [
    "BATCH_NORMS",
    "CONVOLUTIONS",
    "Layer",
    "Record",
    "Shifts",
    "free_tensors",
    "hooked",
    "recorded",
]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_HALF = (torch.float16, torch.bfloat16)


def free_tensors(land: Landscape) -> dict[str, Tensor]:
    """The free parameters at the center, by name."""
    return {name: value.detach() for name, value in land.packing.unravel(land.center).items()}


@dataclass(frozen=True)
class Layer:
    """A layer that is linear in its parameters, and which of them are free.

    Attributes:
        module: The layer, inside the landscape's own copy of the model.
        names: Names of its free parameters.
        weight: Whether its weights are free.
        bias: Whether its biases are free.
        held: Numbers in its root for an example, where that has been seen.
        gives: Numbers it gives for an example.
        positions: Positions it is used at in an example.
    """

    module: nn.Module
    names: tuple[str, ...]
    weight: bool
    bias: bool
    held: int = 0
    gives: int = 0
    positions: int = 1

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
        groups = module.groups if isinstance(module, CONVOLUTIONS) else signal.shape[1]
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


class Shifts:
    """Adds differentiable zeros to what layers give in one pass.

    Example:
        >>> layer = Layer(nn.Linear(2, 3), ("weight", "bias"), weight=True, bias=True)
        >>> record, after = Shifts().add(layer, torch.ones(4, 2), torch.zeros(4, 3))
        >>> torch.autograd.grad(after.sum(), record.shift)[0].sum()
        tensor(12.)
    """

    def __init__(self) -> None:
        self._zeros: dict[torch.dtype, Tensor] = {}

    def add(self, layer: Layer, given: Tensor, after: Tensor) -> tuple[Record, Tensor]:
        """The record of a layer that made `after` from `given`, and what is to be passed on in its place."""
        if after.dtype not in self._zeros:
            self._zeros[after.dtype] = torch.zeros((), dtype=after.dtype, device=after.device)
        shift = self._zeros[after.dtype].expand(after.shape).requires_grad_()
        with torch.no_grad():
            root = layer.root(given.detach())
        return Record(layer, root, shift, after.detach()), after + shift


def recorded(layers: Sequence[Layer], run: Callable[[], Any]) -> tuple[Any, list[Record]]:
    """What `run` gives with a differentiable shift in each layer's outputs, and the records of the layers.

    Hooks stand on the landscape's own copy of the model, and are gone afterwards. Layers that are not used have none.

    Raises:
        InputError: A layer is used more than once.

    Example:
        >>> land = Landscape(nn.Linear(2, 3), (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> layer = Layer(land.network, ("weight", "bias"), weight=True, bias=True)
        >>> free, batch = free_tensors(land), next(land.passes())
        >>> outputs, (record,) = recorded([layer], lambda: land.functional_outputs(free, batch))
        >>> tuple(record.shift.shape), record.root.flatten().tolist()  # square root of 1 + 1 + 1
        ((4, 3), [1.7320507764816284, 1.7320507764816284, 1.7320507764816284, 1.7320507764816284])
    """
    by_module = {layer.module: layer for layer in layers}
    found: dict[nn.Module, Record] = {}
    shifts = Shifts()

    def note(module: nn.Module, given: tuple[Any, ...], after: Tensor) -> Tensor:
        if module in found:
            raise InputError(
                f"expected a model that uses each layer once on all examples, got one that uses the layer of "
                f"{', '.join(by_module[module].names)} again on some; use method='hutchinson'"
            )
        found[module], shifted = shifts.add(by_module[module], given[0], after)
        return shifted

    value = hooked(by_module, note, run)
    return value, [found[layer.module] for layer in layers if layer.module in found]


def _size(module: nn.LayerNorm) -> int:
    return int(torch.Size(module.normalized_shape).numel())


def _rows(module: nn.Module, given: Tensor) -> Tensor:
    """What weights are multiplied with, as (examples, groups, positions, inputs of an output)."""
    count = given.shape[0]
    if isinstance(module, nn.Linear):
        return given.reshape(count, 1, -1, module.in_features)
    if isinstance(module, CONVOLUTIONS):
        return _patches(module, given)
    if isinstance(module, nn.LayerNorm):
        normal = F.layer_norm(given, module.normalized_shape, eps=module.eps)
        return normal.reshape(count, -1, _size(module), 1).transpose(1, 2)
    if isinstance(module, nn.GroupNorm):
        normal = F.group_norm(given, module.num_groups, eps=module.eps)
    else:
        assert isinstance(module, BATCH_NORMS)
        assert module.running_mean is not None
        assert module.running_var is not None
        mean, var = module.running_mean.to(given.dtype), module.running_var.to(given.dtype)
        normal = F.batch_norm(given, mean, var, eps=module.eps)
    return normal.reshape(count, given.shape[1], -1, 1)


def _patches(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, given: Tensor) -> Tensor:
    """What the kernel lies on at each position, for any padding, stride, dilation and grouping."""
    axes = len(module.kernel_size)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    found: Tensor = F.pad(given, module._reversed_padding_repeated_twice, mode=mode)
    sizes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    for axis, (kernel, stride, dilation) in enumerate(sizes, start=2):
        found = found.unfold(axis, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    found = torch.unflatten(found, 1, (module.groups, -1))  # examples, groups, channels, positions..., kernel...
    order = (0, 1, 2, *range(3 + axes, 3 + 2 * axes), *range(3, 3 + axes))
    return found.permute(order).flatten(3 + axes).flatten(2, 2 + axes).transpose(2, 3)


def hooked(modules: Iterable[nn.Module], note: Callable[..., Any], run: Callable[[], Any]) -> Any:
    """What `run` gives while `note` is a forward hook of the modules."""
    handles = [module.register_forward_hook(note) for module in modules]
    try:
        return run()
    finally:
        for handle in handles:
            handle.remove()
