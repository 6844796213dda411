"""Shared: what a paper claims in words, as tests of significance and rows."""

__all__: list[str] = []
