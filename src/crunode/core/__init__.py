"""The ground: landscapes, draws, estimates, the store and executors."""

__all__: list[str] = []
