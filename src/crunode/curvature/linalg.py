"""Trace and diagonal of a symmetric matrix that is known by its products with vectors, with error bars.

Random vectors z of independent signs have E zzᵀ = I, so that zᵀAz has mean Tr A and z ∘ Az has mean diag A. All random
vectors come from `seed`. Standard errors are those of a mean over few samples: they are stretched by Student's t so
that two of them have the coverage of two standard deviations of a normal number. Where the budget of products pays for
all columns of the matrix, these are taken instead, and the values are exact.

References:
    Girard 1989; Hutchinson 1990; Bekas, Kokiopoulou & Saad 2007 (diagonal); Meyer, Musco, Musco & Woodruff 2021
    (Hutch++); Epperly, Tropp & Webber 2024 (XTrace).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crunode.core.result import Estimate, Finding, provenance
from crunode.curvature.probing import (
    CLEAR,
    Products,
    applied,
    block_width,
    checked,
    checked_budget,
    columns,
    doubts,
    generator_of,
    is_positive,
    mean_with_error,
    refuse_asymmetric,
    rounding,
    sampled,
    signs,
    stages,
    stretch,
    working_dtype,
)
from crunode.errors import InputError

__all__ = ["Products", "VectorEstimate", "diagonal", "trace"]

_SHOWN = 8  # values of a vector that are printed


@dataclass(frozen=True)
class VectorEstimate:
    """Several numbers, each with its error.

    Attributes:
        name: What was estimated.
        values: The estimates.
        errors: Their standard errors, or, for eigenvalues, bounds of their errors.
        findings: What was noticed; any of severity "error" makes them not ok.
        spec: Resolved settings.
        seed: The seed all randomness came from.
        diagnostics: What was seen on the way.
        provenance: Versions and source state.

    Example:
        >>> found = diagonal(torch.diag(torch.tensor([1.0, 2.0])))
        >>> found.values, found.errors
        (array([1., 2.]), array([0., 0.]))
        >>> print(found)
        diagonal 1 ± 0, 2 ± 0 | ok
    """

    name: str
    values: np.ndarray
    errors: np.ndarray
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when values and errors are finite and no finding of severity "error" stands against them."""
        finite = bool(np.isfinite(self.values).all() and np.isfinite(self.errors).all())
        return finite and all(f.severity != "error" for f in self.findings)

    def __str__(self) -> str:
        shown = [f"{v:.4g} ± {e:.2g}" for v, e in zip(self.values[:_SHOWN], self.errors[:_SHOWN], strict=True)]
        more = [f"and {len(self.values) - _SHOWN} more"] if len(self.values) > _SHOWN else []
        codes = ", ".join(f.code for f in self.findings if f.severity != "info")
        return (
            f"{self.name} {', '.join([*shown, *more])} | {'ok' if self.ok else 'not ok'}{f' ({codes})' * bool(codes)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values that share nothing with this object."""
        kept = ("name", "spec", "seed", "diagnostics", "provenance")
        content = {key: copy.deepcopy(getattr(self, key)) for key in kept}
        numbers = {"values": self.values.tolist(), "errors": self.errors.tolist()}
        return {**content, **numbers, "findings": [asdict(f) for f in self.findings], "ok": self.ok}


def trace(
    matrix: Products, *, method: str = "hutchinson", probes: int = 256, tolerance: float | None = 0.01, seed: int = 0
) -> Estimate:
    """The trace of a symmetric matrix from products with random vectors.

    Hutchinson's estimate is the mean of zᵀAz over vectors of random signs, with variance 2(‖A‖_F² − Σ a_ii²) for one.
    Hutch++ takes the range Q of a sketch out of it, Tr QᵀAQ + Tr (I − QQᵀ)A(I − QQᵀ), and estimates only the second
    part; XTrace does so with each vector left out in turn. Both gain where few eigenvalues make up most of the trace.

    Args:
        matrix: The matrix (see `Products`).
        method: "hutchinson", "hutch++" or "xtrace".
        probes: Most products to take. Where there are no more columns than that, the trace is exact.
        tolerance: Stop when the standard error is at most this part of the value; None spends all of `probes`.
        seed: The vectors come from it.

    Returns:
        The trace; findings CURV811 where the budget ended first, CURV812 where the error rests on few vectors, CURV815
        where a matrix said to be positive has zᵀAz < 0.

    Raises:
        InputError: The matrix is not square, symmetric and real, or the settings make no sense.
        EstimationError: A product is not finite.

    Example:
        >>> values = torch.arange(1.0, 101.0)
        >>> q = torch.linalg.qr(torch.randn(100, 100, generator=torch.Generator().manual_seed(0))).Q
        >>> found = trace(q * values @ q.T, probes=64, tolerance=None)
        >>> abs(found.value - 5050) < 3 * found.se, 30 < found.se < 120
        (True, True)
        >>> float(trace(torch.eye(3)))
        3.0
    """
    if method not in _METHODS:
        raise InputError(f"expected method as one of {sorted(_METHODS)}, got {method!r}")
    size = checked(matrix)
    checked_budget(tolerance, seed, probes=probes)
    spec = {"method": method, "probes": probes, "tolerance": tolerance, "size": size}
    if size <= probes:
        value = math.fsum(float(part.diagonal(-start).sum()) for start, part in columns(matrix))
        spec["method"] = "exact"
        seen = {"probes": size, "products": size}
        return Estimate("trace", value, 0.0, spec=spec, seed=seed, diagnostics=seen, provenance=provenance())
    value, se, count, products, lowest = _METHODS[method](matrix, size, probes, tolerance, seed)
    reached = tolerance is None or se <= tolerance * abs(value)
    findings = doubts(count, reached, f"standard error {se:.2g} of {value:.3g}", tolerance)
    if is_positive(matrix) and lowest < -CLEAR * rounding(matrix):
        findings += (Finding.of("CURV815", f"zᵀAz = {lowest:.2g} |z||Az| for a random z"),)
    seen = {"probes": count, "products": products}
    return Estimate("trace", value, se, 0.0, findings, spec, seed, seen, provenance=provenance())


def diagonal(matrix: Products, *, probes: int = 256, tolerance: float | None = 0.01, seed: int = 0) -> VectorEstimate:
    """The diagonal of a symmetric matrix from products with random vectors, with an error for each entry.

    Estimates are means of z ∘ Az over vectors of random signs; the variance of entry i is Σ_{j≠i} a_ij² for one vector.

    Args:
        matrix: The matrix (see `Products`).
        probes: Most products to take. Where there are no more columns than that, the diagonal is exact.
        tolerance: Stop when the root mean square error is at most this part of the root mean square entry.
        seed: The vectors come from it.

    Returns:
        Entries and standard errors; findings as for `trace`.

    Raises:
        InputError: The matrix is not square, symmetric and real, or the settings make no sense.
        EstimationError: A product is not finite.

    Example:
        >>> found = diagonal(torch.eye(500) + 0.01, probes=32, tolerance=None)
        >>> bool((abs(found.values - 1.01) < 5 * found.errors).all())
        True
    """
    size = checked(matrix)
    checked_budget(tolerance, seed, probes=probes)
    spec = {"method": "signs", "probes": probes, "tolerance": tolerance, "size": size}
    if size <= probes:
        exact = np.concatenate([part.diagonal(-start).double().cpu().numpy() for start, part in columns(matrix)])
        spec["method"], seen = "exact", {"probes": size, "products": size}
        return VectorEstimate("diagonal", exact, np.zeros(size), (), spec, seed, seen, provenance())
    total = torch.zeros(size, dtype=torch.float64, device=matrix.device)
    spread, count, reached = torch.zeros_like(total), 0, True
    values = errors = total
    for vectors, applied_to, looks in sampled(matrix, size, probes, seed):
        samples = (vectors * applied_to).double()
        # Welford's update by blocks: the sum of squares alone loses small variances beside large means.
        mean, many = samples.mean(1), samples.shape[1]
        moved = mean - total
        spread += (samples - mean[:, None]).square().sum(1) + moved.square() * (count * many / (count + many))
        total = total + moved * (many / (count + many))
        count += many
        if looks:
            errors = (spread / (count * (count - 1))).sqrt() * stretch(count)
            values, reached = total, tolerance is None or float(errors.norm()) <= tolerance * float(total.norm())
            if tolerance is not None and reached:
                break
    what = f"errors of {float(errors.norm()):.2g} beside entries of {float(values.norm()):.2g}"
    findings = doubts(count, reached, what, tolerance)
    seen = {"probes": count, "products": count}
    numbers = values.cpu().numpy(), errors.cpu().numpy()
    return VectorEstimate("diagonal", *numbers, findings, spec, seed, seen, provenance())


def _hutchinson(
    matrix: Products, size: int, probes: int, tolerance: float | None, seed: int
) -> tuple[float, float, int, int, float]:
    return _residual_trace(matrix, size, probes, tolerance, seed, None)


def _hutch_plus(
    matrix: Products, size: int, probes: int, tolerance: float | None, seed: int
) -> tuple[float, float, int, int, float]:
    sketch = probes // 3
    if probes - 2 * sketch < 2 or sketch < 1:
        raise InputError(f"expected 4 probes or more for hutch++, got {probes}; raise probes or use hutchinson")
    given = signs(size, sketch, generator_of(seed, 2), matrix)
    images = _applied_in_parts(matrix, given)
    refuse_asymmetric(matrix, given, images)
    basis = _range(images)
    found = float((basis * _applied_in_parts(matrix, basis)).sum(dtype=torch.float64))
    used = sketch + basis.shape[1]
    rest, se, count, more, low = _residual_trace(matrix, size, probes - used, tolerance, seed, (basis, found))
    return found + rest, se, count, used + more, low


def _residual_trace(
    matrix: Products,
    size: int,
    probes: int,
    tolerance: float | None,
    seed: int,
    known: tuple[Tensor, float] | None,
) -> tuple[float, float, int, int, float]:
    """Mean of zᵀAz, for z without its part in a known basis, its error, samples, products, and the lowest zᵀAz."""
    samples: list[float] = []
    lowest, mean, se = math.inf, 0.0, math.inf
    for vectors, outcome, looks in sampled(matrix, size, probes, seed, known[0] if known else None):
        values = (vectors * outcome).sum(0, dtype=torch.float64)
        # What is left beside a known part may be rounding alone, and is held against all there is.
        scale = float((vectors.double().norm(dim=0) * outcome.double().norm(dim=0)).max())
        lowest = min(lowest, float(values.min()) / max(scale, abs(known[1]) if known else 0.0, 1e-300))
        samples += values.tolist()
        if looks:
            mean, se = mean_with_error(samples)
            if tolerance is not None and se <= tolerance * abs(mean + (known[1] if known else 0.0)):
                break
    return mean, se, len(samples), len(samples), lowest


def _xtrace(
    matrix: Products, size: int, probes: int, tolerance: float | None, seed: int
) -> tuple[float, float, int, int, float]:
    """Algorithm 1 of Epperly, Tropp & Webber 2024, with normal vectors whose remainders are scaled to a sphere."""
    if probes < 4:
        raise InputError(f"expected 4 probes or more for xtrace, got {probes}; raise probes or use hutchinson")
    chance, dtype = generator_of(seed, 3), working_dtype(matrix)
    given, images, basis, beyond = (torch.empty(size, 0, dtype=dtype, device=matrix.device) for _ in range(4))
    value, se, lowest = 0.0, math.inf, math.inf
    for count in stages(probes // 2):
        fresh = [torch.randn(size, generator=chance, dtype=torch.float64) for _ in range(count - given.shape[1])]
        more = torch.stack(fresh, 1).to(matrix.device, dtype)
        given, images = torch.cat([given, more], 1), torch.cat([images, _applied_in_parts(matrix, more)], 1)
        refuse_asymmetric(matrix, given, images)
        grown = _range(images, basis)
        if not grown.shape[1]:
            return 0.0, 0.0, count, count, 0.0
        basis, beyond = grown, torch.cat([beyond, _applied_in_parts(matrix, grown[:, basis.shape[1] :])], 1)
        core = (basis.T @ beyond).double()
        lowest = min(lowest, float(torch.linalg.eigvalsh(core)[0] / core.norm().clamp(min=1e-300)))
        if basis.shape[1] < count:  # the range has been found: every estimate is the trace itself
            return float(core.trace()), 0.0, count, count + basis.shape[1], lowest
        small = _Small(
            core,
            (basis.T @ images).double(),
            (basis.T @ given).double(),
            (beyond.T @ given).double(),
            given.square().sum(0, dtype=torch.float64),
            (given * images).sum(0, dtype=torch.float64),
        )
        value = float(small.estimate(size))
        # The parts of the mean share their sketch, so that their spread is too small an error; the jackknife is not.
        without = small.without_each().estimate(size)
        se = math.sqrt((count - 1) ** 2 / count * float(without.var())) * stretch(count)
        if tolerance is not None and se <= tolerance * abs(value):
            break
    return value, se, given.shape[1], 2 * given.shape[1], lowest


@dataclass(frozen=True)
class _Small:
    """XTrace in the coordinates of the basis Q of the images Y = AΩ.

    Attributes are QᵀAQ, QᵀY, QᵀΩ, (AQ)ᵀΩ, and of the columns ω of Ω, ωᵀω and ωᵀAω; all may have a leading axis.
    """

    core: Tensor
    images: Tensor
    inside: Tensor
    beyond: Tensor
    lengths: Tensor
    values: Tensor

    def _left_out(self) -> Tensor:
        """Row i of the inverse of QᵀY is orthogonal to all images but the i-th; as columns of unit length."""
        rows = torch.linalg.inv(self.images)
        return torch.div(rows, rows.norm(dim=-1, keepdim=True)).mT

    def estimate(self, size: int) -> Tensor:
        """The mean over vectors ω of Tr QᵢᵀAQᵢ and ωᵀAω without the part in Qᵢ, the basis without ω's own image."""
        out = self._left_out()
        inside = self.inside - out * (out * self.inside).sum(-2, keepdim=True)
        lengths = self.lengths - 2 * (inside * self.inside).sum(-2) + inside.square().sum(-2)
        values = self.values - 2 * (inside * self.beyond).sum(-2) + (inside * (self.core @ inside)).sum(-2)
        rest = values * (size - out.shape[-1] + 1) / lengths
        whole = self.core.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        return (whole - (out * (self.core @ out)).sum(-2) + rest).mean(-1)

    def without_each(self) -> _Small:
        """The same without the vector number k, for all k along a leading axis."""
        count = len(self.lengths)
        basis = torch.linalg.qr(self._left_out().T[:, :, None], mode="complete").Q[:, :, 1:]
        order = torch.arange(count, device=basis.device).expand(count, count)
        kept = order[order != order.T].view(count, count - 1)
        images, inside, beyond = (
            torch.take_along_dim(basis.mT @ part, kept[:, None], 2) for part in (self.images, self.inside, self.beyond)
        )
        return _Small(basis.mT @ self.core @ basis, images, inside, beyond, self.lengths[kept], self.values[kept])


_METHODS = {"hutchinson": _hutchinson, "hutch++": _hutch_plus, "xtrace": _xtrace}


def _applied_in_parts(matrix: Products, vectors: Tensor) -> Tensor:
    if not vectors.shape[1]:
        return vectors
    return torch.cat([applied(matrix, part) for part in torch.split(vectors, block_width(len(vectors)), 1)], 1)


def _range(images: Tensor, basis: Tensor | None = None) -> Tensor:
    """An orthonormal basis of the columns that begins with the given one; shorter where the rank is less."""
    known = images[:, :0] if basis is None else basis
    rest = images[:, known.shape[1] :]
    limit = 100 * torch.finfo(images.dtype).eps * float(images.norm())
    for _ in range(2):
        rest = rest - known @ (known.T @ rest)
    q, r = torch.linalg.qr(rest)
    left, values, _ = torch.linalg.svd(r)
    fresh = q if float(values.min()) > limit else q @ left[:, values > limit]
    fresh = fresh - known @ (known.T @ fresh)
    return torch.cat([known, fresh / fresh.norm(dim=0)], 1)
