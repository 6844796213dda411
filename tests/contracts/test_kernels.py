"""Every kernel passes the conformance suite, and the suite refuses kernels that are wrong."""

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import crunode.sampling
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.nuts import NUTS
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT
from crunode.testing import check_kernel

pytestmark = pytest.mark.heavy

# Other settings than the step may not change the target, so those that matter most come at a second value.
KERNELS = [
    SGLD(),
    PSGLD(),
    PSGLD(damping=1.0),
    SGHMC(),
    SGHMC(friction=0.5),
    SGNHT(),
    SGNHT(diffusion=0.4),
    MALA(),
    HMC(),
    HMC(leaps=5, spread=1.0),
    NUTS(),
    NUTS(metric="diagonal"),
]


def instances():
    return [case if not hasattr(case, "values") else case.values[0] for case in KERNELS]


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_kernel_samples_its_target(kernel):
    check_kernel(kernel)


def test_no_kernel_is_left_out():
    modules = [
        importlib.import_module(f"crunode.sampling.{m.name}") for m in pkgutil.iter_modules(crunode.sampling.__path__)
    ]
    found = {
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__.startswith("crunode.sampling") and hasattr(cls, "advance") and hasattr(cls, "metropolis")
    }
    # Exchange needs a ladder, which tests/oracles/test_exchange_oracle.py holds against exact posteriors on all rungs.
    assert found - {crunode.Exchange} == {type(kernel) for kernel in instances()}


@dataclass(frozen=True)
class DoubledNoise(SGLD):
    """Noise of variance 2ε: twice the temperature."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, noise * 2**0.5, uniform, warming)


@dataclass(frozen=True)
class SlightlyHot(SGLD):
    """A tenth too much variance, which no eye would see in a trace."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, noise * 1.1**0.5, uniform, warming)


@dataclass(frozen=True)
class NoThermostat(SGNHT):
    """A friction that never adapts, with less of it than the noise needs."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        state["friction"].fill_(self.diffusion / 4)
        return super().advance(state, gradient, step, noise, uniform, warming)


@dataclass(frozen=True)
class MisplacedDiffusion(SGNHT):
    """A thermostat that holds the momenta at 2A times their variance: that much too cold."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        w, v, friction = state["w"], state["velocity"], state["friction"]
        slope, excess = gradient(w)
        eta = 0.5 * step
        v.mul_(1 - friction).addcmul_(slope, -eta).addcmul_(noise, 2 * self.diffusion * eta.sqrt())
        w.add_(v)
        friction.add_(v.square().mean(1, keepdim=True) / (2 * self.diffusion * eta) - 1, alpha=self.inertia)
        return {"excess": excess}


@dataclass(frozen=True)
class ShakesFrozen(SGLD):
    """Noise on parameters that are not free."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        for tensor in gradient.land.fixed.values():
            tensor.add_(1e-3 * noise[0, 0])
        return super().advance(state, gradient, step, noise, uniform, warming)


@dataclass(frozen=True)
class SharedNoise(SGLD):
    """One noise vector for all chains."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, noise[:1].expand_as(noise), uniform, warming)


@dataclass(frozen=True)
class CoupledChains(SGLD):
    """Chains that feel one another."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        row = super().advance(state, gradient, step, noise, uniform, warming)
        state["w"].lerp_(state["w"].mean(0, keepdim=True), 1e-3)
        return row


@dataclass(frozen=True)
class OwnRandomness(SGLD):
    """Noise from the global generator."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, torch.randn_like(noise), uniform, warming)


@dataclass(frozen=True)
class KnowsScale(SGLD):
    """A clipped loss gradient: the draws depend on the unit of the loss."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        def clipped(w):
            slope, excess = gradient(w)
            return slope * (1 + 1e-2 * excess[:, None]), excess

        return super().advance(state, clipped, step, noise, uniform, warming)


@dataclass(frozen=True)
class AcceptsAll(MALA):
    """A Metropolis kernel without its test."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, noise, torch.full_like(uniform, -1.0), warming)


@dataclass(frozen=True)
class OffCenter(SGLD):
    """A constant push: right spread, wrong place."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, noise + 0.02, uniform, warming)


@dataclass(frozen=True)
class Diverges(SGLD):
    """Runs uphill."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, lambda w: (-1e3 * gradient(w)[0], gradient(w)[1]), step, noise, uniform, warming)


@dataclass
class NotFrozen:
    step: float | None = None
    metropolis: ClassVar[bool] = False


@dataclass(frozen=True)
class NoAdvance:
    step: float | None = None
    metropolis: ClassVar[bool] = False

    def init(self, w, gradient):
        return {}


WRONG = {
    DoubledNoise(): "variance over its exact value",
    SlightlyHot(): "variance over its exact value|excess loss",
    NoThermostat(): "variance over its exact value",
    MisplacedDiffusion(): "variance over its exact value",
    MisplacedDiffusion(diffusion=0.3): "variance over its exact value",
    ShakesFrozen(): "frozen parameters",
    SharedNoise(): "noise of their own",
    CoupledChains(): "not to depend on the other chains",
    OwnRandomness(): "from the same seed",
    KnowsScale(): "loss times 4",
    AcceptsAll(): "variance over its exact value",
    OffCenter(): "mean, in standard deviations",
    Diverges(): "sampling a Gaussian failed",
    NoAdvance(): "expected a method `advance`",
}


@pytest.mark.parametrize("kernel", WRONG, ids=repr)
def test_wrong_kernel_is_refused(kernel):
    with pytest.raises(AssertionError, match=WRONG[kernel]):
        check_kernel(kernel)


def test_kernel_that_can_change_is_refused():
    with pytest.raises(AssertionError, match="frozen dataclass"):
        check_kernel(NotFrozen())
