"""Sphinx settings, and the page of findings written from the code."""

from importlib import metadata
from pathlib import Path

from crunode.errors import FINDINGS

project = "crunode"
author = "the crunode authors"
project_copyright = "the crunode authors"
release = metadata.version("crunode")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

napoleon_use_ivar = True  # attributes that are properties too are described once
autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = f"crunode {release}"

FINDINGS_INTRO = """# Findings

What can be found about a result. A finding of severity *error* makes the estimate not ok; *warning* is a doubt to
weigh; *info* is for the record. `crunode explain CODE` prints the same on a terminal.
"""


def findings_page() -> str:
    """The page of findings; `docs/findings.md` holds this text, and a test compares the two."""
    parts = [
        f"## {kind.code}: {kind.title}\n\n*{kind.severity}.* {kind.meaning}\n\n**What to do:** {kind.remedy}\n"
        for kind in FINDINGS.values()
    ]
    return "\n".join([FINDINGS_INTRO, *parts])


def write_findings(_app) -> None:
    path = Path(__file__).parent / "findings.md"
    if not path.exists() or path.read_text(encoding="utf-8") != findings_page():
        path.write_text(findings_page(), encoding="utf-8")


def setup(app) -> None:
    app.connect("builder-inited", write_findings)
