"""Shared: grokking on modular arithmetic: tasks, networks, many trainings as one batch, and what is measured."""

__all__: list[str] = []
