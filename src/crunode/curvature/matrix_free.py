"""`Operator`: a matrix known by its products with vectors, and a small algebra of such matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.curvature.dimension import effective_dimension, matrix_rank
from crunode.curvature.lanczos import Eigenvalues, SpectralDensity, log_determinant, spectral_density, top_eigenvalues
from crunode.curvature.linalg import VectorEstimate, diagonal, trace
from crunode.errors import InputError

__all__ = ["Operator"]

Product = Callable[[Tensor], Tensor]

# The most columns, and numbers, of a matrix that is written out.
_WIDEST, _LARGEST = 20_000, 20_000**2
_BLOCK = 256


class Operator:
    """A matrix known by its products with vectors.

    `A @ v` takes a vector of `shape[1]` entries, or several as the columns of a matrix, which go through together.
    Operators of one shape can be added and subtracted, multiplied by numbers, shifted and transposed.

    Args:
        name: What it is.
        shape: Rows and columns.
        product: Maps a matrix of shape (columns, k) to one of shape (rows, k), linearly.
        transposed: The same for the transpose; not needed where the operator is symmetric.
        dtype: Of its products.
        device: Where its vectors are.
        symmetric: It is its own transpose.
        positive: No eigenvalue is negative.
        landscape: Whose derivative it is.
        explain: Given products that are not finite, says more about the cause.
        trace_by: A better way to the trace than products.

    Attributes:
        name, shape, dtype, device, symmetric, positive, landscape: As given.

    Example:
        >>> twice = Operator("twice", (3, 3), lambda v: 2 * v, symmetric=True, positive=True)
        >>> twice @ torch.ones(3)
        tensor([2., 2., 2.])
        >>> (0.5 * twice + twice.shifted(1.0)).dense()
        tensor([[4., 0., 0.],
                [0., 4., 0.],
                [0., 0., 4.]])
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, int],
        product: Product,
        *,
        transposed: Product | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        symmetric: bool = False,
        positive: bool = False,
        landscape: Landscape | None = None,
        explain: Callable[[Tensor], str] | None = None,
        trace_by: Callable[..., Estimate] | None = None,
    ) -> None:
        self.name, self.shape, self.dtype, self.device = name, shape, dtype, torch.device(device)
        self.symmetric, self.positive, self.landscape = symmetric, positive, landscape
        self._product, self._transposed = product, product if symmetric else transposed
        self._explain, self._trace_by = explain, trace_by

    def __repr__(self) -> str:
        kind = "positive semidefinite" if self.positive else "symmetric" if self.symmetric else "general"
        return f"<{self.name}, {self.shape[0]} × {self.shape[1]}, {kind}, {self.dtype}>"

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """The product with a vector, or with each column of a matrix.

        Raises:
            InputError: The vectors do not fit or are not finite, or the product is not.
        """
        self._check(vectors)
        given = vectors.detach().to(self.dtype)
        found = self._product(given[:, None] if given.ndim == 1 else given)
        if not _is_finite(found):
            more = "" if self._explain is None else self._explain(found)
            raise InputError(f"expected finite products with the {self.name}, got some that are not{more}")
        return found[:, 0] if given.ndim == 1 else found

    @property
    def T(self) -> Operator:
        """The transpose.

        Raises:
            InputError: Products with it are not known.
        """
        if self.symmetric:
            return self
        if self._transposed is None:
            raise InputError(f"expected an operator with a transpose, got {self.name}; give it transposed=")
        return Operator(
            f"transposed {self.name}",
            (self.shape[1], self.shape[0]),
            self._transposed,
            transposed=self._product,
            dtype=self.dtype,
            device=self.device,
            landscape=self.landscape,
            explain=self._explain,
        )

    def __add__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        if self.shape != other.shape or self.dtype != other.dtype or self.device != other.device:
            raise InputError(f"expected operators that can be added, got {self} on {self.device} and {other} there")
        first, second = self, other
        there = first._transposed is not None and second._transposed is not None
        return Operator(
            f"{first.name} + {second.name}",
            first.shape,
            lambda v: first @ v + second @ v,
            transposed=(lambda u: first.T @ u + second.T @ u) if there else None,
            dtype=first.dtype,
            device=first.device,
            symmetric=first.symmetric and second.symmetric,
            positive=first.positive and second.positive,
            landscape=first.landscape if first.landscape is second.landscape else None,
        )

    def __mul__(self, factor: float) -> Operator:
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            return NotImplemented
        if not abs(factor) < float("inf"):
            raise InputError(f"expected a finite number to multiply an operator by, got {factor}")
        whole = self
        return Operator(
            f"{factor:g} × {whole.name}",
            whole.shape,
            lambda v: factor * (whole @ v),
            transposed=None if whole._transposed is None else lambda u: factor * (whole.T @ u),
            dtype=whole.dtype,
            device=whole.device,
            symmetric=whole.symmetric,
            positive=whole.positive and factor >= 0,
            landscape=whole.landscape,
        )

    __rmul__ = __mul__

    def __neg__(self) -> Operator:
        return -1.0 * self

    def __sub__(self, other: Operator) -> Operator:
        return self + -other if isinstance(other, Operator) else NotImplemented

    def shifted(self, kappa: float) -> Operator:
        """A + κI.

        Raises:
            InputError: The operator is not square, or κ is no finite number.
        """
        if self.shape[0] != self.shape[1]:
            raise InputError(f"expected a square operator to shift, got {self}")
        if isinstance(kappa, bool) or not isinstance(kappa, int | float) or not abs(kappa) < float("inf"):
            raise InputError(f"expected kappa as a finite number, got {kappa!r}")
        identity = Operator(
            f"{kappa:g} I",
            self.shape,
            lambda v: kappa * v,
            dtype=self.dtype,
            device=self.device,
            symmetric=True,
            positive=kappa >= 0,
            landscape=self.landscape,
        )
        return self + identity

    def dense(self) -> Tensor:
        """The matrix written out.

        Raises:
            InputError: It has more than 20 000 rows and columns, or 4·10⁸ entries.
        """
        rows, columns = self.shape
        if min(rows, columns) > _WIDEST or rows * columns > _LARGEST:
            raise InputError(
                f"expected at most {_WIDEST} columns to write a matrix out, got {rows} × {columns}; use products "
                "with vectors, or fewer parameters by Landscape.restrict"
            )
        if rows < columns and not self.symmetric and self._transposed is not None:
            return self.T.dense().T
        found = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        for start in range(0, columns, _BLOCK):
            stop = min(start + _BLOCK, columns)
            basis = torch.zeros(columns, stop - start, dtype=self.dtype, device=self.device)
            basis[torch.arange(start, stop), torch.arange(stop - start)] = 1
            found[:, start:stop] = self @ basis
        return found

    def trace(self, **options: Any) -> Estimate:
        """The trace: of a Hessian by `hessian_trace`, of a Gauss-Newton matrix by `ggn_trace`, else by `linalg.trace`.

        Args:
            options: As these take them, `tolerance` and `seed` among them.

        Example:
            >>> Operator("twice", (3, 3), lambda v: 2 * v, symmetric=True, positive=True).trace().value
            6.0
        """
        return trace(self, **options) if self._trace_by is None else self._trace_by(**options)

    def diagonal(self, **options: Any) -> VectorEstimate:
        """The diagonal, with an error for each entry (see `linalg.diagonal`)."""
        return diagonal(self, **options)

    def eigenvalues(self, k: int = 1, **options: Any) -> Eigenvalues:
        """The k largest eigenvalues, with intervals (see `lanczos.top_eigenvalues`)."""
        return top_eigenvalues(self, k, **options)

    def density(self, **options: Any) -> SpectralDensity:
        """The density of eigenvalues (see `lanczos.spectral_density`)."""
        return spectral_density(self, **options)

    def logdet(self, **options: Any) -> Estimate:
        """The logarithm of the determinant of a positive operator (see `lanczos.log_determinant`)."""
        return log_determinant(self, **options)

    def rank(self, **options: Any) -> Estimate:
        """The rank, with a test for a gap (see `dimension.matrix_rank`)."""
        return matrix_rank(self, **options)

    def effective_dimension(self, gamma: float, **options: Any) -> Estimate:
        """Σ λ/(λ + γ) over the eigenvalues λ (see `dimension.effective_dimension`)."""
        return effective_dimension(self, gamma, **options)

    def _check(self, vectors: Tensor) -> None:
        columns = self.shape[1]
        if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
            got = f"dtype {vectors.dtype}" if isinstance(vectors, Tensor) else type(vectors).__name__
            raise InputError(f"expected a floating-point tensor to multiply with the {self.name}, got {got}")
        if vectors.ndim not in (1, 2) or vectors.shape[0] != columns:
            raise InputError(
                f"expected a vector of {columns} entries, or a matrix of as many rows, to multiply with the "
                f"{self.name}, got shape {tuple(vectors.shape)}"
            )
        if vectors.device != self.device:
            raise InputError(f"expected vectors on {self.device}, got some on {vectors.device}; move them there")
        if not _is_finite(vectors):
            raise InputError(f"expected finite vectors to multiply with the {self.name}, got some that are not")


def _is_finite(values: Tensor) -> bool:
    # A sum takes a tenth of the time of looking at each, and shows all that is not finite.
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
