"""The matrix of inner products of per-example gradients, from activations and back-propagated signals.

With G the matrix whose rows g_i are gradients of single examples, GGᵀ is a sum over layers of (a·a')(δ·δ') where layers
are linear, without any row of the length of all weights. It has the nonzero eigenvalues of GᵀG, which for suitable rows
is the Fisher or the generalized Gauss-Newton matrix; and (GᵀG/B + κI)⁻¹Gᵀc/B = Gᵀ(GGᵀ + BκI)⁻¹c turns a solve in the
space of weights into one in the space of data.

References:
    Jacot, Gabriel & Hongler 2018 (the tangent kernel); Dangel, Tatzel & Hennig 2022; Ren & Goldfarb 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from crunode.core.data import map_tree
from crunode.core.landscape import Landscape
from crunode.core.rng import preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs, output_jacobian, output_roots
from crunode.curvature.signals import DirectRows, OuterRows, Recorder
from crunode.errors import InputError

__all__ = [
    "ExampleRows",
    "are_close",
    "damped_solve",
    "example_rows",
    "ggn_eigenvalues",
    "row_weights",
    "tangent_kernel",
]

# Numbers of a held row that are taken to double precision at once, and numbers that a kernel may have.
_CHUNK = 1 << 22
_MOST = 1 << 28
# Relative difference from the gradient of the whole batch above which rows are not what they should be, in roundings.
_OFF = 1e4


@dataclass(frozen=True)
class ExampleRows:
    """Rows of gradients, one for each example and kind, held by layers.

    Row k·B + b is the gradient of kind k for example b of B.

    Attributes:
        blocks: The parts of the rows that belong to different parameters.
        kinds: How many rows an example has.
        examples: B.
    """

    blocks: list[OuterRows | DirectRows]
    kinds: int
    examples: int

    def gram(self) -> Tensor:
        """GGᵀ in double precision, shape (kinds · examples, kinds · examples)."""
        size, count = self.kinds * self.examples, self.examples
        device = self._device()
        found = torch.zeros(size, size, dtype=torch.float64, device=device)
        outer = [(b.overlaps(), b.signals.double()) for b in self.blocks if isinstance(b, OuterRows)]
        # Panel by panel, so that one stays in the processor's cache while all layers add to it; the rest is symmetric.
        for k in range(self.kinds) if outer else ():
            start, stop = k * count, (k + 1) * count
            panel = found[start:stop, :stop].view(count, k + 1, count)
            for overlaps, signals in outer:
                products = signals[k] @ signals[: k + 1].reshape(stop, -1).T
                panel.addcmul_(overlaps[:, None], products.view(count, k + 1, count))
            found[:start, start:stop] = found[start:stop, :start].T
        for held in self.blocks:
            if isinstance(held, DirectRows):
                for rows in held.flat():
                    for part in torch.split(rows, max(1, _CHUNK // size), dim=1):
                        wide = part.double()
                        found.addmm_(wide, wide.T)
        return found

    def combined(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Gᵀc by parameters.

        Args:
            coefficients: c in double precision, one for each row.
        """
        found: dict[str, Tensor] = {}
        for block in self.blocks:
            found.update(block.combined(coefficients.reshape(self.kinds, self.examples)))
        return found

    def _device(self) -> torch.device:
        first = self.blocks[0]
        return first.signals.device if isinstance(first, OuterRows) else next(iter(first.parts.values())).device


