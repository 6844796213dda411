"""What a browser sends: queries and forms, bounded and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from crunode.errors import InputError

__all__ = ["LONGEST_BODY", "LONGEST_QUERY", "Fields"]

LONGEST_BODY = 64 * 1024
"""The most bytes of a request's body."""

LONGEST_QUERY = 8 * 1024
"""The most bytes of a query."""

_MOST, _LONGEST = 200, 32 * 1024


class Fields:
    """Names and values of a query or a form.

    Example:
        >>> found = Fields.parsed(b"name=a*&run=1&run=2")
        >>> found.text("name"), found.texts("run"), found.text("kind")
        ('a*', ['1', '2'], '')
    """

    def __init__(self, values: Mapping[str, Sequence[str]]) -> None:
        self._values = values

    @classmethod
    def parsed(cls, data: bytes) -> Fields:
        """The fields of an encoded query or form.

        Raises:
            InputError: There are too many, or it is no such text.
        """
        try:
            pairs = parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST)
        except ValueError as error:
            raise InputError(f"expected at most {_MOST} fields of an HTML form, got something else") from error
        found: dict[str, list[str]] = {}
        for key, value in pairs:
            found.setdefault(key[:100], []).append(value[:_LONGEST])
        return cls(found)

    def text(self, name: str) -> str:
        """The value of a field without blanks around it; empty when it is absent. Of several, the last."""
        return self._values.get(name, ("",))[-1].strip()

    def texts(self, name: str) -> list[str]:
        """All values of a field."""
        return list(self._values.get(name, ()))

    def number(self, name: str, low: int, high: int, default: int) -> int:
        """The value of a field as a whole number.

        Raises:
            InputError: It is none, or not between `low` and `high`.

        Example:
            >>> Fields.parsed(b"page=-1").number("page", 1, 9, 1)
            Traceback (most recent call last):
            crunode.errors.InputError: expected page as a whole number from 1 to 9, got '-1'
        """
        text = self.text(name)
        if not text:
            return default
        if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        raise InputError(f"expected {name} as a whole number from {low} to {high}, got {text[:40]!r}")
