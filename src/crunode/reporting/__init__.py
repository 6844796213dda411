"""Results as pictures and as text."""

__all__: list[str] = []
