"""Cullen et al. 2026, grokking as a phase transition: toys, networks with known coefficients, trainings (`runs`)."""

__all__: list[str] = []
