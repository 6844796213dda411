"""What the recipes of Cullen 2026 share."""

__all__: list[str] = []
