"""The linear form of the first layer against the whole model, for networks and points of any kind."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.topology.directions import Plane
from crunode.topology.plane_losses import Layout, plane_losses


@settings(max_examples=15)
@given(
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    bias=st.booleans(),
    count=st.integers(1, 2),
    points=st.integers(1, 5),
    rows=st.integers(1, 13),
    seed=st.integers(0, 1000),
)
def test_affine_layout_is_the_model(widths, bias, count, points, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    layers, inputs = [], 3
    for width in widths:
        layers += [nn.Linear(inputs, width, bias=bias), nn.ReLU()]
        inputs = width
    net = nn.Sequential(*layers, nn.Linear(inputs, 2, bias=bias)).double()
    x, y = (
        torch.randn(12, 3, generator=generator, dtype=torch.float64),
        torch.randn(12, 2, generator=generator).double(),
    )
    land = Landscape(net, (x, y), "gaussian")
    draw = torch.randn(count + 1, land.dim, generator=generator, dtype=torch.float64)
    plane = Plane(draw[0], draw[1:])
    at = torch.randn(9, count, generator=generator, dtype=torch.float64)
    values, told = plane_losses(land, plane.origin, plane.directions, at, Layout("affine", points, rows))
    assert told["name"] == "affine"
    np.testing.assert_allclose(values, [float(land.loss(plane.at(c))) for c in at], rtol=1e-10, atol=1e-10)
