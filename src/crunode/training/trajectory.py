"""`Trajectory`: estimates over the steps of a training."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crunode.core.result import Estimate, Finding
from crunode.errors import InputError
from crunode.store.documents import plain, read_document, write_document
from crunode.training.basins import BasinComparison, free_energy_comparison
from crunode.training.probes import has_failed
from crunode.training.transitions import Transitions, find_transitions

__all__ = ["Trajectory", "Visit"]

_FORMAT, _VERSION = "crunode-trajectory", 1


@dataclass(frozen=True)
class Visit:
    """What was measured at one step.

    Attributes:
        step: The step.
        loss: L_n there; nan where it was not finite.
        weights: SHA-256 of the free parameters.
        estimates: By the name of the probe.
    """

    step: int
    loss: float
    weights: str
    estimates: Mapping[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        found = {name: estimate.to_dict() for name, estimate in self.estimates.items()}
        return {"step": self.step, "loss": self.loss, "weights": self.weights, "estimates": found}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Visit:
        """Inverse of `to_dict`.

        Example:
            >>> visit = Visit(5, 0.25, "", {"llc": Estimate("llc", 2.0, se=0.1)})
            >>> Visit.from_dict(visit.to_dict()) == visit
            True
        """
        try:
            found = {str(name): Estimate.from_dict(each) for name, each in content["estimates"].items()}
            return cls(int(content["step"]), float(content["loss"]), str(content["weights"]), found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"expected the content of a visit as to_dict gives it, got another ({error})") from error


@dataclass(frozen=True)
class Trajectory:
    """Estimates over training steps, one column for each probe.

    Attributes:
        visits: What was measured, step after step.
        names: Names of the probes.
        n: Examples behind the loss.
        findings: What was noticed about the whole.
        spec: Settings, as JSON-able values.
        seed: The seed all randomness came from.

    Example:
        >>> kept = [Visit(k, 1.0, "", {"llc": Estimate("llc", 5.0 - k, se=0.1)}) for k in range(3)]
        >>> found = Trajectory(tuple(kept), ("llc",), n=100)
        >>> found.steps, found.values("llc").tolist(), found.ok("llc").all()
        ((0, 1, 2), [5.0, 4.0, 3.0], np.True_)
        >>> print(found)
        3 visits, steps 0 to 2 | llc 5 to 3 | ok
    """

    visits: tuple[Visit, ...]
    names: tuple[str, ...]
    n: int
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        steps = [visit.step for visit in self.visits]
        if any(a >= b for a, b in itertools.pairwise(steps)):
            raise InputError(f"expected visits in ascending order of steps, got steps {steps[:12]}")
        odd = [visit.step for visit in self.visits if set(visit.estimates) != set(self.names)]
        if odd:
            raise InputError(f"expected estimates of {list(self.names)} at every step, got others at steps {odd[:12]}")

    def __len__(self) -> int:
        return len(self.visits)

    def __getitem__(self, name: str) -> tuple[Estimate, ...]:
        self._check_name(name)
        return tuple(visit.estimates[name] for visit in self.visits)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps, ascending."""
        return tuple(visit.step for visit in self.visits)

    @property
    def loss(self) -> NDArray[np.float64]:
        """L_n at each step."""
        return np.array([visit.loss for visit in self.visits], dtype=np.float64)

    def values(self, name: str) -> NDArray[np.float64]:
        """The values of a probe; nan where it failed."""
        return np.array([estimate.value for estimate in self[name]], dtype=np.float64)

    def errors(self, name: str) -> NDArray[np.float64]:
        """Their Monte-Carlo standard errors."""
        return np.array([estimate.se for estimate in self[name]], dtype=np.float64)

    def ok(self, name: str) -> NDArray[np.bool_]:
        """Where the estimates are ok."""
        return np.array([estimate.ok for estimate in self[name]], dtype=bool)

    def failures(self) -> list[tuple[int, str, str]]:
        """Step, probe and error text of everything that failed."""
        return [
            (visit.step, name, str(estimate.diagnostics.get("error", "")))
            for visit in self.visits
            for name, estimate in visit.estimates.items()
            if has_failed(estimate)
        ]

    def at(self, step: int) -> Visit:
        """What was measured at a step.

        Raises:
            InputError: Nothing was.
        """
        for visit in self.visits:
            if visit.step == step:
                return visit
        raise InputError(f"expected one of the visited steps {_short(self.steps)}, got {step}")

    def transitions(
        self,
        name: str,
        *,
        kind: str | None = None,
        scale: str = "log",
        alarm: float = 0.05,
        level: float = 0.95,
        only_ok: bool = True,
        seed: int = 0,
    ) -> Transitions:
        """Change points of a column, with intervals; its plateaus, maxima and minima. See `find_transitions`.

        Args:
            name: The probe.
            kind: "level", "linear", or None to choose.
            scale: "log" for lines in log(1 + step), "step" for lines in the step.
            alarm: Chance of a change point where there is none.
            level: Chance of an interval to hold the change.
            only_ok: Leave out estimates that are not ok. False leaves out failures only.
            seed: All randomness comes from it.

        Raises:
            InputError: There are fewer than six estimates to use.
        """
        used = [k for k, e in enumerate(self[name]) if (e.ok if only_ok else _is_number(e))]
        steps = [self.steps[k] for k in used]
        if len(used) < 6:
            hint = "; only_ok=False takes those too that have findings against them" if only_ok else ""
            raise InputError(
                f"expected at least 6 estimates of {name!r} to look for changes in, got {len(used)} of {len(self)} "
                f"visits that can be used{hint}"
            )
        settings: dict[str, Any] = {"kind": kind, "scale": scale, "alarm": alarm, "level": level, "seed": seed}
        return find_transitions(steps, self.values(name)[used], self.errors(name)[used], name=name, **settings)

    def free_energy_comparison(self, a: int, b: int, name: str = "llc") -> BasinComparison:
        """Which of two visited steps a Bayesian prefers, and from which n on. See `free_energy_comparison`.

        Args:
            a: A step.
            b: Another one.
            name: The column with learning coefficients.
        """
        self._check_name(name)
        one, other = self.at(a), self.at(b)
        return free_energy_comparison(
            one.loss, one.estimates[name], other.loss, other.estimates[name], n=self.n, names=(f"step {a}", f"step {b}")
        )

    def plot(self, names: Sequence[str] | None = None, *, transitions: bool = True) -> Any:
        """The columns with error bars, change points and failures, as a matplotlib figure (extra `plot`)."""
        # Drawing lives beside this layer; results only know how to ask for it.
        module = importlib.import_module("crunode.reporting.trajectory_plots")
        return module.plot_trajectory(self, names, transitions=transitions)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {
            "names": list(self.names),
            "n": self.n,
            "seed": self.seed,
            "spec": dict(self.spec),
            "findings": [asdict(finding) for finding in self.findings],
            "visits": [visit.to_dict() for visit in self.visits],
            "ok": self.is_ok,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Trajectory:
        """Inverse of `to_dict`.

        Raises:
            InputError: The content is not that of a trajectory.
        """
        try:
            visits = tuple(Visit.from_dict(each) for each in content["visits"])
            findings = tuple(Finding(**each) for each in content["findings"])
            names = tuple(str(name) for name in content["names"])
            return cls(visits, names, int(content["n"]), findings, dict(content["spec"]), content["seed"])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"expected the content of a trajectory as to_dict gives it, got one that does not fit ({error})"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as one JSON file with a checksum."""
        write_document(Path(path).absolute(), _FORMAT, _VERSION, plain(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trajectory:
        """Inverse of `save`.

        Raises:
            StoreError: The file is missing, corrupt, or something else.

        Example:
            >>> import tempfile
            >>> found = Trajectory((Visit(1, 0.5, "", {"llc": Estimate("llc", 2.0, se=0.1)}),), ("llc",), n=10)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     found.save(Path(folder, "a.json"))
            ...     Trajectory.load(Path(folder, "a.json")) == found
            True
        """
        return cls.from_dict(read_document(Path(path).absolute(), _FORMAT, _VERSION))

    @property
    def is_ok(self) -> bool:
        """True when there are visits and every estimate is ok."""
        return bool(self.visits) and all(e.ok for visit in self.visits for e in visit.estimates.values())

    def table(self) -> str:
        """One line for each visit, and what failed."""
        width = max(14, *(len(name) + 2 for name in self.names)) if self.names else 14
        lines = ["step".rjust(10) + "loss".rjust(12) + "".join(name.rjust(width + 8) for name in self.names)]
        for visit in self.visits:
            cells = "".join(_cell(visit.estimates[name]).rjust(width + 8) for name in self.names)
            lines.append(f"{visit.step:>10}{visit.loss:>12.4g}{cells}")
        lines += [f"{name} failed at step {step}: {text.splitlines()[0]}" for step, name, text in self.failures()]
        return "\n".join([*lines, *(str(finding) for finding in self.findings)])

    def __str__(self) -> str:
        if not self.visits:
            return "no visits"
        count = f"{len(self)} visit{'s' if len(self) > 1 else ''}, steps {self.steps[0]} to {self.steps[-1]}"
        ranges = [f"{name} {self[name][0].value:.3g} to {self[name][-1].value:.3g}" for name in self.names]
        doubtful = sum(not e.ok for visit in self.visits for e in visit.estimates.values())
        return " | ".join([count, *ranges, "ok" if not doubtful else f"{doubtful} estimates not ok"])

    def _check_name(self, name: str) -> None:
        if name not in self.names:
            raise InputError(f"expected one of the probes {list(self.names)}, got {name!r}")


def _is_number(estimate: Estimate) -> bool:
    return bool(np.isfinite(estimate.value + estimate.se)) and not has_failed(estimate)


def _cell(estimate: Estimate) -> str:
    if has_failed(estimate):
        return "failed"
    return f"{estimate.value:.4g} ± {estimate.error:.2g}" + ("" if estimate.ok else " ?")


def _short(steps: Sequence[int]) -> str:
    return f"{list(steps[:8])}{' …' if len(steps) > 8 else ''}"
