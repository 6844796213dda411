"""Rows of recipes on cells whose rows can be worked out by hand, at the edges of what they allow."""

import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.pennington2017 import index as by_index
from crunode_papers.pennington2017 import spectrum as by_spectrum
from crunode_papers.tanner import gauss_newton, lazy_training


def one_row(rows, *words):
    (found,) = [row for row in rows if all(word in row.name for word in words)]
    return found


def descent(kappa, near, **changes):
    """What descent at the best rate gives at a condition number κ."""
    factor = (kappa - 1) / (kappa + 1)
    value = {
        "condition": kappa,
        "complete": True,
        "measured": factor,
        "loss_factor": factor**2,
        "slow": 1 - 2 / (kappa + 1) / 4,
        "reached": int(math.log(1e6) / 4 * (kappa + 1)),
        "over_bound": 1.0,
        "predicted": 0.0,
        "least_squares": 0.0,
        "shortest_other": 1.5,
        "limit": 0.0,
        "printed": 2.0,
        "newton": [1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32],
    }
    cell = Cell("a", {"network": "tanh", "near": near})
    return Result(cell, value | changes, 0.0)


def newton_rows(**changes):
    return gauss_newton.rows([descent(9.0, 2.0, **changes), descent(99.0, 0.5, **changes)], "paper")


def test_rates_of_descent_are_those_of_the_condition_number():
    rows = newton_rows()
    assert {row.verdict for row in rows} == {"agrees", "explained"}
    assert [r.ours for r in rows if r.name.endswith("κ = 9: residual factor")] == [pytest.approx(0.8)]
    loss = [row for row in rows if row.name.endswith("κ = 9: loss factor")]
    assert [(row.paper, row.ours) for row in loss] == [(pytest.approx(0.64), pytest.approx(0.64))]
    assert one_row(rows, "exponent of κ + 1").ours == pytest.approx(-1)
    assert one_row(rows, "residual factor at a quarter").paper == pytest.approx(1 - 0.2 / 4)
    printed = one_row(rows, "loss factor at the best rate")
    assert (printed.paper, printed.ours) == (pytest.approx(0.8), pytest.approx(0.64))
    small = one_row(rows, "at a quarter of it")
    assert (small.paper, small.ours, small.verdict) == (pytest.approx(0.8), pytest.approx(0.95**2), "explained")
    assert one_row(rows, "‖θ₁‖ over the least").verdict == "explained"


def test_parts_of_the_residual_that_are_left_are_allowed_for_where_descent_was_cut_short():
    """A tenth of 1/κ, twice that for losses."""
    for complete, off, verdict in ((True, 9e-6, "agrees"), (True, 1.1e-5, "differs"), (False, 0.01, "agrees")):
        (row, loss, *_) = gauss_newton.rows(
            [descent(9.0, 2.0, complete=complete, measured=0.8 + off, loss_factor=0.64 + 2 * off), descent(99.0, 0.5)],
            "paper",
        )
        assert (row.verdict, loss.verdict) == (verdict, verdict)
    (row, loss, *_) = gauss_newton.rows(
        [descent(9.0, 2.0, complete=False, measured=0.8 + 0.012, loss_factor=0.64 + 0.023), descent(99.0, 0.5)],
        "paper",
    )
    assert (row.verdict, loss.verdict) == ("differs", "differs")


@pytest.mark.parametrize(
    ("key", "value", "words", "verdict"),
    [
        ("over_bound", 1 + 1e-8, "over its bound", "differs"),
        ("predicted", 2e-20, "linearized loss after", "differs"),
        ("least_squares", 2e-8, "minimal norm", "differs"),
        ("shortest_other", 0.99, "other solutions", "differs"),
        ("limit", 2e-5, "limit of descent", "differs"),
        ("printed", 1.0, "‖θ₁‖", "agrees"),
        ("slow", 0.9, "residual factor at a quarter", "differs"),
    ],
)
def test_of_all_distances_the_worst_counts(key, value, words, verdict):
    other = {"printed": 0.5} if key == "printed" else {}
    row = one_row(gauss_newton.rows([descent(9.0, 2.0, **{key: value}), descent(99.0, 0.5, **other)], "paper"), words)
    assert (row.ours, row.verdict) == (value, verdict)
    if key != "slow":  # which is looked at for one distance alone
        rows = gauss_newton.rows([descent(9.0, 2.0, **other), descent(99.0, 0.5, **{key: value})], "paper")
        assert (one_row(rows, words).ours, one_row(rows, words).verdict) == (value, verdict)


