"""The recipes on Saghir et al. 2024: statistics against tables, λ̂ against a closed form, claims that can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.core.landscape import Landscape
from crunode.errors import InputError
from crunode.jobs.recipe import Result
from crunode.sampling.engine import Engine
from crunode.sampling.posterior import Gaussian, Posterior
from crunode_papers.claims import statistics
from crunode_papers.claims.rows import absence_row, at_equal_loss, claim_row
from crunode_papers.networks.models import build
from crunode_papers.saghir2024 import escape as saghir2024_escape
from crunode_papers.saghir2024 import optimizers as saghir2024_optimizers
from crunode_papers.saghir2024 import overfitting as saghir2024_overfitting
from crunode_papers.saghir2024 import smoothing as saghir2024_smoothing
from crunode_papers.saghir2024.measure import Probe, gradient_norm, local_coefficient, measure_point
from crunode_papers.saghir2024.plans import FULL, TOY, ffnn
from crunode_papers.saghir2024.trajectories import OPTIMIZERS, load_tensors, make_optimizer, trajectory

RECIPES = (
    saghir2024_optimizers.RECIPE,
    saghir2024_smoothing.RECIPE,
    saghir2024_escape.RECIPE,
    saghir2024_overfitting.RECIPE,
)
# Upper quantiles as printed in tables of Student's distribution.
TABLE = {
    (0.05, 1): 6.314,
    (0.01, 1): 31.821,
    (0.05, 3): 2.353,
    (0.001, 3): 10.215,
    (0.025, 10): 2.228,
    (0.005, 10): 3.169,
    (0.05, 120): 1.658,
}


@pytest.mark.parametrize(("tail", "dof"), TABLE)
def test_quantiles_are_those_of_printed_tables(tail, dof):
    assert statistics.student_quantile(tail, dof) == pytest.approx(TABLE[tail, dof], rel=3e-4)
    assert statistics.student_tail(TABLE[tail, dof], dof) == pytest.approx(tail, rel=2e-3)


@pytest.mark.parametrize("t", [-30.0, -1.0, -1e-3, 0.0, 0.5, 4.0, 1e3])
def test_tails_are_the_closed_forms_of_one_and_two_degrees_of_freedom(t):
    assert statistics.student_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-9)
    # 1 − t/√(2 + t²) as 2/(√(2 + t²)(√(2 + t²) + t)), which keeps its digits for large t.
    root = math.sqrt(2 + t * t)
    assert statistics.student_tail(t, 2) == pytest.approx(1 / (root * (root + t)), rel=1e-9)


def test_tails_tend_to_the_normal_ones_and_stay_right_far_out():
    assert statistics.student_tail(1.96, 1e7) == pytest.approx(0.5 * math.erfc(1.96 / math.sqrt(2)), rel=1e-5)
    # The Cauchy tail to the next order: 1/(πt) (1 − 1/(3t²)).
    assert statistics.student_tail(1e8, 1) == pytest.approx(1 / (math.pi * 1e8), rel=1e-9)
    assert 0 < statistics.student_tail(40.0, 30) < 1e-25


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.001, 0.999))
def test_incomplete_beta_of_whole_numbers_is_a_binomial_tail(a, b, x):
    n = a + b - 1
    direct = math.fsum(math.comb(n, k) * x**k * (1 - x) ** (n - k) for k in range(a, n + 1))
    assert statistics.incomplete_beta(a, b, x) == pytest.approx(direct, rel=1e-9, abs=1e-14)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 300), st.floats(1e-6, 0.999))
def test_quantiles_invert_tails(dof, tail):
    t = statistics.student_quantile(tail, dof)
    assert statistics.student_tail(t, dof) == pytest.approx(tail, rel=1e-6)


def test_probabilities_of_tests_are_uniform_where_nothing_is_there():
    """2000 samples of 4: a share below 0.05 outside 0.05 ± 4.1 standard deviations has a chance of 4e-5."""
    rng = np.random.default_rng(0)
    hits = sum(statistics.mean_test(rng.standard_normal(4)).above < 0.05 for _ in range(2000))
    assert abs(hits / 2000 - 0.05) < 4.1 * math.sqrt(0.05 * 0.95 / 2000)


def test_paired_and_welch_tests_are_the_textbook_ones():
    a, b = [30.02, 29.99, 30.11, 29.97, 30.01, 29.99], [29.89, 29.93, 29.72, 29.98, 30.02, 29.98]
    welch = statistics.welch_test(a, b)  # the example of two sets of screws: t = 1.959 with 7.031 degrees of freedom
    assert (welch.t, welch.dof, welch.both) == pytest.approx((1.959, 7.031, 0.0907), rel=2e-3)
    shifted = statistics.paired_test([x + 1 for x in a], a)
    assert shifted.value == pytest.approx(1)
    assert shifted.above < 1e-12
    alone = statistics.mean_test([2.0])
    assert math.isnan(alone.above)
    assert math.isnan(alone.t)
    assert math.isnan(alone.margin(0.01))


def test_slopes_are_those_of_straight_lines():
    x = [-2.0, 0.0, 1.0, 5.0]
    test = statistics.trend_test(x, [[3 * v + 1 for v in x], [5 * v - 2 for v in x]])
    assert (test.value, test.se, test.dof) == pytest.approx((4.0, 1.0, 1))


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0], [2.0]]])
def test_bad_values_are_refused(bad):
    with pytest.raises(InputError, match="finite values"):
        statistics.mean_test(bad)


def test_other_bad_input_is_refused():
    with pytest.raises(InputError, match="pairs"):
        statistics.paired_test([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="different places"):
        statistics.trend_test([1.0, 1.0], [[1.0, 2.0]])
    with pytest.raises(InputError, match="degrees of freedom"):
        statistics.student_tail(1.0, 0)
    with pytest.raises(InputError, match="tail"):
        statistics.student_quantile(0.0, 3)
    with pytest.raises(InputError, match="x from 0 to 1"):
        statistics.incomplete_beta(1.0, 1.0, 1.5)
    with pytest.raises(InputError, match="at least 70000"):
        load_tensors("fashion-mnist", "small", 70_000, 4, torch.device("cpu"))
    with pytest.raises(InputError, match="optimizer among"):
        make_optimizer(build("ffnn", layers=1, width=2), {"optimizer": "adam", "lr": 0.1}, 0)


def small_land(examples: int = 400) -> Landscape:
    x, y, *_ = load_tensors("fashion-mnist", "small", examples, 7, torch.device("cpu"))
    return Landscape(build("ffnn", layers=1, width=6, inputs=16), (x, y), "cross-entropy")


def test_coefficient_with_own_labels_counts_directions_above_the_resolution():
    """Of a linear classifier near w*: λ̂ = ½ Σ h/(h + r), up to the anharmonic part, which falls with n."""
    x, y, *_ = load_tensors("fashion-mnist", "small", 2000, 7, torch.device("cpu"))
    land = Landscape(build("ffnn", layers=0, width=1, inputs=16), (x, y), "cross-entropy").self_labelled()
    batch = next(iter(land.passes(2000)))
    hessian = torch.autograd.functional.hessian(lambda w: land.batch_loss(w, batch), land.center)
    h = torch.linalg.eigvalsh(hessian.double()).clamp(min=0)
    probe = Probe(step=0.5, resolution=0.05, chains=4, warmup=100, draws=500, batch=2000)
    found = local_coefficient(land, probe, seed=0)
    exact = float((h / (h + probe.resolution)).sum()) / 2
    # 5 standard errors, and 4 % for the step (ε h/4 at the largest h) and the anharmonic part.
    assert abs(found["value"] - exact) < 5 * found["se"] + 0.04 * exact
    assert found["se"] < 0.05 * exact
    assert abs(found["drift"]) < 4


def test_what_is_measured_at_a_point_hangs_together():
    land = small_land()
    probe = {"chains": 2, "warmup": 20, "draws": 40, "batch": 100, "step": 0.05, "resolution": 0.5}
    found = measure_point(land, probe, 1)
    assert found == measure_point(land, probe, 1)
    batch = next(iter(land.passes(400)))
    direct = torch.autograd.functional.hessian(lambda w: land.batch_loss(w, batch), land.center).trace()
    assert found["trace"]["value"] == pytest.approx(float(direct), rel=1e-3)
    assert found["gradient"] == pytest.approx(float(land.batch_gradient(land.center, batch).norm()), rel=1e-4)
    assert found["wbic"]["value"] == pytest.approx(land.n * found["loss"] + math.log(land.n) * found["llc"]["value"])
    assert gradient_norm(land.self_labelled()) < 1e-5 < found["gradient"]


@pytest.mark.parametrize("seed", [1, 3, 6])
def test_steps_with_own_labels_are_replayed(seed):
    """Loss differences next to w* are as small as the rounding of the losses, which must not pass for an error."""
    x, y, *_ = load_tensors("fashion-mnist", "small", 600, 4, torch.device("cpu"))
    own = Landscape(build("ffnn", seed, layers=1, width=8, inputs=49), (x, y), "cross-entropy").self_labelled()
    engine = Engine(
        Posterior(own, 60.0, Gaussian(1.0)), [0, 1], torch.full((2,), 60.0), seed=0, batch=128, layout="batched"
    )
    with torch.no_grad():
        engine.at_step(0)(own.center.expand(2, -1).clone())
    assert engine.why_not_replayed == ""


def test_chains_that_diverge_leave_no_value():
    found = local_coefficient(small_land(), Probe(step=1e6, chains=2, warmup=60, draws=60, batch=50), 0)
    assert found == {"value": None, "se": None, "drift": None, "rhat": None}


def settings_of(optimizer: str, **others):
    base = {**TOY, "data": "fashion-mnist", "net": ffnn(1, 6), "optimizer": optimizer, "lr": 1e-2, "alpha": 1e-2}
    probe = {**TOY["probe"], "warmup": 5, "draws": 10}
    return {**base, "epsilon": 1e-10, "examples": 200, "epochs": 2, "measure": [2], "probe": probe, "seed": 3, **others}


@pytest.mark.heavy
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_trains(optimizer):
    found = trajectory(settings_of(optimizer, epochs=6, measure=[6]))
    assert found["diverged"] is None
    assert found["curve"][-1]["loss"] < found["curve"][0]["loss"]
    assert [p["epoch"] for p in found["points"]] == [6]
    assert all(row["update_norm"] > 0 for row in found["curve"])


def test_online_form_keeps_the_length_of_the_gradient_and_the_smoothed_one_does_not():
    one, other = (trajectory(settings_of(o, epochs=1, measure=[])) for o in ("kaldi", "empirical"))
    start = trajectory(settings_of("plain", epochs=1, measure=[]))["curve"][0]
    assert start["update_norm"] == pytest.approx(start["gradient_norm"], rel=1e-4)
    # Momentum adds up to 1/(1 − 0.9) directions of about that length; NGD with d/α near 10⁵ is far beyond.
    assert one["curve"][0]["update_norm"] < 11 * start["gradient_norm"]
    assert other["curve"][0]["update_norm"] > 2 * start["gradient_norm"]


@pytest.mark.heavy
def test_branches_share_what_came_before():
    trunk = {"optimizer": "sgd", "lr": 1e-2, "epochs": 2, "measure": [-1, 0]}
    one, other = (trajectory(settings_of(o, trunk=trunk)) for o in ("sgd", "kaldi"))
    assert [p["epoch"] for p in one["points"]] == [-1, 0, 2]
    assert [row["epoch"] for row in one["curve"]] == [-1, 0, 1, 2]
    assert one["points"][:2] == other["points"][:2]
    assert one["points"][2] != other["points"][2]


def test_a_training_that_diverges_says_when():
    found = trajectory(settings_of("sgd", lr=1e30, epochs=5, measure=[5]))
    assert found["diverged"] is not None
    assert found["points"] == []


@pytest.mark.heavy
def test_lenet_is_measured_too():
    probe = {"chains": 2, "warmup": 2, "draws": 4, "batch": 20, "step": 1e-3}
    found = trajectory(
        settings_of("kaldi", net={"model": "lenet5"}, pool=1, examples=60, epochs=1, measure=[1], probe=probe)
    )
    assert found["dim"] == 61_706
    assert found["points"][0]["trace"]["value"] > 0


def test_claims_can_be_confirmed_refuted_and_left_open():
    up, down, open_ = ([1.0, 1.1, 0.9], [-1.0, -1.1, -0.9], [1.0, -1.2, 0.3])
    for values, above, verdict in (
        (up, True, "agrees"),
        (down, True, "differs"),
        (up, False, "differs"),
        (down, False, "agrees"),
        (open_, True, "shown"),
        ([1.0], True, "shown"),
    ):
        row = claim_row("a", statistics.mean_test(values), "Fig. 1", above=above, size="paper")
        assert row.verdict == verdict
    assert claim_row("a", statistics.mean_test(down), "Fig. 1", above=True, size="toy").verdict == "shown"
    assert absence_row("a", statistics.mean_test(up), "Fig. 6", size="paper").verdict == "differs"
    assert absence_row("a", statistics.mean_test(open_), "Fig. 6", size="paper").verdict == "agrees"


def point(epoch, llc, trace=1.0, wbic=0.0, validation=1.0):
    names = {"llc": llc, "own": llc, "trace": trace, "wbic": wbic}
    return {
        "epoch": epoch,
        "loss": 1 / (1 + epoch),
        "validation_loss": validation,
        **{k: {"value": v, "se": 0.1} for k, v in names.items()},
    }


def fake(recipe, make):
    """Results of all cells at paper size, by a function of a cell's settings that gives points."""
    found = []
    for cell in recipe.cells("paper", 0):
        points = make(cell.settings, 0.01 * cell.settings["repeat"])
        curve = [
            {"epoch": p["epoch"], "update_norm": 1.0 + 0.1 * k, "validation_loss": 1.0} for k, p in enumerate(points)
        ]
        found.append(Result(cell, {"points": points, "curve": curve, "diverged": None}, 1.0))
    return found


