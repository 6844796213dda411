"""Functions from landscapes, or draws from them, to estimates."""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.estimators.multitemperature import intercept_weights as intercept_weights
else:
    __getattr__, __dir__, __all__ = exports(__name__)
