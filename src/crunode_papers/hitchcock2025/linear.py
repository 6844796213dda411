"""Deep linear networks of the benchmark: random ones at random points of low rank, and ones at the most singular point.

Widths and ranks of layers are listed from input to output, as the layers of a model are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from crunode import InputError, Landscape
from crunode.exact import LearningCoefficient, deep_linear, deep_linear_local

__all__ = ["exact_linear", "random_network", "random_shape", "singular_network", "truncated"]

# Rows evaluated at once for labels; above this many input numbers they are drawn on the landscape's device.
_CHUNK = 100_000
_ON_CPU = 20_000_000
# Up to this size the singular value decomposition itself is taken; above, eigenvectors of the Gram matrix, which are
# ten times as fast.
_SMALL = 128


def random_shape(seed: int, layers: tuple[int, int], widths: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Widths and ranks of a random network: each layer's rank is, with probability 1/2, uniform from 0 to full.

    Args:
        seed: All choices come from it.
        layers: Least and largest number of layers.
        widths: Least and largest width.

    Example:
        >>> random_shape(5000, (2, 5), (5, 50))
        ([28, 30, 34, 12], [28, 30, 12])
    """
    return _shape(random.Random(seed), layers, widths)


def _shape(chance: random.Random, layers: tuple[int, int], widths: tuple[int, int]) -> tuple[list[int], list[int]]:
    sizes = [chance.randint(*widths) for _ in range(chance.randint(*layers) + 1)]
    ranks = []
    for a, b in pairwise(sizes):
        full = min(a, b)
        ranks.append(chance.randint(0, full) if chance.random() < 0.5 else full)
    return sizes, ranks


def exact_linear(widths: Sequence[int], ranks: Sequence[int]) -> tuple[LearningCoefficient, LearningCoefficient]:
    """The local coefficient at weights that are generic but for their ranks, and the global one of the model.

    A product of neighboring layers has then the least of their ranks. The two differ where some layer, or some product
    of layers, has more rank than the whole.

    Args:
        widths: Widths from input to output.
        ranks: Rank of each layer, in the same order.

    Example:
        >>> local, whole = exact_linear([2, 2, 2], [2, 0])
        >>> local.value, whole.value
        (Fraction(2, 1), Fraction(3, 2))
    """
    sizes, given = list(widths)[::-1], list(ranks)[::-1]
    table = [[min(given[s : t + 1]) for t in range(s, len(given))] for s in range(len(given))]
    return deep_linear_local(sizes, table), deep_linear(sizes, rank=min(given))


def random_network(
    n: int, device: torch.device | str | None = None, *, seed: int, layers: tuple[int, int], widths: tuple[int, int]
) -> Landscape:
    """A random deep linear network on its own predictions, inputs uniform on [−10, 10], with ½‖y − f(x)‖² for loss.

    Weights are Xavier-uniform, then cut to the ranks of `random_shape`. They depend on the seed alone; more than 2·10⁷
    input numbers are drawn on the device and differ between kinds of devices.

    Args:
        n: Number of examples.
        device: Where to hold data and weights; the CPU by default.
        seed: Widths, ranks, weights and inputs come from it.
        layers: Least and largest number of layers.
        widths: Least and largest width.

    Example:
        >>> land = random_network(100, seed=5000, layers=(2, 5), widths=(5, 50))
        >>> land.n, land.dim, float(land.loss())
        (100, 2268, 0.0)

    References:
        Lau et al. 2023.
    """
    place, generator, chance = torch.device(device or "cpu"), torch.Generator().manual_seed(seed), random.Random(seed)
    sizes, ranks = _shape(chance, layers, widths)
    weights = []
    for (a, b), rank in zip(pairwise(sizes), ranks, strict=True):
        weight = nn.init.xavier_uniform_(torch.empty(b, a), generator=generator).to(place)
        weights.append(weight if rank == min(a, b) else truncated(weight, rank))
    if n * sizes[0] > _ON_CPU and place.type != "cpu":
        generator = torch.Generator(place).manual_seed(seed)
    x = torch.rand(n, sizes[0], generator=generator, device=generator.device).mul_(20).sub_(10).to(place)
    return _on_predictions(weights, x)


def truncated(weight: Tensor, rank: int) -> Tensor:
    """The matrix of the given rank that is nearest to `weight`: its singular values from there on set to zero.

    Example:
        >>> truncated(torch.diag(torch.tensor([3.0, 2.0, 1.0])), 2).diag()
        tensor([3., 2., 0.])
    """
    if not 0 <= rank <= min(weight.shape):
        raise InputError(f"expected a rank from 0 to {min(weight.shape)}, got {rank}")
    matrix = weight.double()
    if min(weight.shape) <= _SMALL:
        u, s, v = torch.linalg.svd(matrix, full_matrices=False)
        s[rank:] = 0
        return torch.matmul(u * s, v).to(weight)
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    vectors = torch.linalg.eigh(wide @ wide.T).eigenvectors  # ascending
    kept = vectors[:, vectors.shape[1] - rank :]
    cut: Tensor = kept @ (kept.T @ wide)
    return (cut if wide is matrix else cut.T).to(weight)


def singular_network(
    n: int, device: torch.device | str | None = None, *, seed: int, widths: Sequence[int], rank: int, noise: float
) -> Landscape:
    """A deep linear network where every layer has the rank r of the true map and passes its image on.

    Layer k is Q_k Q_{k−1}ᵀ with r orthonormal columns Q_k. All partial products have rank r, so that the local
    coefficient is the global one. Inputs are standard normal.

    Args:
        n: Number of examples.
        device: Where to hold data and weights; the CPU by default.
        seed: Weights and data come from it.
        widths: Widths from input to output.
        rank: r.
        noise: Standard deviation of the label noise.

    Example:
        >>> land = singular_network(64, seed=0, widths=(6, 4, 6), rank=2, noise=0.0)
        >>> land.dim, float(land.loss()) < 1e-10
        (48, True)
    """
    generator = torch.Generator().manual_seed(seed)
    columns = [
        # In double precision, so that they are orthonormal to rounding in single.
        torch.linalg.qr(torch.randn(w, w, generator=generator, dtype=torch.float64)).Q[:, :rank].float()
        for w in widths
    ]
    weights = [b @ a.T for a, b in pairwise(columns)]
    x = torch.randn(n, widths[0], generator=generator)
    scatter = noise * torch.randn(n, widths[-1], generator=generator) if noise else None
    return _on_predictions([w.to(device or "cpu") for w in weights], x.to(device or "cpu"), scatter)


def _on_predictions(weights: list[Tensor], x: Tensor, scatter: Tensor | None = None) -> Landscape:
    net = nn.Sequential(*(nn.Linear(w.shape[1], w.shape[0], bias=False, device="meta") for w in weights))
    net.load_state_dict({f"{k}.weight": w for k, w in enumerate(weights)}, assign=True)
    y = x.new_empty(len(x), len(weights[-1]))
    with torch.no_grad():
        for start in range(0, len(x), _CHUNK):
            y[start : start + _CHUNK] = net(x[start : start + _CHUNK])
    if scatter is not None:
        y += scatter.to(y)
    return Landscape(net.requires_grad_(), (x, y), "gaussian")
