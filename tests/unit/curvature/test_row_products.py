"""Rows of gradients by their factors, solves and preconditioners against the matrices that they stand for."""

import math

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.balanced import Balanced
from crunode.curvature.fisher_systems import solved, solved_by_drawn
from crunode.curvature.gram import ExampleRows, are_close, damped_solve, row_weights
from crunode.curvature.natural import NaturalGradient
from crunode.curvature.online_fisher import OnlineFisher, online_direction
from crunode.curvature.product_basis import ProductBasis
from crunode.curvature.products import Chunks, pulled
from crunode.curvature.signals import DirectRows, OuterRows


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def outer(weight, bias, seed=0, kinds=2, examples=5, inputs=3, outputs=4):
    return OuterRows(weight, bias, normal(examples, inputs, seed=seed), normal(kinds, examples, outputs, seed=seed + 1))


def written_out(block):
    """All rows, kinds first."""
    if isinstance(block, DirectRows):
        return torch.cat([part.flatten(0, 1).flatten(1) for part in block.parts.values()], 1)
    parts = []
    if block.weight:
        parts.append(torch.einsum("kbo,bi->kboi", block.signals, block.given).flatten(2))
    if block.bias:
        parts.append(block.signals)
    return torch.cat(parts, 2).flatten(0, 1)


BLOCKS = [
    outer("a.weight", "a.bias"),
    outer("b.weight", None, 2),
    outer(None, "c.bias", 4),
    DirectRows({"d": normal(2, 5, 3, 2, seed=6), "e": normal(2, 5, 4, seed=7)}),
]


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (3,), (0, 1, 2, 3), (3, 0)])
def test_rows_by_factors_have_the_products_of_rows_written_out(chosen):
    blocks = [BLOCKS[k] for k in chosen]
    rows, whole = ExampleRows(blocks, 2, 5), torch.cat([written_out(block) for block in blocks], 1)
    torch.testing.assert_close(rows.gram(), whole @ whole.T)
    c = normal(10, seed=8)
    found = rows.combined(c)
    torch.testing.assert_close(torch.cat([part.reshape(-1) for part in found.values()]), whole.T @ c)
    shapes = {"a.weight": (4, 3), "a.bias": (4,), "b.weight": (4, 3), "c.bias": (4,), "d": (3, 2), "e": (4,)}
    assert all(tuple(part.shape) == shapes[name] for name, part in found.items())


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("damping", [0.3, 0.0])
def test_damped_solves_are_those_of_the_matrix_at_any_scale(damping, scale):
    rows = normal(6, 9) * torch.logspace(0, 3, 6, dtype=torch.float64)[:, None]
    gram, right = scale * rows @ rows.T, normal(6, seed=1)
    found, singular = damped_solve(gram.clone(), scale * damping, right)
    assert not singular
    want = torch.linalg.solve(gram + scale * damping * torch.eye(6, dtype=torch.float64), right)
    torch.testing.assert_close(found, want, rtol=1e-7, atol=1e-12 * float(want.abs().max()))


def test_a_row_of_zeros_is_damped_alone():
    gram = torch.diag(torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64))
    found, singular = damped_solve(gram, 1.0, torch.ones(3, dtype=torch.float64))
    assert (found.tolist(), singular) == (pytest.approx([1 / 3, 1.0, 1 / 4]), False)


def test_tensors_are_close_but_for_rounding_of_all_together():
    for dtype in (torch.float64, torch.float32):
        eps = torch.finfo(dtype).eps
        want = [torch.ones(3, dtype=dtype), torch.zeros(2, dtype=dtype)]
        for off, close in ((1e2, True), (1e5, False)):
            got = [want[0] * (1 + off * eps), want[1]]
            assert are_close(got, want) == close
            assert are_close([want[0], want[1] + off * eps], want) == close
    assert not are_close([torch.ones(1)], [-torch.ones(1)])
    assert are_close([torch.zeros(2)], [torch.zeros(2)])


def test_weights_of_rows_tell_kinds_and_examples_apart():
    found = row_weights(2, 6, torch.device("cpu"))
    assert found.shape == (2, 6)
    assert len({round(float(v), 9) for v in found.flatten()}) == 12
    assert float(found.min()) >= 0


