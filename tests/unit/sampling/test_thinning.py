"""A part of the examples in place of all: when it is taken, and that it has the same coefficient."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.spectrum import spectrum
from crunode.sampling.thinning import thinned


def linear_net(widths, n, seed=0, rows=None):
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(widths)])
    with torch.no_grad():
        for layer in net:
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / 2)
        x = torch.randn(n, widths[0], generator=generator) if rows is None else rows
        return cr.Landscape(net, (x, net(x)), "gaussian")


@pytest.mark.heavy
def test_a_part_has_the_rank_and_the_weight_of_all():
    land = linear_net([6, 4, 5], 50_000)
    part = thinned(land, seed=3)
    assert part.data.rows == 512
    assert part.n == 97 * 512
    assert spectrum(part, seed=0).rank.rank == spectrum(land, seed=0).rank.rank == 4 * (6 + 5) - 4 * 4
    assert torch.equal(part.center, land.center)
    assert land.data.rows == 50_000  # as it was
    again = thinned(land, seed=3)
    assert part.fingerprint() == again.fingerprint() != thinned(land, seed=4).fingerprint()


def test_many_parameters_take_more_examples():
    assert thinned(linear_net([30, 40, 2], 20_000)).data.rows == (2 * 1280 + 1 + 1) // 2


def test_where_a_part_gains_nothing_all_are_kept():
    assert thinned(linear_net([6, 4, 5], 45_000)) is None  # a full gradient is cheap
    assert thinned(linear_net([60, 40, 2], 4_000)) is None  # more than half would be needed


def test_inputs_that_a_part_would_miss_keep_all_examples():
    rare = torch.zeros(50_000, 6)
    rare[:, :5] = torch.randn(50_000, 5, generator=torch.Generator().manual_seed(0))
    rare[7, 5] = 1.0  # one example alone shows the weights of the last input
    assert thinned(linear_net([6, 4, 5], 0, rows=rare)) is None


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_llc_on_a_part_is_exact_and_says_so():
    land = linear_net([12, 10, 12], 20_000)  # 240 parameters: a full gradient would be costly
    estimate = cr.llc(land, chains=4, draws=100, warmup=60, seed=0)
    assert estimate.value == pytest.approx(10 * 24 / 2 - 100 / 2, abs=4 * estimate.error)
    assert "DATA505" in {f.code for f in estimate.findings}
    assert estimate.spec["kernel"]["name"] == "HMC"
    asked = cr.llc(land, kernel=cr.SGLD(step=1e-6, batch=64), chains=2, draws=10, warmup=5, seed=0)
    assert "DATA505" not in {f.code for f in asked.findings}