def example_rows(
    recorder: Recorder,
    value: Tensor,
    cotangents: Sequence[Tensor],
    free: dict[str, Tensor],
    *,
    check: bool = True,
    single: Callable[[dict[str, Tensor], Any], Tensor] | None = None,
    batch: Any = None,
) -> tuple[ExampleRows, str]:
    """Per-example gradients of `value` along cotangents, by layers where that is right, and row by row elsewhere.

    The rows are held against the gradient of the whole batch with other weights for each example: examples that are
    coupled, weights that are used outside their layer, and layers that see something other than examples make a
    difference there.

    Args:
        recorder: Was open while `value` was computed.
        value: Losses or outputs, with the examples as leading axis, and their graph.
        cotangents: One or several, each of the shape of `value`.
        free: The parameters that `value` depends on, by name.
        check: Hold the rows by layers against the gradient of the batch. Other rows are always checked.
        single: Gives `value` for one example (with a leading axis of one) from parameters and a batch; None where that
            cannot be had, and rows are found by one backward pass each.
        batch: What `single` is given, for all examples.

    Returns:
        The rows and how they were found: "layers", "examples" or "passes".

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> recorder = Recorder(net, ["weight"])
        >>> with recorder:
        ...     outputs = net(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        >>> rows, how = example_rows(recorder, outputs, [torch.ones_like(outputs)], dict(net.named_parameters()))
        >>> how, rows.gram()
        ('layers', tensor([[1., 1.],
                [1., 2.]], dtype=torch.float64))
    """
    examples, kinds = value.shape[0], len(cotangents)
    blocks = recorder.rows(value, cotangents)
    recorder.forget()
    if blocks is not None:
        found = ExampleRows(blocks, kinds, examples)
        if not check or _agrees(found, value, cotangents, free):
            return found, "layers"
    if single is not None:
        try:
            found = ExampleRows([_vmapped(single, batch, cotangents, free)], kinds, examples)
        except Exception:  # a model or loss that torch.func cannot batch
            pass
        else:
            if _agrees(found, value, cotangents, free):
                return found, "examples"
    return ExampleRows([_passes(value, cotangents, free)], kinds, examples), "passes"


def damped_solve(gram: Tensor, damping: float, right: Tensor) -> tuple[Tensor, bool]:
    """(K + δI)⁻¹ r by Cholesky's factorization, after scaling K + δI to a diagonal of ones.

    Args:
        gram: K, symmetric and positive semidefinite, in double precision. It is written over.
        damping: δ ≥ 0.
        right: r, shape (rows,).

    Returns:
        The solution, and whether K + δI is singular to machine precision. In that case the solution is that of a matrix
        with as much added to its diagonal as rounding may have taken away.

    Example:
        >>> damped_solve(torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double(), 1.0, torch.tensor([8.0, 4.0]).double())
        (tensor([2.0000, 2.0000], dtype=torch.float64), False)
        >>> damped_solve(torch.ones(2, 2).double(), 0.0, torch.ones(2).double())[1]
        True
    """
    sizes = gram.diagonal().add_(damping)
    scale = torch.where(sizes > 0, sizes, torch.ones_like(sizes)).rsqrt()
    gram.mul_(scale[:, None]).mul_(scale)
    jitter = 10 * len(gram) * torch.finfo(gram.dtype).eps
    factor, failed = torch.linalg.cholesky_ex(gram)
    singular = bool(failed) or float(factor.diagonal().min()) ** 2 < jitter
    if singular:
        gram.diagonal().add_(jitter)
        factor, failed = torch.linalg.cholesky_ex(gram)
    if failed:
        raise InputError("expected a positive semidefinite matrix of finite numbers, got another one; check the rows")
    lower = torch.linalg.solve_triangular(factor, (scale * right)[:, None], upper=False)
    found = torch.linalg.solve_triangular(factor.T, lower, upper=True)
    return scale * found[:, 0], singular


def tangent_kernel(land: Landscape) -> Tensor:
    """The neural tangent kernel JJᵀ of all examples of a landscape at its center.

    Entry (i·C + c, j·C + c') is the inner product of the gradients of output c on example i and c' on example j, in
    double precision where the model allows.

    Args:
        land: The landscape; give it a batch for data.

    Raises:
        NoOutputs: There are no outputs to take gradients of.
        InputError: The kernel would not fit memory.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> tangent_kernel(Landscape(net, (x, torch.zeros(2, 1)), "gaussian"))
        tensor([[1., 1.],
                [1., 2.]], dtype=torch.float64)

    References:
        Jacot, Gabriel & Hongler 2018.
    """
    seen = Evaluation(land)
    batch = _whole(land)
    width = _width(seen)
    eye = torch.eye(width, dtype=seen.dtype, device=land.device)
    gram = _kernel(seen, batch, eye.expand(land.data.rows, width, width))
    blocks = gram.reshape(width, land.data.rows, width, land.data.rows)
    return blocks.permute(1, 0, 3, 2).reshape(len(gram), len(gram))


