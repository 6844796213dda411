"""Second derivatives of losses in the outputs of a model, as sums of squares."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import map_tree
from crunode.core.landscape import Landscape
from crunode.curvature.jacobian import Evaluation, NoOutputs, output_roots

__all__ = ["loss_factors", "loss_slope", "softmax_factors"]

_HALF = (torch.float16, torch.bfloat16)
_AGREE = {torch.float64: 1e-9, torch.float32: 1e-4}


def loss_slope(land: Landscape, outputs: Tensor, target: Any) -> tuple[Tensor, Tensor]:
    """Outputs as a leaf, and the derivative of each example's loss in them, itself differentiable."""
    with torch.enable_grad():
        free = outputs.detach().clone().requires_grad_()
        total = land.loss_form.fn(free, target).sum()
        (slope,) = torch.autograd.grad(total, free, create_graph=True)
    return free, slope


def loss_factors(land: Landscape, outputs: Tensor, batch: Any) -> Tensor:
    """Rows r_1, r_2, ... for each example, with Σ r_k r_kᵀ the second derivative of its loss in its outputs.

    That of the cross-entropy with a class for each example is known. Of other losses a known form is taken where a
    product with a vector by autograd agrees with it, and they are factored one example at a time where none does.

    Args:
        land: The landscape.
        outputs: The model's outputs on the batch.
        batch: The batch, its target last.

    Returns:
        Shape (examples, rows, outputs); a scalar where the second derivative is its square times the identity.

    Raises:
        NoOutputs: The loss is not convex in the outputs or has no second derivative there, or outputs are too many.

    Example:
        >>> model = torch.nn.Linear(2, 3)
        >>> land = Landscape(model, (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> loss_factors(land, torch.zeros(4, 3), next(land.passes()))
        tensor(1.)
    """
    if land.loss_form.is_cross_entropy and _has_classes(outputs, batch[-1]):
        return softmax_factors(outputs.detach())
    found = _product(land, outputs, batch[-1])
    if found is None:
        return torch.zeros((), dtype=outputs.dtype, device=outputs.device)
    product, probe = found
    allowed = _AGREE.get(outputs.dtype, 1e-2)
    ratio = product / probe
    middle = ratio.mean()
    low, high, mean = torch.stack([*torch.aminmax(ratio), middle]).tolist()  # one wait for the device in place of four
    if not math.isfinite(low + high):
        raise NoOutputs("the second derivative of the loss in the outputs is not finite")
    if high - low <= allowed * mean:
        return middle.sqrt().to(outputs.dtype)
    if outputs.ndim == 2:
        factors = softmax_factors(outputs.detach())
        theirs = (factors.transpose(1, 2) @ (factors @ probe.to(factors.dtype)[..., None]))[..., 0]
        sizes = [torch.linalg.vector_norm(t, math.inf) for t in (product - theirs, theirs)]
        away, size = torch.stack([s.to(product.dtype) for s in sizes]).tolist()
        if away <= allowed * size:
            return factors
    return output_roots(Evaluation(land), batch).to(outputs.dtype)


def _has_classes(outputs: Tensor, target: Any) -> bool:
    """Whether each example has one class; those below 0 mark what the loss leaves out."""
    if outputs.ndim != 2 or not isinstance(target, Tensor) or target.is_floating_point() or target.ndim != 1:
        return False
    return bool((target >= 0).all())


def _product(land: Landscape, outputs: Tensor, target: Any) -> tuple[Tensor, Tensor] | None:
    """The second derivative of the losses in the outputs times a vector, and that vector; None where it is zero.

    In double precision where the loss takes it: where all examples are predicted well, the second derivative is what
    nearly cancels, and rounding of single precision would hide that it has a known form.
    """
    kinds = dict.fromkeys((torch.float64, outputs.dtype))
    for dtype in kinds:
        try:
            wide = outputs.detach().to(dtype)
            free, slope = loss_slope(land, wide, map_tree(lambda t: _as_wide(t, wide), target))  # noqa: B023
            if not slope.requires_grad:
                return None
            probe = torch.arange(free.numel(), dtype=dtype, device=free.device).cos_().add_(2).reshape(free.shape)
            return torch.autograd.grad(slope, free, probe)[0], probe
        except Exception:  # class weights in single precision, or a device without doubles
            if dtype == outputs.dtype:
                raise
    raise AssertionError


def softmax_factors(logits: Tensor) -> Tensor:
    """The C − 1 rows r_k with Σ r_k r_kᵀ = diag(p) − p pᵀ for p = softmax(logits).

    r_k = √(p_k q_k / (p_k + q_k)) (e_k − Σ_{j>k} (p_j / q_k) e_j) with q_k = Σ_{j>k} p_j: class k against those after
    it. That is the Cholesky factor in closed form; its entries keep their relative precision where p is near 0 or 1.

    Example:
        >>> r = softmax_factors(torch.zeros(1, 3, dtype=torch.float64))[0]
        >>> (9 * r.T @ r).round(decimals=6)
        tensor([[ 2., -1., -1.],
                [-1.,  2., -1.],
                [-1., -1.,  2.]], dtype=torch.float64)
    """
    p = torch.softmax(logits, 1)
    tails = p.flip(1).cumsum(1).flip(1)  # p_k + q_k
    here, later = p[:, :-1], tails[:, 1:]
    size = (here * (later / tails[:, :-1].clamp(min=torch.finfo(p.dtype).tiny))).sqrt()
    shares = p[:, None, :] / later[:, :, None].clamp(min=torch.finfo(p.dtype).tiny)
    unit = torch.eye(logits.shape[1], dtype=p.dtype, device=p.device)[:-1]
    return size[:, :, None] * (unit - shares.triu(1))


def _as_wide(target: Tensor, outputs: Tensor) -> Tensor:
    """Targets of less precision than outputs as wide as these, as losses take them."""
    narrow = target.is_floating_point() and (outputs.dtype == torch.float64 or target.dtype in _HALF)
    return target.to(outputs.dtype) if narrow else target
