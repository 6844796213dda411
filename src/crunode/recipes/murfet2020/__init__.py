"""Parts of the recipes for Murfet et al. 2020: networks, training, posteriors, predictions."""

__all__: list[str] = []
