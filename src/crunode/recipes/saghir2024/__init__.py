"""Parts of the recipes on Saghir et al. 2024: training, measuring, tests of significance, tables, pictures."""

__all__: list[str] = []
