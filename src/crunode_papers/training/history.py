"""What a training looked like, epoch by epoch."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from crunode import Finding, InputError

__all__ = ["History"]

_NOT_COLUMNS = ("measured", "findings", "spec", "seed", "provenance")


@dataclass(frozen=True)
class History:
    """Columns with one entry for each epoch; None where something was not measured.

    Attributes:
        epoch: Epochs, from 1.
        step: Steps of the optimizer up to the end of the epoch.
        loss: Mean over the epoch's examples of the training loss, each batch at the weights of its step.
        validation_loss: Mean loss of the validation data after the epoch.
        validation_accuracy: Part of it whose class was found.
        update_norm: Mean over the batches of ‖Δw‖/lr, the length of the direction that the optimizer went
            (Saghir 2024, section 2.1).
        gradient_norm: Mean over the batches of ‖∇L‖.
        rate: Learning rate of the first parameter group.
        seconds: Wall time of the epoch's steps, without validation, callbacks and checkpoints.
        measured: What `on_epoch` returned, by name.
        findings: What was noticed.
        spec: Settings, as JSON-able values.
        seed: The seed all randomness came from.
        provenance: Versions and source state.

    Example:
        >>> history = History.of([{"epoch": 1, "step": 10, "loss": 0.5}, {"epoch": 2, "step": 20, "loss": 0.25}])
        >>> history.loss, history.validation_loss, len(history)
        ([0.5, 0.25], [None, None], 2)
        >>> History.from_dict(history.to_dict()) == history
        True
    """

    epoch: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    validation_loss: list[float | None] = field(default_factory=list)
    validation_accuracy: list[float | None] = field(default_factory=list)
    update_norm: list[float | None] = field(default_factory=list)
    gradient_norm: list[float | None] = field(default_factory=list)
    rate: list[float | None] = field(default_factory=list)
    seconds: list[float | None] = field(default_factory=list)
    measured: dict[str, list[Any]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.epoch)

    def __str__(self) -> str:
        if not self.epoch:
            return "no epochs"
        parts = [f"{len(self)} epochs, {self.step[-1]} steps", f"loss {self.loss[-1]:.4g}"]
        if self.validation_loss[-1] is not None:
            parts.append(f"validation loss {self.validation_loss[-1]:.4g}")
        if self.validation_accuracy[-1] is not None:
            parts.append(f"accuracy {self.validation_accuracy[-1]:.2%}")
        return " | ".join(parts)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each epoch, what was measured beside the rest.

        Example:
            >>> History.of([{"epoch": 1, "step": 4, "loss": 0.5, "trace": 3.0}]).rows()[0]["trace"]
            3.0
        """
        columns = {**{name: getattr(self, name) for name in _columns()}, **self.measured}
        return [{name: column[k] for name, column in columns.items()} for k in range(len(self))]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], **rest: Any) -> History:
        """A history from its rows; names that are no columns go to `measured`."""
        names = _columns()
        others = dict.fromkeys(key for row in rows for key in row if key not in names)
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        return cls(**columns, measured={name: [row.get(name) for row in rows] for name in others}, **rest)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values that share nothing with this history."""
        content = {f.name: copy.deepcopy(getattr(self, f.name)) for f in fields(self)}
        return {**content, "findings": [asdict(finding) for finding in self.findings]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> History:
        """Inverse of `to_dict`.

        Raises:
            InputError: The content is not that of a history.
        """
        try:
            findings = tuple(Finding(**finding) for finding in content["findings"])
            made = cls(**{**content, "findings": findings})
            lengths = {len(column) for column in [getattr(made, name) for name in _columns()]}
            lengths |= {len(column) for column in made.measured.values()}
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"expected the content of a history as to_dict gives it, got one that does not fit ({error}); was it "
                "written by another version?"
            ) from error
        if len(lengths) > 1:
            raise InputError(f"expected columns of one length in a history, got lengths {sorted(lengths)}")
        return made


def _columns() -> tuple[str, ...]:
    return tuple(f.name for f in fields(History) if f.name not in _NOT_COLUMNS)
