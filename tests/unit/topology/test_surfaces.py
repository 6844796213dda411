"""Surfaces against plain loops, by every layout; bad input; files; measures."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.core.result import Estimate, Finding
from crunode.errors import EstimationError, InputError, StoreError
from crunode.topology.directions import Plane, line_between, random_directions
from crunode.topology.plane_losses import Layout, first_layer, plane_losses
from crunode.topology.surfaces import Surface, nonconvex_share, profile, surface


class Residual(nn.Module):
    """No chain of layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(x + torch.tanh(self.a(x)))


def chain(*, bias=True, inplace=False):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 5, bias=bias),
        nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(5, 4)),
        nn.Tanh(),
        nn.Linear(4, 2),
    )


def made(net, shape=(7, 6), dtype=torch.float64, loss="gaussian"):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.7 * torch.randn(p.shape, generator=generator))
    x = torch.randn(*shape, generator=generator, dtype=dtype)
    y = (
        torch.arange(shape[0]) % 2
        if loss == "cross-entropy"
        else torch.randn(shape[0], 2, generator=generator).to(dtype)
    )
    return Landscape(net.to(dtype), (x, y), loss)


MODELS = {
    "chain": (lambda: chain(), (40, 6)),
    "images": (lambda: chain(), (40, 2, 3)),
    "no bias": (lambda: chain(bias=False), (40, 6)),
    "in place": (lambda: chain(inplace=True), (40, 6)),
    "one layer": (lambda: nn.Linear(6, 2), (40, 6)),
    "residual": (lambda: Residual(), (40, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), (40, 1, 6)),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("loss", ["gaussian", "cross-entropy"])
def test_surface_is_a_plain_loop_of_landscapes(name, loss):
    make, shape = MODELS[name]
    land = made(make(), shape, loss=loss)
    plane = random_directions(land, seed=3)
    seen = surface(land, plane, points=(5, 4), extent=((-1.0, 1.5), (-2.0, 0.5)))
    for i, a in enumerate(seen.coordinates[0]):
        for j, b in enumerate(seen.coordinates[1]):
            point = land.center + a * plane.directions[0] + b * plane.directions[1]
            assert abs(seen.losses[i, j] - float(land.at(point).loss())) < 1e-10


@pytest.mark.parametrize(
    "layout",
    [Layout("sequential", 1, 16), Layout("batched", 3, 16), Layout("affine", 1, 16), Layout("affine", 4, 11)],
    ids=str,
)
def test_layouts_agree(layout, monkeypatch):
    monkeypatch.setattr("crunode.topology.plane_losses._HELD", 16 * 3 * 5)  # several blocks of examples
    land = made(chain(), (50, 6))
    plane = random_directions(land, seed=1)
    at = torch.randn(10, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values, told = plane_losses(land, plane.origin, plane.directions, at, layout)
    plain = [float(land.loss(plane.at(c))) for c in at]
    np.testing.assert_allclose(values, plain, rtol=0, atol=1e-12)
    assert told["name"] == layout.name


def test_affine_layout_is_offered_and_taken_for_wide_inputs():
    land = made(nn.Sequential(nn.Linear(900, 4), nn.ReLU(), nn.Linear(4, 2)), (400, 900), torch.float32)
    seen = surface(land, points=7)
    assert seen.spec["evaluation"]["name"] == "affine"
    assert seen.spec["evaluation"]["points"] >= 1


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (chain(), "1.weight"),
        (nn.Linear(6, 2), "weight"),
        (Residual(), None),
        (nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)), None),
    ],
    ids=["chain", "one layer", "residual", "norm"],
)
def test_chains_are_told_from_other_models(net, expected):
    land = made(net.eval(), (12, 3 if isinstance(net, Residual) else 6))
    assert first_layer(land) == expected


def test_reused_layers_are_no_chain():
    shared = nn.Linear(6, 6)
    land = made(nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(6, 2)), (12, 6))
    assert first_layer(land) is None


