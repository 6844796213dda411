"""Functions from landscapes, or draws from them, to estimates."""

__all__: list[str] = []
