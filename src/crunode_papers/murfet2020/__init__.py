"""Murfet et al. 2020, deep learning is singular: generalization, coefficients of two-layer networks, volumes."""

__all__: list[str] = []
