"""What stands before every page: checks on the request, and the headers of every answer."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from crunode.app.access import Access
from crunode.app.forms import LONGEST_BODY, LONGEST_QUERY, Fields
from crunode.app.pages import message_page, render, sign_in_page
from crunode.errors import InputError

__all__ = ["HEADERS", "Guard"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer", with which browsers hide the origin of forms too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""

_SIGN_IN = "/sign-in"
_log = logging.getLogger("crunode.app")


class Guard:
    """An ASGI application that lets good requests through to another.

    A form is read and checked here; pages find it in the scope under "crunode.form", and the query under
    "crunode.query".

    Args:
        app: The other.
        access: The rules.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                own = {name for name, _ in message.get("headers", ())}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
                if b"cache-control" not in own:
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        try:
            refused = await self._checked(scope, receive)
            if refused is None:
                await self.app(scope, receive, send_guarded)
            else:
                await refused(scope, receive, send_guarded)
        except Exception:
            _log.exception("a request failed: %s", scope["path"][:200].encode("ascii", "replace").decode())
            if not begun:
                page = message_page(500, "Something went wrong", "The server's log says more; other pages still work.")
                await page(scope, receive, send_guarded)

    async def _checked(self, scope: Scope, receive: Receive) -> Any:
        """None for a request that may pass, else the answer to it."""
        access, method = self.access, scope["method"]
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key = name.decode("latin-1").lower()
            if key == "cookie" and key in headers:
                headers[key] += "; " + value.decode("latin-1")
            elif key in headers and key in ("host", "origin", "content-length", "content-type", "sec-fetch-site"):
                return message_page(400, "Not a good request", f"It has two headers {key}.")
            else:
                headers[key] = value.decode("latin-1")
        reached = scope["server"][0] if scope.get("server") else None
        if not access.answers_to(headers.get("host"), reached):
            return message_page(421, "Not this server", "The name in the address is none that this server answers to.")
        if method not in ("GET", "HEAD", "POST"):
            return message_page(405, "Not a good request", "Only GET, HEAD and POST are answered.")
        if not access.comes_from_here(method, headers):
            return message_page(403, "Refused", "The request comes from a page of another site.")
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            length = LONGEST_BODY + 1
        if length > LONGEST_BODY or len(scope["query_string"]) > LONGEST_QUERY or len(scope["path"]) > 2048:
            return message_page(413, "Too large", "The request is larger than any of this server's pages sends.")
        try:
            query = Fields.parsed(scope["query_string"])
            form = Fields({})
            if method == "POST":
                body = await _body(receive)
                kind = headers.get("content-type", "").partition(";")[0].strip().lower()
                if body is None:
                    return message_page(413, "Too large", "The form is larger than any of this server's pages sends.")
                if kind != "application/x-www-form-urlencoded":
                    return message_page(415, "Not a good request", "Only HTML forms are taken.")
                form = Fields.parsed(body)
        except InputError as error:
            return message_page(400, "Not a good request", str(error))
        scope["crunode.query"], scope["crunode.form"] = query, form
        return self._signed(scope, headers.get("cookie", ""), query, form)

    def _signed(self, scope: Scope, cookies: str, query: Fields, form: Fields) -> Any:
        access, method, path = self.access, scope["method"], scope["path"]
        if access.is_signed_in(cookies):
            if method == "POST" and not access.is_form_token(form.text("form_token")):
                return message_page(
                    403, "Refused", "The form is of an earlier start of the server. Go back and reload."
                )
            return None
        if path.startswith("/static/") and method != "POST":
            return None
        given = ""
        if method == "POST" and path == _SIGN_IN and access.is_form_token(form.text("form_token"), signed_in=False):
            given = form.text("token")
        elif method == "GET":
            given = query.text("token")
        if given and access.is_token(given):
            # A page of its own rather than a redirect: after one that began at another site, browsers would not send
            # the cookie. The address without the token replaces the one with it.
            page = render("signed_in.html.j2", 200, title="Signed in")
            page.set_cookie(access.cookie, access.session, httponly=True, samesite="strict", path="/")
            return page
        return sign_in_page(access, wrong=bool(given))


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None when it is too large."""
    data: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return data
        data += message.get("body", b"")
        if len(data) > LONGEST_BODY:
            return None
        if not message.get("more_body"):
            return data
