"""`Density`: any differentiable prior φ(w), given by its logarithm."""

from __future__ import annotations

import copy
import fnmatch
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import grad, vmap

from crunode.core.landscape import Landscape
from crunode.core.params import Packing
from crunode.core.rng import preserved_rng
from crunode.errors import InputError
from crunode.sampling.replay.tape import Untapeable, record

__all__ = ["Density", "PriorTerm"]

_DIGITS = 6
# Distances from the center at which two priors are compared, and those at which a constant one is told from one that
# lost its gradient.
_POINTS, _NEAR = (0.0, 0.1, 1.0), 1e-2


@dataclass(frozen=True)
class Density:
    """Any prior φ(w), by its logarithm: a function of the parameters, or distributions over them.

    Attributes:
        log_density: A differentiable function of the flat parameter vector that gives log φ(w) as one number; a
            `torch.distributions` object, over the vector as a whole or over each of its entries; or a mapping from
            patterns of parameter names to such objects.
        normalized: Whether ∫φ(w)dw = 1, which `free_energy` needs. None takes that for granted of distributions only.
        name: What it is called in results.
        named: The function takes a dict of named parameters in place of the vector.

    Example:
        >>> laplace = Density(lambda w: -w.abs().sum(), name="laplace")
        >>> student = Density(torch.distributions.StudentT(3.0))
        >>> normal, cauchy = torch.distributions.Normal(0.0, 0.5), torch.distributions.Cauchy(0.0, 1.0)
        >>> layers = Density({"*.weight": normal, "*.bias": cauchy})
        >>> laplace.normalized, student.normalized
        (False, True)
    """

    log_density: Callable[[Any], Tensor] | Distribution | Mapping[str, Distribution]
    normalized: bool | None = None
    name: str = "density"
    named: bool = False

    def __post_init__(self) -> None:
        given = self.log_density
        parts = list(given.values()) if isinstance(given, Mapping) else [given]
        known = bool(parts) and all(isinstance(part, Distribution) for part in parts)
        if not known and (isinstance(given, Mapping | type) or not callable(given)):
            raise InputError(
                f"expected log_density as a function of the parameters, a torch.distributions object, or a mapping "
                f"from patterns of parameter names to such objects, got {given!r}"
            )
        if self.normalized is not None and not isinstance(self.normalized, bool):
            raise InputError(f"expected normalized as True, False or None, got {self.normalized!r}")
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"expected name as a text, got {self.name!r}")
        if self.normalized is None:
            object.__setattr__(self, "normalized", known)

    def on(self, land: Landscape) -> PriorTerm:
        """The prior over the parameters of a landscape.

        Raises:
            InputError: It is not positive, finite and differentiable at the center, or does not fit the parameters.
        """
        return PriorTerm(self, land)


