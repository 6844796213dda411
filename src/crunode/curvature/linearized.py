"""A network replaced by its linear part in the weights: f(θ0) + J(θ − θ0), and what can be solved exactly there.

For squared errors the loss of the linearized network is a least-squares problem. Its solution nearest to θ0 is the
Gauss-Newton step θ1 = θ0 + J⁺(y − f(θ0)), and gradient descent on it shrinks the residual by I − αK in each step, with
the tangent kernel K = JJᵀ. `crunode.curvature.lazy` tells how far the network itself follows.

References:
    Tanner, Theories of Deep Learning, lecture 9 (linearization of the neural network); Jacot, Gabriel & Hongler 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import map_tree
from crunode.core.landscape import Landscape
from crunode.core.rng import preserved_rng
from crunode.curvature.gram import tangent_kernel
from crunode.curvature.jacobian import Evaluation, NoOutputs, output_jacobian, output_roots
from crunode.curvature.outputs import pushed
from crunode.curvature.rank import NumericRank, numeric_rank
from crunode.errors import InputError

__all__ = ["Factors", "Linearized", "OutputLoss", "linearize"]

# Entries of J that are held, on a processor and on a graphics card; and the side of JJᵀ where J is not held.
_ENTRIES, _ENTRIES_CUDA = 1 << 25, 1 << 28
_SIDE = 1 << 13
_CHUNK = 1 << 23
# How far away a loss has to be quadratic to be one of squared errors, relative to the outputs.
_FAR = (1.0, 1e6)
_LEVEL = (
    "expected a loss with a second derivative in the outputs wherever it has a first one, such as squared errors or "
    "cross-entropy, got one that is level or kinked there; take gradient steps instead"
)


@dataclass(frozen=True)
class Factors:
    """J (or RJ) by its singular values: U diag(s) Vᵀ, without those that are zero to rounding.

    Attributes:
        left: U, with one column for each singular value that counts.
        values: s, descending.
        right: V, where J was held; None where only JJᵀ was.
        rank: How many count, and how clear that is.
        shape: Rows and columns of the matrix.
    """

    left: Tensor
    values: Tensor
    right: Tensor | None
    rank: NumericRank
    shape: tuple[int, int]

    @property
    def condition(self) -> float:
        """Largest over smallest singular value that counts, squared: the condition number κ of JJᵀ."""
        return float((self.values[0] / self.values[-1]) ** 2)


@dataclass(frozen=True)
class OutputLoss:
    """The loss as a function of the outputs, to second order at θ0: gᵀδ + ½ ‖Rδ‖² for each example.

    Attributes:
        slope: g for all examples, flat.
        root: R; a scalar where all second derivatives are one multiple of the identity, else a matrix per example.
        squared: Whether that is the loss itself, at all outputs: squared errors.
    """

    slope: Tensor
    root: Tensor
    squared: bool

    def residual(self) -> Tensor:
        """R δ for the change δ of outputs that would be best for the second-order loss, over the rows of R not zero.

        Raises:
            InputError: There is no such change: the loss falls without end along some outputs.
        """
        if self.root.ndim == 0:
            if not self.root > 0 and self.slope.any():
                raise InputError(_LEVEL)
            return -self.slope / self.root.clamp(min=1e-300)
        slope = self.slope.reshape(len(self.root), -1, 1)
        size = self.root.square().sum(2, keepdim=True)
        wanted = torch.where(size > 0, self.root @ slope / size.clamp(min=1e-300), torch.zeros_like(size))
        if float((self.root.transpose(1, 2) @ wanted - slope).norm()) > 1e-6 * float(slope.norm()):
            raise InputError(_LEVEL)
        return -wanted.reshape(-1)[self.seen()]

    def seen(self) -> Tensor:
        """Which rows of R are not zero: the loss cannot see a common shift of logits."""
        return self.root.ne(0).any(2).reshape(-1)

    def weighted(self, matrix: Tensor) -> Tensor:
        """R times a matrix with one row for each output (the matrix itself where R is a scalar times 1)."""
        if self.root.ndim == 0:
            return self.root * matrix
        blocks = matrix.reshape(self.root.shape[0], self.root.shape[2], -1)
        return (self.root @ blocks).reshape(-1, blocks.shape[2])[self.seen()]

    def back(self, u: Tensor) -> Tensor:
        """Rᵀu, one number for each output."""
        if self.root.ndim == 0:
            return self.root * u
        full = u.new_zeros(self.root.shape[0] * self.root.shape[1])
        full[self.seen()] = u
        return (self.root.transpose(1, 2) @ full.reshape(*self.root.shape[:2], 1)).reshape(-1)


@dataclass(frozen=True)
class Linearized:
    """The linear part of a network in its weights, at the center θ0 of a landscape, in double precision.

    Attributes:
        landscape: The landscape.
        center: θ0.
        outputs: f(θ0) on all examples, flat: the outputs of the first example, those of the second, ...
        width: Outputs of an example.
        jacobian: J, one row for each output of each example; None where it is too large to be held. Its rows are the
            tangent features of the examples.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(net, (torch.eye(2), torch.zeros(2, 1)), "gaussian")
        >>> linearize(land).kernel()
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.float64)
    """

    landscape: Landscape
    center: Tensor
    outputs: Tensor
    width: int
    jacobian: Tensor | None = field(repr=False)
    _seen: Evaluation = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of J."""
        return len(self.outputs), len(self.center)

    def push(self, step: Tensor) -> Tensor:
        """J times a step of the weights."""
        step = step.to(self.center)
        if self.jacobian is not None:
            return self.jacobian @ step.double()
        with preserved_rng():
            parts = [pushed(partial(self._flat, batch=batch), self.center, step) for batch in self._batches()]
        return torch.cat(parts).double()

    def pull(self, weights: Tensor) -> Tensor:
        """Jᵀ times one number for each output."""
        if self.jacobian is not None:
            return self.jacobian.T @ weights.double()
        total, start = torch.zeros_like(self.center), 0
        for batch in self._batches():
            with preserved_rng(), torch.enable_grad():
                free = self.center.clone().requires_grad_()
                value = self._flat(free, batch=batch)
                part = weights[start : start + len(value)].to(value)
                total += torch.autograd.grad(value, free, part)[0]
            start += len(value)
        return total.double()

    def kernel(self) -> Tensor:
        """The tangent kernel K = JJᵀ between all outputs of all examples.

        Raises:
            InputError: It is too large to be held.
        """
        rows = len(self.outputs)
        if rows > _SIDE:
            raise InputError(
                f"expected at most {_SIDE} outputs over all examples for their kernel, got {rows}; take fewer examples"
            )
        if self.jacobian is not None:
            return self.jacobian @ self.jacobian.T
        try:
            return tangent_kernel(self.landscape)
        except (NoOutputs, InputError):
            return self._kernel_by_pairs()

    def _kernel_by_pairs(self) -> Tensor:
        """JJᵀ of a model whose layers do not show the gradients of single examples, and whose J is too large."""
        rows = len(self.outputs)
        found = self.outputs.new_empty(rows, rows)
        blocks, start = list(self._jacobian_batches()), 0
        for k, batch in enumerate(blocks):
            here = output_jacobian(self._seen, self.center, batch)
            stop, first = start + len(here), 0
            for other in blocks[:k]:  # rows of J are made anew for each pair, and never held together
                there = output_jacobian(self._seen, self.center, other)
                found[start:stop, first : first + len(there)] = here @ there.T
                first += len(there)
            found[:start, start:stop] = found[start:stop, :start].T
            found[start:stop, start:stop] = here @ here.T
            start = stop
        return found

    def at(self, weights: Any) -> Tensor:
        """Outputs of the linearized network at other weights, f(θ0) + J(θ − θ0), flat."""
        return self.outputs + self.push(self.point(weights) - self.center)

    def point(self, weights: Any) -> Tensor:
        """Other weights as a flat vector: a module, named tensors, or a vector of them."""
        if isinstance(weights, Tensor):
            if weights.shape != self.center.shape or not bool(torch.isfinite(weights).all()):
                raise InputError(
                    f"expected a flat vector of {len(self.center)} finite weights, got a tensor of shape "
                    f"{tuple(weights.shape)}{'' if weights.shape != self.center.shape else ' with others'}"
                )
            return weights.detach().to(self.center)
        return self.landscape.at(weights).center.to(self.center)

    def network(self, weights: Any) -> Tensor:
        """Outputs of the network itself at other weights, flat."""
        point = self.point(weights)
        with torch.no_grad(), preserved_rng():
            return torch.cat([self._flat(point, batch=batch) for batch in self._batches()]).double()

    def loss(self, weights: Any) -> float:
        """The loss of the linearized network at other weights, mean over examples."""
        self._refuse_scalar()
        outputs, start, total = self.at(weights).to(self._seen.dtype), 0, 0.0
        with torch.no_grad(), preserved_rng():
            for batch in self._batches():
                like = self._seen.outputs(self.center, batch)
                moved = outputs[start : start + like.numel()].reshape(like.shape)
                total += float(self._losses(moved, batch).double().sum())
                start += like.numel()
        return total / self.landscape.data.rows

    def output_loss(self) -> OutputLoss:
        """First and second derivatives of the loss in the outputs at θ0.

        Raises:
            InputError: The loss has none of its own for each example, or is not convex in the outputs.
        """
        self._refuse_scalar()
        slopes, roots, squared = [], [], True
        for batch in self._batches():
            with preserved_rng():
                try:
                    root = output_roots(self._seen, batch)
                except NoOutputs as error:
                    raise InputError(f"expected a loss that is convex in the outputs, but {error}") from error
                with torch.no_grad():
                    outputs = self._seen.outputs(self.center, batch)
                slope = self._slope(outputs, batch)
                squared = squared and root.ndim == 0 and self._squared(outputs, slope, root, batch)
            slopes.append(slope.reshape(-1).double())
            roots.append(root.double())
        plain = all(root.ndim == 0 for root in roots)
        same = plain and all(math.isclose(float(root), float(roots[0]), rel_tol=1e-9) for root in roots)
        if not same:
            eye = torch.eye(self.width, dtype=torch.float64, device=self.center.device)
            sizes = [len(slope) // self.width for slope in slopes]
            roots = [r * eye.expand(n, -1, -1) if r.ndim == 0 else r for r, n in zip(roots, sizes, strict=True)]
        return OutputLoss(torch.cat(slopes), roots[0] if same else torch.cat(roots), same and squared)

    def factors(self, loss: OutputLoss | None = None) -> Factors:
        """Singular values and vectors of J, or of RJ for a loss.

        From J itself where it is held; otherwise from JJᵀ, which shows singular values down to 1e-8 of the largest.

        Raises:
            InputError: The outputs do not depend on the weights, or there are too many for JJᵀ.
        """
        eps = torch.finfo(self._seen.dtype).eps
        if self.jacobian is not None:
            matrix = self.jacobian if loss is None else loss.weighted(self.jacobian)
            left, values, right = torch.linalg.svd(matrix, full_matrices=False)
            rank = numeric_rank(values.cpu().numpy(), max(matrix.shape), eps)
            shape, turned = (matrix.shape[0], matrix.shape[1]), right.T[:, : rank.rank]
        else:
            gram = self.kernel()
            if loss is not None:
                gram = loss.weighted(loss.weighted(gram).T)
            squares, axes = torch.linalg.eigh(gram)
            left, values = axes.flip(1), squares.clamp(min=0).sqrt().flip(0)
            rank = numeric_rank(values.cpu().numpy(), max(self.shape), math.sqrt(len(gram) * eps))
            shape, turned = (len(gram), len(self.center)), None
        if rank.rank == 0:
            raise InputError(
                "expected outputs that depend on the weights in a way that the loss sees, got a Jacobian of zeros; "
                "look at another point"
            )
        return Factors(left[:, : rank.rank], values[: rank.rank], turned, rank, shape)

    def _refuse_scalar(self) -> None:
        if not self.landscape.pointwise:
            raise InputError(
                f"expected one loss per example, got a scalar from the loss {self.landscape.loss_name}; return a "
                "vector with one entry for each example of the batch"
            )

    def _batches(self) -> Any:
        return self.landscape.passes()

    def _jacobian_batches(self) -> Any:
        most = max(self._seen.dim, self.landscape.activations)
        return self.landscape.passes(max(1, _CHUNK // (self.width * most)))

    def _flat(self, w: Tensor, *, batch: Any) -> Tensor:
        return self._seen.outputs(w, batch).reshape(-1)

    def _losses(self, outputs: Tensor, batch: Any) -> Tensor:
        values: Tensor = self.landscape.loss_form.fn(outputs, map_tree(self._seen.cast, batch[-1]))
        return values

    def _squared(self, outputs: Tensor, slope: Tensor, root: Tensor, batch: Any) -> bool:
        """Whether the slope of the loss is linear in the outputs, also far away."""
        close = 1e3 * torch.finfo(outputs.dtype).eps
        away = torch.linspace(-3, 5, outputs.numel(), dtype=outputs.dtype, device=outputs.device).reshape(outputs.shape)
        for far in _FAR:
            shift = far * (1 + float(outputs.abs().max())) * away
            change = root**2 * shift
            off = self._slope(outputs + shift, batch) - slope - change
            if not float(off.abs().max()) <= close * float(change.abs().max() + slope.abs().max()):
                return False
        return True

    def _slope(self, outputs: Tensor, batch: Any) -> Tensor:
        with torch.enable_grad():
            free = outputs.detach().clone().requires_grad_()
            return torch.autograd.grad(self._losses(free, batch).sum(), free)[0]


def linearize(land: Landscape) -> Linearized:
    """The network of a landscape, linearized in its weights at the center: f(θ0) + J(θ − θ0).

    J is held as a matrix where it has at most 2²⁵ entries (2²⁸ on a graphics card); larger ones are only multiplied.

    Args:
        land: The landscape; its loss is one of (outputs, target).

    Raises:
        InputError: The outputs of the model cannot be seen one example at a time.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
        >>> land = Landscape(net, (torch.ones(5, 3), torch.zeros(5, 2)), "gaussian")
        >>> linear = linearize(land)
        >>> linear.shape  # 5 examples × 2 outputs, 16 + 10 weights
        (10, 26)
        >>> bool(torch.equal(linear.at(land.center), linear.network(land.center)))
        True

    References:
        Tanner, Theories of Deep Learning, lecture 9.
    """
    seen = Evaluation(land)
    try:
        width = seen.outputs_per_example()
        with torch.no_grad(), preserved_rng():
            outputs = torch.cat([seen.outputs(seen.center, batch).reshape(-1) for batch in land.passes()]).double()
    except NoOutputs as error:
        raise InputError(
            f"expected a model with outputs of its own for each example, but {error}; give a loss of (outputs, target)"
        ) from error
    if len(outputs) != width * land.data.rows or not bool(torch.isfinite(outputs).all()):
        what = "others" if len(outputs) == width * land.data.rows else "outputs of several sizes"
        raise InputError(f"expected {width} finite outputs for each example, got {what}; check the data")
    bare = Linearized(land, seen.center, outputs, width, None, seen)
    if len(outputs) * land.dim > (_ENTRIES_CUDA if land.device.type == "cuda" else _ENTRIES):
        return bare
    with preserved_rng():
        rows = [output_jacobian(seen, seen.center, batch) for batch in bare._jacobian_batches()]
    return Linearized(land, seen.center, outputs, width, torch.cat(rows), seen)
