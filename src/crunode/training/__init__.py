"""Training that can be interrupted, with checkpoints and a record of what happened."""

__all__: list[str] = []