def test_values_are_compared_at_the_loss_of_the_slower_one():
    slow = [{"loss": x, "trace": 10 * x} for x in (2.0, 1.5, 1.0)]
    fast = [{"loss": x, "trace": 7 * x} for x in (1.9, 1.2, 0.3)]
    assert at_equal_loss(slow, fast, "trace") == pytest.approx((10.0, 7.0))
    assert at_equal_loss(fast, slow, "trace") == pytest.approx((7.0, 10.0))
    assert at_equal_loss(slow, fast[2:], "trace") is None  # it was below before it was first looked at
    assert at_equal_loss(slow, [], "trace") is None


def test_optimizers_are_told_apart():
    level = {"sgd": 5.0, "kaldi": 9.0, "plain": 5.0, "empirical": 2.0, "true": 5.0}
    recipe = saghir2024_optimizers.RECIPE
    results = fake(
        recipe, lambda s, e: [point(k, level[s["optimizer"]] + e * len(s["optimizer"]), 9 - k) for k in (1, 2, 3)]
    )
    rows = {row.name: row for row in recipe.rows(results, "paper")}
    where = "Fig. 1, FFNN 1 × 128 on MNIST: λ̂ of NGD"
    assert rows[f"{where} (kaldi) less that of SGD (sgd)"].verdict == "agrees"
    assert rows[f"{where} (empirical) less that of SGD (plain)"].verdict == "differs"
    assert rows["Fig. 2, LeNet-5 on MNIST: slope of Tr H by epoch, sgd"].ours == pytest.approx(-1)
    lost = [
        Result(r.cell, {**r.value, "diverged": 1}, 1.0) if r.settings["optimizer"] == "kaldi" else r for r in results
    ]
    assert next(iter(recipe.rows(lost, "paper"))).ours is None


