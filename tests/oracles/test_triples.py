"""Model, truth and prior, against closed forms, sums and quadrature.

In linear regression with a Gaussian prior the posterior at any temperature is N(m, C), the predictive density is
N(xᵀm, 1 + xᵀCx), and the generalisation losses are averages over x of closed forms.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import crunode as cr
from crunode.core.result import Draws
from crunode.estimators.likelihoods import Likelihood


class Mean(torch.nn.Module):
    """y = μ, whatever x is."""

    def __init__(self):
        super().__init__()
        self.mu = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return self.mu.expand(len(x), 1)


class Ranked(torch.nn.Module):
    """Reduced rank regression 3 → 2 → 3 at weights of rank one."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.eye(2, 3, dtype=torch.float64) * torch.tensor([[1.0], [0.0]]))
        self.b = torch.nn.Parameter(torch.eye(3, 2, dtype=torch.float64) * torch.tensor([1.0, 0.0]))

    def forward(self, x):
        return x @ self.a.T @ self.b.T


def linear(dim=2, sd=1.0, truth=(0.7, -0.4)):
    w0 = torch.tensor(truth, dtype=torch.float64)[:, None]
    model = torch.nn.Linear(dim, 1, bias=False).double()
    return cr.Triple(model, lambda x: x @ w0, "normal", sd=sd, prior=cr.Gaussian(2.0, mean="origin"), features=dim)


def exact_draws(triple, n, beta, seed, chains=4, draws=1000, losses=True):
    """Draws of the conjugate posterior, its mean and covariance."""
    x, y = triple.data(n, seed)
    cov = torch.linalg.inv(2.0 * torch.eye(triple.dim).double() + beta / triple.sd**2 * x.T @ x).numpy()
    mean = beta / triple.sd**2 * cov @ (x.T @ y).numpy()[:, 0]
    w = np.random.default_rng((7, seed)).multivariate_normal(mean, cov, (chains, draws))
    arrays = {"excess": (w**2).sum(2), "distance2": (w**2).sum(2), "positions": w}
    if losses:
        out = torch.as_tensor(w) @ x.T
        each = 0.5 * (out - y[:, 0]) ** 2 / triple.sd**2 + math.log(triple.sd * math.sqrt(2 * math.pi))
        arrays["pointwise"] = each.numpy()
    prior = {"precision": 2.0, "mean": "origin"}
    return Draws(arrays, {}, np.full(chains, beta * n), {"n": n, "asked": {"seed": seed, "prior": prior}}), mean, cov


