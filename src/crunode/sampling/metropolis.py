"""Kernels with a Metropolis test on all data: MALA and HMC. They have no step error, only cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from crunode.errors import InputError
from crunode.sampling.adaptation import begin, learn, reach
from crunode.sampling.kernel import Gradient, Kernel, State, Step
from crunode.sampling.stochastic import check_fields

__all__ = ["HMC", "MALA"]

Energy = Callable[[Tensor, Tensor], Tensor]

# Energy that a trajectory may gain in warm-up, for each direction beyond this many.
_SLACK, _MANY = 0.05, 1000


@dataclass(frozen=True)
class HMC(Kernel):
    """Hamiltonian Monte Carlo with leapfrog steps and a Metropolis test on all data.

    Momenta are standard normal; a trajectory has `leaps` leapfrog steps of size √ε times a random factor, log-uniform
    between 1/`spread` and 1. Singular posteriors have thin arms next to wide middles: no one size suits both, and a
    fixed one sticks in the arms. Stationary for exp(−U(w)) exactly, whatever the step, but for warm-up in more than a
    thousand dimensions, where the test is relaxed.

    Attributes:
        step: ε (the square of the leapfrog step size, to be comparable with SGLD); None to have it tuned.
        leaps: Leapfrog steps in a trajectory.
        spread: Ratio of the largest to the smallest step size in use.
        metric: None for momenta of unit mass. "diagonal" has each chain learn in warm-up a scale for every coordinate
            and a step size that goes with it (`crunode.sampling.adaptation`); `step` is where that begins.

    References:
        Duane et al. 1987; Neal 2011.

    Example:
        >>> HMC(step=0.01, metric="diagonal").leaps
        16
    """

    step: Step = None
    leaps: int = 16
    spread: float = 4.0
    metric: str | None = None
    metropolis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.leaps, bool) or not isinstance(self.leaps, int) or self.leaps < 1:
            raise InputError(f"expected leaps as a positive whole number, got {self.leaps!r}")
        if not self.spread >= 1:
            raise InputError(f"expected spread from 1 up, got {self.spread!r}")
        if self.metric not in (None, "diagonal"):
            raise InputError(f"expected metric as None or 'diagonal', got {self.metric!r}")

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """Gradient and loss at the position; later those of the accepted point are carried along."""
        slope, excess = gradient(w)
        return {"slope": slope, "excess": excess, **(begin(w) if self.metric else {})}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One trajectory and its test, in place."""
        energy = _energy_of(gradient)
        size = step.sqrt() * self.spread ** (-uniform[:, 1:2])
        if self.metric:
            size = size * reach(state, warming)
        start = energy(state["w"], state["excess"]) + 0.5 * noise.square().sum(1, dtype=torch.float64)
        w = state["w"].clone()
        momentum = noise - 0.5 * size * state["slope"]
        slope, excess = state["slope"], state["excess"]
        for leap in range(self.leaps):
            w.addcmul_(momentum, size)
            slope, excess = gradient(w)
            momentum = momentum - (size if leap + 1 < self.leaps else 0.5 * size) * slope
        end = energy(w, excess) + 0.5 * momentum.square().sum(1, dtype=torch.float64)
        # On the way from the center to where most of the density is, the energy error of all directions has one sign,
        # and in many directions no trajectory would pass.
        slack = _SLACK * max(w.shape[1] - _MANY, 0) if warming else 0.0
        row = _test(state, w, slope, excess, start - end, uniform[:, 0], slack)
        if self.metric and warming:
            learn(state, row["accept"])
        return row


@dataclass(frozen=True)
class MALA(Kernel):
    """Metropolis-adjusted Langevin: the SGLD step on all data, accepted or rejected.

    Attributes:
        step: ε; None to have it tuned.

    References:
        Roberts & Tweedie 1996.
    """

    step: Step = None
    metropolis: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """Gradient and loss at the position; later those of the accepted point are carried along."""
        slope, excess = gradient(w)
        return {"slope": slope, "excess": excess}

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One proposal and its test, in place."""
        energy = _energy_of(gradient)
        w = state["w"].addcmul(state["slope"], -0.5 * step).addcmul_(noise, step.sqrt())
        slope, excess = gradient(w)
        back = (state["w"] - w).addcmul_(slope, 0.5 * step)
        forth_term = noise.square().sum(1, dtype=torch.float64)
        back_term = back.square().sum(1, dtype=torch.float64) / step[:, 0]
        gain = energy(state["w"], state["excess"]) - energy(w, excess) + 0.5 * (forth_term - back_term)
        return _test(state, w, slope, excess, gain, uniform[:, 0])


def _energy_of(gradient: Gradient) -> Energy:
    energy: Energy = gradient.energy  # type: ignore[attr-defined]
    return energy


def _test(
    state: State, w: Tensor, slope: Tensor, excess: Tensor, gain: Tensor, uniform: Tensor, slack: float = 0.0
) -> dict[str, Tensor]:
    gain = torch.nan_to_num(gain, nan=-torch.inf)
    chance = gain.clamp(max=0).exp()
    move = (uniform < (gain + slack).clamp(max=0).exp())[:, None]
    state["w"].copy_(torch.where(move, w, state["w"]))
    state["slope"].copy_(torch.where(move, slope, state["slope"]))
    state["excess"].copy_(torch.where(move[:, 0], excess, state["excess"]))
    return {"excess": state["excess"].clone(), "accept": chance.to(w.dtype)}
