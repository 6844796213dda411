"""Matrix-free operators of a landscape: Hessian, Gauss-Newton, Fisher, Jacobian and neural tangent kernel.

With f_i(w) the outputs and ℓ_i the loss of example i, J_i = ∂f_i/∂w, r_i = ∂ℓ_i/∂f and S_i = ∂²ℓ_i/∂f²,

    H  = (1/n) Σ ∂²ℓ_i/∂w²  =  H0 + H1,
    H0 = (1/n) Σ J_iᵀ S_i J_i                    (generalized Gauss-Newton),
    H1 = (1/n) Σ Σ_k r_ik ∂²f_ik/∂w²             (residual part).

Everything is evaluated at the center in the landscape's own dtype, for its free parameters.

References:
    Pearlmutter 1994; Schraudolph 2002; Kunstner et al. 2019; Martens 2020; Jacot et al. 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from crunode.core.data import leaves
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.matrix_free import Operator
from crunode.curvature.predictive import predictive
from crunode.curvature.products import (
    Chunks,
    FirstDerivative,
    GaussNewtonChunk,
    OuterProductChunk,
    SecondDerivative,
    output_loss,
    outputs_of,
)
from crunode.curvature.traces import ggn_trace, hessian_trace
from crunode.errors import InputError

__all__ = ["Operator", "fisher", "ggn", "hessian", "jacobian", "ntk", "residual_part"]

_STREAM = 81
# Columns up to which copying one after another is faster than torch's transposition on a CPU.
_FEW = 16


def hessian(land: Landscape) -> Operator:
    """The Hessian of the mean loss, H = ∂²L_n/∂w² at the center.

    A product is a backward pass through the graph of the gradient (Pearlmutter 1994), which is built once for each
    chunk of the data and kept where memory allows: six matrix products a layer, as against three for a gradient. Chains
    of linear layers with activations between them do the same products without a graph.

    Args:
        land: The landscape; the loss may be any, also one that takes the whole model.

    Returns:
        A symmetric operator of d rows.

    Raises:
        InputError: At the first product, if the model cannot be differentiated twice or the product is not finite.

    Example:
        >>> land = Landscape.of_function(lambda w: w[0] ** 2 + w[0] * w[1], torch.zeros(2))
        >>> hessian(land).dense()
        tensor([[2., 1.],
                [1., 0.]])
    """
    compared: dict[int, bool] = {}

    def build(number: int, batch: Any) -> SecondDerivative:
        return SecondDerivative(land, lambda w: land.batch_loss(w, batch), _rows(batch), number, compared)

    return _of_parameters(land, "Hessian", Chunks(land, build), trace_by=partial(hessian_trace, land))


def ggn(land: Landscape) -> Operator:
    """The generalized Gauss-Newton matrix H0 = (1/n) Σ J_iᵀ S_i J_i, S_i the loss's second derivative in the outputs.

    It is the Hessian of the loss of the linearized model, and the Hessian itself where the model is linear in the
    parameters or the loss cannot fall by any change of outputs. For losses that are convex in the outputs it has no
    negative eigenvalue.

    Args:
        land: The landscape, with a loss of (outputs, target).

    Returns:
        A symmetric operator of d rows.

    Raises:
        InputError: The outputs are not seen.

    References:
        Schraudolph 2002; Martens 2020.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(net, (torch.eye(2), torch.zeros(2, 1)), "gaussian")
        >>> ggn(land).dense()
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    _see_outputs(land, "Gauss-Newton matrix")

    def build(number: int, batch: Any) -> GaussNewtonChunk:
        return _gauss_newton(land, batch)

    by = partial(ggn_trace, land)
    return _of_parameters(land, "Gauss-Newton matrix", Chunks(land, build), positive=_is_convex(land), trace_by=by)


def residual_part(land: Landscape) -> Operator:
    """H1 = H − H0 = (1/n) Σ_i Σ_k r_ik ∂²f_ik/∂w², what the curvature of the model itself adds to the Hessian.

    It is taken as the second derivative of Σ r·f(w) with the residuals r = ∂ℓ/∂f held fixed, not as a difference, so
    that it stays exact where it is small: close to a fit, and for networks of linear pieces.

    Args:
        land: The landscape, with a loss of (outputs, target).

    Returns:
        A symmetric operator of d rows.

    Raises:
        InputError: The outputs are not seen.

    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> land = Landscape(net, (torch.eye(2), torch.zeros(2, 1)), "gaussian")
        >>> float(residual_part(land).dense().abs().max())  # the model is linear in its parameters
        0.0
    """
    _see_outputs(land, "residual part of the Hessian")

    compared: dict[int, bool] = {}

    def build(number: int, batch: Any) -> SecondDerivative:
        with torch.no_grad():
            outputs = outputs_of(land, land.center, batch)
        free = outputs.detach().clone().requires_grad_()
        (residual,) = torch.autograd.grad(output_loss(land, free, batch).mean(), free)
        value = lambda w: (residual * outputs_of(land, w, batch)).sum()  # noqa: E731
        return SecondDerivative(land, value, _rows(batch), number, compared)

    return _of_parameters(land, "residual part of the Hessian", Chunks(land, build))


