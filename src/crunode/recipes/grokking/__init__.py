"""Grokking on modular arithmetic: tasks, networks, many trainings as one batch, and what is measured on the way."""

__all__: list[str] = []
