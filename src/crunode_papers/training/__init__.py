"""Shared: training that can be interrupted, its history, lengths of steps, and folder."""

__all__: list[str] = []
