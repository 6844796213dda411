"""The landscape of the page on sensitivity: reduced rank regression 6-4-6 of true rank 2, whose coefficient is 27/2.

crunode sweep validation.sensitivity:landscape --plot docs/images/sweep.png
"""

from __future__ import annotations

from crunode import Landscape
from crunode.examples.toys import reduced_rank


def landscape() -> Landscape:
    """Two thousand examples with noise-free labels, at the most singular true parameter."""
    return reduced_rank(6, 4, 6, rank=2)
