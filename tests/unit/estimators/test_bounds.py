"""Bounds hold exact values, meet where theory says so, and an estimate below them is found out."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.estimators.bounds import rank_finding
from crunode.examples import toys


def data(rows=60, inputs=3, seed=0):
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


def net(act=nn.Tanh, hidden=4, outputs=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, hidden), act(), nn.Linear(hidden, outputs))


def own(model, x, loss="gaussian"):
    return cr.Landscape(model, (x, model(x).detach()), loss)


@pytest.mark.heavy
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("case", [(2, 2, 2, 0), (5, 3, 5, 0), (5, 4, 5, 0), (4, 3, 8, 0), (3, 8, 4, 0), (6, 4, 6, 2)])
def test_reduced_rank_regression_lies_inside(case, noise):
    found = cr.bounds(toys.reduced_rank(*case, n=80, noise=noise))
    inputs, _, outputs, rank = case
    low, high = found.bounds
    assert found.status == "interval"
    assert low == Fraction(rank * (inputs + outputs) - rank**2, 2)  # rank of the Jacobian at the most singular point
    assert low <= toys.exact_reduced_rank(*case) <= high < Fraction(found.details["parameters"], 2)
    assert ("found, to rounding" in found.hypotheses[0]) == (noise == 0)


@pytest.mark.parametrize("powers", [(0, 1), (1, 1), (1, 2), (3, 3)])
def test_normal_crossings_lie_inside(powers):
    found = cr.bounds(toys.normal_crossing(*powers))
    assert found.details["method"] == "hessian"
    assert found.bounds[0] <= toys.exact_normal_crossing(*powers) <= found.bounds[1] == 1


def test_a_regular_model_is_exact():
    x = data()
    found = cr.bounds(own(net(), x))
    assert (found.value, found.multiplicity, found.status) == (Fraction(26, 2), 1, "exact")
    noisy = cr.bounds(cr.Landscape(net(), (x, torch.ones(60, 2)), "gaussian"))
    assert (noisy.value, noisy.status) == (Fraction(26, 2), "conditional")


def test_rescaled_relu_units_lower_it_by_a_half_each():
    x = data(200)
    found = cr.bounds(own(net(nn.ReLU), x))
    assert (found.value, found.multiplicity, found.status) == (Fraction(26 - 4, 2), 1, "conditional")


def test_shifts_of_all_logits_are_not_seen():
    model, x = net(outputs=3), data(200)
    found = cr.bounds(cr.Landscape(model, (x, torch.zeros(200, dtype=torch.long)), F.cross_entropy))
    assert found.value == Fraction(4 * 4 + 5 * 3 - 5, 2)


def test_more_parameters_than_rows():
    x = data(4)
    found = cr.bounds(own(net(), x))
    assert (found.value, found.multiplicity) == (Fraction(4 * 2, 2), 1)


def test_parameters_without_influence_lower_the_upper_bound():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
            self.idle = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return (x @ (self.a * self.b))[:, None] + (self.a * self.b).prod() * x[:, :1] ** 2

    x = data()
    found = cr.bounds(cr.Landscape(Partly(), (x, torch.zeros(60, 1)), "gaussian"))
    assert found.bounds == (0, Fraction(3, 2))  # half the codimension: three products vanish
    assert found.details["unused_parameters"] == 5


def test_few_rows_give_a_weaker_lower_bound_that_is_repeated():
    land = own(net(), data())
    few, again = cr.bounds(land, rows=6, seed=1), cr.bounds(land, rows=6, seed=1)
    assert few == again
    assert few.bounds == (3, 13)
    assert (few.details["rows_used"], few.details["rows"]) == (6, 120)


def test_an_unclear_rank_takes_the_low_number():
    class Decay(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(40, dtype=torch.float64))

        def forward(self, x):
            return x * self.w * 10.0 ** (-0.5 * torch.arange(40))

    x = torch.ones(1, 40, dtype=torch.float64)
    found = cr.bounds(cr.Landscape(Decay(), (x, 0 * x), "gaussian"))
    low, high = found.details["rank_range"]
    assert not found.details["decided"]
    assert found.status == "interval"
    assert found.bounds == (Fraction(low, 2), 20)
    assert 20 < low <= high < 40


def test_restriction_and_untouched_inputs():
    land = own(net(), data())
    before, state = land.fingerprint(), torch.get_rng_state()
    part = cr.bounds(land.restrict("2.*"))
    assert part.value == 5
    assert land.fingerprint() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert part.to_dict()["details"]["method"] == "jacobian"


def test_what_is_no_minimum_or_no_landscape_is_refused():
    saddle = cr.Landscape.of_function(lambda w: w[0] ** 2 - w[1] ** 2, torch.zeros(2))
    with pytest.raises(cr.InputError, match="saddle"):
        cr.bounds(saddle)
    with pytest.raises(cr.InputError, match="Landscape"):
        cr.bounds(nn.Linear(1, 1))
    for wrong in ({"rows": 0}, {"rows": True}, {"rows": 1.5}, {"seed": -1}):
        with pytest.raises(cr.InputError, match="whole number"):
            cr.bounds(toys.quadratic(2), **wrong)


def estimated(land, value, error=0.1, nbeta=50.0, precision=1.0, draws=400):
    """An estimate as llc gives it, with made-up numbers."""
    spec = {
        "kernel": {"name": "HMC", "step": 0.1, "leaps": 8},
        "draws": draws,
        "warmup": draws,
        "precision": precision,
    }
    drawn = cr.Draws({"excess": np.ones((4, draws))}, {}, np.full(4, nbeta), spec)
    plain = {"nbeta": nbeta, "value": value, "se": error}
    return cr.Estimate("llc", value, se=error, spec=spec, seed=0, diagnostics={"plain": plain}, draws=drawn)


def test_an_estimate_below_the_rank_is_found():
    land = own(net(), data())
    found = rank_finding(land, estimated(land, 10.0))
    assert found.code == "LLC108"  # at this nbeta not all of the rank is resolved
    assert "against 13" in found.message
    assert "of these 26 directions are resolved" in found.message


def test_the_part_that_is_resolved_is_told_apart():
    land = own(net(), data())
    hot = rank_finding(land, estimated(land, 3.0, nbeta=1.0, precision=10.0))
    cold = rank_finding(land, estimated(land, 3.0, nbeta=1e9, precision=1e-3))
    assert (hot.code, hot.severity) == ("LLC108", "info")
    assert (cold.code, cold.severity) == ("LLC107", "warning")
    assert "26 of these 26 directions are resolved" in cold.message


def test_estimates_that_respect_the_bound_or_cannot_be_judged_have_no_finding():
    land = own(net(), data())
    assert rank_finding(land, estimated(land, 12.8)) is None  # within two errors
    assert rank_finding(land, estimated(land, 10.0, error=1.5)) is None
    assert rank_finding(land, estimated(land, 10.0, draws=1)) is None  # a short run buys too few rows
    assert rank_finding(land, estimated(land, math.nan)) is None
    potential = toys.quadratic(30)
    assert rank_finding(potential, estimated(potential, 1.0)) is None
    assert rank_finding(land, replace(estimated(land, 1.0), draws=None)) is None


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:TUNE401:crunode.errors.DiagnosticWarning")  # the prior does not leave them alone
def test_llc_carries_the_finding():
    torch.manual_seed(0)
    model, x = net(hidden=12), data(300)
    with torch.no_grad():
        model[2].weight.mul_(1e-3)  # nearly idle units: their directions count in the rank, but no nbeta resolves them
    options = {"nbeta": 50.0, "precision": 10.0, "chains": 4, "draws": 300, "warmup": 200, "seed": 0}
    estimate = cr.llc(own(model, x), **options)
    assert estimate.ok
    assert "LLC108" in {f.code for f in estimate.findings}
    quiet = cr.llc(toys.reduced_rank(3, 2, 3, 1, n=300), **options)
    assert not {"LLC107", "LLC108"} & {f.code for f in quiet.findings}


@pytest.mark.parametrize(("nbeta", "precision"), [(50.0, 1.0), (3.0, 0.2), (1e4, 5.0)])
def test_what_directions_give_to_second_order_is_that_of_the_dense_jacobian(nbeta, precision):
    x, model = data(20).double(), net().double()
    land = own(model, x)
    names = dict(model.named_parameters())
    rows = torch.autograd.functional.jacobian(
        lambda *p: torch.func.functional_call(model, dict(zip(names, p, strict=True)), (x,)), tuple(names.values())
    )
    dense = torch.cat([r.reshape(40, -1) for r in rows], 1)
    curvatures = torch.linalg.svdvals(dense) ** 2 / 20
    assert len(curvatures) == 26
    part = float((nbeta * curvatures / (nbeta * curvatures + precision)).sum() / 2)
    found = rank_finding(land, estimated(land, 3.0, nbeta=nbeta, precision=precision))
    assert f"all together give {part:.3g} to second order" in found.message
    assert f"{int((nbeta * curvatures > precision).sum())} of these 26 directions are resolved" in found.message
    assert "half the rank on 40 of 40 rows" in found.message
    assert found.code == ("LLC108" if part <= 3.2 else "LLC107")


def test_twice_the_error_below_half_the_rank_is_found():
    land = own(net(), data(20))
    for value, error, known in ((12.79, 0.1, True), (12.81, 0.1, False), (11.9, 0.5, True), (12.1, 0.5, False)):
        assert (rank_finding(land, estimated(land, value, error)) is not None) == known
