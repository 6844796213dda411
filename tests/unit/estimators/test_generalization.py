"""Generalisation losses as sums over draws, inputs and values of y, and their errors by derivatives."""

import math

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators import generalization
from crunode.sampling.diagnostics import ess, mcse_mean, split_rhat

CHAINS, DRAWS, POINTS, N, SD = 2, 12, 7, 20, 0.6
W0 = torch.tensor([[0.5], [-0.3]], dtype=torch.float64)
C0 = torch.tensor([[1.0, 0.2, -0.5], [0.1, -0.8, 0.4]], dtype=torch.float64)


def triple(kind):
    if kind == "classes":
        model = torch.nn.Linear(2, 3, bias=False).double()
        return cr.Triple(model, lambda x: x @ C0, "normal", likelihood="categorical", features=2)
    model = torch.nn.Linear(2, 1, bias=False).double()
    return cr.Triple(model, lambda x: x @ W0, "normal", sd=SD, features=2)


def drawn(kind, seed=0, levels=(10.0,), draws=DRAWS):
    size = 6 if kind == "classes" else 2
    truth = (C0.T if kind == "classes" else W0.T).reshape(-1).numpy()
    rng = np.random.default_rng(seed)
    places = truth + 0.4 * rng.standard_normal((CHAINS * len(levels), draws, size))
    arrays = {"excess": places[..., 0] ** 2, "distance2": places[..., 0] ** 2, "positions": places}
    return Draws(arrays, {}, np.repeat(levels, CHAINS), {"n": N, "asked": {"seed": seed}})


def log_p(kind, out, y):
    """log p(y|x) of outputs (..., point, output)."""
    if kind == "classes":
        norm = np.log(np.exp(out).sum(-1))
        return np.take_along_axis(out, np.broadcast_to(y[:, None], (*out.shape[:-1], 1)), -1)[..., 0] - norm
    return -((out[..., 0] - y) ** 2) / (2 * SD**2) - math.log(SD * math.sqrt(2 * math.pi))


class Sums:
    """Excess of both losses over the truth's at each input, and of each draw: as a function of the draws' weights."""

    def __init__(self, kind, draws, x, ys, chances):
        places = draws.arrays["positions"]
        shape = (3, 2) if kind == "classes" else (1, 2)
        weights = places.reshape(*places.shape[:2], *shape)
        out = np.einsum("cdoj,ij->cdio", weights, x)
        truth = x @ (C0 if kind == "classes" else W0).numpy()
        self.p = np.stack([np.exp(log_p(kind, out, y)) for y in ys], -1)
        self.q = np.stack([np.exp(log_p(kind, truth, y)) for y in ys], -1)
        self.chances = chances

    def bayes(self, w):
        mean = np.einsum("cd,cdiy->iy", w, self.p) / w.sum()
        return (self.chances * (np.log(self.q) - np.log(mean))).sum(1)

    def gibbs(self, w):
        return np.einsum("cd,cdi->i", w, self.each()) / w.sum()

    def each(self):
        return (self.chances * (np.log(self.q) - np.log(self.p))).sum(-1)


def case(kind):
    """Draws, the test set as it is given, and the sums over it."""
    made, draws = triple(kind), drawn(kind)
    if kind == "pairs":
        x = generalization._tested(made, POINTS, 3)[0]
        # The noise is the same on both sides of the mean, so that only its size is needed: from the losses of pairs.
        columns = list(generalization._columns(made, x, None, POINTS, 3))
        logs = np.concatenate([c.logs for c in columns])
        size = SD * np.sqrt(-2 * (logs + math.log(SD * math.sqrt(2 * math.pi))))
        assert size[:, 0] == pytest.approx(size[:, 1])
        mean = (x @ W0)[:, 0].numpy()
        return made, draws, POINTS, x, Sums(kind, draws, x.numpy(), [mean + size[:, 0], mean - size[:, 0]], 0.5)
    x, y = made.data(POINTS, seed=3)
    if kind == "classes":
        x = generalization._tested(made, POINTS, 3)[0]
        ys = [np.full(POINTS, k) for k in range(3)]
        q = np.exp(np.stack([log_p(kind, x.numpy() @ C0.numpy(), k) for k in ys], 1))
        return made, draws, POINTS, x, Sums(kind, draws, x.numpy(), ys, q)
    return made, draws, (x, y), x, Sums(kind, draws, x.numpy(), [y[:, 0].numpy()], 1.0)


