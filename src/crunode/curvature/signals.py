"""What each layer of a model is given, and the signal that comes back to what it gives: gradients without forming them.

The gradient of one example's loss in the weights of a linear layer is the outer product δaᵀ of the back-propagated
signal δ with what the layer was given, a. A backward pass down to the outputs of the layers, without gradients of the
weights, therefore has all per-example gradients in it.

References:
    Goodfellow 2015, "Efficient per-example gradient computations"; Dangel, Kunstner & Hennig 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call

__all__ = ["DirectRows", "LayerSignals", "OuterRows", "Recorder"]

# Layers whose outputs are linear in their weights, and which see each example by itself.
_LINEAR_IN_WEIGHTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm)
_SPATIAL = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


@dataclass(frozen=True)
class OuterRows:
    """Rows δaᵀ of a linear layer that sees each example once, as their factors.

    Attributes:
        weight: Name of the weight; None where it is fixed.
        bias: Name of the bias; None where it is fixed or absent.
        given: a, shape (examples, inputs).
        signals: δ, shape (kinds, examples, outputs).
    """

    weight: str | None
    bias: str | None
    given: Tensor
    signals: Tensor

    def overlaps(self) -> Tensor:
        """a·a' (+ 1 for the bias), in double precision."""
        given = self.given.double()
        found = given @ given.T if self.weight else given.new_zeros(len(given), len(given))
        return found.add_(1.0) if self.bias else found

    def combined(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Σ c δaᵀ over kinds and examples, and likewise for the bias."""
        mixed = (coefficients[:, :, None] * self.signals).sum(0).to(self.given.dtype)
        found = {}
        if self.weight:
            found[self.weight] = mixed.T @ self.given
        if self.bias:
            found[self.bias] = mixed.sum(0)
        return found


@dataclass(frozen=True)
class DirectRows:
    """Rows that are held: gradients of one example in some parameters.

    Attributes:
        parts: For each parameter its name and gradients, shape (kinds, examples, *shape of the parameter).
    """

    parts: dict[str, Tensor]

    def flat(self) -> list[Tensor]:
        """The rows, shape (kinds · examples, numbers), parameter by parameter."""
        return [part.reshape(part.shape[0] * part.shape[1], -1) for part in self.parts.values()]

    def combined(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Σ c g over kinds and examples."""
        return {
            name: (coefficients.to(part.dtype).reshape(1, -1) @ part.reshape(coefficients.numel(), -1)).reshape(
                part.shape[2:]
            )
            for name, part in self.parts.items()
        }


@dataclass
class LayerSignals:
    """One layer in one pass.

    Attributes:
        layer: The layer.
        names: Full names of its free parameters, by their names in it.
        calls: How often the layer was called.
        given: What it was given.
        version: How often that tensor had been written to.
        edge: Where the signal comes back to.
        inner: What it was given, with its graph; None where that depends on no weight.
        weight: The weight it was called with.
        place: How many layers had been called before it.
    """

    layer: nn.Module
    names: dict[str, str]
    calls: int
    given: Tensor | None = None
    version: int = field(init=False)
    edge: GradientEdge | None = None
    inner: Tensor | None = None
    weight: Tensor | None = None
    place: int = field(init=False)

    def rows(self, signals: Sequence[Tensor]) -> OuterRows | DirectRows:
        """Rows of gradients from the signals of several kinds, each of the shape of the layer's output."""
        assert self.given is not None
        layer, given = self.layer, self.given
        if isinstance(layer, nn.Linear):
            if given.ndim == 2:
                return OuterRows(self.names.get("weight"), self.names.get("bias"), given, torch.stack(list(signals)))
            places = given.flatten(1, -2)
            return self._products([s.flatten(1, -2).transpose(1, 2) for s in signals], places)
        if isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros":
            patches = _patches(layer, given)
            if patches is not None:
                return self._products([s.flatten(2) for s in signals], patches)
        return self._by_derivative(signals)

    def _products(self, signals: list[Tensor], places: Tensor) -> DirectRows:
        """Sums over places of δaᵀ: signals are (examples, outputs, places), `places` (examples, places, inputs)."""
        parts = {}
        if "weight" in self.names:
            shape = getattr(self.layer, "weight").shape  # noqa: B009  (its type is that of any attribute of a module)
            parts[self.names["weight"]] = torch.stack([(s @ places).reshape(-1, *shape) for s in signals])
        if "bias" in self.names:
            parts[self.names["bias"]] = torch.stack([s.sum(2) for s in signals])
        return DirectRows(parts)

    def _by_derivative(self, signals: Sequence[Tensor]) -> DirectRows:
        """Derivatives of the layer itself. It is linear in its weights, so that any values of these do."""
        given = self.given
        assert given is not None
        weights = {name: given.new_ones(getattr(self.layer, name).shape) for name in self.names}
        others = {
            name: given.new_ones(value.shape) for name, value in self.layer.named_parameters() if name not in weights
        }

        def one(example: Tensor, signal: Tensor) -> dict[str, Tensor]:
            def run(free: dict[str, Tensor]) -> Tensor:
                found: Tensor = functional_call(self.layer, {**others, **free}, (example[None],))
                return found[0]

            found: dict[str, Tensor] = torch.func.vjp(run, weights)[1](signal)[0]
            return found

        kinds = [torch.func.vmap(one)(given, signal) for signal in signals]
        return DirectRows({full: torch.stack([k[name] for k in kinds]) for name, full in self.names.items()})


class Recorder:
    """Notes what the layers of a model are given while it runs inside a `with` block; the model is left as it was.

    Args:
        model: The model.
        free: Names of the parameters whose gradients are asked for.

    Attributes:
        covered: Whether each of these belongs to one layer of a kind whose gradients are sums of outer products.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> recorder = Recorder(net, [name for name, _ in net.named_parameters()])
        >>> with recorder:
        ...     outputs = net(torch.ones(4, 2))
        >>> [block.signals.shape for block in recorder.rows(outputs, [torch.ones_like(outputs)])]
        [torch.Size([1, 4, 3]), torch.Size([1, 4, 1])]
    """

    def __init__(self, model: nn.Module, free: Collection[str]) -> None:
        self._layers: list[LayerSignals] = []
        wanted = set(free)
        names: dict[int, int] = {}
        for _, value in model.named_parameters(remove_duplicate=False):
            names[id(value)] = names.get(id(value), 0) + 1
        for prefix, module in model.named_modules():
            own = {name: f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)}
            mine = {name: full for name, full in own.items() if full in wanted}
            once = all(names[id(module.get_parameter(name))] == 1 for name in mine)
            if mine and type(module) in _LINEAR_IN_WEIGHTS and once and set(mine) <= {"weight", "bias"}:
                self._layers.append(LayerSignals(module, mine, 0))
                wanted -= set(mine.values())
        self.covered = not wanted
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Recorder:
        for seen in self._layers:
            seen.given = seen.edge = seen.inner = seen.weight = None
            seen.calls = 0
        if self.covered:
            places = count()
            self._handles = [seen.layer.register_forward_hook(_noting(seen, places)) for seen in self._layers]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forget(self) -> None:
        """Let go of what was noted."""
        for seen in self._layers:
            seen.given = seen.edge = seen.inner = seen.weight = None

    def called(self) -> list[LayerSignals] | None:
        """The layers on the way from free weights to the value, in order; None where one was called more than once."""
        used = [seen for seen in self._layers if seen.calls]
        if not self.covered or any(seen.calls > 1 for seen in used):
            return None
        return sorted((seen for seen in used if seen.edge is not None), key=lambda seen: seen.place)

    def rows(self, value: Tensor, cotangents: Sequence[Tensor]) -> list[OuterRows | DirectRows] | None:
        """Rows of per-example gradients of `value` along each of the cotangents, by layers.

        Args:
            value: What the model led to in the `with` block, with the examples as leading axis.
            cotangents: One or several, each of the shape of `value`.

        Returns:
            Blocks of rows; None where a layer was called more than once, or not with one row for each example.
        """
        examples = value.shape[0]
        used = [seen for seen in self._layers if seen.calls]
        if not self.covered or not used or any(not _is_plain(seen, examples) for seen in used):
            return None
        edges = [seen.edge for seen in used]
        signals: list[list[Tensor]] = [[] for _ in used]
        for cotangent in cotangents:
            found = torch.autograd.grad(value, edges, cotangent, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
            for kept, signal in zip(signals, found, strict=True):
                if signal is not None:
                    kept.append(signal)
        # What nothing comes back to has no part in the value, whatever the cotangent.
        reached = [(seen, kept) for seen, kept in zip(used, signals, strict=True) if kept]
        return [seen.rows(kept) for seen, kept in reached] or None


def _noting(seen: LayerSignals, places: Iterator[int]) -> Callable[[nn.Module, Any, Any], None]:
    def note(layer: nn.Module, given: tuple[Any, ...], after: Any) -> None:
        seen.calls, seen.place = seen.calls + 1, next(places)
        if seen.calls == 1 and len(given) == 1 and isinstance(after, Tensor) and after.requires_grad:
            # The edge is of the output as it is now: an in-place activation after it makes the tensor another one.
            seen.given, seen.version, seen.edge = given[0].detach(), given[0]._version, get_gradient_edge(after)
            seen.inner = given[0] if given[0].requires_grad else None
            seen.weight = None if layer.weight is None else layer.weight.detach()  # type: ignore[operator]

    return note


def _is_plain(seen: LayerSignals, examples: int) -> bool:
    given = seen.given
    if seen.calls != 1 or given is None or given._version != seen.version or given.ndim < 2:
        return False
    axes = _SPATIAL.get(type(seen.layer))  # type: ignore[arg-type]
    return given.shape[0] == examples and (axes is None or given.ndim == axes + 2)


def _patches(layer: nn.Conv1d | nn.Conv2d, given: Tensor) -> Tensor | None:
    """What each place of the output sees, shape (examples, places, inputs); None for paddings that have a name."""
    if isinstance(layer.padding, str):
        return None
    sizes = (layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    if isinstance(layer, nn.Conv1d):
        # One row of an image, with nothing around it above and below.
        ones = (1, 1, 0, 1)
        given = given[:, :, None]
        sizes = tuple((first, *rest) for first, rest in zip(ones, sizes, strict=True))  # type: ignore[assignment]
    return F.unfold(given, *sizes).transpose(1, 2)
