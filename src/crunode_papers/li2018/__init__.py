"""Li et al. 2018: filter-normalized surfaces."""

__all__: list[str] = []