def entropies(kind, x):
    if kind != "classes":
        return np.full(POINTS, 0.5 * math.log(2 * math.pi * math.e * SD**2))
    q = torch.softmax(x @ C0, 1).numpy()
    return -(q * np.log(q)).sum(1)


@pytest.mark.parametrize("kind", ["pairs", "classes", "given"])
@pytest.mark.parametrize("loss", ["bayes", "gibbs"])
def test_losses_are_sums_over_values_of_y_with_errors_of_draws_and_inputs(kind, loss):
    made, draws, test, x, sums = case(kind)
    even = np.ones((CHAINS, DRAWS))
    defined = getattr(sums, loss)
    points, entropy = defined(even), entropies(kind, x)
    influence = np.empty_like(even)
    for place in np.ndindex(even.shape):
        more, less = even.copy(), even.copy()
        more[place] += 1e-4
        less[place] -= 1e-4
        influence[place] = (defined(more).mean() - defined(less).mean()) / 2e-4
    est = getattr(cr, f"{loss}_generalization_loss")(draws, made, test=test, seed=3)
    assert est.value == pytest.approx((entropy + points).mean(), rel=1e-8)
    told = est.diagnostics
    draw_se = mcse_mean(influence * even.size)
    test_se, paired = ((v.std(ddof=1) / math.sqrt(POINTS)) for v in (entropy + points, points))
    assert told["draw_se"] == pytest.approx(draw_se, rel=1e-5)
    assert told["test_se"] == pytest.approx(test_se, rel=1e-7)
    assert est.se == pytest.approx(math.hypot(draw_se, test_se), rel=1e-6)
    assert told["excess_se"] == pytest.approx(math.hypot(draw_se, paired), rel=1e-6)
    assert told["excess"] == pytest.approx(points.mean(), rel=1e-7)
    assert told["entropy"] == pytest.approx(entropy.mean())
    losses = sums.each().mean(2)
    assert told["ess"] == pytest.approx(ess(losses), rel=1e-6)
    assert told["rhat"] == pytest.approx(split_rhat(losses), rel=0.01)  # ranks of draws equally far from the median
    assert (told["nbeta"], told["beta"], told["test_points"]) == (10.0, 0.5, POINTS)
    assert (est.name, est.seed) == (f"{loss}_generalization_loss", 3)


@pytest.mark.parametrize("kind", ["pairs", "classes", "given"])
def test_all_parts_of_the_excess_are_kept(kind):
    made, draws, test, x, sums = case(kind)
    found = generalization.bayes_excess(draws, made, test=test, seed=3)
    assert found.points == pytest.approx(sums.bayes(np.ones((CHAINS, DRAWS))))
    assert found.losses == pytest.approx(sums.each().mean(2))
    assert found.entropy == pytest.approx(entropies(kind, x))
    assert found.value == pytest.approx(found.points.mean())
    assert found.level == 10.0


@pytest.mark.parametrize("kind", ["pairs", "classes", "given"])
@pytest.mark.parametrize("block", [1, 60, 200])
def test_losses_are_the_same_in_small_blocks(kind, block, monkeypatch):
    made, draws, test, _, _ = case(kind)
    whole = generalization.bayes_excess(draws, made, test=test, seed=3)
    monkeypatch.setattr(generalization, "_BLOCK", block)
    parts = generalization.bayes_excess(draws, made, test=test, seed=3)
    for name in ("points", "influence", "losses", "entropy"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-10)


