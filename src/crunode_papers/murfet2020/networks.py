"""The networks of Murfet et al. 2020, section 5, many at once: f = h∘g with h(x) = B A x or B ReLU(A x).

All arrays have a leading axis of networks (one for each data set) and the examples on the last axis, where they are
contiguous: (network, feature, example). Parameters of a network are one row of a matrix.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crunode import InputError
from crunode.core import derived_seed

__all__ = ["DIM", "WIDTH", "Data", "Net", "Panel", "draw_data"]

DIM = 3
"""Inputs, outputs, outputs of g, and the rank of h."""

WIDTH = 5
"""Units in a hidden layer of g."""

_SMALL = 0.2


@dataclass(frozen=True)
class Panel:
    """One panel of Figs. 1 and 3-9.

    Attributes:
        layers: Hidden layers in g as the paper counts them: 1 or 5.
        relu: Whether h has a ReLU between A and B.
        realizable: Whether the truth is a network of the model.
        minibatch: Whether the MAP estimate is trained on minibatches of 32.

    Example:
        >>> Panel(5, True, True, False).title
        '5 layers, ReLU, realizable, full batch'
        >>> Panel(5, True, True, False).table
        1
    """

    layers: int
    relu: bool
    realizable: bool
    minibatch: bool

    @property
    def title(self) -> str:
        """In words."""
        return (
            f"{self.layers} layer{'s' * (self.layers > 1)}, {'ReLU' if self.relu else 'identity'}, "
            f"{'realizable' if self.realizable else 'nonrealizable'}, {'minibatch' if self.minibatch else 'full batch'}"
        )

    @property
    def table(self) -> int:
        """Number of the table in the paper."""
        if self.realizable:
            return 3 if self.minibatch else 1
        return 5 if self.minibatch else 4

    @property
    def key(self) -> tuple[int, int, int, int]:
        """As whole numbers, for seeds."""
        return self.layers, int(self.relu), int(self.realizable), int(self.minibatch)


class Net:
    """The shape of f = h∘g, and values and gradients of many such networks at once.

    g has `hidden` layers of 5 ReLU units with biases and a linear output; A and B have no biases.

    Example:
        >>> Net(2).size
        86
        >>> theta = Net(2).default(torch.Generator().manual_seed(0))[None]
        >>> Net(2).output(theta, torch.zeros(1, 3, 4), torch.ones(1, 1, 1)).shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, hidden: int) -> None:
        if isinstance(hidden, bool) or not isinstance(hidden, int) or hidden < 1:
            raise InputError(f"expected a number of hidden layers from 1 up, got {hidden!r}")
        widths = [DIM, *[WIDTH] * hidden, DIM]
        self.shapes: list[tuple[int, int, bool]] = [(out, into, True) for into, out in itertools.pairwise(widths)]
        self.shapes += [(DIM, DIM, False)] * 2
        self.size = sum(out * (into + bias) for out, into, bias in self.shapes)

    def default(self, generator: torch.Generator) -> Tensor:
        """Parameters as PyTorch initializes linear layers: uniform within one over the root of the inputs."""
        parts = []
        for out, into, bias in self.shapes:
            bound = 1.0 / math.sqrt(into)
            parts.append((2 * torch.rand(out * (into + bias), generator=generator) - 1) * bound)
        return torch.cat(parts)

    def parts(self, theta: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Weights and biases of all layers as views of `theta`, shape (network, size); A and B are the last two."""
        views: list[tuple[Tensor, Tensor | None]] = []
        start = 0
        for out, into, bias in self.shapes:
            weight = theta[:, start : start + out * into].view(-1, out, into)
            start += out * into
            views.append((weight, theta[:, start : start + out].unsqueeze(-1) if bias else None))
            start += out * bias
        return views

    def features(self, theta: Tensor, x: Tensor) -> Tensor:
        """g(x), shape (network, 3, example)."""
        layers = self.parts(theta)[:-2]
        for k, (weight, bias) in enumerate(layers):
            assert bias is not None
            x = torch.baddbmm(bias, weight, x)
            if k < len(layers) - 1:
                x = x.relu_()
        return x

    def output(self, theta: Tensor, x: Tensor, slope: Tensor) -> Tensor:
        """f(x); `slope` is 1 for networks with h = B A x and 0 for those with a ReLU, shape (network, 1, 1)."""
        (a, _), (b, _) = self.parts(theta)[-2:]
        return b @ activate(a @ self.features(theta, x), slope)

    def gradient(
        self, layers: list[tuple[Tensor, Tensor | None]], x: Tensor, y: Tensor, weight: Tensor, slope: Tensor
    ) -> Tensor:
        r"""Gradient of $\sum_i w_i \lVert y_i - f(x_i)\rVert^2$, by hand: a third of the kernels that autograd starts.

        Args:
            layers: The parameters, as `parts` gives them.
            x: Inputs, (network, 3, example).
            y: Outputs, (network, 3, example).
            weight: Weights of the examples, (network, 1, example); 0 for padding.
            slope: As for `output`.
        """
        inputs = [x]
        for k, (matrix, bias) in enumerate(layers[:-2]):
            assert bias is not None
            out = torch.baddbmm(bias, matrix, inputs[-1])
            inputs.append(out.relu_() if k < len(layers) - 3 else out)
        a, b = layers[-2][0], layers[-1][0]
        before = torch.bmm(a, inputs[-1])
        after = activate(before, slope)
        delta = torch.baddbmm(y, b, after, beta=-1.0).mul_(2 * weight)
        found = [torch.bmm(delta, after.mT).flatten(1)]
        delta = torch.bmm(b.mT, delta).mul_(torch.where(before > 0, 1.0, slope))
        found.append(torch.bmm(delta, inputs[-1].mT).flatten(1))
        delta = torch.bmm(a.mT, delta)
        for k in range(len(layers) - 3, -1, -1):
            found += [delta.sum(-1), torch.bmm(delta, inputs[k].mT).flatten(1)]
            if k:
                delta = torch.bmm(layers[k][0].mT, delta).mul_(inputs[k] > 0)
        return torch.cat(found[::-1], 1)


def activate(z: Tensor, slope: Tensor) -> Tensor:
    """ReLU where `slope` is 0, identity where it is 1.

    Example:
        >>> activate(torch.tensor([[-1.0, 2.0], [-1.0, 2.0]]), torch.tensor([[0.0], [1.0]]))
        tensor([[-0., 2.],
                [-1., 2.]])
    """
    return torch.maximum(z, slope * z)


class Data(NamedTuple):
    """Data sets side by side, padded with zeros to the largest n.

    Attributes:
        x: Inputs, (data set, 3, example).
        y: Outputs.
        n: Examples of each data set, (data set,).
        mask: 1 for examples, 0 for padding, (data set, 1, example).
        slope: 1 for identity, 0 for ReLU in h, (data set, 1, 1).
        start: Initial parameters of training, (data set, size).
        other: Other initial values of A and B, (data set, 18): layers that the authors' code makes and never trains.
        test_x: Test inputs, (data set, 3, test example).
        test_truth: Means of the truth there.
        test_noise: Noise of the test outputs.
    """

    x: Tensor
    y: Tensor
    n: Tensor
    mask: Tensor
    slope: Tensor
    start: Tensor
    other: Tensor
    test_x: Tensor
    test_truth: Tensor
    test_noise: Tensor

    def to(self, device: torch.device | str) -> Data:
        """The same on another device."""
        return Data(*(part.to(device) for part in self))


def draw_data(
    panels: list[Panel], sizes: list[int], sets: range, *, tests: int, seed: int, as_text: bool = False
) -> Data:
    """Data sets of all panels, sizes and numbers: the data set index runs fastest, then the size, then the panel.

    Each data set has its own truth, and depends only on the seed, its panel (but not on how the MAP estimate is
    trained), its n and its number. Test outputs come in pairs with noise of opposite sign at the same input: what is
    odd in the noise then drops out of the average.

    Args:
        panels: Panels with the same number of layers.
        sizes: Values of n.
        sets: Numbers of the data sets.
        tests: Test examples, an even number.
        seed: All randomness comes from it.
        as_text: Follow the paper's text where the authors' code does something else: g has as many hidden layers as
            the text says (the code has one more), and the nonrealizable truth is h by PyTorch's initialization with
            the panel's activation (in the code it is B0 A0 x with entries 0.2 N(0, 1), whatever the activation).

    Example:
        >>> draw_data([Panel(1, False, True, False)], [20, 30], range(2), tests=10, seed=0).x.shape
        torch.Size([4, 3, 30])
    """
    if len({panel.layers for panel in panels}) != 1:
        raise InputError(f"expected panels with the same number of layers, got {[p.layers for p in panels]}")
    if tests < 2 or tests % 2:
        raise InputError(f"expected an even number of test examples from 2 up, got {tests}")
    net = Net(panels[0].layers + (not as_text))
    rows = []
    for panel in panels:
        slope = torch.full((1, 1, 1), 0.0 if panel.relu else 1.0)
        for n in sizes:
            for number in sets:
                rows.append(_one(net, panel, slope, n, max(sizes), number, tests, seed, as_text))
    return Data(*(torch.cat(column) for column in zip(*rows, strict=True)))


def _one(
    net: Net, panel: Panel, slope: Tensor, n: int, longest: int, number: int, tests: int, seed: int, as_text: bool
) -> tuple[Tensor, ...]:
    layers, relu, realizable, _ = panel.key
    generator = torch.Generator().manual_seed(derived_seed(seed, layers, relu, realizable, n, number, int(as_text)))
    theta = net.default(generator)[None]
    last = slice(net.size - 2 * DIM * DIM, net.size)
    if not panel.realizable:
        if not as_text:
            theta[:, last] = _SMALL * torch.randn(1, 2 * DIM * DIM, generator=generator)
        a, b = theta[:, last].view(2, 1, DIM, DIM)
        bent = slope if as_text else torch.ones(1, 1, 1)

    def truth(x: Tensor) -> Tensor:
        return net.output(theta, x, slope) if panel.realizable else b @ activate(a @ x, bent)

    x = torch.randn(1, DIM, n, generator=generator)
    y = truth(x) + torch.randn(1, DIM, n, generator=generator)
    test_x = torch.randn(1, DIM, tests // 2, generator=generator).repeat(1, 1, 2)
    noise = torch.randn(1, DIM, tests // 2, generator=generator)
    padded = [torch.nn.functional.pad(part, (0, longest - n)) for part in (x, y, torch.ones(1, 1, n))]
    start, other = net.default(generator)[None], net.default(generator)[None, last]
    test = test_x, truth(test_x), torch.cat([noise, -noise], -1)
    return (*padded[:2], torch.tensor([n]), padded[2], slope, start, other, *test)
