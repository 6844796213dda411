"""Reduced rank regression y = B A x + noise: many data sets, and draws of their posteriors side by side.

Given one factor the posterior of the other is normal, so the two are drawn in turn (Gibbs sampling, no steps to tune).
The loss does not change under A → G A, B → B G⁻¹, and alternation moves slowly along that group; random elements of
it, accepted by prior and Jacobian |det G|^(M−N), make the chains mix.

References:
    Aoyagi & Watanabe 2005 (the model); Geman & Geman 1984; Liu & Sabatti 2000 (moves along groups).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crunode import Draws
from crunode.core import derived_seed

__all__ = ["DataSets", "Samples", "best_loss", "draw_posteriors", "simulate"]

_GROUP_MOVES = 2


@dataclass(frozen=True)
class DataSets:
    """Data sets of the same size from one truth, with unit noise.

    Attributes:
        x: Inputs, shape (data set, example, M), standard normal.
        y: Outputs, shape (data set, example, N).
        truth: The true matrix, shape (N, M).
    """

    x: Tensor
    y: Tensor
    truth: Tensor

    @property
    def n(self) -> int:
        """Examples in each data set."""
        return self.x.shape[1]

    def true_losses(self) -> Tensor:
        """½‖y − f_0(x)‖² of each example, shape (data set, example)."""
        return 0.5 * (self.y - self.x @ self.truth.T).square().sum(2)


def simulate(truth: Sequence[Sequence[float]], n: int, seeds: Sequence[int]) -> DataSets:
    """A data set for each seed.

    Example:
        >>> simulate([[1.0, 0.0]], 10, [0, 1, 2]).y.shape
        torch.Size([3, 10, 1])
    """
    matrix = torch.tensor(truth, dtype=torch.float64)
    outputs, inputs = matrix.shape
    sets = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        sets.append(torch.randn(n, inputs + outputs, generator=generator, dtype=torch.float64))
    both = torch.stack(sets)
    x = both[:, :, :inputs]
    return DataSets(x, x @ matrix.T + both[:, :, inputs:], matrix)


def best_loss(data: DataSets, hidden: int) -> Tensor:
    """The smallest mean loss that rank `hidden` can have, for each data set: Eckart & Young in the metric of x.

    Example:
        >>> data = simulate([[1.0, 0.0], [0.0, 0.0]], 50, [0])
        >>> bool(best_loss(data, 2) < best_loss(data, 1) < data.true_losses().mean())
        True
    """
    q, _ = torch.linalg.qr(data.x)
    fitted = q.mT @ data.y  # coordinates of the least-squares fit
    lost = torch.linalg.svdvals(fitted).square()[:, hidden:].sum(1)
    residual = (data.y - q @ fitted).square().sum((1, 2))
    return torch.div(0.5 * (residual + lost), data.n)


@dataclass(frozen=True)
class Samples:
    """Matrices B A drawn from posteriors.

    Attributes:
        maps: Shape (data set, level, chain, draw, N, M).
        data: What they are posteriors of.
        nbeta: The levels.
        precision: Of the normal prior on all entries of A and B.
        seed: Where the draws came from.
    """

    maps: Tensor
    data: DataSets
    nbeta: tuple[float, ...]
    precision: float
    seed: int

    def of(self, index: int, *, pointwise: bool = True) -> Draws:
        """The draws of one data set, losses relative to those at the truth.

        Args:
            index: Which data set.
            pointwise: Keep the loss of every example too.
        """
        maps = self.maps[index].flatten(0, 1)
        x, y = self.data.x[index], self.data.y[index]
        at_truth = float(self.data.true_losses()[index].mean())
        arrays = {}
        if pointwise:
            losses = 0.5 * (y - torch.einsum("ctnm,im->ctin", maps, x)).square().sum(3)
            arrays["pointwise"] = losses.numpy()
            mean = losses.mean(2)
        else:  # by sums of squares, without a number for each example
            n = len(x)
            xx, yx = x.T @ x / n, y.T @ x / n
            square = torch.einsum("ctnm,mk,ctnk->ct", maps, xx, maps)
            mean = 0.5 * (y.square().sum() / n + square) - torch.einsum("ctnm,nm->ct", maps, yx)
        chains = self.maps.shape[2]
        arrays["excess"] = (mean - at_truth).numpy()
        arrays["distance2"] = (maps - self.data.truth).square().sum((2, 3)).numpy()
        prior = {"precision": self.precision, "mean": "origin"}
        spec = {"n": self.data.n, "asked": {"seed": self.seed, "prior": prior}}
        return Draws(arrays, {}, np.repeat(self.nbeta, chains), spec)


def draw_posteriors(
    data: DataSets,
    hidden: int,
    nbeta: Sequence[float],
    *,
    precision: float = 1.0,
    chains: int = 4,
    draws: int = 500,
    warmup: int = 100,
    seed: int = 0,
) -> Samples:
    """Draws from exp(−nβ L_n(A, B)) N(0, 1/precision) for all data sets and levels of nβ at once.

    Args:
        data: The data sets.
        hidden: Width H of the hidden layer, the largest rank of B A.
        nbeta: Levels of nβ.
        precision: Of the prior.
        chains: Chains at each level, begun at draws from the prior.
        draws: Kept draws of each chain.
        warmup: Sweeps before them.
        seed: All randomness comes from it.

    Example:
        >>> found = draw_posteriors(simulate([[2.0]], 400, [0, 1]), 1, [400.0], draws=50)
        >>> found.maps.shape, bool((found.maps.mean((1, 2, 3, 4, 5)) - 2).abs().max() < 0.3)
        (torch.Size([2, 1, 4, 50, 1, 1]), True)
    """
    sets, n, inputs = data.x.shape
    outputs = data.y.shape[2]
    shape = (sets, len(nbeta), chains)
    generator = torch.Generator().manual_seed(derived_seed(seed, 71))

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def each(value: Tensor) -> Tensor:
        """One for each data set, made one for each chain."""
        return value[:, None, None].expand(*shape, *value.shape[1:]).reshape(-1, *value.shape[1:])

    t = torch.tensor(nbeta, dtype=torch.float64)[None, :, None].expand(shape).reshape(-1, 1, 1)
    xx, yx = t * each(data.x.mT @ data.x / n), t * each(data.y.mT @ data.x / n)
    count = len(t)
    a, b = (normal(count, *size) / math.sqrt(precision) for size in ((hidden, inputs), (outputs, hidden)))
    eye_a, eye_b = (precision * torch.eye(k, dtype=torch.float64) for k in (hidden * inputs, hidden))
    kept = []
    for sweep in range(warmup + draws):
        # The rows of B are independent given A; the entries of A, taken as one vector, are not given B.
        b = _normal_given(a @ xx @ a.mT + eye_b, yx @ a.mT, normal(count, outputs, hidden))
        joint = torch.einsum("pgh,pmk->pgmhk", b.mT @ b, xx).reshape(count, hidden * inputs, hidden * inputs) + eye_a
        right = (b.mT @ yx).reshape(count, 1, -1)
        a = _normal_given(joint, right, normal(count, 1, hidden * inputs)).reshape(count, hidden, inputs)
        for _ in range(_GROUP_MOVES):
            size = 10 ** (-1.5 * torch.rand(count, 1, 1, generator=generator, dtype=torch.float64))
            step = size * normal(count, hidden, hidden)
            element = torch.linalg.matrix_exp(step)
            one, two = element @ a, b @ torch.linalg.inv(element)
            gain = 0.5 * precision * (_norm2(a) + _norm2(b) - _norm2(one) - _norm2(two))
            gain = gain + (inputs - outputs) * step.diagonal(dim1=1, dim2=2).sum(1)
            taken = torch.rand(count, generator=generator, dtype=torch.float64).log() < gain
            a, b = (torch.where(taken[:, None, None], new, old) for new, old in ((one, a), (two, b)))
        if sweep >= warmup:
            kept.append(b @ a)
    maps = torch.stack(kept, 1).reshape(*shape, draws, outputs, inputs)
    return Samples(maps, data, tuple(float(level) for level in nbeta), precision, seed)


def _normal_given(precision: Tensor, right: Tensor, noise: Tensor) -> Tensor:
    """Rows from N(P⁻¹ r, P⁻¹) for each row r of `right`."""
    factor = torch.linalg.cholesky(precision)
    half = torch.linalg.solve_triangular(factor, right.mT, upper=False)
    return torch.transpose(torch.linalg.solve_triangular(factor.mT, half + noise.mT, upper=True), -2, -1)


def _norm2(matrix: Tensor) -> Tensor:
    return matrix.square().sum((1, 2))