def test_steps_to_a_millionth_are_held_against_their_bound_at_the_worst_condition():
    # 1 + 10/4 log 10⁶ = 35.54 steps at κ = 9, and 346.4 at κ = 99.
    for first, second, verdict in (
        (35, 346, "agrees"),
        (36, 346, "differs"),
        (35, 347, "differs"),
        (None, 1, "agrees"),
    ):
        rows = gauss_newton.rows([descent(9.0, 2.0, reached=first), descent(99.0, 0.5, reached=second)], "paper")
        row = one_row(rows, "steps to")
        assert row.verdict == verdict
        ratios = [(first or 0) / (1 + 10 / 4 * math.log(1e6)), second / (1 + 100 / 4 * math.log(1e6))]
        assert row.ours == pytest.approx(max(ratios))


def test_orders_of_convergence_are_read_from_the_last_residuals_above_rounding():
    order = gauss_newton._order
    # Residuals 10^-1, 10^-2, 10^-4, 10^-8: log r₃/r₂ = 4 decades over 2.
    assert order([1e-2, 1e-4, 1e-8, 1e-16, 1e-32]) == pytest.approx(2)
    assert order([1e-3, 1e-6, 1e-15, 1e-21]) == pytest.approx(6 / 9)
    assert order([1.0, 1e-2, 1e-8, 1e-26]) == pytest.approx(3)
    assert order([1.0, 1e-2, 1e-30]) is None  # two residuals tell no order
    assert order([1.0, 1e-2, 1e-4, 1e-8]) is None  # has not come down
    assert order([1e-2, 1.0, 1e-8, 1e-30]) is None  # has risen
    assert one_row(newton_rows(newton=[1.0, 0.5]), "order of repeated").ours is None


def test_repeated_steps_end_at_rounding_or_after_fourteen(monkeypatch):
    class Land:
        def __init__(self, loss, factor):
            self.now, self.factor = loss, factor

        def loss(self):
            return torch.tensor(self.now, dtype=torch.float64)

        def at(self, weights):
            return Land(weights, self.factor)

    def step(land):
        after = land.now * land.factor
        return type("Step", (), {"loss": type("L", (), {"value": after}), "weights": after})

    monkeypatch.setattr(gauss_newton, "gauss_newton_step", step)
    assert gauss_newton._iterated(Land(1.0, 0.5)) == [0.5**k for k in range(15)]
    assert len(gauss_newton._iterated(Land(1.0, 1e-9))) == 4  # 1e-27 is below rounding
    assert gauss_newton._iterated(Land(1e-27, 0.5)) == [1e-27]
    assert gauss_newton._iterated(Land(1.0, math.inf)) == [1.0, math.inf]


def test_shortest_and_smallest_solutions_are_those_of_dense_algebra():
    rng = np.random.default_rng(0)
    jacobian, center = rng.standard_normal((3, 7)), rng.standard_normal(7)
    step = np.linalg.pinv(jacobian) @ rng.standard_normal(3)
    # All other solutions are longer than the one of minimal norm, some shorter than one that is not.
    assert gauss_newton._shortest_other(jacobian, step, 5) > 1
    null = np.eye(7) - np.linalg.pinv(jacobian) @ jacobian
    assert gauss_newton._shortest_other(jacobian, step + 9 * null @ center, 5) < 1
    least = np.linalg.pinv(jacobian) @ jacobian @ (center + step)
    assert gauss_newton._smallest(center, jacobian, step) == pytest.approx(np.linalg.norm(least))
    assert gauss_newton._loss_factor(np.array([1.0, 0.5, 0.1, 1e-19])) == pytest.approx(0.2)
    assert gauss_newton._loss_factor(np.array([1.0, 1e-20])) == pytest.approx(1e-20)


