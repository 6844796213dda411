"""Pages as answers: templates of this package in the frame that all pages share."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from importlib import resources
from typing import TYPE_CHECKING, Any

from crunode._extras import need
from crunode.reporting.fragments import asset, environment
from crunode.store.atomic import digest

if TYPE_CHECKING:
    from crunode.app.access import Access

__all__ = ["STATIC", "message_page", "piece", "redirect", "render", "sign_in_page", "static_files", "when"]

STATIC = {"page.css": "text/css", "page.js": "text/javascript", "app.css": "text/css", "app.js": "text/javascript"}
"""Files that pages load, and their kinds: the first two are those of reports."""


def render(template: str, status: int = 200, **content: Any) -> Any:
    """An answer with a page; text is bounded, freed of control characters and escaped on its way into it.

    Args:
        template: A template of this package.
        status: The status of the answer.
        content: What the template needs; `title` at least, and `here` for the part of the site.

    Raises:
        MissingExtra: FastAPI or Jinja2 is not installed.
    """
    responses = need("fastapi.responses", extra="app")
    return responses.HTMLResponse(_environment().get_template(template).render(content), status_code=status)


def piece(template: str, **content: Any) -> Any:
    """A part of a page, to be put into another.

    Example:
        >>> "3 of 9 cells" in piece("bar.html.j2", done=3, total=9, unit="cells", label="a run")
        True
    """
    return need("markupsafe", extra="app").Markup(_environment().get_template(template).render(content))


def message_page(status: int, title: str, words: str) -> Any:
    """An answer that says why there is no page."""
    return render("message.html.j2", status, title=title, words=words)


def sign_in_page(access: Access, wrong: bool) -> Any:
    """The page that asks for the token."""
    form_token = access.form_token(signed_in=False)
    return render("sign_in.html.j2", 401, title="Sign in", wrong=wrong, form_token=form_token)


def redirect(address: str) -> Any:
    """An answer to a form that leads to a page of this server."""
    return need("fastapi.responses", extra="app").RedirectResponse(address, status_code=303)


@functools.cache
def static_files() -> dict[str, bytes]:
    """The files of `STATIC` by name.

    Example:
        >>> sorted(static_files())
        ['app.css', 'app.js', 'page.css', 'page.js']
    """
    return {name: (asset(name) if name.startswith("page.") else _own(name)).encode() for name in STATIC}


def when(seconds: float) -> str:
    """A time since 1970 as a day and a minute.

    Example:
        >>> when(0)
        '1970-01-01 00:00'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _own(name: str) -> str:
    return resources.files("crunode.app").joinpath("templates", name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Any:
    found = environment(_own, "app")
    # Part of the address of a file, so that browsers ask for it again when it has changed.
    found.globals["marks"] = {name: digest(data)[:12] for name, data in static_files().items()}
    found.globals["when"] = when
    found.globals["here"] = ""
    return found
