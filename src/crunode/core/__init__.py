"""The ground: landscapes, draws, estimates, the store and executors."""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode._extras import need as need
    from crunode.core.data import Examples as Examples
    from crunode.core.data import as_examples as as_examples
    from crunode.core.data import data_digest as data_digest
    from crunode.core.data import leaves as leaves
    from crunode.core.fingerprints import identity as identity
    from crunode.core.losses import LossModule as LossModule
    from crunode.core.origin import merged as merged
    from crunode.core.origin import provenance as provenance
    from crunode.core.progress import Progress as Progress
    from crunode.core.rng import derived_seed as derived_seed
    from crunode.core.rng import preserved_rng as preserved_rng
else:
    __getattr__, __dir__, __all__ = exports(__name__)
