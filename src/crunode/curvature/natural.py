"""Natural gradient descent as a torch optimizer, exact in data space.

With F = GᵀG/B the Fisher matrix of a batch, smoothed as F_s = F + κI with κ = (α/d) max(tr F, ε), a step is along
F_s⁻¹∇L. No matrix of the size of the weights is needed: for per-example gradients G, ∇L = Gᵀ𝟏/B and
F_s⁻¹∇L = Gᵀ(GGᵀ + BκI)⁻¹𝟏, where GGᵀ comes from activations and back-propagated signals.

References:
    Amari 1998; Saghir, Raghavendra, Liu & Gunter 2024, eqs. 4-7; Kunstner, Balles & Hennig 2019 (kinds of Fisher
    matrices); Povey, Zhang & Khudanpur 2015 (the online form).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from crunode.core.losses import LossModule
from crunode.core.result import Finding
from crunode.core.rng import derived_seed
from crunode.curvature import fisher_systems
from crunode.curvature.gram import example_rows
from crunode.curvature.online_fisher import online_direction
from crunode.curvature.predictive import predictive
from crunode.curvature.signals import Recorder
from crunode.errors import DiagnosticWarning, InputError

__all__ = ["NaturalGradient", "NaturalStep"]

_FISHERS = ("empirical", "sampled", "true", "kaldi")
_PREFIX = "model."
_OWN = "natural"


@dataclass(frozen=True)
class NaturalStep:
    """What one step did.

    Attributes:
        loss: Mean loss of the batch before the step; None where it was not seen.
        gradient_norm: ‖∇L‖.
        update_norm: ‖F_s⁻¹∇L‖, before rate, momentum and weight decay.
        kappa: κ; None for the online form, where every axis of a tensor has its own.
        fisher_trace: tr F; None for the online form.
        rows: How per-example gradients were found: "layers", "examples", "passes", or "none" where they are not needed.
        findings: What was found about it.
    """

    loss: float | None
    gradient_norm: float
    update_norm: float
    kappa: float | None
    fisher_trace: float | None
    rows: str
    findings: tuple[Finding, ...] = ()


class NaturalGradient(torch.optim.Optimizer):
    """Descent along F_s⁻¹∇L with F_s = F + κI and κ = (α/d) max(tr F, ε).

    A step is `step(inputs, targets)`, or `step(closure)` with a closure that gives one loss per example, without
    backward pass. Weight decay and momentum act as in `torch.optim.SGD`, with F_s⁻¹∇L in the place of the gradient. For
    κ → ∞ steps are those of SGD with rate lr/κ.

    Args:
        model: The model. It is used as it is, in the mode it is in, and nothing of it but its weights is changed.
        loss: As for `Landscape`: a name, a torch loss, or a function of outputs and targets, or of model and batch.
            None if steps are given closures.
        lr: The rate.
        params: Parameters to optimize, or dictionaries of groups with their own lr, momentum, nesterov and
            weight_decay; None for all of the model. There is one Fisher matrix over all of them.
        alpha: α > 0.
        epsilon: ε > 0.
        fisher: "empirical": gradients of the losses themselves. "true": with the sum over all labels that the model may
            predict, which is the generalized Gauss-Newton matrix. "sampled": with one label per example drawn from the
            model. "kaldi": an online low-rank form of the empirical one, for each axis of each tensor by itself, whose
            result has the norm of the gradient; it needs no losses per example, and `step()` takes `.grad` as it is.
        momentum: Of the buffer of directions.
        nesterov: Nesterov's form of momentum.
        weight_decay: Multiple of the weights that is added to the direction.
        seed: Labels are drawn from it.

    Attributes:
        last: A `NaturalStep`, what the last step did; None before the first.
        takes_batch: True: `step` does the forward and backward pass by itself.

    Raises:
        InputError: A setting makes no sense, the parameters are not of the model, or the loss does not say what the
            model predicts, which "true" and "sampled" need.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 10.0], [1.0, 5.0]])
        >>> y = x @ torch.tensor([[1.0], [1.0]])
        >>> optimizer = NaturalGradient(model, "gaussian", lr=1.0, fisher="true", alpha=1e-6)
        >>> before = optimizer.step(x, y)
        >>> bool(optimizer.step(x, y) < 1e-6 * before)  # a Gauss-Newton step solves a linear problem at once
        True
        >>> optimizer.last.rows
        'layers'
    """

    takes_batch = True

    def __init__(
        self,
        model: nn.Module,
        loss: Any = None,
        lr: float = 1e-2,
        *,
        params: Iterable[Any] | None = None,
        alpha: float = 1e-2,
        epsilon: float = 1e-10,
        fisher: str = "empirical",
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"expected the model itself, got {type(model).__name__}; parameters or groups of them go into params="
            )
        if fisher not in _FISHERS:
            raise InputError(f"expected fisher among {list(_FISHERS)}, got {fisher!r}")
        for name, value in (("alpha", alpha), ("epsilon", epsilon)):
            if not 0 < value < math.inf:
                raise InputError(f"expected {name} above zero, got {value!r}; without smoothing there is no inverse")
        self.fisher, self.alpha, self.epsilon, self.seed, self.steps = fisher, float(alpha), float(epsilon), seed, 0
        self.last: NaturalStep | None = None
        self._model = model
        self._loss = None if loss is None else LossModule(model, loss, _device(model))
        self._predictive = None if self._loss is None else predictive(self._loss.form)
        if fisher in ("true", "sampled") and self._predictive is None:
            raise InputError(
                f"expected a loss that says what the model predicts for fisher={fisher!r} (cross-entropy, squared "
                f"error or binary cross-entropy with logits, as a name or from torch), got "
                f"{'none' if self._loss is None else self._loss.label}; use fisher='empirical'"
            )
        self._names: dict[int, str] = {id(value): name for name, value in model.named_parameters()}
        self._recorder: Recorder | None = None
        self._looked_at: Any = None
        self._told: set[str] = set()
        given = list(model.parameters()) if params is None else list(params)
        if not given:
            raise InputError("expected a model with parameters, got none; there is nothing to optimize")
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(given, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own settings.

        Raises:
            InputError: They are not of the model, or a setting makes no sense.
        """
        given = param_group["params"]
        param_group["params"] = [given] if isinstance(given, Tensor) else list(given)
        others = [tuple(p.shape) for p in param_group["params"] if id(p) not in self._names]
        if others:
            raise InputError(f"expected parameters of the model, got others of shape {others[:3]}; give that model")
        settings = {**self.defaults, **param_group}
        for name in ("lr", "momentum", "weight_decay"):
            if not 0 <= float(settings[name]) < math.inf:
                raise InputError(f"expected {name} of zero or more, got {settings[name]!r}")
        if settings["nesterov"] and not settings["momentum"] > 0:
            raise InputError("expected momentum above zero with nesterov, got 0; give momentum=0.9")
        super().add_param_group(param_group)

    def step(self, *batch: Any, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Take one step.

        Args:
            batch: Inputs and targets, as the loss takes them; or a closure that gives one loss per example. With
                "kaldi" also nothing, to take gradients as they are, or a closure that calls `backward` and gives the
                loss.
            closure: The same by name.

        Returns:
            The mean loss before the step; None where it was not seen.

        Raises:
            InputError: The loss cannot be split per example, examples are coupled by a layer, or the arguments are not
                as said.
            EstimationError: A loss or gradient is not finite. The weights are as they were.
        """
        if len(batch) == 1 and closure is None and callable(batch[0]) and not isinstance(batch[0], Tensor):
            closure, batch = batch[0], ()
        free = {self._names[id(p)]: p for group in self.param_groups for p in group["params"] if p.requires_grad}
        if not free:
            raise InputError("expected parameters that take gradients, got none; set requires_grad on some")
        if self.fisher == "kaldi":
            direction, self.last = self._online(free, batch, closure)
        else:
            direction, self.last = self._natural(free, batch, closure)
        with torch.no_grad():
            self._move(direction)
        self.steps += 1
        for finding in self.last.findings:
            if finding.severity != "info" and finding.code not in self._told:
                self._told.add(finding.code)
                warnings.warn(str(finding), DiagnosticWarning, stacklevel=3)
        return None if self.last.loss is None else torch.tensor(self.last.loss, dtype=torch.float64)

    def _natural(
        self, free: dict[str, Tensor], batch: tuple[Any, ...], closure: Callable[[], Tensor] | None
    ) -> tuple[dict[str, Tensor], NaturalStep]:
        recorder, fresh = self._look(free)
        outputs: list[Any] = []
        handle = self._model.register_forward_hook(lambda _, __, value: outputs.append(value))
        try:
            with torch.enable_grad(), recorder:
                losses = fisher_systems.example_losses(self._losses(batch, closure), batch)
        finally:
            handle.remove()
        loss = fisher_systems.mean_loss(losses)
        with torch.enable_grad():
            value, cotangents, scales, right = self._kinds(losses, outputs)
            single = self._single if batch else None
            rows, how = example_rows(recorder, value, cotangents, free, check=fresh, single=single, batch=batch)
        if how != "layers":
            recorder.covered = False  # it is not tried again until something is different
        size, gram = sum(p.numel() for p in free.values()), rows.gram()
        if scales is not None:
            gram.mul_(scales[:, None]).mul_(scales)
        fisher_systems.refuse_infinite(gram.diagonal().sum(), loss)
        findings = []
        if self.fisher == "sampled":
            assert self._predictive is not None
            findings = fisher_systems.unsure_trace(gram.diagonal()[len(losses) :], self._predictive.surprises(value))
        solve = fisher_systems.solved_by_drawn if self.fisher == "sampled" else fisher_systems.solved
        found = solve(gram, right, len(losses), self.alpha / size, self.epsilon)
        direction = rows.combined(found.coefficients if scales is None else found.coefficients * scales)
        if found.singular:
            findings.append(Finding.of("CURV831", f"with kappa = {found.kappa:.3g}"))
        if how != "layers":
            findings.append(Finding.of("CURV833", f"found by {how}"))
        if len(losses) == 1:
            findings.append(Finding.of("CURV834", f"the norm of the gradient is {found.gradient_norm:.3g}"))
        length = fisher_systems.whole_norm(direction)
        fisher_systems.refuse_infinite(length, loss)
        last = NaturalStep(loss, found.gradient_norm, length, found.kappa, found.trace, how, tuple(findings))
        return direction, last

    def _look(self, free: dict[str, Tensor]) -> tuple[Recorder, bool]:
        """The recorder, and whether something about the model is different from the last step."""
        modules = list(self._model.modules())
        fisher_systems.refuse_coupled(modules)
        present = tuple(free), tuple((id(m), m.training) for m in modules)
        fresh = present != self._looked_at
        if fresh or self._recorder is None:
            self._recorder, self._looked_at = Recorder(self._model, free), present
        return self._recorder, fresh

    def _losses(self, batch: tuple[Any, ...], closure: Callable[[], Tensor] | None) -> Any:
        if closure is not None and not batch:
            return closure()
        if closure is not None or not batch:
            raise InputError("expected inputs and targets, or a closure, got both or neither; give one of them")
        if self._loss is None:
            raise InputError("expected a loss to go with inputs and targets, got none; give it to NaturalGradient")
        return self._loss(batch)

    def _single(self, weights: dict[str, Tensor], batch: Any) -> Tensor:
        """Losses or outputs of a batch at other weights."""
        found: Tensor
        if self.fisher == "empirical":
            assert self._loss is not None
            found = functional_call(self._loss, {_PREFIX + name: w for name, w in weights.items()}, (batch,))
        else:
            found = functional_call(self._model, weights, batch[:-1])
        return found

    def _kinds(self, losses: Tensor, outputs: list[Any]) -> tuple[Tensor, list[Tensor], Tensor | None, Tensor]:
        """What is differentiated, along which cotangents, their sizes, and the right side of the system.

        Cotangents are scaled to entries of at most one, so that those of very unlikely labels are not lost.
        """
        if self.fisher == "empirical":
            return losses, [torch.ones_like(losses)], None, torch.ones_like(losses, dtype=torch.float64)
        assert self._predictive is not None
        value = fisher_systems.single_output(outputs, len(losses))
        (slope,) = torch.autograd.grad(losses.sum(), value, retain_graph=True)
        with torch.no_grad():
            if self.fisher == "sampled":
                generator = torch.Generator().manual_seed(derived_seed(self.seed, self.steps))
                drawn = self._predictive.drawn(value, generator)
                columns = torch.stack([slope.reshape(len(losses), -1).double(), drawn.reshape(len(losses), -1)], 2)
                right = columns.new_ones(len(losses))
            else:
                columns = self._predictive.root(value)
                right = self._predictive.whitened(value, slope).T.reshape(-1)
            sizes = columns.abs().amax(1, keepdim=True)
            units = columns / torch.where(sizes > 0, sizes, torch.ones_like(sizes))
            cotangents = [unit.reshape(value.shape).to(value.dtype) for unit in units.unbind(2)]
        return value, cotangents, sizes[:, 0].T.reshape(-1), right

    def _online(
        self, free: dict[str, Tensor], batch: tuple[Any, ...], closure: Callable[[], Tensor] | None
    ) -> tuple[dict[str, Tensor], NaturalStep]:
        loss, gradients = None, {name: p.grad for name, p in free.items()}
        if batch or closure is not None:
            with torch.enable_grad():
                losses = self._losses(batch, closure)
            if not isinstance(losses, Tensor):
                losses = torch.as_tensor(losses, dtype=torch.float64)
            loss = fisher_systems.mean_loss(losses)
            if batch or losses.ndim:
                found = torch.autograd.grad(losses.mean(), list(free.values()), allow_unused=True)
                gradients = dict(zip(free, found, strict=True))
            else:  # a closure of the kind that other optimizers take: it has called backward
                gradients = {name: p.grad for name, p in free.items()}
        present, norm = fisher_systems.finite_gradients(gradients)
        with torch.no_grad():
            for name, gradient in present.items():
                states = self.state[free[name]].setdefault("online", [{} for _ in gradient.shape])
                present[name] = online_direction(gradient, states, alpha=self.alpha, epsilon=self.epsilon)
            length = fisher_systems.whole_norm(present)
        return present, NaturalStep(loss, norm, length, None, None, "none")

    def _move(self, direction: dict[str, Tensor]) -> None:
        """Weight decay, momentum and the step itself, as SGD has them."""
        for group in self.param_groups:
            momentum, decay = group["momentum"], group["weight_decay"]
            for p in group["params"]:
                step = direction.get(self._names[id(p)])
                if step is None:
                    continue
                if decay:
                    step = step.add(p, alpha=decay)
                if momentum:
                    state = self.state[p]
                    if "momentum_buffer" in state:
                        state["momentum_buffer"].mul_(momentum).add_(step)
                    else:
                        state["momentum_buffer"] = step.clone()
                    buffer = state["momentum_buffer"]
                    step = step.add(buffer, alpha=momentum) if group["nesterov"] else buffer
                p.add_(step, alpha=-float(group["lr"]))

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on: buffers, groups, smoothing, and the state of drawn labels."""
        found: dict[str, Any] = super().state_dict()
        shapes = [[self._names[id(p)], list(p.shape)] for group in self.param_groups for p in group["params"]]
        found[_OWN] = {
            "fisher": self.fisher,
            "alpha": self.alpha,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "steps": self.steps,
            "parameters": shapes,
        }
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            InputError: It is of another optimizer, another kind of Fisher matrix, or a model with other parameters.
        """
        own = state_dict.get(_OWN)
        if own is None:
            raise InputError("expected the state of a NaturalGradient, got that of another optimizer")
        if own["fisher"] != self.fisher:
            raise InputError(f"expected a state of fisher={self.fisher!r}, got one of {own['fisher']!r}; make it alike")
        mine = [(self._names[id(p)], list(p.shape)) for group in self.param_groups for p in group["params"]]
        theirs = [(name, list(shape)) for name, shape in own["parameters"]]
        if [shape for _, shape in mine] != [shape for _, shape in theirs]:
            differing = [pair for pair in zip(mine, theirs, strict=False) if pair[0][1] != pair[1][1]]
            what = f"{differing[0][0]} against {differing[0][1]}" if differing else f"{len(mine)} against {len(theirs)}"
            raise InputError(
                f"expected the state of an optimizer over the same parameters, got that of another model ({what}); "
                "build the model and the groups as they were"
            )
        super().load_state_dict(state_dict)
        self.alpha, self.epsilon, self.seed, self.steps = (own[k] for k in ("alpha", "epsilon", "seed", "steps"))

    def __getstate__(self) -> dict[str, Any]:
        kept = ("fisher", "alpha", "epsilon", "seed", "steps", "last", "_model", "_loss", "_predictive")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in kept}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:  # a copy, with a model of its own
            self._names = {id(value): name for name, value in self._model.named_parameters()}
            self._recorder, self._looked_at, self._told = None, None, set()


def _device(model: nn.Module) -> torch.device | None:
    first = next(model.parameters(), None)
    return None if first is None else first.device
