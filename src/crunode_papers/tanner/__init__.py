"""Tanner's lecture on the topology of the loss landscape: linearized descent, Gauss-Newton, lazy training."""

__all__: list[str] = []
