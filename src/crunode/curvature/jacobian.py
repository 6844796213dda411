"""The Jacobian of parameters → outputs on the data, in double precision, whatever the size of the model.

With f_i(w) the outputs on example i and H_i = R_iᵀR_i the second derivative of its loss in these outputs, rows are
those of R_i ∂f_i/∂w. Stacked over all examples they form J with JᵀJ/n = the Gauss-Newton matrix, which at a point that
realises the data is the Hessian of the loss (Kunstner et al. 2019). The factor R_i leaves out directions that the loss
cannot see, such as a shift of all logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves, map_tree
from crunode.core.landscape import Landscape
from crunode.core.params import Packing
from crunode.core.rng import preserved_rng
from crunode.errors import CrunodeError, InputError

__all__ = [
    "Evaluation",
    "NoOutputs",
    "Rows",
    "hessian_sketch",
    "jacobian_rows",
    "jacobian_sketch",
    "output_jacobian",
    "output_roots",
    "selected",
]

# Numbers held at once, and the widest example whose loss is differentiated twice in its outputs.
_CHUNK = 1 << 23
_WIDEST = 1024


class NoOutputs(CrunodeError):
    """The outputs of the model cannot be seen one example at a time; the message says why."""


@dataclass(frozen=True)
class Rows:
    """A block of rows of J.

    Attributes:
        jacobian: R ∂f/∂w with RᵀR = H, shape (rows, parameters), without the rows where R is zero.
        slope: The largest derivative of a loss in an output, over its second derivative times the largest output: how
            far labels are from outputs, relative to these. 0 where the data is realised.
        residual: R (f − reference) for the same rows, where a reference was given.
    """

    jacobian: Tensor
    slope: float
    residual: Tensor | None = None


class Evaluation:
    """Losses and outputs of a landscape as functions of the flat vector, in double precision where the model allows.

    Nothing of the landscape is changed. A model or loss that insists on its own dtype is evaluated in that one.

    Attributes:
        landscape: The landscape.
        center: Its center.
        dtype: In which everything is evaluated.
        dim: Number of free parameters.

    Example:
        >>> model = torch.nn.Linear(2, 3)
        >>> land = Landscape(model, (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> seen = Evaluation(land)
        >>> seen.dtype, seen.outputs_per_example()
        (torch.float64, 3)
    """

    def __init__(self, land: Landscape) -> None:
        self.landscape, self.dim = land, land.dim
        batch = self._probe()
        with torch.no_grad(), preserved_rng():
            native = land.batch_losses(land.center, batch)
            try:
                self._use(torch.float64)
                same = torch.allclose(self.losses(self.center, batch), native.double(), rtol=1e-2, atol=1e-4)
            except Exception:  # tensors made in single precision inside the model, or a device without doubles
                same = False
        if not same:
            self._use(land.center.dtype)

    def _use(self, dtype: torch.dtype) -> None:
        land = self.landscape
        self.dtype = dtype
        wide = dtype == torch.float64
        packing = land.packing
        self.packing: Packing = replace(packing, dtypes=(dtype,) * len(packing.names), dtype=dtype) if wide else packing
        self._fixed = {k: self.cast(v) for k, v in land.fixed.items()}
        self.center = land.center.to(dtype)

    def cast(self, t: Tensor) -> Tensor:
        """`t` in the dtype of the evaluation, where it holds floating-point numbers and that is double."""
        return t.to(self.dtype) if self.dtype == torch.float64 and t.is_floating_point() else t

    def _probe(self) -> Any:
        return map_tree(torch.clone, next(iter(self.landscape.passes(2))))

    def losses(self, w: Tensor, batch: Any) -> Tensor:
        """Losses of the examples in `batch`, or their scalar mean."""
        return self.landscape.functional({**self._fixed, **self.packing.unravel(w)}, map_tree(self.cast, batch))

    def outputs(self, w: Tensor, batch: Any) -> Tensor:
        """Outputs of the model on `batch`, with the examples as leading axis.

        Raises:
            NoOutputs: The loss is a function of the whole model, or the outputs are no tensor.
        """
        if self.landscape.loss_form.takes_model:
            raise NoOutputs(
                f"the loss {self.landscape.loss_name} takes the model as a whole, so its outputs are not seen"
            )
        named = {**self._fixed, **self.packing.unravel(w)}
        found = self.landscape.functional_outputs(named, map_tree(self.cast, batch))
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise NoOutputs(f"the model returns {type(found).__name__}, not one floating-point tensor")
        return found

    def outputs_per_example(self) -> int:
        """Number of outputs of one example.

        Raises:
            NoOutputs: They cannot be seen, or the loss couples examples.
        """
        if any(f.code == "DATA502" for f in self.landscape.findings):
            raise NoOutputs("the loss couples examples, so no example has outputs of its own")
        batch = self._probe()
        with torch.no_grad(), preserved_rng():
            found = self.outputs(self.center, batch)
        rows = leaves(batch)[0].shape[0]
        if found.ndim == 0 or found.shape[0] != rows:
            raise NoOutputs(f"{rows} examples give outputs of shape {tuple(found.shape)}")
        return found.numel() // rows

    def output_loss(self, output: Tensor, target: Any) -> Tensor:
        """Loss of one example as a function of its outputs (without the leading axis)."""
        value: Tensor = self.landscape.loss_form.fn(output[None], map_tree(lambda t: self.cast(t)[None], target))
        return value.sum()


def jacobian_rows(
    seen: Evaluation, examples: Tensor, at: Tensor | None = None, *, reference: Tensor | None = None
) -> Iterator[Rows]:
    """Rows of J for the given examples, in blocks that fit memory.

    Args:
        seen: The evaluation of a landscape.
        examples: Indices of examples, ascending.
        at: The point; None is the center.
        reference: A point whose outputs to compare with, for the residual.

    Raises:
        NoOutputs: There is no Jacobian to take.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(model, (torch.eye(2), torch.zeros(2, 1)), "gaussian")
        >>> [block.jacobian for block in jacobian_rows(Evaluation(land), torch.arange(2))]
        [tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)]
    """
    width = seen.outputs_per_example()
    point = (seen.center if at is None else at).detach()
    size = max(1, _CHUNK // (width * max(seen.dim, seen.landscape.activations)))
    for batch in selected(seen.landscape, examples, size):
        with preserved_rng():
            yield _block(seen, point, batch, width, reference)


def jacobian_sketch(seen: Evaluation, examples: Tensor, columns: int, *, seed: int, at: Tensor | None = None) -> Tensor:
    """J Ω for a random Gaussian Ω with `columns` columns, from products of J with vectors: J itself is never held.

    With as many columns as rows, rank(J Ω) = rank J with probability one, and any Ω gives rank(J Ω) ≤ rank J. The
    scale is such that the mean square singular value agrees with that of J.

    Args:
        seen: The evaluation of a landscape.
        examples: Indices of examples, ascending.
        columns: Columns of Ω.
        seed: Ω comes from it.
        at: The point; None is the center.

    Raises:
        NoOutputs: There is no Jacobian to take.
    """
    width = seen.outputs_per_example()
    point = (seen.center if at is None else at).detach()
    blocks = []
    for batch in selected(seen.landscape, examples, max(1, _CHUNK // (width * seen.landscape.activations))):
        generator = torch.Generator().manual_seed(seed)  # the same directions for all examples
        root, _ = _roots(seen, _plain_outputs(seen, point, batch), batch, width)
        with preserved_rng(), torch.enable_grad():
            free = point.clone().requires_grad_()
            outputs = seen.outputs(free, batch)
            # J v by two backward passes: uᵀJ is linear in u, and its product with v has the gradient J v in u.
            weights = torch.zeros_like(outputs, requires_grad=True)
            (pulled,) = torch.autograd.grad(outputs, free, weights, create_graph=True)
            moved = []
            for _ in range(columns):
                tangent = torch.randn(seen.dim, generator=generator, dtype=torch.float64).to(point)
                moved.append(torch.autograd.grad(pulled @ tangent, weights, retain_graph=True)[0])
        pushed = torch.stack(moved, -1).reshape(-1, width, columns)
        blocks.append((root @ pushed).reshape(-1, columns))
    return torch.cat(blocks).div(columns**0.5)


def hessian_sketch(seen: Evaluation, columns: int | None, *, seed: int) -> Tensor:
    """QᵀHQ for the Hessian H of the full loss at the center and orthonormal Q: H itself when `columns` is None.

    rank(QᵀHQ) ≤ rank H for any Q, and a positive semidefinite H stays so.

    Args:
        seen: The evaluation of a landscape.
        columns: Number of random directions; None takes all coordinates.
        seed: The directions come from it.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 + (w[1] * w[2]) ** 2, torch.zeros(3))
        >>> torch.diagonal(hessian_sketch(Evaluation(land), None, seed=0))
        tensor([2., 0., 0.], dtype=torch.float64)
    """
    land, dim = seen.landscape, seen.dim
    if columns is None or columns >= dim:
        basis = torch.eye(dim, dtype=seen.dtype, device=seen.center.device)
    else:
        generator = torch.Generator().manual_seed(seed)
        random = torch.randn(dim, columns, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(random).Q.to(seen.center)
    total = torch.zeros_like(basis)
    for batch in land.passes():
        share = leaves(batch)[0].shape[0] / land.data.rows
        with preserved_rng(), torch.enable_grad():
            point = seen.center.clone().requires_grad_()
            (slope,) = torch.autograd.grad(seen.losses(point, batch).mean(), point, create_graph=True)
            if not slope.requires_grad:
                continue
            for k in range(basis.shape[1]):
                (column,) = torch.autograd.grad(slope @ basis[:, k], point, retain_graph=True, allow_unused=True)
                if column is not None:
                    total[:, k] += share * column
    small = (basis.T @ total).double()
    return (small + small.T) / 2


def output_jacobian(seen: Evaluation, point: Tensor, batch: Any) -> Tensor:
    """∂f/∂w on a batch, shape (examples × outputs, parameters)."""
    try:
        found = _batched_jacobian(seen, point, batch)
    except Exception:
        found = _looped_jacobian(seen, point, batch)
    if not torch.isfinite(found.sum()):  # a tenth of the time of looking at each
        raise InputError("expected finite derivatives of the outputs, got some that are not; check weights and data")
    return found.reshape(-1, seen.dim).double()


def output_roots(seen: Evaluation, batch: Any) -> Tensor:
    """R with RᵀR the second derivative of each example's loss in its outputs at the center.

    A scalar where that is a multiple of the identity for all examples, as for squared errors; otherwise one matrix for
    each example.
    """
    outputs = _plain_outputs(seen, seen.center, batch)
    with torch.enable_grad():
        free = outputs.detach().clone().requires_grad_()
        total = seen.landscape.loss_form.fn(free, map_tree(seen.cast, batch[-1])).sum()
        (slope,) = torch.autograd.grad(total, free, create_graph=True)
        if slope.requires_grad:
            probe = torch.linspace(1, 2, free.numel(), dtype=free.dtype, device=free.device).reshape(free.shape)
            (product,) = torch.autograd.grad(slope, free, probe)
            ratio = product / probe
            if float(ratio.max() - ratio.min()) <= 1e-9 * float(ratio.mean()):
                return ratio.mean().sqrt()
    return _roots(seen, outputs, batch, outputs[0].numel())[0]


def selected(land: Landscape, examples: Tensor, size: int) -> Iterator[Any]:
    """The given examples in batches of at most `size`."""
    if land.data.stacked:
        for part in torch.split(examples.to(land.device), size):
            yield land.data.take(part)
        return
    start, chosen = 0, examples
    for batch in land.data.passes(size):
        stop = start + leaves(batch)[0].shape[0]
        inside = chosen[(chosen >= start) & (chosen < stop)] - start
        for part in torch.split(inside, size) if len(inside) else ():
            yield map_tree(lambda t, rows=part: t[rows.to(t.device)], batch)  # type: ignore[misc]
        start = stop


def _plain_outputs(seen: Evaluation, point: Tensor, batch: Any) -> Tensor:
    with torch.no_grad(), preserved_rng():
        return seen.outputs(point, batch)


def _roots(seen: Evaluation, outputs: Tensor, batch: Any, width: int) -> tuple[Tensor, float]:
    """R with RᵀR = H of the loss of each example in its outputs, and the relative slope of these losses."""
    if width > _WIDEST:
        raise NoOutputs(f"an example has {width} outputs, too many for the second derivative of its loss in them")
    shape = outputs.shape[1:]

    def loss(output: Tensor, target: Any) -> Tensor:
        return seen.output_loss(output.reshape(shape), target)

    flat = outputs.reshape(-1, width)
    try:
        first = torch.func.vmap(torch.func.grad(loss))(flat, batch[-1])
        second = torch.func.vmap(torch.func.jacrev(torch.func.grad(loss)))(flat, batch[-1])
    except Exception:  # a loss that torch.func cannot batch
        found = [
            _looped(loss, output, map_tree(lambda t, i=k: t[i], batch[-1]))  # type: ignore[misc]
            for k, output in enumerate(flat)
        ]
        first, second = (torch.stack(part) for part in zip(*found, strict=True))
    steepest, scale = float(first.abs().max()), float(second.abs().max() * outputs.abs().max())
    return _root(second), steepest / max(scale, 1e-300) if steepest else 0.0


def _root(second: Tensor) -> Tensor:
    """R with RᵀR = H; what rounding leaves of the directions that the loss cannot see is taken away."""
    diagonal = torch.diagonal(second, dim1=1, dim2=2)
    if torch.equal(torch.diag_embed(diagonal), second):
        values, axes = diagonal, torch.eye(second.shape[1], dtype=second.dtype, device=second.device)
    else:
        values, axes = torch.linalg.eigh(second)
    top = values.abs().max(1, keepdim=True).values
    if (values < -1e-6 * top).any():
        raise NoOutputs("the loss is not convex in the outputs at this point")
    limit = 1e3 * second.shape[1] * torch.finfo(second.dtype).eps
    kept = torch.where(values > limit * top, values, torch.zeros_like(values))
    return kept.sqrt()[:, :, None] * axes.transpose(-1, -2)


def _looped(loss: Callable[..., Tensor], output: Tensor, target: Any) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        free = output.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(free, target), free, create_graph=True)
        rows = []
        for entry in slope:
            row = None
            if entry.requires_grad:
                (row,) = torch.autograd.grad(entry, free, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(free) if row is None else row)
    return slope.detach(), torch.stack(rows).detach()


def _block(seen: Evaluation, point: Tensor, batch: Any, width: int, reference: Tensor | None) -> Rows:
    jacobian = output_jacobian(seen, point, batch)
    outputs = _plain_outputs(seen, point, batch)
    root, slope = _roots(seen, outputs, batch, width)
    weighted = root @ jacobian.reshape(-1, width, seen.dim)
    seen_by_loss = root.ne(0).any(2).reshape(-1)
    if not torch.isfinite(weighted).all():
        raise InputError("expected finite derivatives of the outputs, got some that are not; check weights and data")
    residual = None
    if reference is not None:
        away = (outputs - _plain_outputs(seen, reference, batch)).reshape(-1, width, 1)
        residual = (root @ away).reshape(-1)[seen_by_loss].double()
    return Rows(weighted.reshape(-1, seen.dim)[seen_by_loss].double(), slope, residual)


def _batched_jacobian(seen: Evaluation, point: Tensor, batch: Any) -> Tensor:
    def one(w: Tensor, example: Any) -> Tensor:
        return seen.outputs(w, map_tree(lambda t: t[None], example)).reshape(-1)

    found: Tensor = torch.func.vmap(torch.func.jacrev(one), (None, 0))(point, batch)
    return found.detach()


def _looped_jacobian(seen: Evaluation, point: Tensor, batch: Any) -> Tensor:
    """One backward pass per output, for models that torch.func cannot batch."""
    rows = []
    for index in range(leaves(batch)[0].shape[0]):
        with torch.enable_grad():
            free = point.clone().requires_grad_()
            example = map_tree(lambda t, i=index: t[i : i + 1], batch)  # type: ignore[misc]
            for value in seen.outputs(free, example).reshape(-1):
                found = torch.autograd.grad(value, free, retain_graph=True, allow_unused=True)[0]
                rows.append(torch.zeros_like(free) if found is None else found)
    return torch.stack(rows).detach()
