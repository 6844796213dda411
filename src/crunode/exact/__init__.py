"""Exact learning coefficients of model families with a theorem. Needs the standard library only."""

__all__: list[str] = []
