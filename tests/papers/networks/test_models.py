import itertools

import numpy as np
import pytest
import torch
from torch import nn

from crunode.errors import InputError
from crunode_papers.networks.models import ACTIVATIONS, FFNN, LeNet5, build


@pytest.mark.parametrize(("layers", "width"), [(0, 5), (1, 7), (2, 16), (3, 4)])
def test_size_of_a_fully_connected_network(layers, width):
    net = build(FFNN, layers=layers, width=width, inputs=12, classes=3)
    sizes = [12, *[width] * layers, 3]
    assert sum(p.numel() for p in net.parameters()) == sum(a * b + b for a, b in itertools.pairwise(sizes))
    assert sum(isinstance(part, nn.ReLU) for part in net) == layers


def test_fully_connected_network_is_the_formula():
    net = build(FFNN, seed=3, layers=2, width=6, inputs=4, classes=3, activation="tanh").double()
    x = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)
    w = {name: p.detach() for name, p in net.named_parameters()}
    hidden = torch.tanh(x @ w["hidden1.weight"].T + w["hidden1.bias"])
    hidden = torch.tanh(hidden @ w["hidden2.weight"].T + w["hidden2.bias"])
    assert torch.allclose(net(x), hidden @ w["output.weight"].T + w["output.bias"], atol=1e-14)


def test_lenet_has_the_published_maps():
    net = build(LeNet5)
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    shapes = []
    for part in net:
        x = part(x)
        if isinstance(part, nn.Conv2d | nn.MaxPool2d | nn.Linear):
            shapes.append(tuple(x.shape[1:]))
    assert shapes == [(6, 28, 28), (6, 14, 14), (16, 10, 10), (16, 5, 5), (120,), (84,), (10,)]


@pytest.mark.parametrize("model", ["ffnn", "lenet5"])
def test_flat_images_and_channels_are_the_same_input(model):
    net = build(model, **({"layers": 1, "width": 8} if model == "ffnn" else {}))
    images = torch.rand(3, 28, 28, generator=torch.Generator().manual_seed(0))
    outputs = [net(images), net(images.flatten(1)), net(images.unsqueeze(1))]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_images_of_another_size_are_not_mixed_up():
    for net in (build(LeNet5), build(FFNN, layers=1, width=4)):
        with pytest.raises(RuntimeError):
            net(torch.zeros(4, 14, 14))


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("pool", ["max", "average"])
def test_lenet_takes_other_parts(activation, pool):
    net = build(LeNet5, activation=activation, pool=pool, classes=4)
    assert net(torch.zeros(2, 784)).shape == (2, 4)


def test_weights_come_from_the_seed_alone():
    torch.manual_seed(5)
    first = build("lenet5", seed=1).state_dict()
    torch.manual_seed(6)
    again, other = build(LeNet5, seed=1).state_dict(), build(LeNet5, seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["output.weight"], other["output.weight"])


def test_any_function_that_makes_a_module_can_be_built():
    first, again = (build(lambda inputs: nn.Linear(inputs, 2), seed=4, inputs=3) for _ in range(2))
    assert torch.equal(first.weight, again.weight)


def test_global_random_state_is_left_alone():
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    build(LeNet5, seed=0)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("resnet", {}),
        (FFNN, {"layers": -1, "width": 3}),
        (FFNN, {"layers": 1.0, "width": 3}),
        (FFNN, {"layers": 1, "width": 0}),
        (FFNN, {"layers": True, "width": 2}),
        (FFNN, {"layers": 1, "width": 3, "activation": "step"}),
        (FFNN, {"width": 3}),
        (LeNet5, {"pool": "sum"}),
        (LeNet5, {"classes": 0}),
        (LeNet5, {"seed": -1}),
        (nn.Linear(2, 2), {}),
        (dict, {}),
    ],
)
def test_bad_settings_are_refused(model, settings):
    with pytest.raises(InputError, match="expected"):
        build(model, **settings)
