"""λ̂ along trainings: gradients against autograd, chains against a closed form, and rows that can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.errors import EstimationError, InputError
from crunode.jobs.recipe import Cell, Result
from crunode_papers.cullen2026 import critical_data as cullen2026_critical_data
from crunode_papers.cullen2026 import severity as cullen2026_severity
from crunode_papers.cullen2026 import trajectory as cullen2026_trajectory
from crunode_papers.cullen2026 import transformer as cullen2026_transformer
from crunode_papers.cullen2026.runs import curves, langevin, plans, quadratic, statistics, transformers
from crunode_papers.cullen2026.runs.langevin import PRINTED, ChainSettings, coefficients, excess_losses
from crunode_papers.cullen2026.runs.quadratic import QuadraticPoints
from crunode_papers.cullen2026.runs.transformers import TransformerPoints
from crunode_papers.grokking.batched import train_many
from crunode_papers.grokking.networks import ModularTransformer, QuadraticNetwork, centred_l2
from crunode_papers.grokking.settings import TrainingSettings
from crunode_papers.grokking.tasks import ModularTask

RECIPES = [
    m.RECIPE for m in (cullen2026_trajectory, cullen2026_severity, cullen2026_transformer, cullen2026_critical_data)
]


@pytest.fixture(scope="module")
def runs():
    """Two trainings with splits of their own, in double precision."""
    given = [TrainingSettings(ModularTask(5, seed=s), width=6, rate=0.02, batch=None, seed=s) for s in (0, 1)]
    return train_many(given, epochs=40, at=40, keep=[0, 20, 40], dtype=torch.float64)


@pytest.fixture
def points(runs):
    return QuadraticPoints(runs, [20, 40])


def autograd(points, w, pairs, targets):
    """Loss and gradient of one network, by the module and the loss of the kit."""
    k, p = points.width, points.modulus
    first, second = w[: 2 * p * k].view(2 * p, k).T, w[2 * p * k :].view(k, p).T
    net = QuadraticNetwork.of(first.contiguous(), second.contiguous())
    loss = centred_l2(net(pairs - torch.tensor([0, p])), targets).mean()
    loss.backward()
    return float(loss.detach()), torch.cat([net.first.weight.grad.T.reshape(-1), net.second.weight.grad.T.reshape(-1)])


@pytest.mark.parametrize("labels", ["given", "own"])
@pytest.mark.parametrize("batch", [None, 4])
def test_losses_and_slopes_are_those_of_autograd(runs, labels, batch):
    points = QuadraticPoints(runs, [20, 40], labels)
    chains = 2
    generator = torch.Generator().manual_seed(0)
    w = points.centers.repeat_interleave(chains, 1)
    w = w + 0.1 * torch.randn(w.shape, generator=generator, dtype=w.dtype)
    targets = points.targets()
    index = None
    if batch is not None:
        index = torch.rand(*w.shape[:2], points.n, generator=generator).argsort(-1)[..., :batch]
    slopes, losses = points.slopes(w, targets, index), points.losses(w, targets)
    for t in range(2):
        for row in range(w.shape[1]):
            wanted = targets[t, row // chains if labels == "own" else 0]
            taken = slice(None) if index is None else index[t, row]
            whole, _ = autograd(points, w[t, row], points.rows[t], wanted)
            _, slope = autograd(points, w[t, row], points.rows[t][taken], wanted[taken])
            assert float(losses[t, row]) == pytest.approx(whole, rel=1e-10)
            torch.testing.assert_close(slopes[t, row], slope, rtol=1e-9, atol=1e-12)


def curvatures(points, training, point):
    """Nonzero eigenvalues of the Hessian with own labels, JᵀJ/n, from a dense Jacobian."""
    p, k = points.modulus, points.width
    pairs = points.rows[training]

    def outputs(w):
        first, second = w[: 2 * p * k].view(2 * p, k), w[2 * p * k :].view(k, p)
        out = (first[pairs[:, 0]] + first[pairs[:, 1]]).square() @ second
        return (out - out.mean(0)).reshape(-1)

    jacobian = torch.func.jacrev(outputs)(points.centers[training, point])
    return torch.linalg.eigvalsh(jacobian @ jacobian.T).clamp(min=0).numpy() / points.n


def test_local_chains_give_half_the_number_of_stiff_directions(runs):
    """Near an exact minimum λ̂ = ½ Σ h/((h + ρ)(1 − s(h + ρ)/4)), with the bias of the step s in it.

    Four values at four errors and 2 % (the loss is not quite quadratic): less than one false alarm in 1000.
    """
    points = QuadraticPoints(runs, [0, 40], "own")
    sharp = langevin.sharpness(points)
    lengths = {"chains": 12, "warmup": 150, "draws": 600, "every": 3}
    chosen = ChainSettings(step=0.4 / sharp, resolution=0.05 * sharp, nbeta=1e8, **lengths)
    found = coefficients(points, chosen, [5, 6])
    for t in range(2):
        for k in range(2):
            stiff = curvatures(points, t, k) + chosen.resolution
            exact = float(np.sum((stiff - chosen.resolution) / (stiff * (1 - chosen.step * stiff / 4))) / 2)
            assert abs(found[t][k]["value"] - exact) < 4 * found[t][k]["se"] + 0.02 * exact
            assert found[t][k]["se"] < 0.05 * exact
    # They tell points apart.
    assert found[0][1]["value"] > 1.2 * found[0][0]["value"]


def test_sharpness_is_the_largest_eigenvalue(runs):
    points = QuadraticPoints(runs, [0, 20, 40], "own")
    largest = max(curvatures(points, t, k).max() for t in range(2) for k in range(3))
    assert langevin.sharpness(points) == pytest.approx(largest, rel=0.02)
    held = langevin.held_settings(points, {"nbeta": 1e6})
    assert held.step * largest == pytest.approx(0.4, rel=0.03)
    assert held.resolution / largest == pytest.approx(0.02, rel=0.03)


def test_printed_chains_are_those_of_the_paper():
    assert PRINTED.epsilon(1123) == pytest.approx(1e-4)
    assert PRINTED.scale(1123) == 30.0
    assert PRINTED.resolution * 30 == pytest.approx(5.0)
    assert (PRINTED.chains, PRINTED.warmup, PRINTED.draws) == (3, 100, 600)
    assert PRINTED.memory > PRINTED.warmup + PRINTED.draws
    assert ChainSettings(step=1.0, resolution=1.0).scale(100) == pytest.approx(100 / math.log(100))


def test_values_do_not_depend_on_company_or_on_memory(runs, monkeypatch):
    chosen = ChainSettings(step=0.5, resolution=0.1, nbeta=1e4, chains=2, warmup=3, draws=6, every=2, batch=4)
    together = excess_losses(QuadraticPoints(runs, [0, 20, 40]), chosen, [7, 8])
    assert together.shape == (2, 3, 2, 3)
    alone = excess_losses(QuadraticPoints(runs[1:], [20, 40]), chosen, [8])
    np.testing.assert_allclose(together[1:, 1:], alone, rtol=1e-9, atol=1e-12)
    monkeypatch.setitem(quadratic._ROOM, "cpu", 1)
    np.testing.assert_allclose(excess_losses(QuadraticPoints(runs, [0, 20, 40]), chosen, [7, 8]), together, rtol=1e-9)
    assert not np.allclose(together[0], together[1])


def test_chains_that_diverge_leave_the_others_alone(runs):
    points = QuadraticPoints(runs, [20, 40])
    points.centers[0, 1] *= 1e60
    chosen = ChainSettings(step=0.5, resolution=0.1, nbeta=1e4, chains=2, warmup=5, draws=20, every=2)
    found = coefficients(points, chosen, [1, 2])
    assert found[0][1] == dict.fromkeys(("value", "se", "drift", "rhat"))
    assert all(one["value"] is not None for one in (found[0][0], found[1][0], found[1][1]))
    points.centers[0, 1] = math.nan
    with pytest.raises(EstimationError, match="finite curvature"):
        langevin.sharpness(points)


@pytest.mark.parametrize(
    "wrong", [{"step": 0.0}, {"resolution": -1.0}, {"nbeta": math.inf}, {"chains": 0}, {"every": 601}, {"batch": 1}]
)
def test_settings_of_chains_are_checked(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        ChainSettings(**{"step": 1.0, "resolution": 1.0, **wrong})


def test_labels_and_seeds_are_checked(runs, points):
    with pytest.raises(InputError, match="labels"):
        QuadraticPoints(runs, [0], labels="true")
    with pytest.raises(InputError, match="seed for each"):
        excess_losses(points, ChainSettings(step=1.0, resolution=1.0), [1])


def transformer(seed=0):
    return ModularTransformer(5, layers=1, width=8, heads=2, seed=seed).double()


def test_transformer_slopes_are_those_of_autograd():
    model = transformer(3)
    pairs, results = ModularTask(5).data(inputs="tokens", targets="classes")
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])[None, None]
    points = TransformerPoints(model, w, pairs[None], results[None])
    index = torch.tensor([[[0, 3, 5]]])
    loss = F.cross_entropy(model(pairs[index[0, 0]]), results[index[0, 0]])
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    torch.testing.assert_close(points.slopes(w, points.targets(), index)[0, 0], wanted, rtol=1e-9, atol=1e-12)
    own = TransformerPoints(model, w, pairs[None], results[None], labels="own")
    assert float(own.slopes(w, own.targets(), None).abs().max()) < 1e-12
    with pytest.raises(InputError, match="labels"):
        TransformerPoints(model, w, pairs[None], results[None], labels="true")


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_transformers_trained_together_go_the_way_of_torch(optimizer):
    plan = {"modulus": 5, "fraction": 0.6, "layers": 1, "width": 8, "heads": 2, "batch": None, "epochs": 12}
    plan |= {"rate": 1e-2, "weight_decay": 0.1, "optimizer": optimizer, "seeds": [4, 9], "records": 3, "points": 2}
    found = transformers.transformer_trainings({**plan, "chains": {}})
    for one, seed in zip(found, plan["seeds"], strict=True):
        model = ModularTransformer(5, layers=1, width=8, heads=2, seed=transformers.derived_seed(seed, 2))
        task = ModularTask(5, fraction=0.6, seed=transformers.derived_seed(seed, 1))
        data = {part: task.data(part, inputs="tokens", targets="classes") for part in ("training", "validation")}
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
        steps = kind(model.parameters(), lr=1e-2, weight_decay=0.1)
        for _ in range(12):
            steps.zero_grad()
            F.cross_entropy(model(data["training"][0]), data["training"][1]).backward()
            steps.step()
        for part, (pairs, results) in data.items():
            wanted = float(F.cross_entropy(model(pairs), results).detach())
            assert one[f"{part}_loss"][-1] == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(InputError, match="optimizer"):
        transformers.transformer_trainings({**plan, "optimizer": "sgd", "chains": {}})


@pytest.mark.heavy
@given(st.lists(st.floats(-5, 5), min_size=4, max_size=20, unique=True), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_rank_correlation_sees_order_alone(values, seed):
    x = np.array(values)
    y = np.random.default_rng(seed).normal(size=len(x))
    found = statistics.rank_correlation(x, y)
    assert found == pytest.approx(statistics.rank_correlation(np.arctan(x).argsort().argsort(), np.exp(y)))
    assert statistics.rank_correlation(x, -y) == pytest.approx(-found)
    assert abs(found) <= 1 + 1e-12
    assert statistics.rank_correlation(x, np.zeros(len(x))) is None


@given(st.floats(1.0, 50.0), st.floats(0.1, 10.0), st.floats(-5, 5))
@settings(max_examples=30, deadline=None)
def test_fall_times_scale_with_epochs_and_not_with_values(stretch, scale, shift):
    epochs, curve = np.array([1.0, 3.0, 9.0, 27.0, 81.0]), np.array([1.0, 5.0, 4.0, 1.5, 1.0])
    base = statistics.fall_time(epochs, curve)
    assert base is not None
    assert 9 < base < 27
    assert statistics.fall_time(stretch * epochs, scale * curve + shift) == pytest.approx(stretch * base, rel=1e-6)
    assert statistics.fall_time(epochs, np.arange(5.0)) is None


@pytest.mark.heavy
@pytest.mark.parametrize("middle", [1.3, 2.7, 5.0])
def test_boundaries_are_found_with_their_errors(middle):
    """Fifty noisy curves: the error stands for the scatter of the middle, within a half."""
    generator = np.random.default_rng(1)
    x = np.repeat(np.geomspace(0.5, 12, 14), 3)
    clean = 1 / (1 + (middle / x) ** (1 / 0.2))
    noisy = np.clip(clean + 0.04 * generator.normal(size=(50, len(x))), 0, 1)
    fits = [statistics.fit_boundary(x, y) for y in noisy]
    middles, errors = np.array([f.middle for f in fits]), np.array([f.se for f in fits])
    assert middles.mean() == pytest.approx(middle, rel=0.02)
    assert 0.67 < errors.mean() / middles.std() < 1.5


def test_a_step_sharper_than_the_grid_is_known_to_the_grid():
    found = statistics.fit_boundary([1, 2, 3, 4, 5], [0.0, 0.0, 1.0, 1.0, 1.0])
    assert 2 < found.middle < 3
    assert found.se == pytest.approx(found.middle * math.log(1.5) / math.sqrt(12), rel=1e-6)
    assert statistics.fit_boundary([1, 2, 3], [0.0, 0.1, 0.2]) is None
    with pytest.raises(InputError, match="between 0 and 1"):
        statistics.fit_boundary([1, 2, 3], [0.0, 0.1, 2.0])


def test_decays_are_told_apart():
    x = np.geomspace(1e-4, 1e-2, 8)
    power = statistics.fit_decay(x, [2 * x**-0.5, 3 * x**-0.7])
    assert power.exponent.value == pytest.approx(-0.6)
    assert power.power_r2 == pytest.approx(1.0)
    assert power.exponential_r2 < 0.8
    exponential = statistics.fit_decay(x, [np.exp(-300 * x), 2 * np.exp(-320 * x)])
    assert exponential.rate.value == pytest.approx(-310)
    assert exponential.exponential_r2 > exponential.power_r2
    assert statistics.fit_decay(x, [[0.0, np.nan, 1.0, 1.0, *[0.0] * 4]]) is None
    assert statistics.fit_decay(x, [[0.0, 4, 3, 2, 1, np.nan, 1, 1]]).left_out == 2


EPOCHS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def training(seed=0, rate=1e-3, shift=1.0, sign=1.0, generalizes=True, decay=1e-4, peak=1000.0):
    """A made-up training: memorized at 4 epochs, half of the validation loss gone at 64; λ̂ does so at 64/shift."""
    step = lambda e, t: 1 / (1 + (max(e, 0.1) / t) ** 4)  # noqa: E731
    jitter = 1 + 0.02 * np.random.default_rng(seed).normal()
    late = 64 * jitter
    validation = [0.01 + (step(e, late) if generalizes else 1.0) for e in EPOCHS]
    accuracy = [1 - step(e, late) if generalizes else 0.1 for e in EPOCHS]
    value = [peak * (0.6 + sign * 0.4 * step(e, late / shift)) * (1 - 0.5 * step(e, 2.0)) for e in EPOCHS]
    return {
        "seed": seed,
        "rate": rate,
        "weight_decay": decay,
        "epochs": EPOCHS,
        "training_loss": [step(e, 2.0) for e in EPOCHS],
        "validation_loss": validation,
        "training_accuracy": [1 - step(e, 1.5) for e in EPOCHS],
        "validation_accuracy": accuracy,
        "points": {"epochs": EPOCHS, "local": [{"value": v, "se": 1.0, "drift": 0.0, "rhat": 1.0} for v in value]},
    }


def verdicts(rows, word):
    return [row.verdict for row in rows if word in row.name]


def test_numbers_of_a_curve_are_those_it_was_made_with():
    found = curves.curve_numbers(training(shift=2.0), "local")
    assert found["correlation"] > 0.9
    assert found["lead"] == pytest.approx(1.0, abs=0.25)
    assert found["behind_accuracy"] < 0
    assert found["fall"] == pytest.approx(0.4, abs=0.03)
    assert curves.curve_numbers(training(shift=0.5), "local")["lead"] == pytest.approx(-1.0, abs=0.25)
    broken = training()
    broken["points"]["local"][5] = {"value": None, "se": None, "drift": None, "rhat": None}
    assert curves.curve_numbers(broken, "local")["max"] is None
    broken["training_loss"][3] = None
    assert set(curves.curve_numbers(broken, "local").values()) == {None}


def test_claims_about_curves_can_fail():
    for sign, verdict in ((1.0, "agrees"), (-1.0, "differs")):
        rows = plans.curve_rows("x", [training(s, sign=sign) for s in range(6)], "Fig. 3", "paper")
        assert verdicts(rows, "rank correlation with the validation loss from") == [verdict]
        assert verdicts(rows, "changes") == [verdict]
    good = plans.grokking_rows("x", [training(s) for s in range(4)], "Fig. 3", "paper")
    assert [row.verdict for row in good] == ["agrees"] * 3
    bad = plans.grokking_rows("x", [training(s, generalizes=s > 0) for s in range(4)], "Fig. 3", "paper")
    assert [row.verdict for row in bad] == ["agrees", "differs", "agrees"]


def test_points_at_which_chains_diverged_are_counted():
    some = [training(s) for s in range(2)]
    assert not verdicts(plans.curve_rows("x", some, "Fig. 3", "paper"), "diverged")
    some[0]["points"]["local"][5] = {"value": None, "se": None, "drift": None, "rhat": None}
    (row,) = [row for row in plans.curve_rows("x", some, "Fig. 3", "paper") if "diverged" in row.name]
    assert (row.ours, row.note) == (1 / 22, "1 of 22")


@pytest.mark.parametrize("generalizes", [True, False])
def test_transformers_that_only_memorize_are_no_case_against_the_claim(generalizes):
    """λ̂ that rises where the validation loss falls differs; where nothing generalizes the reason is given."""
    some = [training(s, sign=-1.0, generalizes=generalizes) for s in range(5)]
    for one in some:
        if not generalizes:
            one["validation_loss"] = [1 + math.log1p(e) for e in EPOCHS]
            for value in one["points"]["local"]:
                value["value"] = 2000 - value["value"]
    result = Result(Cell("a", {"condition": "a"}), {"trainings": some}, 1.0)
    rows = cullen2026_transformer.rows([result], "paper")
    (claim,) = [row for row in rows if "rank correlation with the validation loss at" in row.name]
    assert claim.verdict == ("differs" if generalizes else "explained")
    assert ("none of these trainings generalizes" in claim.note) == (not generalizes)


def test_change_points_of_a_curve_are_where_it_falls():
    found = curves.change_epochs(training(), "local", seed=0)
    assert any(low < 128 and high > 16 for low, high in found)
    rising = training(sign=-1.0)
    assert not [(low, high) for low, high in curves.change_epochs(rising, "local", seed=0) if high > 16]


def severity_result(slope):
    rates = [1e-4, 1e-3, 1e-2]
    some = [training(s, rate=r, peak=1000 * (r / 1e-3) ** slope, generalizes=r > 1e-4) for r in rates for s in range(5)]
    return Result(Cell("a", {"weight_decays": [1e-4]}), {"trainings": some}, 1.0)


def test_trainings_that_do_not_generalize_have_no_severity():
    rates, table = cullen2026_severity.table_of([severity_result(-0.3)], 1e-4)
    assert rates == [1e-4, 1e-3, 1e-2]
    assert np.isnan(table["gsm"][:, 0]).all()
    assert (table["gsm"][:, 1:] > 0).all()
    assert table["done"].mean(0).tolist() == [0.0, 1.0, 1.0]


def test_a_severity_of_zero_has_no_ratio_to_the_others():
    values = np.array([[4.0, 2.0, 1.0, 0.0]] * 3)
    rows = cullen2026_severity._decay_rows("x", [1e-4, 1e-3, 1e-2, 1e-1], values, "Fig. 4", "paper")
    assert [row.ours for row in rows if "largest" in row.name] == [None]


@pytest.mark.parametrize(("slope", "verdict"), [(-0.3, "agrees"), (0.3, "differs")])
def test_claims_about_rates_can_fail(slope, verdict):
    rows = cullen2026_severity.rows([severity_result(slope)], "paper")
    assert verdicts(rows, "maximum of λ̂") == [verdict, verdict, "shown"]
    (spread,) = [row.ours for row in rows if "maximum of λ̂" in row.name and "largest mean" in row.name]
    assert spread == pytest.approx(100**0.3, rel=0.02)
    row = next(row for row in rows if "local chains) as a power" in row.name)
    assert row.ours == pytest.approx(slope, abs=0.02)


def critical_result(m, middle, fractions=(0.05, 0.08, 0.1, 0.12, 0.15, 0.18, 0.21, 0.25, 0.3, 0.4, 0.9)):
    trainings = []
    for fraction in fractions:
        n = int(fraction * m * m)
        y = 1 / (1 + (middle * m * math.log(m) / n) ** 6)
        one = {"fraction": fraction, "examples": n, "seed": 0, "epochs": 9, "accuracy": y, "early": y**2}
        trainings.append(one | {"training_accuracy": 1.0, "memorization": 2, "generalization": 3 if y > 0.9 else None})
    return Result(Cell(f"M = {m}", {"modulus": m}), {"trainings": trainings}, 1.0)


@pytest.mark.parametrize(("middle", "verdict"), [(2.7, "agrees"), (4.5, "differs")])
def test_the_boundary_is_held_against_the_paper(middle, verdict):
    moduli = (53, 67, 79, 101)
    rows = cullen2026_critical_data.rows([critical_result(m, middle * (1 + 0.01 * (m % 3))) for m in moduli], "paper")
    assert rows[0].ours == pytest.approx(middle, rel=0.03)
    assert rows[0].verdict == verdict
    assert rows[1].ours > rows[0].ours
    assert verdicts(rows, "slope") == ["agrees"]


def test_a_constant_fraction_is_no_collapse():
    moduli = (53, 67, 79, 101)
    some = [critical_result(m, 0.15 * m / math.log(m)) for m in moduli]
    rows = cullen2026_critical_data.rows(some, "paper")
    (row,) = [row for row in rows if "slope" in row.name]
    assert row.verdict == "differs"
    assert row.ours == pytest.approx(0.77, abs=0.03)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_paper_size_has_the_settings_of_the_paper(recipe):
    cells = recipe.cells("paper", 0)
    if recipe.name == "cullen2026-critical-data":
        assert [cell.settings["modulus"] for cell in cells] == [53, 67, 79, 83, 101, 103]
        assert all({0.1, 0.15, 0.3, 0.4, 0.9, 0.95} <= set(cell.settings["fractions"]) for cell in cells)
        return
    for cell in cells:
        labels, fields = cell.settings["chains"]["printed"]
        assert labels == "given"
        assert ChainSettings(**fields) == PRINTED
    if recipe.name == "cullen2026-trajectory":
        first = cells[0].settings
        assert (first["modulus"], first["width"], first["batch"], first["fraction"]) == (53, 1024, 128, 0.4)
        assert (first["rates"], first["weight_decays"], len(first["seeds"])) == ([1e-4], [1e-4], 10)


def test_trainings_of_a_grid_come_in_order_with_estimates_at_their_points():
    chains = {"local": ["own", {"step": 0.1, "resolution": 0.1, "nbeta": 1e6, "chains": 2, "draws": 8, "every": 2}]}
    plan = {"modulus": 5, "fraction": 0.5, "width": 6, "batch": 4, "epochs": 6, "records": 3, "points": 3}
    plan |= {"rates": [1e-3, 1e-2], "weight_decays": [0.0], "seeds": [0, 1], "chains": chains}
    found = quadratic.quadratic_trainings(plan)
    assert [(one["rate"], one["seed"]) for one in found] == [(1e-3, 0), (1e-3, 1), (1e-2, 0), (1e-2, 1)]
    assert found[0]["points"]["epochs"] == [0, 1, 2, 6]
    assert found[0]["epochs"] == [0, 1, 2, 4, 6]
    assert all(one["value"] > 0 for one in found[3]["points"]["local"])
    # The same split and first weights for both rates, so the same λ̂ before the first step.
    assert found[0]["points"]["local"][0] == found[2]["points"]["local"][0]
    assert found[0]["points"]["local"][0] != found[1]["points"]["local"][0]
