"""The generalization experiment of Murfet et al. 2020: each part against a closed form or a plain loop."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

from crunode.errors import InputError
from crunode.jobs.recipe import Cell, Result
from crunode.jobs.registry import recipe
from crunode_papers.murfet2020.generalization import RECIPE, cells
from crunode_papers.murfet2020.hamiltonian import hamiltonian
from crunode_papers.murfet2020.maps import BATCH, DECAY, MOMENTUM, RATE, train_map
from crunode_papers.murfet2020.measure import AS_PRINTED, METHODS, OURS, measure
from crunode_papers.murfet2020.networks import Net, Panel, activate, draw_data
from crunode_papers.murfet2020.predictive import (
    energy_linear,
    energy_one,
    energy_two,
    hessian_two,
    kl_draws,
    kl_gaussian,
    last_layer,
    normal_draws,
)
from crunode_papers.murfet2020.published import printed
from crunode_papers.murfet2020.slopes import fit_slope
from crunode_papers.murfet2020.table import make_rows

pytestmark = pytest.mark.heavy

IDENTITY, RELU = Panel(1, False, True, False), Panel(1, True, True, False)


def module_of(net: Net, theta: torch.Tensor, slope: float) -> nn.Module:
    """The same network as a torch module."""
    layers: list[nn.Module] = []
    for k, (weight, bias) in enumerate(net.parts(theta[None])):
        layer = nn.Linear(weight.shape[2], weight.shape[1], bias=bias is not None)
        layer.weight.data = weight[0].clone()
        if bias is not None:
            layer.bias.data = bias[0, :, 0].clone()
        layers.append(layer)
        if k < len(net.shapes) - 3 or (k == len(net.shapes) - 2 and slope == 0):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def flat_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("layers", [1, 5])
def test_outputs_are_those_of_a_torch_module(layers):
    data = draw_data(
        [Panel(layers, False, True, False), Panel(layers, True, True, False)], [30], range(2), tests=2, seed=0
    )
    net = Net(layers + 1)
    found = net.output(data.start, data.x, data.slope)
    for k in range(4):
        module = module_of(net, data.start[k], data.slope[k].item())
        torch.testing.assert_close(found[k].T, module(data.x[k].T), rtol=1e-4, atol=1e-5)


def test_initial_weights_have_the_range_of_torch():
    theta = torch.stack([Net(2).default(torch.Generator().manual_seed(k)) for k in range(400)])
    for (weight, bias), (_, into, _) in zip(Net(2).parts(theta), Net(2).shapes, strict=True):
        for part in [weight] if bias is None else [weight, bias]:
            assert part.abs().max() <= into**-0.5
            # 400 draws at least: the variance of a uniform number is known to 0.9 / sqrt(400) of itself.
            assert part.var().item() == pytest.approx(1 / (3 * into), rel=0.2)


@pytest.mark.parametrize("panels", [[IDENTITY], [RELU], [IDENTITY, RELU]])
def test_gradients_are_those_of_autograd_and_padding_counts_for_nothing(panels):
    data = draw_data(panels, [20, 33], range(2), tests=2, seed=1)
    net, theta = Net(2), data.start.double().requires_grad_()
    x, y, slope = data.x.double(), data.y.double(), data.slope.double()
    loss = 0.0
    for k, n in enumerate(data.n.tolist()):
        gap = net.output(theta[k : k + 1], x[k : k + 1, :, :n], slope[k : k + 1]) - y[k : k + 1, :, :n]
        loss = loss + gap.square().sum() / n
    loss.backward()
    weight = data.mask.double() / data.n.view(-1, 1, 1)
    found = net.gradient(net.parts(theta.detach()), x, y, weight, slope)
    torch.testing.assert_close(found, theta.grad, rtol=1e-9, atol=1e-12)


def test_batched_map_is_that_of_a_plain_loop():
    data = draw_data([IDENTITY, RELU], [20, 40], range(1), tests=2, seed=2)
    found = train_map(Net(2), data, epochs=60, minibatch=False)
    for k, n in enumerate(data.n.tolist()):
        module = module_of(Net(2), data.start[k], data.slope[k].item())
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        for _ in range(60):
            optimizer.zero_grad()
            (module(data.x[k, :, :n].T) - data.y[k, :, :n].T).square().sum(1).mean().backward()
            optimizer.step()
        torch.testing.assert_close(found[k], flat_of(module), rtol=1e-4, atol=1e-5)


def test_minibatch_map_is_that_of_a_plain_loop_with_the_same_orders():
    data = draw_data([IDENTITY, RELU], [20, 70], range(1), tests=2, seed=3)
    found = train_map(Net(2), data, epochs=5, minibatch=True, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(found, data.start)
    generator = torch.Generator().manual_seed(5)
    orders = [
        torch.rand(4, 70, generator=generator).masked_fill_(data.mask[:, 0] == 0, 2.0).argsort(1) for _ in range(5)
    ]
    for k, n in enumerate(data.n.tolist()):
        module = module_of(Net(2), data.start[k], data.slope[k].item())
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        for order in orders:
            assert sorted(order[k, :n].tolist()) == list(range(n))
            for index in order[k, :n].split(BATCH):
                optimizer.zero_grad()
                (module(data.x[k, :, index].T) - data.y[k, :, index].T).square().sum(1).mean().backward()
                optimizer.step()
        torch.testing.assert_close(found[k], flat_of(module), rtol=1e-4, atol=1e-5)


def test_minibatches_need_a_generator():
    data = draw_data([IDENTITY], [20], range(1), tests=2, seed=0)
    with pytest.raises(InputError, match="generator"):
        train_map(Net(2), data, epochs=1, minibatch=True)


def test_data_of_a_set_depend_neither_on_the_others_nor_on_how_map_is_trained():
    whole = draw_data([IDENTITY, RELU], [20, 30], range(3), tests=4, seed=7)
    alone = draw_data([Panel(1, True, True, True)], [30], range(2, 3), tests=4, seed=7)
    for name in ("x", "y", "start", "test_x", "test_truth", "other"):
        assert torch.equal(getattr(whole, name)[-1:], getattr(alone, name)), name


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_nonrealizable_truth_is_linear_in_the_code_and_h_in_the_text(as_text, relu):
    data = draw_data([Panel(1, relu, False, False)], [20], range(1), tests=400, seed=0, as_text=as_text)
    x, truth = data.test_x[0].double(), data.test_truth[0].double()
    fitted = truth @ torch.linalg.pinv(x) @ x
    bent = (truth - fitted).abs().max().item() > 1e-4
    assert bent == (as_text and relu)
    assert Net(1 + (not as_text)).size == data.start.shape[1]


def test_closed_form_of_the_last_layer_is_the_conjugate_posterior():
    rng = np.random.default_rng(0)
    h, y = rng.normal(size=(3, 40)), rng.normal(size=(2, 40))
    mean, cov = last_layer(torch.tensor(h)[None], torch.tensor(y)[None])
    # All outputs in one regression, with the design matrix written out.
    design = np.kron(np.eye(2), h.T)
    whole = np.linalg.inv(design.T @ design + np.eye(6))
    np.testing.assert_allclose(mean[0].numpy().ravel(), whole @ design.T @ y.ravel(), rtol=1e-10)
    np.testing.assert_allclose(np.kron(np.eye(2), cov[0].numpy()), whole, rtol=1e-10, atol=1e-14)


def test_laplace_is_the_closed_form_at_the_exact_map_of_the_last_layer():
    data = draw_data([IDENTITY, RELU], [40], range(2), tests=2, seed=0)
    net = Net(2)
    x = net.features(data.start, data.x) * data.mask
    a = data.start[:, -18:-9].view(-1, 3, 3)
    mean, cov = last_layer(activate(a @ x, data.slope), data.y)
    w = torch.cat([a.flatten(1).double(), mean.flatten(1)], 1)
    hessian = hessian_two(x, data.y, data.slope, w)[:, 9:, 9:] + torch.eye(9)
    wanted = torch.stack([torch.kron(torch.eye(3, dtype=torch.float64), part.contiguous()) for part in cov])
    torch.testing.assert_close(torch.linalg.inv(hessian), wanted, rtol=1e-6, atol=1e-9)
    # The gradient of the log posterior vanishes there, so that the approximation has the right center too.
    slope = energy_one(activate(a @ x, data.slope).double(), data.y.double())(mean.flatten(1)[:, None])[1]
    assert slope.abs().max() < 1e-4


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_energies_and_hessian_are_those_of_autograd(slope):
    torch.manual_seed(0)
    x, y, w = (torch.randn(2, 3, 15, dtype=torch.float64) for _ in range(3))
    w = torch.randn(2, 18, dtype=torch.float64)
    bend = torch.full((2, 1, 1), slope, dtype=torch.float64)

    def loss(v, k):
        a, b = v.view(2, 3, 3)
        return (y[k] - b @ activate(a @ x[k], bend[k])).square().sum() / 2

    level, grad = (energy_linear if slope else energy_two)(x, y)(w[:, None])
    shift = y.square().sum((1, 2)) / 2 if slope else torch.zeros(2, dtype=torch.float64)
    hessian = hessian_two(x, y, bend, w)
    for k in range(2):
        v = w[k].clone().requires_grad_()
        value = loss(v, k) + v.square().sum() / 2
        torch.testing.assert_close(level[k, 0] + shift[k], value.detach())
        torch.testing.assert_close(grad[k, 0], torch.autograd.grad(value, v)[0])
        wanted = torch.autograd.functional.hessian(lambda u, k=k: loss(u, k), w[k])
        torch.testing.assert_close(hessian[k], wanted, rtol=1e-8, atol=1e-8)


def test_draws_of_the_last_layer_have_the_moments_of_the_closed_form():
    torch.manual_seed(0)
    h, y = torch.randn(3, 3, 30), torch.randn(3, 3, 30)
    mean, cov = last_layer(h, y)
    found = hamiltonian(energy_one(h, y), torch.zeros(3, 4, 9), draws=600, warmup=150, leaps=10, seed=1)
    drawn = found.draws.flatten(1, 2).double()
    sd = cov.diagonal(dim1=1, dim2=2).sqrt().repeat(1, 3)
    # 27 means and variances of 2400 draws; with at least 600 effective ones an error of 5 standard errors does not
    # happen by chance (below 1e-4 for all together).
    assert ((drawn.mean(1) - mean.flatten(1)) / sd).abs().max() < 5 / math.sqrt(600)
    assert (drawn.var(1).sqrt() / sd - 1).abs().max() < 5 / math.sqrt(2 * 600)
    assert found.divergent.max() == 0
    assert 0.6 < found.accepted.min() <= found.accepted.max() < 0.98


def test_chains_need_a_warmup():
    with pytest.raises(InputError, match="warmup"):
        hamiltonian(
            energy_one(torch.ones(1, 3, 2), torch.ones(1, 3, 2)),
            torch.zeros(1, 2, 9),
            draws=5,
            warmup=3,
            leaps=2,
            seed=0,
        )


def test_error_of_the_truth_is_zero_and_of_a_shift_half_its_square():
    torch.manual_seed(0)
    x, noise = torch.randn(2, 3, 200), torch.randn(2, 3, 200)
    w = torch.randn(2, 1, 18)
    slope = torch.tensor([0.0, 1.0]).view(2, 1, 1)
    a, b = w[:, 0].view(2, 2, 3, 3).unbind(1)
    truth = b @ activate(a @ x, slope)
    assert kl_draws(x, truth, noise, slope, w).abs().max() < 1e-5
    assert kl_gaussian(truth, truth).abs().max() == 0
    assert kl_gaussian(truth, truth + 0.1).tolist() == pytest.approx([0.015] * 2, rel=1e-5)


def test_error_of_draws_is_that_of_the_gaussian_they_are_from():
    data = draw_data([IDENTITY, RELU], [50], range(2), tests=4000, seed=1)
    net = Net(2)
    x, tests = net.features(data.start, data.x), net.features(data.start, data.test_x)
    a = data.start[:, -18:-9]
    h, test_h = (activate(a.view(-1, 3, 3) @ part, data.slope) for part in (x, tests))
    mean, cov = last_layer(h, data.y)
    variance = 1 + (test_h.double() * (cov @ test_h.double())).sum(1)
    wanted = kl_gaussian(data.test_truth, mean @ test_h.double(), variance)
    precision = torch.stack(
        [torch.kron(torch.eye(3, dtype=torch.float64), part.contiguous()) for part in torch.linalg.inv(cov)]
    )
    b = normal_draws(mean.flatten(1).float(), precision, 400, seed=3)
    found = kl_draws(
        tests, data.test_truth, data.test_noise, data.slope, torch.cat([a[:, None].expand(-1, 400, -1), b], -1)
    )
    # Test noise of 2000 pairs and 400 draws: about 3 % of each; 15 % is five times that.
    torch.testing.assert_close(found, wanted, rtol=0.15, atol=0.0)


def test_floor_of_log_densities_makes_errors_infinite():
    x = torch.ones(1, 3, 4)
    far = torch.full((1, 2, 18), 30.0)
    args = x, torch.zeros_like(x), torch.zeros_like(x), torch.ones(1, 1, 1), far
    assert math.isfinite(kl_draws(*args).item())
    assert kl_draws(*args, floor=-744.4).item() == math.inf


def test_floored_eigenvalues():
    precision = torch.diag(torch.tensor([-4.0, 0.25, 100.0]))[None]
    spread = normal_draws(torch.zeros(1, 3), precision, 20000, 0, floor=1.0).std(1)[0]
    assert spread.tolist() == pytest.approx([1.0, 1.0, 0.1], rel=0.04)
    spread = normal_draws(torch.zeros(1, 3), precision, 20000, 0).std(1)[0]
    assert spread.tolist() == pytest.approx([0.5, 2.0, 0.1], rel=0.04)


def test_slopes_of_made_up_errors():
    rng = np.random.default_rng(0)
    sizes = [200, 400, 800, 1000]
    x = 1 / np.array(sizes)
    noise = rng.normal(size=(4, 2000)) * 1e-3
    plain = fit_slope(sizes, 3 * x[:, None] + noise, False)
    shifted = fit_slope(sizes, 0.5 + 3 * x[:, None] + noise, True)
    for fit, lever in ((plain, x), (shifted, x - x.mean())):
        assert fit.se == pytest.approx(1e-3 / np.sqrt(lever @ lever) / np.sqrt(2000), rel=0.1)
        assert abs(fit.value - 3) < 4 * fit.se
        assert fit.each.mean() == pytest.approx(fit.value)
        assert fit.r2 > 0.99
    assert shifted.intercept == pytest.approx(0.5, abs=1e-3)
    assert math.isnan(fit_slope(sizes, np.full((4, 2), np.inf), False).value)
    with pytest.raises(InputError, match="data sets"):
        fit_slope(sizes, [[1.0]] * 4, False)


def test_r2_is_that_of_least_squares():
    g = np.array([[0.5, 0.52], [0.3, 0.2], [0.1, 0.16]])
    x, mean = 1 / np.array([10, 20, 40]), g.mean(1)
    design = np.stack([np.ones(3), x], 1)
    coefficients, rest = np.linalg.lstsq(design, mean, rcond=None)[:2]
    fit = fit_slope([10, 20, 40], g, True)
    assert (fit.intercept, fit.value) == pytest.approx(tuple(coefficients))
    assert fit.r2 == pytest.approx(1 - rest[0] / ((mean - mean.mean()) ** 2).sum())


def made_up(errors, panel=(1, 0, 1, 0)):
    """A result in which each method has the given slope."""
    sizes, sets = [200, 500, 1000], 6
    wobble = 1 + 0.01 * np.random.default_rng(0).normal(size=(3, sets))
    arrays = {name: (errors.get(name, 5.0) * wobble / np.array(sizes)[:, None]).tolist() for name in OURS}
    arrays[AS_PRINTED["two-layer Laplace"]] = [[math.inf] * sets] * 3
    rest = {
        name: [[value] * sets] * 3 for name, value in (("two rhat", 1.01), ("two divergent", 0.0), ("negative", 1.0))
    }
    value = {"panels": [{"panel": list(panel), "errors": arrays, **rest}]}
    return Result(Cell("a", {"sizes": sizes}), value, 0.0)


def test_rows_tell_agreement_explanation_and_order():
    slopes = {"MAP": 10.7, "two-layer MCMC": 9.7, "last-layer MCMC": 11.0, "last layer in closed form": 11.0}
    slopes |= {"last-layer Laplace": 10.5, "two-layer Laplace": 18.0}
    slopes |= {"last-layer Laplace as coded": 2155.0, "last-layer MCMC as coded": 20.0}
    rows = {row.name.partition(": ")[2]: row for row in make_rows([made_up(slopes)], "paper")}
    assert rows["MAP"].verdict == "agrees"
    assert rows["MAP"].paper == printed(1, 1, False, "MAP")[0]
    assert rows["last-layer Laplace"].verdict == "explained"
    assert rows["last-layer Laplace as coded"].verdict == "agrees"
    assert rows["last-layer MCMC as coded"].verdict == "differs"
    assert rows["two-layer Laplace as coded, share of infinite G"].verdict == "agrees"
    assert rows["two-layer Laplace worse than last-layer Laplace by"].note == "confirmed"
    assert rows["last-layer Laplace worse than MAP by"].note.startswith("refuted")
    assert rows["MAP worse than last-layer MCMC by"].verdict == "explained"
    assert rows["last-layer MCMC worse than two-layer MCMC by"].verdict == "agrees"


def test_rows_of_chains_that_disagree():
    result = made_up({})
    result.value["panels"][0]["two rhat"] = [[1.5] * 6] * 3
    rows = [row for row in make_rows([result], "paper") if "R-hat" in row.name]
    assert [row.verdict for row in rows] == ["differs"]


def test_data_sets_of_several_cells_are_put_together():
    alone = made_up({"MAP": 10.0})
    both = [alone, dataclasses.replace(alone, cell=Cell("b", alone.settings))]
    one, two = (next(r for r in make_rows(x, "toy") if r.name.endswith(": MAP")) for x in ([alone], both))
    assert one.ours == pytest.approx(two.ours)
    assert two.se < one.se


def test_cells_cover_all_sixteen_panels():
    found = [tuple(panel) for cell in cells("paper", 0) for panel in cell.settings["panels"]]
    assert len(set(found)) == len(found) == 16
    assert cells("paper", 0)[0].settings["sizes"][::9] == [200, 1000]


def test_panels_of_a_cell_must_fit_into_one_batch():
    with pytest.raises(InputError, match="agree"):
        measure({"panels": [[1, 0, 1, 0], [5, 0, 1, 0]]})
    with pytest.raises(InputError, match="layers"):
        draw_data([IDENTITY, Panel(5, False, True, False)], [20], range(1), tests=2, seed=0)


def test_all_sizes_in_one_batch_give_what_each_gives_alone():
    small = {"tests": 40, "epochs": 30, "chains": 2, "draws": 10, "warmup": 20, "leaps": 4, "seed": 0, "as_text": False}
    settings = {"panels": [[1, 0, 1, 0], [1, 1, 0, 0]], "sizes": [20, 50], "sets": [1, 2], **small}
    one, all_ = (measure(settings, "cpu", together=together)["panels"] for together in (False, True))
    for a, b in zip(one, all_, strict=True):
        for name in ("MAP", "last layer in closed form", "last-layer Laplace", "last-layer MCMC as coded"):
            np.testing.assert_allclose(a["errors"][name], b["errors"][name], rtol=1e-3, atol=1e-6)
        assert a["negative"] == b["negative"]


def test_a_network_lost_in_training_gives_no_number_and_leaves_the_others_alone(monkeypatch):
    small = {"tests": 20, "epochs": 2, "chains": 2, "draws": 4, "warmup": 20, "leaps": 2, "seed": 0, "as_text": False}
    settings = {"panels": [[1, 1, 1, 0]], "sizes": [20, 30], "sets": [0, 3], **small}

    def lossy(*args, **kwargs):
        theta = train_map(*args, **kwargs)
        theta[1] = math.nan
        return theta

    whole = measure(settings, "cpu")["panels"][0]
    monkeypatch.setattr("crunode_papers.murfet2020.measure.train_map", lossy)
    panel = measure(settings, "cpu")["panels"][0]
    for name in OURS:
        errors = np.array(panel["errors"][name])
        assert np.isnan(errors[:, 1]).all(), name
        np.testing.assert_array_equal(np.isnan(errors[:, ::2]), False)
    assert np.array(panel["errors"]["MAP"])[:, ::2].tolist() == np.array(whole["errors"]["MAP"])[:, ::2].tolist()
    assert panel["lost"] == [[0.0, 1.0, 0.0]] * 2
    rows = make_rows([Result(Cell("a", settings), {"panels": [panel]}, 0.0)], "paper")
    assert {row.verdict for row in rows if row.name.endswith(": MAP")} == {"no value"}


def test_the_recipe_runs_at_toy_size(tmp_path):
    assert recipe("murfet2020-generalization") is RECIPE
    run = RECIPE.run(size="toy", seed=0, store=tmp_path / "run")
    assert run.ok, run.compare()
    rows = {row.name: row for row in run.rows}
    for name in METHODS:
        assert rows[f"Table 1a (1 layer, identity): {name}"].ours > 0
    # The cause of the printed thousands shows at any size.
    assert rows["Table 1a (1 layer, identity): last-layer Laplace as coded"].ours > 200
    assert rows["Table 1a (1 layer, identity): last-layer Laplace"].ours < 60
    assert rows["Table 1a (1 layer, identity): last-layer MCMC minus closed form"].verdict == "agrees"
    again = RECIPE.run(size="toy", seed=0, store=tmp_path / "run")
    assert again.rows == run.rows
