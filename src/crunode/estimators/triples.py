"""A model, a truth and a prior: everything about a statistical problem that is known only where the truth is.

With q(x) the inputs, q(y|x) the truth, p(y|x, w) the model and φ(w) the prior,

    K(w) = E_x KL( q(y|x) ‖ p(y|x, w) )          divergence, of which the learning coefficient is a property
    S    = −E_x E_y log q(y|x)                   entropy: no model can predict better
    S_n  = −(1/n) Σ log q(y_i|x_i)               that of the data

Likelihoods are Gaussian of known variance or categorical, and normalised: losses are −log p with its constant.
Expectations over y are exact, those over x are means over drawn inputs with their error.

References:
    Watanabe 2009, chapter 1; Watanabe 2018, chapter 1; Murfet et al. 2020, section 2.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim import LBFGS, Optimizer

from crunode.core.landscape import Landscape
from crunode.core.params import Packing
from crunode.core.result import Draws, Estimate, Finding
from crunode.core.rng import derived_seed, preserved_rng
from crunode.errors import InputError
from crunode.estimators.chains import chosen_level
from crunode.estimators.likelihoods import Likelihood
from crunode.sampling.posterior import Density, Flat, Gaussian, Posterior, positive

__all__ = ["Triple"]

_INPUTS = ("normal", "uniform")
_KINDS = ("gaussian", "categorical")
# Streams of random numbers: of data sets, of points to average over, and of points to confirm a minimum on.
_DATA, _POINTS, _FRESH = 41, 42, 43
# n times a divergence that a data set of n examples begins to tell from none.
_MISFIT = 0.1
_LOOKED_AT = 256
_PRIOR = Gaussian(1.0, mean="origin")


@dataclass(frozen=True)
class Triple:
    """A model, the truth behind the data, and a prior.

    Attributes:
        model: A module; parameters with `requires_grad` are w, and its weights are where chains start.
        truth: A module or function of x that gives the mean of y (Gaussian) or the log odds of its classes. The model
            may or may not be able to give the same.
        inputs: "normal" or "uniform" (on [−1, 1]) with `features` entries, or a function (count, generator) that draws.
        likelihood: "gaussian" or "categorical".
        prior: The prior of the posteriors: `Gaussian` (around the origin), `Density` or `Flat`.
        sd: Standard deviation of the Gaussian, of truth and model alike.
        features: Entries of x where `inputs` is a name.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> triple = Triple(net, lambda x: x[:, :1] + 0.5, "normal", features=2)
        >>> K = triple.divergence(torch.tensor([1.0, 0.0]))
        >>> round(K.value, 6), round(triple.entropy().value, 4)
        (0.125, 1.4189)
        >>> land = triple.landscape(100, seed=0)
        >>> land.n, land.dim
        (100, 2)
    """

    model: nn.Module
    truth: Callable[[Tensor], Tensor]
    inputs: str | Callable[[int, torch.Generator], Tensor]
    likelihood: str = "gaussian"
    prior: Gaussian | Density | Flat = _PRIOR
    sd: float = 1.0
    features: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InputError(f"expected model as a torch.nn.Module, got {type(self.model).__name__}")
        if not callable(self.truth):
            raise InputError(f"expected truth as a module or function of x, got {type(self.truth).__name__}")
        if self.likelihood not in _KINDS:
            raise InputError(f"expected likelihood as 'gaussian' or 'categorical', got {self.likelihood!r}")
        if not isinstance(self.prior, Gaussian | Density | Flat):
            raise InputError(f"expected prior as Gaussian(...), Density(...) or Flat(), got {self.prior!r}")
        positive("sd", self.sd, "it is the standard deviation of y given x")
        named = isinstance(self.inputs, str)
        if named and self.inputs not in _INPUTS:
            raise InputError(f"expected inputs as 'normal', 'uniform' or a function, got {self.inputs!r}")
        if not named and not callable(self.inputs):
            raise InputError(f"expected inputs as a name or a function (count, generator), got {self.inputs!r}")
        counts = isinstance(self.features, int) and not isinstance(self.features, bool) and self.features > 0
        if named and not counts:
            raise InputError(f"expected features= as the number of entries of x with named inputs, got {self.features}")
        x = self.points(3)
        truth, output = self.expected(x), self.outputs(self.center, x)
        fits = truth.shape == output.shape and (
            self.likelihood == "gaussian" or (truth.ndim == 2 and len(truth[0]) > 1)
        )
        if not fits or truth.ndim < 2:
            shape = "(examples, classes)" if self.likelihood == "categorical" else "(examples, outputs)"
            raise InputError(
                f"expected truth and model to give outputs of one shape {shape}, got {tuple(truth.shape)} and "
                f"{tuple(output.shape)}"
            )
        if not torch.isfinite(truth).all():
            raise InputError("expected a truth with finite values, got some that are not")

    @property
    def loss(self) -> Likelihood:
        """−log p(y|x, w) as a loss of (outputs, target) for a `Landscape`."""
        return Likelihood(self.likelihood, float(self.sd))

    @property
    def center(self) -> Tensor:
        """The model's present weights as a flat vector."""
        return self._packing.ravel({k: v.detach() for k, v in self._tensors.items()})

    @property
    def dim(self) -> int:
        """Number of free parameters."""
        return self._packing.dim

    def points(self, count: int, seed: int = 0) -> Tensor:
        """Inputs to average over, others than those of any data set."""
        return self._inputs(count, torch.Generator().manual_seed(derived_seed(seed, _POINTS)))

    def data(self, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """A data set (x, y) of n examples from the truth."""
        generator = torch.Generator().manual_seed(derived_seed(seed, _DATA))
        x = self._inputs(n, generator)
        return x, self.loss.drawn(self.expected(x), generator)

    def landscape(self, n: int, seed: int = 0, center: Any = None) -> Landscape:
        """The landscape of a data set, with the loss −log p.

        Args:
            n: Number of examples.
            seed: Of the data set.
            center: Weights to look at: a flat vector, named tensors or a module; None for the model's own.
        """
        land = Landscape(self.model, self.data(n, seed), self.loss)
        return land if center is None else land.at(center)

    def posterior(self, n: int, seed: int = 0, *, beta: float = 1.0, center: Any = None) -> Posterior:
        """The posterior of a data set at inverse temperature β, to be sampled."""
        return Posterior(self.landscape(n, seed, center), positive("beta", beta) * n, self.prior)

    def expected(self, x: Tensor) -> Tensor:
        """Outputs of the truth at x: means of y, or log odds of its classes."""
        with torch.no_grad(), preserved_rng():
            values = self._truth(x)
        if not isinstance(values, Tensor) or len(values) != len(x):
            raise InputError(
                f"expected truth(x) as a tensor with a row for each of {len(x)} inputs, got {values!r:.80}"
            )
        return values.to(x.dtype) if x.is_floating_point() else values

    def outputs(self, w: Tensor, x: Tensor) -> Tensor:
        """Outputs of the model at x, for a flat vector of weights or for several of them (k, dim)."""
        if w.ndim == 1:
            return self._output(w, x)
        try:
            return vmap(lambda v: self._output(v, x))(w)
        except RuntimeError:  # an operation without a batching rule
            return torch.stack([self._output(row, x) for row in w])

    def divergence(self, weights: Any = None, *, count: int = 10_000, seed: int = 0) -> Estimate:
        """K(w): exact in y, a mean over `count` inputs.

        Args:
            weights: A flat vector, named tensors or a module; None for the model's own.
            count: Inputs to average over.
            seed: Of the inputs.
        """
        w, x = self.vector(weights), self.points(_whole("count", count, 2), seed)
        with torch.no_grad():
            values = self.loss.divergence(self.expected(x).double(), self.outputs(w, x).double())
        return self._mean("divergence", values, seed)

    def entropy(self, *, count: int = 10_000, seed: int = 0) -> Estimate:
        """S: exact for the Gaussian; else exact in y, and a mean over `count` inputs."""
        x = self.points(_whole("count", count, 2), seed)
        return self._mean("entropy", self.loss.entropy(self.expected(x).double()), seed)

    def empirical_entropy(self, data: tuple[Tensor, Tensor]) -> Estimate:
        """S_n of a data set (x, y): a number without error. `diagnostics["data_se"]` is how far other data would be."""
        try:
            x, y = data
            values = self.loss(self.expected(x).double(), y.double() if y.is_floating_point() else y)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise InputError(f"expected data as (x, y) of this triple, got another form ({error})") from error
        spread = self._mean("empirical_entropy", values, None)
        return replace(spread, se=0.0, diagnostics={"data_se": spread.se, "n": len(values)})

    def distance(self, weights: Any = None, *, n: int | None = None, steps: int = 200, seed: int = 0) -> Estimate:
        """The least divergence K that is reached from given weights or draws by a descent: 0 where the truth is.

        Where n times it is more than 0.1, data sets of n examples begin to tell the truth from the nearest model that
        was reached, and finding CRIT705 says so.

        Args:
            weights: A flat vector, named tensors, a module, or `Draws` with positions, of which the closest one is
                taken; None for the model's own.
            n: Examples of a data set; None takes that of the draws, or 10 000.
            steps: Steps of L-BFGS; 0 for none.
            seed: Of the inputs.
        """
        if isinstance(weights, Draws):
            n = int(weights.spec["n"]) if n is None else n
            w = self._closest(weights, seed)
        else:
            w = self.vector(weights)
        n = 10_000 if n is None else _whole("n", n, 1)
        x = self.points(max(2000, 4 * self.dim), seed)
        w = self._descended(w, x, _whole("steps", steps, 0))
        fresh = self._inputs(len(x), torch.Generator().manual_seed(derived_seed(seed, _FRESH)))
        with torch.no_grad():
            values = self.loss.divergence(self.expected(fresh).double(), self.outputs(w, fresh).double())
        found = self._mean("distance", values, seed)
        found = replace(found, diagnostics={**found.diagnostics, "n": n, "weights": w.tolist()})
        if n * (found.value - 3 * found.se) > _MISFIT:
            return found.with_findings(Finding.of("CRIT705", f"{found.value:.3g} ± {found.se:.1g}, n = {n}"))
        return found

    def vector(self, weights: Any = None) -> Tensor:
        """Weights of any form as a flat vector."""
        if weights is None:
            return self.center
        if isinstance(weights, nn.Module):
            weights = dict(weights.named_parameters())
        if isinstance(weights, Mapping):
            missing = [name for name in self._packing.names if name not in weights]
            if missing:
                raise InputError(f"expected weights for all free parameters, got none for {missing}")
            weights = self._packing.ravel({k: weights[k].detach() for k in self._packing.names})
        if not isinstance(weights, Tensor) or weights.shape != (self.dim,):
            got = f"shape {tuple(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
            raise InputError(f"expected a flat vector of {self.dim} weights, named tensors or a module, got {got}")
        if not torch.isfinite(weights).all():
            raise InputError("expected finite weights, got some that are not")
        return weights.detach().to(self.center)

    def positions(self, draws: Draws, level: float) -> Tensor:
        """Positions of draws (chain, draw, dim) at a level of nbeta."""
        if "positions" not in draws.arrays:
            raise InputError("expected draws with their positions, got none; sample with keep=('positions',)")
        places = torch.as_tensor(draws.at(level)["positions"]).to(self.center)
        if places.shape[2] != self.dim:
            raise InputError(f"expected draws of this triple's {self.dim} parameters, got {places.shape[2]} of them")
        return places

    @cached_property
    def _module(self) -> nn.Module:
        return copy.deepcopy(self.model).eval()

    @cached_property
    def _truth(self) -> Callable[[Tensor], Tensor]:
        return copy.deepcopy(self.truth).eval() if isinstance(self.truth, nn.Module) else self.truth

    @cached_property
    def _tensors(self) -> dict[str, Tensor]:
        free: dict[str, Tensor] = {k: v for k, v in self._module.named_parameters() if v.requires_grad}
        if not free:
            raise InputError("expected a model with parameters that require a gradient, got none")
        return free

    @cached_property
    def _packing(self) -> Packing:
        return Packing.of({k: v.detach() for k, v in self._tensors.items()})

    def _output(self, w: Tensor, x: Tensor) -> Tensor:
        output: Tensor = functional_call(self._module, self._packing.unravel(w), (x,))
        return output

    def _inputs(self, count: int, generator: torch.Generator) -> Tensor:
        shape = (_whole("count", count, 1), self.features or 1)
        if self.inputs == "normal":
            x: Tensor = torch.randn(shape, generator=generator, dtype=torch.float64)
        elif self.inputs == "uniform":
            x = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        else:
            with preserved_rng():
                x = self.inputs(count, generator)  # type: ignore[operator]
            if not isinstance(x, Tensor) or len(x) != count or not torch.isfinite(x).all():
                raise InputError(f"expected inputs(count, generator) to give {count} finite rows, got {x!r:.80}")
        first = next(iter(self._tensors.values()))
        return x.to(first.device, first.dtype if x.is_floating_point() else x.dtype)

    def _mean(self, name: str, values: Tensor, seed: int | None) -> Estimate:
        se = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return Estimate(name, float(values.mean()), se=se, seed=seed, diagnostics={"count": len(values)})

    def _closest(self, draws: Draws, seed: int) -> Tensor:
        places = self.positions(draws, chosen_level(draws, max(draws.levels()))).reshape(-1, self.dim)
        some = places[:: max(1, len(places) // _LOOKED_AT)]
        x = self.points(500, seed)
        truth = self.expected(x).double()
        with torch.no_grad():
            found = [float(self.loss.divergence(truth, self.outputs(row, x).double()).mean()) for row in some]
        return some[min(range(len(some)), key=lambda k: found[k])]

    def _descended(self, w: Tensor, x: Tensor, steps: int) -> Tensor:
        if steps == 0:
            return w
        truth = self.expected(x)
        leaf = w.clone().requires_grad_()
        search: Optimizer = LBFGS([leaf], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=1e-14)

        def divergence() -> float:
            search.zero_grad()
            value = self.loss.divergence(truth, self.outputs(leaf, x)).mean()
            torch.autograd.backward(value)
            return float(value.detach())

        with torch.enable_grad():
            before = divergence()
            search.step(divergence)
            return leaf.detach() if divergence() < before else w


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    return value
