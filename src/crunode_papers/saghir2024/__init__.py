"""Saghir et al. 2024: natural gradient descent beside stochastic gradient descent."""

__all__: list[str] = []