def ggn_eigenvalues(land: Landscape) -> Tensor:
    """All eigenvalues of the generalized Gauss-Newton matrix that can be other than zero, descending.

    They are those of RJJᵀRᵀ/n with RᵀR the second derivatives of the losses in the outputs. For cross-entropy and other
    likelihoods of natural parameters this is the spectrum of the Fisher matrix of the model at these inputs.

    Args:
        land: The landscape; give it a batch for data.

    Returns:
        At most examples × outputs numbers in double precision; eigenvalues that are not among them are zero.

    Raises:
        NoOutputs: There are no outputs to take gradients of, or the losses are not convex in them.
        InputError: The matrix would not fit memory.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> ggn_eigenvalues(Landscape(net, (x, torch.zeros(2, 1)), "gaussian"))
        tensor([2.0000, 0.5000], dtype=torch.float64)

    References:
        Dangel, Tatzel & Hennig 2022, "ViViT".
    """
    seen = Evaluation(land)
    batch = _whole(land)
    width = _width(seen)
    with preserved_rng():
        roots = output_roots(seen, batch)
    if roots.ndim == 0:
        roots = roots.to(land.device).expand(land.data.rows, width).diag_embed()
    kept = roots.ne(0).any(2).any(0)
    return _eigenvalues(_kernel(seen, batch, roots[:, kept].to(seen.dtype))).flip(0).clamp(min=0) / land.data.rows


def _eigenvalues(matrix: Tensor) -> Tensor:
    """Ascending. On a CPU numpy's routine takes three quarters of the time of torch's."""
    plain = matrix.device.type == "cpu"
    found: Tensor = torch.from_numpy(np.linalg.eigvalsh(matrix.numpy())) if plain else torch.linalg.eigvalsh(matrix)
    return found


def _whole(land: Landscape) -> Any:
    batches = list(land.passes(land.data.rows))
    if len(batches) != 1:
        raise InputError(
            "expected examples of one shape, so that they make one batch, got some that differ; give tensors, or one "
            "batch of a loader"
        )
    return batches[0]


def _width(seen: Evaluation) -> int:
    width = seen.outputs_per_example()
    size = seen.landscape.data.rows * width
    if size * size > _MOST:
        raise InputError(
            f"expected a batch whose kernel fits memory, got {seen.landscape.data.rows} examples with {width} outputs "
            f"each, which make a matrix of {size} × {size}; give fewer examples"
        )
    return width


def _kernel(seen: Evaluation, batch: Any, roots: Tensor) -> Tensor:
    """Inner products of the rows of R_b J_b, kind by kind; `roots` has shape (examples, kinds, outputs)."""
    land, rows = seen.landscape, len(roots)
    recorder = Recorder(land.network, land.packing.names)
    with preserved_rng(), torch.enable_grad():
        w = seen.center.detach().clone().requires_grad_()
        with recorder:
            outputs = seen.outputs(w, batch)
        cotangents = [roots[:, k].reshape(outputs.shape).to(outputs.dtype) for k in range(roots.shape[1])]
        blocks = recorder.rows(outputs, cotangents)
        recorder.forget()
        if blocks is not None:
            found = ExampleRows(blocks, len(cotangents), rows)
            weights = row_weights(len(cotangents), rows, outputs.device)
            total = _mixed(cotangents, weights)
            (want,) = torch.autograd.grad(outputs, w, total)
            parts = found.combined(weights)
            order = zip(land.packing.names, land.packing.shapes, strict=True)
            flat = torch.cat([parts.get(n, w.new_zeros(s)).reshape(-1) for n, s in order])
            if are_close([flat], [want]):
                return found.gram()
    if rows * roots.shape[1] * seen.dim > _MOST:
        raise NoOutputs(
            f"{rows} examples with {roots.shape[1]} outputs each and {seen.dim} parameters are too many for a model "
            "whose layers do not give the gradients of single examples"
        )
    with preserved_rng():
        jacobian = output_jacobian(seen, seen.center, batch).reshape(rows, -1, seen.dim)
    flat = (roots.double() @ jacobian).transpose(0, 1).reshape(-1, seen.dim)
    return flat @ flat.T


