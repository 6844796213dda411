"""`Landscape`: the loss of a model on data, as a function of its parameters, at a point."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crunode.core.data import Examples, as_examples, leaves, map_tree
from crunode.core.fingerprints import identity, tensor_bytes
from crunode.core.losses import LossForm
from crunode.core.params import Packing
from crunode.core.probe import examine
from crunode.core.reading import (
    Potential,
    check_finite,
    device_of,
    evaluation_copy,
    fitting_weights,
    free_names,
    match,
    mode_findings,
    named_tensors,
    placed,
    potential_loss,
    refuse_coordinates,
)
from crunode.core.result import Finding
from crunode.core.rng import preserved_rng
from crunode.errors import InputError

__all__ = ["Landscape"]

_PROBE = 32
# Numbers of activations to evaluate at once: what caches hold, and what keeps a graphics card busy.
_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 27}
_PREFIX = "model."


class Landscape:
    """The empirical loss L_n(w) = (1/n) Σ ℓ_i(w) of a model on data, at its present weights `center`.

    The model is evaluated in evaluation mode through copies of its parameters; the caller's model, data and global
    random state are left as they were. Parameters without `requires_grad` stay fixed.

    Args:
        model: Any `nn.Module`.
        data: Tensors, a `Dataset`, a `DataLoader`, or an iterable of batches (see `as_examples`).
        loss: A torch loss, a name ("gaussian", "cross-entropy", "bernoulli", "causal-lm"), or
            `fn(model, batch)` that returns one loss per example (or a scalar mean, with fewer features).
        n: Number of examples to read, where the data does not know its length.
        params: A pattern of parameter names to keep free, or several, as in `restrict`; None keeps all trainable ones.
        device: Where to evaluate; None is the model's device, to which data on the CPU is moved.

    Attributes:
        n: Number of examples L_n is a mean of.
        dim: Number of free parameters d.
        center: The point w*, a flat vector of length `dim`.
        packing: How named parameters lie in that vector.
        activations: Numbers kept per example for a backward pass, which sets how much data is evaluated at once.
        pointwise: True when the loss gives one value per example.
        noise_free: The labels are known to be what the model predicts at the center.
        fixed: Parameters that are not free, and buffers, by name.
        identity: A hash of the code and settings of model and loss.
        findings: What was noticed about model and data.

    Raises:
        InputError: Anything that would not give a fixed, finite, differentiable loss.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> land = Landscape(model, (torch.ones(8, 2), torch.zeros(8, 1)), "gaussian")
        >>> land.n, land.dim, float(land.loss(torch.tensor([1.0, 1.0])))
        (8, 2, 2.0)
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: Any,
        *,
        n: int | None = None,
        params: str | tuple[str, ...] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"expected model as a torch.nn.Module, got {type(model).__name__}; for a plain function of a vector "
                "use Landscape.of_function"
            )
        parameters = dict(model.named_parameters())
        self.device = device_of(parameters, model, device)
        free = free_names(parameters, (params,) if isinstance(params, str) else params)
        self._module = evaluation_copy(model, loss, self.device)
        self.identity = identity(self.network, weights=False) + identity(self.loss_form)
        tensors = {**parameters, **dict(model.named_buffers())}
        with torch.inference_mode(False):
            held = {name: t.detach().to(self.device, copy=True) for name, t in tensors.items()}
            check_finite({name: held[name] for name in parameters})
            self.packing = Packing.of({name: held[name] for name in free})
            self.center = self.packing.ravel({name: held[name] for name in free})
        self.fixed = {name: t for name, t in held.items() if name not in set(free)}
        self.data: Examples = placed(as_examples(data, n), self.device)
        self._noticed = (*mode_findings(model), *self.data.findings)
        self.noise_free = False
        self._map: Callable[[Tensor], Tensor] | None = None
        self._looked_at()

    @classmethod
    def of_function(cls, potential: Callable[[Tensor], Tensor], at: Tensor, *, n: int = 10_000) -> Landscape:
        """The landscape of a given function K(w) itself, as if seen through `n` noise-free examples.

        Args:
            potential: Maps a vector to a scalar, differentiably.
            at: The point to look at, usually a zero of the potential.
            n: The sample size that sets the resolution nbeta.

        Example:
            >>> land = Landscape.of_function(lambda w: (w[0] * w[1]) ** 2, torch.zeros(2))
            >>> float(land.loss(torch.tensor([1.0, 3.0])))
            9.0
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"expected n as a positive whole number of examples, got {n!r}")
        if not isinstance(at, Tensor) or not at.is_floating_point():
            got = f"dtype {at.dtype}" if isinstance(at, Tensor) else type(at).__name__
            raise InputError(f"expected at as a floating-point tensor, got {got}; for example torch.zeros(2)")
        data = Examples([torch.zeros(1, dtype=at.dtype, device=at.device)], copies=n)
        return cls(Potential(potential, at), data, potential_loss)

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.data.n

    @property
    def dim(self) -> int:
        """Number of free parameters."""
        return self.packing.dim

    @property
    def loss_name(self) -> str:
        """Name of the loss."""
        return self._module.label

    @property
    def loss_form(self) -> LossForm:
        """The loss in its parts."""
        return self._module.form

    @property
    def network(self) -> nn.Module:
        """The copy of the model that is evaluated, at other weights than it holds itself. It is not to be changed."""
        return self._module.model

    def batch_losses(self, w: Tensor, batch: Any) -> Tensor:
        """Losses at the flat vector `w` on `batch`: one per example, or a scalar mean. Differentiable, batchable."""
        return self._evaluate(w, batch)

    def functional(self, weights: Mapping[str, Tensor], batch: Any, *, own: bool = False) -> Tensor:
        """Losses on `batch` at weights by name, as `batch_losses`; with `own`, the mean as the loss itself reduces.

        Parameters and buffers that are not among `weights` are the fixed ones. `weights` may be of another dtype.
        """
        named = {_PREFIX + name: value for name, value in {**self.fixed, **weights}.items()}
        losses: Tensor = functional_call(self._module, named, (self.protected(batch), own))
        return losses

    def functional_outputs(self, weights: Mapping[str, Tensor], batch: Any) -> Any:
        """What the model gives on `batch`, its target last, at weights by name."""
        return functional_call(self.network, {**self.fixed, **weights}, self.protected(batch[:-1]))

    def protected(self, batch: Any) -> Any:
        """`batch`, or a copy of it where the model or the loss writes into what it is given."""
        return map_tree(torch.clone, batch) if self._in_place else batch

    def batch_loss(self, w: Tensor, batch: Any) -> Tensor:
        """Mean loss at the flat vector `w` on `batch`. Differentiable and batchable by `torch.func`."""
        return self.batch_losses(w, batch).mean()

    def batch_gradient(self, w: Tensor, batch: Any) -> Tensor:
        """Gradient of `batch_loss` at the flat vector `w`, by plain autograd: for any model, batchable or not."""
        with torch.enable_grad():
            point = w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.batch_loss(point, batch), point)
        return gradient

    def batch_outputs(self, w: Tensor, batch: Any) -> Any:
        """What the model gives at the flat vector `w` on `batch`, for a loss of (outputs, target).

        Raises:
            InputError: The loss takes the model as a whole.
        """
        if self.loss_form.takes_model:
            raise InputError(f"expected a loss of (outputs, target), got {self.loss_name}, which takes the whole model")
        return self.functional_outputs(self.packing.unravel(self._weights(w)), batch)

    def predicted_labels(self, batch: Any) -> Tensor | None:
        """What the model predicts at the center for the labels of `batch`; None where the loss does not say."""
        if self.loss_form.takes_model:
            return None
        outputs = self.batch_outputs(self.center, batch)
        return self._module.expected_target(outputs) if isinstance(outputs, Tensor) else None

    def self_labelled(self) -> Landscape | None:
        """The same landscape with the model's own predictions at the center for labels: the model is its own truth.

        For a log-likelihood the loss above the center's is then the divergence of the model at w from the model at w*,
        free of label noise and never negative. None where the loss has no target that stands for a prediction.

        Example:
            >>> net = torch.nn.Linear(2, 1)
            >>> land = Landscape(net, (torch.randn(8, 2), torch.randn(8, 1)), "gaussian")
            >>> float(land.self_labelled().loss())
            0.0
        """
        if self.loss_form.takes_model or not self.data.stacked:
            return None
        batches = []
        with torch.no_grad(), preserved_rng():
            for batch in self.passes():
                if not batch[-1].is_floating_point() and bool((batch[-1] < 0).any()):
                    return None  # classes below 0 mark examples that the loss leaves out
                target = self.predicted_labels(batch)
                if target is None:
                    return None
                batches.append((*batch[:-1], target))
        other = self.with_data(Examples(batches, self.data.findings, self.data.copies)).without_noise()
        try:
            return other._looked_at()
        except InputError:  # a target of another kind than the given one does not fit the loss
            return None

    def with_data(self, data: Examples) -> Landscape:
        """The same landscape on other examples of the same form, which are not examined again."""
        other = copy.copy(self)
        other.data = data
        return other

    def without_noise(self) -> Landscape:
        """The same landscape, its labels taken for what the model predicts at the center."""
        other = copy.copy(self)
        other.noise_free = True
        return other

    def in_coordinates(self, weights: Callable[[Tensor], Tensor]) -> Landscape:
        """The loss as a function of z, L(weights(z)), at z = 0; it is not examined again.

        Args:
            weights: Gives the flat vector of free parameters for a vector z of the same length, differentiably.

        Example:
            >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.ones(2))
            >>> float(land.in_coordinates(lambda z: land.center + 2 * z).loss(torch.tensor([1.0, 0.0])))
            10.0
        """
        other = copy.copy(self)
        other.center, other._map = torch.zeros_like(self.center), weights
        return other

    def losses(self, w: Tensor | None = None) -> Tensor:
        """Loss of every example at `w` (the center when None), one for each row of the data.

        Raises:
            InputError: The loss gives only a scalar mean.
        """
        if not self.pointwise:
            raise InputError(
                f"expected one loss per example, got a scalar from the loss {self.loss_name}; return a vector with "
                "one entry for each example of the batch"
            )
        point = self._point(w)
        with torch.no_grad(), preserved_rng():
            values = torch.cat([self.batch_losses(point, batch) for batch in self.passes()])
        if w is None and not torch.isfinite(values).all():
            rows = (~torch.isfinite(values)).nonzero().flatten().tolist()
            raise InputError(
                f"expected finite losses at the center, got {len(rows)} of {len(values)} that are not, the first for "
                f"example {rows[0]}; check these examples for missing or extreme values"
            )
        return values

    def loss(self, w: Tensor | None = None) -> Tensor:
        """The full loss L_n(w) (at the center when `w` is None), in float64."""
        point = self._point(w)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad(), preserved_rng():
            for batch in self.passes():
                total += self.batch_loss(point, batch).double() * leaves(batch)[0].shape[0]
        if w is None and not torch.isfinite(total):
            raise InputError(
                f"expected a finite loss at the center, got {float(total)} over all {self.data.rows} examples; check "
                "the data for missing or extreme values"
            )
        return total / self.data.rows

    def passes(self, size: int | None = None) -> Iterator[Any]:
        """The data once, in order, in batches of `size` (None: as fits a moderate amount of memory)."""
        return self.data.passes(size or self.chunk_rows())

    def chunk_rows(self, chains: int = 1) -> int:
        """Examples to evaluate at once for `chains` points together: 2²² numbers of activations, 2²⁷ on a GPU."""
        numbers = _AT_ONCE.get(self.device.type, _AT_ONCE["cpu"])
        return max(16, numbers // (self.activations * chains))

    def restrict(self, *patterns: str) -> Landscape:
        """The same landscape with only parameters that match `patterns` free; the others stay at the center.

        Args:
            patterns: Shell-style patterns of parameter names, such as "layers.0.*".

        Example:
            >>> net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
            >>> land = Landscape(net, (torch.ones(4, 2), torch.zeros(4, 1)), "gaussian")
            >>> land.restrict("1.*").dim
            4
        """
        refuse_coordinates(self._map)
        tensors = self.packing.unravel(self.center)
        free = match(list(tensors), patterns)
        other = copy.copy(self)
        other.packing = Packing.of({name: tensors[name] for name in free})
        other.center = other.packing.ravel(tensors)
        other.fixed = {**self.fixed, **{k: v.clone() for k, v in tensors.items() if k not in set(free)}}
        return other._looked_at()

    def at(self, weights: nn.Module | Mapping[str, Tensor] | Tensor) -> Landscape:
        """The same landscape at other weights.

        Args:
            weights: A flat vector of the free parameters; named tensors, all free parameters among them; or a module
                of the same kind. The latter two set fixed parameters and buffers (batch statistics) that they name too.

        Raises:
            InputError: The weights do not fit, or the loss at them is not finite.
        """
        refuse_coordinates(self._map)
        other = copy.copy(self)
        if isinstance(weights, Tensor):
            other.center = self._point(weights).detach().clone()
        else:
            other.center, other.fixed = self._placed_weights(named_tensors(weights))
        other.noise_free = False
        check_finite(other.packing.unravel(other.center))
        return other._looked_at()

    def _placed_weights(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        free = self.packing.unravel(self.center)
        known = fitting_weights(weights, free, self.fixed, dict(self.network.named_parameters(remove_duplicate=False)))
        fixed = {k: v.detach().to(self.fixed[k], copy=True) for k, v in known.items() if k not in free}
        center = self.packing.ravel({name: weights[name].detach().to(self.device) for name in free})
        return center, {**self.fixed, **fixed}

    def fingerprint(self) -> str:
        """A hash of weights, data, loss and parameter subset: equal only for the same landscape."""
        digest = hashlib.sha256(f"{self.identity} {self.loss_name} {self.packing} {self.n}".encode())
        fixed = [(_PREFIX + name, tensor) for name, tensor in sorted(self.fixed.items())]
        for name, tensor in (*fixed, ("", self.center), *(("", t) for t in self.data.tensors())):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor_bytes(tensor))
        return digest.hexdigest()

    def same_model(self, other: Landscape) -> bool:
        """Whether the two differ in data and center at most: in model, loss and all that is fixed they are alike."""
        if self.identity != other.identity or self.fixed.keys() != other.fixed.keys():
            return False
        return all(torch.equal(tensor, other.fixed[name]) for name, tensor in self.fixed.items())

    def _looked_at(self) -> Landscape:
        """Itself, once a small batch has been looked at: refuses what is not a fixed, finite, differentiable mean."""
        batch = next(iter(self.data.passes(min(_PROBE, self.data.rows))))
        own = functools.partial(self._evaluate, own=True) if self._module.has_own_mean() else None
        self._in_place = False
        with torch.inference_mode(False), torch.enable_grad(), preserved_rng():
            seen = examine(self._evaluate, own, self.center, self.packing, batch, self.loss_name)
        self.pointwise, self.activations, self._in_place = seen.pointwise, seen.activations, seen.in_place
        self.findings: tuple[Finding, ...] = (*self._noticed, *seen.findings)
        if not self.pointwise:
            self.loss()  # the other examples too; losses per example are checked where sampling takes them all
        return self

    def _evaluate(self, w: Tensor, batch: Any, own: bool = False) -> Tensor:
        return self.functional(self.packing.unravel(self._weights(w)), batch, own=own)

    def _weights(self, w: Tensor) -> Tensor:
        return w if self._map is None else self._map(w)

    def _point(self, w: Tensor | None) -> Tensor:
        if w is None:
            return self.center
        if w.shape != self.center.shape:
            raise InputError(f"expected a flat vector of {self.dim} weights, got a tensor of shape {tuple(w.shape)}")
        return w.to(self.center)