def checked(**changes):
    kappa = 9.0
    value = {
        "condition": kappa,
        "measured": 0.8,
        "agreement": 0.0,
        "newton_loss": 0.0,
        "limit_from_newton": 0.0,
        "plain_rate": (8 / 9) ** 2,
        "small_rate": 0.95,
        "small_rate_predicted": 0.95,
        "shortest_other": 1.1,
        "gradient_change": {"right": 1.0, "printed": 2.0},
    }
    settings = {"kind": "same", "width": 256, "checked": True}
    return lazy_training.rows([Result(Cell("a", settings), value | changes, 0.0)], "paper")


def test_a_network_seen_by_the_library_has_the_rates_of_its_condition_number():
    rows = checked()
    assert {row.verdict for row in rows} == {"agrees", "explained"}
    assert one_row(rows, "contraction of linearized").paper == pytest.approx(0.8)
    assert one_row(rows, "rate 1/σ_max").paper == pytest.approx(64 / 81)
    assert [row.name.split(": ")[1] for row in rows if row.verdict == "explained"] == [
        "loss factor at a tenth of the best rate, as printed",
        "gradient change over the bound as printed",
    ]


@pytest.mark.parametrize(
    ("key", "near", "far", "words"),
    [
        ("agreement", 9e-8, 1.1e-7, "closed forms agree"),
        ("measured", 0.8 + 9e-6, 0.8 + 1.1e-5, "contraction of linearized"),
        ("newton_loss", 9e-19, 1.1e-18, "linearized loss"),
        ("limit_from_newton", 9e-7, 1.1e-6, "limit of descent"),
        # 4/κ/√p = 4/9/16 of the width 256.
        ("plain_rate", 64 / 81 + 0.0277, 64 / 81 + 0.0279, "rate 1/σ_max"),
        ("small_rate", 0.9519, 0.9521, "loss factor at a tenth of the best rate"),
        ("gradient_change", {"right": 1.00009, "printed": 2.0}, {"right": 1.00011, "printed": 2.0}, "p⁻¹L²"),
        ("shortest_other", 1.0, 0.99, "shortest of 100"),
    ],
)
def test_what_the_library_sees_may_be_off_by_so_much(key, near, far, words):
    for value, verdict in ((near, "agrees"), (far, "differs")):
        rows = [row for row in checked(**{key: value}) if "as printed" not in row.name]
        assert one_row(rows, words).verdict == verdict


def test_rates_of_descent_are_a_mean_over_networks_of_the_widest():
    def swept(width, values):
        names = ("per_coordinate", "largest", "from_newton", "error", "kernel")
        found = {name: [width**-0.5, 1.01 * width**-0.5] for name in names}
        found |= {"distance": [1.0, 1.01], "newton_bound": [0.5, 0.9], "over_bound": values}
        return Result(Cell("a", {"kind": "same", "width": width}), found, 0.0)

    for low, verdict in ((0.90, "agrees"), (0.86, "differs")):
        # 2/√400 = 0.1 is allowed for, and twice the error.
        rows = lazy_training.rows([swept(25, [9.0]), swept(400, [low, low]), swept(100, [9.0])], "paper")
        row = one_row(rows, "rate of descent")
        assert (row.ours, row.se, row.verdict) == (pytest.approx(low), pytest.approx(0.0, abs=1e-12), verdict)
    row = one_row(
        lazy_training.rows([swept(25, [9.0]), swept(100, [9.0]), swept(400, [1.0, 2.0, 3.0])], "paper"), "rate"
    )
    assert (row.ours, row.se) == (pytest.approx(2), pytest.approx(1 / math.sqrt(3)))
    rows = lazy_training.rows([swept(25, [9.0]), swept(100, [9.0]), swept(400, [1.0, 2.0])], "paper")
    assert one_row(rows, "over its bound").ours == 0.9
    assert lazy_training.rows([swept(25, [9.0]), swept(100, [9.0])], "paper") == []


