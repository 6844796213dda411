"""MAP estimates by gradient descent, for all data sets at once.

What the paper leaves open is taken from the authors' published code: momentum 0.9, learning rate 0.001, weight decay
0.0005, the squared error summed over outputs and averaged over examples, PyTorch's initialization, 5000 epochs. With
this weight decay the prior of the MAP estimate has precision 0.00025 n: it is not the standard normal prior that the
paper puts on the last layers afterward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crunode import InputError
from crunode_papers.murfet2020.networks import Data, Net

__all__ = ["BATCH", "DECAY", "MOMENTUM", "RATE", "train_map"]

RATE, MOMENTUM, DECAY, BATCH = 1e-3, 0.9, 5e-4, 32


def train_map(
    net: Net, data: Data, *, epochs: int, minibatch: bool, generator: torch.Generator | None = None
) -> Tensor:
    r"""MAP estimates: minima of $\frac1n \sum_i \lVert y_i - f_\theta(x_i)\rVert^2 + \frac c2 \lVert\theta\rVert^2$.

    Gradient descent with momentum, as `torch.optim.SGD` does it. Minibatches go through each data set in a new order
    every epoch, the last one with what is left over. All data sets start an epoch together; those with fewer
    minibatches wait for the others, which costs nothing where starting a kernel takes longer than the kernel.

    Args:
        net: The shape of the networks.
        data: The data sets.
        epochs: Passes through the data.
        minibatch: Minibatches of 32, or all of the data.
        generator: Orders come from it, on the device of the data; needed for minibatches.

    Returns:
        Parameters, (data set, size).

    Example:
        >>> from crunode_papers.murfet2020.networks import Panel, draw_data
        >>> data = draw_data([Panel(1, False, True, False)], [20], range(2), tests=2, seed=0)
        >>> train_map(Net(2), data, epochs=3, minibatch=False).shape
        torch.Size([2, 86])
    """
    if minibatch and generator is None:
        raise InputError("expected a generator for the order of minibatches, got None; give one")
    theta = data.start.clone()
    speed = torch.zeros_like(theta)
    layers = net.parts(theta)  # views, which follow theta as it changes in place
    if not minibatch:
        weight = data.mask / data.n.view(-1, 1, 1)
        for _ in range(epochs):
            slope = net.gradient(layers, data.x, data.y, weight, data.slope)
            speed.mul_(MOMENTUM).add_(slope).add_(theta, alpha=DECAY)
            theta.sub_(speed, alpha=RATE)
        return theta
    both = torch.cat([data.x, data.y], 1).mT.contiguous()  # examples as rows, so that one index takes x and y
    sets, longest, width = both.shape
    steps = -(-longest // BATCH)
    missing = data.mask[:, 0] == 0
    rows = torch.arange(sets, device=both.device)[:, None]
    position = torch.arange(steps * BATCH, device=both.device)
    filled = (position < data.n[:, None]).view(sets, steps, BATCH).to(both.dtype)
    weights = (filled / filled.sum(-1, keepdim=True).clamp(min=1)).transpose(0, 1).unsqueeze(2).contiguous()
    going = (filled.sum(-1) > 0).to(both.dtype).T.unsqueeze(-1).contiguous()
    for _ in range(epochs):
        keys = torch.rand(sets, longest, device=both.device, generator=generator).masked_fill_(missing, 2.0)
        order = torch.nn.functional.pad(keys.argsort(1), (0, steps * BATCH - longest))
        shuffled = both[rows, order].view(sets, steps, BATCH, width).permute(1, 0, 3, 2).contiguous()
        for k in range(steps):
            x, y = shuffled[k, :, :3], shuffled[k, :, 3:]
            change = net.gradient(layers, x, y, weights[k], data.slope).add_(theta, alpha=DECAY)
            # A data set that has no minibatch left keeps its speed and its place.
            speed = torch.where(going[k] > 0, speed.mul(MOMENTUM).add_(change), speed)
            theta.addcmul_(speed, going[k], value=-RATE)
    return theta
