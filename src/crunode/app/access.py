"""Who may use the dashboard: names it answers to, where requests may come from, tokens."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from crunode.errors import InputError

__all__ = ["Access", "host_of", "is_loopback"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>\d{1,5}))?")
_LEAST = 16


def host_of(header: str) -> str | None:
    """The host in a Host header, in small letters and without the port; None when it is none.

    Example:
        >>> host_of("LocalHost:8765"), host_of("[::1]:80"), host_of("a@b")
        ('localhost', '::1', None)
    """
    found = _HOST.fullmatch(header)
    return None if found is None else (found["v6"] or found["name"]).lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether an address to listen at can be reached from this machine only.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("localhost")
        (True, False, True)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True)
class Access:
    """The rules for one server.

    Attributes:
        host: The address it listens at.
        port: Likewise; part of the cookie's name, since browsers share cookies between ports.
        token: What a visitor has to show once; None for nothing, which is for loopback alone.

    Raises:
        InputError: The token is short, or there is none for an address that others can reach.

    Example:
        >>> rules = Access("127.0.0.1", 8765)
        >>> rules.answers_to("localhost:8765"), rules.answers_to("evil.example")
        (True, False)
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = field(default=None, repr=False)
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise InputError(f"expected a token to listen at {self.host}, which others can reach, got none")
        if self.token is not None and (len(self.token) < _LEAST or not self.token.isprintable()):
            raise InputError(f"expected a token of at least {_LEAST} printable characters, got {len(self.token)}")

    @property
    def cookie(self) -> str:
        """Name of the cookie."""
        return f"crunode-{self.port}"

    @property
    def session(self) -> str:
        """Value of the cookie: worth nothing once the server has ended."""
        return self._derived("session")

    def answers_to(self, header: str | None, reached: str | None = None) -> bool:
        """Whether a Host header names this server.

        A page of another site whose name was made to point here has that name in the header.

        Args:
            header: The header.
            reached: The address at which the connection came in.
        """
        name = None if header is None else host_of(header)
        if name is None:
            return False
        if name in _LOOPBACK or name == self.host.lower():
            return True
        everywhere = self.host in ("0.0.0.0", "::")
        return everywhere and name in (str(reached).lower(), socket.gethostname().lower())

    def comes_from_here(self, method: str, headers: Mapping[str, str]) -> bool:
        """Whether a request was made by a page of this server, or by its user, as far as the browser tells."""
        site = headers.get("sec-fetch-site")
        if method == "POST":
            origin = headers.get("origin")
            same = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
            return same and site in (None, "same-origin")
        visit = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return site in (None, "same-origin", "none") or visit

    def is_token(self, given: str) -> bool:
        """Whether `given` is the token, in a time that does not tell how much of it is right."""
        return self.token is not None and hmac.compare_digest(_hashed(given), _hashed(self.token))

    def is_signed_in(self, cookies: str) -> bool:
        """Whether the Cookie header shows that the token was given before, or none is needed."""
        if self.token is None:
            return True
        found = [part.strip().partition("=") for part in cookies.split(";")]
        given = [value for name, _, value in found if name == self.cookie]
        return any(hmac.compare_digest(_hashed(value), _hashed(self.session)) for value in given)

    def form_token(self, signed_in: bool = True) -> str:
        """What every form carries, so that no other page can send it; those who have not signed in have another."""
        return self._derived("form" if signed_in else "sign-in")

    def is_form_token(self, given: str, signed_in: bool = True) -> bool:
        """Whether a form carries the right token."""
        return hmac.compare_digest(_hashed(given), _hashed(self.form_token(signed_in)))

    def _derived(self, use: str) -> str:
        return hmac.new(self._secret, use.encode(), hashlib.sha256).hexdigest()


def _hashed(text: str) -> bytes:
    """Of one length whatever the text, as a comparison in constant time needs it."""
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()