def row_weights(kinds: int, examples: int, device: torch.device) -> Tensor:
    """Numbers that differ from example to example, without chance, shape (kinds, examples).

    Example:
        >>> row_weights(1, 2, torch.device("cpu"))[0, 0]
        tensor(2., dtype=torch.float64)
    """
    index = torch.arange(kinds * examples, dtype=torch.float64, device=device)
    return (1.0 + torch.cos(1.7 * index)).reshape(kinds, examples)


def _mixed(cotangents: Sequence[Tensor], weights: Tensor) -> Tensor:
    shape = (-1, *(1 for _ in cotangents[0].shape[1:]))
    return torch.stack([c * w.reshape(shape).to(c.dtype) for c, w in zip(cotangents, weights, strict=True)]).sum(0)


def _agrees(rows: ExampleRows, value: Tensor, cotangents: Sequence[Tensor], free: dict[str, Tensor]) -> bool:
    weights = row_weights(len(cotangents), value.shape[0], value.device)
    want = torch.autograd.grad(
        value, list(free.values()), _mixed(cotangents, weights), retain_graph=True, allow_unused=True
    )
    got = rows.combined(weights)
    pairs = [(got.get(name), w) for name, w in zip(free, want, strict=True)]
    filled = [
        (torch.zeros_like(p) if g is None else g, torch.zeros_like(p) if w is None else w)
        for (g, w), p in zip(pairs, free.values(), strict=True)
    ]
    return are_close([g for g, _ in filled], [w for _, w in filled])


def are_close(got: list[Tensor], want: list[Tensor]) -> bool:
    """Whether all tensors together are equal but for rounding.

    Example:
        >>> are_close([torch.ones(2)], [torch.ones(2) + 1e-6]), are_close([torch.ones(2)], [torch.zeros(2)])
        (True, False)
    """
    off = sum(float((g - w).double().square().sum()) for g, w in zip(got, want, strict=True))
    size = sum(float(w.double().square().sum()) for w in want)
    return off <= (_OFF * torch.finfo(want[0].dtype).eps) ** 2 * size


def _vmapped(
    single: Callable[[dict[str, Tensor], Any], Tensor],
    batch: Any,
    cotangents: Sequence[Tensor],
    free: dict[str, Tensor],
) -> DirectRows:
    fixed = {name: value.detach() for name, value in free.items()}

    def one(example: Any, signals: Tensor) -> dict[str, Tensor]:
        alone = map_tree(lambda t: t[None], example)
        pull = torch.func.vjp(lambda weights: single(weights, alone)[0], fixed)[1]
        found: dict[str, Tensor] = torch.func.vmap(lambda s: pull(s)[0])(signals)
        return found

    stacked = torch.stack(list(cotangents), dim=1).detach()
    with sdpa_kernel(SDPBackend.MATH):  # the others cannot be batched over examples
        rows = torch.func.vmap(one, randomness="different")(batch, stacked)
    return DirectRows({name: part.transpose(0, 1) for name, part in rows.items()})


def _passes(value: Tensor, cotangents: Sequence[Tensor], free: dict[str, Tensor]) -> DirectRows:
    """One backward pass for each row."""
    names, weights = list(free), list(free.values())
    kinds: list[list[Tensor]] = [[] for _ in names]
    for cotangent in cotangents:
        rows: list[list[Tensor]] = [[] for _ in names]
        for index in range(len(value)):
            found = torch.autograd.grad(value[index], weights, cotangent[index], retain_graph=True, allow_unused=True)
            for kept, part, weight in zip(rows, found, weights, strict=True):
                kept.append(torch.zeros_like(weight) if part is None else part)
        for kept, part_rows in zip(kinds, rows, strict=True):
            kept.append(torch.stack(part_rows))
    return DirectRows({name: torch.stack(parts) for name, parts in zip(names, kinds, strict=True)})
