"""Statistics of curves, rows about trainings, features of networks and equations of state, worked out by hand."""

import math

import numpy as np
import pytest
import torch

from crunode.jobs.recipe import Cell, Result
from crunode_papers.claims import rows as claims
from crunode_papers.claims.statistics import TTest, mean_test
from crunode_papers.cullen2026 import severity as cullen2026_severity
from crunode_papers.cullen2026.runs import curves, plans, statistics
from crunode_papers.grokking import measures
from crunode_papers.grokking.fourier import effective_width, fourier_features, fourier_network, unit_strengths
from crunode_papers.grokking.networks import QuadraticNetwork
from crunode_papers.saghir2024 import overfitting as saghir2024_overfitting
from crunode_papers.watanabe2010 import criteria as watanabe_criteria


def training(memorized, generalized, **changes):
    """A training on epochs 0 to 8 that memorizes and generalizes at the given epochs; None for never."""
    epochs = list(range(9))
    when = lambda at: [0.0 if at is None or e < at else 1.0 for e in epochs]  # noqa: E731
    values = [{"value": float(v), "se": 0.5} for v in (1, 9, 8, 7, 6, 5, 4, 3, 2)]
    return {
        "epochs": epochs,
        "training_loss": [1.0] * 9,
        "validation_loss": [9.0 - e for e in epochs],
        "training_accuracy": when(memorized),
        "validation_accuracy": when(generalized),
        "points": {"epochs": epochs, "local": values},
        **changes,
    }


LOST = training(1, 2, training_loss=[1.0, None, *[1.0] * 7])


def test_parts_of_the_trainings_count_those_that_diverged_too():
    rows = plans.grokking_rows("x", [training(1, 4), training(2, 4), training(2, None), LOST], "Fig. 3", "paper")
    memorized, generalized, later = rows
    assert (memorized.ours, generalized.ours) == (0.75, 0.5)
    assert (memorized.paper, memorized.side) == (1.0, "at least")
    assert "1 to 2 epochs" in memorized.note
    assert "4 to 4 epochs" in generalized.note
    assert all("1 of 4 diverged" in row.note for row in (memorized, generalized))
    # log₂ 4/1 and log₂ 4/2.
    assert later.ours == pytest.approx(1.5)
    assert "delay of 2 to 3 epochs" in later.note


def test_where_none_diverged_nothing_is_said_of_it():
    rows = plans.grokking_rows("x", [training(0, 4), training(1, 2)], "Fig. 3", "paper")
    assert [row.verdict for row in rows[:2]] == ["agrees", "agrees"]
    assert not any("diverged" in row.note for row in rows)
    # Memorized before the first step counts as one epoch.
    assert rows[2].ours == pytest.approx((2 + 1) / 2)
    none = plans.grokking_rows("x", [training(None, None)], "Fig. 3", "paper")
    assert [row.ours for row in none] == [0.0, 0.0, None]
    assert "in none" in none[0].note


def test_numbers_of_a_curve_by_hand():
    found = curves.curve_numbers(training(2, 6), "local")
    assert (found["max"], found["final"]) == (9.0, 2.0)
    assert found["fall"] == pytest.approx(7 / 9)
    assert found["whole"] == found["correlation"] == pytest.approx(1)
    assert found["changes"] is None  # all of them are the same
    # From epoch 2 on λ̂ falls from 8 to 2 and the loss from 7 to 1: both half way at epoch 5.
    assert found["lead"] == pytest.approx(0)
    assert found["behind_accuracy"] == pytest.approx(math.log2(5 / 6))
    # Four points from memorization on are needed.
    assert curves.curve_numbers(training(5, 6), "local")["correlation"] == pytest.approx(1)
    late = curves.curve_numbers(training(6, 6), "local")
    assert (late["correlation"], late["lead"], late["whole"]) == (None, None, pytest.approx(1))
    assert curves.curve_numbers(training(None, 6), "local")["correlation"] is None
    assert curves.curve_numbers(training(2, None), "local")["behind_accuracy"] is None
    assert set(curves.curve_numbers(LOST, "local").values()) == {None}


