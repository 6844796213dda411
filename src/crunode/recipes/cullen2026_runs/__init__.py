"""λ̂ along trainings on modular arithmetic: what the recipes on Figs. 3–4 and 7–14 of Cullen 2026 have in common."""

__all__: list[str] = []