def test_smoothing_is_judged_by_slopes():
    recipe = saghir2024_smoothing.RECIPE
    results = fake(recipe, lambda s, e: [point(3, (e - 2) * math.log10(s["alpha"]) + e * math.log10(s["epsilon"]))])
    rows = {row.name: row for row in recipe.rows(results, "paper")}
    assert rows["kaldi: λ̂ by decade of α"].verdict == "agrees"
    assert rows["kaldi: λ̂ by decade of α"].ours == pytest.approx(-2 + 0.015)
    assert rows["empirical: λ̂ by decade of ε"].verdict == "shown"


def test_escapes_are_judged_by_changes_after_the_split():
    recipe = saghir2024_escape.RECIPE
    rise = {"sgd": 0.0, "kaldi": 3.0, "empirical": -3.0}
    results = fake(recipe, lambda s, e: [point(0, 1.0), point(4, 1.0 + rise[s["optimizer"]] + e, validation=0.5 + e)])
    rows = {row.name: row.verdict for row in recipe.rows(results, "paper")}
    assert rows["Fig. 4: change of λ̂ after the split, kaldi at 0.01"] == "agrees"
    assert rows["Fig. 4: change of λ̂ after the split, empirical at 0.01"] == "differs"
    assert rows["Fig. 5: change of λ̂ after the split, sgd at 0.01"] == "agrees"
    assert rows["Fig. 5: change of the validation loss, sgd raised to 0.01"] == "agrees"
    assert rows["Fig. 4: change of λ̂, empirical at 0.01 less SGD at 0.01"] == "differs"


