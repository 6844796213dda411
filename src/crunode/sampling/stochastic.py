"""Kernels that follow minibatch gradients: SGLD, preconditioned SGLD, SGHMC, SGNHT.

All sample exp(−U(w)) with U(w) = nβ L(w) + (γ/2)‖w − μ‖², up to an error of the order of the step. `step` is the
variance of the noise that plain Langevin dynamics adds in one step (ε), for all of them.

They set `one_gradient`: a gradient is done with before the next one is asked for, so that all may use the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from crunode.errors import InputError
from crunode.sampling.kernel import Gradient, Kernel, State, Step
from crunode.sampling.posterior import positive

__all__ = ["PSGLD", "SGHMC", "SGLD", "SGNHT", "check_fields"]


def check_fields(kernel: Kernel) -> None:
    """Refuse steps that are not positive and batches that are not whole."""
    steps = kernel.step if isinstance(kernel.step, tuple) else (kernel.step,)
    for value in steps:
        if value is not None:
            positive("step", value)
    batch = kernel.batch
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(f"expected batch as a positive whole number, got {batch!r}; leave it out to have it chosen")
    control = kernel.control
    if control is not None and not isinstance(control, bool):
        raise InputError(f"expected control as True or False, got {control!r}; leave it out to have it chosen")


@dataclass(frozen=True)
class SGLD(Kernel):
    """Stochastic gradient Langevin dynamics: w ← w − (ε/2) ∇U(w) + N(0, ε).

    Attributes:
        step: ε, one number or one per level of nbeta; None to have it tuned.
        batch: Examples per minibatch; None to have it chosen.
        control: Take away the noise that minibatches have at the center; None to have it chosen with the step.

    References:
        Welling & Teh 2011; Lau et al. 2023 for its use on learning coefficients.

    Example:
        >>> SGLD(step=1e-4, batch=64)
        SGLD(step=0.0001, batch=64)
    """

    step: Step = None
    batch: int | None = None
    control: bool | None = field(default=None, repr=False, kw_only=True)
    metropolis: ClassVar[bool] = False
    one_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """State besides the position: none."""
        return {}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step in place; returns what is recorded: the excess loss at the position left."""
        w = state["w"]
        slope, excess = gradient(w)
        w.addcmul_(slope, step, value=-0.5).addcmul_(noise, step.sqrt())
        return {"excess": excess}


@dataclass(frozen=True)
class PSGLD(Kernel):
    """SGLD with a diagonal preconditioner G = 1/(√V + δ) from an RMSprop average V of squared gradients.

    w ← w − (ε/2) G ∇U(w) + N(0, ε G), with G scaled to mean 1. V adapts in warm-up only and then stays fixed, so that
    kept draws follow plain Langevin dynamics in rescaled coordinates and no correction term for a moving G is missing.

    Attributes:
        step: ε; None to have it tuned.
        batch: Examples per minibatch; None to have it chosen.
        control: Take away the noise that minibatches have at the center; None to have it chosen with the step.
        decay: Memory of the RMSprop average.
        damping: δ, relative to the root mean square of √V.

    References:
        Li et al. 2016.
    """

    step: Step = None
    batch: int | None = None
    control: bool | None = field(default=None, repr=False, kw_only=True)
    decay: float = 0.99
    damping: float = 0.1
    metropolis: ClassVar[bool] = False
    one_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """Zero average."""
        return {"average": torch.zeros_like(w), "count": torch.zeros_like(w[:, :1])}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step in place."""
        w, average = state["w"], state["average"]
        slope, excess = gradient(w)
        if warming:
            average.mul_(self.decay).addcmul_(slope, slope, value=1 - self.decay)
            state["count"].add_(1)
        seen = state["count"] > 0
        root = average.sqrt()
        scale = root.square().mean(1, keepdim=True).sqrt()
        metric = (root + self.damping * scale + 1e-30).reciprocal()
        metric = torch.where(seen, metric / metric.mean(1, keepdim=True), 1.0)
        w.addcmul_(slope * metric, -0.5 * step).addcmul_(noise, (step * metric).sqrt())
        return {"excess": excess}


@dataclass(frozen=True)
class SGHMC(Kernel):
    """Stochastic gradient Hamiltonian Monte Carlo: Langevin dynamics with momentum.

    With η = ε/2 and friction α: v ← (1−α) v − η ∇U(w) + N(0, 2αη), w ← w + v. For small η the positions then have the
    right variance at any friction, the velocities η/(1 − α/2).

    Attributes:
        step: ε; None to have it tuned.
        batch: Examples per minibatch; None to have it chosen.
        control: Take away the noise that minibatches have at the center; None to have it chosen with the step.
        friction: α between 0 and 1.

    References:
        Chen, Fox & Guestrin 2014.
    """

    step: Step = None
    batch: int | None = None
    control: bool | None = field(default=None, repr=False, kw_only=True)
    friction: float = 0.1
    metropolis: ClassVar[bool] = False
    one_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.friction < 1:
            raise InputError(f"expected friction between 0 and 1, got {self.friction}")

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """At rest."""
        return {"velocity": torch.zeros_like(w)}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step in place."""
        w, v = state["w"], state["velocity"]
        slope, excess = gradient(w)
        eta = 0.5 * step
        v.mul_(1 - self.friction).addcmul_(slope, -eta)
        v.addcmul_(noise, (2 * self.friction * eta).sqrt())
        w.add_(v)
        return {"excess": excess}


@dataclass(frozen=True)
class SGNHT(Kernel):
    """Stochastic gradient Nosé–Hoover thermostat: friction that adapts until the momenta have the right temperature.

    With η = ε/2: v ← (1−ξ) v − η ∇U(w) + N(0, 2Aη), w ← w + v, ξ ← ξ + (1 − ξ/2)‖v‖²/(dη) − 1 (times `inertia`).
    Unknown minibatch noise is absorbed by ξ, since velocities are held at variance η/(1 − ξ/2), which gives positions
    theirs, whatever heats them.

    Attributes:
        step: ε; None to have it tuned.
        batch: Examples per minibatch; None to have it chosen.
        control: Take away the noise that minibatches have at the center; None to have it chosen with the step.
        diffusion: A, the injected noise and the friction to start from.
        inertia: Speed of the thermostat.

    References:
        Ding et al. 2014.
    """

    step: Step = None
    batch: int | None = None
    control: bool | None = field(default=None, repr=False, kw_only=True)
    diffusion: float = 0.1
    inertia: float = 0.02
    metropolis: ClassVar[bool] = False
    one_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        positive("diffusion", self.diffusion)
        positive("inertia", self.inertia)

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """At rest, with the friction that balances the injected noise."""
        return {"velocity": torch.zeros_like(w), "friction": torch.full_like(w[:, :1], self.diffusion)}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step in place."""
        w, v, friction = state["w"], state["velocity"], state["friction"]
        slope, excess = gradient(w)
        eta = 0.5 * step
        v.mul_(1 - friction).addcmul_(slope, -eta).addcmul_(noise, (2 * self.diffusion * eta).sqrt())
        w.add_(v)
        heat = v.square().mean(1, keepdim=True) * (1 - 0.5 * friction) / eta
        friction.add_(heat - 1, alpha=self.inertia)
        return {"excess": excess}
