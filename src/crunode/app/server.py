"""The dashboard's application and its server."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from crunode._extras import need
from crunode.app.access import Access, is_loopback
from crunode.app.board import Board, NotThere, not_there
from crunode.app.catalogue_pages import catalogue
from crunode.app.exact_pages import calculator
from crunode.app.guard import Guard
from crunode.app.job_pages import gallery, recipe_cards, running, running_live, start_recipe, stop_job
from crunode.app.pages import STATIC, message_page, redirect, static_files
from crunode.app.run_pages import change_tags, compare, run_live, show_run
from crunode.errors import CrunodeError, InputError

__all__ = ["create_app", "serve"]

_PAGES: tuple[tuple[str, str, Callable[[Board, Any], Any]], ...] = (
    ("GET", "/", catalogue),
    ("GET", "/compare", compare),
    ("GET", "/exact", calculator),
    ("POST", "/exact", calculator),
    ("GET", "/recipes", gallery),
    ("POST", "/recipes", start_recipe),
    ("GET", "/running", running),
    ("GET", "/running/live", running_live),
    ("POST", "/running/stop", stop_job),
    ("GET", "/run/{key}", show_run),
    ("GET", "/run/{key}/live", run_live),
    ("POST", "/run/{key}/tags", change_tags),
    ("POST", "/sign-in", lambda board, request: redirect("/")),  # of someone who has signed in before
)


def create_app(root: str | os.PathLike[str], access: Access | None = None) -> Any:
    """The dashboard as an ASGI application, for a server of your own.

    Args:
        root: The folder that run folders lie below.
        access: Who may use it; by default anyone on this machine, by a name of loopback.

    Returns:
        The application. What it has started ends with it.

    Raises:
        InputError: `root` is no folder, or itself a run folder.
        MissingExtra: FastAPI or Jinja2 is not installed (extra `app`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     type(create_app(folder)).__name__
        'Guard'
    """
    fastapi = need("fastapi", extra="app")
    need("jinja2", extra="app")
    board = Board.of(Path(root), access or Access())

    @contextlib.asynccontextmanager
    async def life(app: Any) -> AsyncIterator[None]:
        yield
        board.close()

    app = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=life, redirect_slashes=False)
    for method, path, page in _PAGES:
        app.add_route(path, _handler(board, page), methods=[method])
    app.add_route("/static/{name}", _static, methods=["GET"])
    app.add_exception_handler(404, lambda request, error: not_there())
    app.add_exception_handler(405, lambda request, error: not_there())
    app.state.board = board
    return Guard(app, board.access)


def serve(
    root: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the dashboard until it is interrupted.

    Args:
        root: The folder that run folders lie below.
        host: The address to listen at; loopback by default.
        port: The port; 0 for any that is free.
        token: What visitors have to show; made up and said where others can reach the address.
        say: Takes the lines that the user should read.

    Raises:
        InputError: `root` is no folder, the token is too short, or the address cannot be had.
        StoreError: The folder cannot be written.
        MissingExtra: FastAPI, uvicorn or Jinja2 is not installed.
    """
    uvicorn = need("uvicorn", extra="app")
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    with contextlib.closing(_bound(host, port)) as listener:
        here = listener.getsockname()[1]
        app = create_app(root, Access(host, here, token))
        named = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown = f"[{named}]" if ":" in named else named
        given = "" if token is None else f"?token={quote(token)}"
        listener.listen(64)  # before the address is said, so that who goes there at once is not turned away
        say(f"crunode dashboard of {Path(root)}: http://{shown}:{here}/{given}")
        if not is_loopback(host):
            say("Others on the network can reach it; who has the token can start recipes. It speaks plain HTTP.")
        say("Ctrl-C ends it, and the recipes it has started.")
        threading.Thread(target=recipe_cards, daemon=True).start()  # so that the page is quick when it is opened
        limits = {"limit_concurrency": 64, "timeout_keep_alive": 20, "h11_max_incomplete_event_size": 32 * 1024}
        quiet = {"log_level": "warning", "access_log": False, "server_header": False}
        config = uvicorn.Config(app, http="h11", ws="none", lifespan="on", **limits, **quiet)
        uvicorn.Server(config).run(sockets=[listener])


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address, which does not take connections yet."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, for asyncio to switch off the delay that would cost every page 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        reason = error.strerror or error
        raise InputError(f"expected an address to listen at, got {host}:{port}: {reason}; choose another") from error
    return found


def _handler(board: Board, page: Callable[[Board, Any], Any]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        try:
            return page(board, request)
        except NotThere:
            return not_there()
        except CrunodeError as error:
            return message_page(503, "This cannot be shown now", str(error))

    return answer


def _static(request: Any) -> Any:
    name = request.path_params["name"]
    if name not in STATIC:
        return not_there()
    response = need("fastapi.responses", extra="app").Response(static_files()[name], media_type=STATIC[name])
    response.headers["cache-control"] = "public, max-age=86400"
    return response
