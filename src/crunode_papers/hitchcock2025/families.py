"""Landscapes of the benchmark whose coefficient `crunode.exact` gives: quadratic, tanh and ReLU networks, crossings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from crunode import InputError, Landscape, exact
from crunode.exact import LearningCoefficient
from crunode.examples import Monomial
from crunode_papers.hitchcock2025.linear import singular_network
from crunode_papers.hitchcock2025.problem import Problem

__all__ = ["ACTIVATIONS", "Square", "family_problems", "shallow_network"]

_EXAMPLES = 4096


class Square(nn.Module):
    """The activation z².

    Example:
        >>> Square()(torch.tensor([3.0]))
        tensor([9.])
    """

    def forward(self, z: Tensor) -> Tensor:
        """Squares of all entries."""
        return z.square()


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"square": Square, "tanh": nn.Tanh, "relu": nn.ReLU}


def shallow_network(
    n: int,
    device: torch.device | str | None = None,
    *,
    seed: int,
    widths: Sequence[int],
    activation: str,
    bias: bool = True,
    noise: float = 0.0,
    zero: bool = False,
) -> Landscape:
    """A network with one hidden layer at random weights that realise the truth, on standard normal inputs.

    Input weights of hidden units have random directions and lengths from 1 to 2. Biases put kinks and steps where
    inputs are, each at a place of its own. Output weights have sizes from 0.7 to 1.3.

    Args:
        n: Number of examples.
        device: Where to hold data and weights; the CPU by default.
        seed: Weights and data come from it.
        widths: Input, hidden and output width.
        activation: "square", "tanh" or "relu".
        bias: True where hidden units have biases.
        noise: Standard deviation of the label noise.
        zero: All weights are zero in place of random ones.

    Example:
        >>> land = shallow_network(50, seed=0, widths=(2, 3, 1), activation="tanh")
        >>> land.dim, float(land.loss())
        (12, 0.0)
    """
    inputs, hidden, outputs = widths
    if activation not in ACTIVATIONS:
        raise InputError(f"expected activation among {sorted(ACTIVATIONS)}, got {activation!r}")
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    scatter = torch.randn(n, outputs, generator=generator)
    drawn = torch.randn(hidden, inputs, generator=generator)
    lengths = 1 + torch.rand(hidden, generator=generator)
    first = drawn / drawn.norm(dim=1, keepdim=True) * lengths[:, None]
    signs = 2.0 * torch.randint(0, 2, (outputs, hidden), generator=generator) - 1
    tensors = {"0.weight": first, "2.weight": signs * (0.7 + 0.6 * torch.rand(outputs, hidden, generator=generator))}
    if bias:
        # Distances from the origin by quantiles of a normal input, and on the same side of the first axis: with one
        # input no two kinks coincide nearly, whichever way units point.
        shares = (torch.arange(hidden) + 0.25 + 0.5 * torch.rand(hidden, generator=generator)) / hidden
        tensors["0.bias"] = lengths * first[:, 0].sign() * torch.special.ndtri(0.1 + 0.8 * shares)
    if zero:
        tensors = {name: torch.zeros_like(value) for name, value in tensors.items()}
    net = nn.Sequential(
        nn.Linear(inputs, hidden, bias=bias, device="meta"),
        ACTIVATIONS[activation](),
        nn.Linear(hidden, outputs, bias=False, device="meta"),
    )
    net.load_state_dict(tensors, assign=True)
    with torch.no_grad():
        y = net(x) + noise * scatter
    return Landscape(net.requires_grad_(), (x, y), "gaussian", device=device)


def _crossing(n: int, device: torch.device | str | None = None, *, seed: int, powers: tuple[int, int]) -> Landscape:
    # The landscape of a function has no data to draw; the seed is that of the chains alone.
    return Landscape.of_function(Monomial(*powers), torch.zeros(2, device=device or "cpu"), n=n)


def family_problems(seed: int) -> list[Problem]:
    """All families once: reduced rank regressions, quadratic, tanh and ReLU networks, normal crossings.

    Args:
        seed: Weights, data and chains come from it.

    Example:
        >>> found = family_problems(0)
        >>> len(found), found[0].name, found[0].local.value
        (39, 'reduced-rank-4-2-4-r1-noise1-s0', Fraction(5, 1))
    """
    found = [_reduced_rank(seed, *shape) for shape in _RANKS]
    for noise in (0, 1):
        for d, k, p in ((4, 2, 3), (4, 5, 3), (3, 7, 2), (6, 3, 4)):
            value = exact.quadratic_multi_output(d, p, k)
            found.append(_network(seed, noise, (d, k, p), "square", value, None, bias=False))
        for d, k in ((1, 2), (2, 3), (3, 4)):
            # Irreducible networks are identified but for signs and order of units (Sussmann 1992), and their Fisher
            # information is positive definite (Fukumizu 1996).
            value = exact.regular(k * (d + 2))
            found.append(_network(seed, noise, (d, k, 1), "tanh", value, value))
        for k in (2, 3, 4):
            # The ideal of the moments Σ a_j b_j^(2i−1) is homogeneous, so that no true parameter is more singular than
            # the origin.
            value = exact.tanh_zero_truth(k)
            found.append(_network(seed, noise, (1, k, 1), "tanh", value, value, bias=False, zero=True))
        for d, k in ((1, 2), (2, 3), (3, 4)):
            value = exact.relu_three_layer(d, [{"outputs": 1, "hidden": 1, "rank": 1}] * k)
            found.append(_network(seed, noise, (d, k, 1), "relu", value, None))
    for a, b in ((0, 1), (1, 1), (0, 2), (1, 2), (2, 2), (1, 3), (3, 3)):
        value = exact.normal_crossing([a, b])
        build = partial(_crossing, powers=(a, b))
        found.append(Problem(f"crossing-{a}-{b}-s{seed}", "families", seed, build, value, value, 2, 10_000))
    return found


_RANKS = ((4, 2, 4, 1), (3, 8, 4, 0), (5, 4, 5, 0), (8, 4, 8, 3), (12, 6, 8, 4), (10, 5, 10, 2))


def _reduced_rank(seed: int, inputs: int, hidden: int, outputs: int, rank: int) -> Problem:
    value, widths = exact.reduced_rank(inputs, hidden, outputs, rank=rank), (inputs, hidden, outputs)
    return Problem(
        f"reduced-rank-{inputs}-{hidden}-{outputs}-r{rank}-noise1-s{seed}",
        "families",
        seed,
        partial(singular_network, widths=widths, rank=rank, noise=1.0),
        value,
        value,
        hidden * (inputs + outputs),
        _EXAMPLES,
        widths,
        (rank, rank),
        "linear",
    )


def _network(
    seed: int,
    noise: int,
    widths: tuple[int, int, int],
    activation: str,
    local: LearningCoefficient,
    whole: LearningCoefficient | None,
    *,
    bias: bool = True,
    zero: bool = False,
) -> Problem:
    inputs, hidden, outputs = widths
    return Problem(
        f"{activation}-{inputs}-{hidden}-{outputs}{'-zero' if zero else ''}-noise{noise}-s{seed}",
        "families",
        seed,
        partial(shallow_network, widths=widths, activation=activation, bias=bias, noise=float(noise), zero=zero),
        local,
        whole,
        hidden * (inputs + bias + outputs),
        _EXAMPLES,
        widths,
        (),
        activation,
    )