@pytest.mark.parametrize("kind", ["pairs", "classes", "given"])
def test_no_more_outputs_are_taken_at_a_time_than_fit(kind, monkeypatch):
    made, draws, test, _, _ = case(kind)
    sizes, block = [], 250
    outputs = cr.Triple.outputs

    def seen(self, w, x):
        sizes.append((len(w), len(x)))
        return outputs(self, w, x)

    monkeypatch.setattr(cr.Triple, "outputs", seen)
    monkeypatch.setattr(generalization, "_BLOCK", block)
    generalization.bayes_excess(draws, made, test=test, seed=3)
    values = {"pairs": 2, "classes": 3, "given": 1}[kind]
    assert max(points for _, points in sizes) > 1
    assert all(points * values * CHAINS * DRAWS <= block for _, points in sizes)
    assert all(count * points <= block // 8 for count, points in sizes)
    assert sum(count * points for count, points in sizes) == CHAINS * DRAWS * POINTS


def test_gaussian_draws_far_off_do_not_underflow():
    """One draw at the truth and one 100 standard errors away: half the predictive density is left, log 2."""
    made = triple("given")
    places = np.zeros((2, 10, 2)) + W0[:, 0].numpy()
    places[1] += 300.0
    arrays = {"excess": places[..., 0], "distance2": places[..., 0], "positions": places}
    draws = Draws(arrays, {}, np.full(2, 10.0), {"n": N, "asked": {"seed": 0}})
    x = torch.ones(3, 2).double()
    found = generalization.bayes_excess(draws, made, test=(x, x @ W0))
    assert found.points == pytest.approx(math.log(2))


def test_the_level_that_is_meant_is_taken():
    draws = drawn("given", levels=(10.0, 20.0))
    made, test = triple("given"), triple("given").data(POINTS, seed=3)
    for k, t in enumerate((10.0, 20.0)):
        part = {name: x[CHAINS * k : CHAINS * (k + 1)] for name, x in draws.arrays.items()}
        alone = Draws(part, {}, np.full(CHAINS, t), draws.spec)
        one = cr.gibbs_generalization_loss(draws, made, test=test, nbeta=t)
        two = cr.gibbs_generalization_loss(alone, made, test=test)
        assert (one.value, one.diagnostics["beta"]) == (two.value, t / N)
    with pytest.raises(cr.InputError, match="levels"):
        cr.gibbs_generalization_loss(draws, made)


def test_eight_draws_two_inputs_and_finite_positions_are_asked_for():
    made = triple("given")
    assert math.isfinite(cr.gibbs_generalization_loss(drawn("given", draws=8), made, test=2).value)
    with pytest.raises(cr.InputError, match="8 draws a chain or more, got 7"):
        cr.gibbs_generalization_loss(drawn("given", draws=7), made, test=2)
    with pytest.raises(cr.InputError, match="two inputs or more"):
        cr.gibbs_generalization_loss(drawn("given"), made, test=1)
    with pytest.raises(cr.InputError, match="two examples or more"):
        cr.gibbs_generalization_loss(drawn("given"), made, test=made.data(1, seed=0))
    with pytest.raises(cr.InputError, match="number of inputs"):
        cr.gibbs_generalization_loss(drawn("given"), made, test=True)
    broken = drawn("given")
    broken.arrays["positions"][0, 0, 0] = math.inf
    with pytest.raises(cr.InputError, match="finite positions"):
        cr.gibbs_generalization_loss(broken, made, test=2)


def test_seeds_choose_inputs_and_nothing_else():
    made, draws = triple("pairs"), drawn("pairs")
    one, same, other = (generalization.bayes_excess(draws, made, test=POINTS, seed=s) for s in (3, 3, 4))
    assert (one.points == same.points).all()
    assert not (one.points == other.points).any()
    assert len(generalization.bayes_excess(draws, made).points) == 2000
