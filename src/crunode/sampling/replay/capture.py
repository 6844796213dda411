"""A replayed function as a CUDA graph, which launches all its operations at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["Captured"]


class Captured:
    """Equal to `fn` for tensors of the same shapes; its operations are launched as one.

    On a GPU a small model's step takes as long as it takes to launch its operations one by one.

    Args:
        fn: A function of tensors on a CUDA device that returns a tuple of tensors and never waits for the device.
        inputs: Tensors to capture with.
        overwrite: The first result is overwritten by the next call.
    """

    def __init__(
        self, fn: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], *, overwrite: bool = False
    ) -> None:
        self.inputs, self.overwrite = [tensor.clone() for tensor in inputs], overwrite
        # The graph reads the function's constants where they lie; without it that memory would go to others.
        self.fn = fn
        self.graph = torch.cuda.CUDAGraph()
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.no_grad(), torch.cuda.stream(side):  # libraries set themselves up in the first calls
            for _ in range(3):
                fn(*self.inputs)
        current.wait_stream(side)
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.outputs = fn(*self.inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copy the arguments in, launch, and copy the results out."""
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given)
        self.graph.replay()
        first, *rest = self.outputs
        return (first if self.overwrite else first.clone(), *(tensor.clone() for tensor in rest))