def test_solves_for_the_rows_of_the_fisher_matrix_are_dense_ones():
    rows, right = normal(8, 20), normal(8, seed=1)
    for epsilon in (1e-10, 1e3):  # the least trace
        found = solved(rows @ rows.T, right, 4, 0.1, epsilon)
        fisher, gradient = rows.T @ rows / 4, rows.T @ right / 4
        trace = float(fisher.trace())
        kappa = 0.1 * max(trace, epsilon)
        want = torch.linalg.solve(fisher + kappa * torch.eye(20, dtype=torch.float64), gradient)
        torch.testing.assert_close(rows.T @ found.coefficients, want)
        assert (found.trace, found.kappa) == (pytest.approx(trace), pytest.approx(kappa))
        assert found.gradient_norm == pytest.approx(float(gradient.norm()))
        drawn = normal(4, 20, seed=2)
        both = torch.cat([rows[:4], drawn])
        other = solved_by_drawn(both @ both.T, right[:4], 4, 0.1, epsilon)
        fisher, gradient = drawn.T @ drawn / 4, rows[:4].T @ right[:4] / 4
        kappa = 0.1 * max(float(fisher.trace()), epsilon)
        want = torch.linalg.solve(fisher + kappa * torch.eye(20, dtype=torch.float64), gradient)
        torch.testing.assert_close(both.T @ other.coefficients, want)
        assert (other.trace, other.kappa) == (pytest.approx(float(fisher.trace())), pytest.approx(kappa))
        assert other.gradient_norm == pytest.approx(float(gradient.norm()))


@pytest.mark.parametrize(("count", "codes"), [(8, []), (7, ["CURV832"])])
@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_a_trace_from_drawn_labels_is_to_be_known_to_half_of_its_value(count, codes):
    # Of two labels alike each is a surprise every other time; the trace is known to one over the root of how many.
    model = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(model.weight)
    optimizer = NaturalGradient(model, nn.functional.cross_entropy, lr=0.0, fisher="sampled")
    optimizer.step(torch.ones(count, 2, dtype=torch.float64), torch.arange(count) % 2)
    assert [f.code for f in optimizer.last.findings] == codes


def test_one_part_gives_the_inverse_itself():
    a, d = normal(4, 6), normal(3, 5, seed=1)
    gram, right = torch.kron(a @ a.T, d @ d.T), normal(12, seed=2)
    rows = torch.kron(a, d)
    chance = torch.Generator().manual_seed(3)

    def push():
        return rows @ torch.randn(30, generator=chance, dtype=torch.float64)

    basis = ProductBasis(push, 4, 64, [(a, d)])
    assert basis.known
    for mu in (0.01, 10.0):
        want = torch.linalg.solve(gram + mu * torch.eye(12, dtype=torch.float64), right)
        torch.testing.assert_close(basis.solve(right, mu), want)
    # Twice as much of either side is four times as much, which probes find out.
    assert not ProductBasis(push, 4, 64, [(2 * a, 2 * d)]).known
    assert not ProductBasis(push, 3, 64, [(a, d)]).known
    assert not ProductBasis(push, 4, 64, [(a, d), (a[:3], d)]).known


def test_two_parts_that_commute_give_the_inverse_of_their_sum():
    q, p = (torch.linalg.qr(normal(n, n, seed=n)).Q for n in (4, 3))
    pairs = [(q * normal(4, seed=k).abs(), p * normal(3, seed=k + 9).abs()) for k in (1, 2)]
    gram = sum(torch.kron(a @ a.T, d @ d.T) for a, d in pairs)
    rows = torch.cat([torch.kron(a, d) for a, d in pairs], 1)
    chance = torch.Generator().manual_seed(3)
    basis = ProductBasis(lambda: rows @ torch.randn(24, generator=chance, dtype=torch.float64), 4, 64, pairs)
    assert basis.known
    right = normal(12, seed=5)
    want = torch.linalg.solve(gram + 0.1 * torch.eye(12, dtype=torch.float64), right)
    torch.testing.assert_close(basis.solve(right, 0.1), want)


