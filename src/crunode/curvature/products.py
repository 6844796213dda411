"""Products of vectors with derivatives of a landscape: what autograd keeps is built once, and used many times.

The data is gone through in chunks. Each holds a graph whose backward pass is the product asked for, for as long as the
memory set aside allows; a product then costs one backward pass, without a forward pass. Second derivatives of chains of
linear layers are taken by the layers instead (see `chained`), once that was compared with a backward pass.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.rng import preserved_rng
from crunode.curvature.chained import LayerChain
from crunode.curvature.gram import are_close
from crunode.curvature.signals import Recorder
from crunode.curvature.straight_code import without_zeros
from crunode.errors import InputError

__all__ = [
    "Chunks",
    "FirstDerivative",
    "GaussNewtonChunk",
    "OuterProductChunk",
    "SecondDerivative",
    "output_loss",
    "outputs_of",
]

Held = TypeVar("Held")

# Bytes for graphs that are held on a CPU; elsewhere a share of what is free.
_ROOM = 1 << 30
_SHARE_OF_FREE = 0.25
# A graph of second derivatives, in units of the activations it comes from.
_GRAPH = 4
# Numbers of activations at which several vectors go through a graph at once. On a CPU that pays only where the time
# goes into starting operations and not into the numbers.
_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
_WORTHWHILE = {"cpu": 16, "cuda": 2}
# Activations times products after which another form of a convolutional network's graph is made: they took as long as
# making it does.
_MUCH = 1 << 28
_TWICE = re.compile(r"differentiate twice|derivative for .* not implemented|[Dd]ouble backward|once_differentiable")
_HALF = (torch.float16, torch.bfloat16)


class Chunks(Generic[Held]):
    """The data in chunks, and for each what was built from it, kept where memory allows.

    Args:
        land: The landscape.
        build: Makes from the number of a chunk and its examples what products need.
    """

    def __init__(self, land: Landscape, build: Callable[[int, Any], Held]) -> None:
        self._land, self._build = land, build
        self._kept: dict[int, Held] = {}
        numbers = land.activations * min(land.chunk_rows(), land.data.rows) + land.dim
        self._room = _room(land.device) // (_GRAPH * numbers * land.center.element_size())

    def __iter__(self) -> Iterator[tuple[float, Held]]:
        """For each chunk its share of the examples, and what was built from it."""
        for number, batch in enumerate(self._land.passes()):
            held = self._kept.get(number)
            if held is None:
                with _differentiating(), preserved_rng():
                    held = self._build(number, batch)
                if number < self._room:
                    self._kept[number] = held
            yield leaves(batch)[0].shape[0] / self._land.data.rows, held

    def weighted_sum(self, product: Callable[[Held], Tensor]) -> Tensor:
        """Σ share · product over all chunks."""
        total: Tensor | None = None
        for share, held in self:
            found = product(held)
            if total is None:
                total = found.mul_(share) if share < 1 else found  # which may be expanded, or somebody's
            else:
                total.add_(found, alpha=share)
        assert total is not None
        return total


class SecondDerivative:
    """Products with the second derivative of a scalar function of the parameters, for one chunk.

    Args:
        land: The landscape.
        function: Maps the flat vector to a scalar.
        rows: Examples behind it.
        number: That of the chunk.
        compared: For chunks that were built before, whether products by layers were those of the graph.
    """

    def __init__(
        self,
        land: Landscape,
        function: Callable[[Tensor], Tensor],
        rows: int,
        number: int = 0,
        compared: dict[int, bool] | None = None,
    ) -> None:
        self._function, self._work = function, rows * land.activations
        self._center, self._several = land.center, several_at_once(land, rows)
        self._convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in land.network.modules())
        self._asked = 0
        self._linear: Callable[[Tensor], Tensor] | None = None
        self._point = land.center.detach().clone().requires_grad_()
        compared = {} if compared is None else compared
        model = land.network
        recorder = Recorder(model, [name for name, _ in model.named_parameters(remove_duplicate=False)])
        with recorder:
            value = function(self._point)
        self._chain = LayerChain.of(recorder, value, land.packing) if compared.get(number, True) else None
        recorder.forget()
        if self._chain is None or number not in compared:
            self._slope = self._graph(value)
        if self._chain is not None and number not in compared:
            compared[number] = self._holds(self._chain)
            if compared[number]:
                del self._slope
            else:
                self._chain = None

    def _graph(self, value: Tensor) -> Tensor:
        # A factor with a gradient, or operations that are once differentiable would not notice to be asked for more.
        factor = torch.ones((), dtype=self._point.dtype, device=self._point.device, requires_grad=True)
        (slope,) = torch.autograd.grad(factor * value, self._point, create_graph=True)
        _check_graph(slope)
        return slope

    def _holds(self, chain: LayerChain) -> bool:
        """Whether a product by layers is that of the graph, for a vector that moves all parameters."""
        probe = torch.randn(1, len(self._center), generator=torch.Generator().manual_seed(0), dtype=self._center.dtype)
        probe = probe.to(self._center.device)
        want = pulled(self._slope, self._point, probe, 1)
        try:
            return are_close([chain(probe)], [want])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # a product that this device does not have
            return False

    def __call__(self, vectors: Tensor) -> Tensor:
        """The products with `vectors`, one in each row."""
        with _differentiating():
            if self._chain is not None:
                return self._chain(vectors.detach())
            self._asked += len(vectors)
            if self._convolves and self._asked * self._work >= _MUCH:
                self._convolves = False  # tried once
                self._linear = self._forward_over_reverse(vectors[0])
            if self._linear is not None:
                with torch.no_grad():
                    return torch.stack([self._linear(v) for v in vectors])
            return pulled(self._slope, self._point, vectors, self._several)

    def _forward_over_reverse(self, probe: Tensor) -> Callable[[Tensor], Tensor] | None:
        """The derivative of the gradient along a vector as straight code, with all that is constant worked out.

        The second backward pass through a convolution takes up to three times as long as this, which takes some tenths
        of a second to make. None where the model has operations for which it cannot be made.
        """
        expected = pulled(self._slope, self._point, probe[None], 1)[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, linear = torch.func.linearize(torch.func.grad(self._function), self._center)
                with torch.no_grad():
                    linear(probe)  # works out what is constant
                    linear = without_zeros(linear, probe)
                    found = linear(probe)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # tracing fails in as many ways as there are models
            return None
        if not torch.allclose(found, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max())):
            return None
        return linear


class FirstDerivative:
    """Products with J = ∂values/∂w and its transpose, for one chunk.

    Args:
        land: The landscape.
        values: Maps the flat vector to a tensor.
        rows: Examples behind it.
    """

    def __init__(self, land: Landscape, values: Callable[[Tensor], Tensor], rows: int) -> None:
        self._several = several_at_once(land, rows)
        self._point = land.center.detach().clone().requires_grad_()
        self.values = values(self._point)
        self._back: tuple[Tensor, Tensor] | None = None

    def push(self, vectors: Tensor) -> Tensor:
        """J v for each row v, of shape (vectors, values).

        uᵀJ is linear in u, so that the derivative of (uᵀJ) v in u is J v: a backward pass through a backward pass, for
        any operation that has one.
        """
        with _differentiating():
            if self._back is None:
                weights = torch.zeros_like(self.values, requires_grad=True)
                (back,) = torch.autograd.grad(self.values, self._point, weights, create_graph=True)
                _check_graph(back)
                self._back = weights, back
            return pulled(self._back[1], self._back[0], vectors, self._several).flatten(1)

    def pull(self, weights: Tensor) -> Tensor:
        """Jᵀu for each row u, of shape (vectors, parameters)."""
        with _differentiating():
            shaped = weights.reshape(len(weights), *self.values.shape)
            return pulled(self.values, self._point, shaped, self._several)


class GaussNewtonChunk:
    """Products with Jᵀ S J for one chunk, S the second derivative of a loss in the outputs.

    Args:
        first: Derivatives of the outputs.
        loss: Maps outputs to a scalar.
    """

    def __init__(self, first: FirstDerivative, loss: Callable[[Tensor], Tensor]) -> None:
        self._first = first
        self._outputs = first.values.detach().clone().requires_grad_()
        (self._slope,) = torch.autograd.grad(loss(self._outputs), self._outputs, create_graph=True)

    def __call__(self, vectors: Tensor) -> Tensor:
        """The products with `vectors`, one in each row."""
        moved = self._first.push(vectors).reshape(-1, *self._outputs.shape)
        with _differentiating():
            curved = pulled(self._slope, self._outputs, moved, len(moved))
        return self._first.pull(curved)


class OuterProductChunk:
    """Products with the mean of g_i g_iᵀ for one chunk, g_i the gradient of the i-th value.

    Args:
        first: Derivatives of the values.
    """

    def __init__(self, first: FirstDerivative) -> None:
        self._first = first

    def __call__(self, vectors: Tensor) -> Tensor:
        """The products with `vectors`, one in each row."""
        return self._first.pull(self._first.push(vectors)) / self._first.values.numel()


def pulled(values: Tensor, at: Tensor, weights: Tensor, several: int) -> Tensor:
    """Derivatives of weighted sums of `values` in `at`: one for each of the weights along their first axis."""
    weights = weights.detach().to(values.dtype)
    if not values.requires_grad or not len(weights):
        return at.new_zeros(len(weights), *at.shape)
    if several > 1 and len(weights) > 1:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an operation without a rule for several is slower, and as right
                return torch.cat([_pulled_at_once(values, at, part) for part in torch.split(weights, several)])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an operation that cannot take several
            pass
    found = torch.empty(len(weights), *at.shape, dtype=at.dtype, device=at.device)
    for row, weight in zip(found, weights, strict=True):
        # Weights as an argument of `grad` would have torch load a package for symbolic algebra at the first use.
        total = values.reshape(-1) @ weight.reshape(-1)
        (slope,) = torch.autograd.grad(total, at, retain_graph=True, allow_unused=True)
        row.zero_() if slope is None else row.copy_(slope)
    return found


def _pulled_at_once(values: Tensor, at: Tensor, weights: Tensor) -> Tensor:
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
    (found,) = torch.autograd.grad(values, at, weights, **options)
    return at.new_zeros(len(weights), *at.shape) if found is None else found.detach()


def several_at_once(land: Landscape, rows: int) -> int:
    """How many vectors to send through a graph of so many examples at once; 1 where that would not be faster."""
    kind = "cuda" if land.device.type == "cuda" else "cpu"
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in land.network.modules())
    limit = "cpu" if convolves else kind  # several convolutions with weights of their own are slow anywhere
    several = _AT_ONCE[limit] // (rows * land.activations)
    return several if several >= _WORTHWHILE[limit] else 1


def outputs_of(land: Landscape, w: Tensor, batch: Any) -> Tensor:
    """What the model gives on `batch`, as the loss sees it.

    Raises:
        InputError: The loss takes the model as a whole, or the outputs are no tensor.
    """
    found = land.batch_outputs(w, batch)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = f"dtype {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"expected a model that gives one floating-point tensor, got {kind}; hessian and the empirical Fisher "
            "matrix take any outputs"
        )
    return found.float() if found.dtype in _HALF else found


def output_loss(land: Landscape, outputs: Tensor, batch: Any) -> Tensor:
    """Losses as a function of the outputs on `batch`: one per example, or their mean."""
    target = land.protected(batch[-1])
    wide = target.float() if isinstance(target, Tensor) and target.dtype in _HALF else target
    losses: Tensor = land.loss_form.fn(outputs, wide)
    return losses


def _room(device: torch.device) -> int:
    if device.type == "cuda":
        return int(_SHARE_OF_FREE * torch.cuda.mem_get_info(device)[0])
    return _ROOM


def _check_graph(value: Tensor) -> None:
    """Refuse a graph with an operation marked as once differentiable, whose part autograd would take for zero."""
    seen, ahead = set(), [value.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("::Error"):
            raise RuntimeError("an operation is marked as once_differentiable")
        seen.add(node)
        ahead += [after for after, _ in node.next_functions]


@contextlib.contextmanager
def _differentiating() -> Iterator[None]:
    """Gradients on, attention in the form that has second derivatives, and a clear word where there are none."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    except (RuntimeError, NotImplementedError) as error:
        if not _TWICE.search(str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise InputError(
            f"expected a model and a loss that can be differentiated twice, got {type(error).__name__}: {reason}; "
            "write the backward pass of that operation with differentiable operations, and use recurrent layers "
            "under torch.backends.cudnn.flags(enabled=False)"
        ) from error
