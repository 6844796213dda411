"""Posteriors over landscapes, the kernels that sample them, and diagnostics of the draws."""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.sampling.diagnostics import drift as drift
    from crunode.sampling.diagnostics import mcse_mean as mcse_mean
    from crunode.sampling.diagnostics import split_rhat as split_rhat
    from crunode.sampling.kernel import Kernel as Kernel
    from crunode.sampling.posterior import wbic_nbeta as wbic_nbeta
    from crunode.sampling.replay.capture import Captured as Captured
else:
    __getattr__, __dir__, __all__ = exports(__name__)
