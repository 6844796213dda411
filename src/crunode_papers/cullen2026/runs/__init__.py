"""Trainings of Cullen et al. 2026: what is trained and measured, curves, statistics, pictures."""

__all__: list[str] = []
