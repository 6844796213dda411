"""Freeman & Bruna 2016: which solutions are joined below a level."""

__all__: list[str] = []
