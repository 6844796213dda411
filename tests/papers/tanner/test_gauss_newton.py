"""Networks and examples of the recipe on Gauss-Newton steps."""

import math

import pytest
import torch

from crunode_papers.tanner import gauss_newton


def by_hand(name, w, x):
    """Outputs of the three networks from their flat weights, layer by layer."""
    parts = list(w)

    def take(*shape):
        count = math.prod(shape)
        taken, parts[:] = torch.stack(parts[:count]).reshape(shape), parts[count:]
        return taken

    if name == "convolution":
        kernel, bias = take(5, 3, 3), take(5)
        windows = x[:, 0].unfold(1, 3, 1).unfold(2, 3, 1)
        z = torch.einsum("nabij,kij->nkab", windows, kernel) + bias[:, None, None]
        h = torch.log1p(z.exp()).flatten(1)
        return h @ take(1, 20).T + take(1)
    if name == "tanh":
        h = torch.tanh(x @ take(20, 4).T + take(20))
        return h @ take(1, 20).T + take(1)
    gelu = lambda z: z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))  # noqa: E731
    h = gelu(x @ take(12, 3).T + take(12))
    h = gelu(h @ take(12, 12).T + take(12))
    return h @ take(2, 12).T + take(2)


@pytest.mark.parametrize("name", gauss_newton.NETWORKS)
@pytest.mark.parametrize("near", [2.0, 0.25])
def test_networks_are_as_they_are_named_and_the_last_examples_are_so_near(name, near):
    land = gauss_newton.landscape(name, near, 3)
    x, y = land.data.tensors()
    outputs = 2 if name == "gelu" else 1
    assert tuple(y.shape) == (6, outputs)
    assert set(y.flatten().tolist()) <= {-1.0, 1.0}
    # Of a standard normal input of k entries the root mean square length is √k.
    apart = float((x[-1] - x[-2]).norm())
    assert apart == pytest.approx(near * math.sqrt(x[0].numel()))
    assert x[0].numel() == {"tanh": 4, "gelu": 3, "convolution": 16}[name]
    found = land.batch_outputs(land.center.double(), (x, y))
    torch.testing.assert_close(found, by_hand(name, land.center.double(), x), rtol=1e-9, atol=1e-9)
    assert torch.equal(x[:5], gauss_newton.landscape(name, 7.0, 3).data.tensors()[0][:5])


@pytest.mark.parametrize("name", gauss_newton.NETWORKS)
def test_weights_have_the_variance_of_one_over_fan_in(name):
    squares, count = 0.0, 0
    for seed in range(10):
        land = gauss_newton.landscape(name, 1.0, seed)
        for weight in land.packing.unravel(land.center).values():
            squares += float(weight.double().square().sum()) * max(weight[0].numel(), 1)
            count += weight.numel()
    # A sum of squares of n normal numbers is n within five times √(2n).
    assert abs(squares - count) < 5 * math.sqrt(2 * count)
