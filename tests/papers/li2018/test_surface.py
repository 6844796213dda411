"""What the rows of `li2018-surface` say of planted numbers, and its network."""

import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.li2018 import surface as li


def planted(plain, skip=(0.1, 0.12, 0.11), shallow=(0.0, 0.01, 0.0), large=(2.0, 2.2, 1.9)):
    """Results with these nonconvex shares of deep networks, and this sharpness of large batches over small ones."""
    found = []
    for kind, blocks, shares in (("skip", 7, skip), ("plain", 7, plain), ("skip", 1, shallow), ("plain", 1, shallow)):
        for k, share in enumerate(shares):
            value = {"share": share, "ratio": share / 2, "loss": 0.4}
            found.append(Result(Cell(f"{kind} {blocks} {k}", {"kind": kind, "blocks": blocks}), value, 0.0))
    for decay in (0.0, 2e-3):
        for k, factor in enumerate(large):
            small = {"filter": 1.0, "none": 1.0, "norm": 1.0}
            value = {"small": small, "large": {"filter": factor, "none": factor, "norm": 1.0}}
            found.append(Result(Cell(f"{decay} {k}", {"decay": decay}), value, 0.0))
    return found


def verdicts(results):
    return {row.name: row.verdict for row in li.rows(results, "toy") if row.verdict != "shown"}


def test_clear_differences_agree():
    assert set(verdicts(planted((0.3, 0.35, 0.32))).values()) == {"agrees"}


@pytest.mark.parametrize("plain", [(0.1, 0.12, 0.11), (0.05, 0.9, 0.1), (0.01, 0.02, 0.01)])
def test_equal_scattered_and_opposite_shares_differ(plain):
    found = verdicts(planted(plain))
    assert found["16 layers: nonconvex share, without less with skip connections (lower 95 % limit)"] == "differs"


def test_sharper_small_batches_differ():
    found = verdicts(planted((0.3, 0.35, 0.32), large=(0.5, 0.6, 2.0)))
    assert [v for name, v in found.items() if "filter-normalized" in name] == ["differs", "differs"]


def test_failed_cells_leave_the_rest():
    some = [r for r in planted((0.3, 0.35, 0.32)) if r.settings.get("kind") != "plain"]
    assert set(verdicts(some).values()) == {"agrees"}


def test_skip_connections_pass_blocks():
    torch.manual_seed(0)
    with_skip, without = li.ResidualNet(3, True, 4, 7), li.ResidualNet(3, False, 4, 7)
    for net in (with_skip, without):
        for p in net.second.parameters():
            torch.nn.init.zeros_(p)
    x = torch.randn(5, 49)
    assert not torch.allclose(with_skip(x)[0], with_skip(x)[1])
    assert torch.allclose(without(x)[0], without(x)[1])


def test_cells_are_one_for_each_network_decay_and_seed_and_one_that_is_rescaled():
    """Three trainings of 4 and 16 layers on 9 × 9 points at toy size; 4, 20 and 56 layers at paper size."""
    for size, layers, seeds, points, probed in (("toy", {4, 16}, 3, 9, 0), ("paper", {4, 20, 56}, 5, 31, 5)):
        cells = [cell.settings for cell in li.cells(size, 0)]
        surfaces = [s for s in cells if "kind" in s]
        assert {(2 * s["blocks"] + 2, s["kind"]) for s in surfaces} == {
            (depth, kind) for depth in layers for kind in ("skip", "plain")
        }
        assert len(surfaces) == 2 * len(layers) * seeds
        assert {s["index"] for s in surfaces} == set(range(seeds))
        assert {(s["points"], s["probed"], s["epochs"]) for s in surfaces} == {(points, probed, 60)}
        # A surface has a point in its middle.
        assert points % 2 == 1
        # Networks of one seed are compared, and have it in common.
        assert len({(s["index"], s["seed"]) for s in surfaces}) == seeds
        decays = [s for s in cells if "decay" in s]
        assert sorted({s["decay"] for s in decays}) == [0.0, 0.002]
        assert len(decays) == 2 * seeds
        (rescaled,) = [s for s in cells if "factor" in s]
        assert rescaled["factor"] == 3
        assert {s["n"] for s in (*decays, rescaled)} == {256}


def test_surfaces_are_trained_with_the_decay_of_the_paper_and_reach_half_a_direction(monkeypatch):
    """Weight decay 5e-4 for all networks (experimental setup of Li et al.)."""
    seen = {}

    def training(net, x, y, **settings):
        seen.update(settings, shape=tuple(x.shape))
        return 1

    monkeypatch.setattr(li, "trained", training)
    settings = {"blocks": 1, "kind": "skip", "channels": 2, "pool": 4, "n": 20, "epochs": 7, "points": 5}
    found = li._surface({**settings, "probed": 0, "seed": 1, "index": 0})
    assert (seen["decay"], seen["epochs"], seen["batch"], seen["rate"]) == (0.0005, 7, 50, 0.05)
    assert seen["shape"] == (20, 49)
    losses = torch.tensor(found["losses"])
    assert losses.shape == (5, 5)
    # The middle of the plane is the network itself.
    assert float(losses[2, 2]) == pytest.approx(found["loss"], rel=1e-5)
    assert found["highest"] == pytest.approx(float(losses.max()))


def test_sharpness_of_a_quadratic_is_the_mean_curvature_of_normal_directions(monkeypatch):
    """(L(w + hd) + L(w − hd) − 2L(w))/h² = dᵀHd, whatever h is; eight directions."""
    seen = []

    def drawn(land, count, normalize, seed):
        d = torch.tensor([1.0 + len(seen), 2.0])
        seen.append((normalize, seed, d))
        return d

    def along(land, d, points, extent):
        loss = lambda t: 3 + 5 * t * float(d[0]) + (t * float(d[0])) ** 2 + 2 * (t * float(d[1])) ** 2  # noqa: E731
        return type("Line", (), {"losses": [loss(t) for t in (-extent, 0.0, extent)]})

    monkeypatch.setattr(li, "random_directions", drawn)
    monkeypatch.setattr(li, "profile", along)
    for way in ("filter", "none"):
        seen.clear()
        found = li.sharpness(None, way, 0)
        assert found == pytest.approx(sum(2 * float(d[0]) ** 2 + 4 * float(d[1]) ** 2 for *_, d in seen) / 8, rel=1e-6)
        assert len({seed for _, seed, _ in seen}) == 8
        assert {name for name, *_ in seen} == {way}


def test_training_is_sgd_with_momentum_clipped_and_stops_at_its_level():
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    nets = []
    for _ in range(2):
        torch.manual_seed(1)
        nets.append(torch.nn.Linear(3, 2))
    options = {"epochs": 3, "batch": 5, "rate": 0.5, "decay": 0.1, "seed": 4}
    assert li.trained(nets[0], x, y, **options) == 9  # batches of 5, 5 and 2
    generator = torch.Generator().manual_seed(4)
    speed = [torch.zeros_like(p) for p in nets[1].parameters()]
    for _ in range(3):
        for index in torch.randperm(12, generator=generator).split(5):
            loss = torch.nn.functional.cross_entropy(nets[1](x[index]), y[index])
            slopes = torch.autograd.grad(loss, list(nets[1].parameters()))
            size = torch.sqrt(sum(s.square().sum() for s in slopes))
            with torch.no_grad():
                for v, p, s in zip(speed, nets[1].parameters(), slopes, strict=True):
                    v.mul_(0.9).add_(s / max(1.0, float(size)) + 0.1 * p)
                    p.sub_(0.5 * v)
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert li.trained(nets[0], x, y, **options, level=1e9) == 3