class PriorTerm:
    """−log φ(w) and its gradient, for many chains at a time.

    Args:
        density: The prior.
        land: The landscape over whose parameters it is.

    Example:
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2))
        >>> term = Density(lambda w: -w.square().sum() / 2).on(land)
        >>> term.gradient(torch.tensor([[1.0, 2.0]])), term.energy(torch.tensor([[1.0, 2.0]]))
        (tensor([[1., 2.]]), tensor([2.5000], dtype=torch.float64))
    """

    def __init__(self, density: Density, land: Landscape) -> None:
        self.density, self.center = density, land.center
        self._log = _function(density, land.packing)
        self._replays: dict[tuple[str, int], Callable[[Tensor], Tensor]] = {}
        with preserved_rng():
            self._check()
            self._wide = self._works(self._log, land.center.double())
            pair = torch.stack([land.center, land.center])
            self._batches = self._works(vmap(grad(self._scalar)), pair) and self._works(vmap(self._scalar), pair)

    def gradient(self, w: Tensor) -> Tensor:
        """−∇log φ at points (chain, dim)."""
        return self._run(self._slopes, w)

    def energy(self, w: Tensor) -> Tensor:
        """−log φ at points (chain, dim), in double precision where the function takes it."""
        with torch.no_grad():
            return self._run(self._values, w.double() if self._wide else w).double()

    def stiffness(self) -> float:
        """A rough largest curvature of −log φ at the center, from differences of gradients."""
        radius = 1e-2 * max(float(self.center.double().square().mean()) ** 0.5, 0.1)
        v = _directions(self.center, 3)
        change = self.gradient(self.center + radius * v) - self.gradient(self.center - radius * v)
        ratio = change.double().norm(dim=1) / (2 * radius * v.double().norm(dim=1))
        return max((float(r) for r in ratio if math.isfinite(r)), default=0.0)

    def spec(self) -> dict[str, Any]:
        """The prior as JSON-able values: its name, and a hash of its values at fixed points around the center."""
        points = torch.cat([self.center + radius * _directions(self.center, 2) for radius in _POINTS])
        values = [f"{float(e):.{_DIGITS}g}" for e in self.energy(points)]
        digest = hashlib.sha256(" ".join(values).encode()).hexdigest()
        return {"density": self.density.name, "normalized": self.density.normalized, "values": digest[:16]}

    def _slopes(self, w: Tensor) -> Tensor:
        batched = len(w) > 1 and self._batches
        slopes: Tensor = vmap(grad(self._scalar))(w) if batched else torch.stack([self._single(row) for row in w])
        return -slopes

    def _values(self, w: Tensor) -> Tensor:
        batched = len(w) > 1 and self._batches
        values: Tensor = vmap(self._scalar)(w) if batched else torch.stack([self._scalar(row) for row in w])
        return -values

    def _run(self, fn: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
        """The function by its operations alone, recorded at the first call; as it is where it cannot be recorded."""
        key = fn.__name__, len(w)
        if key not in self._replays:
            self._replays[key] = _recorded(fn, w)
        return self._replays[key](w)

    def _scalar(self, w: Tensor) -> Tensor:
        return self._log(w).reshape(())

    def _single(self, w: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            value = self._scalar(leaf)
            if not value.requires_grad:
                return torch.zeros_like(w)
            (slope,) = torch.autograd.grad(value, leaf, allow_unused=True)
        return torch.zeros_like(w) if slope is None else slope

    def _works(self, fn: Callable[[Tensor], Tensor], at: Tensor) -> bool:
        """Whether the function takes this kind of points too; where it does not, others are used."""
        try:
            value = fn(at)
        except Exception:
            return False
        return bool(torch.isfinite(value).all())

    def _check(self) -> None:
        what, center = f"the prior {self.density.name!r}", self.center
        try:
            with torch.enable_grad():
                value = self._log(center.detach().clone().requires_grad_())
        except InputError:
            raise
        except Exception as error:
            kind = "a dict of named parameters" if self.density.named else f"a vector of {len(center)} parameters"
            raise InputError(
                f"expected {what} as a function of {kind}, got {type(error).__name__}: {error}; named=True is for "
                "functions of a dict"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"expected {what} to give log φ(w) as one number in a tensor, got {got}; sum over entries")
        number = float(value.detach())
        if number == -math.inf:
            raise InputError(
                f"expected a prior with positive density at the center, got {what} that is zero there, where chains "
                "start; take a prior whose support holds the center, or landscape.at(weights) inside of it"
            )
        if not math.isfinite(number):
            raise InputError(f"expected {what} to have a finite log density at the center, got {number}")
        if float(self._log(center)) != number:
            raise InputError(f"expected {what} to give the same number at the same point, got others; fix its noise")
        if not torch.isfinite(self._single(center)).all():
            raise InputError(f"expected {what} to have a finite gradient at the center, got one that is not finite")
        if not value.requires_grad:
            near = self.center + _NEAR * _directions(self.center, 4)
            others = [float(self._log(row)) for row in near]
            if any(math.isfinite(other) and other != number for other in others):
                raise InputError(
                    f"expected {what} to be differentiable, got values without a gradient; compute them by torch "
                    "operations on the parameters, without detach(), item() or numpy"
                )


def _recorded(fn: Callable[[Tensor], Tensor], w: Tensor) -> Callable[[Tensor], Tensor]:
    try:
        replay = record(lambda v: (fn(v),), w)
        elsewhere = w + _NEAR * torch.linspace(-1, 1, w.numel()).to(w).view(w.shape)
        if torch.equal(replay(elsewhere)[0].nan_to_num(), fn(elsewhere).nan_to_num()):
            return lambda v: replay(v)[0].clone()
    except (Untapeable, RuntimeError):
        pass
    return fn


def _directions(center: Tensor, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, len(center), generator=generator, dtype=torch.float64).to(center)


def _function(density: Density, packing: Packing) -> Callable[[Tensor], Tensor]:
    """Log φ as a function of the flat vector."""
    given = density.log_density
    if isinstance(given, Distribution):
        whole = _unchecked(given, (packing.dim,), "the parameter vector")
        return lambda w: whole.log_prob(w).sum()
    if isinstance(given, Mapping):
        parts = {name: _matching(given, name, shape) for name, shape in zip(packing.names, packing.shapes, strict=True)}
        return lambda w: torch.stack([parts[n].log_prob(v).sum() for n, v in _named(packing, w).items()]).sum()
    fn: Callable[[Any], Tensor] = given
    return (lambda w: fn(_named(packing, w))) if density.named else fn


def _named(packing: Packing, w: Tensor) -> dict[str, Tensor]:
    """Named tensors in the dtype of the vector, which may be a wider one than the parameters'."""
    parts = zip(packing.names, torch.split(w, packing.sizes), packing.shapes, strict=True)
    return {name: part.view(shape) for name, part, shape in parts}


def _matching(given: Mapping[str, Distribution], name: str, shape: tuple[int, ...]) -> Distribution:
    for pattern, part in given.items():
        if fnmatch.fnmatchcase(name, pattern):
            return _unchecked(part, shape, name)
    raise InputError(f"expected a prior for every parameter, got none for {name}; add the pattern '*' for the rest")


def _unchecked(part: Distribution, shape: tuple[int, ...], what: str) -> Distribution:
    """A copy that does not look at values, which batched ones do not allow; outside the support it gives −∞ or NaN."""
    own = (*part.batch_shape, *part.event_shape)
    try:
        fits = np.broadcast_shapes(own, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"expected a distribution over {what} of shape {shape}, got one of shape {tuple(own)}")
    part = copy.deepcopy(part)
    inner: list[Any] = [part]
    while inner:
        each = inner.pop()
        each._validate_args = False
        inner += [value for value in vars(each).values() if isinstance(value, Distribution)]
    return part