def test_hooks_are_followed():
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    net[1].register_forward_hook(lambda module, given, output: 2 * output)
    land = made(net, (12, 6))
    seen = profile(land, points=5)
    assert first_layer(land) is None
    assert seen.losses[2] == pytest.approx(float(land.loss()), abs=1e-12)


def test_frozen_first_layer_stays():
    net = chain().double()
    net[1].requires_grad_(False)
    land = made(net, (30, 6))
    plane = random_directions(land, seed=5)
    at = torch.tensor([[0.3, -0.4], [1.0, 1.0]], dtype=torch.float64)
    values, _ = plane_losses(land, plane.origin, plane.directions, at, Layout("affine", 2, 30))
    np.testing.assert_allclose(values, [float(land.loss(plane.at(c))) for c in at], atol=1e-12)


def test_scalar_losses_and_unlike_batches():
    net = Residual().double()
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scalar = Landscape(net, (x, x[:, :2]), lambda model, batch: (model(batch[0]) - batch[1]).square().mean())
    unlike = Landscape(net, [(x[:5], x[:5, :2]), (x[5:], x[5:, :2])], "gaussian")
    for land in (scalar, unlike):
        plane = random_directions(land, 1)
        seen = profile(land, plane, points=5)
        plain = [float(land.loss(plane.at([c]))) for c in seen.coordinates[0]]
        np.testing.assert_allclose(seen.losses, plain, atol=1e-12)


def test_caller_keeps_everything():
    net = chain().train()
    land = made(net)
    weights = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    one, other = surface(land, points=5, seed=4), surface(land, points=5, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    assert all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-12)
    assert not np.allclose(one.losses, surface(land, points=5, seed=5).losses)


def test_infinite_losses_are_holes():
    land = Landscape.of_function(lambda w: -torch.log(1 - w.square().sum()), torch.zeros(2, dtype=torch.float64))
    seen = surface(land, Plane(land.center, torch.eye(2, dtype=torch.float64)), extent=1.0, points=5)
    assert np.isnan(seen.losses[0, 0])
    assert np.isnan(seen.losses[0, 2])
    assert seen.losses[2, 2] == 0
    assert [f.code for f in seen.findings] == ["TOPO1141"]
    assert seen.ok
    far = surface(land, Plane(land.center, torch.eye(2, dtype=torch.float64)), extent=((2, 3), (2, 3)), points=5)
    assert not far.ok
    assert "no finite loss" in str(far)
    with pytest.raises(InputError, match="none"):
        nonconvex_share(far)


def well():
    return Landscape.of_function(lambda w: (w**2 - 1).square().sum(), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "from 2 up"),
        ({"points": (5, 5, 5)}, "from 2 up"),
        ({"extent": 0.0}, "positive number"),
        ({"extent": ((1, 0), (0, 1))}, "positive number"),
        ({"extent": (1.0, 2.0, 3.0)}, "positive number"),
        ({"extent": float("nan")}, "positive number"),
        ({"plane": torch.eye(2)}, "a Plane with 2 directions"),
        ({"plane": Plane(torch.zeros(2), torch.ones(1, 2))}, "a Plane with 2 directions"),
        ({"plane": Plane(torch.zeros(3), torch.eye(3)[:2])}, "2 free parameters"),
        ({"probes": {"loss": float}}, "other than 'loss'"),
    ],
)
def test_bad_input(options, message):
    land = well()
    with pytest.raises(InputError, match=message):
        surface(land, **({"plane": Plane(land.center, torch.eye(2, dtype=torch.float64))} | options))


