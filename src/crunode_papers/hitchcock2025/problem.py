"""`Problem`: a landscape to be built, with the exact value of what is to be estimated there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from crunode import InputError, Landscape
from crunode.exact import LearningCoefficient

__all__ = ["TARGETS", "Problem"]

TARGETS = ("local", "basin")


@dataclass(frozen=True)
class Problem:
    """A case of the benchmark. It holds no data; `landscape()` builds them.

    Attributes:
        name: Unique in the benchmark.
        kind: Its class, such as "1K" or "reference".
        seed: Network, data and chains come from it.
        builder: Called with (n, device, seed=seed), gives the landscape.
        local: The exact coefficient at the weights.
        whole: The exact coefficient of the model, the least over all parameters that realise the truth; None where no
            theorem gives it.
        dim: Number of parameters.
        n: Number of examples.
        widths: Widths of the network's layers from input to output, if it is one.
        ranks: Ranks of the layers of a deep linear network, in the same order.
        activation: Of the hidden units: "linear", "square", "tanh", "relu"; None where there is no network.

    Example:
        >>> from crunode.exact import regular
        >>> from crunode.examples import quadratic
        >>> problem = Problem("bowl", "toys", 0, lambda n, device, seed: quadratic(3, n=n), regular(3), None, 3, 1000)
        >>> problem.truth("local"), problem.landscape().n
        (Fraction(3, 2), 1000)
    """

    name: str
    kind: str
    seed: int
    builder: Callable[..., Landscape]
    local: LearningCoefficient
    whole: LearningCoefficient | None
    dim: int
    n: int
    widths: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    activation: str | None = None

    def landscape(self, device: torch.device | str | None = None) -> Landscape:
        """Build it on `device` (the CPU by default)."""
        land = self.builder(self.n, device, seed=self.seed)
        assert (land.dim, land.n) == (self.dim, self.n), f"{self.name} is not what it says"
        return land

    def with_examples(self, n: int | None) -> Problem:
        """The same with at most `n` examples; None leaves it as it is."""
        if n is None:
            return self
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"expected examples as a positive whole number, got {n!r}")
        return replace(self, n=min(n, self.n))

    def truth(self, target: str = "local") -> Fraction | None:
        """The exact value of what is asked for: "local" at the weights, "basin" the least of the model.

        A chain that may leave the neighborhood of the weights along the zeros of the loss finds the latter.
        """
        if target not in TARGETS:
            raise InputError(f"expected target as 'local' or 'basin', got {target!r}")
        found = self.local if target == "local" else self.whole
        return None if found is None else found.value

    def summary(self) -> dict[str, Any]:
        """What is known beforehand, as JSON-able values."""
        return {
            "problem": self.name,
            "class": self.kind,
            "seed": self.seed,
            "widths": list(self.widths),
            "ranks": list(self.ranks),
            "dim": self.dim,
            "n": self.n,
            "local": str(self.local.value),
            "multiplicity": self.local.multiplicity,
            "global": None if self.whole is None else str(self.whole.value),
        }
