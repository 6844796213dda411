"""Products of a symmetric matrix with random vectors, and errors of means over few samples.

Random vectors have independent signs, so that E zzᵀ = I and zᵀz = n. They come from generators on the CPU, so that they
are the same ones on every device and however they are divided into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from crunode.core.progress import Progress
from crunode.core.result import Finding
from crunode.core.rng import derived_seed
from crunode.errors import EstimationError, InputError

__all__ = [
    "CLEAR",
    "Products",
    "applied",
    "block_width",
    "checked",
    "checked_budget",
    "columns",
    "dense_matrix",
    "doubts",
    "generator_of",
    "is_positive",
    "mean_with_error",
    "refuse_asymmetric",
    "rounding",
    "sampled",
    "signs",
    "stages",
    "stretch",
    "working_dtype",
]

# Vectors multiplied at once, and numbers in them.
_COLUMNS, _NUMBERS = 16, 1 << 26
# First look at the error after so many samples, then at twice as many each time: looking often stops too early.
_FIRST = 8
# Relative to the rounding of the dtype: what is no longer symmetric, and what is clearly below zero.
CLEAR = 1e4


@runtime_checkable
class Products(Protocol):
    """A real symmetric matrix known by its products: an operator of this package, or a plain symmetric tensor.

    `A @ V` takes V of shape (n,) or (n, k). An attribute `positive` that is true says that it has no eigenvalues below
    zero; one named `symmetric` that is false makes the functions here refuse it.

    Example:
        >>> isinstance(torch.eye(2), Products)
        True
    """

    @property
    def shape(self) -> Any:
        """Rows and columns."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors it takes."""

    @property
    def device(self) -> torch.device:
        """Of the vectors it takes."""

    def __matmul__(self, other: Tensor, /) -> Tensor: ...


def checked(matrix: Any) -> int:
    """The number of rows of a matrix that can be used here.

    Raises:
        InputError: It is not square, empty, not real, not symmetric, or has entries that are not finite.

    Example:
        >>> checked(torch.eye(3))
        3
    """
    if not isinstance(matrix, Products):
        raise InputError(
            f"expected a tensor or an operator with shape, dtype, device and @, got {type(matrix).__name__}"
        )
    shape = tuple(matrix.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"expected a square matrix, got shape {shape}; for J use its product with its transpose")
    if shape[0] < 1:
        raise InputError("expected a matrix with one row or more, got an empty one; are all parameters fixed?")
    if not matrix.dtype.is_floating_point:
        raise InputError(
            f"expected real floating-point numbers, got {matrix.dtype}; convert the matrix, as by .double()"
        )
    if getattr(matrix, "symmetric", True) is False:
        raise InputError("expected a symmetric matrix, got an operator that is not; use A.T @ A or A @ A.T")
    if isinstance(matrix, Tensor):
        given = matrix.detach()
        if not bool(given.isfinite().all()):
            raise InputError("expected finite entries, got some that are not; look where they come from")
        if float((given - given.T).abs().max()) > math.sqrt(rounding(matrix)) * float(given.abs().max()):
            raise InputError("expected a symmetric matrix, got one that differs from its transpose; use (A + A.T) / 2")
    return int(shape[0])


def checked_budget(tolerance: float | None, seed: int, **counts: int) -> None:
    """Refuse settings that make no sense: `counts` are whole numbers of two or more.

    Example:
        >>> checked_budget(0.01, 0, probes=8)
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 2:
            raise InputError(f"expected {name} as a whole number of 2 or more, got {count!r}")
    if tolerance is not None and not (isinstance(tolerance, int | float) and 0 < tolerance < math.inf):
        raise InputError(f"expected tolerance as a positive number or None, got {tolerance!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number of 0 or more, got {seed!r}")


def applied(matrix: Products, vectors: Tensor) -> Tensor:
    """The product with columns, in the dtype of `vectors`, without a graph.

    Raises:
        EstimationError: It is not finite.
        InputError: It has another shape than the vectors.

    Example:
        >>> applied(2 * torch.eye(2), torch.ones(2, 1)).flatten().tolist()
        [2.0, 2.0]
    """
    found = (matrix @ vectors.to(matrix.dtype)).detach().to(vectors.dtype)
    if found.shape != vectors.shape:
        raise InputError(f"expected products of shape {tuple(vectors.shape)}, got {tuple(found.shape)}; see Products")
    if not bool(found.isfinite().all()):
        raise EstimationError(
            "the product of the matrix with a finite vector is not finite: the loss or its derivatives overflow, or "
            "have no second derivative, at this point"
        )
    return found


def dense_matrix(matrix: Products) -> Tensor:
    """All columns of a symmetric matrix, in double precision.

    Example:
        >>> dense_matrix(torch.eye(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    whole = torch.cat([part.double() for _, part in columns(matrix)], 1)
    if float((whole - whole.T).abs().max()) > math.sqrt(rounding(matrix)) * float(whole.abs().max()):
        raise InputError("expected a symmetric matrix, got products of one that differs from its transpose")
    return (whole + whole.T) / 2


def is_positive(matrix: Products) -> bool:
    """Whether the matrix says of itself that it has no eigenvalues below zero; tensors say nothing.

    Example:
        >>> is_positive(torch.eye(2))
        False
    """
    return getattr(matrix, "positive", False) is True  # tensors have a method of that name


def rounding(matrix: Products) -> float:
    """The rounding unit of the matrix.

    Example:
        >>> rounding(torch.eye(2)) == torch.finfo(torch.float32).eps
        True
    """
    return float(torch.finfo(matrix.dtype).eps)


def signs(size: int, count: int, generator: torch.Generator, matrix: Products) -> Tensor:
    """Vectors of independent random signs, as columns; the same ones however they are divided into blocks.

    Example:
        >>> signs(3, 2, torch.Generator().manual_seed(0), torch.eye(3)).abs().sum()
        tensor(6.)
    """
    rows = [torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) for _ in range(count)]
    return (torch.stack(rows, 1).to(matrix.device, working_dtype(matrix)) * 2).sub_(1)


def stages(budget: int) -> Iterator[int]:
    """After how many samples to look at the error: 8, 16, 32, … and at the end.

    Example:
        >>> list(stages(40))
        [8, 16, 32, 40]
    """
    count = _FIRST
    while count < budget:
        yield count
        count *= 2
    yield budget


def mean_with_error(samples: Any) -> tuple[float, float]:
    """Mean and standard error of two or more samples, the latter stretched by Student's t.

    Twice the error then covers 95.4 %, as it does for a known variance, when the samples are normal.

    Example:
        >>> mean, se = mean_with_error([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> mean, round(se, 3)  # √(2.5/5) = 0.707, stretched
        (3.0, 1.014)
    """
    values = np.asarray(samples, dtype=np.float64)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) * stretch(len(values))


