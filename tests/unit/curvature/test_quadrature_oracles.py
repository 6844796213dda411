"""Quadratures, densities and ranks against dense algebra on the very starts that were multiplied."""

import json
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from crunode.curvature.dimension import effective_dimension, participation_ratio
from crunode.curvature.lanczos import SpectralDensity, function_trace, log_determinant, spectral_density
from crunode.curvature.recurrence import Recurrence, as_rows, negative, runs_of, tridiagonalize
from crunode.errors import InputError

SIZE = 60


class Recorder:
    """A matrix that shows its products only, and keeps what it was multiplied by."""

    def __init__(self, matrix, positive=False):
        self._matrix, self.positive = matrix, positive
        self.shape, self.dtype, self.device = tuple(matrix.shape), matrix.dtype, matrix.device
        self.blocks = []

    def __matmul__(self, vectors):
        self.blocks.append(vectors.reshape(len(vectors), -1).clone())
        return self._matrix @ vectors

    @property
    def products(self):
        return sum(block.shape[1] for block in self.blocks)

    def starts(self, steps):
        """The first vectors of all runs, each of so many steps."""
        return torch.cat(self.blocks[::steps], 1) * math.sqrt(len(self.blocks[0]))


def turned(values, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = q * values @ q.T
    return (whole + whole.T) / 2


def of_mean(samples):
    """Mean and stretched standard error along the last axis."""
    count = samples.shape[-1]
    student = scipy.stats.t.ppf(scipy.stats.norm.cdf(2), count - 1) / 2
    return samples.mean(-1), samples.std(-1, ddof=1) / np.sqrt(count) * student


MATRIX = turned(torch.linspace(-1, 3, SIZE))
POSITIVE = turned(torch.linspace(0.01, 1, SIZE) ** 3)
LARGE = turned(torch.linspace(0.01, 1, 250) ** 3)


def gauss(matrix, starts, steps, function):
    """zᵀ V f(T) Vᵀ z by an orthonormal basis of the Krylov space, for each start z."""
    a, found = matrix.numpy(), []
    for z in starts.numpy().T:
        space = z[:, None] / np.linalg.norm(z)
        while space.shape[1] < steps:
            image = a @ space[:, -1]
            for _ in range(3):
                image = image - space @ (space.T @ image)
            space = np.column_stack([space, image / np.linalg.norm(image)])
        values, axes = np.linalg.eigh(space.T @ a @ space)
        found.append(z @ z * (axes[0] ** 2 @ function(values)))
    return np.array(found)


def test_the_trace_of_a_function_is_the_mean_of_its_quadratures():
    known = Recorder(MATRIX)
    found = function_trace(known, np.exp, probes=12, steps=4, tolerance=None)
    starts = known.starts(4)
    assert starts.shape == (SIZE, 12)
    assert set(starts.round().unique().tolist()) == {-1.0, 1.0}
    whole, fewer = (gauss(MATRIX, starts, steps, np.exp) for steps in (4, 3))
    value, se = of_mean(whole)
    assert found.value == pytest.approx(value, rel=1e-10)
    assert found.systematic == pytest.approx(abs((whole - fewer).mean()), rel=1e-9)
    assert found.diagnostics["probes"] == 12
    assert found.diagnostics["products"] == known.products == 48
    assert found.spec == {"method": "lanczos", "probes": 12, "steps": 4, "tolerance": None, "size": SIZE}
    # The error of the mean is that of the corrected samples, which are the quadratures of all steps.
    assert found.se == pytest.approx(se, rel=1e-3)


def test_lowest_node_and_its_residual_are_those_of_all_starts():
    known = Recorder(MATRIX)
    found = function_trace(known, np.exp, probes=12, steps=4, tolerance=None)
    rules = [run.rule() for run in tridiagonalize(MATRIX, known.starts(4), 4)]
    lowest = min(rules, key=lambda rule: rule[0][0])
    assert found.diagnostics["lowest"] == pytest.approx(lowest[0][0], rel=1e-10)
    assert found.diagnostics["lowest_residual"] == pytest.approx(lowest[2][0], rel=1e-8)


@pytest.mark.parametrize("floor", [True, False])
def test_quadratures_that_are_not_polynomial_are_enclosed_or_compared(floor):
    known = Recorder(POSITIVE, positive=floor)
    found = log_determinant(known, 0.05, probes=10, steps=5, tolerance=None)
    runs = tridiagonalize(POSITIVE, known.starts(5), 5)
    upper = np.array([SIZE * (w @ np.log(x + 0.05)) for x, w, _ in (run.rule() for run in runs)])
    if floor:
        lower = np.array([SIZE * (w @ np.log(np.maximum(x, 0) + 0.05)) for x, w in (run.radau(0.0) for run in runs)])
        value, se = of_mean((upper + lower) / 2)
        systematic = (upper - lower).mean() / 2
        truth = gauss(POSITIVE, known.starts(5), 25, lambda x: np.log(x + 0.05))
        assert (lower < truth).all()
        assert (truth < upper).all()
    else:
        value, se = of_mean(upper)
        systematic = abs(upper - gauss(POSITIVE, known.starts(5), 4, lambda x: np.log(x + 0.05))).mean()
    assert found.value == pytest.approx(value, rel=1e-9)
    assert found.se == pytest.approx(se, rel=1e-3)
    assert found.systematic == pytest.approx(systematic, rel=1e-7)
    assert found.spec["shift"] == 0.05


def test_rounding_of_eigenvalues_is_the_least_systematic_error():
    # A linear function is integrated exactly, so that what is left is what rounding does to eigenvalues.
    found = function_trace(MATRIX, lambda x: x, probes=8, steps=6, tolerance=None)
    unit = SIZE * 3 * np.finfo(float).eps
    assert 1 * unit < found.systematic < 20 * unit
    assert found.value == pytest.approx(SIZE, abs=4 * found.se)


@pytest.mark.parametrize(
    "ask",
    [
        lambda a, **s: function_trace(a, np.exp, steps=3, **s),
        lambda a, **s: participation_ratio(a, **s),
        lambda a, **s: effective_dimension(a, 0.1, steps=4, **s),
    ],
)
def test_the_first_look_within_the_tolerance_is_the_last(ask):
    looks = [ask(Recorder(LARGE), probes=count, tolerance=None) for count in (8, 16, 32)]
    ratios = [look.se / look.value for look in looks]
    for goal in (0.99 * min(ratios), *(1.01 * ratio for ratio in ratios)):
        counts = zip((8, 16, 32), ratios, strict=True)
        expected = next((count for count, ratio in counts if ratio <= goal), 32)
        known = Recorder(LARGE)
        found = ask(known, probes=32, tolerance=goal)
        assert found.diagnostics["probes"] == expected
        assert found.diagnostics["products"] == known.products
        assert ("CURV811" in [f.code for f in found.findings]) == (min(ratios) > goal)


def test_too_few_steps_for_a_function_are_told_by_its_error():
    found = [
        function_trace(LARGE, function, probes=60, steps=4, tolerance=None)
        for function in (lambda x: 1 / (x + 1e-3), np.exp)
    ]
    assert [[f.code for f in one.findings] for one in found] == [["CURV813"], []]
    assert found[0].systematic > 2 * found[0].se
    assert found[1].systematic < 0.01 * found[1].value


def test_as_many_products_as_rows_are_all_columns():
    low = float(torch.linalg.eigvalsh(MATRIX)[0])
    for probes, steps, method in ((6, 10, "exact"), (10, 6, "exact"), (7, 8, "lanczos")):
        known = Recorder(MATRIX)
        found = function_trace(known, np.exp, probes=probes, steps=steps)
        density = spectral_density(MATRIX, probes=probes, steps=steps)
        assert (found.spec["method"], density.spec["method"]) == (method, method)
        assert found.diagnostics["products"] == known.products
        if method == "exact":
            seen = {"probes": 0, "products": SIZE, "lowest": pytest.approx(low), "lowest_residual": 0.0}
            assert found.diagnostics == seen
            assert found.value == pytest.approx(float(torch.linspace(-1, 3, SIZE).double().exp().sum()), rel=1e-6)
            assert density.diagnostics == {"probes": 0, "products": SIZE}
    for settings, exact in (({"probes": SIZE}, True), ({"probes": SIZE - 1}, False)):
        known = Recorder(MATRIX)
        found = participation_ratio(known, tolerance=None, **settings)
        assert (found.spec["method"] == "exact") == exact == (found.se == 0)
        assert found.diagnostics == {"probes": 0 if exact else SIZE - 1, "products": known.products}


def test_an_eigenvalue_below_zero_is_told_but_not_one_of_rounding():
    for low, codes in ((-1e-14, []), (-1e-3, ["CURV815"])):
        values = torch.cat([torch.tensor([low]), torch.linspace(0.1, 1, 19)])
        found = effective_dimension(turned(values), 0.5)
        assert [f.code for f in found.findings] == codes
        clipped = values.double().clamp(min=0.0) if not codes else values.double()
        assert found.value == pytest.approx(float((clipped / (clipped + 0.5)).sum()), rel=1e-6)
    assert negative(torch.eye(2), -1e-17, 1.0, floor=0.0) == ()
    assert negative(torch.eye(2), 0.5, 1.0, floor=1.0)[0].code == "CURV815"


def test_a_shift_that_the_lowest_node_cannot_vouch_for_is_told():
    values = torch.cat([torch.linspace(0.0, 1, 199), torch.tensor([-0.02])])
    for shift in (0.05, 0.5):
        found = log_determinant(turned(values), shift, probes=8, steps=5, tolerance=None)
        low, doubt = found.diagnostics["lowest"], found.diagnostics["lowest_residual"]
        assert ("CURV816" in [f.code for f in found.findings]) == (low - doubt + shift <= 0)
    assert low - doubt + shift > 0
    with pytest.raises(InputError, match="positive definite"):
        log_determinant(torch.diag(torch.tensor([1.0, -0.5])), 0.5)


def test_quadratures_of_gauss_and_radau_in_closed_form():
    # Three steps for the Laplacian of a path: its eigenvalues are 2 − 2 cos(kπ/4), weights are ⅔ sin²(…).
    run = Recurrence(np.array([2.0, 2.0, 2.0]), np.array([1.0, 1.0, 0.5]))
    angles = np.arange(1, 4) * np.pi / 4
    nodes, weights, residuals = run.rule()
    assert nodes == pytest.approx(2 - 2 * np.cos(angles))
    assert weights == pytest.approx(np.sin(angles) ** 2 / 2)
    assert residuals == pytest.approx(0.5 * np.sqrt(np.sin(3 * angles) ** 2 / 2))
    two, shares, left = run.rule(2)
    assert (two, shares, left) == (pytest.approx([1, 3]), pytest.approx([0.5, 0.5]), pytest.approx([np.sqrt(0.5)] * 2))
    assert len(run.rule(5)[0]) == 3
    # With a node at −1: its moments are those of all that T has, up to the sixth.
    at, share = run.radau(-1.0)
    assert at[0] == pytest.approx(-1)
    whole = np.diag([2.0, 2.0, 2.0, 7.0]) + np.diag([1.0, 1.0, 0.5], 1) + np.diag([1.0, 1.0, 0.5], -1)
    for power in range(7):
        assert share @ at**power == pytest.approx(np.linalg.matrix_power(whole, power)[0, 0])
    ended = Recurrence(np.array([2.0, 2.0]), np.array([1.0, 0.0]))
    assert ended.radau(-1.0)[0] == pytest.approx([1, 3])


def test_rows_of_rules_are_filled_with_nodes_that_count_nothing():
    rules = [Recurrence(np.arange(1.0, n + 1), np.full(n, 0.3)).rule() for n in (1, 3)]
    nodes, weights, residuals = as_rows(rules)
    assert nodes[0].tolist() == [1, 1, 1]
    assert weights[0].tolist() == [1, 0, 0]
    assert residuals[0].tolist() == [0.3, 0, 0]
    assert nodes[1] == pytest.approx(rules[1][0])


def test_steps_of_several_starts_are_those_of_each():
    starts = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for column, run in enumerate(tridiagonalize(MATRIX, starts, 6)):
        whole = scipy.linalg.hessenberg(basis_first(MATRIX.numpy(), starts[:, column].numpy()))
        assert run.diagonal == pytest.approx(np.diag(whole)[:6], rel=1e-9)
        assert run.beside == pytest.approx(np.abs(np.diag(whole, -1))[:6], rel=1e-9)
    assert [len(runs) for runs in runs_of(MATRIX, SIZE, 20, 5, 0)] == [8, 16, 20]
    assert {len(run.diagonal) for run in tridiagonalize(turned(torch.tensor([1.0, 2.0, 4.0])), starts[:3], 9)} == {3}


def basis_first(a, start):
    """The matrix in a basis whose first vector is the start."""
    q = np.linalg.qr(np.column_stack([start, np.eye(len(start))[:, :-1]]))[0]
    return q.T @ a @ q


def bumps(grid, nodes, weights, width):
    return scipy.stats.norm.pdf(grid, nodes[..., None], width).transpose(0, 2, 1) @ weights[..., None]


def test_the_density_is_the_mean_of_bumps_at_the_nodes():
    known = Recorder(MATRIX)
    found = spectral_density(known, probes=5, steps=8, points=200, tolerance=None)
    runs = tridiagonalize(MATRIX, known.starts(8), 8)
    nodes, weights, residuals = as_rows([run.rule() for run in runs])
    assert found.nodes == pytest.approx(nodes, rel=1e-8)
    assert found.weights == pytest.approx(weights, rel=1e-7, abs=1e-12)
    assert found.residuals == pytest.approx(residuals, rel=1e-7, abs=1e-12)
    spread = nodes.max() - nodes.min()
    assert found.width == pytest.approx(spread / 21)
    assert (found.grid[0], found.grid[-1]) == pytest.approx(
        (nodes.min() - 5 * found.width, nodes.max() + 5 * found.width)
    )
    assert len(found.grid) == 200
    each = bumps(found.grid, nodes, weights, found.width)[..., 0]
    value, se = of_mean(each.T)
    assert found.density == pytest.approx(value, abs=1e-10)
    assert found.se == pytest.approx(se, rel=1e-2, abs=1e-8)
    step = found.grid[1] - found.grid[0]
    assert found.diagnostics == {
        "probes": 5,
        "products": known.products,
        "integrated_se": pytest.approx(found.se.sum() * step),
    }
    fewer = as_rows([run.rule(6) for run in runs])
    moved = np.abs(bumps(found.grid, *fewer[:2], found.width)[..., 0].mean(0) - value).sum() * step
    assert found.systematic == pytest.approx(moved, rel=1e-6)
    assert found.size == SIZE
    assert [f.code for f in found.findings] == (
        ["CURV812", "CURV813"] if moved > max(0.05, 2 * found.diagnostics["integrated_se"]) else ["CURV812"]
    )
    for settings in ({"points": 20}, {"width": 0.3}):
        other = spectral_density(MATRIX, probes=5, steps=8, tolerance=None, **settings)
        assert other.width == pytest.approx(settings.get("width", 2 * spread / 20))


def test_the_density_stops_where_its_error_is_small_enough():
    looks = [spectral_density(LARGE, probes=n, steps=6, tolerance=None) for n in (8, 16)]
    noises = [look.diagnostics["integrated_se"] for look in looks]
    for factor, count, codes in ((1.01, 8, False), (0.99, 16, False)):
        found = spectral_density(LARGE, probes=16, steps=6, tolerance=max(factor * noises[0], 1.001 * noises[1]))
        assert found.diagnostics["probes"] == count
        assert ("CURV811" in [f.code for f in found.findings]) == codes
    short = spectral_density(LARGE, probes=16, steps=6, tolerance=0.9 * noises[1])
    assert "CURV811" in [f.code for f in short.findings]


def known_density(**others):
    nodes, weights = np.array([[0.0, 1.0, 3.0]]), np.array([[0.2, 0.3, 0.5]])
    content = {"nodes": nodes, "weights": weights, "residuals": np.array([[0.1, 0.8, 0.4]]), **others}
    return SpectralDensity(np.zeros(2), np.ones(2), np.zeros(2), size=10, width=0.1, **content)


def test_masses_are_spread_as_far_as_residuals_reach_and_half_way_to_neighbours():
    found = known_density()
    # The middle node reaches from 0.5, half-way to its neighbour, to 1.8.
    below = found.mass(-1.0, 1.0)
    assert below.value == pytest.approx(0.2 + 0.3 * 0.5 / 1.3)
    assert below.systematic == pytest.approx(0.3 * 0.5 / 1.3)
    both = found.mass(0.05, 1.15)
    assert both.value == pytest.approx(0.2 * 0.25 + 0.3 * 0.5)
    assert both.systematic == pytest.approx(0.2 * 0.25 + 0.3 * 0.5)
    assert found.mass(3.2, 9.0).value == pytest.approx(0.5 * 0.25)
    assert found.mass(-5.0, 9.0).value == pytest.approx(1.0)
    assert found.mass(-5.0, 9.0).systematic == 0
    assert found.mass(-1.0, 1.0).diagnostics == {"probes": 1}
    assert (found.mass(-1.0, 1.0).se, found.systematic) == (0, 0)


def test_moments_are_means_over_starts():
    nodes, weights = np.array([[1.0, 2.0], [0.0, 4.0]]), np.array([[0.5, 0.5], [0.75, 0.25]])
    found = known_density(nodes=nodes, weights=weights, residuals=np.zeros((2, 2)))
    second = found.moment(2)
    value, se = of_mean(np.array([2.5, 4.0]))
    assert (second.value, second.se, second.systematic) == (pytest.approx(value), pytest.approx(se), 0)
    assert second.diagnostics == {"probes": 2}
    assert found.moment(0).value == 1
    assert found.mass(0.5, 3.0).value == pytest.approx(0.5)  # all of one, nothing of the other


def test_a_density_is_ok_where_it_is_finite_and_can_be_written():
    found = spectral_density(MATRIX, probes=8, steps=4, tolerance=None)
    assert found.ok
    assert not SpectralDensity(**{**found.__dict__, "density": found.density * np.nan}).ok
    content = json.loads(json.dumps(found.to_dict()))
    for name in ("grid", "density", "se", "nodes", "weights", "residuals"):
        assert content[name] == getattr(found, name).tolist()
    assert (content["size"], content["width"], content["systematic"]) == (SIZE, found.width, found.systematic)
    assert content["ok"]
    flat = spectral_density(2 * torch.eye(5))
    assert flat.density @ np.full(512, flat.grid[1] - flat.grid[0]) == pytest.approx(1, abs=1e-3)
    assert flat.grid.mean() == pytest.approx(2)
    assert flat.width < 0.2
