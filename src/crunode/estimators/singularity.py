"""`singularity()`: is a model regular or singular at a point, and why?

A model is regular at w* where its Fisher information I(w*) is positive definite, and singular otherwise. With unit
variance Gaussian noise I_ij = E⟨∂_i f, ∂_j f⟩; with classes it is E[∂_i f (diag p − p pᵀ) ∂_j f]; in both cases the
Gauss-Newton matrix JᵀJ/n of the loss on the data. Flat directions, its kernel, are explained as far as they come from
symmetries that are known: the weights are moved along each by a finite amount, and the outputs must not change.

References:
    Watanabe 2009, definition 1.1; Murfet et al. 2020, appendix A.1 (lemma A.1: the scalings of ReLU units).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from crunode.core.landscape import Landscape
from crunode.core.rng import derived_seed, preserved_rng
from crunode.curvature.jacobian import Evaluation, NoOutputs, hessian_sketch
from crunode.curvature.rank import numeric_rank
from crunode.curvature.spectrum import Spectrum, spectrum
from crunode.errors import InputError
from crunode.estimators.bounds import bounds
from crunode.estimators.symmetries import Flat, known_symmetries
from crunode.exact.result import LearningCoefficient

__all__ = ["Singularity", "singularity"]

# Parameters up to which the kernel of J and the whole Hessian are looked at.
_MOST = 1500


@dataclass(frozen=True)
class Singularity:
    """Whether a model is regular or singular at a point, and why.

    Attributes:
        verdict: "regular", "singular" or "undecided".
        why: One sentence.
        parameters: Number d of parameters.
        rank: Rank of the Fisher information on the data; where it is not decided, the lower bound.
        rank_range: Between which numbers it lies.
        fisher: Eigenvalues of the Fisher information, descending.
        hessian: Eigenvalues of the Hessian of the loss, descending; empty where there are too many parameters.
        hessian_zero: How many of them are zero to rounding; None where there are none.
        hessian_negative: How many are below zero.
        flat: Families of flat directions; `new` counts those that none of the families before has, and families with
            none are left out.
        unexplained: Flat directions, to first order, that no known symmetry explains; None where J was not held.
        coefficient: Bounds of the learning coefficient; None where the point is no minimum.
        details: Method, tolerances, gaps.
    """

    verdict: str
    why: str
    parameters: int
    rank: int
    rank_range: tuple[int, int]
    fisher: np.ndarray = field(repr=False)
    hessian: np.ndarray = field(repr=False)
    hessian_zero: int | None
    hessian_negative: int | None
    flat: tuple[Flat, ...]
    unexplained: int | None
    coefficient: LearningCoefficient | None
    details: dict[str, Any] = field(repr=False, default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.why}"]
        spread = f", eigenvalues {self.fisher[0]:.3g} to {self.fisher[max(self.rank, 1) - 1]:.3g}" if self.rank else ""
        low, high = self.rank_range
        lines.append(
            f"Fisher information: rank {low if low == high else f'{low} to {high}'} of {self.parameters}{spread}"
        )
        if self.hessian_zero is not None:
            lines.append(f"Hessian: {self.hessian_zero} zero and {self.hessian_negative} negative eigenvalues")
        lines += [f"flat: {x}" for x in self.flat]
        if self.unexplained:
            lines.append(f"flat to first order, not explained: {self.unexplained}")
        if self.coefficient is not None:
            lines.append(f"learning coefficient: {self.coefficient}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        content = {k: v for k, v in self.__dict__.items() if k not in ("flat", "coefficient", "fisher", "hessian")}
        return {
            **content,
            "rank_range": list(self.rank_range),
            "fisher": self.fisher.tolist(),
            "hessian": self.hessian.tolist(),
            "flat": [asdict(x) for x in self.flat],
            "coefficient": None if self.coefficient is None else self.coefficient.to_dict(),
        }


def singularity(landscape: Landscape, *, seed: int = 0) -> Singularity:
    """Fisher rank and spectrum, Hessian degeneracy, flat directions with their cause, and bounds of λ.

    rank I / 2 ≤ λ ≤ (codimension of the minima) / 2 ≤ d / 2, and the model is regular where all of these are equal to
    d / 2 because the rank is d.

    Args:
        landscape: Model, data and loss at the point.
        seed: Random moves, chosen examples and nearby points come from it.

    Raises:
        InputError: No landscape.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)).double()
        >>> with torch.no_grad():
        ...     for k, p in enumerate(net.parameters()):
        ...         _ = p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
        >>> x = torch.randn(200, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        >>> print(singularity(Landscape(net, (x, net(x).detach()), "gaussian")))
        singular: rank 10 of 13: 3 flat directions, of which 3 by ReLU scalings
        Fisher information: rank 10 of 13, eigenvalues ...
        Hessian: 3 zero and 0 negative eigenvalues
        flat: 3 by scaling units of 0.weight → 2.weight (incoming · c, outgoing / c)
        learning coefficient: λ = 5, m = 1 (conditional) ...
    """
    if not isinstance(landscape, Landscape):
        raise InputError(
            f"expected a Landscape, got {type(landscape).__name__}; for a module write "
            "singularity(Landscape(model, data, loss))"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    here = spectrum(landscape, seed=seed)
    seen = Evaluation(landscape)
    dim = landscape.dim
    hessian, zero, negative = _hessian(seen, here)
    flat: tuple[Flat, ...] = ()
    unexplained: int | None = None
    if here.method == "jacobian" and dim <= _MOST:
        unused = here.unused if here.seen else None
        families, tangents = known_symmetries(seen, unused, seed=derived_seed(seed, 71))
        flat = families
        unexplained = max(dim - here.rank.rank - tangents, 0)
    try:
        limits = bounds(landscape, seed=seed)
    except InputError:
        limits = None
    verdict, why = _verdict(here, dim, flat, unexplained)
    return Singularity(
        verdict,
        why,
        dim,
        here.rank.rank,
        (here.rank.low, here.rank.high),
        here.curvatures,
        hessian,
        zero,
        negative,
        flat,
        unexplained,
        limits,
        {
            "method": here.method,
            "gap": here.rank.gap if math.isfinite(here.rank.gap) else None,
            "tolerance": here.rank.tolerance,
            "rows_used": here.rows,
            "rows": here.of,
            "realised": here.slope if math.isfinite(here.slope) else None,
            **({"reason": here.reason} if here.reason else {}),
        },
    )


def _verdict(here: Spectrum, dim: int, flat: tuple[Flat, ...], unexplained: int | None) -> tuple[str, str]:
    rank = here.rank
    kind = "Fisher information" if here.method.startswith("jacobian") else "Hessian"
    if rank.low == dim:
        return "regular", f"the {kind} has full rank {dim}"
    if rank.high == dim or (rank.high != rank.low and not here.complete):
        return "undecided", f"the rank of the {kind} lies between {rank.low} and {rank.high} of {dim}"
    if not here.complete and rank.high == here.rows:
        return "undecided", f"{here.rows} of {here.of} rows have rank {rank.rank}; all of them may have more"
    count = dim - rank.rank
    why = f"rank {rank.rank} of {dim}: {count} flat direction{'s' if count > 1 else ''}"
    sums: dict[str, int] = {}
    for x in flat:
        sums[x.kind] = sums.get(x.kind, 0) + x.new
    known = [f"{new} by {kind}" for kind, new in sums.items()]
    if unexplained:
        known.append(f"{unexplained} not explained")
    return "singular", why + (f", of which {', '.join(known)}" if known else "")


def _hessian(seen: Evaluation, here: Spectrum) -> tuple[np.ndarray, int | None, int | None]:
    if seen.dim > _MOST:
        return np.zeros(0), None, None
    try:
        with preserved_rng():
            values = torch.linalg.eigvalsh(hessian_sketch(seen, None, seed=0)).cpu().numpy()[::-1].copy()
    except (RuntimeError, NoOutputs):  # an operation without a second derivative
        return np.zeros(0), None, None
    sizes = np.sort(np.abs(values))[::-1]
    eps = torch.finfo(seen.landscape.center.dtype).eps
    rank = numeric_rank(sizes, seen.dim, 30 * eps * (1 if seen.dtype == torch.float64 else 10))
    limit = rank.tolerance if rank.rank < seen.dim else 0.0
    return values, seen.dim - rank.rank, int((values < -limit).sum())
