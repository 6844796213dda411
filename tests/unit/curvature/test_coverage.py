"""What is found out about layers: how much that costs, for how long it is kept, and what undoes it."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import crunode as cr
from crunode.curvature import coverage as module
from crunode.curvature.coverage import Coverage, coverage
from crunode.curvature.loss_factors import loss_factors
from crunode.curvature.traces import ggn_trace, hessian_trace

VIEWS = {"view", "t", "transpose", "expand", "detach", "slice", "select", "unsqueeze", "permute", "split_with_sizes"}


class Counted(TorchDispatchMode):
    """Operations that do arithmetic, and those after which the host waits for the device."""

    def __init__(self):
        super().__init__()
        self.operations = self.waits = 0

    def __torch_dispatch__(self, fn, types, args=(), kwargs=None):
        name = fn._schema.name.removeprefix("aten::")
        self.waits += name in ("_local_scalar_dense", "equal", "is_nonzero", "nonzero")
        self.operations += name not in VIEWS
        return fn(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """`tolist` reads tensors of the processor itself by no operation."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, fn, types, args=(), kwargs=None):
        self.count += getattr(fn, "__name__", "") == "tolist"
        return fn(*args, **(kwargs or {}))


def cost(run):
    hessian_trace(landscape(mlp()))  # what torch imports at the first derivative of a process is not counted
    with Lists() as lists, Counted() as counted:
        run()
    return counted.operations, counted.waits + lists.count


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def mlp(depth=2, outputs=3):
    hidden = [part for _ in range(depth) for part in (nn.Linear(4, 4), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(4, outputs))


def landscape(net, outputs=3, rows=8, **options):
    kind = next(net.parameters()).dtype
    return cr.Landscape(
        net, (torch.randn(rows, 4, dtype=kind), torch.randint(0, outputs, (rows,))), "cross-entropy", **options
    )


def dense(land):
    whole = next(land.passes(10**9))
    return float(torch.autograd.functional.hessian(lambda w: land.batch_loss(w, whole), land.center).trace())


@pytest.mark.parametrize(("depth", "outputs"), [(2, 3), (9, 3), (2, 40)])
def test_the_host_waits_a_few_times_whatever_the_model(depth, outputs):
    land = landscape(mlp(depth, outputs), outputs)
    assert cost(lambda: hessian_trace(land))[1] <= 4  # layers, form of the loss (2), the trace
    assert cost(lambda: hessian_trace(land))[1] <= 3


def test_operations_do_not_grow_with_classes_and_are_fewer_the_second_time():
    few, many = (landscape(mlp(outputs=c), c) for c in (3, 40))
    first, again = (cost(lambda: hessian_trace(few))[0] for _ in range(2))
    assert cost(lambda: hessian_trace(many))[0] == first
    assert again < first < 90  # torch's own layers one after another are known
    coded = landscape(Coded())
    first, again = (cost(lambda: hessian_trace(coded))[0] for _ in range(2))
    assert again < 0.65 * first
    assert first < 230


class Coded(nn.Module):
    """A model with code of its own."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, x):
        return self.layers(x)


def convolutional():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("make", [mlp, convolutional])
def test_layers_in_sequence_are_known_without_being_checked(make, monkeypatch):
    x = torch.randn(6, 4) if make is mlp else torch.randn(6, 1, 6, 6)
    net = make()
    known, checked = (cr.Landscape(net, (x, torch.arange(6) % 3), "cross-entropy") for _ in range(2))
    found = coverage(known)
    monkeypatch.setattr(module, "_is_plain", lambda model: False)
    for mine, theirs in zip(found.layers, coverage(checked).layers, strict=True):
        assert (mine.names, mine.held, mine.gives, mine.positions) == (
            theirs.names,
            theirs.held,
            theirs.gives,
            theirs.positions,
        )
    assert found.outputs == 3
    assert not found.rest


def mixing_examples():
    return nn.Sequential(nn.Linear(4, 4), nn.Flatten(0), nn.Unflatten(0, (6, 4)), nn.Linear(4, 3))


def layer_used_twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def weight_used_twice():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    return net


def with_a_hook():
    net = mlp()
    net[0].register_forward_hook(lambda module, given, after: after.flip(0))
    return net


def with_another_forward():
    net = mlp()
    net[1].forward = lambda x: x.flip(0)
    return net


def with_a_norm():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "make",
    [mixing_examples, layer_used_twice, weight_used_twice, with_a_hook, with_another_forward, with_a_norm, Coded],
)
def test_what_has_more_to_it_is_checked(make):
    assert not module._is_plain(make())
    assert module._is_plain(mlp())


@pytest.mark.heavy
def test_an_outcome_is_kept_for_as_long_as_its_landscape():
    land = landscape(mlp())
    found = coverage(land)
    assert coverage(land) is found
    kept, alive = len(module._known_outcomes), weakref.ref(land)
    del land
    gc.collect()
    assert alive() is None
    assert len(module._known_outcomes) < kept


def test_an_outcome_is_not_that_of_another_model():
    class Twice(nn.Sequential):
        def forward(self, x):
            return super().forward(super().forward(x)[:, :1] * x)

    plain = landscape(mlp())
    twice = landscape(Twice(*mlp()))
    assert not coverage(plain).rest
    assert len(coverage(twice).rest) == 6
    assert not coverage(plain).rest


def test_an_outcome_is_not_that_of_other_free_parameters_or_weights():
    land = landscape(mlp())
    whole = coverage(land)
    assert [layer.names for layer in coverage(land.restrict("2.*")).layers] == [("2.weight", "2.bias")]
    assert [layer.names for layer in coverage(land.restrict("*.bias")).layers] == [
        ("0.bias",),
        ("2.bias",),
        ("4.bias",),
    ]
    moved, copied = land.at(land.center + 1), copy.copy(land)
    assert coverage(moved) is not whole
    assert coverage(copied) is not whole
    assert coverage(land) is whole
    assert hessian_trace(moved).value == pytest.approx(dense(moved), rel=1e-4)


@pytest.mark.parametrize("change", ["dtype", "center", "data", "default"])
def test_an_outcome_is_not_used_after_a_change(change):
    land = landscape(mlp())
    whole = coverage(land)
    if change == "dtype":
        land.center = land.center.double()
    elif change == "center":
        land.center.mul_(2)
    elif change == "data":
        land.data.tensors()[0].add_(1)
    else:
        torch.set_default_dtype(torch.float64)
    try:
        assert coverage(land) is not whole
    finally:
        torch.set_default_dtype(torch.float32)


def test_models_in_another_precision_are_looked_at_anew():
    net = mlp()
    single, double = landscape(net), landscape(net.double())
    assert coverage(single) is not coverage(double)
    assert hessian_trace(double).value == pytest.approx(dense(double), rel=1e-8)


class Squaring(nn.Linear):
    def __call__(self, x):
        return super().__call__(x).square()


class Batched(nn.Module):
    """Uses a weight beside its layer where there is more than one example."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(h + 0 * self.a.weight.sum() if len(x) > 1 else h)


class Pair(nn.Linear):
    def forward(self, x):
        return super().forward(x), 0


def test_whatever_comes_between_a_layer_and_what_follows_is_noticed():
    squaring = landscape(nn.Sequential(Squaring(4, 4), nn.ReLU(), nn.Linear(4, 3)).double())
    assert hessian_trace(squaring, tolerance=1e-4).value == pytest.approx(dense(squaring), rel=1e-8)
    assert set(coverage(landscape(Batched())).rest) == {"a.weight", "a.bias"}
    handle = nn.modules.module.register_module_forward_hook(
        lambda layer, given, after: after.square() if isinstance(layer, nn.Linear) else None
    )
    try:
        assert len(coverage(landscape(mlp())).rest) == 6
    finally:
        handle.remove()


class Normed(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.norm, self.head = nn.LayerNorm(shape), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x.expand(max(2, len(x)), 4))[: len(x)])


