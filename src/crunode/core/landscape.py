"""`Landscape`: the loss of a model on data, as a function of its parameters, at a point."""

from __future__ import annotations

import copy
import fnmatch
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crunode.core.data import Examples, as_examples, leaves, map_tree
from crunode.core.losses import LossModule, check_mean
from crunode.core.params import Packing
from crunode.core.result import Finding
from crunode.core.rng import preserved_rng
from crunode.errors import InputError

__all__ = ["Landscape"]

_PROBE = 32
_PREFIX = "model."
_STOCHASTIC = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)


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
        params: Patterns of parameter names to keep free, as in `restrict`; None keeps all trainable ones.
        device: Where to evaluate; None is the model's device, to which data on the CPU is moved.

    Attributes:
        n: Number of examples L_n is a mean of.
        dim: Number of free parameters d.
        center: The point w*, a flat vector of length `dim`.
        packing: How named parameters lie in that vector.
        activations: Numbers kept per example for a backward pass, which sets how much data is evaluated at once.
        pointwise: True when the loss gives one value per example.
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
        params: tuple[str, ...] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"expected model as a torch.nn.Module, got {type(model).__name__}")
        parameters = dict(model.named_parameters())
        self.device = _device_of(parameters, model, device)
        free = _free_names(parameters, params)
        self._module = _evaluation_copy(model, loss)
        tensors = {**parameters, **dict(model.named_buffers())}
        held = {_PREFIX + name: t.detach().to(self.device, copy=True) for name, t in tensors.items()}
        self.packing = Packing.of({name: held[_PREFIX + name] for name in free})
        self.center = self.packing.ravel({name: held[_PREFIX + name] for name in free})
        self._fixed = {name: t for name, t in held.items() if name[len(_PREFIX) :] not in set(free)}
        _check_finite(self.packing.unravel(self.center) | self._fixed)
        self.data: Examples = _placed(as_examples(data, n), self.device)
        self.findings: tuple[Finding, ...] = (*_mode_findings(model), *self.data.findings)
        with preserved_rng():
            self._probe()

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
        data = Examples([torch.zeros(1, dtype=at.dtype, device=at.device)], copies=n)
        return cls(_Potential(potential, at), data, _potential_loss)

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

    def batch_losses(self, w: Tensor, batch: Any) -> Tensor:
        """Losses at the flat vector `w` on `batch`: one per example, or a scalar mean. Differentiable, batchable."""
        free = {_PREFIX + name: value for name, value in self.packing.unravel(w).items()}
        losses: Tensor = functional_call(self._module, {**self._fixed, **free}, (batch,))
        return losses

    def batch_loss(self, w: Tensor, batch: Any) -> Tensor:
        """Mean loss at the flat vector `w` on `batch`. Differentiable and batchable by `torch.func`."""
        return self.batch_losses(w, batch).mean()

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
        w = self.center if w is None else w
        with torch.no_grad(), preserved_rng():
            return torch.cat([self.batch_losses(w, batch) for batch in self.passes()])

    def loss(self, w: Tensor | None = None) -> Tensor:
        """The full loss L_n(w) (at the center when `w` is None), in float64."""
        w = self.center if w is None else w
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad(), preserved_rng():
            for batch in self.passes():
                total += self.batch_loss(w, batch).double() * _size(batch)
        return total / self.data.rows

    def passes(self, size: int | None = None) -> Iterator[Any]:
        """The data once, in order, in batches of `size` (None: as fits a moderate amount of memory)."""
        return self.data.passes(size or self.chunk_rows())

    def chunk_rows(self, chains: int = 1) -> int:
        """Examples to evaluate at once for `chains` points together: about 2²² numbers of activations."""
        return max(16, 2**22 // (self.activations * chains))

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
        tensors = self.packing.unravel(self.center)
        free = _match(list(tensors), patterns)
        other = copy.copy(self)
        other.packing = Packing.of({name: tensors[name] for name in free})
        other.center = other.packing.ravel(tensors)
        rest = {_PREFIX + name: value.clone() for name, value in tensors.items() if name not in set(free)}
        other._fixed = {**self._fixed, **rest}
        return other

    def at(self, weights: nn.Module | Mapping[str, Tensor] | Tensor) -> Landscape:
        """The same landscape at other weights: a module of the same kind, named tensors, or a flat vector."""
        if isinstance(weights, nn.Module):
            weights = dict(weights.named_parameters())
        if not isinstance(weights, Tensor):
            missing = [name for name in self.packing.names if name not in weights]
            if missing:
                raise InputError(f"expected weights for all free parameters, got none for {missing}")
            weights = self.packing.ravel({k: v.detach().to(self.device) for k, v in weights.items()})
        if weights.shape != self.center.shape:
            raise InputError(f"expected {self.dim} weights, got a tensor of shape {tuple(weights.shape)}")
        other = copy.copy(self)
        other.center = weights.detach().to(self.device, self.packing.dtype, copy=True)
        _check_finite(other.packing.unravel(other.center))
        return other

    def fingerprint(self) -> str:
        """A hash of weights, data, loss and parameter subset: equal only for the same landscape."""
        digest = hashlib.sha256(f"{self.loss_name} {self.packing} {self._module.model}".encode())
        for name, tensor in sorted(self._fixed.items()):
            digest.update(name.encode())
            digest.update(_bytes(tensor))
        for tensor in (self.center, *self.data.tensors()):
            digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            digest.update(_bytes(tensor))
        return digest.hexdigest()

    def _probe(self) -> None:
        """Evaluate a small batch and refuse what is not a fixed, finite, differentiable mean over examples."""
        batch = next(iter(self.data.passes(min(_PROBE, self.data.rows))))
        size = _size(batch)
        w = self.center.clone().requires_grad_()
        saved: list[int] = [leaf[0].numel() for leaf in leaves(batch)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: _count(t, size, saved), lambda t: t):
            losses = self.batch_losses(w, batch)
        self.activations = max(1, sum(saved))
        label = self.loss_name
        if losses.ndim > 1 or (losses.ndim == 1 and losses.shape[0] != size):
            raise InputError(
                f"expected one loss per example, shape ({size},), or a scalar mean from the loss {label}, got shape "
                f"{tuple(losses.shape)}; average or sum the other axes"
            )
        self.pointwise = losses.ndim == 1
        if not torch.isfinite(losses).all():
            raise InputError(f"expected finite losses at the center, got {losses.detach().flatten()[:4].tolist()}")
        if not losses.requires_grad:
            raise InputError(
                f"expected the loss {label} to depend on the free parameters, got a value without gradient; look for "
                "detach(), no_grad() or numpy in the model or the loss"
            )
        again = self.batch_losses(w, batch)
        if not torch.allclose(losses, again, rtol=1e-4, atol=1e-6):
            raise InputError(
                "expected the same loss when evaluated twice, got different values although the model is in "
                "evaluation mode; remove the randomness (dropout with training=True, noise, sampling) from the model"
            )
        if size >= 2:
            half = size // 2
            parts = [map_tree(lambda t, a=a: t[a : a + half], batch) for a in (0, half)]  # type: ignore[misc]
            whole = self.batch_loss(w, map_tree(lambda t: t[: 2 * half], batch))
            if not check_mean(whole, torch.stack([self.batch_loss(w, part) for part in parts]), label):
                self.findings += (Finding.of("DATA502", f"seen on a batch of {2 * half}"),)
        tensors = {_PREFIX + k: v for k, v in self.packing.unravel(w).items()}
        mean = functional_call(self._module, {**self._fixed, **tensors}, (batch,)).mean()
        gradients = torch.autograd.grad(mean, list(tensors.values()), allow_unused=True)
        unused = [k[len(_PREFIX) :] for k, g in zip(tensors, gradients, strict=True) if g is None]
        if unused:
            self.findings += (Finding.of("MODEL502", ", ".join(unused)),)
        bad = [k for k, g in zip(tensors, gradients, strict=True) if g is not None and not torch.isfinite(g).all()]
        if bad:
            raise InputError(f"expected finite gradients at the center, got non-finite ones for {bad}")


class _Potential(nn.Module):
    def __init__(self, fn: Callable[[Tensor], Tensor], at: Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.w = nn.Parameter(at.detach().clone())


def _potential_loss(model: nn.Module, batch: Tensor) -> Tensor:
    value: Tensor = model.fn(model.w)  # type: ignore[operator]
    return value.reshape(1).expand(batch.shape[0])


def _size(batch: Any) -> int:
    return leaves(batch)[0].shape[0]


def _count(tensor: Tensor, size: int, counts: list[int]) -> Tensor:
    if tensor.ndim and tensor.shape[0] == size:
        counts.append(tensor[0].numel())
    return tensor


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _device_of(parameters: Mapping[str, Tensor], model: nn.Module, device: torch.device | str | None) -> torch.device:
    devices = {t.device for t in (*parameters.values(), *model.buffers())}
    if torch.device("meta") in devices:
        raise InputError("expected a model with weights, got parameters on the meta device; load its weights first")
    if device is not None:
        return torch.device(device)
    if len(devices) > 1:
        raise InputError(f"expected a model on one device, got parts on {sorted(map(str, devices))}; pass device=")
    return next(iter(devices)) if devices else torch.device("cpu")


def _free_names(parameters: Mapping[str, Tensor], patterns: tuple[str, ...] | None) -> list[str]:
    names = list(parameters) if patterns is None else _match(list(parameters), patterns)
    odd = [f"{name} ({parameters[name].dtype})" for name in names if not parameters[name].is_floating_point()]
    if odd:
        raise InputError(
            f"expected real floating-point parameters, got {', '.join(odd)}; make them buffers, or name the parameters "
            "to sample with params="
        )
    free = [name for name in names if parameters[name].requires_grad]
    if not free:
        raise InputError(
            f"expected at least one parameter with requires_grad, got {len(names)} without; call "
            "requires_grad_(True) on those to be sampled"
        )
    return free


def _match(names: list[str], patterns: tuple[str, ...]) -> list[str]:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise InputError(f"expected a pattern that matches parameter names, got {pattern!r}; there are {names}")
    return [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]


def _evaluation_copy(model: nn.Module, loss: Any) -> LossModule:
    """The module's structure in evaluation mode, sharing no state with the caller's but the tensors themselves."""
    shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
    try:
        module = LossModule(copy.deepcopy(model, dict(shared)), loss)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"expected a model that copy.deepcopy can copy, got {type(error).__name__}: {error}; drop attributes that "
            "hold locks, generators or tensors with a history"
        ) from error
    return module.eval()


def _placed(examples: Examples, device: torch.device) -> Examples:
    devices = {t.device for t in examples.tensors()}
    if devices - {torch.device("cpu"), device}:
        raise InputError(
            f"expected data on the model's device {device} or on the CPU, got {sorted(map(str, devices))}; move one of "
            "them, or pass device="
        )
    return examples if devices == {device} else examples.to(device)


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    bad = [
        name.removeprefix(_PREFIX)
        for name, t in tensors.items()
        if t.is_floating_point() and not torch.isfinite(t).all()
    ]
    if bad:
        raise InputError(f"expected finite weights, got non-finite values in {bad}; was the training diverging?")


def _mode_findings(model: nn.Module) -> Iterator[Finding]:
    noisy = sorted({type(m).__name__ for m in model.modules() if isinstance(m, _STOCHASTIC) and m.training})
    if noisy:
        yield Finding.of("MODEL501", f"{', '.join(noisy)} in training mode")
    if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()):
        yield Finding.of("MODEL503", "found on the model")
