"""Potentials of `murfet2020-volume` as integrals, and what rows say of volumes and criteria made by hand."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import integrate

from crunode.jobs.recipe import Cell, Result
from crunode_papers.murfet2020 import volume as murfet2020_volume
from crunode_papers.watanabe2013 import selection as model_selection

CASES = murfet2020_volume.CASES


def value(name, *w):
    return float(CASES[name].potential(torch.tensor([w], dtype=torch.float64))[0])


def relu(x):
    return max(x, 0.0)


def integral(f, low, high, kinks):
    return integrate.quad(f, low, high, points=[k for k in kinks if low < k < high], limit=200)[0]


@pytest.mark.parametrize("b", [-1.5, -0.2, 0.0, 0.3, 1.1])
def test_a_shift_of_a_unit_is_its_integral_over_an_interval_of_four(b):
    exact = integral(lambda x: (relu(x - b) - relu(x)) ** 2, -2, 2, (0, b))
    assert value("relu-shift", b) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 3.0), (1.4, 0.6)])
def test_a_scaled_unit_is_its_mean_over_an_interval(a, b):
    exact = integral(lambda x: (a * relu(b * x) - relu(x)) ** 2 / 2, -1, 1, (0,))
    assert value("relu-scaling", a, b) == pytest.approx(exact, abs=1e-9)


def test_other_potentials_are_as_they_are_written():
    assert value("regular", 1.0, 2.0, 3.0) == 14
    assert value("minimal", 2.0, 3.0, 5.0, 7.0) == 45
    assert value("crossing", 2.0, 3.0) == 36
    assert value("cusp", 2.0, 3.0) == (4 - 27) ** 2
    b, a = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, -1.0], [2.0, 0.1]])
    assert value("reduced-rank-zero", *b.ravel(), *a.ravel()) == pytest.approx(np.square(b @ a).sum())
    assert value("reduced-rank", *b.ravel(), *a.ravel()) == pytest.approx(np.square(b @ a - np.eye(2)).sum())
    total = [0.5 * math.tanh(0.7 * x) - 1.5 * math.tanh(0.2 * x) for x in (0.25, 0.5, 0.75, 1.0)]
    assert value("tanh", 0.5, -1.5, 0.7, 0.2) == pytest.approx(np.mean(np.square(total)))


@pytest.mark.parametrize("name", CASES)
def test_potentials_vanish_at_the_true_parameters_and_nowhere_below(name):
    case = CASES[name]
    assert value(name, *case.at) == 0
    near = torch.rand(50, len(case.at), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(case.potential(torch.tensor(case.at) + case.radius * (2 * near - 1)).min()) >= 0


def test_exponents_are_those_of_the_theorems():
    known = {"regular": "3/2", "minimal": "1", "reduced-rank": "2", "relu-shift": "1/2", "relu-scaling": "1/2"}
    known |= {"crossing": "1/2", "cusp": "5/12"}
    assert {name: CASES[name].half for name in known} == {name: Fraction(x) for name, x in known.items()}
    assert CASES["reduced-rank-zero"].half < CASES["reduced-rank-zero"].printed == 2
    assert [name for name, case in CASES.items() if case.multiplicity != 1] == ["crossing"]


def volumes(name, exponent, constant=0.0, error=0.01):
    t = [2.0**-k for k in range(5, 45)]
    found = {"value": exponent, "error": 0.02, "multiplicity": 1, "findings": [], "t": t}
    found |= {"log_volume": [constant + exponent * math.log(s) for s in t], "log_volume_se": [error] * len(t)}
    return Result(Cell(name, {"case": name}), found, 1.0)


def test_rows_hold_exponents_their_doubles_and_the_constant_against_theorems():
    rows = murfet2020_volume.rows([volumes("minimal", 1.0, math.log(math.pi / 12))], "toy")
    assert [row.verdict for row in rows] == ["agrees"] * 3
    assert [row.paper for row in rows] == pytest.approx([1, 2, math.log(math.pi / 12)])
    assert [row.ours for row in rows] == pytest.approx([1, 2, math.log(math.pi / 12)])
    # Twice the error of a difference of two volumes, over sixteen halvings.
    assert [row.se for row in rows] == pytest.approx([0.02, 2 * 0.01 * math.sqrt(2) / (16 * math.log(2)), 0.01])
    rows = murfet2020_volume.rows([volumes("minimal", 1.2, 0.5)], "toy")
    assert [row.verdict for row in rows] == ["differs"] * 3
    zero = CASES["reduced-rank-zero"].half
    rows = murfet2020_volume.rows([volumes("reduced-rank-zero", float(zero))], "toy")
    assert [row.verdict for row in rows] == ["agrees", "explained", "agrees"]
    rows = murfet2020_volume.rows([volumes("crossing", 0.4)], "toy")
    assert [row.verdict for row in rows] == ["differs", "explained"]


def test_box_shares_of_a_narrow_ellipse_have_the_constant_of_the_table():
    w = 2 * torch.rand(400_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    share = float((CASES["minimal"].potential(w) < 0.5).double().mean())
    assert share / 0.5 == pytest.approx(math.pi / 12, rel=0.02)


# Selection of a model

SCATTER = np.array([-0.1, 0.1, -0.1, 0.1])
N = max(model_selection._PLANS["toy"]["weak"])


def block(hidden, n=N, truth="weak", **columns):
    names = ("free", "free_se", "wbic", "law", "bic", "waic", "fit")
    found = {name: list(columns.get(name, [0.0] * 4)) for name in names}
    return Result(Cell("x", {"truth": truth, "n": n, "hidden": hidden}), found, 1.0)


def test_right_picks_are_counted_and_wrong_ones_told_by_their_side():
    best = {"wbic": (2, 2, 2, 2), "bic": (1, 2, 1, 2), "waic": (3, 4, 2, 1), "free": (2, 2, 2, 2), "law": (2, 2, 2, 2)}
    blocks = [
        block(h, **{name: [0.0 if h == pick else 1.0 for pick in picks] for name, picks in best.items()})
        for h in model_selection.SIZES
    ]
    rows = {row.name: row for row in model_selection._picks(blocks, "toy")}
    told = {name: rows[f"weak truth, n = {N}: right by {name}"] for name in ("F", "WBIC", "BIC", "WAIC")}
    assert {name: row.ours for name, row in told.items()} == {"F": 1.0, "WBIC": 1.0, "BIC": 0.5, "WAIC": 0.25}
    assert told["BIC"].note.endswith("too small in 50 %, too large in 0 %")
    assert told["WAIC"].note.endswith("too small in 25 %, too large in 50 %")
    gain = rows[f"weak truth, n = {N}: right by WBIC less right by BIC"]
    assert (gain.ours, gain.verdict) == (0.5, "agrees")
    assert gain.se == pytest.approx(np.std([1, 0, 1, 0], ddof=1) / 2)


def test_distances_are_ratios_of_means_with_their_error():
    gaps = {"wbic": np.array([1.0, -2.0, 3.0, 0.5]), "bic": np.array([9.0, 7.0, 8.0, 10.0]), "law": np.full(4, 30.0)}
    free = np.array([5.0, 6.0, 7.0, 8.0])
    columns = {"free": free, **{name: free + gap for name, gap in gaps.items()}}
    rows = model_selection._distances([block(h, **columns) for h in model_selection.SIZES], "toy")
    assert len(rows) == 9
    for wbic, law, bic in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert [row.verdict for row in (wbic, law, bic)] == ["agrees", "differs", "agrees"]
        assert wbic.ours == pytest.approx(6.5 / 34)
        assert law.ours == pytest.approx(120 / 34)
        assert bic.ours == pytest.approx(8.5)
        assert bic.se == pytest.approx(gaps["bic"].std(ddof=1) / 2)
        # By the delta method for a ratio of means.
        x, y = np.abs(gaps["wbic"]), gaps["bic"]
        cov = np.cov(x, y)
        slope = np.array([1, -x.mean() / y.mean()]) / y.mean()
        assert wbic.se == pytest.approx(math.sqrt(slope @ cov @ slope / 4))


def test_free_energies_grow_with_the_exact_coefficients():
    low, high = min(model_selection._PLANS["toy"]["strong"]), max(model_selection._PLANS["toy"]["strong"])
    # λ of reduced rank regression of 4 × 4 maps of rank 2 (Aoyagi & Watanabe 2005), with multiplicity 2 for H = 3.
    known = {2: (6.0, 1), 3: (7.0, 2), 4: (7.5, 1)}
    for off, verdict in ((0.0, "agrees"), (1.0, "differs")):
        blocks = []
        for hidden, (size, order) in known.items():
            for n in (low, high):
                free = 3 + SCATTER + (size + off) * math.log(n) - (order - 1) * math.log(math.log(n))
                blocks.append(block(hidden, n, "strong", free=free, fit=[3.0] * 4))
        rows = model_selection._growth(blocks, "toy")
        se = math.sqrt(2) * SCATTER.std(ddof=1) / 2 / math.log(high / low)
        assert [row.verdict for row in rows] == [verdict] * 3
        assert [row.se for row in rows] == pytest.approx([se] * 3)
