"""What volumes report beside their law, how long their steps are, and potentials that are below zero."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.estimators import volume
from crunode.estimators.volume import _diagnostics, _findings, _of_landscape, _Splitting
from crunode.estimators.volume_law import VolumeLaw


def law(weights=None, surprise=0.0):
    weights = weights or {1: 1.0}
    return VolumeLaw(0.5, 0.1, {}, weights, dict.fromkeys(weights, 0.5), 3.0, surprise)


def found(law, steps=21, accepted=(0.3, 0.5)):
    return {f.code: f.message for f in _findings(law, np.ones((steps, 4)), 20, SimpleNamespace(accepted=accepted))}


def test_what_is_in_doubt_is_reported():
    assert found(law()) == {}
    assert "χ² is 3 per degree" in found(law(surprise=6.0))["VOL601"]
    assert found(law(surprise=-6.0)) == found(law(surprise=4.0)) == {}
    open_ = found(law({1: 0.3, 2: 0.64, 3: 0.06, 4: 0.0}))
    assert list(open_) == ["VOL602"]
    assert "m = 2 (64 %) or m = 1 (30 %) or m = 3 (6 %)" in open_["VOL602"]
    assert "m = 4" not in open_["VOL602"]
    assert found(law({1: 0.08, 2: 0.92})) == {}
    short = found(law(), steps=20)
    assert list(short) == ["VOL603"]
    assert "19 of 20 halvings" in short["VOL603"]
    stuck = found(law(), accepted=(0.5, 0.01, 0.3))
    assert list(stuck) == ["VOL604"]
    assert "1 % of the steps" in stuck["VOL604"]


def test_curves_have_the_error_of_products_over_replicas():
    shares = np.random.default_rng(0).uniform(0.3, 0.7, (5, 6))
    rows = _diagnostics(law({1: 0.2, 2: 0.8}), shares, 8.0, SimpleNamespace(accepted=[0.5, 0.2, 0.3]))
    assert rows["t"] == [8.0, 4.0, 2.0, 1.0, 0.5]
    for k in range(5):
        assert rows["log_volume"][k] == pytest.approx(math.log(np.prod(shares.mean(1)[: k + 1])))
        whole = np.log(shares[: k + 1]).sum(0)
        assert rows["log_volume_se"][k] == pytest.approx(whole.std(ddof=1) / math.sqrt(6))
    assert rows["acceptance"] == 0.2
    assert (rows["multiplicity"], rows["weights"], rows["misfit"]) == (2, {"1": 0.2, "2": 0.8}, 3.0)
    assert rows["by_multiplicity"] == {"1": 0.5, "2": 0.5}


def splitting(dim, potential=lambda w: w[:, 0] ** 2, radius=1.0, center=0.0):
    at = torch.full((dim,), center, dtype=torch.float64)
    return _Splitting(potential, at, radius, "box", 100, 2, 0, 0.0)


@pytest.mark.parametrize("kind", [0, 3])
def test_stretches_go_from_a_few_percent_to_several_times(kind):
    run = splitting(1)
    x = torch.full((4000, 1), 1e-9, dtype=torch.float64)  # far from the ends: what grows is always taken
    y, _ = run._moved(x, x[:, 0] ** 2, math.inf, kind, 3.0)
    logs = (y / x).log()
    grown = logs[logs > 0]
    assert 0.4 < len(grown) / 4000 <= 0.52
    low, middle, high = (float(v) for v in grown.quantile(torch.tensor([0.1, 0.5, 0.9]).double()))
    assert 0.003 < low < 0.06
    assert 0.1 < middle < 0.6
    assert 0.8 < high < 15
    # What shrinks is taken by as much less as the volume is.
    shrunk = -logs[logs < 0]
    assert 0.2 * len(grown) < len(shrunk) < 0.95 * len(grown)
    assert float(shrunk.quantile(0.9)) < high


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize(("decades", "radius"), [(3.0, 1.0), (8.0, 50.0)])
def test_steps_are_spread_evenly_over_the_decades_below_the_radius(kind, decades, radius):
    run = splitting(1, radius=radius)
    x = torch.zeros(4000, 1, dtype=torch.float64)
    y, _ = run._moved(x, x[:, 0], math.inf, kind, decades)
    sizes = ((y - x)[y != x].abs() / radius).log10()
    # log |N| has the mean −0.276 and the deviation 0.48 in decades; steps that leave the box are few.
    assert float(sizes.mean()) == pytest.approx(-decades / 2 - 0.3, abs=0.15)
    assert float(sizes.std()) == pytest.approx(math.hypot(decades / math.sqrt(12), 0.48), rel=0.08)
    assert float((y > 0).double().mean()) == pytest.approx(0.5, abs=0.05)


def test_what_is_below_zero_by_rounding_is_zero_and_what_is_not_is_refused():
    fine = splitting(1, lambda w: torch.where(w[:, 0] > 0, w[:, 0], -1e-15))
    assert fine._values(torch.tensor([[-1.0], [0.5]]).double()).tolist() == [0.0, 0.5]
    low = splitting(1, lambda w: w[:, 0], center=10.0)
    with pytest.raises(cr.InputError, match=r"got -2 at \[-2\.0\]"):
        low._values(torch.tensor([[-11.0], [-12.0], [5.0]]).double())


def test_losses_of_landscapes_are_above_that_of_their_center():
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.randn(30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    net = torch.nn.Linear(2, 1, bias=False).double()
    best = torch.linalg.lstsq(x, y).solution[:, 0]
    with torch.no_grad():
        net.weight.copy_(best[None])
    potential, center, floor = _of_landscape(cr.Landscape(net, (x, y), "gaussian"))
    assert torch.equal(center, best)
    moves = torch.randn(7, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    wanted = 0.5 * (moves @ x.T).square().mean(1)
    assert potential(center + moves).tolist() == pytest.approx(wanted.tolist())
    depth = float(0.5 * (y[:, 0] - x @ best).square().mean())
    assert 1e-15 * depth < floor < 1e-11 * depth  # what is left of a difference of numbers of that size


def test_a_bar_is_full_when_all_levels_are_done(monkeypatch):
    bars = []

    class Bar:
        def __init__(self, total, label):
            self.total, self.done = total, 0
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def advance(self):
            self.done += 1

    monkeypatch.setattr(volume, "Progress", Bar)
    run = _Splitting(lambda w: w[:, 0] ** 2, torch.zeros(1, dtype=torch.float64), 1.0, "box", 100, 2, 0, 0.0)
    shares, _ = run.descend(4, 2)
    (bar,) = bars
    assert bar.done == bar.total == len(shares)
