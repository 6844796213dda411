"""The benchmark of Hitchcock & Hoogland 2025: networks with a known coefficient, methods, metrics, a run."""

__all__: list[str] = []
