"""Ready-made landscapes, data sets and demonstrations."""

__all__: list[str] = []
