"""Shared: networks on images."""

__all__: list[str] = []