@pytest.mark.parametrize(("shape", "whole"), [((2, 4), True), ((4,), False)])
def test_a_norm_over_all_examples_is_no_layer_of_single_ones(shape, whole):
    found = coverage(landscape(Normed(*shape), rows=2))
    own = {"norm.weight", "norm.bias"}
    assert set(found.rest) >= own if whole else not found.rest
    assert all("leading axis" in found.rest[name] for name in own if whole)


class Leaking(torch.autograd.Function):
    """Signals of other examples come back to each, a thousandth of them."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope + 1e-3 * slope.flip(0)


class Leaky(nn.Module):
    def forward(self, x):
        return Leaking.apply(x)


def test_formulas_are_held_against_derivatives_as_far_as_the_precision_goes():
    net = nn.Sequential(nn.Linear(4, 4), Leaky(), nn.Linear(4, 3))
    assert not coverage(landscape(net)).rest
    assert set(coverage(landscape(net.double())).rest) >= {"0.weight", "0.bias"}


def test_outputs_that_are_no_tensor_leave_all_to_products():
    land = cr.Landscape(
        Pair(4, 3), (torch.randn(8, 4), torch.randn(8, 3)), lambda outputs, y: (outputs[0] - y).square().sum(1)
    )
    assert set(coverage(land).rest) == {"weight", "bias"}
    assert coverage(land).outputs == Coverage((), {}).outputs == 0
    assert hessian_trace(land, tolerance=1e-4).value == pytest.approx(dense(land), rel=1e-4)


class Unbatchable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, slope):
        return torch.from_numpy(2 * slope.numpy())


class Doubling(nn.Module):
    def forward(self, x):
        return Unbatchable.apply(x)


def test_backward_passes_at_once_give_what_single_ones_do(monkeypatch):
    convolutions = nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3, 3)),
    )
    for net in (mlp().double(), convolutions.double()):
        for loss, target in (("cross-entropy", torch.randint(0, 3, (8,))), ("gaussian", torch.randn(8, 3).double())):
            land = cr.Landscape(net, (torch.randn(8, 4).double(), target), loss)
            for numbers in (1, 2 * land.activations * 8, 1 << 27):
                monkeypatch.setattr("crunode.curvature.trace_terms._BATCHED", numbers)
                assert hessian_trace(land, method="exact").value == pytest.approx(dense(land), rel=1e-8)


def test_operations_that_cannot_be_batched_are_taken_one_by_one():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Doubling(), nn.Linear(4, 3)).double()
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    land = landscape(net)
    with torch.no_grad():
        plain[0].load_state_dict(net[0].state_dict())
        plain[2].weight.copy_(2 * net[3].weight)
        plain[2].bias.copy_(net[3].bias)
    same = cr.Landscape(plain, tuple(land.data.tensors()), "cross-entropy")
    # What the last layer is given is twice as large, and so are derivatives in its weights.
    parts = [hessian_trace(same.restrict(f"{k}.{p}")).value for k in (0, 2) for p in ("weight", "bias")]
    assert ggn_trace(land).value == pytest.approx(parts[0] + parts[1] + 4 * parts[2] + parts[3], rel=1e-8)


def test_well_predicted_examples_have_the_closed_form():
    """Where probabilities are near 0 and 1, single precision loses the second derivative itself."""
    net = nn.Linear(4, 3)
    x = torch.randn(8, 4)
    land = cr.Landscape(net, (x, net(x).argmax(1)), "cross-entropy")
    outputs = 12 * nn.functional.one_hot(torch.randint(0, 3, (8,)), 3).float()
    rows = loss_factors(land, outputs, next(land.passes()))
    assert rows.shape == (8, 2, 3)
    p = outputs.double().softmax(1)
    second = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    assert float((rows.mT @ rows - second).abs().max() / second.max()) < 1e-5


def test_a_loss_that_insists_on_its_precision_is_taken_in_it():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    land = cr.Landscape(mlp(), (torch.randn(8, 4), torch.randint(0, 3, (8,))), loss)
    assert hessian_trace(land).value == pytest.approx(dense(land), rel=1e-3)
