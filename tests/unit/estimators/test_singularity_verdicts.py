"""Verdicts follow from what is known of the rank, and Hessians are counted as their signs say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.rank import NumericRank
from crunode.curvature.spectrum import Spectrum, spectrum
from crunode.estimators import singularity as module
from crunode.estimators.singularity import _verdict
from crunode.estimators.symmetries import Flat


def seen(low, high, *, rows=50, of=50, method="jacobian"):
    rank = NumericRank(low, low, high, 1e9, 1e-9, low == high)
    return Spectrum(method, np.ones(high), rank, False, rows, of, rows, rows, 0.0)


def flat(kind, new):
    return Flat(kind, new + 1, new, "here", "because of {where}", 0.0)


@pytest.mark.parametrize(
    ("here", "verdict", "says"),
    [
        (seen(8, 8), "regular", "full rank 8"),
        (seen(8, 8, rows=8), "regular", "full rank 8"),
        (seen(7, 8), "undecided", "between 7 and 8 of 8"),
        (seen(5, 6, rows=20), "undecided", "between 5 and 6 of 8"),
        (seen(5, 6), "singular", "rank 5 of 8: 3 flat directions"),  # less than 8 either way
        (seen(5, 5, rows=5), "undecided", "5 of 50 rows have rank 5"),  # another row may be independent of them
        (seen(5, 5, rows=6), "singular", "rank 5 of 8: 3 flat directions"),
        (seen(5, 5, rows=5, of=5), "singular", "rank 5 of 8"),  # there are no more rows
        (seen(7, 7), "singular", "rank 7 of 8: 1 flat direction"),
        (seen(8, 8, method="hessian"), "regular", "the Hessian has"),
        (seen(8, 8, method="jacobian sketch"), "regular", "the Fisher information has"),
    ],
)
def test_verdicts(here, verdict, says):
    found, why = _verdict(here, 8, (), None)
    assert found == verdict
    assert says in why
    assert "of which" not in why


def test_causes_are_added_up_by_kind():
    flats = (flat("scalings", 2), flat("shifts", 1), flat("scalings", 3))
    assert _verdict(seen(1, 1), 8, flats, 1)[1].endswith("of which 5 by scalings, 1 by shifts, 1 not explained")
    assert _verdict(seen(2, 2), 8, flats, 0)[1].endswith("of which 5 by scalings, 1 by shifts")


def potential(fn, dim):
    return cr.singularity(cr.Landscape.of_function(fn, torch.zeros(dim).double()))


def test_signs_and_zeros_of_the_hessian():
    saddle = potential(lambda w: w[0] ** 2 - w[1] ** 2 + 3 * w[2] ** 2 + 0 * w[3], 4)
    assert saddle.hessian.tolist() == pytest.approx([6, 2, 0, -2])
    assert (saddle.hessian_zero, saddle.hessian_negative, saddle.parameters) == (1, 1, 4)
    # Far below one, but far above rounding, and the other way round.
    small = potential(lambda w: w[0] ** 2 - 1e-9 * w[1] ** 2, 2)
    assert (small.hessian_zero, small.hessian_negative) == (0, 1)
    none = potential(lambda w: w[0] ** 2 - 1e-18 * w[1] ** 2, 2)
    assert (none.hessian_zero, none.hessian_negative) == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_report_has_each_number_under_its_name(monkeypatch, dtype):
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).to(dtype)
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(k)))
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(9)).to(dtype)
    land = cr.Landscape(net, (x, net(x).detach()), "gaussian")
    report = cr.singularity(land)
    here = spectrum(land)
    assert (report.parameters, report.rank, report.rank_range) == (9, 7, (7, 7))
    assert (report.hessian_zero, report.hessian_negative, report.unexplained) == (2, 0, 0)
    assert report.fisher == pytest.approx(here.curvatures, rel=1e-5, abs=1e-9)
    assert report.hessian[:7] == pytest.approx(report.fisher[:7], rel=1e-3)  # at a truth they are one
    assert (report.details["rows_used"], report.details["rows"]) == (40, 40)
    assert report.details["method"] == "jacobian"
    assert report.details["gap"] == pytest.approx(here.rank.gap, rel=0.5)
    assert report.details["tolerance"] == pytest.approx(here.rank.tolerance)
    assert "reason" not in report.details
    partly = replace(here, rows=30, rank=NumericRank(6, 6, 7, float("inf"), 0.1, False), slope=float("nan"))
    monkeypatch.setattr(module, "spectrum", lambda land, seed: replace(partly, reason="so"))
    report = cr.singularity(land)
    assert (report.rank, report.rank_range) == (6, (6, 7))
    assert report.unexplained == 1  # nine less six, of which scalings are two
    names = ("rows_used", "rows", "gap", "tolerance", "realised", "reason")
    assert [report.details[name] for name in names] == [30, 40, None, 0.1, None, "so"]
    monkeypatch.setattr(module, "spectrum", lambda land, seed: replace(partly, method="jacobian sketch"))
    assert cr.singularity(land).unexplained is None
    monkeypatch.setattr(module, "_MOST", 8)
    report = cr.singularity(land)
    assert (len(report.hessian), report.hessian_zero, report.hessian_negative) == (0, None, None)
    assert report.flat == ()
