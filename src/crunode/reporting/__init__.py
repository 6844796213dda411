"""Results as pictures and as text."""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.reporting.plots import STYLE as STYLE
    from crunode.reporting.plots import level_colors as level_colors
    from crunode.reporting.plots import new_figure as new_figure
    from crunode.reporting.plots import plain_axes as plain_axes
else:
    __getattr__, __dir__, __all__ = exports(__name__)