def untrained(model, **changes):
    h1 = 0.5 if model == "linear" else 0.25
    value = {
        "h0_mean": [1.0, 1.0],
        "h0_square": [3.0, 3.2],
        "h0_zeros": 0.5,
        "h0_distance": 0.3,
        "h1_square": [h1, h1],
        "h1_distance": 0.1,
        "h1_model": 0.4,
        "energies": [{"energy": 0.5, "distance": 0.2, "negative": 0.3, "index": 0.125}],
    }
    cell = Cell("a", {"kind": "untrained", "model": model, "ratio": 0.5, "width": 8})
    return by_spectrum.rows([Result(cell, value | changes, 0.0)], "paper")


@pytest.mark.parametrize("model", ["linear", "relu"])
def test_untrained_networks_are_held_against_their_second_moments(model):
    h1 = 0.5 if model == "linear" else 0.25
    rows = untrained(model)
    assert one_row(rows, "mean eigenvalue of H0").paper == 1
    square = one_row(rows, "mean square of eigenvalues of H0")
    assert (square.paper, square.ours, square.se) == (1.5, pytest.approx(3.1), pytest.approx(0.1))
    assert square.verdict == "explained"
    (row, *_) = [row for row in rows if row.name.endswith("mean square of H1 over ε")]
    assert (row.paper, row.verdict) == (h1, "agrees")
    for off, verdict in ((0.12, "agrees"), (0.13, "differs")):  # a part of 1/8 of the width
        values = [h1 * (1 + off)] * 2
        (row, *_) = [r for r in untrained(model, h1_square=values) if r.name.endswith("mean square of H1 over ε")]
        assert row.verdict == verdict
        assert one_row(untrained(model, h0_mean=[1 + off] * 2), "mean eigenvalue").verdict == verdict
        assert one_row(untrained(model, h1_distance=off), "distance of H1 from its law").verdict == verdict
    shown = {row.name.split(": ")[1]: row.ours for row in rows if row.verdict == "shown"}
    assert shown["distance of H0 from Marchenko-Pastur"] == 0.3
    assert shown["distance of H from the model"] == 0.2
    assert shown["index, 0.125 in the model"] == 0.3
    assert ("distance of H1 from the semicircle of variance 2ε" in shown) == (model == "linear")
    if model == "linear":
        assert one_row(untrained(model, h0_zeros=0.49), "share of zero").verdict == "differs"
        assert one_row(rows, "as modelled").paper == 2


def test_trained_networks_show_moments_over_their_energy():
    for model, real in (("linear", "0.5"), ("relu", "0.25")):
        cell = Cell("a", {"kind": "trained", "model": model, "ratio": 0.5})
        value = {"energy": 0.25, "h1_square": 0.125, "distance": 0.1, "negative": 0.2, "index": 0.375}
        rows = by_spectrum.rows([Result(cell, value, 0.0)], "paper")
        assert [row.ours for row in rows] == [0.25, 0.5, 0.1, 0.2]
        assert f"{real} for residuals" in rows[1].name
        assert "0.375 in the model" in rows[3].name


def test_random_matrices_are_off_by_six_eigenvalues_at_most_and_their_mean_index_by_one():
    cell = Cell("a", {"kind": "random", "model": "linear", "ratio": 0.5, "size": 100})
    for off, verdict in ((0.059, "agrees"), (0.061, "differs")):
        energies = [
            {"distance": 0.0, "negative": 0.5, "index": 0.5},
            {"distance": off, "negative": 0.5 - off, "index": 0.5},
            {"distance": 0.01, "negative": 0.51, "index": 0.5},
        ]
        near, index, edge = by_spectrum.rows(
            [Result(cell, {"energies": energies, "critical": 1.0, "edge": 1.0}, 0.0)], "paper"
        )
        assert (near.ours, near.verdict) == (off, verdict)
        assert (index.ours, index.verdict) == (pytest.approx(off), verdict)
        assert edge.verdict == "agrees"
    cell = Cell("a", {"kind": "matrices", "model": "linear", "ratio": 0.5, "size": 100})
    for off, verdict in ((0.009, "agrees"), (-0.012, "differs")):
        value = {"index": [0.1, 0.2 + off], "model": [0.1, 0.2], "se": [1e-9, 2e-9], "critical": 0.3, "prefactor": 0.4}
        value |= {"near": {"exponent": [1.5, 0.01], "critical_energy": [0.3, 0.01]}}
        near, exponent, critical, far = by_index.rows([Result(cell, value, 0.0)], "paper")
        assert (near.ours, near.se, near.verdict) == (pytest.approx(abs(off)), 2e-9, verdict)
        assert (exponent.verdict, critical.verdict, critical.paper) == ("agrees", "agrees", 0.3)
        assert far.ours == pytest.approx(0.5)


