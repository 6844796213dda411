"""Experiments of the field's papers, one folder a paper, and what several papers share.

A folder named by author and year holds the recipes of that paper with its networks, published values, pictures
and page.
The others are shared: `bilinear`, `claims`, `grokking`, `image_data`, `networks`, `training`. Papers use public names
of `crunode`, and no paper imports another. A new paper is a new folder and one line for each recipe in pyproject.toml.
"""

__all__: list[str] = []
