"""Which parameters belong to layers whose derivatives are known, and what is captured there."""

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.curvature.activations import free_tensors, recorded
from crunode.curvature.coverage import coverage
from crunode.curvature.loss_factors import loss_factors, softmax_factors
from crunode.curvature.piecewise import operations
from crunode.curvature.traces import hessian_trace


@pytest.fixture(autouse=True)
def _double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def landscape(model, inputs=None, loss="cross-entropy"):
    inputs = torch.randn(6, 4) if inputs is None else inputs
    target = torch.randint(0, 3, (len(inputs),)) if loss == "cross-entropy" else torch.randn(len(inputs), 3)
    return cr.Landscape(model, (inputs, target), loss)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


class Functional(nn.Module):
    """A weight that is used by its layer and beside it."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.c(torch.tanh(self.a(x))) + (x @ self.a.weight)[:, :3]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.c(torch.relu(self.a(torch.relu(self.a(x)))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        h = x.reshape(-1, 2, 2).repeat(1, 1, 2)
        return self.c(self.a(h, h, h)[0].mean(1))


class Folded(nn.Module):
    """A layer that sees pairs of rows of one example as examples."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(2, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.c(torch.relu(self.a(x.reshape(-1, 2))).reshape(len(x), 6))


class Swapped(nn.Module):
    """A layer whose leading axis is not that of examples, though it may have the same length."""

    def __init__(self):
        super().__init__()
        self.a, self.c = nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.relu(self.a(x.reshape(-1, 2, 2).transpose(0, 1)))
        return self.c(h.transpose(0, 1).flatten(1))


class Lora(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 0.1 * x[:, :3].cumsum(1) * self.weight.sum()


def test_layers_of_a_plain_network_are_all_covered():
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False))
    found = coverage(landscape(net.eval()))
    assert not found.rest
    assert [layer.names for layer in found.layers] == [
        ("0.weight", "0.bias"),
        ("1.weight", "1.bias"),
        ("3.weight", "3.bias"),
        ("4.weight",),
    ]


@pytest.mark.parametrize(
    ("model", "rest"),
    [
        (Tied, {"a.weight", "a.bias", "b.bias"}),
        (Functional, {"a.weight", "a.bias"}),
        (Twice, {"a.weight", "a.bias"}),
        (Attention, {"a.in_proj_weight", "a.in_proj_bias", "a.out_proj.weight", "a.out_proj.bias"}),
        (Folded, {"a.weight", "a.bias"}),
        (Swapped, {"a.weight", "a.bias"}),
        (lambda: Lora(4, 3), {"weight", "bias"}),
    ],
    ids=["tied", "functional", "twice", "attention", "folded", "swapped", "subclass"],
)
def test_what_does_not_follow_the_formula_is_left_to_products(model, rest):
    land = landscape(model())
    found = coverage(land)
    assert set(found.rest) == rest
    assert all(found.rest.values())
    whole = next(land.passes())
    dense = torch.autograd.functional.hessian(lambda w: land.batch_loss(w, whole), land.center).trace()
    trace = hessian_trace(land, tolerance=1e-4)  # takes a product for each coordinate, which is less work
    assert trace.value == pytest.approx(float(dense), rel=1e-8)
    assert "CURV821" in {f.code for f in trace.findings}
    assert set(trace.diagnostics["rest"]) == rest
    rough = hessian_trace(land, tolerance=1.0)  # beyond 4.5 standard errors by chance: 7 in 10⁶
    assert abs(rough.value - float(dense)) <= 4.5 * rough.se + 1e-9


def test_weights_made_from_others_are_left_out():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3))
    rest = coverage(landscape(net)).rest
    assert set(rest) == {f"0.parametrizations.weight.original{k}" for k in (0, 1)}


def test_a_hook_that_changes_what_a_layer_gives_is_noticed():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].register_forward_hook(lambda module, given, after: after.square())
    assert set(coverage(landscape(net)).rest) == {"0.weight", "0.bias"}