def test_energies_of_minimizers_are_held_against_what_is_known_of_each_kind():
    def rows(units, energies):
        cell = Cell("a", {"kind": "minimizers", "units": units, "width": 6, "ratio": 0.5})
        return by_index.rows([Result(cell, {"energies": energies, "examples": 24}, 0.0)], "paper")

    exact, printed = rows("linear", [0.375, 0.375])
    assert (exact.paper, exact.verdict) == (0.375, "agrees")
    assert (printed.paper, printed.verdict) == (0.25, "explained")
    assert rows("linear", [0.375 + 0.006] * 2)[0].verdict == "differs"
    assert rows("linear", [0.375 + 0.004] * 2)[0].verdict == "agrees"
    (fit,) = rows("tanh", [0.1, 0.14])
    assert (fit.paper, fit.ours, fit.se) == (0.125, pytest.approx(0.12), pytest.approx(0.02))
    assert [rows("tanh", [0.125 + off] * 2)[0].verdict for off in (0.019, 0.03)] == ["agrees", "explained"]
    (shown,) = rows("relu", [0.1, 0.3])
    assert (shown.ours, shown.verdict) == (pytest.approx(0.2), "shown")
    assert by_index.linear_minimum(8, 4) == 0  # fewer examples than inputs are fitted


def test_critical_points_need_five_for_a_correlation():
    def rows(count, fits=None):
        x = np.linspace(0.1, 0.4, count)
        value = {"energy": x.tolist(), "index": (x**2).tolist(), "unsure": 3, "outcomes": {"a": 4, "b": 5}}
        return by_index.rows(
            [Result(Cell("a", {"kind": "critical", "ratio": 0.75}), value | {"fits": fits or {}}, 0.0)], "paper"
        )

    assert [len(rows(count)) for count in (4, 5)] == [1, 2]
    first, second = rows(5)
    assert (first.ours, "of 9 starts; 3 more" in first.note) == (5, True)
    x = np.linspace(0.1, 0.4, 5)
    assert (second.ours, second.verdict) == (pytest.approx(np.corrcoef(x, x**2)[0, 1]), "agrees")
    fits = {"critical": [0.2, 0.01], "exponent": [1.4, 0.3]}
    assert [(r.ours, r.se) for r in rows(5, fits)[2:]] == [(0.2, 0.01), (1.4, 0.3)]
    # The lower half of the indices, with the power 3/2 they were made with.
    energy = np.linspace(0.3, 0.9, 12)
    found = by_index._fits(energy, 0.4 * (energy - 0.2) ** 1.5)
    assert found["critical"][0] == pytest.approx(0.2, abs=1e-3)
    assert found["exponent"][0] == pytest.approx(1.5, abs=0.02)
    bent = np.where(energy > 0.6, 0.9, 0.4 * (energy - 0.2) ** 1.5)
    assert by_index._fits(energy, bent)["critical"][0] == pytest.approx(0.2, abs=1e-3)


def test_random_spectra_are_told_by_energy_distance_and_shares():
    settings = {"kind": "random", "model": "linear", "ratio": 0.25, "size": 200, "seed": 0}
    found = by_spectrum.compute(Cell("a", settings))
    spectra = next(value for value in found.values() if isinstance(value, list))
    assert [one["energy"] for one in spectra] == list(by_spectrum.ENERGIES)
    for one in spectra:
        assert 0 <= one["distance"] < 0.1
        assert one["negative"] == pytest.approx(one["index"], abs=0.05)
        assert 200 * one["negative"] == pytest.approx(round(200 * one["negative"]))  # a share of 200 eigenvalues
        assert sum(x < 0 for x in one["quantiles"]) == pytest.approx(100 * one["negative"], abs=2)
    assert any(abs(200 * one["index"] - round(200 * one["index"])) > 1e-3 for one in spectra)  # and that of the law
