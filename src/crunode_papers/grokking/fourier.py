"""Units of quadratic networks in Fourier space, how many of them count, and an exact solution made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode import InputError
from crunode_papers.grokking.networks import QuadraticNetwork
from crunode_papers.grokking.tasks import check_whole

__all__ = ["FourierFeatures", "effective_width", "fourier_features", "fourier_network", "unit_strengths"]


@dataclass(frozen=True)
class FourierFeatures:
    """Frequencies of the units.

    Attributes:
        frequency: The frequency, from 1 to ⌊p/2⌋, that holds most of a unit's input power; 0 for a unit without any.
        share: The part of the input power that it holds.
        output_frequency: The same of its output weights.
        output_share: Likewise.
        power: Input power of each unit at each frequency from 1 up, shape (K, ⌊p/2⌋).
    """

    frequency: Tensor
    share: Tensor
    output_frequency: Tensor
    output_share: Tensor
    power: Tensor


def fourier_features(network: QuadraticNetwork) -> FourierFeatures:
    """Power of each unit's weights at the frequencies of ℤ_p.

    With u_j(a) = W_ja and t_j(b) = W_j,p+b, power at f is |û_j(f)|² + |t̂_j(f)|² + the same at −f, where
    û(f) = p^{-1/2} Σ_a u(a) e^{−2πifa/p}; frequencies sum to ‖u_j‖² + ‖t_j‖² but for the means. Frequency 0 is left
    out: a constant can be moved from u to t without changing the network. For the output weights V_:j it is left out as
    well. These are the features of addition and subtraction; multiplication has them along powers of a generator.

    Example:
        >>> found = fourier_features(fourier_network(7))
        >>> sorted(set(found.frequency.tolist())), bool((found.share > 1 - 1e-9).all())
        ([1, 2, 3], True)

    References:
        Nanda et al. 2023; Tian 2025; Cullen 2026, section 5.2.
    """
    with torch.no_grad():
        first = torch.unflatten(network.first.weight.double(), 1, (2, network.modulus))
        second = network.second.weight.double().T
        power = _power(first).sum(1)
        inputs = _dominant(power, first.square().sum((1, 2)))
        outputs = _dominant(_power(second), second.square().sum(1))
    return FourierFeatures(*inputs, *outputs, power)


def _power(values: Tensor) -> Tensor:
    """Power at frequencies 1 … ⌊p/2⌋ of functions on ℤ_p, along the last axis."""
    p = values.shape[-1]
    power: Tensor = torch.fft.rfft(values, norm="ortho").abs().square()[..., 1:]
    weight = torch.full((p // 2,), 2.0, dtype=power.dtype, device=power.device)
    if p % 2 == 0:
        weight[-1] = 1.0  # p/2 is its own negative
    return power * weight


def _dominant(power: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Frequency with most of the power, and its part of it; `squares` are the weights' own sums of squares."""
    best, index = power.max(1)
    total = power.sum(1)
    empty = total <= squares * (power.shape[1] * torch.finfo(power.dtype).eps) ** 2  # rounding of a constant
    return torch.where(empty, 0, index + 1), torch.where(empty, 0.0, best / torch.where(empty, 1.0, total))


def unit_strengths(network: QuadraticNetwork) -> Tensor:
    """‖P⊥f_j‖ ‖V_:j‖ of each unit, over all p² pairs: the size of what it adds to the centred outputs; shape (K,).

    Unlike ‖V_:j‖ it does not change under w_j → αw_j, V_:j → V_:j/α², nor when a constant moves from u to t.

    Example:
        >>> net = QuadraticNetwork(5, 3)
        >>> scaled = QuadraticNetwork.of(2 * net.first.weight, net.second.weight / 4)
        >>> torch.allclose(unit_strengths(net), unit_strengths(scaled))
        True
    """
    p = network.modulus
    with torch.no_grad():
        u, t = torch.unflatten(network.first.weight.double(), 1, (2, p)).unbind(1)
        features = (u[:, :, None] + t[:, None, :]).square().flatten(1)
        spread = (features - features.mean(1, keepdim=True)).square().sum(1).sqrt()
        return spread * network.second.weight.double().square().sum(0).sqrt()


def effective_width(network: QuadraticNetwork, tolerance: float = 0.0) -> int:
    """K_eff, the number of units with output weights other than zero: |{j : ‖V_:j‖ ≠ 0}|.

    In a trained network no weight is exactly zero. With a tolerance τ > 0 units count whose strength (`unit_strengths`)
    is above τ times the largest.

    Args:
        network: The network.
        tolerance: τ, from 0 up and below 1.

    Example:
        >>> net = fourier_network(5)
        >>> effective_width(net), effective_width(net, 0.01)
        (12, 12)

    References:
        Cullen 2026, eq. (5).
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < 1:
        raise InputError(f"expected tolerance from 0 up and below 1, got {tolerance!r}")
    if tolerance == 0:
        return int((network.second.weight.detach() != 0).any(0).sum())
    strengths = unit_strengths(network)
    return int((strengths > tolerance * strengths.max()).sum())


def fourier_network(modulus: int, dtype: torch.dtype = torch.float64) -> QuadraticNetwork:
    """A network with K = 3(p−1) units that adds modulo p exactly: f_c(a, b) = 1{c = a + b} − 1/p.

    Each frequency f = 1 … (p−1)/2 has six units, for phases φ a third of a turn apart and two signs:
    u(a) = cos(2πfa/p + φ), t = ±u, v(c) = ±(2/3p) cos(2πfc/p + 2φ). The two signs leave the product u(a)u(b), the
    phases leave cos(2πf(a + b − c)/p) of it, and the frequencies sum to the indicator. Its centred loss is zero on any
    set of pairs.

    Args:
        modulus: p, odd, from 3 up.
        dtype: Of the weights.

    Raises:
        InputError: p is even: its frequency p/2 has one phase only.

    Example:
        >>> from crunode_papers.grokking.tasks import ModularTask
        >>> x, y = ModularTask(9).data("all", dtype=torch.float64)
        >>> bool((fourier_network(9)(x) - (y - 1 / 9)).abs().max() < 1e-12)
        True

    References:
        `crunode.exact.fourier_solution` has bounds of its learning coefficient.
    """
    check_whole(modulus, "modulus", low=3)
    if modulus % 2 == 0:
        raise InputError(f"expected an odd modulus, got {modulus}; at frequency p/2 there is no such solution")
    angles = 2 * math.pi * torch.arange(modulus, dtype=torch.float64) / modulus
    first, second = [], []
    for frequency in range(1, (modulus - 1) // 2 + 1):
        for phase in (0.0, 2 * math.pi / 3, 4 * math.pi / 3):
            u = torch.cos(frequency * angles + phase)
            v = torch.cos(frequency * angles + 2 * phase) * 2 / (3 * modulus)
            for sign in (1, -1):
                first.append(torch.cat([u, sign * u]))
                second.append(sign * v)
    return QuadraticNetwork.of(torch.stack(first).to(dtype), torch.stack(second, 1).to(dtype))
