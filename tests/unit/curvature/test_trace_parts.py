"""The parts that traces are put together from: means of known samples, and terms against dense second derivatives."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.coverage import coverage
from crunode.curvature.trace_terms import (
    ClassProbes,
    GaussNewtonProducts,
    HessianProducts,
    LayerProbes,
    exact_gauss_newton,
)
from crunode.curvature.traces import _Parts, _refine, _Sum, ggn_trace, hessian_trace


class Given:
    """A term whose samples are rows of a table."""

    name = "given"

    def __init__(self, table, size=math.inf, exact=7.0):
        self.table, self.size, self.value = torch.as_tensor(table, dtype=torch.float64), size, exact
        self.columns, self.asked = self.table.shape[1], []

    def sample(self, first, count):
        self.asked.append((first, count))
        return self.table[first : first + count]

    def exact(self):
        return self.value


def table(rows=4000, columns=1, mean=3.0, spread=1.0, seed=0):
    return mean + spread * np.random.default_rng(seed).standard_normal((rows, columns))


@pytest.mark.parametrize("columns", [1, 5])
def test_mean_and_spread_are_those_of_all_probes(columns):
    given = table(columns=columns)
    term = _Sum(Given(given))
    for count in (3, 4, 10):
        term.draw(count)
    assert term.term.asked == [(0, 3), (3, 4), (7, 10)]
    assert term.probes == 17
    assert term.mean == pytest.approx(given[:17].mean())
    # Columns are independent: the variance of their mean is the sum of their variances over their number squared.
    assert term.spread == pytest.approx(math.sqrt(given[:17].var(0, ddof=1).sum()) / columns)
    assert not term.settled
    term.settle()
    assert (term.settled, term.mean, term.spread) == (True, 7.0, 0.0)


def test_many_columns_tell_a_variance_by_few_probes():
    least = [_Sum(Given(np.zeros((1, columns)))).least for columns in (2, 10, 60, 100, 1000)]
    assert least == [51, 11, 3, 2, 2]
    assert _Sum(Given(np.zeros((1, 1)))).least == 12


def test_an_exact_part_needs_no_probes():
    assert _refine(_Parts(exact=2.5), 0.01, 100) == (2.5, 0.0)


def test_probes_are_drawn_until_the_error_is_small_enough():
    given = Given(table())
    parts = _Parts(exact=1.0, terms=[_Sum(given)])
    value, se = _refine(parts, 0.02, 4000)
    count = parts.terms[0].probes
    assert value == pytest.approx(1 + given.table[:count].mean())
    assert se == pytest.approx(float(given.table[:count].std()) / math.sqrt(count))
    assert se <= 0.02 * value
    # A spread of 1 beside a value of 4: (1/0.08)² probes are what it takes.
    assert 0.5 * 156 < count < 2 * 156
    for first, number in given.asked[1:]:
        assert number <= 3 * first  # no round is more than four times the last


def test_two_parts_are_drawn_in_the_ratio_of_their_spreads():
    one, two = Given(table(40_000, seed=1)), Given(table(40_000, spread=4.0, seed=2))
    parts = _Parts(terms=[_Sum(one), _Sum(two)])
    value, se = _refine(parts, 0.01, 40_000)
    few, many = (term.probes for term in parts.terms)
    assert many / few == pytest.approx(4, rel=0.25)
    assert value == pytest.approx(float(one.table[:few].mean() + two.table[:many].mean()))
    assert se == pytest.approx(math.sqrt(float(one.table[:few].var()) / few + float(two.table[:many].var()) / many))


def test_no_more_probes_are_drawn_than_are_allowed():
    given = Given(table(spread=50.0))
    parts = _Parts(terms=[_Sum(given)])
    value, se = _refine(parts, 1e-3, 300)
    assert parts.terms[0].probes == 300
    assert se > 1e-3 * abs(value)


def test_a_product_for_each_coordinate_is_taken_where_that_is_less():
    for size, settled in ((12, True), (60, True), (3000, False)):
        parts = _Parts(terms=[_Sum(Given(table(), size=size))])
        value, se = _refine(parts, 0.02, 4000)
        assert parts.terms[0].settled == settled
        assert ((value, se) == (7.0, 0.0)) == settled
    assert _Sum(Given(table(), size=12)).least == 12


def net(activation):
    torch.manual_seed(0)
    parts = nn.Linear(3, 4), activation, nn.Linear(4, 4), activation, nn.Linear(4, 3)
    return nn.Sequential(*parts).double()


def land(activation=None, rows=7, batches=False):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.randint(0, 3, (rows,), generator=torch.Generator().manual_seed(2))
    data = [(x[:4], y[:4]), (x[4:], y[4:])] if batches else (x, y)
    return cr.Landscape(net(activation or nn.Tanh()), data, "cross-entropy")


def whole(given):
    """Traces of the Hessian and of the Gauss-Newton matrix, each by parameters, from dense derivatives."""
    (batch,) = given.passes(10**9)
    w = given.center
    hessian = torch.autograd.functional.hessian(lambda v: given.batch_loss(v, batch), w).diagonal()
    rows = torch.func.jacrev(lambda v: given.batch_outputs(v, batch))(w)
    p = given.batch_outputs(w, batch).detach().softmax(1)
    second = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    ggn = torch.einsum("nip,nij,njp->p", rows, second, rows) / len(p)
    return hessian, ggn


def layers(given):
    return coverage(given).layers


def test_terms_are_what_they_are_named_after():
    given = land()
    hessian, ggn = whole(given)
    exact = exact_gauss_newton(given, layers(given), 2)
    assert exact.trace == pytest.approx(float(ggn.sum()))
    assert exact.curved == ("Tanh",)
    assert ClassProbes(given, layers(given), 0, 2).exact() == pytest.approx(float(ggn.sum()))
    assert LayerProbes(given, layers(given), 0, residual=False).exact() == pytest.approx(float(hessian.sum()))
    rest = LayerProbes(given, layers(given), 0, residual=True)
    assert rest.exact() == pytest.approx(float((hessian - ggn).sum()), abs=1e-12)
    assert (rest.name, LayerProbes(given, layers(given), 0, residual=False).name) == ("residual", "layers")
    some = HessianProducts(given, ("2.weight", "2.bias"), 0)
    assert some.exact() == pytest.approx(float(hessian[16:36].sum()))
    assert some.size == 20
    assert rest.columns == given.data.rows


@pytest.mark.parametrize("batches", [False, True])
def test_means_over_probes_are_the_terms(batches):
    given = land(batches=batches)
    hessian, ggn = whole(land())
    known = layers(given)
    pairs = [
        (LayerProbes(given, known, 0, residual=True), float((hessian - ggn).sum())),
        (LayerProbes(given, known, 0, residual=False), float(hessian.sum())),
        (ClassProbes(given, known, 0, 2), float(ggn.sum())),
        (HessianProducts(given, ("0.weight", "4.bias"), 0), float(hessian[:12].sum() + hessian[48:].sum())),
        (GaussNewtonProducts(given, ("0.weight", "4.bias"), 0), float(ggn[:12].sum() + ggn[48:].sum())),
    ]
    for term, truth in pairs:
        values = term.sample(0, 60)
        assert values.shape == (60, term.columns)
        means = values.mean(1)
        # Five standard errors of sixty probes.
        assert abs(float(means.mean()) - truth) < 5 * float(means.std()) / math.sqrt(60) + 1e-12
        torch.testing.assert_close(torch.cat([term.sample(0, 2), term.sample(2, 3)]), values[:5])
        assert not torch.allclose(values[0], values[1])
    if batches:  # one product for each coordinate of the mean over all batches
        assert HessianProducts(given, ("0.weight",), 0).exact() == pytest.approx(float(hessian[:12].sum()))
        assert exact_gauss_newton(given, known, 2).trace == pytest.approx(float(ggn.sum()))


def test_other_seeds_give_other_signs():
    given = land()
    for make in (
        lambda seed: LayerProbes(given, layers(given), seed, residual=True),
        lambda seed: ClassProbes(given, layers(given), seed, 2),
        lambda seed: HessianProducts(given, ("0.weight",), seed),
        lambda seed: GaussNewtonProducts(given, ("0.weight",), seed),
    ):
        assert not torch.allclose(make(0).sample(0, 1), make(1).sample(0, 1))


def test_a_share_of_zeros_is_that_of_what_layers_before_the_last_give():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        model[0].weight[:2], model[0].bias[:2] = 0.0, 0.0
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = hessian_trace(cr.Landscape(model, (x, torch.zeros(7, dtype=torch.int64)), "cross-entropy"))
    assert found.diagnostics["zeros"] == 0.5
    assert "CURV822" in [f.code for f in found.findings]


def test_where_layers_were_not_looked_at_no_zeros_are_told():
    found = hessian_trace(land(nn.ReLU()), method="hutchinson", probes=101)
    assert found.diagnostics["zeros"] == 0


def test_a_trace_says_what_its_parts_were():
    given = land()
    hessian, ggn = whole(given)
    found = hessian_trace(given, tolerance=1e-6)
    parts = found.diagnostics["parts"]
    assert parts["gauss_newton"] == pytest.approx(float(ggn.sum()))
    assert parts["residual"] == pytest.approx(float((hessian - ggn).sum()), abs=1e-12)
    assert sum(parts.values()) == pytest.approx(found.value)
    assert found.diagnostics["method"] == "exact Gauss-Newton + exact residual"
    assert found.diagnostics["layers"] == [f"{k}.{part}" for k in (0, 2, 4) for part in ("weight", "bias")]
    assert found.diagnostics["rest"] == {}
    assert found.diagnostics["conditions"]["curved operations"] == ["Tanh"]
    assert found.spec == {"tolerance": 1e-6, "method": "auto", "probes": 4000, "n": 7, "dim": 51}
    plain = ggn_trace(given)
    assert (plain.value, plain.se) == (pytest.approx(float(ggn.sum())), 0.0)
    assert plain.diagnostics["probes"] == {}
    assert (found.name, plain.name) == ("hessian_trace", "ggn_trace")


def test_products_with_the_whole_hessian_are_all_there_is_where_they_are_asked_for():
    given = land()
    found = hessian_trace(given, method="hutchinson", tolerance=1e-6)
    assert found.value == pytest.approx(float(whole(given)[0].sum()))
    assert (found.diagnostics["zeros"], found.diagnostics["layers"]) == (0.0, [])
    assert found.diagnostics["method"] == "exact products"
    assert [f.code for f in found.findings] == []


def test_what_is_outside_of_layers_is_told_and_counted():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = net(nn.ReLU()), nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

        def forward(self, x):
            return self.scale * self.inner(x)

    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = cr.Landscape(Scaled(), (x, torch.zeros(7, dtype=torch.int64)), "cross-entropy")
    hessian, ggn = whole(given)
    found = hessian_trace(given, tolerance=1e-6)
    assert found.value == pytest.approx(float(hessian.sum()))
    assert [f.code for f in found.findings if f.code.startswith("CURV")] == ["CURV821"]
    assert list(found.diagnostics["rest"]) == ["scale"]
    alone = given.restrict("scale")
    near = ggn_trace(alone, tolerance=0.05)
    truth = float(ggn[[k for k, n in enumerate(order(given)) if n == "scale"]].sum())
    assert near.diagnostics["method"] == "sampled products"
    assert near.diagnostics["probes"]["products"] >= 12
    assert abs(near.value - truth) < 5 * near.se


def order(given):
    """The name that each entry of the flat vector belongs to."""
    sizes = (math.prod(shape) for shape in given.packing.shapes)
    return [name for name, size in zip(given.packing.names, sizes, strict=True) for _ in range(size)]