def test_points_of_a_curve_begin_after_the_first_epoch_and_leave_out_what_is_lost():
    one = training(2, 6)
    kept = ((1, 1), (5, None), (None, 1), (3, 2))
    one["points"] = {"epochs": [0, 2, 4, 8], "local": [{"value": v, "se": s} for v, s in kept]}
    epochs, values, errors, beside = curves.llc_curve(one, "local")
    assert (epochs.tolist(), values.tolist(), errors.tolist()) == ([2, 8], [5, 3], [0, 2])
    assert beside["validation_loss"].tolist() == [7.0, 1.0]
    assert beside["training_accuracy"].tolist() == [1.0, 1.0]
    assert beside["validation_accuracy"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("late", [True, False])
def test_curves_are_told_from_memorization_on_or_at_all_epochs(late):
    rows = plans.curve_rows("x", [training(2, 6), training(2, 6)], "Fig. 3", "paper", late=late)
    found = {row.name.removeprefix("x: ").removesuffix(" λ̂ (local chains)"): row for row in rows}
    words = "rank correlation with the validation loss "
    assert (f"{words}from memorization on, of" in found) == late
    assert (f"{words}at all epochs, of" in found) == (not late)
    assert found["maximum of"].ours == 9
    assert found["last"].ours == 2
    assert found["maximum of"].verdict == found["last"].verdict == "shown"
    falls = found["fall from the maximum to the end, as part of the maximum, of"]
    assert falls.ours == pytest.approx(7 / 9)
    assert (falls.paper is None) == (not late)
    lead = found["log₂ of half time of the validation loss over half time of"]
    assert lead.ours == pytest.approx(0)


def test_falls_are_read_on_straight_lines_in_log_epoch():
    assert statistics.fall_time([1, 10, 100], [4.0, 8.0, 0.0]) == pytest.approx(10**1.5)
    assert statistics.fall_time([1, 10, 100], [4.0, 8.0, 0.0], share=0.25) == pytest.approx(10**1.25)
    # The first time, from the maximum on.
    twice = statistics.fall_time([1, 10, 100, 1000, 10_000], [0.0, 8.0, 2.0, 8.0, 0.0])
    assert twice == pytest.approx(10 ** (1 + 4 / 6))
    assert statistics.fall_time([1, 10, 100], [0.0, 1.0, 1.0]) is None


def test_ranks_of_ties_are_their_mean():
    assert statistics._ranks(np.array([5.0, 1.0, 5.0, 3.0])).tolist() == [3.5, 1, 3.5, 2]
    assert statistics.rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert statistics.rank_correlation([1, 2], [1, 2]) is None


def test_decays_need_three_positive_values():
    x = [1.0, 2.0, 4.0, 8.0]
    found = statistics.fit_decay(x, [[1.0, 0.5, 0.25, 0.0], [1.0, math.inf, -1.0, 1.0]])
    assert (found.exponent.value, found.left_out) == (pytest.approx(-1), 3)
    # Two series on lines of their own and values off them by ±δ in log y: R² = 1 − Σ rest² / Σ (y − ȳ)².
    logs = np.log(x)
    wave = 0.1 * np.array([1.0, -1.0, -1.0, 1.0])  # orthogonal to constants and to log x
    found = statistics.fit_decay(x, [np.exp(-logs + wave), np.exp(3 - 2 * logs - wave)])
    total = sum(float(np.square(y - y.mean()).sum()) for y in (-logs + wave, 3 - 2 * logs - wave))
    assert found.exponent.value == pytest.approx(-1.5)
    assert found.power_r2 == pytest.approx(1 - 2 * 4 * 0.01 / total)
    flat = statistics.fit_decay(x, [[2.0] * 4])
    assert math.isnan(flat.power_r2)


def test_boundaries_at_the_edges_of_what_can_be_fitted():
    assert statistics.fit_boundary([1, 2], [0.0, 1.0]) is None
    assert statistics.fit_boundary([1, 2, 3], [0.5, 0.6, 0.9]) is None
    found = statistics.fit_boundary([1, 2, 4, 8], [0.0, 0.0, 1.0, 1.0])
    # Between 2 and 4, known to their distance over √12 in log x, and no narrower than a tenth of the grid.
    assert found.middle == pytest.approx(math.sqrt(8), rel=1e-3)
    assert found.width == pytest.approx(0.1 * math.log(2), rel=1e-6)
    assert found.se == pytest.approx(found.middle * math.log(2) / math.sqrt(12))


def test_errors_of_boundaries_are_those_of_least_squares():
    """(JᵀJ)₁₁ alone, of the middle, with the spread over all points but two."""
    x = np.geomspace(0.5, 12, 12)
    wave = 0.02 * np.array([1.0, -1.0] * 6)
    y = 1 / (1 + np.exp(-(np.log(x) - math.log(2.7)) / 0.3))
    found = statistics.fit_boundary(x, np.clip(y + wave * (y > 0.05) * (y < 0.95), 0, 1))
    fit = 1 / (1 + np.exp(-(np.log(x) - math.log(found.middle)) / found.width))
    rest = fit - np.clip(y + wave * (y > 0.05) * (y < 0.95), 0, 1)
    slope = fit * (1 - fit) / found.width
    error = math.sqrt(float(rest @ rest) / (len(x) - 2) / float(slope @ slope))
    assert found.se == pytest.approx(found.middle * error, rel=1e-6)
    # No other middle or width is better.
    for middle, width in ((1.001, 1.0), (0.999, 1.0), (1.0, 1.001), (1.0, 0.999)):
        other = 1 / (1 + np.exp(-(np.log(x) - math.log(found.middle * middle)) / (found.width * width)))
        assert np.square(other - (fit - rest)).sum() > rest @ rest


@pytest.mark.parametrize(("accuracy", "done"), [(0.9499, 0.0), (0.95, 1.0), (1.0, 1.0)])
def test_severity_is_of_trainings_that_end_right_nineteen_times_of_twenty(accuracy, done):
    one = training(1, 4, rate=1e-3, weight_decay=0.0, seed=3)
    one["validation_accuracy"][-1] = accuracy
    lost = {**LOST, "rate": 1e-3, "weight_decay": 0.0, "seed": 4}
    result = Result(Cell("a", {}), {"trainings": [one, lost]}, 0.0)
    rates, table = cullen2026_severity.table_of([result], 0.0)
    assert rates == [1e-3]
    assert table["done"][0, 0] == done
    assert np.isnan(table["gsm"][0, 0]) == (done == 0)
    if done:
        # Right in training but not in validation at epochs 1, 2 and 3 of 8, and a little at the last.
        assert table["gsm"][0, 0] == pytest.approx((3 + 1 - accuracy) / 8)
    assert table["delay"][0, 0] == 3
    assert table["local"][0, 0] == 9


@pytest.mark.parametrize("p", [5, 6, 9, 10])
def test_features_are_shares_of_power_at_frequencies(p):
    """Sums of cosines, by hand: amplitudes a at f have the power a²p/2 (a²p at p/2), outputs likewise."""
    n = np.arange(p)
    half = p // 2

    def wave(f, phase=0.3):
        return np.cos(2 * np.pi * f * n / p + phase)

    first = np.stack(
        [
            np.concatenate([7 + 3 * wave(1) + 1 * wave(2), 4 * wave(2, 1.0) - 5]),
            np.concatenate([2 * wave(1), 2 * wave(2) + 1 * wave(1)]),
            np.concatenate([wave(half, 0.0), wave(half, 0.0)]),
        ]
    )
    second = np.stack([5 + 2 * wave(2) + wave(1), 3 * wave(1), 4 * wave(2) + 3 * wave(1, 2.0)], 1)
    net = QuadraticNetwork.of(torch.tensor(first), torch.tensor(second))
    found = fourier_features(net)
    last = 2 * p if p % 2 == 0 else p
    assert found.frequency.tolist() == [2, 1, half]
    assert found.share.tolist() == pytest.approx([17 / 26, 5 / 9, 1.0])
    assert found.output_frequency.tolist() == [2, 1, 2]
    assert found.output_share.tolist() == pytest.approx([4 / 5, 1.0, 16 / 25])
    expected = torch.zeros(3, half, dtype=torch.float64)
    expected[0, :2] = torch.tensor([9.0, 17.0]) * p / 2
    expected[1, :2] = torch.tensor([5.0, 4.0]) * p / 2
    expected[2, half - 1] = last
    assert torch.allclose(found.power, expected, atol=1e-9)


def test_features_of_one_input_alone_are_those_of_that_input():
    p, n = 7, torch.arange(7, dtype=torch.float64)
    wave = torch.cos(2 * math.pi * 3 * n / p)
    first = torch.stack([torch.cat([wave, torch.zeros(p)]), torch.cat([torch.ones(p), 2 * wave])]).double()
    found = fourier_features(QuadraticNetwork.of(first, torch.ones(p, 2, dtype=torch.float64)))
    assert found.frequency.tolist() == [3, 3]
    assert found.power[:, 2].tolist() == pytest.approx([3.5, 14.0])
    # Outputs that are all the same are felt by nothing that takes off the mean.
    assert found.output_frequency.tolist() == [0, 0]
    assert found.output_share.tolist() == [0, 0]


def test_networks_with_exact_features_answer_every_pair():
    for p in (3, 5, 7):
        net = fourier_network(p)
        assert net.second.weight.shape == (p, 3 * (p - 1))
        a, b = torch.meshgrid(torch.arange(p), torch.arange(p), indexing="ij")
        x = torch.zeros(p * p, 2 * p, dtype=torch.float64)
        x[torch.arange(p * p), a.flatten()] = 1
        x[torch.arange(p * p), p + b.flatten()] = 1
        with torch.no_grad():
            outputs = (x @ net.first.weight.T).square() @ net.second.weight.T
        assert torch.equal(outputs.argmax(1), ((a + b) % p).flatten())


def test_units_count_where_they_are_stronger_than_a_part_of_the_strongest():
    first = torch.zeros(3, 6, dtype=torch.float64)
    first[:, 0] = 1.0
    second = torch.zeros(3, 3, dtype=torch.float64)
    second[0] = torch.tensor([3.0, 1.0, 0.0])
    second[1] = torch.tensor([4.0, 0.0, 0.0])
    net = QuadraticNetwork.of(first, second)
    # (u + t)² is 1 on 3 of 9 pairs: Σ (f − 1/3)² = 3·4/9 + 6/9 = 2.
    assert unit_strengths(net).tolist() == pytest.approx([5 * math.sqrt(2), math.sqrt(2), 0.0])
    assert [effective_width(net, t) for t in (0.0, 0.19, 0.21)] == [2, 2, 1]


def test_an_accuracy_is_reached_at_its_threshold():
    assert measures.first_reached([0, 3, 7], [0.94, 0.95, 1.0]) == 3
    assert measures.first_reached([0, 3, 7], [0.1, 0.5, 0.9499]) is None
    assert measures.first_reached([0, 3, 7], [0.1, 0.5, 0.6], 0.5) == 3


def test_overfitting_is_a_change_after_the_least_loss_and_a_correlation_of_three():
    def result(losses, values, diverged=None):
        points = [{"validation_loss": a, "llc": {"value": b}} for a, b in zip(losses, values, strict=True)]
        return Result(Cell("a", {}), {"points": points, "diverged": diverged}, 0.0)

    change, correlation = saghir2024_overfitting._change, saghir2024_overfitting._correlation
    assert change(result([3.0, 1.0, 2.0], [9.0, 4.0, 6.0]), "llc") == 2
    assert change(result([3.0, 1.0, 2.0], [9.0, 4.0, 6.0]), "validation_loss") == 1
    assert change(result([1.0, 3.0, 2.0], [9.0, 4.0, 6.0]), "llc") == -3
    assert change(result([3.0, 2.0, 1.0], [9.0, 4.0, 6.0]), "llc") is None
    assert change(result([3.0, 1.0, 2.0], [9.0, 4.0, None]), "llc") is None
    assert change(result([3.0, 1.0, 2.0], [9.0, None, 4.0]), "llc") is None
    assert change(result([3.0, 1.0, 2.0], [9.0, 4.0, 6.0], diverged=3), "llc") is None
    assert correlation(result([1.0, 2.0, 4.0], [2.0, 3.0, 5.0]), "llc") == pytest.approx(1)
    assert correlation(result([1.0, 2.0, 4.0, 9.0], [2.0, 3.0, 5.0, None]), "llc") == pytest.approx(1)
    assert correlation(result([1.0, 2.0], [2.0, 3.0]), "llc") is None
    assert correlation(result([1.0, 1.0, 1.0], [2.0, 3.0, 5.0]), "llc") is None
    assert correlation(result([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]), "llc") is None
    assert correlation(result([1.0, 2.0, 3.0], [2.0, 2.0, 3.0], diverged=1), "llc") is None


def test_one_value_alone_has_no_error_and_a_row_without_judgement():
    alone = mean_test([2.0])
    assert (alone.value, alone.dof, alone.count) == (2.0, 0, 1)
    assert all(math.isnan(v) for v in (alone.se, alone.t, alone.above, alone.below, alone.both, alone.margin(0.01)))
    row = claims.claim_row("a", alone, "Fig. 1", above=True, size="paper")
    assert (row.ours, row.se, row.tolerance, row.verdict) == (2.0, None, None, "shown")
    assert "1 seed alone" in row.note
    exact = TTest(2.0, 0.0, 3, 4)
    assert (exact.t, exact.above, exact.below, exact.both) == (math.inf, 0.0, 1.0, 0.0)
    assert TTest(-2.0, 0.0, 3, 4).t == -math.inf
    assert TTest(0.0, 0.0, 3, 4).both == 1.0


def test_claims_are_judged_at_one_percent_on_one_side():
    # The quantile of Student's t for 1 % and 3 degrees of freedom is 4.541, and 3.747 for 4.
    for dof, quantile in ((3, 4.541), (4, 3.747)):
        for over, verdict in ((1.01, ("agrees", "differs")), (0.99, ("shown", "shown"))):
            test = TTest(over * quantile, 1.0, dof, dof + 1)
            judged = tuple(claims.claim_row("a", test, "b", above=up, size="paper").verdict for up in (True, False))
            assert judged == verdict
            assert claims.absence_row("a", test, "b", size="paper").verdict == ("differs" if over > 1 else "agrees")
            row = claims.claim_row("a", test, "b", above=True, size="paper")
            assert (row.se, row.tolerance) == (1.0, pytest.approx(quantile, rel=1e-3))
            assert ("not significant" in row.note) == (over < 1)


def blocks(model, n, beta, **values):
    cell = {"model": model, "n": n, "beta": beta}
    return Result(Cell("a", cell), {name: list(v) for name, v in values.items()}, 0.0)


def test_equations_of_state_by_hand(monkeypatch):
    """With λ = ν: n E[Bg] = λ, n E[Bt] = −λ, E[V] = 2λ/β, and Cv − WAIC = 192/n³ for four dimensions."""
    sizes = {"regular": (100, 1000), "singular": (100, 1000)}
    monkeypatch.setattr(watanabe_criteria, "_SIZES", {"paper": {"sizes": sizes}})
    # Aoyagi & Watanabe: (HN − Hr + Mr)/2 for M + r > N + H, here M = 4, H = N = 2, r = 1.
    half = {"regular": 2.0, "singular": (4 - 2 + 4) / 2}
    nu = {"regular": 2.0, "singular": 1.5}
    results = []
    for model, beta, n in ((m, b, n) for m in sizes for b in (0.5, 1.0) for n in (100, 1000)):
        lam, v = half[model], 2 * nu[model] / beta
        bg, bt = (lam - nu[model]) / beta + nu[model], (lam - nu[model]) / beta - nu[model]
        cv = 2 * lam / beta + (beta - 1) * v - bg
        for sign in (1, -1):  # two blocks of two sets each
            off = np.array([0.01, 0.03]) * sign
            gap = 192 / n**2 * (1 + off)
            held = {"bg": bg + off, "bt": bt + off, "v": np.full(2, v), "cv": cv - off, "waic": cv - off - gap}
            results.append(blocks(model, n, beta, **held))
    rows = watanabe_criteria.rows(results, "paper")
    assert {row.verdict for row in rows} == {"agrees", "shown"}
    found = {row.name: row for row in rows}
    title = watanabe_criteria.MODELS["regular"]
    for beta in (0.5, 1.0):
        where = f"{title}, n = 1000, β = {beta:g}: "
        assert (found[where + "n E[Bg]"].paper, found[where + "n E[Bg]"].ours) == (2, pytest.approx(2))
        assert found[where + "n E[Bg]"].se == pytest.approx(np.std([0.01, 0.03, -0.01, -0.03], ddof=1) / 2)
        assert found[where + "n E[Bt]"].paper == -2
        assert found[where + "E[V]"].paper == 4 / beta
        assert found[where + "n(Bg + Cv) − (β−1)V"].paper == 4 / beta
        assert found[where + "n E[Bg − Bt] − βV"].paper == 0
        # Squares of the variance of a loss are left out: 2λ(λ + 1)/(β²n).
        assert found[where + "n E[Bg]"].tolerance == pytest.approx(
            12 / beta**2 / 1000 + 3 * found[where + "n E[Bg]"].se
        )
        where = f"{watanabe_criteria.MODELS['singular']}, n = 1000, β = {beta:g}: "
        assert found[where + "ν"].ours == pytest.approx(1.5)
        assert found[where + "n E[Bg] − (λ−ν)/β − ν"].ours == pytest.approx(0, abs=1e-12)
        assert found[where + "n E[Bt] − (λ−ν)/β + ν"].ours == pytest.approx(0, abs=1e-12)
        assert found[where + "n(Bg + Cv) − (β−1)V"].paper == 6 / beta
    slope = found[f"{title}, β = 1: slope of log(Cv − WAIC) in log n"]
    assert (slope.paper, slope.ours, slope.side) == (-2, pytest.approx(-3), "at most")
    third = found[f"{title}, n = 1000, β = 1: n³ E[Cv − WAIC]"]
    assert (third.paper, third.ours) == (192, pytest.approx(192))
    # Equal relative errors r of both: the slope's is r/√Σ(x − x̄)², with x − x̄ = ±½ log 10.
    r = np.std([0.01, 0.03, -0.01, -0.03], ddof=1) / 2
    assert slope.se == pytest.approx(r / math.sqrt(0.5 * math.log(10) ** 2), rel=1e-6)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_criteria_of_one_dimension_are_integrals(beta):
    """Posterior averages by quadrature on a fine grid of weights."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 4))
    x[:, 1:] = 0.0
    y = 0.7 * x[:, 0] + rng.standard_normal(12)
    found = watanabe_criteria.closed_forms((x, y), beta)
    w = np.linspace(-6, 6, 6001)
    losses = (y[:, None] - x[:, :1] * w) ** 2 / 2
    log = -(w**2) / 2 - beta * losses.sum(0)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = lambda values: values @ weight  # noqa: E731
    truth = ((y - x @ np.array(watanabe_criteria.TRUE_WEIGHTS)) ** 2 / 2).sum()
    bt = -np.log(mean(np.exp(-losses))).sum() - truth
    v = (mean(losses**2) - mean(losses) ** 2).sum()
    cv = (np.log(mean(np.exp(beta * losses))) - np.log(mean(np.exp((beta - 1) * losses)))).sum() - truth
    assert found["bt"] == pytest.approx(bt, rel=1e-6)
    assert found["v"] == pytest.approx(v, rel=1e-6)
    assert found["cv"] == pytest.approx(cv, rel=1e-6)
    assert found["waic"] == pytest.approx(bt + beta * v, rel=1e-6)


@pytest.mark.parametrize("value", [-0.3, 0.7])
def test_constants_have_no_frequency_whatever_their_sign(value):
    p = 7
    first = torch.full((2, 2 * p), value, dtype=torch.float64)
    first[1, :p] = torch.cos(2 * math.pi * torch.arange(p, dtype=torch.float64) / p)
    found = fourier_features(QuadraticNetwork.of(first, torch.full((p, 2), value, dtype=torch.float64)))
    assert found.frequency.tolist() == [0, 1]
    assert found.share.tolist() == [0.0, pytest.approx(1.0)]
    assert found.output_frequency.tolist() == [0, 0]
