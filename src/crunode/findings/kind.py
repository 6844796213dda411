"""`FindingKind`: what a finding code means. `Remedy`: what to do about it, in Python or on the command line."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FindingKind", "Remedy"]


@dataclass(frozen=True)
class Remedy:
    """What to do about something.

    Attributes:
        text: In words; {} stands for how it is asked for, where that is not the same everywhere.
        call: That in Python.
        option: That on the command line.

    Example:
        >>> remedy = Remedy("Train longer, or {}.", "give polish=True", "add --set polish=true")
        >>> str(remedy), remedy.on_command_line
        ('Train longer, or give polish=True.', 'Train longer, or add --set polish=true.')
    """

    text: str
    call: str = ""
    option: str = ""

    def __str__(self) -> str:
        return self.text.replace("{}", self.call)

    @property
    def on_command_line(self) -> str:
        """The words for who typed a command."""
        return self.text.replace("{}", self.option)


@dataclass(frozen=True)
class FindingKind:
    """What a finding code means; `severity` "error" makes an estimate not ok.

    The last three are those of its `remedy`.
    """

    code: str
    title: str
    severity: str
    meaning: str
    text: str
    call: str = ""
    option: str = ""

    @property
    def remedy(self) -> Remedy:
        """What to do about it."""
        return Remedy(self.text, self.call, self.option)
