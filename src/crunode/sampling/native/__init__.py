"""Steps of sampling and products of sparse examples in C, where a compiler is found; everything also runs without."""

__all__: list[str] = []