def test_probes_color_the_points():
    land = well()

    def far(there):
        if float(there.center.norm()) > 1.6:
            raise EstimationError("too far")
        return Estimate("distance", float(there.center.norm()), se=0.25)

    def doubtful(there):
        bad = (Finding.of("TOPO1103", "here"),) if float(there.center[0]) < 1 else ()
        return Estimate("doubtful", 1.0, se=0.0, findings=bad)

    plane = Plane(land.center, torch.eye(2, dtype=torch.float64))
    probes = {"distance": far, "doubtful": doubtful, "plain": lambda there: float(there.loss())}
    seen = surface(land, plane, extent=0.5, points=3, probes=probes)
    assert seen.values["distance"][0, 0] == pytest.approx(math.sqrt(0.5))
    assert seen.errors["distance"][0, 0] == 0.25
    assert np.isnan(seen.values["distance"][2, 2])
    assert np.isnan(seen.values["doubtful"][0]).all()
    assert (seen.values["doubtful"][1:] == 1).all()
    np.testing.assert_allclose(seen.values["plain"], seen.losses, atol=1e-12)
    assert [f.code for f in seen.findings] == ["TOPO1144", "TOPO1144"]
    with pytest.raises(InputError, match="a number from the probe"):
        surface(land, plane, points=3, probes={"words": lambda there: "text"})


def test_extent_shows_marked_points():
    land = well()
    line = line_between(land, torch.ones(2), -torch.ones(2))
    assert profile(land, line, points=3).coordinates[0].tolist() == [-0.25, 0.5, 1.25]


def test_files_round_trip_and_damage_is_found(tmp_path):
    land = well()
    plane = Plane(land.center, torch.eye(2, dtype=torch.float64), marks={"center": torch.zeros(1, 2)}, seed=3)
    seen = surface(land, plane, points=4, extent=400.0, probes={"norm": lambda there: there.center.norm()})
    path = seen.save(tmp_path / "a")
    back = Surface.load(path)
    for group in ("values", "errors", "marks"):
        for name, value in getattr(seen, group).items():
            np.testing.assert_array_equal(getattr(back, group)[name], value)
    np.testing.assert_array_equal(back.losses, seen.losses)
    assert (back.spec, back.seed, back.labels, back.findings) == (seen.spec, 3, seen.labels, seen.findings)
    data = bytearray((tmp_path / "a.safetensors").read_bytes())
    data[-3] ^= 1
    (tmp_path / "a.safetensors").write_bytes(bytes(data))
    with pytest.raises(StoreError, match="corrupt"):
        Surface.load(path)


def test_curvatures_are_those_of_a_quadratic():
    matrix = torch.tensor([[1.0, 2.0], [2.0, -3.0]], dtype=torch.float64)
    land = Landscape.of_function(lambda w: 0.5 * w @ matrix @ w + w.sum(), torch.zeros(2, dtype=torch.float64))
    seen = surface(land, Plane(land.center, torch.eye(2, dtype=torch.float64)), points=(7, 9))
    low, high = np.linalg.eigvalsh(matrix.numpy())
    for stride in (1, 2):
        found = seen.curvatures(stride)
        assert found[0].shape == (7 - 2 * stride, 9 - 2 * stride)
        np.testing.assert_allclose(found[0], low, atol=1e-9)
        np.testing.assert_allclose(found[1], high, atol=1e-9)
    assert nonconvex_share(seen).value == 1.0
    with pytest.raises(InputError, match="5 points"):
        nonconvex_share(surface(land, Plane(land.center, torch.eye(2, dtype=torch.float64)), points=4))


def test_share_of_a_convex_bowl_is_zero_and_flat_ones_are_found():
    land = Landscape.of_function(lambda w: 1 + w[0] ** 2, torch.zeros(2))
    seen = surface(land, Plane(land.center, torch.eye(2)), points=9)
    share = nonconvex_share(seen)
    assert share.value == 0
    assert "TOPO1145" in [f.code for f in share.findings]  # along w[1] there is no curvature to sign
    assert share.systematic == pytest.approx(0.5)
    line = profile(land, Plane(land.center, torch.eye(2)[:1]), points=9)
    assert nonconvex_share(line).value == 0
