"""Control variates around the center: the same mean, less noise."""

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.errors import InputError
from crunode.sampling.control import ControlledBatches, partition
from crunode.sampling.engine import Engine
from crunode.sampling.posterior import Gaussian, Posterior

G = torch.Generator().manual_seed(0)
X, NOISE = torch.randn(200, 3, generator=G, dtype=torch.float64), torch.randn(200, 2, generator=G, dtype=torch.float64)


def regression(rows=200):
    net = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.arange(6.0).view(2, 3))
        y = net(X[:rows]) + NOISE[:rows]
    return cr.Landscape(net, (X[:rows], y), "gaussian")


def engine(land, control, layout="batched", chains=(0, 1)):
    nbeta = torch.full((len(chains),), 7.0, dtype=torch.float64)
    post = Posterior(land, 7.0, Gaussian(1.0))
    return Engine(post, list(chains), nbeta, seed=3, batch=20, layout=layout, control=control)


@pytest.mark.parametrize(("rows", "batch"), [(6, 4), (200, 20), (97, 10), (1000, 128)])
def test_partition_covers_examples_evenly(rows, batch):
    table = partition(rows, batch, 0, 10**6)
    counts = table.flatten().bincount(minlength=rows)
    assert table.shape[1] == batch
    assert int(counts.max()) - int(counts.min()) <= 1
    assert int((counts == counts.min()).sum()) < batch or int(counts.min()) == int(counts.max())


def test_batches_average_to_the_full_gradient_and_loss():
    land = regression()
    w = land.center + 0.1 * torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    point = w.expand(2, -1).clone()
    batches = ControlledBatches(land, 3, [0], 20)
    count = len(batches._index)
    rows = {}
    run = engine(land, True)
    for step in range(400):
        gradient, excess = run.at_step(step).likelihood(point)
        rows[int(run._batches._at(step)[0])] = (gradient[0].clone(), excess[0].clone())
    assert len(rows) == count == 10
    mean = torch.stack([g for g, _ in rows.values()]).mean(0)
    full = land.batch_gradient(w, next(iter(land.passes(200))))
    assert torch.allclose(mean, 7.0 * full)
    assert float(torch.stack([e for _, e in rows.values()]).mean()) == pytest.approx(float(land.loss(w) - land.loss()))


def test_noise_vanishes_at_the_center_and_falls_with_the_distance():
    land = regression()
    offset = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def spread(control, radius):
        run = engine(land, control)
        point = (land.center + radius * offset).expand(2, -1).clone()
        return torch.stack([run.at_step(s).likelihood(point)[0][0].clone() for s in range(100)]).var(0).sum()

    assert spread(True, 0.0) < 1e-20
    assert spread(True, 0.01) < 1e-3 * spread(False, 0.01)
    assert float(spread(True, 0.02) / spread(True, 0.01)) == pytest.approx(4, rel=1e-6)


def test_chains_have_the_same_batches_in_any_company():
    land = regression()
    point = land.center.expand(2, -1) + 0.1
    both, one = engine(land, True), engine(land, True, layout="sequential", chains=(1,))
    for step in (0, 5, 4096):
        together, alone = both.at_step(step).likelihood(point.clone()), one.at_step(step).likelihood(point[:1].clone())
        assert torch.allclose(together[0][1], alone[0][0])
        assert torch.allclose(together[1][1], alone[1][0])


def test_noisy_labels_turn_it_on_with_the_step_only():
    land = regression()
    tuned = cr.tune(Posterior(land, 100.0, Gaussian(1.0)), cr.SGLD(batch=10))
    assert tuned.kernel.control is True
    assert cr.tune(Posterior(land, 100.0, Gaussian(1.0)), cr.SGLD(batch=10, step=1e-4)).kernel.control is None
    assert cr.tune(Posterior(land.self_labelled(), 100.0, Gaussian(1.0)), cr.SGLD(batch=10)).kernel.control is False


def test_control_is_true_or_false():
    with pytest.raises(InputError, match="control"):
        cr.SGLD(control="yes")
