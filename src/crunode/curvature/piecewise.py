"""Whether values are piecewise linear in those they were computed from, read off the graph of operations.

A composition of piecewise linear operations is piecewise linear, so its second derivatives vanish wherever they exist.
Reading the recorded operations, rather than types of layers, sees what a model's code does between its layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Operations", "operations"]

# Linear in all their inputs together.
_LINEAR = """
    AccumulateGrad AdaptiveAvgPool2D AdaptiveAvgPool3D Add Alias AsStrided AvgPool2D AvgPool3D Cat Clone ConstantPadNd
    Copy CopyBackwards CopySlices Diagonal Expand Fill Flip Gather Index IndexSelect Mean Movedim Narrow Neg Permute
    PixelShuffle PixelUnshuffle ReflectionPad1D ReflectionPad2D ReflectionPad3D Repeat ReplicationPad1D ReplicationPad2D
    ReplicationPad3D ReshapeAlias Roll Select Slice Split SplitWithSizes Squeeze Stack Sub Sum T ToCopy Transpose Unbind
    Unfold UnsafeSplit UnsafeView Unsqueeze UpsampleBicubic2D UpsampleBilinear2D UpsampleLinear1D UpsampleNearest1D
    UpsampleNearest2D UpsampleNearest3D UpsampleTrilinear3D View
"""
# Linear in pieces.
_KINKED = """
    Abs AdaptiveMaxPool2D AdaptiveMaxPool3D Amax Amin Clamp ClampMax ClampMin Hardshrink Hardsigmoid Hardtanh LeakyRelu
    Max MaxPool2DWithIndices MaxPool3DWithIndices Maximum Min Minimum MkldnnMaxPool2D PreluKernel Relu Softshrink
    Threshold
"""
# Linear in each of their inputs while the others are held.
_PRODUCTS = "Addbmm Addmm Addmv Baddbmm Bmm Convolution Dot Linear MkldnnConvolution Mm Mul Mv PreluKernel"
# Linear unless they take statistics of what they are given.
_BATCH_NORMS = "CudnnBatchNorm MiopenBatchNorm NativeBatchNorm"


@dataclass(frozen=True)
class Operations:
    """What was computed on the way to a value.

    Attributes:
        curved: Names of operations that are not known to be piecewise linear; none means that all are.
        kinked: Names of those with kinks.
    """

    curved: tuple[str, ...]
    kinked: tuple[str, ...]


def operations(value: Tensor) -> Operations:
    """The operations behind `value`, as far as they act on what may be differentiated.

    Example:
        >>> import torch
        >>> x = torch.zeros(3, requires_grad=True)
        >>> operations(2 * torch.relu(x) + 1)
        Operations(curved=(), kinked=('Relu',))
        >>> operations(torch.tanh(x) * x).curved
        ('Mul', 'Tanh')
    """
    nodes = [value.grad_fn] if value.grad_fn is not None else []
    seen, names, curved = set(nodes), set(), set()
    while nodes:
        node = nodes.pop()
        following = [n for n, _ in node.next_functions if n is not None]
        name = re.sub(r"Backward\d*$", "", node.name().removeprefix("torch::autograd::"))
        names.add(name)
        if not _is_piecewise(name, node, len(following)):
            curved.add(name)
        nodes += [n for n in dict.fromkeys(following) if n not in seen]
        seen.update(following)
    return Operations(tuple(sorted(curved)), tuple(sorted(names & set(_KINKED.split()))))


def _is_piecewise(name: str, node: object, inputs: int) -> bool:
    if name in _PRODUCTS.split():
        return inputs <= 1
    if name == "Div":
        return inputs <= 1 and node.next_functions[0][0] is not None  # type: ignore[attr-defined]
    if name in _BATCH_NORMS.split():
        return inputs <= 1 and not getattr(node, "_saved_training", True)
    return name in _LINEAR.split() or name in _KINKED.split()
