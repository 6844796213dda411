"""Posteriors over landscapes, the kernels that sample them, and diagnostics of the draws."""

__all__: list[str] = []