def test_parts_that_are_not_known_are_estimated_from_their_covariance():
    q, p = (torch.linalg.qr(normal(n, n, seed=n)).Q for n in (4, 3))
    a, d = q * torch.tensor([4.0, 2.0, 1.0, 0.5]).double(), p * torch.tensor([3.0, 1.0, 0.3]).double()
    rows = torch.kron(a, d)
    chance = torch.Generator().manual_seed(3)
    basis = ProductBasis(lambda: rows @ torch.randn(12, generator=chance, dtype=torch.float64), 4, 800)
    assert not basis.known
    right = normal(12, seed=5)
    want = torch.linalg.solve(rows @ rows.T + 0.1 * torch.eye(12, dtype=torch.float64), right)
    assert float((basis.solve(right, 0.1) - want).norm()) < 0.3 * float(want.norm())


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return x.mean(1) @ self.w[:, None]


def test_sums_over_chunks_weigh_each_by_its_examples():
    inputs = [normal(5, 3, 2), normal(2, 4, 2, seed=1), normal(2, 5, 2, seed=2)]  # of unlike lengths
    whole = torch.cat([x.mean(1) for x in inputs]).mean(0)
    land = cr.Landscape(Mean(), [(x, normal(len(x), 1)) for x in inputs], "gaussian")
    built = []

    def build(number, batch):
        built.append(number)
        return batch[0].mean((0, 1))

    chunks = Chunks(land, build)
    for _ in range(2):
        torch.testing.assert_close(chunks.weighted_sum(torch.clone), whole)
    assert built == [0, 1, 2]  # kept, and made once
    assert [share for share, _ in chunks] == pytest.approx([5 / 9, 2 / 9, 2 / 9])
    single = Chunks(cr.Landscape(Mean(), (inputs[0], normal(5, 1)), "gaussian"), build)
    torch.testing.assert_close(single.weighted_sum(torch.clone), inputs[0].mean((0, 1)))


@pytest.mark.parametrize("several", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_derivatives_of_weighted_sums_are_rows_of_weights_times_the_jacobian(several, count):
    at = normal(4).requires_grad_()
    matrix = normal(3, 4, seed=1)
    weights = normal(count, 3, seed=2)
    found = pulled(torch.tanh(matrix @ at), at, weights, several)
    jacobian = (1 - torch.tanh(matrix @ at.detach()).square())[:, None] * matrix
    torch.testing.assert_close(found, weights @ jacobian)
    assert not pulled(normal(3), at, normal(2, 3), several).any()


def test_the_fisher_matrix_is_updated_ten_times_and_then_every_fourth():
    fisher = OnlineFisher(5, alpha=0.1, epsilon=1e-10)
    changed = []
    for k in range(20):
        before = fisher.dense() if k else None
        fisher.precondition(normal(7, 5, seed=k))
        changed.append(before is None or not torch.equal(fisher.dense(), before))
    assert [k for k, one in enumerate(changed) if one] == [*range(10), 12, 16]


def test_only_axes_that_are_longer_than_one_have_a_fisher_matrix():
    states = [{}, {}, {}]
    online_direction(normal(1, 4, 2), states, alpha=0.1, epsilon=1e-10)
    assert [bool(state) for state in states] == [False, True, True]
    assert [state["rows"].shape for state in states[1:]] == [(2, 4), (1, 2)]


def test_a_balanced_scaling_goes_on_from_one_close_by():
    chance = torch.Generator().manual_seed(0)
    sides = [torch.logspace(0, -3, 6, dtype=torch.float64).sqrt(), torch.logspace(0, -2, 5, dtype=torch.float64).sqrt()]
    asked = []

    def gradient():
        asked.append(1)
        draw = torch.randn(6, 5, generator=chance, dtype=torch.float64)
        flat = torch.randn(3, generator=chance, dtype=torch.float64)
        return torch.cat([(sides[0][:, None] * draw * sides[1]).reshape(-1), flat])

    first = Balanced([(6, 5), (3,)], gradient)
    taken = len(asked)
    second = Balanced([(6, 5), (3,)], gradient, first)
    assert first.gradients == second.gradients == taken == len(asked) - taken
    squares = torch.outer(sides[0], sides[1]).reshape(-1) ** 2
    for found in (first, second):
        # Gradients that it evens out have entries of mean square one.
        even = torch.stack([found.pull(gradient(), 0.0) for _ in range(300)]).square().mean(0)
        assert float(even[:30].mean()) == pytest.approx(1, rel=0.3)
        assert 0.3 < float(even.min()) <= float(even.max()) < 3
        assert math.isclose(found.top, float(squares.max()), rel_tol=0.8)
