"""Work on one thread, whatever the number of threads around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["one_thread"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block, and as many as before after it.

    Small tensors gain nothing from threads, and lose much where other programs run beside; and on one thread the
    numbers are the same in each process.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
