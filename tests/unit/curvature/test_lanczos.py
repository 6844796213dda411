"""Lanczos steps: no ghosts, residuals that are bounds, quadratures that enclose, error bars that cover."""

import json

import numpy as np
import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.curvature import recurrence
from crunode.curvature.lanczos import (
    function_trace,
    log_determinant,
    spectral_density,
    top_eigenvalues,
    tridiagonalize,
)
from crunode.curvature.operators import hessian
from crunode.errors import EstimationError, InputError

REPEATS = 200
FEW = {"probes": 8, "steps": 10, "tolerance": None}


class Known:
    def __init__(self, matrix, positive=False):
        self._matrix, self.positive = matrix, positive
        self.shape, self.dtype, self.device = tuple(matrix.shape), matrix.dtype, matrix.device

    def __matmul__(self, vectors):
        return self._matrix @ vectors


def turned(values, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    values = torch.as_tensor(values, dtype=torch.float64)
    chance = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=chance, dtype=torch.float64)).Q
    whole = q * values @ q.T
    return (whole + whole.T) / 2


def starts(size, count, dtype=torch.float64):
    return torch.randn(size, count, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)


OUTLIERS = torch.cat([torch.tensor([100.0, 60.0]), torch.linspace(0, 1, 298)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_ghosts(dtype):
    matrix = turned(OUTLIERS).to(dtype)
    near = 1e3 * torch.finfo(dtype).eps * 100
    for run in tridiagonalize(matrix, starts(300, 3, dtype), 120):
        nodes, weights, _ = run.rule()
        assert ((nodes > 50).sum(), len(nodes)) == (2, 120)
        assert np.abs(nodes[-2:] - [60, 100]).max() < near
        assert weights.sum() == pytest.approx(1)
    # Steps without orthogonalisation do bring copies, so that the test above is one.
    now, last, beta = starts(300, 1, dtype)[:, 0], torch.zeros(300, dtype=dtype), 0.0
    now, alphas, betas = now / now.norm(), [], []
    for _ in range(120):
        image = matrix @ now - beta * last
        alphas.append(float(image @ now))
        image = image - alphas[-1] * now
        last, beta = now, float(image.norm())
        betas.append(beta)
        now = image / beta
    ghosts = np.linalg.eigvalsh(np.diag(alphas) + np.diag(betas[:-1], 1) + np.diag(betas[:-1], -1))
    assert (ghosts > 50).sum() > 2


@pytest.mark.parametrize("spectrum", [OUTLIERS, torch.linspace(-1, 1, 200), torch.arange(1.0, 150.0) ** -2])
def test_residuals_are_bounds(spectrum):
    matrix = turned(spectrum)
    eigenvalues = torch.linalg.eigvalsh(matrix).numpy()
    seen = 0
    for run in tridiagonalize(matrix, starts(len(matrix), 4), 25):
        nodes, _, residuals = run.rule()
        distance = np.abs(nodes[:, None] - eigenvalues).min(1)
        assert (distance <= residuals + 1e-12 * np.abs(eigenvalues).max()).all()
        seen += (distance > 0.01 * residuals).sum()
    assert seen > 20  # the bounds are of the size of the errors


def test_krylov_space_that_ends():
    matrix = turned(torch.tensor([2.0] * 20 + [1.0] * 30 + [-3.0] * 5))
    for run in tridiagonalize(matrix, starts(55, 3), 12):
        assert len(run.diagonal) == 3
        assert run.beside[-1] == 0
        assert np.allclose(run.rule()[0], [-3, 1, 2])
        assert np.allclose(run.radau(-4.0)[0], [-3, 1, 2])
    (only,) = tridiagonalize(torch.zeros(5, 5), torch.ones(5, 1), 3)
    assert (only.rule()[0], only.rule()[1]) == (np.zeros(1), np.ones(1))
    with pytest.raises(InputError, match="zero vector"):
        tridiagonalize(torch.eye(3), torch.zeros(3, 1), 2)


def test_gauss_and_radau_enclose():
    values = torch.linspace(0, 1, 120).double() ** 2
    matrix, vectors = turned(values), starts(120, 3)
    exact = torch.linalg.eigh(matrix)
    shares = (exact.eigenvectors.T @ (vectors / vectors.norm(dim=0))).square().numpy()
    for column, run in enumerate(tridiagonalize(matrix, vectors, 8)):
        for function in (lambda x: np.log(x + 0.01), lambda x: x / (x + 0.01)):
            truth = function(exact.eigenvalues.clamp(min=0).numpy()) @ shares[:, column]
            (high_at, high), (low_at, low) = run.rule()[:2], run.radau(0.0)
            assert low_at.min() == pytest.approx(0, abs=1e-12)
            assert low @ function(low_at) < truth < high @ function(high_at)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_largest_eigenvalues_and_their_intervals(k):
    matrix = turned(torch.cat([torch.tensor([9.0, 7.0, 7.0, 7.0, 4.0]), torch.linspace(-2, 1, 495)]))
    truth = np.array([9, 7, 7, 7, 4])[:k]
    found = top_eigenvalues(matrix, k, steps=40)
    assert found.spec["method"] == "block lanczos"
    low, high = found.intervals.T
    assert ((low <= truth) & (truth <= high)).all()
    assert (found.values <= truth + 1e-10).all()
    assert (found.errors <= 1e-3 * 9).all()
    assert found.ok
    residuals = matrix @ found.vectors - found.vectors * torch.from_numpy(found.values)
    assert (residuals.norm(dim=0).numpy() <= found.errors).all()
    assert json.loads(json.dumps(found.to_dict()))["values"] == found.values.tolist()


def test_largest_eigenvalues_of_small_and_odd_matrices():
    assert top_eigenvalues(torch.tensor([[3.0]])).values == pytest.approx([3.0])
    assert top_eigenvalues(torch.diag(torch.tensor([-1.0, -2.0, -5.0])), 3).values == pytest.approx([-1, -2, -5])
    for size in (4, 300):
        nothing = top_eigenvalues(torch.zeros(size, size), 2, steps=4)
        assert (nothing.values.tolist(), nothing.errors.tolist(), nothing.findings) == ([0, 0], [0, 0], ())
        same = top_eigenvalues(torch.eye(size), 3, steps=4)
        assert same.values == pytest.approx([1, 1, 1])


def test_too_few_steps_for_the_largest_eigenvalue():
    found = top_eigenvalues(turned(torch.linspace(0, 1, 400)), 1, steps=4)
    assert [f.code for f in found.findings] == ["CURV813"]
    assert found.intervals[0, 0] <= 1.0
    assert [f.code for f in top_eigenvalues(Known(-torch.eye(300), positive=True), 1, steps=4).findings] == ["CURV815"]


def test_density_of_small_matrices_is_exact():
    values = torch.tensor([-1.0, 0.0, 2.0, 2.0])
    found = spectral_density(turned(values), width=0.1)
    assert found.nodes[0] == pytest.approx(values.numpy(), abs=1e-12)
    assert not found.se.any()
    assert not found.residuals.any()
    assert found.mass(1, 3).value == 0.5
    assert found.moment(2).value == pytest.approx(9 / 4)
    assert (found.moment(1).se, found.mass(1, 3).systematic) == (0, 0)
    bumps = sum(np.exp(-0.5 * ((found.grid - v) / 0.1) ** 2) for v in values.numpy()) / (4 * 0.1 * np.sqrt(2 * np.pi))
    assert found.density == pytest.approx(bumps, abs=1e-9)
    assert json.loads(json.dumps(found.to_dict()))["size"] == 4
    for one in (torch.zeros(3, 3), torch.tensor([[2.0]]), torch.zeros(900, 900)):
        flat = spectral_density(one)
        assert flat.density.sum() * (flat.grid[1] - flat.grid[0]) == pytest.approx(1, abs=1e-3)


def coverage(found, truth):
    return np.mean([abs(e.value - truth) <= 2 * e.error for e in found])


@pytest.mark.heavy
def test_errors_of_masses_and_moments_cover():
    # At a coverage of 95.4 %, 200 repeats give a share outside [0.90, 0.995] with probability 1e-3; masses have a
    # systematic part besides, so that they may cover more.
    values = torch.cat([torch.linspace(0, 1, 80), torch.linspace(3, 4, 20)])
    matrix = turned(values)
    found = [spectral_density(matrix, seed=seed, **FEW) for seed in range(REPEATS)]
    assert 0.90 <= coverage([f.moment(1) for f in found], float(values.mean())) <= 0.995
    clear = [f.mass(2.0, 5.0) for f in found]
    assert 0.90 <= coverage(clear, 0.2) <= 0.995
    assert max(e.systematic for e in clear) < 0.01
    within = [f.mass(0.2, 0.7) for f in found]
    truth = float(((values > 0.2) & (values < 0.7)).double().mean())
    assert coverage(within, truth) >= 0.90
    assert np.mean([e.error for e in within]) < 0.2  # a bound: ten nodes cut the spectrum into tenths
    assert np.std([e.value for e in within]) < 0.05
    # Bumps of all eigenvalues at all points of the grid, which moves a little with the seed.
    shares = []
    for f in found:
        bumps = np.exp(-0.5 * ((f.grid - values.double().numpy()[:, None]) / f.width) ** 2).mean(0)
        shares.append(np.mean(np.abs(f.density - bumps / (f.width * np.sqrt(2 * np.pi)))) * (f.grid[-1] - f.grid[0]))
    stated = np.mean([f.diagnostics["integrated_se"] + f.systematic for f in found])
    assert np.mean(shares) < 1.5 * stated


@pytest.mark.heavy
def test_errors_of_the_log_determinant_cover():
    values = torch.arange(1.0, 101.0).double() ** -1.5
    matrix, truth = turned(values), float((values + 0.02).log().sum())
    for positive in (False, True):
        known = Known(matrix, positive=positive)
        found = [log_determinant(known, 0.02, seed=seed, **FEW) for seed in range(REPEATS // 2)]
        # 100 repeats: outside [0.87, 1] with probability 4e-4.
        assert coverage(found, truth) >= 0.87
        off = np.array([e.value - truth for e in found])
        assert np.mean([e.se for e in found]) < 1.3 * off.std()
        assert abs(off.mean()) < 4 * off.std() / 10 + np.mean([e.systematic for e in found])


def test_log_determinant_is_exact_for_small_matrices():
    values = torch.tensor([0.5, 1.0, 3.0])
    found = log_determinant(turned(values), 0.25)
    assert found.value == pytest.approx(float((values + 0.25).log().sum()))
    assert (found.se, found.systematic) == (0, 0)
    definite = torch.linspace(0.5, 1, 100).double()
    plain = log_determinant(Known(turned(definite), positive=True), **FEW)
    assert abs(plain.value - float(definite.log().sum())) < 4 * plain.error


@pytest.mark.parametrize("size", [20, 100])
def test_log_determinant_of_matrices_without_one(size):
    values = torch.linspace(-1, 1, size)
    for matrix, shift in ((turned(values), 0.5), (turned(values.clamp(min=0)), 0.0), (torch.zeros(size, size), 0.0)):
        with pytest.raises(InputError, match="positive definite"):
            log_determinant(matrix, shift, probes=2, steps=40)
    for shift in (float("nan"), float("inf"), "1"):
        with pytest.raises(InputError, match="shift"):
            log_determinant(torch.eye(size), shift)


def test_log_determinant_that_may_not_exist():
    values = torch.cat([torch.linspace(0.0, 1, 199), torch.tensor([-0.05])])  # hidden at the edge of a bulk
    found = log_determinant(turned(values), 0.04, probes=8, steps=4, tolerance=None)
    assert "CURV816" in [f.code for f in found.findings]


def test_matrix_said_to_be_positive():
    known = Known(turned(torch.linspace(-0.5, 1, 150)), positive=True)
    assert "CURV815" in [f.code for f in spectral_density(known, **FEW).findings]
    assert "CURV815" in [f.code for f in log_determinant(known, 1.0, **FEW).findings]
    fine = Known(turned(torch.linspace(0, 1, 150)), positive=True)
    assert "CURV815" not in [f.code for f in spectral_density(fine, **FEW).findings]


def test_trace_of_a_function():
    values = torch.linspace(-1, 1, 200)
    found = function_trace(turned(values), np.exp, probes=16, steps=12, tolerance=None)
    truth = float(values.double().exp().sum())
    assert abs(found.value - truth) < 4 * found.se
    assert found.systematic < 1e-6 * truth
    step = function_trace(turned(values), lambda x: (x > 0.1).astype(float), probes=8, steps=6, tolerance=1e-3)
    assert {"CURV811", "CURV813"} <= {f.code for f in step.findings}
    with pytest.raises(InputError, match="finite on the spectrum"):
        function_trace(turned(values), lambda x: np.where(x > 0.5, np.inf, x), probes=8, steps=10)


def test_density_says_what_is_missing():
    matrix = turned(torch.linspace(0, 1, 400))
    found = spectral_density(matrix, probes=8, steps=4, tolerance=0.001)
    assert {"CURV811", "CURV813"} == {f.code for f in found.findings}
    assert {"CURV812"} == {f.code for f in spectral_density(matrix, probes=2, steps=40, tolerance=None).findings}
    enough = spectral_density(matrix, probes=32, steps=12, tolerance=0.2)
    assert enough.diagnostics["probes"] == 8


def test_starts_are_the_same_however_many_run_together(monkeypatch):
    matrix = turned(torch.linspace(0, 1, 150))
    together, state = spectral_density(matrix, **FEW), torch.get_rng_state()
    monkeypatch.setattr(recurrence, "_KEPT", 1)
    alone = spectral_density(matrix, **FEW)
    assert np.allclose(together.nodes, alone.nodes, atol=1e-9)
    assert torch.equal(state, torch.get_rng_state())
    assert not np.allclose(together.nodes, spectral_density(matrix, seed=1, **FEW).nodes, atol=1e-9)


def test_hessian_of_a_network():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)).double()
    land = Landscape(net, (torch.randn(30, 6).double(), torch.randint(0, 3, (30,))), "cross-entropy")
    operator = hessian(land)
    truth = torch.linalg.eigvalsh(torch.stack([operator @ unit for unit in torch.eye(land.dim).double()])).numpy()
    found = top_eigenvalues(operator, 3, steps=12)
    low, high = found.intervals.T
    assert found.spec["method"] == "block lanczos"
    assert ((low <= truth[::-1][:3]) & (truth[::-1][:3] <= high)).all()
    mass = spectral_density(operator, probes=8, steps=12, tolerance=None).mass(0.05, 10.0)
    assert abs(mass.value - np.mean(truth > 0.05)) < 3 * mass.error


def test_bad_input():
    slanted = Known(torch.triu(torch.ones(120, 120, dtype=torch.float64)))
    for ask in (spectral_density, log_determinant):
        with pytest.raises(InputError, match="symmetric"):
            ask(slanted, probes=4, steps=8)
        with pytest.raises(EstimationError, match="finite"):
            ask(Known(torch.full((120, 120), torch.nan)), probes=4, steps=8)
        with pytest.raises(InputError, match="square"):
            ask(torch.ones(2, 3))
        for settings in ({"probes": 1}, {"steps": 1}, {"tolerance": 0}, {"seed": None}):
            with pytest.raises(InputError):
                ask(torch.eye(3), **settings)
    for k in (0, 4, 1.0, True):
        with pytest.raises(InputError, match="between 1 and the 3 rows"):
            top_eigenvalues(torch.eye(3), k)
    with pytest.raises(InputError, match="width"):
        spectral_density(torch.eye(3), width=0.0)
    density = spectral_density(torch.eye(3))
    with pytest.raises(InputError, match="low < high"):
        density.mass(1, 1)
    with pytest.raises(InputError, match="power"):
        density.moment(-1)
