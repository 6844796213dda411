"""Curvatures of hand-made points, and where random matrices and critical points are looked for."""

import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell
from crunode_papers.cullen2026.runs import langevin
from crunode_papers.cullen2026.runs.langevin import PRINTED, ChainSettings
from crunode_papers.pennington2017 import index as by_index


class Quadratics:
    """Two trainings with three points each, around each of which the loss is ½ Σ hᵢ(wᵢ − wᵢ*)²."""

    n, at_once = 100, 4

    def __init__(self, curvature):
        self.curvature = torch.tensor(curvature, dtype=torch.float64)
        self.centers = torch.arange(1.0, 1 + self.curvature.numel(), dtype=torch.float64).view(self.curvature.shape)

    def targets(self, part):
        return self.centers[:, part], self.curvature[:, part]

    def slopes(self, w, targets, index):
        assert index is None
        centers, curvature = targets
        return curvature * (w - centers)


@pytest.mark.parametrize("place", [(0, 0), (0, 2), (1, 1), (1, 2)])
def test_the_sharpest_of_all_points_of_all_trainings_counts(place):
    curvature = np.tile([[0.1, 0.5, 1.0, 0.3]], (2, 3, 1))
    curvature[place][1] = 7.0
    target = Quadratics(curvature)
    assert langevin.sharpness(target) == pytest.approx(7.0, rel=1e-6)
    held = langevin.held_settings(target, {"nbeta": 30.0, "draws": 50})
    # A step moves the sharpest direction by a fifth of its distance, and the resolution is a fiftieth of it.
    assert held.step * 7.0 / 2 == pytest.approx(1 / 5, rel=1e-6)
    assert held.resolution == pytest.approx(7.0 / 50, rel=1e-6)
    assert (held.nbeta, held.draws) == (30.0, 50)
    assert langevin.held_settings(None, {"step": 3.0, "resolution": 0.5}) == ChainSettings(step=3.0, resolution=0.5)


def test_chains_of_the_paper_in_units_of_nbeta():
    """Step 1e-4, β = 30/n, γ = 5, three chains, 100 steps of burn-in, 600 draws; they forget in 4000 steps."""
    assert PRINTED.epsilon(1123) == pytest.approx(1e-4)
    assert PRINTED.scale(1123) == 30
    assert PRINTED.resolution * PRINTED.scale(1123) == pytest.approx(5)
    assert PRINTED.memory == pytest.approx(4000)
    assert (PRINTED.chains, PRINTED.warmup, PRINTED.draws, PRINTED.every, PRINTED.batch) == (3, 100, 600, 10, 128)
    free = ChainSettings(step=2.0, resolution=0.5)
    assert free.scale(50) == pytest.approx(50 / math.log(50))
    assert free.epsilon(50) == pytest.approx(2 * math.log(50) / 50)


@pytest.mark.parametrize("model", ["linear", "relu"])
def test_random_matrices_go_up_to_twice_the_critical_energy(monkeypatch, model):
    seen = {}
    fit = by_index.fit_index

    def fitted(energies, values, **options):
        seen["near"] = np.asarray(energies)
        return fit(energies, values, **options)

    def spectrum(law, size, seed):
        seen.setdefault("seeds", []).append(seed)
        values = np.ones(size)
        values[: 1 + len(seen["seeds"]) % 2] = -1.0
        return values

    monkeypatch.setattr(by_index, "fit_index", fitted)
    monkeypatch.setattr(by_index, "random_spectrum", spectrum)
    settings = {"kind": "matrices", "model": model, "ratio": 0.5, "size": 50, "matrices": 4, "seed": 0}
    found = by_index.compute(Cell("a", settings))
    critical = found["critical"]
    over = np.array(found["energy"]) / critical
    assert (over > 1).all()
    assert (np.diff(over) > 0).all()
    assert over[-1] == pytest.approx(2)
    # The 3/2 law is seen within 0.2 % of ε_c, and not at it.
    assert seen["near"].max() / critical - 1 == pytest.approx(2e-3)
    assert 0 < seen["near"].min() / critical - 1 < 2e-4
    assert len(set(seen["seeds"])) == len(seen["seeds"]) == 4 * len(over)
    # One and two negative eigenvalues of fifty by turns.
    assert found["index"] == pytest.approx([0.03] * len(over))
    assert found["se"] == pytest.approx([np.std([1, 2, 1, 2], ddof=1) / 50 / 2] * len(over))
    assert all(0 < value < 1 for value in found["model"])


def test_errors_of_counts_are_not_below_rounding(monkeypatch):
    monkeypatch.setattr(by_index, "random_spectrum", lambda law, size, seed: np.ones(size))
    settings = {"kind": "matrices", "model": "linear", "ratio": 0.5, "size": 50, "matrices": 4, "seed": 0}
    found = by_index.compute(Cell("a", settings))
    assert found["se"] == pytest.approx([0.3 / 50 / 2] * len(found["energy"]))
    assert set(found["index"]) == {0.0}


@pytest.mark.parametrize("sets", [1, 2])
def test_critical_points_are_looked_for_between_minimizers_and_no_output(monkeypatch, sets):
    """192 starts for each ratio at paper size, 64 at each of three levels; energies are losses over the width."""
    seen = []

    def point(loss, index, unsure):
        number = lambda v, s=0.0: type("Number", (), {"value": v, "systematic": s})  # noqa: E731
        return type("Point", (), {"loss": number(loss), "fraction": number(index, unsure)})

    class Found(list):
        outcomes = ("converged", "converged", "stalled")

    def search(land, starts, **options):
        seen.append(options["level"])
        assert (starts, options["steps"]) == (64, 9)
        return Found([point(3.0, 0.25, 0.0), point(6.0, 0.5, 0.019), point(9.0, 0.75, 0.021)])

    monkeypatch.setattr(by_index, "critical_points", search)
    settings = {"kind": "critical", "units": "tanh", "ratio": 0.5, "width": 6, "starts": 64, "steps": 9, "sets": sets}
    found = by_index.compute(Cell("a", {**settings, "seed": 0}))
    assert len(seen) == 3 * sets
    assert 64 * len(seen) == 192 * sets
    # From the energy of minimizers, ½(1 − φ)² = 1/8, to ½ of no output, per output.
    levels = np.array(seen[:3]) / 6
    assert (np.diff(levels) > 0).all()
    assert ((levels > 1 / 8) & (levels < 1 / 2)).all()
    assert ((levels - 1 / 8) / (3 / 8)).tolist() == pytest.approx([0.15, 0.4, 0.7])
    assert found["energy"] == [0.5, 1.0] * 3 * sets
    assert found["index"] == [0.25, 0.5] * 3 * sets
    assert found["unsure"] == 3 * sets
    assert found["outcomes"] == {"converged": 6 * sets, "stalled": 3 * sets}
