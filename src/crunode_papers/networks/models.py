"""Networks of the recipes: fully connected ones and LeNet-5, with weights that a seed alone decides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from crunode import InputError
from crunode.core import derived_seed, preserved_rng

__all__ = ["ACTIVATIONS", "FFNN", "MODELS", "LeNet5", "build"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
"""Activation functions by name."""

_POOLS: dict[str, Callable[[int], nn.Module]] = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}
_SIDE = 28


class FFNN(nn.Sequential):
    """A fully connected network: `layers` hidden layers of `width` units, and one linear layer to the classes.

    Inputs may come as rows or as images; what follows the first axis is flattened.

    Args:
        layers: Number of hidden layers; 0 makes a linear model.
        width: Units of each.
        inputs: Numbers of an input.
        classes: Outputs.
        activation: One of `ACTIVATIONS`.

    Example:
        >>> net = build(FFNN, layers=2, width=256)
        >>> sum(p.numel() for p in net.parameters())
        269322
        >>> tuple(net(torch.zeros(3, 28, 28)).shape)
        (3, 10)
    """

    def __init__(
        self, layers: int, width: int, inputs: int = _SIDE * _SIDE, classes: int = 10, activation: str = "relu"
    ) -> None:
        _check_counts(0, layers=layers)
        _check_counts(1, width=width, inputs=inputs, classes=classes)
        parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for k in range(layers):
            parts[f"hidden{k + 1}"] = nn.Linear(inputs if k == 0 else width, width)
            parts[f"activation{k + 1}"] = _named(ACTIVATIONS, activation, "activation")()
        parts["output"] = nn.Linear(width if layers else inputs, classes)
        super().__init__(parts)


class LeNet5(nn.Sequential):
    """LeNet-5 for images of 28 × 28 pixels, flat or not: two convolutions with pooling, three linear layers.

    6 maps of 5 × 5 (the edge filled with zeros), 16 maps of 5 × 5, then 120, 84 and `classes` units. The first paper
    had tanh units, averages with weights of their own and a table of connections between maps; ReLU and maxima are what
    is used today.

    Args:
        classes: Outputs.
        activation: One of `ACTIVATIONS`.
        pool: "max" or "average".

    Example:
        >>> net = build(LeNet5)
        >>> sum(p.numel() for p in net.parameters())
        61706
        >>> tuple(net(torch.zeros(3, 784)).shape)
        (3, 10)

    References:
        LeCun, Bottou, Bengio & Haffner 1998.
    """

    def __init__(self, classes: int = 10, activation: str = "relu", pool: str = "max") -> None:
        _check_counts(1, classes=classes)
        active, pooled = _named(ACTIVATIONS, activation, "activation"), _named(_POOLS, pool, "pool")
        super().__init__(
            OrderedDict(
                rows=nn.Flatten(),
                image=nn.Unflatten(1, (1, _SIDE, _SIDE)),
                convolution1=nn.Conv2d(1, 6, 5, padding=2),
                activation1=active(),
                pool1=pooled(2),
                convolution2=nn.Conv2d(6, 16, 5),
                activation2=active(),
                pool2=pooled(2),
                flatten=nn.Flatten(),
                hidden1=nn.Linear(400, 120),
                activation3=active(),
                hidden2=nn.Linear(120, 84),
                activation4=active(),
                output=nn.Linear(84, classes),
            )
        )


MODELS: dict[str, Callable[..., nn.Module]] = {"ffnn": FFNN, "lenet5": LeNet5}
"""Networks that `build` knows by name."""


def build(model: str | Callable[..., nn.Module], seed: int = 0, **settings: Any) -> nn.Module:
    """A network on the CPU whose initial weights depend on the seed alone; global random state stays as it is.

    Weights are drawn as torch's layers do by default: uniform with standard deviation 1/√(3 · inputs of a unit).

    Args:
        model: A name of `MODELS`, a class, or any function that makes a module.
        seed: All randomness comes from it.
        settings: Passed on.

    Raises:
        InputError: There is no such model, or it does not take these settings.

    Example:
        >>> a, b = build("ffnn", seed=1, layers=1, width=8), build(FFNN, seed=1, layers=1, width=8)
        >>> torch.equal(a.output.weight, b.output.weight)
        True
    """
    make = _named(MODELS, model, "model") if isinstance(model, str) else model
    if not callable(make) or isinstance(make, nn.Module):
        raise InputError(f"expected a name among {sorted(MODELS)} or a class of modules, got {type(make).__name__}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")
    with preserved_rng(), torch.device("cpu"):
        torch.default_generator.manual_seed(derived_seed(seed))
        try:
            made = make(**settings)
        except TypeError as error:
            raise InputError(f"expected settings that the model takes, got {settings}: {error}") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"expected a function that makes a module, got one that makes {type(made).__name__}")
    return made


def _named(known: dict[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise InputError(f"expected {what} among {sorted(known)}, got {name!r}")
    return known[name]


def _check_counts(least: int, **counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            raise InputError(f"expected {name} as a whole number from {least} up, got {count!r}")
