"""Shared: the posterior of a bilinear model."""

__all__: list[str] = []
