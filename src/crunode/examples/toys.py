"""Small landscapes whose learning coefficient, or whose barriers between solutions, are known."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor, nn

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.exact import families, linear_networks

__all__ = [
    "Monomial",
    "Quadratic",
    "normal_crossing",
    "orthants",
    "quadratic",
    "reduced_rank",
    "scalar_chain",
    "units_potential",
]


class Monomial:
    """The potential K(x, y) = x^2a y^2b.

    Example:
        >>> float(Monomial(1, 2)(torch.tensor([3.0, 2.0])))
        144.0
    """

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b

    def __call__(self, w: Tensor) -> Tensor:
        """K at the point `w`."""
        return w[0] ** (2 * self.a) * w[1] ** (2 * self.b)

    def __repr__(self) -> str:
        return f"Monomial({self.a}, {self.b})"


class Quadratic:
    """The potential K(w) = ‖w‖².

    Example:
        >>> float(Quadratic()(torch.tensor([3.0, 4.0])))
        25.0
    """

    def __call__(self, w: Tensor) -> Tensor:
        """K at the point `w`."""
        return w.square().sum()

    def __repr__(self) -> str:
        return "Quadratic()"


def normal_crossing(a: int, b: int, *, n: int = 10_000) -> Landscape:
    """The landscape of K(x, y) = x^2a y^2b at the origin, where the two lines of minima cross.

    Its learning coefficient is min(1/2a, 1/2b) over the exponents that are not zero, with multiplicity 2 when a = b.

    Args:
        a: Half the exponent of x, from 0 up.
        b: Half the exponent of y, from 0 up; not both zero.
        n: The sample size that sets the resolution.

    Example:
        >>> land = normal_crossing(1, 1)
        >>> land.dim, exact_normal_crossing(1, 1)
        (2, Fraction(1, 2))
    """
    exact_normal_crossing(a, b)  # refuses what is no crossing
    return Landscape.of_function(Monomial(a, b), torch.zeros(2), n=n)


def exact_normal_crossing(a: int, b: int) -> Fraction:
    """λ of x^2a y^2b at the origin."""
    try:
        return families.normal_crossing([a, b]).bounds[0]
    except InputError as error:
        raise InputError(f"exponents a and b of a normal crossing: {error}") from None


def quadratic(dim: int, *, n: int = 10_000) -> Landscape:
    """The landscape of K(w) = ‖w‖² at its minimum: a regular model, whose learning coefficient is dim/2.

    Example:
        >>> quadratic(3).dim
        3
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise InputError(f"expected dim as a positive whole number, got {dim!r}")
    return Landscape.of_function(Quadratic(), torch.zeros(dim), n=n)


def reduced_rank(
    inputs: int, hidden: int, outputs: int, rank: int, *, n: int = 2000, noise: float = 0.0, seed: int = 0
) -> Landscape:
    """Reduced rank regression at its most singular true parameter.

    A two-layer linear network x ↦ B A x, with data y = B A x + noise, x ~ N(0, I), and the loss ½‖y − B A x‖². The true
    map has rank r, and so has each layer: A = U Pᵀ, B = Q Uᵀ with orthonormal columns U, P, Q. There the local
    learning coefficient is that of the model.

    Args:
        inputs: Width M of the input.
        hidden: Width H of the hidden layer.
        outputs: Width N of the output.
        rank: Rank r of the true map, from 0 to the smallest width.
        n: Number of examples.
        noise: Standard deviation of the noise on the outputs.
        seed: Data and weights come from it.

    Example:
        >>> land = reduced_rank(6, 4, 6, rank=2)
        >>> land.dim, land.n, exact_reduced_rank(6, 4, 6, 2)
        (48, 2000, Fraction(27, 2))

    References:
        Aoyagi & Watanabe 2005.
    """
    exact_reduced_rank(inputs, hidden, outputs, rank)  # refuses widths that make no network
    generator = torch.Generator().manual_seed(seed)

    def columns(rows: int) -> Tensor:
        # Directions are made in double precision, so that they are orthonormal to rounding in single.
        basis: Tensor = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.float64)).Q
        return basis[:, :rank].float()

    u, p, q = columns(hidden), columns(inputs), columns(outputs)
    net = nn.Sequential(nn.Linear(inputs, hidden, bias=False), nn.Linear(hidden, outputs, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(u @ p.T)  # type: ignore[operator]
        net[1].weight.copy_(q @ u.T)  # type: ignore[operator]
        x = torch.randn(n, inputs, generator=generator)
        y = net(x) + noise * torch.randn(n, outputs, generator=generator)
    return Landscape(net, (x, y), "gaussian")


def exact_reduced_rank(inputs: int, hidden: int, outputs: int, rank: int) -> Fraction:
    """λ of reduced rank regression (Aoyagi & Watanabe 2005)."""
    try:
        return linear_networks.reduced_rank(inputs, hidden, outputs, rank=rank).bounds[0]
    except InputError as error:
        raise InputError(f"widths and rank of reduced rank regression: {error}") from None


def scalar_chain(width: int) -> Callable[[Tensor], Tensor]:
    """The loss (w₂·w₁ − 1)² of a linear chain with one input and one output.

    Example:
        >>> float(scalar_chain(1)(torch.tensor([2.0, 0.5])))
        0.0
    """
    return lambda w: ((w[:width] * w[width:]).sum() - 1) ** 2


def orthants(inputs: int) -> Tensor:
    """The adversarial inputs ±e_k, all with the target 1.

    Example:
        >>> orthants(1).flatten().tolist()
        [1.0, -1.0]
    """
    return torch.cat([torch.eye(inputs, dtype=torch.float64), -torch.eye(inputs, dtype=torch.float64)])


def units_potential(width: int, inputs: int) -> Callable[[Tensor], Tensor]:
    """The mean of (Σ aᵢ relu(wᵢ·x) − 1)² over the inputs ±e_k.

    Example:
        >>> float(units_potential(2, 1)(torch.tensor([1.0, 1.0, 1.0, -1.0], dtype=torch.float64)))
        0.0
    """
    x = orthants(inputs)

    def loss(w: Tensor) -> Tensor:
        hidden = torch.relu(x @ w[width:].view(width, inputs).T)
        return (hidden @ w[:width] - 1).square().mean()

    return loss