def test_overfitting_is_counted_from_the_least_validation_loss():
    recipe = saghir2024_overfitting.RECIPE
    losses = [1.0, 0.5, 0.7]
    results = fake(recipe, lambda s, e: [point(k, k + e * k, 1.0, -k * (1 + e), losses[k]) for k in range(3)])
    rows = {row.name: row for row in recipe.rows(results, "paper")}
    end = "from the least validation loss to the last epoch"
    assert rows[f"kaldi: change of λ̂ {end}"].verdict == "agrees"
    assert rows[f"kaldi: change of λ̂ {end}"].ours == pytest.approx(1.015)
    assert rows[f"kaldi: change of WBIC {end}"].verdict == "differs"
    falls = fake(recipe, lambda s, e: [point(k, k, 1.0, 0.0, 1.0 - k / 9) for k in range(3)])
    assert recipe.rows(falls, "paper")[0].ours is None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
def test_larger_sizes_are_those_of_the_paper(recipe):
    for size in ("paper", "full"):
        cells = recipe.cells(size, 0)
        assert all(c.settings["source"] == "full" and c.settings["batch"] == 128 for c in cells)
        assert all(c.settings["probe"] == FULL["probe"] for c in cells)
        assert {c.settings["optimizer"] for c in cells} >= {"sgd", "kaldi", "empirical"}
        assert max(c.settings["repeat"] for c in cells) >= 3
        # The same initial weights and order of examples for all optimizers of a repeat.
        assert len({(c.settings["repeat"], c.settings["seed"]) for c in cells}) == len(
            {c.settings["repeat"] for c in cells}
        )