def fisher(land: Landscape, kind: str = "true", *, seed: int = 0) -> Operator:
    """The Fisher information F = (1/n) Σ E[g_i g_iᵀ] of the gradients g_i = ∂ℓ_i/∂w.

    - "true": the expectation over labels that the model itself would give at the center. For a log-likelihood of an
      exponential family in its natural parameters (squared errors, cross-entropy, coin flips) it is the Gauss-Newton
      matrix. Where a loss is a mean over several labels of an example, as cross-entropy over positions, each label
      counts as an example of its own.
    - "empirical": the given labels instead, g_i the gradient of the loss of example i. It is close to the Fisher
      information only near a minimum, of a model that is true (Kunstner et al. 2019).
    - "sampled": labels drawn once from the model, an unbiased estimate of "true" of rank n at most.

    Args:
        land: The landscape.
        kind: Which labels.
        seed: Sampled labels come from it.

    Returns:
        A positive semidefinite operator of d rows.

    Raises:
        InputError: The loss gives no loss per example, or is no log-likelihood that labels can be drawn from.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(net, (torch.eye(2), net(torch.eye(2)).detach() + 2), "gaussian")
        >>> float(fisher(land).dense()[0, 0]), round(float(fisher(land, "empirical").dense()[0, 0]), 3)
        (0.5, 2.0)
    """
    if kind not in ("true", "empirical", "sampled"):
        raise InputError(f'expected kind as "true", "empirical" or "sampled", got {kind!r}')
    name = f"{kind} Fisher matrix"
    if kind != "empirical":
        _see_outputs(land, name)
        if predictive(land.loss_form) is None:
            raise InputError(
                f"expected squared errors, cross-entropy or coin flips for the {name}, as torch losses without weights "
                f"or smoothing, or by name, got {land.loss_name}; use ggn or the empirical Fisher matrix"
            )
    if kind != "true" and (not land.pointwise or any(f.code == "DATA502" for f in land.findings)):
        how = "couples examples" if land.pointwise else "gives a scalar"
        raise InputError(
            f"expected one loss per example for the {name}, got {land.loss_name}, which {how}; return a vector with "
            "one entry for each example of the batch"
        )

    def build(number: int, batch: Any) -> GaussNewtonChunk | OuterProductChunk:
        if kind == "true":
            return _gauss_newton(land, batch)
        if kind == "empirical":
            return OuterProductChunk(FirstDerivative(land, lambda w: land.batch_losses(w, batch), _rows(batch)))
        generator = torch.Generator().manual_seed(derived_seed(seed, _STREAM, number))
        slopes = _drawn_slopes(land, batch, generator)
        values = lambda w: (slopes * outputs_of(land, w, batch)).flatten(1).sum(1)  # noqa: E731
        return OuterProductChunk(FirstDerivative(land, values, _rows(batch)))

    by = partial(ggn_trace, land) if kind == "true" else None
    return _of_parameters(land, name, Chunks(land, build), positive=True, trace_by=by)


def jacobian(land: Landscape) -> Operator:
    """The Jacobian of the outputs on all data, J = ∂f/∂w: one row for each output of each example, in that order.

    Args:
        land: The landscape, with a loss of (outputs, target).

    Returns:
        An operator of (examples · outputs) rows and d columns. `J @ v` moves outputs along v, `J.T @ u` is the
        gradient of u·f.

    Raises:
        InputError: The outputs are not seen, or not one example at a time.

    Example:
        >>> net = torch.nn.Linear(2, 3, bias=False)
        >>> land = Landscape(net, (torch.ones(4, 2), torch.zeros(4, 3)), "gaussian")
        >>> jacobian(land).shape, float((jacobian(land) @ torch.ones(6)).sum())
        ((12, 6), 24.0)
    """
    _see_outputs(land, "Jacobian")
    rows = _output_rows(land)

    def build(number: int, batch: Any) -> FirstDerivative:
        return FirstDerivative(land, lambda w: outputs_of(land, w, batch), _rows(batch))

    chunks = Chunks(land, build)

    def push(vectors: Tensor) -> Tensor:
        return torch.cat([held.push(vectors.T.contiguous()) for _, held in chunks], 1).T

    def pull(weights: Tensor) -> Tensor:
        total, start = torch.zeros(weights.shape[1], land.dim, dtype=weights.dtype, device=weights.device), 0
        for _, held in chunks:
            stop = start + held.values.numel()
            total += held.pull(weights[start:stop].T.contiguous())
            start = stop
        return total.T

    return Operator(
        "Jacobian",
        (rows, land.dim),
        push,
        transposed=pull,
        dtype=land.center.dtype,
        device=land.device,
        landscape=land,
        explain=lambda found: "; check the data for extreme values, and the model for a square root or a norm at zero",
    )


