"""Recording a function of tensors once and replaying its operations without what surrounded them.

For a small model, a step of sampling costs far more in Python, `torch.func` and autograd than in arithmetic. All of
that produces the same few dozen tensor operations at every step, so they are recorded once and replayed. Along the
way views that change nothing are dropped, values that do not depend on the inputs are computed once, and products
with a narrow result are computed in the transposed order, which on CPUs is several times faster.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map_only

from crunode.sampling.replay import halves
from crunode.sampling.replay.calls import Call, Recorder, Untapeable, written_by
from crunode.sampling.replay.memory import filling, memory, smallest, storage, trailing, viewable
from crunode.sampling.replay.sparse import SparseProducts
from crunode.sampling.replay.standing import give_standing
from crunode.sampling.replay.views import Bound

__all__ = ["NARROW", "Untapeable", "record"]

NARROW = 32
_ATEN = torch.ops.aten
_VIEWS = {_ATEN.view.default, _ATEN._unsafe_view.default}
_PRODUCTS = {_ATEN.mm.default: torch.mm, _ATEN.bmm.default: torch.bmm}
# By the number of tensors they take, which come first and are followed by the axis.
_SOFTMAX = {
    _ATEN._log_softmax.default: (torch._log_softmax, 1),
    _ATEN._log_softmax_backward_data.default: (torch._log_softmax_backward_data, 2),
}
_VALUELESS = {"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"}


def record(
    fn: Callable[..., tuple[Tensor, ...]],
    *inputs: Tensor,
    narrow: int = 0,
    strided: Sequence[Tensor] = (),
    sparse: Mapping[int, int] | None = None,
    overwrite: bool = False,
    halved: bool = False,
) -> Callable[..., tuple[Tensor, ...]]:
    """A function equal to `fn` for tensors of the same shapes and dtypes, that runs its tensor operations alone.

    Whatever else `fn` reads (buffers, Python values) is taken as it was during the recording.

    Args:
        fn: A function of tensors, which returns a tuple of tensors.
        inputs: Tensors to record with.
        narrow: Products with at most this many columns are computed in transposed order; 0 for none.
        strided: The same tensors with the strides they will have from now on, where these are others.
        sparse: Inputs of whose entries most are zero, by number, with the most non-zero ones in a row: products with
            these are computed over the non-zero entries where that is faster.
        overwrite: The first result is overwritten by the next call, which spares memory from being taken anew.
        halved: Large products are computed in half precision, in three parts (see `crunode.sampling.replay.halves`).

    Raises:
        Untapeable: The operations depend on values (branches, `.item()`, masks), are random, or change their inputs.

    Example:
        >>> double = record(lambda x: ((x * 2).sum(),), torch.ones(3))
        >>> double(torch.tensor([1.0, 2.0, 3.0]))
        (tensor(12.),)
    """
    recorder = Recorder()
    with torch.no_grad(), recorder:
        out = fn(*inputs)
    with torch.no_grad():
        writer = _Writer(inputs, strided or inputs, recorder.calls, narrow, sparse or {}, halved)
        module = writer.write(out)
        if writer.written:
            replay: Callable[..., tuple[Tensor, ...]] = module.forward
            return replay
        tensors = {node: value.tensor for node, value in writer.made.items()}
        if inputs[0].device.type == "cpu":  # elsewhere torch keeps freed memory itself
            give_standing(module, tensors, first_too=overwrite)
        return Bound(module, tensors)


@dataclass
class _Value:
    """A tensor (or several) of the recorded run and the node that makes it."""

    tensor: Any
    node: fx.Node | None
    constant: bool = False


class _Writer:
    """Goes through the recorded calls once, executing as it writes, so that shapes and strides are always known."""

    def __init__(
        self,
        inputs: Sequence[Tensor],
        strided: Sequence[Tensor],
        calls: list[Call],
        narrow: int,
        sparse: Mapping[int, int],
        halved: bool,
    ) -> None:
        self.halved = halved
        self.halves: dict[Any, tuple[_Value, _Value]] = {}
        self.graph, self.root, self.calls, self.narrow = fx.Graph(), torch.nn.Module(), calls, narrow
        self.values: dict[int, _Value] = {}
        self.views: dict[Any, _Value] = {}
        self.made: dict[Any, _Value] = {}
        self.flat: dict[int, _Value] = {}  # views that would have to copy: of what, for as long as nobody reads them
        self.written = {storage(tensor) for call in calls for tensor in written_by(call)}
        self.inputs = {storage(tensor) for tensor in (*inputs, *strided)}
        self.sparse = SparseProducts([(strided[k], most) for k, most in sparse.items()])
        for k, (tensor, same) in enumerate(zip(inputs, strided, strict=True)):
            value = _Value(same, self.graph.placeholder(f"input_{k}"))
            self.made[value.node] = value
            self._keep(tensor, value)

    def write(self, out: tuple[Tensor, ...]) -> fx.GraphModule:
        for call in self.calls:
            self._call(*call)
        self.taken = self.inputs | {storage(buffer) for buffer in self.root.buffers()}
        self.graph.output(tuple(self._output(self._of(tensor)) for tensor in out))
        if not self.written:
            self.graph.eliminate_dead_code()
        return fx.GraphModule(self.root, self.graph)

    def _output(self, value: _Value) -> fx.Node:
        """What is returned belongs to the caller: constants, inputs and parts of others are copied."""
        place = storage(value.tensor)
        if value.constant or place in self.taken or not value.tensor.is_contiguous():
            value = self._emit(torch.clone, (value,), {"memory_format": torch.contiguous_format})
        self.taken.add(place)
        return self._node(value)

    def _call(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        for tensor in written_by((func, args, kwargs, result)):
            if self._of(tensor).constant or storage(tensor) in self.inputs:
                raise Untapeable(f"{func} changes a tensor that outlives the call")
        safe = isinstance(result, Tensor) and storage(result) not in self.written
        if safe and func in _VIEWS:
            self._view(args[0], result)
            return
        if safe and self.flat and self._is_pointwise(func, args) and self._unflattened(func, args, kwargs, result):
            return
        if safe and (self._scaled(func, args, result) or self._by_class(func, args, result)):
            return
        if safe and (self._sparse(func, args, kwargs, result) or self._in_halves(func, args, kwargs, result)):
            return
        mapped = tree_map_only(Tensor, self._of, (args, kwargs))
        if not isinstance(result, Tensor):
            self._unpack(self._emit(func, *mapped), result)
            return
        sources = [leaf for leaf in tree_leaves(mapped) if isinstance(leaf, _Value)]
        if safe and (all(s.constant for s in sources) or func.overloadpacket.__name__ in _VALUELESS):
            self._keep(result, _Value(smallest(result), None, constant=True))
        elif safe and func in _PRODUCTS and self._is_narrow(result):
            flipped = [self._emit(torch.transpose, (source, -2, -1)) for source in reversed(sources)]
            product = self._emit(_PRODUCTS[func], tuple(flipped))
            self._keep(result, self._emit(torch.transpose, (product, -2, -1)))
        elif safe and func is _ATEN.addmm.default and not kwargs and args[0].ndim == 1 and self._is_narrow(result):
            bias = self._emit(torch.unsqueeze, (sources[0], -1))
            flipped = [self._emit(torch.transpose, (source, -2, -1)) for source in reversed(sources[1:])]
            product = self._emit(torch.addmm, (bias, *flipped))
            self._keep(result, self._emit(torch.transpose, (product, -2, -1)))
        else:
            self._keep(result, self._emit_fast(func, *mapped))

    def _view(self, source: Tensor, result: Tensor) -> None:
        value, shape = self.flat.get(id(source)) or self._of(source), tuple(result.shape)
        if value.constant:
            self._keep(result, _Value(value.tensor.reshape(shape), None, constant=True))
        elif tuple(value.tensor.shape) == shape:
            self.values[id(result)] = value
        elif viewable(value.tensor, shape):
            self._keep(result, self._emit(torch.reshape, (value, shape)))
        else:
            self.flat[id(result)] = value

    def _is_pointwise(self, func: Any, args: Any) -> bool:
        """Entry by entry, whatever the shape: also losses before reduction, whose batching rules flatten them."""
        return torch.Tag.pointwise in func.tags or (func is _ATEN.mse_loss.default and tuple(args[2:]) == (0,))

    def _unflattened(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> bool:
        """Apply a pointwise operation to what its arguments are copying views of, so that nothing is copied."""
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        whole = [self.flat[id(t)] for t in tensors if id(t) in self.flat and t.ndim == result.ndim]
        if not whole:
            return False
        shapes = {id(t): trailing(tuple(whole[0].tensor.shape), t.numel()) for t in tensors}
        for t in tensors:
            known = self.flat[id(t)].tensor.shape if id(t) in self.flat else shapes[id(t)]
            if t.shape != result.shape[result.ndim - t.ndim :] or shapes[id(t)] is None or known != shapes[id(t)]:
                return False
        mapped = tree_map_only(
            Tensor,
            lambda t: self.flat.get(id(t)) or self._emit(torch.reshape, (self._of(t), shapes[id(t)])),
            (args, kwargs),
        )
        self.flat[id(result)] = self._emit_fast(func, *mapped)
        return True

    def _scaled(self, func: Any, args: Any, result: Tensor) -> bool:
        """Drop powers of one, and let a number meet what multiplies after it, so that both take one pass."""
        if func is _ATEN.pow.Tensor_Scalar and args[1] == 1:
            self._keep(result, self._of(args[0]))
            return True
        if func is not _ATEN.mul.Tensor or not all(isinstance(a, Tensor) and a.dtype == result.dtype for a in args):
            return False
        for one, other in (args, reversed(args)):
            node = self._of(other).node
            if node is None or node.target is not torch.mul or self._of(other).constant:
                continue
            before, factor = node.args
            if not isinstance(factor, int | float) or before not in self.made:
                continue
            if self._of(one).constant:
                joint = _Value(smallest(self._of(one).tensor * factor), None, constant=True)
                self._keep(result, self._emit(torch.mul, (self.made[before], joint)))
                return True
            if result.is_floating_point() and self.made[before].tensor.dtype == result.dtype:
                none = _Value(result.new_zeros(()), None, constant=True)
                made = self._emit(torch.addcmul, (none, self._of(one), self.made[before]), {"value": factor})
                self._keep(result, made)
                return True
        return False

    def _by_class(self, func: Any, args: Any, result: Tensor) -> bool:
        """Take the softmax over a short last axis with rows next to each other in memory: a tenth of the time."""
        if func not in _SOFTMAX or not self.narrow or result.ndim < 2 or not 2 <= result.shape[-1] <= self.narrow:
            return False
        direct, tensors = _SOFTMAX[func]
        if args[tensors] not in (-1, result.ndim - 1):
            return False
        flipped = [self._emit(torch.transpose, (self._of(tensor), -2, -1)) for tensor in args[:tensors]]
        made = self._emit(direct, (*flipped, result.ndim - 2, *args[tensors + 1 :]))
        self._keep(result, self._emit(torch.transpose, (made, -2, -1)))
        return True

    def _sparse(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> bool:
        """Compute a product with examples that are mostly zeros over the others alone."""
        if kwargs or not (func in _PRODUCTS or (func is _ATEN.addmm.default and args[0].ndim == 1)):
            return False
        *bias, a, b = (self._of(tensor) for tensor in args)
        found = self.sparse.of(a.tensor, b.tensor)
        if found is None:
            return False
        product, scratch = found
        made = self._emit(product, (a, b, self._of(scratch)))
        self._keep(result, self._emit(torch.add, (made, bias[0])) if bias else made)
        return True

    def _in_halves(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> bool:
        """Compute a large product as three in half precision."""
        if not self.halved or kwargs or func not in (_ATEN.mm.default, _ATEN.addmm.default):
            return False
        if not halves.pays(*args[-2:]) or any(storage(tensor) in self.written for tensor in args):
            return False
        *bias, a, b = (self._of(tensor) for tensor in args)
        if a.constant and b.constant:  # so is the product
            return False
        made = self._emit(halves.product, (*self._halves_of(a), *self._halves_of(b), *result.shape))
        self._keep(result, self._emit(torch.add, (made, bias[0])) if bias else made)
        return True

    def _halves_of(self, value: _Value) -> tuple[_Value, _Value]:
        """The halves of a matrix and its largest entry; a matrix and its transpose are taken apart once."""
        if not value.tensor.is_contiguous() and value.tensor.T.is_contiguous():
            parts, size = self._halves_of(self._once(torch.transpose, value, 0, 1))
            return self._once(torch.transpose, parts, 1, 2), size
        key = memory(value.tensor)
        if key not in self.halves:
            size = self._once(halves.largest, value)
            self.halves[key] = self._once(halves.halved, value, size), size
        return self.halves[key]

    def _once(self, target: Any, value: _Value, *others: Any) -> _Value:
        """An operation that is done here where it is one on a constant."""
        if not value.constant:
            return self._emit(target, (value, *others))
        tensors = [other.tensor if isinstance(other, _Value) else other for other in others]
        return _Value(target(value.tensor, *tensors), None, constant=True)

    def _is_narrow(self, result: Tensor) -> bool:
        """True when a product is faster in transposed order: its rows are short, or fill vector registers badly."""
        rows, columns = result.shape[-2:]
        if not self.narrow or columns < 2:
            return False
        return (columns <= self.narrow and rows >= 2 * columns) or filling(rows) > 1.1 * filling(columns)

    def _unpack(self, made: _Value, result: Any) -> None:
        for k, part in enumerate(result):
            if isinstance(part, Tensor):
                node = self.graph.call_function(operator.getitem, (made.node, k))
                self.made[node] = self._known(_Value(made.tensor[k], node))
                self._keep(part, self.made[node])

    def _emit_fast(self, func: Any, args: Any, kwargs: Any) -> _Value:
        """The same operation by its binding in `torch`, which takes less time to call than the operator object."""
        name = func.overloadpacket.__name__
        direct = getattr(torch, name, None) or getattr(Tensor, name, None)
        if type(direct).__name__ in ("builtin_function_or_method", "method_descriptor") and not func._schema.is_mutable:
            try:
                made = self._emit(direct, args, kwargs)
            except (TypeError, RuntimeError):
                pass
            else:
                return made
        return self._emit(func, args, kwargs)

    def _emit(self, target: Any, args: Any, kwargs: Any = None) -> _Value:
        tensors = tree_map_only(_Value, lambda v: v.tensor, (args, kwargs or {}))
        made = target(*tensors[0], **tensors[1])
        node = self.graph.call_function(target, *tree_map_only(_Value, self._node, (args, kwargs or {})))
        value = self.made[node] = self._known(_Value(made, node))
        return value

    def _known(self, made: _Value) -> _Value:
        """The value that already holds the very same memory, where the new one is a view that changes nothing."""
        return self.views.setdefault(memory(made.tensor), made) if isinstance(made.tensor, Tensor) else made

    def _keep(self, original: Tensor, value: _Value) -> None:
        self.values[id(original)] = value
        self.views.setdefault(memory(value.tensor), value)

    def _of(self, tensor: Tensor) -> _Value:
        if id(tensor) in self.flat:  # the copy has to be made; whoever reads the source from here on reads it there
            source = self.flat.pop(id(tensor))
            copied = self.values[id(tensor)] = self._emit(torch.reshape, (source, tuple(tensor.shape)))
            again = self._emit(torch.reshape, (copied, tuple(source.tensor.shape)))
            self.values = {key: again if value is source else value for key, value in self.values.items()}
        elif id(tensor) not in self.values:
            self._keep(tensor, _Value(tensor, None, constant=True))
        return self.values[id(tensor)]

    def _node(self, value: _Value) -> fx.Node:
        if value.node is None:
            name = f"constant_{len(self.root._buffers)}"
            self.root.register_buffer(name, value.tensor)
            value.node = self.graph.get_attr(name)
            self.made[value.node] = value
        return value.node
