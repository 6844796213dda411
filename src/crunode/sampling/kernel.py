"""What a sampler is to the rest of the package: `Kernel`, which all of them derive from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from crunode.core.result import Finding

__all__ = ["Gradient", "Kernel", "State", "Step", "has_setting"]

Gradient = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Slope and excess of nβ L(w) + (γ/2)‖w − μ‖² at points, one row a chain."""

State = dict[str, Tensor]
"""The position "w" and what the kernel keeps beside it, one row a chain."""

Step = float | tuple[float, ...] | None
"""ε, one number or one for each level of nbeta; None to have it tuned."""


class Kernel(Protocol):
    """A transition that leaves exp(−nβ L(w) − (γ/2)‖w − μ‖²) as it is, exactly or up to the order of its step.

    A kernel is a frozen dataclass that derives from this class. It has to give `step`, `metropolis`, `init` and
    `advance`; what else there is has a default here.

    Attributes:
        metropolis: Whether it has a Metropolis test, and so needs the loss on all data.
        one_gradient: Whether a gradient is done with before the next one is asked for.
        ladder: Whether chains of all levels of nbeta run as one group.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    metropolis: ClassVar[bool]
    one_gradient: ClassVar[bool] = False
    ladder: ClassVar[bool] = False

    @property
    def step(self) -> Step:
        """ε."""
        ...

    @property
    def batch(self) -> int | None:
        """Examples per minibatch; None for all, or to have it chosen."""
        return None

    @property
    def control(self) -> bool | None:
        """Whether the noise that minibatches have at the center is taken away."""
        return None

    @property
    def leaps(self) -> int:
        """Gradients that a step takes."""
        return 1

    @property
    def uniforms(self) -> int:
        """Uniform numbers that a step takes."""
        return 2

    @property
    def core(self) -> Kernel:
        """The kernel on each level of nbeta: itself, but for one around another."""
        return self

    def init(self, w: Tensor, gradient: Gradient) -> State:
        """What it keeps beside the positions `w`."""
        ...

    def advance(
        self, state: State, gradient: Gradient, step: Tensor, noise: Tensor, uniform: Tensor, warming: bool
    ) -> dict[str, Tensor]:
        """One step in place; returns what is recorded, the "excess" of the loss among it."""
        ...

    def findings(self, arrays: Mapping[str, np.ndarray]) -> tuple[Finding, ...]:
        """What the kernel itself notices in its draws."""
        return ()


def has_setting(kernel: Kernel, name: str) -> bool:
    """Whether a kernel has a setting of that name.

    Example:
        >>> from crunode.sampling.stochastic import SGLD
        >>> has_setting(SGLD(), "batch"), has_setting(SGLD(), "leaps")
        (True, False)
    """
    return any(field.name == name for field in dataclasses.fields(kernel))
