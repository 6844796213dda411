"""Networks of the scaling recipe as its page lists them, and prices of models of different size."""

import math

import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.cullen2026 import scaling as cullen2026_scaling
from crunode_papers.cullen2026.constructed import construct
from crunode_papers.watanabe2010 import criteria as watanabe_criteria
from crunode_papers.watanabe2013 import selection as model_selection

# The table of src/crunode_papers/cullen2026/cullen2026.md: p, K, and what is chosen besides.
NETWORKS = [
    ("generic", 3, 4, {"inputs": 4}),
    ("generic", 3, 4, {"inputs": 4, "centred": True}),
    ("generic", 3, 5, {"inputs": 4}),
    ("generic", 3, 12, {"inputs": 4}),
    ("modular", 3, 4, {}),
    ("modular", 3, 4, {"centred": True}),
    ("modular", 5, 6, {}),
    ("modular", 5, 12, {"centred": True}),
    ("subset", 5, 12, {"centred": True, "examples": 15}),
    ("subset", 3, 4, {"examples": 6}),
    ("subset", 7, 5, {"examples": 20}),
    ("lazy", 3, 12, {}),
    ("lazy", 3, 12, {"centred": True}),
    ("lazy", 5, 10, {"centred": True}),
    ("ntk", 3, 4, {}),
    ("ntk", 5, 4, {"centred": True}),
    ("stage-two", 3, 4, {"inputs": 4, "active": 2}),
]


@pytest.mark.parametrize(("hidden", "stated"), [(9, "the units do not cancel"), (10, "the rank-one features")])
def test_what_is_to_hold_turns_at_as_many_units_as_symmetric_matrices_have_entries(hidden, stated):
    made = construct("generic", 3, hidden, inputs=4)  # 4·5/2 = 10
    said = [check.hypothesis for check in (*made.checks, *made.missed)]
    assert sum("units do not cancel" in one or "rank-one features" in one for one in said) == 1
    assert any(stated in one for one in said)


def test_constructed_networks_are_those_of_the_page():
    cells = [cell for cell in cullen2026_scaling.cells("paper", 0) if cell.settings["kind"] == "case"]
    found = [tuple(cell.settings[k] for k in ("case", "modulus", "hidden", "options")) for cell in cells]
    assert found == NETWORKS
    assert len({cell.name for cell in cells}) == len(cells)
    assert cells[1].name == "case: generic p=3 K=4 (centred, inputs=4)"
    assert cells[4].name == "case: modular p=3 K=4"
    toy = [cell.settings for cell in cullen2026_scaling.cells("toy", 0) if cell.settings["kind"] == "case"]
    assert [(s["case"], s["modulus"], s["hidden"], s["options"]) for s in toy] == [n for n in NETWORKS if n[1] == 3]
    # At toy size one of them has chains, and so have the narrowest three on all pairs.
    assert [(s["case"], s["hidden"]) for s in toy if s["chains"]] == [("subset", 4)]
    grid = [cell.settings for cell in cullen2026_scaling.cells("toy", 0) if cell.settings["kind"] == "grid"]
    assert [(s["modulus"], s["hidden"]) for s in grid if s["chains"]] == [(3, 1), (3, 2), (3, 3)]


def test_slopes_of_the_grid_are_taken_over_the_widths_of_the_page():
    """K of 1 to 3 for p = 3 and 1 to 8 for p = 5 and 7 below the critical width, and K of 1, 2, 3 for all p."""
    grid = [cell.settings for cell in cullen2026_scaling.cells("paper", 0) if cell.settings["kind"] == "grid"]
    for p, below, above in (
        (3, [1, 2, 3], [5, 7, 9]),
        (5, [1, 2, 3, 4, 6, 8], [12, 16]),
        (7, [1, 2, 3, 4, 6, 8, 12, 16], []),
        (11, [1, 2, 3], []),
    ):
        bend = p * (p * p - 1) / (3 * p - 2)
        widths = [s["hidden"] for s in grid if s["modulus"] == p]
        assert [k for k in widths if k < bend] == below
        assert [k for k in widths if k > bend] == above
        sampled = [s["hidden"] for s in grid if s["modulus"] == p and s["chains"]]
        assert sampled == {3: [1, 2, 3, 5, 7, 9], 5: [1, 2, 4, 8], 7: [1, 2, 4]}.get(p, [])


