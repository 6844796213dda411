"""Lanczos steps with full reorthogonalization, and the quadratures they make.

From a vector v, m products with A give an orthonormal basis V of v, Av, …, A^(m−1)v and the tridiagonal T = VᵀAV. Each
new vector is orthogonalised against all before it, since without that rounding brings back copies of eigenvalues that
were found already ("ghosts"). The squares of the first entries of the eigenvectors of T are weights at its eigenvalues
that integrate polynomials of degree up to 2m − 1 exactly against the measure Σ (vᵀu_i)² δ(λ − λ_i) of v in the
eigenvectors u_i of A (Gauss quadrature); for random v its mean is the spectral density.

References:
    Golub & Meurant 2010, chapters 4 and 6; Simon 1984 (orthogonality); Parlett 1998, theorem 4.5.1 (residual bound).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crunode.core.progress import Progress
from crunode.core.result import Finding
from crunode.curvature.probing import (
    CLEAR,
    Products,
    applied,
    generator_of,
    is_positive,
    rounding,
    signs,
    stages,
    working_dtype,
)
from crunode.errors import InputError

__all__ = ["DENSE", "FEWER", "NOTHING", "Recurrence", "as_rows", "negative", "runs_of", "tridiagonalize"]

# Rows up to which all columns are taken where the budget pays for them.
DENSE = 2048
# A remainder this small, in units of rounding, is none: what was found is the whole Krylov space.
NOTHING = 30.0
# Part of the steps whose result is compared with that of all.
FEWER = 0.75
# Vectors that keep less than this in orthogonalisation go through it twice (Daniel et al. 1976).
_ENOUGH = 0.7
# Bytes for the vectors of all starts at once.
_KEPT = 1 << 29


@dataclass(frozen=True)
class Recurrence:
    """What Lanczos steps from one vector gave.

    Attributes:
        diagonal: α_1 … α_m, the diagonal of T.
        beside: β_1 … β_m; the last one belongs to the vector that would come next, and is 0 where there is none.
    """

    diagonal: np.ndarray
    beside: np.ndarray

    def rule(self, steps: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes, weights and residuals of the Gauss quadrature, of the first steps or of all.

        Example:
            >>> Recurrence(np.array([2.0]), np.array([0.5])).rule()
            (array([2.]), array([1.]), array([0.5]))
        """
        size = len(self.diagonal) if steps is None else min(steps, len(self.diagonal))
        nodes, axes = np.linalg.eigh(_tridiagonal(self.diagonal[:size], self.beside[: size - 1]))
        return nodes, axes[0] ** 2, self.beside[size - 1] * np.abs(axes[-1])

    def radau(self, end: float) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights of the Gauss-Radau quadrature with a node at `end`, below all nodes of the other.

        Example:
            >>> Recurrence(np.array([2.0]), np.array([1.0])).radau(0.0)[0].round(6) + 0.0
            array([0. , 2.5])
        """
        if self.beside[-1] == 0:
            return self.rule()[:2]
        shifted = _tridiagonal(self.diagonal - end, self.beside[:-1])
        last = np.linalg.solve(shifted, np.eye(len(shifted))[-1])[-1] * self.beside[-1] ** 2
        nodes, axes = np.linalg.eigh(_tridiagonal(np.append(self.diagonal, end + last), self.beside))
        return nodes, axes[0] ** 2


def tridiagonalize(matrix: Products, starts: Tensor, steps: int) -> list[Recurrence]:
    """Lanczos steps from each column of `starts`, all at once, with full reorthogonalization.

    A start whose Krylov space ends sooner gets a shorter recurrence, whose quadrature is exact.

    Args:
        matrix: A symmetric matrix of n rows (see `Products`).
        starts: Vectors as columns, none of them zero.
        steps: Number of steps m.

    Raises:
        InputError: A start is zero, or products show that the matrix is not symmetric.

    Example:
        >>> (run,) = tridiagonalize(torch.diag(torch.tensor([1.0, 2.0, 4.0])), torch.ones(3, 1), 3)
        >>> run.rule()[0].round(5)
        array([1., 2., 4.])
    """
    size, count = starts.shape
    steps, unit = min(steps, size), float(torch.finfo(starts.dtype).eps)
    basis = torch.empty(count, steps, size, dtype=starts.dtype, device=starts.device)
    lengths = starts.norm(dim=0)
    if not bool((lengths > 0).all()):
        raise InputError("expected starts other than zero, got a zero vector")
    now = (starts / lengths).T.contiguous()
    alphas, betas = np.zeros((count, steps)), np.zeros((count, steps))
    ends, scale, stray = np.full(count, steps), np.zeros(count), np.zeros(count)
    for j in range(steps):
        basis[:, j] = now
        image = applied(matrix, now.T).T.contiguous()
        for i in np.flatnonzero(ends > j):
            known, vector = basis[i, : j + 1], image[i]
            scale[i] = max(scale[i], float(vector.norm()))
            # The two large terms go first: taken with the rest, they would multiply what orthogonality lacks each step.
            alphas[i, j] = float(known[j] @ vector)
            vector.add_(known[j], alpha=-alphas[i, j])
            if j:
                vector.add_(known[j - 1], alpha=-betas[i, j - 1])
            beta = float(vector.norm())
            for _ in range(2):
                rest = known @ vector
                vector.addmv_(known.T, rest, alpha=-1)
                before, beta = beta, float(vector.norm())
                stray[i] = max(stray[i], float(rest.abs().max()))
                if beta > _ENOUGH * before:
                    break
            if beta <= NOTHING * unit * scale[i] or j + 1 == size:
                ends[i], beta = j + 1, 0.0
                vector.zero_()
            betas[i, j] = beta
            now[i] = vector / (beta or 1.0)
        if not (ends > j + 1).any():
            break
    if (stray > CLEAR * rounding(matrix) * scale).any():
        raise InputError("expected a symmetric matrix, got products with uᵀAv ≠ vᵀAu; symmetrise it, or fix its noise")
    return [Recurrence(alphas[i, :end].copy(), betas[i, :end].copy()) for i, end in enumerate(ends)]


def runs_of(matrix: Products, size: int, probes: int, steps: int, seed: int) -> Iterator[list[Recurrence]]:
    """Recurrences from as many random starts as each look at the error asks for, with those before.

    Example:
        >>> [len(runs) for runs in runs_of(torch.eye(50), 50, 10, 4, 0)]
        [8, 10]
    """
    chance = generator_of(seed, 5)
    runs: list[Recurrence] = []
    steps = min(steps, size)
    together = max(1, _KEPT // (size * steps * working_dtype(matrix).itemsize))
    with Progress(probes, "random starts") as bar:
        for goal in stages(probes):
            while len(runs) < goal:
                starts = signs(size, min(together, goal - len(runs)), chance, matrix)
                runs += tridiagonalize(matrix, starts, steps)
                bar.advance(starts.shape[1])
            yield runs


def negative(matrix: Products, low: float, scale: float, floor: float | None = None) -> tuple[Finding, ...]:
    """A finding where the lowest value proves an eigenvalue below the floor, or below zero where there is to be none.

    Example:
        >>> negative(torch.eye(2), -1.0, 1.0), negative(torch.eye(2), -1.0, 1.0, floor=0.0)[0].code
        ((), 'CURV815')
    """
    if floor is None:
        floor = 0.0 if is_positive(matrix) else None
    if floor is None or low >= floor - CLEAR * rounding(matrix) * scale:
        return ()
    return (Finding.of("CURV815", f"one at {low:.3g} or below, beside {scale:.3g}"),)


def as_rows(rules: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rules as rows of equal length; shorter ones get their last node again, without weight.

    Example:
        >>> one, two = Recurrence(np.ones(1), np.zeros(1)), Recurrence(np.array([1.0, 3.0]), np.zeros(2))
        >>> as_rows([one.rule(), two.rule()])[0]
        array([[1., 1.],
               [1., 3.]])
    """
    longest = max(len(nodes) for nodes, _, _ in rules)
    ends = [longest - len(nodes) for nodes, _, _ in rules]
    nodes = np.stack([np.pad(rule[0], (0, end), mode="edge") for rule, end in zip(rules, ends, strict=True)])
    weights, residuals = (
        np.stack([np.pad(rule[part], (0, end)) for rule, end in zip(rules, ends, strict=True)]) for part in (1, 2)
    )
    return nodes, weights, residuals


def _tridiagonal(diagonal: np.ndarray, beside: np.ndarray) -> np.ndarray:
    return np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
