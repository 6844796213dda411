"""NaturalGradient against dense solves, SGD, and its own promises."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crunode.curvature.natural import NaturalGradient
from crunode.curvature.predictive import Predictive
from crunode.errors import DiagnosticWarning, EstimationError, InputError

KINDS = ["empirical", "sampled", "true", "kaldi"]


def mlp(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def conv(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)]
    return nn.Sequential(nn.Unflatten(1, (1, 5, 5)), *layers).to(dtype)


def batch(width: int = 4, dtype: torch.dtype = torch.float64, count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, width, generator=generator, dtype=dtype), torch.arange(count) % 3


def flat(parts: Any) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parts])


def outputs_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    rows = [flat(torch.autograd.grad(v, list(model.parameters()), retain_graph=True)) for v in model(x).reshape(-1)]
    return torch.stack(rows).reshape(len(x), -1, len(rows[0]))


def dense_fisher(model: nn.Module, x: Tensor, y: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """F and ∇L as plain matrices, for cross-entropy."""
    jacobian, outputs = outputs_jacobian(model, x).double(), model(x).detach().double()
    p = outputs.softmax(1)
    slopes = p - F.one_hot(y, 3)
    gradients = torch.einsum("bc,bcd->bd", slopes, jacobian)
    if kind == "true":
        hessians = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        return torch.einsum("bcd,bce,bef->df", jacobian, hessians, jacobian) / len(x), gradients.mean(0)
    return gradients.T @ gradients / len(x), gradients.mean(0)


def dense_direction(fisher: Tensor, gradient: Tensor, alpha: float, epsilon: float = 1e-10) -> tuple[Tensor, float]:
    kappa = alpha / len(gradient) * max(float(fisher.trace()), epsilon)
    eye = torch.eye(len(gradient), dtype=fisher.dtype)
    return torch.linalg.solve(fisher + kappa * eye, gradient), kappa


@pytest.mark.parametrize("kind", ["empirical", "true"])
@pytest.mark.parametrize(("make", "width"), [(mlp, 4), (conv, 25)])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_step_is_the_dense_solve(kind: str, make: Callable[..., nn.Module], width: int, decay: float) -> None:
    model, (x, y) = make(), batch(width)
    fisher, gradient = dense_fisher(model, x, y, kind)
    want, kappa = dense_direction(fisher, gradient, 1e-2)
    before = flat(model.parameters())
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1, fisher=kind, weight_decay=decay)
    loss = optimizer.step(x, y)
    moved = (before - flat(model.parameters())) / 0.1
    torch.testing.assert_close(moved, want + decay * before, rtol=0, atol=1e-10 * float(want.norm()))
    last = optimizer.last
    assert last is not None
    assert last.rows == "layers"
    assert last.kappa == pytest.approx(kappa, rel=1e-12)
    assert last.fisher_trace == pytest.approx(float(fisher.trace()), rel=1e-12)
    assert last.update_norm == pytest.approx(float(want.norm()), rel=1e-10)
    assert last.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-12)
    assert float(loss) == last.loss


def wide(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(25, 24), nn.ReLU(), nn.Linear(24, 3)).to(dtype)


@pytest.mark.parametrize("kind", ["empirical", "true"])
@pytest.mark.parametrize(("make", "width"), [(wide, 25), (conv, 25)])
def test_single_precision_agrees_to_a_millionth(kind: str, make: Callable[..., nn.Module], width: int) -> None:
    """With the dense solve, in double precision, of the gradients that the model has in single precision."""
    model, (x, y) = make(torch.float32), batch(width, torch.float32)
    want, _ = dense_direction(*dense_fisher(model, x, y, kind), 1e-2)
    optimizer = NaturalGradient(model, F.cross_entropy, lr=1.0, fisher=kind)
    found = {}
    optimizer._move = found.update  # type: ignore[method-assign]
    optimizer.step(x, y)
    moved = flat(found[n] for n, _ in model.named_parameters()).double()
    assert float((moved - want).norm() / want.norm()) < 1e-6


def test_drawn_labels_give_the_dense_solve_with_their_gradients() -> None:
    model, (x, y) = mlp(), batch()
    drawn = Predictive("categorical", True).drawn(model(x), _generator(optimizer_seed=7))
    rows = torch.einsum("bc,bcd->bd", drawn, outputs_jacobian(model, x))
    _, gradient = dense_fisher(model, x, y, "empirical")
    want, _ = dense_direction(rows.T @ rows / len(x), gradient, 0.5)
    before = flat(model.parameters())
    NaturalGradient(model, F.cross_entropy, lr=1.0, fisher="sampled", alpha=0.5, seed=7).step(x, y)
    torch.testing.assert_close(before - flat(model.parameters()), want, rtol=0, atol=1e-9 * float(want.norm()))


def _generator(optimizer_seed: int) -> torch.Generator:
    from crunode.core.rng import derived_seed

    return torch.Generator().manual_seed(derived_seed(optimizer_seed, 0))


@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "gaussian"])
@pytest.mark.parametrize("mean", [False, True])
def test_roots_slopes_and_drawn_labels_belong_together(kind: str, mean: bool) -> None:
    """SSᵀ is the second derivative of the loss, S S⁺r = r, and drawn slopes have the second moment SSᵀ.

    The last within 6 standard errors of 40,000 draws for each of at most 9 entries: false alarms below 1e-7.
    """
    fns = {
        "categorical": lambda f, y: F.cross_entropy(f[None], y[None]),
        "bernoulli": lambda f, y: F.binary_cross_entropy_with_logits(f, y, reduction="mean" if mean else "sum"),
        "gaussian": lambda f, y: (f - y).square().mean() if mean else (f - y).square().sum() / 2,
    }
    outputs = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    target = torch.tensor(2) if kind == "categorical" else torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    given = Predictive(kind, mean)
    root = given.root(outputs[None])[0]
    second = torch.func.jacrev(torch.func.grad(fns[kind]))(outputs, target)
    torch.testing.assert_close(root @ root.T, second)
    slope = torch.func.grad(fns[kind])(outputs, target)
    torch.testing.assert_close(root @ given.whitened(outputs[None], slope[None])[0], slope)
    drawn = given.drawn(outputs.expand(40_000, 3), torch.Generator().manual_seed(0))
    products = drawn[:, :, None] * drawn[:, None, :]
    errors = products.std(0) / 200
    assert bool(((products.mean(0) - second).abs() <= 6 * errors + 1e-12).all())


def test_slopes_of_sure_predictions_keep_their_digits() -> None:
    """With logits 40 apart, 1 - p is 1e-17: below the rounding of p, not below that of the step."""
    model = nn.Linear(2, 3, bias=False).float()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[20.0, 0.0], [-20.0, 0.0], [0.0, 0.0]]))
    x, y = torch.tensor([[1.0, 0.0], [-1.0, 0.5]]), torch.tensor([0, 1])
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.0, fisher="true")
    optimizer.step(x, y)
    p = model(x).detach().double().softmax(1)
    slope = p.clone()
    slope[torch.arange(2), y] = -(p.sum(1) - p[torch.arange(2), y])
    want = (slope[:, :, None] * x.double()[:, None, :]).mean(0).norm()
    assert optimizer.last is not None
    assert optimizer.last.gradient_norm == pytest.approx(float(want), rel=1e-4)


def test_very_unlikely_labels_still_pull() -> None:
    """A label of probability e⁻³⁰⁰ has a root far below the smallest single-precision number."""
    model = nn.Linear(1, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[300.0], [0.0], [-1.0]]))
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.0, fisher="true", epsilon=1.0)
    with pytest.warns(DiagnosticWarning, match="CURV834"):
        optimizer.step(torch.ones(1, 1), torch.tensor([1]))
    assert optimizer.last is not None
    assert optimizer.last.update_norm == pytest.approx(2**0.5 / optimizer.last.kappa, rel=1e-5)


@pytest.mark.parametrize("kind", ["empirical", "sampled", "true"])
def test_much_smoothing_is_sgd_with_rate_over_kappa(kind: str) -> None:
    x, y = batch()
    ours, theirs = mlp(), mlp()
    natural = NaturalGradient(ours, F.cross_entropy, lr=1.0, fisher=kind, alpha=1e12)
    for _ in range(3):
        natural.param_groups[0]["lr"] = 0.0
        natural.step(x, y)
        kappa = natural.last.kappa
        natural.param_groups[0]["lr"] = 0.1 * kappa
        sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
        natural.step(x, y)
        sgd.zero_grad()
        F.cross_entropy(theirs(x), y).backward()
        sgd.step()
        if kind != "sampled":
            assert natural.last.kappa == kappa
            torch.testing.assert_close(flat(ours.parameters()), flat(theirs.parameters()), rtol=1e-9, atol=1e-12)
    if kind == "sampled":  # κ changes with the labels that are drawn, so only the direction is the same
        assert natural.last.update_norm * natural.last.kappa == pytest.approx(natural.last.gradient_norm, rel=1e-9)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_decay_are_those_of_sgd(nesterov: bool) -> None:
    """SGD is given our directions for gradients."""
    x, y = batch()
    ours, theirs = mlp(), mlp()
    settings = {"lr": 0.05, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.01}
    natural, sgd = NaturalGradient(ours, F.cross_entropy, **settings), torch.optim.SGD(theirs.parameters(), **settings)
    for _ in range(4):
        plain = copy.deepcopy(ours)
        alone = NaturalGradient(plain, F.cross_entropy, lr=1.0)
        alone.step(x, y)
        for p, q, after in zip(theirs.parameters(), ours.parameters(), plain.parameters(), strict=True):
            p.grad = (q - after).detach()
        natural.step(x, y)
        sgd.step()
        torch.testing.assert_close(flat(ours.parameters()), flat(theirs.parameters()), rtol=1e-9, atol=1e-12)


def test_there_is_no_momentum_and_no_decay_unless_asked_for() -> None:
    x, y = batch()
    plain, told = mlp(), mlp()
    first = NaturalGradient(plain, F.cross_entropy, lr=0.05)
    second = NaturalGradient(told, F.cross_entropy, lr=0.05, momentum=0.0, nesterov=False, weight_decay=0.0)
    for _ in range(3):
        first.step(x, y)
        second.step(x, y)
    assert torch.equal(flat(plain.parameters()), flat(told.parameters()))


def test_groups_have_their_own_settings_and_one_fisher_matrix() -> None:
    model, (x, y) = mlp(), batch()
    want, _ = dense_direction(*dense_fisher(model, x, y, "empirical"), 1e-2)
    before = flat(model.parameters())
    groups = [
        {"params": model[0].parameters(), "lr": 0.5},
        {"params": [*model[2].parameters(), *model[4].parameters()]},
    ]
    NaturalGradient(model, F.cross_entropy, lr=0.1, params=groups).step(x, y)
    rates = torch.full_like(before, 0.1)
    rates[:30] = 0.5
    torch.testing.assert_close(before - flat(model.parameters()), rates * want, rtol=0, atol=1e-10 * float(want.norm()))


def test_frozen_and_left_out_parameters_stay_and_do_not_count() -> None:
    model, (x, y) = mlp(), batch()
    model[0].weight.requires_grad_(False)
    kept = model[0].weight.clone()
    rest = [p for n, p in model.named_parameters() if n not in ("0.weight", "4.bias")]
    bias = model[4].bias.clone()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1, params=rest)
    optimizer.step(x, y)
    assert torch.equal(model[0].weight, kept)
    assert torch.equal(model[4].bias, bias)
    size = sum(p.numel() for p in rest)
    assert optimizer.last.kappa == pytest.approx(1e-2 / size * optimizer.last.fisher_trace)


def test_a_parameter_that_the_loss_does_not_reach_stays() -> None:
    model = mlp()
    model.add_module("unused", None)
    model.extra = nn.Linear(3, 3).double()
    model.forward = lambda x: model[:5](x)  # type: ignore[method-assign]
    before = model.extra.weight.clone()
    NaturalGradient(model, F.cross_entropy, lr=0.1, weight_decay=0.5).step(*batch())
    assert torch.equal(model.extra.weight, before)


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_closures_and_batches_give_the_same_step(kind: str) -> None:
    x, y = batch()
    first, second = mlp(), mlp()
    NaturalGradient(first, F.cross_entropy, lr=0.1, fisher=kind).step(x, y)
    optimizer = NaturalGradient(second, F.cross_entropy, lr=0.1, fisher=kind)
    optimizer.step(lambda: F.cross_entropy(second(x), y, reduction="none"))
    torch.testing.assert_close(flat(first.parameters()), flat(second.parameters()), rtol=1e-12, atol=1e-14)
    optimizer.step(closure=lambda: F.cross_entropy(second(x), y, reduction="none"))
    assert optimizer.steps == 2


def test_the_online_form_takes_gradients_as_other_optimizers_do() -> None:
    x, y = batch()
    models = [mlp() for _ in range(3)]
    optimizers = [NaturalGradient(m, F.cross_entropy, lr=0.1, momentum=0.9, fisher="kaldi") for m in models]

    def closure() -> Tensor:
        models[2].zero_grad()
        loss = F.cross_entropy(models[2](x), y)
        loss.backward()
        return loss

    for _ in range(5):
        optimizers[0].step(x, y)
        models[1].zero_grad()
        F.cross_entropy(models[1](x), y).backward()
        assert optimizers[1].step() is None
        optimizers[2].step(closure)
    for other in models[1:]:
        torch.testing.assert_close(flat(models[0].parameters()), flat(other.parameters()), rtol=1e-9, atol=1e-12)
    last = optimizers[0].last
    assert last.update_norm == pytest.approx(last.gradient_norm, rel=1e-9)
    assert last.kappa is None


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_bitwise(kind: str, tmp_path: Any) -> None:
    x, y = batch(dtype=torch.float32)

    def make(model: nn.Module) -> NaturalGradient:
        return NaturalGradient(model, F.cross_entropy, lr=0.01, fisher=kind, momentum=0.9, nesterov=True, alpha=0.1)

    whole = mlp(torch.float32)
    optimizer = make(whole)
    for k in range(14):
        if k == 7:
            torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
        optimizer.step(x, y)
    again = mlp(torch.float32)
    other = make(again)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    for _ in range(7):
        other.step(x, y)
    assert torch.equal(flat(whole.parameters()), flat(again.parameters()))
    assert other.steps == 14


def test_a_copy_of_model_and_optimizer_goes_its_own_way() -> None:
    x, y = batch()
    model = mlp()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1, momentum=0.9)
    optimizer.step(x, y)
    other, copied = copy.deepcopy((model, optimizer))
    before = flat(model.parameters())
    copied.step(x, y)
    assert torch.equal(flat(model.parameters()), before)
    optimizer.step(x, y)
    torch.testing.assert_close(flat(model.parameters()), flat(other.parameters()))


def test_states_of_others_are_refused() -> None:
    state = NaturalGradient(mlp(), F.cross_entropy, lr=0.1).state_dict()
    with pytest.raises(InputError, match="another model"):
        NaturalGradient(conv(), F.cross_entropy, lr=0.1).load_state_dict(state)
    with pytest.raises(InputError, match="another model"):
        NaturalGradient(mlp()[:3], F.cross_entropy, lr=0.1).load_state_dict(state)
    with pytest.raises(InputError, match="fisher='true'"):
        NaturalGradient(mlp(), F.cross_entropy, lr=0.1, fisher="true").load_state_dict(state)
    with pytest.raises(InputError, match="another optimizer"):
        NaturalGradient(mlp(), F.cross_entropy).load_state_dict(torch.optim.SGD(mlp().parameters(), lr=1).state_dict())


def test_schedulers_set_the_rate() -> None:
    x, y = batch()
    model = mlp()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
    optimizer.step(x, y)
    schedule.step()
    before = flat(model.parameters())
    optimizer.step(x, y)
    assert torch.equal(flat(model.parameters()), before)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_fall(kind: str) -> None:
    x, y = batch(count=30)
    model = mlp()
    rate = {"empirical": 0.02, "sampled": 0.02, "true": 0.3, "kaldi": 0.5}[kind]
    optimizer = NaturalGradient(model, F.cross_entropy, lr=rate, fisher=kind, alpha=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosticWarning)
        losses = [float(optimizer.step(x, y)) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]


def test_dropout_is_differentiated_as_it_fell() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double().train()
    kept = []
    model[1].register_forward_hook(lambda _, given, after: kept.append((after / given[0]).detach()))
    (x, y), before = batch(), flat(model.parameters())
    state = copy.deepcopy(model)
    NaturalGradient(model, F.cross_entropy, lr=1.0).step(x, y)
    assert len(kept) == 1
    assert bool((kept[0] == 0).any())
    losses = F.cross_entropy(state[2](state[0](x) * kept[0]), y, reduction="none")
    rows = torch.stack([flat(torch.autograd.grad(v, list(state.parameters()), retain_graph=True)) for v in losses])
    want, _ = dense_direction(rows.T @ rows / 8, rows.mean(0), 1e-2)
    torch.testing.assert_close(before - flat(model.parameters()), want, rtol=0, atol=1e-9 * float(want.norm()))
    assert model.training


def test_tied_weights_go_row_by_row() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    x, y = batch(3)
    want, _ = dense_direction(*dense_fisher(model, x, y, "empirical"), 1e-2)
    before = flat(model.parameters())
    optimizer = NaturalGradient(model, F.cross_entropy, lr=1.0)
    optimizer.step(x, y)
    torch.testing.assert_close(before - flat(model.parameters()), want, rtol=0, atol=1e-9 * float(want.norm()))
    assert optimizer.last.rows == "examples"
    assert [f.code for f in optimizer.last.findings] == ["CURV833"]


def test_repeated_examples_with_no_smoothing_are_told() -> None:
    model, (x, y) = mlp(), batch(count=4)
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.0, alpha=1e-14, epsilon=1e-30)
    with pytest.warns(DiagnosticWarning, match="CURV831"):
        optimizer.step(torch.cat([x, x]), torch.cat([y, y]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once, and then in `last` only
        optimizer.step(torch.cat([x, x]), torch.cat([y, y]))
    assert [f.code for f in optimizer.last.findings] == ["CURV831"]


def test_sampled_traces_near_zero_loss_are_told() -> None:
    model = nn.Linear(2, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 0.0], [0.0, 4.0], [-4.0, -4.0]]))
    x = torch.eye(2, dtype=torch.float64).repeat(40, 1)
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.0, fisher="sampled")
    with pytest.warns(DiagnosticWarning, match="CURV832"):
        optimizer.step(x, torch.arange(80) % 2)
    model.weight.data /= 8
    optimizer.step(x, torch.arange(80) % 2)
    assert not optimizer.last.findings


@pytest.mark.parametrize("kind", ["empirical", "sampled", "true"])
def test_what_is_not_finite_raises_and_moves_nothing(kind: str) -> None:
    model, (x, y) = mlp(), batch()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1, fisher=kind, momentum=0.9)
    optimizer.step(x, y)
    before, state = flat(model.parameters()), copy.deepcopy(optimizer.state_dict())
    bad = x.clone()
    bad[2, 1] = float("nan")
    with pytest.raises(EstimationError, match="as before"):
        optimizer.step(bad, y)
    # A finite loss with a slope that is not.
    handle = model[2].register_full_backward_hook(lambda _, given, __: tuple(g * float("inf") for g in given))
    with pytest.raises(EstimationError, match="finite gradients"):
        optimizer.step(x, y)
    handle.remove()
    assert torch.equal(flat(model.parameters()), before)
    assert torch.equal(optimizer.state_dict()["state"][0]["momentum_buffer"], state["state"][0]["momentum_buffer"])


def test_bad_input_is_refused() -> None:
    model, (x, y) = mlp(), batch()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1)
    with pytest.raises(InputError, match="cannot be split per example"):
        optimizer.step(lambda: F.cross_entropy(model(x), y))
    with pytest.raises(InputError, match="cannot be split per example"):
        NaturalGradient(model, lambda output, target: F.cross_entropy(output, target), lr=0.1).step(x, y)
    with pytest.raises(InputError, match="one of them"):
        optimizer.step()
    with pytest.raises(InputError, match="to go with inputs"):
        NaturalGradient(model, lr=0.1).step(x, y)
    with pytest.raises(InputError, match="got 0"):
        optimizer.step(x[:0], y[:0])
    with pytest.raises(InputError, match="depend on the parameters"):
        optimizer.step(lambda: torch.ones(3))
    with pytest.raises(InputError, match="there is nothing to optimize"):
        NaturalGradient(nn.ReLU(), F.cross_entropy, lr=0.1)
    with pytest.raises(InputError, match="the model itself"):
        NaturalGradient(model.parameters(), F.cross_entropy, lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="parameters of the model"):
        NaturalGradient(model, F.cross_entropy, params=mlp().parameters())
    with pytest.raises(InputError, match="fisher among"):
        NaturalGradient(model, F.cross_entropy, fisher="exact")
    for name in ("alpha", "epsilon"):
        with pytest.raises(InputError, match=f"{name} above zero"):
            NaturalGradient(model, F.cross_entropy, **{name: 0.0})
    with pytest.raises(InputError, match="lr of zero or more"):
        NaturalGradient(model, F.cross_entropy, lr=-1.0)
    with pytest.raises(InputError, match="momentum above zero"):
        NaturalGradient(model, F.cross_entropy, nesterov=True)
    with pytest.raises(InputError, match="says what the model predicts"):
        NaturalGradient(model, nn.CrossEntropyLoss(label_smoothing=0.1), fisher="true")
    frozen = mlp().requires_grad_(False)
    with pytest.raises(InputError, match="take gradients"):
        NaturalGradient(frozen, F.cross_entropy).step(x, y)
    with pytest.raises(InputError, match="got none; call backward"):
        NaturalGradient(mlp(), fisher="kaldi").step()


def test_batch_normalization_is_refused_while_it_couples_examples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, y = batch()
    optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1)
    with pytest.raises(InputError, match="batch normalization"):
        optimizer.step(x, y)
    model.eval()
    before = flat(model.parameters())
    want, _ = dense_direction(*dense_fisher(model, x, y, "empirical"), 1e-2)
    optimizer.step(x, y)
    torch.testing.assert_close(before - flat(model.parameters()), 0.1 * want, rtol=0, atol=1e-9 * float(want.norm()))
    NaturalGradient(model.train(), F.cross_entropy, lr=0.1, fisher="kaldi").step(x, y)


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_changed(kind: str) -> None:
    model, (x, y) = mlp(), batch()
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    data, state = (x.clone(), y.clone()), torch.get_rng_state()
    NaturalGradient(model, F.cross_entropy, lr=0.1, fisher=kind).step(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, data[0])
    assert torch.equal(y, data[1])
    assert all(bool((p.grad == 7.0).all()) for p in model.parameters())
    assert all(not m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("loss", "shape"),
    [("gaussian", (8, 3)), (F.mse_loss, (8, 3)), ("bernoulli", (8, 3)), (nn.BCEWithLogitsLoss(), (8, 3))],
)
def test_true_fisher_of_other_losses_is_the_gauss_newton_matrix(loss: Any, shape: tuple[int, ...]) -> None:
    model, (x, _) = mlp(), batch()
    y = (torch.arange(24) % 2).reshape(shape).double()
    sums = {"gaussian": lambda f, t: (f - t).square().sum() / 2, F.mse_loss: F.mse_loss}
    one = sums.get(loss) if not isinstance(loss, nn.Module) else F.binary_cross_entropy_with_logits
    if loss == "bernoulli":
        one = lambda f, t: F.binary_cross_entropy_with_logits(f, t, reduction="sum")  # noqa: E731
    outputs, jacobian = model(x).detach(), outputs_jacobian(model, x)
    hessians = torch.stack([torch.func.jacrev(torch.func.grad(one))(f, t) for f, t in zip(outputs, y, strict=True)])
    slopes = torch.stack([torch.func.grad(one)(f, t) for f, t in zip(outputs, y, strict=True)])
    fisher = torch.einsum("bcd,bce,bef->df", jacobian, hessians, jacobian) / 8
    want, _ = dense_direction(fisher, torch.einsum("bc,bcd->d", slopes, jacobian) / 8, 1e-2)
    before = flat(model.parameters())
    NaturalGradient(model, loss, lr=1.0, fisher="true").step(x, y)
    torch.testing.assert_close(before - flat(model.parameters()), want, rtol=0, atol=1e-9 * float(want.norm()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_on_a_gpu_is_that_on_the_cpu(kind: str) -> None:
    x, y = batch()
    here, there = mlp(), mlp().cuda()
    for model, device in ((here, "cpu"), (there, "cuda")):
        optimizer = NaturalGradient(model, F.cross_entropy, lr=0.1, fisher=kind, momentum=0.9)
        for _ in range(3):
            optimizer.step(x.to(device), y.to(device))
    torch.testing.assert_close(flat(here.parameters()), flat(there.parameters()).cpu(), rtol=1e-7, atol=1e-9)
