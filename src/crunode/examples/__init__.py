"""Toy landscapes, a small set of images and the demonstration.

May be imported from outside: what the modules list in `__all__`. A landscape whose answer is known goes into `toys`.
"""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.examples.images import PACKAGED as PACKAGED
    from crunode.examples.images import Images as Images
    from crunode.examples.images import packaged_images as packaged_images
    from crunode.examples.toys import Monomial as Monomial
    from crunode.examples.toys import Quadratic as Quadratic
    from crunode.examples.toys import normal_crossing as normal_crossing
    from crunode.examples.toys import orthants as orthants
    from crunode.examples.toys import quadratic as quadratic
    from crunode.examples.toys import reduced_rank as reduced_rank
    from crunode.examples.toys import scalar_chain as scalar_chain
    from crunode.examples.toys import units_potential as units_potential
else:
    __getattr__, __dir__, __all__ = exports(__name__)
