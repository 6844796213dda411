"""Cooper 2021: the dimension of the set of solutions of overparametrized networks."""

__all__: list[str] = []
