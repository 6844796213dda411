"""The one place that knows how `llc`, `sweep` and recipes are called by text: of a command, a job file, or a rerun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.jobs.loading import landscape_from, options_of, weights_from
from crunode.jobs.recipe import Run
from crunode.jobs.registry import recipe

if TYPE_CHECKING:
    from crunode.estimators.sweep_result import Sweep

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """A call that text can name.

    Attributes:
        kind: "llc", "sweep" or "recipe".
        subject: The `module:factory` of a landscape, or the name of a recipe.
        seed: All randomness comes from it.
        settings: Of an estimate or a sweep, by name, as `crunode.jobs.loading.options_of` takes them.
        weights: File with weights to look at instead of those of the landscape.
        size: Of a recipe.
        axes: Values for steps, precisions and nbetas of a sweep; one without any is left to the sweep.

    Example:
        >>> Call("recipe", "toy-volumes", size="tiny").make(None)
        Traceback (most recent call last):
        crunode.errors.InputError: expected size among toy, paper, got 'tiny'
    """

    kind: str
    subject: str
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Path | None = None
    size: str = "toy"
    axes: Mapping[str, Sequence[float] | None] = field(default_factory=dict)

    def landscape(self) -> Landscape:
        """The landscape that is meant; makes it, which runs the code of its factory."""
        land = landscape_from(self.subject)
        return land if self.weights is None else land.at(weights_from(self.weights))

    def make(self, store: Path | None, executor: Executor | None = None) -> Estimate | Sweep | Run:
        """Make the call.

        Args:
            store: The run folder; None for none.
            executor: Where work runs; the numbers do not depend on it.
        """
        if self.kind == "recipe":
            return recipe(self.subject).run(self.size, self.seed, store, executor)
        return (self.sweep if self.kind == "sweep" else self.estimate)(store, executor)

    def estimate(self, store: Path | None, executor: Executor | None = None) -> Estimate:
        """Call `llc`; an estimate that failed is returned with its findings."""
        from crunode.estimators.coefficient import llc

        options = {**options_of(self.settings), "store": store, "executor": executor}
        return llc(self.landscape(), seed=self.seed, on_failure="return", **options)

    def sweep(self, store: Path | None, executor: Executor | None = None) -> Sweep:
        """Call `sweep`."""
        from crunode.estimators.sweeps import sweep

        options = {**options_of(self.settings), "store": store, "executor": executor}
        options |= {name: values or None for name, values in self.axes.items()}
        return sweep(self.landscape(), seed=self.seed, **options)
