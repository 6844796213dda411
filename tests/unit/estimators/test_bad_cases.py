"""Cases of which it is known that llc() has no right answer to give: each is refused, not ok, or warned of by name."""

import itertools
import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import crunode as cr

pytestmark = pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")

SHORT = {"chains": 4, "draws": 200, "warmup": 100}
FEWER = {"chains": 4, "draws": 60, "warmup": 40}


def chance(seed):
    return torch.Generator().manual_seed(seed)


def regression(off=0.0, *, noise=1.0, n=1000, dim=5):
    """A regular model, λ = dim/2, at the given distance from its least squares solution."""
    x = torch.randn(n, dim, generator=chance(0))
    y = x @ torch.randn(dim, 1, generator=chance(1)) + noise * torch.randn(n, 1, generator=chance(2))
    best = torch.linalg.lstsq(x.double(), y.double()).solution.float()
    away = torch.randn(dim, 1, generator=chance(3))
    net = nn.Linear(dim, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_((best + off * away / away.norm()).T)
    return net, (x, y)


def stopped_early(steps, n=1000):
    x = torch.randn(n, 3, generator=chance(0))
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:] + 0.1 * torch.randn(n, 1, generator=chance(9))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    method = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        method.zero_grad()
        (0.5 * (net(x) - y).square().mean()).backward()
        method.step()
    return net, (x, y)


def zero_weights(*widths):
    """A linear network at zero, a saddle of order len(widths) − 1 for labels that are not zero."""
    x = torch.randn(1000, widths[0], generator=chance(0))
    y = x @ torch.randn(widths[0], widths[-1], generator=chance(1))
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    for p in net.parameters():
        nn.init.zeros_(p)
    return net, (x, y)


def saddle(w):
    return w[0] ** 2 - w[1] ** 2 + w[1] ** 4


def monkey_saddle(w):
    return w[0] ** 3 - 3 * w[0] * w[1] ** 2 + w.square().sum() ** 2


def hole(w):
    """λ = 5 at the bottom of a hole in a plain, which is 0.001 deep and 0.03 wide."""
    return 1e-3 * (1 - torch.exp(-1000 * w.square().sum()))


def function(potential, dim):
    return cr.Landscape.of_function(potential, torch.zeros(dim))


def codes(estimate):
    return {f.code for f in estimate.findings}


def said(estimate, code):
    """The finding of this code, which has to come with a remedy."""
    found = next(f for f in estimate.findings if f.code == code)
    assert found.severity in ("warning", "error")
    assert found.remedy
    return found.message


@pytest.mark.heavy
def test_at_the_minimum_nothing_is_found():
    estimate = cr.llc(*regression(), "gaussian", **SHORT)
    assert estimate.ok
    assert not estimate.findings
    assert estimate.value == pytest.approx(2.5, abs=2 * estimate.error)
    assert estimate.diagnostics["center"]["fell"] < 1e-6


@pytest.mark.heavy
@pytest.mark.parametrize("off", [0.3, 1.0, 5.0])
def test_a_slope_is_found_whatever_the_ladder_makes_of_it(off):
    estimate = cr.llc(*regression(off), "gaussian", **FEWER)
    assert "a slope" in said(estimate, "LLC111")
    assert estimate.diagnostics["center"]["moved"] == pytest.approx(off, rel=0.02)


@pytest.mark.heavy
@pytest.mark.parametrize(("off", "noise", "nbeta"), [(1.0, 1.0, "wbic"), (0.1, 0.0, None)])
def test_a_negative_value_is_never_ok(off, noise, nbeta):
    """Its systematic error is as large as itself, so only the Monte-Carlo error tells that it is below zero."""
    estimate = cr.llc(*regression(off, noise=noise), "gaussian", nbeta=nbeta, **FEWER)
    assert estimate.value < -2 * estimate.se
    assert not estimate.ok
    assert {"LLC101", "LLC111"} <= codes(estimate)


@pytest.mark.heavy
@pytest.mark.parametrize("labels", ["given", "own"])
def test_label_noise_alone_makes_no_slope(labels):
    """At the truth the loss can be lowered by fitting noise; that is in the theory and no fault of the center."""
    x = torch.randn(1000, 20, generator=chance(0))
    net = nn.Linear(20, 1, bias=False)
    nn.init.ones_(net.weight)
    noise = torch.randn(1000, 1, generator=chance(2))
    estimate = cr.llc(net, (x, net(x).detach() + noise), "gaussian", labels=labels, **FEWER)
    assert "LLC111" not in codes(estimate)


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [0, 50])
def test_a_network_stopped_early_is_on_a_slope(steps):
    estimate = cr.llc(*stopped_early(steps), "gaussian", nbeta="wbic", **FEWER)
    assert "a slope" in said(estimate, "LLC111")


@pytest.mark.heavy
@pytest.mark.parametrize("potential", [saddle, monkey_saddle])
@pytest.mark.parametrize("nbeta", [None, "wbic"])
def test_a_saddle_is_not_ok(potential, nbeta):
    estimate = cr.llc(function(potential, 2), nbeta=nbeta, **FEWER)
    assert not estimate.ok
    assert "a saddle" in said(estimate, "LLC111")


