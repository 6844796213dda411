"""The benchmark of estimates: landscapes with a known coefficient, methods, metrics, and a run that resumes."""

__all__: list[str] = []
