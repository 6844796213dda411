"""Draws do not depend on how or where the chains run: all at once, one by one, or in other processes."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crunode.core.execute import Processes, Serial
from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.posterior import Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT

pytestmark = pytest.mark.heavy

MINIBATCH = [SGLD(2e-4, 16), PSGLD(2e-4, 16), SGHMC(2e-4, 16), SGNHT(2e-4, 16)]
FULL = [SGLD(2e-4, 96), PSGLD(2e-4, 96), SGHMC(2e-4, 96), SGNHT(2e-4, 96), MALA(2e-4), HMC(1e-3, leaps=4)]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
LENGTH = {"chains": 3, "draws": 20, "warmup": 10}


def classifier(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    x = torch.randn(96, 4, dtype=dtype)
    land = Landscape(model, (x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()), F.cross_entropy)
    return Posterior(land, (20.0, 60.0), Gaussian(1.0))


def draw(posterior, kernel, **options):
    return sample(posterior, kernel, keep=["positions", "pointwise"], seed=5, **{**LENGTH, **options})


def assert_same(one, other, tolerance):
    """Equal up to rounding, in units of how far the chains went."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        spread = float(np.abs(value - value[:, :1]).max()) + 1e-300
        assert float(np.abs(value - other[name]).max()) <= tolerance * spread, name


@pytest.fixture(autouse=True)
def _quiet_generators():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", MINIBATCH + FULL, ids=repr)
def test_batched_and_sequential_agree(kernel, dtype):
    posterior = classifier(dtype)
    together = draw(posterior, kernel, layout="batched")
    apart = draw(posterior, kernel, layout="sequential")
    assert together.spec["layout"] == {"layout": "batched", "why": "asked for"}
    assert apart.spec["layout"] == {"layout": "sequential", "why": "asked for"}
    assert together.arrays["positions"].dtype == np.dtype(str(dtype).removeprefix("torch."))
    assert_same(together.arrays, apart.arrays, TOLERANCE[dtype])
    assert_same(together.warmup, apart.warmup, TOLERANCE[dtype])


class Recorder:
    """Runs jobs in this process and keeps them, split as for two workers."""

    workers = 2

    def __init__(self):
        self.fn, self.jobs, self.outcomes = None, [], []

    def map(self, fn, jobs):
        self.fn = fn
        for job in jobs:
            self.jobs.append(job)
            self.outcomes.append(fn(job))
            yield self.outcomes[-1]


def test_other_processes_agree():
    """The jobs of all kernels go through one pool, whose processes take seconds to start."""
    recorder = Recorder()
    for kernel in MINIBATCH + FULL:
        draw(classifier(), kernel, layout="batched", executor=recorder, draws=8, warmup=4)
    draw(classifier(torch.float32), SGLD(2e-4, 16), layout="sequential", executor=recorder)
    outcomes = list(Processes(workers=2).map(recorder.fn, recorder.jobs))
    assert len(outcomes) == len(MINIBATCH + FULL) + 6
    for here, there in zip(recorder.outcomes, outcomes, strict=True):
        for name, value in here.arrays.items():
            np.testing.assert_array_equal(value, there.arrays[name], err_msg=name)


def test_sample_in_processes():
    posterior, kernel = classifier(), SGLD(2e-4, 16)
    apart = draw(posterior, kernel, layout="batched", executor=Processes(workers=2))
    assert_same(draw(posterior, kernel, layout="batched", executor=Serial()).arrays, apart.arrays, 1e-9)
    assert apart.spec["layout"]["layout"] == "batched"


class Item(nn.Linear):
    """Turns a tensor into a Python number."""

    def forward(self, x):
        y = super().forward(x)
        return y / (1 + y.detach().abs().max().item())


class Branches(nn.Linear):
    """Decides in Python by the value of an activation."""

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.sum() > 0 else y


class InPlace(nn.Linear):
    """Writes chain-dependent values into a tensor made without a chain axis."""

    def forward(self, x):
        out = torch.zeros(x.shape[0], self.out_features, dtype=x.dtype)
        return out.add_(super().forward(x))


class Counts(nn.Linear):
    """Writes to a buffer of its own."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x)


class LooksInside(nn.Linear):
    """Reads an activation through numpy."""

    def forward(self, x):
        y = super().forward(x)
        return y / (1 + float(np.abs(y.detach().numpy()).max()))


@pytest.mark.parametrize(
    "kind",
    [
        Item,
        Branches,
        InPlace,
        Counts,
        LooksInside,
    ],
)
@pytest.mark.parametrize("kernel", [SGLD(1e-4, 16), HMC(1e-4, leaps=2)], ids=repr)
def test_model_that_does_not_batch_falls_back(kind, kernel):
    model = kind(3, 1).double()
    data = torch.randn(48, 3, dtype=torch.float64), torch.randn(48, 1, dtype=torch.float64)
    draws = draw(Posterior(Landscape(model, data, "gaussian"), 10.0, Gaussian(1.0)), kernel)
    assert draws.spec["layout"]["layout"] == "sequential"
    assert "does not batch" in draws.spec["layout"]["why"]
    assert np.isfinite(draws.arrays["excess"]).all()


def mean_pool_loss(model, batch):
    return 0.5 * (model(batch["x"]).mean((1, 2)) - batch["y"]).square()


def ragged(lengths=(2, 5, 3, 7)):
    return [{"x": torch.randn(4 + k, n, 3).double(), "y": torch.randn(4 + k).double()} for k, n in enumerate(lengths)]


@pytest.mark.parametrize("kernel", [SGLD(1e-4, 4), SGLD(1e-4, 1000), HMC(1e-4, leaps=2)], ids=repr)
def test_ragged_batches_run_one_by_one(kernel):
    posterior = Posterior(Landscape(nn.Linear(3, 2).double(), ragged(), mean_pool_loss), 10.0, Gaussian(1.0))
    draws = draw(posterior, kernel)
    assert draws.spec["layout"] == {"layout": "sequential", "why": "batches have unlike shapes"}
    assert draws.arrays["pointwise"].shape == (3, 20, posterior.landscape.n)
    excess = draws.arrays["pointwise"].mean(2) - float(posterior.landscape.loss())
    if (kernel.batch or 1000) >= posterior.landscape.n:
        np.testing.assert_allclose(draws.arrays["excess"], excess, rtol=1e-8)
    with pytest.raises(InputError, match="unlike shapes"):
        draw(posterior, kernel, layout="batched")


def test_one_chain_is_not_batched():
    draws = sample(Posterior(classifier().landscape, 20.0, Gaussian(1.0)), SGLD(1e-4, 16), chains=1, draws=5, warmup=0)
    assert draws.spec["layout"] == {"layout": "sequential", "why": "one chain"}


def test_choice_is_recorded_with_its_reason():
    layout = draw(classifier(), SGLD(2e-4, 16)).spec["layout"]
    assert layout == {"layout": "batched", "why": "groups of up to 6 chains share the cost of each operation"}
