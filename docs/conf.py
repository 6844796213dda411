"""Sphinx settings."""

from importlib import metadata

project = "crunode"
author = "the crunode authors"
project_copyright = "the crunode authors"
release = metadata.version("crunode")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = f"crunode {release}"
