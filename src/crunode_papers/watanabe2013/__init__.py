"""Watanabe 2013 and Drton & Plummer 2017: selection of the rank by WBIC and sBIC."""

__all__: list[str] = []
