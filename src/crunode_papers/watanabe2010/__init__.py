"""Watanabe 2010: WAIC and cross-validation against the generalization loss."""

__all__: list[str] = []
