"""Where recipes compute."""

from __future__ import annotations

import torch

__all__ = ["place"]


def place() -> torch.device:
    """The GPU where there is one, else the processor.

    Example:
        >>> place().type in ("cpu", "cuda")
        True
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