def test_no_hook_and_no_gradient_stays():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3))
    land = landscape(net)
    before = [p.detach().clone() for p in net.parameters()]
    coverage(land)
    with pytest.raises(ZeroDivisionError):
        recorded(coverage(land).layers, lambda: 1 / 0)
    assert not any(module._forward_hooks for module in (*net.modules(), *land._module.modules()))
    assert all(torch.equal(p, q) and p.grad is None for p, q in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(2, 3, (3, 2), dilation=(1, 2), padding="same", padding_mode="circular"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect", bias=False),
        nn.Conv3d(2, 2, 2),
        nn.GroupNorm(2, 2),
        nn.LayerNorm([5, 5]),
        nn.BatchNorm2d(2).eval(),
        nn.Linear(5, 3),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_root_times_weights_is_what_the_layer_gives(layer):
    layer = layer.double()
    shape = {"Conv1d": (2, 2, 5), "Conv3d": (2, 2, 3, 4, 5)}.get(type(layer).__name__, (2, 2, 5, 5))
    x = torch.randn(shape)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()

    def score(model, batch):
        return model[0](batch).flatten(1).sum(1)

    land = cr.Landscape(nn.Sequential(layer), x, score)
    (captured,) = coverage(land).layers
    z, (record,) = recorded([captured], lambda: land.functional_outputs(free_tensors(land), (x, None)))
    groups = record.root.shape[1]
    weight = layer.weight.reshape(groups, -1, record.root.shape[3] - captured.bias)
    if captured.bias:
        weight = torch.cat([weight, layer.bias.reshape(groups, -1, 1)], -1)
    given = captured.ungrouped(weight @ record.root.transpose(2, 3), z.shape)
    assert torch.allclose(given, z, atol=1e-12)
    assert torch.equal(captured.ungrouped(captured.grouped(z), z.shape), z)


def test_operations_with_a_second_derivative_are_named():
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 4)
    assert operations(torch.relu(x @ w) * 2 / 3 + x.abs()[:, :1]).curved == ()
    assert operations(torch.relu(x @ w) * x).curved == ("Mul",)
    assert operations(1 / x).curved
    assert operations(nn.functional.max_pool1d(x[:, None], 2)).kinked
    assert operations(nn.functional.softmax(x, 1)).curved


@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
def test_softmax_factors_square_to_the_second_derivative(scale):
    logits = scale * torch.randn(5, 4)
    rows = softmax_factors(logits)
    p = logits.softmax(1)
    assert torch.allclose(rows.mT @ rows, torch.diag_embed(p) - p[:, :, None] * p[:, None, :], atol=1e-15)


@pytest.mark.parametrize("loss", ["cross-entropy", "gaussian", "bernoulli", "ignored", "soft", "smoothed"])
def test_loss_factors_square_to_the_second_derivative_by_autograd(loss):
    target = torch.randint(0, 3, (4,))
    fn = loss
    if loss in ("gaussian", "soft"):
        target = torch.rand(4, 3)
    elif loss == "bernoulli":
        target = torch.randint(0, 2, (4, 3)).double()
    elif loss == "ignored":
        target[1] = -100
    if loss in ("ignored", "soft"):
        fn = nn.CrossEntropyLoss()
    elif loss == "smoothed":
        fn = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    land = cr.Landscape(nn.Linear(2, 3), (torch.randn(4, 2), target), fn)
    batch = next(land.passes())
    outputs = land.batch_outputs(land.center, batch).detach()
    rows = loss_factors(land, outputs, batch)
    rows = rows * torch.eye(3).expand(4, 3, 3) if rows.ndim == 0 else rows

    def total(values):
        return land.loss_form.fn(values, batch[-1]).sum()

    dense = torch.autograd.functional.hessian(total, outputs)
    for i in range(4):
        assert torch.allclose(rows[i].T @ rows[i], dense[i, :, i], atol=1e-9)
