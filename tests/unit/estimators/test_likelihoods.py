"""Likelihoods are densities, and integrals of losses are those of closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import crunode as cr
from crunode.estimators import likelihoods
from crunode.estimators.likelihoods import Likelihood, _log_integral, normalization

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


def test_gaussian_likelihoods_are_those_of_scipy():
    output, target = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 2))
    loss = Likelihood("gaussian", sd=0.4)
    wanted = -stats.norm.logpdf(target, output, 0.4).sum(1)
    assert loss(torch.tensor(output), torch.tensor(target)).numpy() == pytest.approx(wanted)
    entropies = loss.entropy(torch.tensor(output))
    assert entropies.tolist() == pytest.approx([2 * float(stats.norm(scale=0.4).entropy())] * 5)
    assert entropies.dtype == torch.float64
    wanted = ((output - target) ** 2).sum(1) / (2 * 0.16)
    assert loss.divergence(torch.tensor(target), torch.tensor(output)).numpy() == pytest.approx(wanted)
    drawn = loss.drawn(torch.tensor([[3.0, -1.0]]).expand(20_000, 2), torch.Generator().manual_seed(0))
    assert drawn.mean(0).tolist() == pytest.approx([3.0, -1.0], abs=0.015)
    assert drawn.std(0).tolist() == pytest.approx([0.4, 0.4], rel=0.03)


def test_categorical_likelihoods_are_those_of_scipy():
    truth, output = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (truth, output))
    loss = Likelihood("categorical")
    one, two = torch.tensor(truth), torch.tensor(output)
    assert loss.entropy(one).numpy() == pytest.approx(stats.entropy(p, axis=1))
    assert loss.divergence(one, two).numpy() == pytest.approx(stats.entropy(p, q, axis=1))
    labels = torch.tensor([0, 2, 1, 2])
    assert loss(two, labels).numpy() == pytest.approx(-np.log(q[np.arange(4), labels]))
    drawn = loss.drawn(one[:1].expand(20_000, 3), torch.Generator().manual_seed(0))
    assert np.bincount(drawn.numpy()) / 20_000 == pytest.approx(p[0], abs=0.015)


@pytest.mark.parametrize("start", [0.0, -3.0, 40.0])
@pytest.mark.parametrize("law", [stats.norm(1, 0.01), stats.norm(-20, 30), stats.laplace(2, 0.3), stats.cauchy(0, 2)])
def test_integrals_of_densities_are_one_wherever_they_are_looked_for(law, start):
    found = _log_integral(lambda y: torch.tensor(-law.logpdf(y.numpy())), start, CPU)
    assert found == pytest.approx(0, abs=1e-4)
    raised = _log_integral(lambda y: torch.tensor(0.7 - law.logpdf(y.numpy())), start, CPU)
    assert raised == pytest.approx(-0.7, abs=1e-4)


@pytest.mark.parametrize("law", [stats.norm(1000, 0.01), stats.norm(-1000, 1.0), stats.norm(300, 2)])
def test_peaks_far_from_where_the_search_begins_are_found(law):
    found = _log_integral(lambda y: torch.tensor(-law.logpdf(y.numpy())), 0.0, CPU)
    assert found == pytest.approx(0, abs=1e-4)


def test_what_has_no_loss_has_no_weight():
    # y exp(−y) for y > 0, where the logarithm of a negative number is none.
    assert _log_integral(lambda y: y - y.log(), 2.0, CPU) == pytest.approx(0, abs=1e-4)
    infinite = _log_integral(lambda y: torch.where(y > 0, 2 * y, math.inf), 1.0, CPU)
    assert infinite == pytest.approx(-math.log(2), abs=1e-3)


@pytest.mark.parametrize("loss", [lambda y: 0 * y, lambda y: 0.5 * y.abs().log1p(), lambda y: -y.clamp(-1, 5)])
def test_integrals_that_do_not_end_are_infinite(loss):
    assert _log_integral(loss, 1.0, CPU) == math.inf


X = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]


def landscape(loss, y=X, width=1):
    model = nn.Linear(1, width).double()
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    return cr.Landscape(model, (X, y), loss)


def squares(output, target):
    return (output - target).flatten(1).square().sum(1)


CASES = {
    "density": (lambda o, t: squares(o, t) / 2 + 0.5 * math.log(2 * math.pi), 1.0, None),
    "unit variance": (lambda o, t: squares(o, t) / 2, math.sqrt(2 * math.pi), "CRIT711"),
    "absolute": (lambda o, t: (o - t).abs().flatten(1).sum(1), 2.0, "CRIT711"),
    "raised": (lambda o, t: squares(o, t) / 2 + 5, math.sqrt(2 * math.pi) * math.exp(-5), "CRIT711"),
    "by a little": (lambda o, t: squares(o, t) / 2 + 0.5 * math.log(2 * math.pi) + 0.01, math.exp(-0.01), "CRIT711"),
}


@pytest.mark.parametrize("case", CASES)
def test_constants_that_are_left_out_are_found(case):
    loss, value, code = CASES[case]
    found = normalization(landscape(loss), seed=3)
    assert found.value == pytest.approx(value, rel=1e-4)
    assert [f.code for f in found.findings] == ([code] if code else [])
    assert found.seed == 3
    assert found.se == 0
    assert len(found.diagnostics["log"]) == 8  # four examples at two points
    assert found.diagnostics["log"] == pytest.approx([math.log(value)] * 8, abs=1e-4)
    assert found.diagnostics["spread"] == max(found.diagnostics["log"]) - min(found.diagnostics["log"])
    if code:
        assert ("√2π" in found.findings[0].message) == (case == "unit variance")
        assert f"low by {math.log(value):.4g} per" in found.findings[0].message


def test_sums_over_classes_are_one():
    odd = torch.arange(20) % 3
    assert normalization(landscape("cross-entropy", odd, 3)).value == pytest.approx(1)
    assert normalization(landscape("bernoulli", (X > 0).double())).value == pytest.approx(1)
    raised = normalization(landscape(lambda o, t: nn.functional.cross_entropy(o, t, reduction="none") - 1, odd, 3))
    assert raised.value == pytest.approx(math.e)
    assert [f.code for f in raised.findings] == ["CRIT711"]


def test_integrals_that_depend_on_inputs_or_weights_are_no_constant():
    def varying(output, target):
        return squares(output, target) / 2 + 10 * output.flatten(1).sum(1).square()

    assert [f.code for f in normalization(landscape(varying)).findings] == ["CRIT712"]
    never = normalization(landscape(lambda o, t: 0 * squares(o, t)))
    assert [f.code for f in never.findings] == ["CRIT712"]
    assert never.value == math.inf


@pytest.mark.parametrize("size", [0.5, 20.0, 0.0])
def test_the_other_point_is_near_in_units_of_the_weights(monkeypatch, size):
    seen = []
    monkeypatch.setattr(likelihoods, "_log_total", lambda land, w, batch: seen.append((w, batch)) or 0.0)
    model = nn.Linear(30, 1).double()
    with torch.no_grad():
        model.weight.fill_(size)
        model.bias.fill_(size)
    x = torch.randn(9, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    land = cr.Landscape(model, (x, x[:, :1]), "gaussian")
    assert normalization(land, examples=3).value == 1
    at = [w for w, _ in seen]
    assert all(torch.equal(w, land.center) for w in at[:3])
    assert all(torch.equal(w, at[3]) for w in at[3:])
    assert len(at) == 6
    apart = float((at[3] - land.center).square().mean().sqrt())
    assert 0.2 < apart / max(size, 0.1) < 0.5
    assert abs(float((at[3] - land.center).mean())) < 0.15 * max(size, 0.1)  # to all sides
    chosen = [batch[0] for _, batch in seen]
    assert all(torch.equal(a, b) for a, b in zip(chosen[:3], chosen[3:], strict=True))
    assert len({float(a[0, 0]) for a in chosen}) == 3


def test_what_cannot_be_integrated_is_refused():
    with pytest.raises(cr.InputError, match="one target value"):
        normalization(landscape("gaussian", torch.cat([X, X], 1), 2))
    with pytest.raises(cr.InputError, match="examples"):
        normalization(landscape("gaussian"), examples=0)
    with pytest.raises(cr.InputError, match="Landscape"):
        normalization(1)