def over_normal(fn):
    """The mean of fn over x from a standard normal in two dimensions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    x = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    mass = np.outer(weights, weights).reshape(-1) / (2 * math.pi)
    return float(mass @ fn(x))


@pytest.mark.parametrize("beta", [0.5, 1.0])
@pytest.mark.parametrize("sd", [1.0, 0.3])
def test_generalization_losses_are_the_closed_forms(beta, sd):
    # Eight numbers at four standard errors: a false alarm in one of 2000 sets of seeds.
    triple = linear(sd=sd)
    draws, mean, cov = exact_draws(triple, 30, beta, 0, losses=False)
    entropy = 0.5 * math.log(2 * math.pi * math.e * sd**2)
    off = mean - np.array([0.7, -0.4])
    gibbs = 0.5 * (off @ off + np.trace(cov)) / sd**2

    def divergence(x):
        s = np.einsum("ni,ij,nj->n", x, cov, x) / sd**2
        return 0.5 * np.log1p(s) + 0.5 * (1 + (x @ off) ** 2 / sd**2) / (1 + s) - 0.5

    bayes = over_normal(divergence)
    for name, exact in (("bayes", bayes), ("gibbs", gibbs)):
        est = getattr(cr, f"{name}_generalization_loss")(draws, triple, test=1000)
        assert est.ok
        assert abs(est.value - entropy - exact) < 4 * est.se
        assert abs(est.diagnostics["excess"] - exact) < 4 * est.diagnostics["excess_se"]
        assert est.se < 0.15 * exact
        assert est.diagnostics["entropy"] == pytest.approx(entropy)


def test_a_test_set_of_ones_own_agrees_and_pairs_have_less_noise():
    triple = linear()
    draws, *_ = exact_draws(triple, 30, 1.0, 0, losses=False)
    own = cr.bayes_generalization_loss(draws, triple, test=triple.data(2000, seed=99))
    drawn = cr.bayes_generalization_loss(draws, triple, test=2000)
    assert abs(own.value - drawn.value) < 4 * math.hypot(own.se, drawn.se)
    x, y = triple.data(2000, seed=99)
    alone = float(triple.loss(triple.expected(x), y).std()) / math.sqrt(2000)
    assert own.diagnostics["test_se"] < alone / 2
    assert drawn.diagnostics["test_se"] < own.diagnostics["test_se"] / 2


@pytest.mark.parametrize("name", ["bayes", "gibbs"])
def test_the_stated_error_is_the_spread_over_repeats(name):
    triple = linear()
    draws, mean, cov = exact_draws(triple, 20, 1.0, 0, draws=100, losses=False)
    found = []
    for k in range(40):
        places = np.random.default_rng((3, k)).multivariate_normal(mean, cov, (4, 100))
        repeat = Draws(dict(draws.arrays) | {"positions": places}, {}, draws.nbeta, draws.spec)
        found.append(getattr(cr, f"{name}_generalization_loss")(repeat, triple, test=100, seed=k))
    spread = np.std([e.value for e in found], ddof=1)
    # 40 repeats know the spread to 11 %: outside these bounds in one of 500 sets of seeds.
    assert 0.7 < spread / np.mean([e.se for e in found]) < 1.4


def test_normal_mean_has_the_printed_numbers():
    """The check of the sign in WAIC: n (T − S_n + V/n) = 0.439 = n (C − S_n), and −1.54 with a minus."""
    n = 100
    triple = cr.Triple(Mean(), lambda x: torch.zeros(len(x), 1), "normal", features=1, prior=cr.Flat())
    shape = np.random.default_rng(0).standard_normal(n)
    shape -= shape.mean()
    # Data with Σ(y − ȳ)² = 98.45 and n ȳ² = 1.1214, on which alone the numbers depend.
    y = shape * math.sqrt(98.45 / (shape**2).sum()) + math.sqrt(1.1214 / n)
    data = (torch.zeros(n, 1).double(), torch.tensor(y)[:, None])
    w = y.mean() + np.random.default_rng(1).standard_normal((4, 5000)) / math.sqrt(n)
    losses = 0.5 * (y - w[..., None]) ** 2 + 0.5 * math.log(2 * math.pi)
    arrays = {"excess": w**2, "distance2": w**2, "pointwise": losses}
    draws = Draws(arrays, {}, np.full(4, float(n)), {"n": n, "asked": {"seed": 0}})
    own = triple.empirical_entropy(data).value
    training, spread = cr.bayes_training_loss(draws).value - own, cr.functional_variance(draws).value
    # Monte-Carlo errors are near 0.004.
    assert n * (training + spread / n) == pytest.approx(0.439, abs=0.015)
    assert n * (cr.loo(draws).value - own) == pytest.approx(0.439, abs=0.015)
    assert n * (training - spread / n) == pytest.approx(-1.54, abs=0.015)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_equations_of_state_of_a_regular_model(beta):
    """λ = ν = d/2 in a regular model at any temperature. Six numbers within four errors of
    thirty data sets: a false alarm in one of 400 sets of seeds."""
    triple = linear()
    sets = []
    for k in range(30):
        draws, *_ = exact_draws(triple, 200, beta, k, draws=100)
        sets.append((draws, triple.landscape(200, k)))
    state = cr.equations_of_state(sets, triple, test=100)
    assert state.ok, state.findings
    assert abs(state.coefficient.value - 1.0) < 4 * state.coefficient.error
    assert abs(state.fluctuation.value - 1.0) < 4 * state.fluctuation.error
    assert state.coefficient.error < 0.25
    assert state.fluctuation.error < 0.15
    assert all(abs(e.score) < 4 for e in state.equations)


def test_equations_of_state_of_a_singular_model():
    """Reduced rank (3, 2, 3; 1) has λ = 7/2, m = 2, and twelve parameters. Six numbers within four errors of
    sixteen data sets: a false alarm in one of 100 sets of seeds."""
    net = Ranked()
    unit = torch.zeros(3, 3).double()
    unit[0, 0] = 1.0
    triple = cr.Triple(net, lambda x: x @ unit, "normal", features=3)
    options = {"chains": 4, "draws": 200, "warmup": 60, "layout": "batched"}
    sets = cr.simulate(triple, 300, 16, kernel=cr.HMC(leaps=8), seed=1, **options)
    state = cr.equations_of_state(sets, triple, test=300)
    serious = [f for f in state.findings if f.code != "MC202"]
    assert not serious, serious
    assert abs(state.coefficient.value - 3.5) < 4 * state.coefficient.error
    assert state.coefficient.error < 0.4
    assert state.coefficient.value + 4 * state.coefficient.error < 6  # d/2 of a regular model
    assert all(abs(e.score) < 4 for e in state.equations), str(state)
    assert "cross-validation" in str(state)
    # Losses that are not those of the likelihood, by 0.02, are found.
    moved = [(replace(d, arrays={**d.arrays, "pointwise": d.arrays["pointwise"] + 0.02}), land) for d, land in sets]
    assert "CRIT713" in [f.code for f in cr.equations_of_state(moved, triple, test=300).findings]


def classes():
    """Three classes, the truth a constant the model can give."""
    model = torch.nn.Linear(2, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]]))
        model.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))
    return cr.Triple(
        model, lambda x: torch.stack([x[:, 0], x[:, 1], 0 * x[:, 0]], 1), "uniform", "categorical", features=2
    )


def test_categorical_divergence_and_entropy_are_the_sums():
    triple = classes()
    x = triple.points(5000, seed=3).numpy()
    weight, bias = (p.detach().numpy() for p in triple.model.parameters())

    def probabilities(odds):
        e = np.exp(odds - odds.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    q = probabilities(np.stack([x[:, 0], x[:, 1], 0 * x[:, 0]], 1))
    p = probabilities(x @ weight.T + bias)
    est = triple.divergence(count=5000, seed=3)
    values = (q * np.log(q / p)).sum(1)
    assert est.value == pytest.approx(values.mean())
    assert est.se == pytest.approx(values.std(ddof=1) / math.sqrt(5000))
    assert triple.entropy(count=5000, seed=3).value == pytest.approx(-(q * np.log(q)).sum(1).mean())
    # By quadrature over the square.
    nodes, weights = np.polynomial.legendre.leggauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    q = probabilities(np.stack([grid[:, 0], grid[:, 1], 0 * grid[:, 0]], 1))
    p = probabilities(grid @ weight.T + bias)
    exact = float(np.outer(weights, weights).reshape(-1) / 4 @ (q * np.log(q / p)).sum(1))
    assert abs(est.value - exact) < 4 * est.se


def test_categorical_losses_of_draws_are_the_sums():
    triple = classes()
    rng = np.random.default_rng(0)
    places = triple.center.numpy() + 0.3 * rng.standard_normal((2, 20, triple.dim))
    arrays = {"excess": places[..., 0], "distance2": places[..., 0], "positions": places}
    draws = Draws(arrays, {}, np.full(2, 50.0), {"n": 50, "asked": {"seed": 0}})
    x = triple.points(400, seed=1)
    est = cr.bayes_generalization_loss(draws, triple, test=500, seed=5)
    # The same by a large test set with drawn classes: four errors.
    own = cr.bayes_generalization_loss(draws, triple, test=triple.data(20_000, seed=2))
    assert abs(est.value - own.value) < 4 * math.hypot(est.diagnostics["test_se"], own.diagnostics["test_se"])
    both = torch.stack([triple.outputs(row, x).softmax(1) for row in torch.as_tensor(places).reshape(-1, triple.dim)])
    q = triple.expected(x).softmax(1)
    excess = float((q * (q.log() - both.mean(0).log())).sum(1).mean())
    assert est.diagnostics["excess"] == pytest.approx(excess, rel=0.2)
    gibbs = cr.gibbs_generalization_loss(draws, triple, test=500, seed=5)
    assert gibbs.value > est.value


def test_data_are_from_the_truth_and_losses_are_normalised():
    triple = linear(sd=0.5)
    x, y = triple.data(20_000, seed=1)
    noise = (y - triple.expected(x))[:, 0].numpy()
    assert abs(noise.mean()) < 4 * 0.5 / math.sqrt(20_000)
    assert noise.std() == pytest.approx(0.5, rel=0.02)
    again, other = triple.data(50, seed=1), triple.data(50, seed=2)
    assert torch.equal(again[0], triple.data(50, seed=1)[0])
    assert not torch.equal(again[0], other[0])
    own = triple.empirical_entropy((x, y))
    assert own.se == 0
    assert abs(own.value - triple.entropy().value) < 4 * own.diagnostics["data_se"]
    land = triple.landscape(40, 3, center=torch.tensor([0.7, -0.4]))
    assert float(land.loss()) == pytest.approx(triple.empirical_entropy(triple.data(40, 3)).value)
    assert cr.normalization(land).value == pytest.approx(1, abs=1e-4)
    assert triple.posterior(40, beta=0.5).levels == (20.0,)
    _, labels = classes().data(9000, seed=0)
    q = classes().expected(classes().data(9000, seed=0)[0]).softmax(1).mean(0)
    shares = torch.bincount(labels, minlength=3) / 9000
    assert float((shares - q).abs().max()) < 4 * math.sqrt(0.25 / 9000)


def test_a_truth_that_the_model_cannot_realise_is_reported():
    realised = linear()
    found = realised.distance(torch.tensor([3.0, 3.0]), n=1000)
    assert found.ok
    assert not found.findings
    assert found.value < 1e-8
    model = torch.nn.Linear(1, 1).double()
    bent = cr.Triple(model, lambda x: x.abs(), "normal", features=1)
    far = bent.distance(n=100)
    # |x| against its best line, its mean √(2/π): half of 1 − 2/π.
    assert abs(far.value - 0.5 * (1 - 2 / math.pi)) < 4 * far.se
    assert [f.code for f in far.findings] == ["CRIT705"]
    assert not cr.Triple(model, lambda x: 0.01 * x.abs(), "normal", features=1).distance(n=100).findings
    draws = cr.sample(bent.posterior(100), cr.HMC(step=0.005, leaps=8), chains=2, draws=50, keep=("positions",))
    assert [f.code for f in bent.distance(draws).findings] == ["CRIT705"]
    still = realised.distance(torch.tensor([3.0, 3.0]), steps=0, n=1000)
    assert still.value == pytest.approx(0.5 * (2.3**2 + 3.4**2), rel=0.2)


def test_losses_that_are_no_likelihood_are_reported():
    x = torch.linspace(-1, 1, 20)[:, None]
    net = torch.nn.Linear(1, 1)
    plain = cr.normalization(cr.Landscape(net, (x, x), "gaussian"))
    assert plain.value == pytest.approx(math.sqrt(2 * math.pi), rel=1e-4)
    assert [f.code for f in plain.findings] == ["CRIT711"]
    assert "√2π" in plain.findings[0].message
    squares = cr.normalization(cr.Landscape(net, (x, x), torch.nn.MSELoss()))
    assert squares.value == pytest.approx(math.sqrt(math.pi), rel=1e-4)
    assert not cr.normalization(cr.Landscape(net, (x, x), Likelihood("gaussian", 0.01))).findings

    def widening(model, batch):  # a Gaussian whose width depends on w, without its logarithm
        x, y = batch
        return (0.5 * (model(x) - y).square() * (1 + model.weight.square()))[:, 0]

    wrong = cr.normalization(cr.Landscape(net, (x, x), widening))
    assert not wrong.ok
    assert [f.code for f in wrong.findings] == ["CRIT712"]

    def endless(model, batch):
        return torch.log1p((model(batch[0]) - batch[1]).abs())[:, 0]

    assert [f.code for f in cr.normalization(cr.Landscape(net, (x, x), endless)).findings] == ["CRIT712"]
    heavy = torch.distributions.StudentT(3.0)
    student = cr.Landscape(net, (x, x), lambda out, target: -heavy.log_prob(out - target)[:, 0])
    assert cr.normalization(student).value == pytest.approx(1, abs=1e-3)
    labels = torch.arange(20) % 3
    three = torch.nn.Linear(1, 3)
    assert cr.normalization(cr.Landscape(three, (x, labels), "cross-entropy")).value == pytest.approx(1, abs=1e-5)
    smooth = torch.nn.CrossEntropyLoss(label_smoothing=0.3)
    assert [f.code for f in cr.normalization(cr.Landscape(three, (x, labels), smooth)).findings] == ["CRIT712"]
    flips = cr.Landscape(net, (x, (x > 0).float()), "bernoulli")
    assert cr.normalization(flips).value == pytest.approx(1, abs=1e-5)
    with pytest.raises(cr.InputError, match="one target value"):
        cr.normalization(cr.Landscape(torch.nn.Linear(1, 2), (x, torch.cat([x, x], 1)), "gaussian"))
    with pytest.raises(cr.InputError, match="Landscape"):
        cr.normalization(3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "Module"),
        ({"truth": 3}, "truth"),
        ({"inputs": "poisson"}, "normal"),
        ({"inputs": 5}, "inputs"),
        ({"features": None}, "features"),
        ({"likelihood": "beta"}, "likelihood"),
        ({"prior": 1.0}, "prior"),
        ({"sd": 0.0}, "sd"),
        ({"truth": lambda x: x}, "one shape"),
        ({"truth": lambda x: x[:1, :1]}, "row"),
        ({"truth": lambda x: x[:, :1] / 0}, "finite"),
        ({"likelihood": "categorical"}, "one shape"),
        ({"inputs": lambda count, generator: torch.ones(count + 1, 2)}, "rows"),
    ],
)
def test_triples_that_make_no_sense_are_refused(options, message):
    good = {"model": torch.nn.Linear(2, 1), "truth": lambda x: x[:, :1], "inputs": "normal", "features": 2}
    with pytest.raises(cr.InputError, match=message):
        cr.Triple(**{**good, **options})


def test_draws_that_do_not_fit_are_refused():
    triple = linear()
    draws, *_ = exact_draws(triple, 20, 1.0, 0, draws=20)
    land = triple.landscape(20, 0)
    bare = {k: v for k, v in draws.arrays.items() if k != "positions"}
    few, *_ = exact_draws(triple, 20, 1.0, 0, draws=4)
    longer, *_ = exact_draws(triple, 30, 1.0, 0, draws=20)
    other = cr.Landscape(triple.model, triple.data(20, 0), "gaussian")
    with pytest.raises(cr.InputError, match="positions"):
        cr.bayes_generalization_loss(Draws(bare, {}, draws.nbeta, draws.spec), triple)
    with pytest.raises(cr.InputError, match="8 draws"):
        cr.gibbs_generalization_loss(few, triple)
    with pytest.raises(cr.InputError, match="parameters"):
        cr.bayes_generalization_loss(draws, linear(3, truth=(1.0, 0.0, 0.0)))
    with pytest.raises(cr.InputError, match="test"):
        cr.bayes_generalization_loss(draws, triple, test=1)
    with pytest.raises(cr.InputError, match=r"\(x, y\)"):
        cr.bayes_generalization_loss(draws, triple, test=(torch.ones(5, 2).double(), torch.ones(4, 1)))
    with pytest.raises(cr.InputError, match="Triple"):
        cr.bayes_generalization_loss(draws, land)
    with pytest.raises(cr.InputError, match="3 data sets"):
        cr.equations_of_state([(draws, land)] * 2, triple)
    with pytest.raises(cr.InputError, match="loss"):
        cr.equations_of_state([(draws, other)] * 3, triple)
    with pytest.raises(cr.InputError, match="one n"):
        cr.equations_of_state([(draws, land)] * 2 + [(longer, triple.landscape(30, 0))], triple)
    with pytest.raises(cr.InputError, match="flat vector"):
        triple.divergence(torch.ones(3))
    with pytest.raises(cr.InputError, match="count"):
        triple.divergence(count=1)
    with pytest.raises(cr.InputError, match="sets"):
        cr.simulate(triple, 20, 0)