@pytest.mark.parametrize(
    # Aoyagi & Watanabe 2005 for 4-H-4 and rank r = min(H, 2): λ and multiplicity.
    ("hidden", "coefficient", "multiplicity"),
    [(1, 3.5, 1), (2, 6.0, 1), (3, 7.0, 2), (4, 7.5, 1)],
)
def test_models_pay_their_coefficient_or_half_their_parameters(monkeypatch, hidden, coefficient, multiplicity):
    n, seen = 60, {}

    class Drawn:
        def of(self, k, pointwise):
            assert not pointwise
            return k

    def drawing(data, width, levels, **options):
        seen.update(data=data, width=width, levels=levels, **options)
        return Drawn()

    monkeypatch.setattr(model_selection, "draw_posteriors", drawing)
    monkeypatch.setattr(model_selection, "free_energy", lambda k: type("F", (), {"value": 10.0 + k, "se": 0.5 + k}))
    settings = {"truth": "strong", "n": n, "hidden": hidden, "sets": 3, "chains": 2, "draws": 7, "warmup": 5, "seed": 1}
    found = model_selection.compute(Cell("a", settings))
    assert (seen["width"], seen["chains"], seen["draws"], seen["warmup"]) == (hidden, 2, 7, 5)
    assert (seen["levels"][0], seen["levels"][-1]) == (0.01, n)
    assert (found["free"], found["free_se"]) == ([10, 11, 12], [0.5, 1.5, 2.5])
    assert found["wbic"] == found["waic"] == []
    x, y = seen["data"].x, seen["data"].y
    truth = torch.diag(torch.tensor([2.0, 1.5, 0.0, 0.0], dtype=torch.float64))
    for k in range(3):
        solution = torch.linalg.lstsq(x[k], y[k]).solution
        base = float((y[k] - x[k] @ truth).square().sum()) / 2
        price = coefficient * math.log(n) - (multiplicity - 1) * math.log(math.log(n))
        # The best fit of rank r keeps the first r right singular vectors of the fitted values.
        fits = {}
        for rank in {hidden, min(hidden, 2), 2}:
            _, _, v = torch.linalg.svd(x[k] @ solution)
            kept = solution @ v[:rank].T @ v[:rank]
            fits[rank] = float((y[k] - x[k] @ kept).square().sum()) / 2 - base
        assert found["bic"][k] == pytest.approx(fits[hidden] + 4 * hidden * math.log(n), abs=1e-6)
        assert found["law"][k] == pytest.approx(fits[min(hidden, 2)] + price, abs=1e-6)
        assert found["fit"][k] == pytest.approx(fits[2], abs=1e-6)


def test_posteriors_by_hmc_are_warmed_up_for_a_third_of_their_draws():
    for cell in watanabe_criteria.cells("paper", 0):
        s = cell.settings
        if "hmc" in s:
            assert (s["chains"], s["draws"], s["warmup"], s["leaps"]) == (32, 600, 200, 8)
    (toy,) = [cell.settings for cell in watanabe_criteria.cells("toy", 0) if "hmc" in cell.settings]
    assert toy["model"] == "regular"
    assert toy["warmup"] < toy["draws"]


def test_criteria_on_weak_data_are_less_the_loss_of_the_truth(monkeypatch):
    n, seen = 60, {}

    class Drawn:
        def of(self, k, pointwise):
            assert pointwise
            return k

    def drawing(data, width, levels, **options):
        seen.update(data=data, levels=levels, **options)
        return Drawn()

    def number(value):
        return type("Estimate", (), {"value": value, "se": 0.5})

    def of_level(nbeta, value):
        assert nbeta in seen["levels"]
        return number(value)

    monkeypatch.setattr(model_selection, "draw_posteriors", drawing)
    monkeypatch.setattr(model_selection, "free_energy", lambda k: number(10.0 + k))
    monkeypatch.setattr(model_selection, "wbic", lambda k, nbeta: of_level(nbeta, 100.0 + k))
    monkeypatch.setattr(model_selection, "waic", lambda k, nbeta: of_level(nbeta, 2.0 + k))
    settings = {"truth": "weak", "n": n, "hidden": 2, "sets": 2, "chains": 2, "draws": 7, "warmup": 5, "seed": 1}
    found = model_selection.compute(Cell("a", settings))
    assert seen["precision"] == 1.0  # a standard normal prior
    truth = torch.diag(torch.tensor([1.5, 0.45, 0.0, 0.0], dtype=torch.float64))
    for k in range(2):
        base = float((seen["data"].y[k] - seen["data"].x[k] @ truth).square().sum()) / 2
        assert found["wbic"][k] == pytest.approx(100 + k - base)
        assert found["waic"][k] == pytest.approx(n * (2 + k) - base)


def test_growth_of_the_free_energy_is_that_above_the_best_fit():
    """From n = 200 to 51 200: 6 log n at H = 2, 7 log n less log log n at H = 3, 7.5 log n at H = 4."""
    results = []
    for hidden, coefficient, times in ((2, 6.0, 0), (3, 7.0, 1), (4, 7.5, 0)):
        for n, fit in ((200, 5.0), (51_200, 90.0)):
            price = coefficient * math.log(n) - times * math.log(math.log(n))
            held = {"free": [fit + price - 0.1, fit + price + 0.1], "fit": [fit, fit]}
            held |= {name: [0.0, 0.0] for name in ("free_se", "law", "bic")}
            results.append(Result(Cell("a", {"truth": "strong", "n": n, "hidden": hidden}), held, 0.0))
    rows = model_selection._growth(results, "paper")
    assert [row.verdict for row in rows] == ["agrees"] * 3
    for row in rows:
        assert row.ours == pytest.approx(row.paper)
        # Two ends, each with the error 0.1 of a mean of two.
        assert row.se == pytest.approx(math.sqrt(2) * 0.1 / math.log(256))
