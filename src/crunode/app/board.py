"""What all pages share, and the small things that most of them do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crunode.app.access import Access
from crunode.app.forms import Fields
from crunode.app.jobs import Jobs
from crunode.app.pages import message_page, render
from crunode.app.run_index import RunIndex
from crunode.errors import InputError
from crunode.reporting.views import stated
from crunode.store.catalog_query import RunEntry
from crunode.store.run_numbers import Number

__all__ = ["Board", "NotThere", "fields_of", "form_of", "not_there", "result_words", "verdict_of"]


class NotThere(Exception):
    """What was asked for is not there."""


@dataclass(frozen=True)
class Board:
    """One dashboard.

    Attributes:
        runs: Its runs.
        jobs: Recipes that it has started.
        access: Who may use it.
        root: The folder of runs, as the user calls it.
    """

    runs: RunIndex
    jobs: Jobs
    access: Access
    root: Path

    @classmethod
    def of(cls, root: str | Path, access: Access) -> Board:
        """The dashboard of a folder of runs."""
        runs = RunIndex(root)
        return cls(runs, Jobs(runs.catalog.root, Path(root)), access, Path(root))

    def page(self, template: str, status: int = 200, **content: Any) -> Any:
        """A page with what every form on it needs."""
        return render(template, status, form_token=self.access.form_token(), **content)

    def name_of(self, key: str) -> str:
        """The run that a key in an address stands for.

        Raises:
            NotThere: There is none.
        """
        name = self.runs.name(key)
        if name is None:
            raise NotThere
        try:
            self.runs.catalog.path(name)
        except InputError as error:
            raise NotThere from error
        return name

    def close(self) -> None:
        """End what was started."""
        self.jobs.close()
        self.runs.close()


def verdict_of(ok: bool | None) -> tuple[str, str]:
    """Word and color for whether results can be trusted.

    Example:
        >>> verdict_of(True), verdict_of(None)
        (('ok', 'good'), ('–', 'none'))
    """
    return ("–", "none") if ok is None else ("ok", "good") if ok else ("not ok", "bad")


def result_words(run: RunEntry) -> str:
    """The result of a run in a list: its number with its errors as the command line has them, or what it says."""
    if run.value is None:
        return run.summary
    return stated(Number(run.subject, run.value, run.se, run.systematic, True))


def fields_of(request: Any) -> Fields:
    """The query of a request."""
    found: Fields = request.scope["crunode.query"]
    return found


def form_of(request: Any) -> Fields:
    """The form that a request sends."""
    found: Fields = request.scope["crunode.form"]
    return found


def not_there() -> Any:
    """The answer for what is not there."""
    return message_page(404, "Not there", "There is no such page or run. It may have been removed.")
