"""Training that can be interrupted, with checkpoints and a record of what happened."""

from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.training.checkpoints import list_checkpoints as list_checkpoints
    from crunode.training.checkpoints import load_checkpoint as load_checkpoint
    from crunode.training.checkpoints import save_checkpoint as save_checkpoint
    from crunode.training.checkpoints import stated_digest as stated_digest
    from crunode.training.checkpoints import weights_digest as weights_digest
    from crunode.training.transitions import find_transitions as find_transitions
else:
    __getattr__, __dir__, __all__ = exports(__name__)