def doubts(count: int, reached: bool, what: str, tolerance: float | None) -> tuple[Finding, ...]:
    """Findings about a mean over `count` samples that did or did not reach its tolerance.

    Example:
        >>> [f.code for f in doubts(4, False, "se 0.2 of 1.0", 0.01)]
        ['CURV811', 'CURV812']
    """
    found = []
    if tolerance is not None and not reached:
        found.append(Finding.of("CURV811", f"{what} after {count} random vectors, {tolerance:.2g} was asked for"))
    if count < _FIRST:
        found.append(Finding.of("CURV812", f"{count} random vectors"))
    return tuple(found)


def stretch(count: int) -> float:
    """Student's t at the level of two standard deviations, over two: what an error from `count` samples is widened by.

    Example:
        >>> [round(stretch(count), 3) for count in (2, 3, 5, 100)]
        [6.984, 2.263, 1.434, 1.013]
    """
    z, v = 2.0, count - 1
    if v <= 2:  # closed forms; the series below is poor there
        level = 0.5 + 0.5 * math.erf(z / math.sqrt(2))
        t = math.tan(math.pi * (level - 0.5)) if v == 1 else (2 * level - 1) / math.sqrt(2 * level * (1 - level))
        return t / z
    # Abramowitz & Stegun 26.7.5.
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float((z + sum(term / v ** (k + 1) for k, term in enumerate(terms))) / z)


def working_dtype(matrix: Products) -> torch.dtype:
    """Vectors are held in single precision or better.

    Example:
        >>> working_dtype(torch.eye(2, dtype=torch.bfloat16))
        torch.float32
    """
    return torch.promote_types(matrix.dtype, torch.float32)


def generator_of(seed: int, use: int) -> torch.Generator:
    """The generator of one use of a seed.

    Example:
        >>> generator_of(0, 1).device
        device(type='cpu')
    """
    return torch.Generator().manual_seed(derived_seed(seed, 81, use))


def block_width(size: int) -> int:
    """How many vectors of `size` numbers are multiplied at once.

    Example:
        >>> block_width(1000), block_width(10**8)
        (16, 1)
    """
    return max(1, min(_COLUMNS, _NUMBERS // size))


def columns(matrix: Products) -> Iterator[tuple[int, Tensor]]:
    """All columns, by blocks, with the number of the first.

    Example:
        >>> [(start, tuple(part.shape)) for start, part in columns(torch.eye(20))]
        [(0, (20, 16)), (16, (20, 4))]
    """
    size = int(matrix.shape[0])
    for start in range(0, size, block_width(size)):
        stop = min(start + block_width(size), size)
        unit = torch.zeros(size, stop - start, dtype=working_dtype(matrix), device=matrix.device)
        unit[torch.arange(start, stop), torch.arange(stop - start)] = 1
        yield start, applied(matrix, unit)


def sampled(
    matrix: Products, size: int, probes: int, seed: int, without: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Random vectors, less their part in a basis, their products, and whether it is time to look at the error.

    Example:
        >>> [(vectors.shape[1], look) for vectors, _, look in sampled(torch.eye(50), 50, 20, 0)]
        [(8, True), (8, True), (4, True)]
    """
    chance, taken = generator_of(seed, 1), 0
    with Progress(probes, "products") as bar:
        for goal in stages(probes):
            while taken < goal:
                vectors = signs(size, min(block_width(size), goal - taken), chance, matrix)
                if without is not None:
                    vectors = vectors - without @ (without.T @ vectors)
                outcome = applied(matrix, vectors)
                if not taken and without is None:  # beside a known part there may be rounding alone
                    refuse_asymmetric(matrix, vectors, outcome)
                taken += vectors.shape[1]
                bar.advance(vectors.shape[1])
                yield vectors, outcome, taken == goal


def refuse_asymmetric(matrix: Products, vectors: Tensor, outcome: Tensor) -> None:
    """Refuse a matrix whose products with several vectors show that it is not symmetric.

    Example:
        >>> refuse_asymmetric(torch.eye(2), torch.ones(2, 2), torch.ones(2, 2))
    """
    both = (vectors.T @ outcome).double()
    scale = float(vectors.double().norm(dim=0).max() * outcome.double().norm(dim=0).max())
    if float((both - both.T).abs().max()) > CLEAR * rounding(matrix) * scale:
        raise InputError("expected a symmetric matrix, got products with uᵀAv ≠ vᵀAu; symmetrise it, or fix its noise")
