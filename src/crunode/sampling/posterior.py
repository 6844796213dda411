"""`Posterior`: exp(−nβ L_n(w)) times a prior, at one or several inverse temperatures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling.density import Density, PriorTerm

__all__ = ["Density", "Flat", "Gaussian", "Posterior", "Rung", "wbic_nbeta"]


def wbic_nbeta(n: int) -> float:
    """The conventional inverse temperature nβ = n / log n (Watanabe 2013).

    Example:
        >>> round(wbic_nbeta(1000), 1)
        144.8
    """
    return n / math.log(max(n, 3))


def positive(name: str, value: Any, remedy: str = "leave it out to have it chosen") -> float:
    """`value` as a positive finite float, or an error that names it."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"expected {name} as a positive finite number, got {value!r}; {remedy}")
    return float(number)


@dataclass(frozen=True)
class Flat:
    """No prior: the density is exp(−nβ L_n(w)) alone, which must itself be integrable to be sampled."""


@dataclass(frozen=True)
class Gaussian:
    """The prior exp(−(γ/2)‖w − mean‖²).

    Attributes:
        precision: γ; None leaves it to the tuner.
        mean: "center" localises at the landscape's center w*, "origin" is the usual prior of Bayesian statistics.

    Example:
        >>> Gaussian(precision=100.0)
        Gaussian(precision=100.0, mean='center')
    """

    precision: float | None = None
    mean: str = "center"

    def __post_init__(self) -> None:
        if self.precision is not None:
            positive("precision", self.precision)
        if self.mean not in ("center", "origin"):
            raise InputError(f"expected mean as 'center' or 'origin', got {self.mean!r}")


@dataclass(frozen=True)
class Rung:
    """What some chains are run at.

    Attributes:
        nbeta: Inverse temperature times n.
        precision: γ of the prior.
        step: ε of the kernel.
        role: "ladder" for what the estimate is made from; "half-precision", "double-precision" and "step" for chains
            beside it, which show how far it depends on γ and on ε.
    """

    nbeta: float
    precision: float
    step: float
    role: str = "ladder"


@dataclass(frozen=True)
class Posterior:
    """The density exp(−nβ L_n(w)) · prior(w) over the free parameters of a landscape.

    Attributes:
        landscape: The loss and its center.
        nbeta: Inverse temperature times n: a number, "wbic" for n / log n, a tuple (a ladder, sampled side by side),
            or None to have a ladder chosen.
        prior: `Gaussian`, `Flat`, or any other one as a `Density`.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(1), n=1000)
        >>> round(Posterior(land, nbeta="wbic").levels[0], 1)
        144.8
    """

    landscape: Landscape
    nbeta: float | str | tuple[float, ...] | None = None
    prior: Gaussian | Flat | Density = Gaussian()

    def __post_init__(self) -> None:
        if not isinstance(self.landscape, Landscape):
            raise InputError(f"expected a Landscape, got {type(self.landscape).__name__}")
        if not isinstance(self.prior, Gaussian | Flat | Density):
            raise InputError(f"expected prior as Gaussian(...), Flat() or Density(...), got {self.prior!r}")
        self.term()  # raises where a density does not fit
        if isinstance(self.nbeta, str):
            if self.nbeta != "wbic":
                raise InputError(f"expected nbeta as a number, a tuple of numbers or 'wbic', got {self.nbeta!r}")
        elif isinstance(self.nbeta, tuple):
            if not self.nbeta or len(set(self.nbeta)) != len(self.nbeta):
                raise InputError(f"expected nbeta as one or more different numbers, got {self.nbeta}")
            for level in self.nbeta:
                positive("nbeta", level)
        elif self.nbeta is not None:
            positive("nbeta", self.nbeta)

    @property
    def levels(self) -> tuple[float, ...]:
        """The inverse temperatures as numbers; the conventional one where none was given."""
        if self.nbeta is None or isinstance(self.nbeta, str):
            return (wbic_nbeta(self.landscape.n),)
        return tuple(map(float, self.nbeta)) if isinstance(self.nbeta, tuple) else (float(self.nbeta),)

    @property
    def precision(self) -> float:
        """γ of the prior; 0 for a flat one, and for a density, which has none."""
        if not isinstance(self.prior, Gaussian):
            return 0.0
        if self.prior.precision is None:
            raise InputError("expected a prior with a precision, got one left to be tuned; call tune() first")
        return self.prior.precision

    @property
    def mean(self) -> Tensor:
        """Center of the prior."""
        center = self.landscape.center
        at_origin = isinstance(self.prior, Gaussian) and self.prior.mean == "origin"
        return torch.zeros_like(center) if at_origin else center

    @property
    def stiffness(self) -> float:
        """Curvature of −log of the prior at the center: γ, or a rough value for a density."""
        term = self.term()
        return self.precision if term is None else term.stiffness()

    def term(self) -> PriorTerm | None:
        """What a density adds to the energy; None for other priors."""
        return self.prior.on(self.landscape) if isinstance(self.prior, Density) else None

    def prior_spec(self) -> Any:
        """The prior as asked for, as JSON-able values."""
        term = self.term()
        if term is not None:
            return term.spec()
        return "flat" if isinstance(self.prior, Flat) else dict(vars(self.prior))

    def rungs(self, steps: tuple[float, ...]) -> list[Rung]:
        """One rung of the ladder for each level, with its step."""
        return [Rung(t, self.precision, e) for t, e in zip(self.levels, steps, strict=True)]

    def spec(self) -> dict[str, Any]:
        """Settings as JSON-able values."""
        if isinstance(self.prior, Gaussian):
            self.precision  # noqa: B018 - raises where it is left to be tuned
        return {"nbeta": list(self.levels), "prior": self.prior_spec()}