@pytest.mark.heavy
def test_a_saddle_is_found_where_the_prior_holds_chains_on_it():
    """The chains see a loss that neither rises nor falls, and no drift: nothing but the descent tells."""
    estimate = cr.llc(function(saddle, 2), nbeta="wbic", precision=1e7, **FEWER)
    assert abs(estimate.value) < 1e-3
    assert "a saddle" in said(estimate, "LLC111")


@pytest.mark.heavy
@pytest.mark.parametrize("widths", [(3, 4, 2), (3, 4, 4, 2)])
def test_a_network_at_zero_is_at_a_saddle(widths):
    estimate = cr.llc(*zero_weights(*widths), "gaussian", **FEWER)
    assert "a saddle" in said(estimate, "LLC111")


class _Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return 0 * self.w.sum() + x.sum(1, keepdim=True)


@pytest.mark.heavy
def test_a_constant_output_is_flat():
    x = torch.randn(500, 3, generator=chance(0))
    estimate = cr.llc(_Constant(), (x, x.sum(1, keepdim=True) + 1), "gaussian", **FEWER)
    assert not estimate.ok
    assert {"LLC106", "MODEL502"} <= codes(estimate)


@pytest.mark.heavy
def test_a_loss_flat_to_rounding_is_flat():
    """In single precision 10⁹ + ‖w‖² is 10⁹."""
    estimate = cr.llc(function(lambda w: 1e9 + w.square().sum(), 2), **FEWER)
    assert not estimate.ok
    assert "LLC106" in codes(estimate)


@pytest.mark.heavy
def test_few_examples_are_named():
    estimate = cr.llc(*regression(n=50), "gaussian", **FEWER)
    assert "n = 50" in said(estimate, "LLC105")


@pytest.mark.heavy
@pytest.mark.parametrize("polish", [False, True])
def test_steps_that_diverge_raise_with_what_there_is(polish):
    options = {"kernel": cr.SGLD(step=10.0), "polish": polish, **FEWER}
    with pytest.raises(cr.EstimationError, match="MC204") as caught:
        cr.llc(*regression(), "gaussian", **options)
    assert not caught.value.partial.ok
    assert math.isnan(caught.value.partial.value)
    returned = cr.llc(*regression(), "gaussian", on_failure="return", **options)
    assert not returned.ok
    assert ("polish" in returned.diagnostics) == polish
    assert "chain 0" in said(returned, "MC204")


@pytest.mark.heavy
def test_steps_that_are_merely_too_large_are_named():
    estimate = cr.llc(*regression(), "gaussian", kernel=cr.SGLD(step=1e-2), **SHORT)
    assert estimate.value > 3
    assert "MC302" in codes(estimate)
    assert estimate.error > abs(estimate.value - 2.5) / 2


@pytest.mark.heavy
def test_trajectories_that_are_never_accepted_are_not_ok():
    estimate = cr.llc(*regression(), "gaussian", kernel=cr.HMC(step=10.0), **FEWER)
    assert not estimate.ok
    assert "MC205" in codes(estimate)


@pytest.mark.heavy
@pytest.mark.parametrize("budget", [1, 50, 5000])
def test_a_budget_far_too_small_is_refused_with_what_it_takes(budget):
    with pytest.raises(cr.InputError, match=r"budget of at least .* raise budget="):
        cr.llc(*regression(), "gaussian", budget=budget)


@pytest.mark.heavy
def test_a_few_draws_are_not_ok():
    estimate = cr.llc(*regression(), "gaussian", chains=2, draws=5, warmup=0)
    assert not estimate.ok
    assert {"MC201", "MC202"} <= codes(estimate)


@pytest.mark.parametrize(("part", "row"), [(0, 0), (0, 700), (1, 999)])
def test_missing_values_are_refused_with_their_place(part, row):
    net, data = regression()
    data[part][row, 0] = math.nan
    with pytest.raises(cr.InputError, match="finite") as caught:
        cr.llc(net, data, "gaussian", **FEWER)
    assert row == 0 or f"example {row}" in str(caught.value)


@pytest.mark.heavy
def test_chains_that_leave_the_region_are_not_ok():
    estimate = cr.llc(function(hole, 10), **FEWER)
    assert not estimate.ok
    assert "precision" in next(f for f in estimate.findings if f.code == "MC201").remedy


def test_chains_that_all_left_at_once_are_named():
    estimate = cr.llc(function(hole, 10), nbeta="wbic", precision=1e-4, kernel=cr.HMC(step=100.0), **SHORT)
    assert abs(estimate.value - 5) > 3
    assert any(f.severity != "info" for f in estimate.findings)


@pytest.mark.heavy
def test_the_page_prints_what_it_says(capsys):
    page = (Path(__file__).parents[3] / "docs" / "bad_cases.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S))
    said = [line.rpartition("  # ")[2] for line in code.splitlines() if "print(" in line]
    assert len(said) > 10
    with warnings.catch_warnings():
        exec(compile(code, "bad_cases.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == said