def ntk(land: Landscape) -> Operator:
    """The neural tangent kernel J Jᵀ on the data, of (examples · outputs) rows.

    Args:
        land: The landscape, with a loss of (outputs, target).

    Returns:
        A positive semidefinite operator; a product is one with Jᵀ and one with J.

    Raises:
        InputError: The outputs are not seen, or not one example at a time.

    References:
        Jacot et al. 2018.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> ntk(Landscape(net, (2 * torch.eye(2), torch.zeros(2, 1)), "gaussian")).dense()
        tensor([[4., 0.],
                [0., 4.]])
    """
    first = jacobian(land)
    return Operator(
        "neural tangent kernel",
        (first.shape[0], first.shape[0]),
        lambda u: first @ (first.T @ u),
        dtype=first.dtype,
        device=first.device,
        symmetric=True,
        positive=True,
        landscape=land,
    )


def _of_parameters(
    land: Landscape,
    name: str,
    chunks: Chunks[Any],
    positive: bool = False,
    trace_by: Callable[..., Estimate] | None = None,
) -> Operator:
    def product(vectors: Tensor) -> Tensor:
        rows = vectors.T
        if not rows.is_contiguous():
            few = rows.device.type == "cpu" and len(rows) <= _FEW
            rows = torch.stack(vectors.unbind(1)) if few else rows.contiguous()
        return chunks.weighted_sum(lambda held: held(rows)).T

    return Operator(
        name,
        (land.dim, land.dim),
        product,
        dtype=land.center.dtype,
        device=land.device,
        symmetric=True,
        positive=positive,
        landscape=land,
        explain=lambda found: _cause(land, found),
        trace_by=trace_by,
    )


def _cause(land: Landscape, found: Tensor) -> str:
    """Why products with the Hessian are not finite, as far as it can be seen; the loss names the example itself."""
    land.losses() if land.pointwise else land.loss()
    bad = (~torch.isfinite(found)).any(1)
    names = [name for name, part in land.packing.unravel(bad).items() if bool(part.any())]
    return (
        f" for {names} though the loss is finite; look for a square root, a norm or a logarithm at zero, or numbers "
        "too large for the dtype, where model.double() helps"
    )


def _gauss_newton(land: Landscape, batch: Any) -> GaussNewtonChunk:
    first = FirstDerivative(land, lambda w: outputs_of(land, w, batch), _rows(batch))
    return GaussNewtonChunk(first, lambda outputs: output_loss(land, outputs, batch).mean())


def _drawn_slopes(land: Landscape, batch: Any, generator: torch.Generator) -> Tensor:
    """Derivatives of losses in the outputs, for labels drawn from the model where the loss takes account of them."""
    known = predictive(land.loss_form)
    assert known is not None
    with torch.no_grad():
        outputs, given = outputs_of(land, land.center, batch), batch[-1]
        if known.kind != "categorical":
            return known.drawn(outputs, generator).to(outputs)
        last = outputs.movedim(1, -1)  # one row of logits for each position
        drawn = known.drawn(last.reshape(-1, last.shape[-1]), generator).reshape(last.shape).to(outputs)
        if not given.is_floating_point():
            left_out = getattr(getattr(land.loss_form.fn, "fn", None), "ignore_index", -100)
            drawn = drawn * ((given != left_out) & (given >= 0))[..., None]
        positions = last[0].numel() // last.shape[-1]
        return drawn.movedim(-1, 1).div(positions**0.5)


def _rows(batch: Any) -> int:
    return leaves(batch)[0].shape[0]


def _see_outputs(land: Landscape, name: str) -> None:
    """Refuse a landscape whose outputs are not seen, before anything is built."""
    if land.loss_form.takes_model:
        raise InputError(
            f"expected a loss of (outputs, target) for the {name}, got {land.loss_name}, which takes the whole model, "
            "so that outputs are not seen; hessian and the empirical Fisher matrix take any loss"
        )
    with torch.no_grad(), preserved_rng():
        outputs_of(land, land.center, next(iter(land.passes(2))))


def _output_rows(land: Landscape) -> int:
    """Outputs of all examples together."""
    total = 0
    with torch.no_grad(), preserved_rng():
        for batch in land.passes(2):
            rows, outputs = _rows(batch), outputs_of(land, land.center, batch)
            if outputs.ndim == 0 or outputs.shape[0] != rows:
                raise InputError(
                    f"expected outputs with the examples as leading axis, got shape {tuple(outputs.shape)} for {rows} "
                    "examples; move that axis to the front in the model"
                )
            if land.data.stacked:
                return outputs[0].numel() * land.data.rows
            total += outputs.numel()
    return total


def _is_convex(land: Landscape) -> bool:
    """Whether the loss is known to be convex in the outputs."""
    loss = land.loss_form
    return loss.expected_target is not None or "cross_entropy" in loss.label or "CrossEntropy" in loss.label
