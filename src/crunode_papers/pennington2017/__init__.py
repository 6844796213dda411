"""Pennington & Bahri 2017: Hessian spectra and the index of critical points of networks with one hidden layer."""

__all__: list[str] = []
