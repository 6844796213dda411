"""The loss as a function of the free parameters: of any model, at any weights, in any precision."""

import copy
import functools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from crunode.core.data import Examples
from crunode.core.landscape import Landscape
from crunode.errors import InputError

G = torch.Generator().manual_seed(2)
X = torch.randn(40, 4, generator=G)
Y = torch.randn(40, 2, generator=G)
DATA = (X, Y)


def mlp(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 2))


def codes(land):
    return [f.code for f in land.findings]


def gradient(land, w=None):
    w = land.center if w is None else w
    return torch.func.grad(land.batch_loss)(w, next(iter(land.data.passes(1000))))


def test_loss_and_gradient_are_those_of_the_model():
    model = mlp(nn.Tanh())
    land = Landscape(model, DATA, F.mse_loss)
    assert (land.n, land.dim) == (40, 6 * 5 + 2 * 7)
    expected = F.mse_loss(model(X), Y)
    torch.testing.assert_close(land.loss().float(), expected.detach())
    expected.backward()
    torch.testing.assert_close(gradient(land), torch.cat([p.grad.reshape(-1) for p in model.parameters()]))


def test_the_loss_is_the_mean_over_examples_whatever_the_chunks():
    land = Landscape(mlp(nn.Tanh()), DATA, "gaussian")
    for size in (1, 7, 16, 40):
        parts = [(land.batch_loss(land.center, b).item(), len(b[0])) for b in land.passes(size)]
        assert sum(v * k for v, k in parts) / 40 == pytest.approx(land.loss().item(), rel=1e-6)


def test_the_center_does_not_follow_the_model():
    model = mlp(nn.Tanh())
    land = Landscape(model, DATA, "gaussian")
    before = land.loss()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(land.loss(), before)


def test_tied_weights_are_one_set_of_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.decoder = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.decoder.weight = self.encoder.weight

        def forward(self, ids):
            return self.decoder(torch.tanh(self.encoder(ids)))

    model, ids = Tied(), torch.arange(7)
    land = Landscape(model, (ids, ids.flip(0)), F.cross_entropy)
    assert (land.dim, land.packing.names) == (28, ("encoder.weight",))
    loss = F.cross_entropy(model(ids), ids.flip(0))
    (slope,) = torch.autograd.grad(loss, model.encoder.weight)
    torch.testing.assert_close(gradient(land), slope.reshape(-1))
    assert land.at(model.state_dict()).loss() == land.loss()


def test_frozen_parameters_stay_at_the_center():
    model = mlp(nn.Tanh())
    model[0].requires_grad_(False)
    land = Landscape(model, DATA, "gaussian")
    assert land.packing.names == ("2.weight", "2.bias")
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved[2].weight.mul_(2)
    expected = 0.5 * (moved(X) - Y).square().sum(1).mean()
    w = torch.cat([moved[2].weight.reshape(-1), moved[2].bias]).detach()
    torch.testing.assert_close(land.loss(w).float(), expected.detach())


def test_buffers_and_infinite_masks_are_part_of_the_model():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

        def forward(self, x):
            return x @ torch.softmax(self.weight + self.mask, 1)

    model = Masked()
    land = Landscape(model, (X, X), F.mse_loss)
    torch.testing.assert_close(land.loss().float(), F.mse_loss(model(X), X).detach())


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_parameters_of_several_precisions(half):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(4, 4).to(half), nn.Linear(4, 4)
            self.c = nn.Linear(4, 2).double()

        def forward(self, x):
            return self.c(self.b(self.a(x.to(half)).float()).double())

    model = Mixed()
    land = Landscape(model, (X, Y.double()), F.mse_loss)
    assert land.center.dtype == torch.float64
    torch.testing.assert_close(land.loss(), F.mse_loss(model(X), Y.double()).detach())
    assert torch.isfinite(gradient(land)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_one_other_precision(dtype):
    land = Landscape(mlp(nn.Tanh()).to(dtype), (X.to(dtype), Y.to(dtype)), "gaussian")
    assert land.center.dtype == torch.promote_types(dtype, torch.float32)
    exact = Landscape(mlp(nn.Tanh()), DATA, "gaussian").loss()
    assert land.loss().item() == pytest.approx(exact.item(), rel=2e-2)


@pytest.mark.parametrize("old", [False, True])
def test_weight_norm(old):
    wrap = torch.nn.utils.weight_norm if old else parametrizations.weight_norm
    if old:
        with pytest.warns(FutureWarning, match="weight_norm"):
            model = nn.Sequential(wrap(nn.Linear(4, 6)), nn.Linear(6, 2))
    else:
        model = nn.Sequential(wrap(nn.Linear(4, 6)), nn.Linear(6, 2))
    model(X)
    land = Landscape(model, DATA, F.mse_loss)
    assert land.dim == sum(p.numel() for p in model.parameters()) == 6 + 24 + 6 + 14
    loss = F.mse_loss(model(X), Y)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradient(land), torch.cat([s.reshape(-1) for s in slopes]))


def test_training_mode_is_evaluated_in_evaluation_mode():
    model = mlp(nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Tanh()).train()
    land = Landscape(model, DATA, F.mse_loss)
    assert codes(land) == ["MODEL501"]
    assert "BatchNorm1d, Dropout" in land.findings[0].message
    assert model.training
    expected = F.mse_loss(copy.deepcopy(model).eval()(X), Y).detach()
    torch.testing.assert_close(land.loss().float(), expected)
    assert codes(Landscape(model.eval(), DATA, F.mse_loss)) == []


def test_dropout_inside_attention_and_recurrence_counts_as_training_mode():
    class Attending(nn.Module):
        def __init__(self, dropout):
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

        def forward(self, x):
            return self.attend(x[:, None], x[:, None], x[:, None])[0][:, 0]

    assert "MODEL501" in codes(Landscape(Attending(0.1).train(), (X, X), F.mse_loss))
    assert "MODEL501" not in codes(Landscape(Attending(0.0).train(), (X, X), F.mse_loss))


def test_randomness_in_evaluation_mode_is_refused():
    class Noisy(nn.Linear):
        def forward(self, x):
            return F.dropout(super().forward(x), 0.5, training=True)

    with pytest.raises(InputError, match=r"same loss when evaluated twice.*remove the randomness"):
        Landscape(Noisy(4, 2), DATA, F.mse_loss)


def test_coupled_examples_are_found():
    land = Landscape(mlp(nn.BatchNorm1d(6, track_running_stats=False), nn.Tanh()), DATA, F.mse_loss)
    assert "DATA502" in codes(land)

    def contrast(model, batch):
        out = model(batch[0])
        return F.cross_entropy(out @ out.T, torch.arange(len(out)))

    assert "DATA502" in codes(Landscape(mlp(nn.Tanh()), DATA, contrast))


def test_hooks_are_noted():
    model = mlp(nn.Tanh())
    handle = model[1].register_forward_hook(lambda *_: None)
    assert codes(Landscape(model, DATA, F.mse_loss)) == ["MODEL503"]
    handle.remove()
    assert codes(Landscape(model, DATA, F.mse_loss)) == []


def test_unused_parameters_are_those_without_gradient_here_and_nearby():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.unused = nn.Linear(4, 2), nn.Linear(3, 3)
            self.off = nn.Parameter(torch.ones(2))
            self.down, self.up = nn.Parameter(torch.randn(4, 1)), nn.Parameter(torch.zeros(1, 2))

        def forward(self, x):
            return self.base(x) + x @ self.down @ self.up + 0.0 * self.off

    land = Landscape(Adapted(), DATA, F.mse_loss)
    assert [f.message for f in land.findings] == ["unused parameters: off, unused.weight, unused.bias"]
    assert codes(land.restrict("base.*", "down", "up")) == []


def test_a_model_that_works_in_place_does_not_change_the_data():
    class Centered(nn.Linear):
        def forward(self, x):
            return super().forward(x.sub_(1.0).relu_())

    x = X.clone()
    land = Landscape(Centered(4, 2), (x, Y), F.mse_loss)
    assert torch.equal(land.loss(), land.loss())
    assert torch.equal(x, X)


def test_restrict_frees_a_subset_at_the_same_point():
    land = Landscape(mlp(nn.Tanh()), DATA, "gaussian")
    part = land.restrict("2.*", "0.bias")
    assert part.packing.names == ("0.bias", "2.weight", "2.bias")
    assert part.dim == 6 + 14
    assert part.loss() == land.loss()
    torch.testing.assert_close(gradient(part), torch.cat([gradient(land)[24:30], gradient(land)[30:]]))
    assert part.restrict("2.bias").dim == 2
    assert Landscape(mlp(nn.Tanh()), DATA, "gaussian", params="2.*").packing == land.restrict("2.*").packing
    assert len({land.fingerprint(), part.fingerprint(), land.restrict("2.*").fingerprint()}) == 3


def test_at_takes_modules_names_and_vectors():
    model = mlp(nn.BatchNorm1d(6), nn.Tanh()).eval()
    land = Landscape(model, DATA, F.mse_loss)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(2)
        other[1].running_mean.add_(3)
    expected = F.mse_loss(other(X), Y).detach()
    for weights in (other, other.state_dict()):
        torch.testing.assert_close(land.at(weights).loss().float(), expected)
        torch.testing.assert_close(land.restrict("3.*").at(weights).loss().float(), expected)
    w = torch.zeros(land.dim)
    assert torch.equal(land.at(w).center, w)
    assert land.at(w).loss() == land.loss(w)
    assert land.at(w).fingerprint() != land.fingerprint() == land.at(land.center).fingerprint()


def test_works_without_gradients_in_inference_mode_and_with_another_default_dtype():
    expected = Landscape(mlp(nn.Tanh()), DATA, "gaussian").loss()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            land = Landscape(mlp(nn.Tanh()), DATA, "gaussian")
        assert land.loss() == expected
        assert torch.isfinite(gradient(land)).all()
    model = mlp(nn.Tanh())
    torch.set_default_dtype(torch.float64)
    try:
        assert Landscape(model, DATA, "gaussian").loss() == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_fingerprints_tell_landscapes_apart():
    def potential(power):
        return Landscape.of_function(lambda w: (w**power).sum(), torch.zeros(2))

    prints = [potential(2), potential(4), Landscape.of_function(lambda w: w.sum() ** 4, torch.zeros(2))]
    labels = torch.zeros(40, dtype=torch.long)
    prints += [Landscape(mlp(layer), DATA, F.mse_loss) for layer in (nn.Tanh(), nn.ReLU(), nn.LeakyReLU(0.1))]
    prints += [Landscape(mlp(nn.LeakyReLU(0.2)), DATA, loss) for loss in (F.mse_loss, nn.MSELoss(), F.l1_loss)]
    prints += [Landscape(mlp(), (X, labels), functools.partial(F.cross_entropy, label_smoothing=s)) for s in (0.1, 0.2)]
    prints += [Landscape(mlp(), (X, labels), nn.CrossEntropyLoss(label_smoothing=s)) for s in (0.1, 0.2)]
    assert len({land.fingerprint() for land in prints}) == len(prints)
    assert potential(2).fingerprint() == potential(2).fingerprint()
    land = Landscape(mlp(nn.Tanh()), DATA, F.mse_loss)
    assert pickle.loads(pickle.dumps(land)).fingerprint() == land.fingerprint()


def test_losses_that_rounding_left_do_not_couple_examples():
    """At a point that predicts its labels, each batch size rounds in its own way, as on a graphics card."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x @ self.w[:, None] + 1e-6 / len(x)

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    land = Landscape(Net(), (x, x.sum(1, keepdim=True)), "gaussian")
    assert "DATA502" not in [f.code for f in land.findings]


def test_few_values_are_read_from_the_device():
    """Each reading waits for a device: as many for a model of many layers as for one of few."""

    class Readings(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    counts = []
    for depth in (1, 12):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(depth)))
        with Readings() as readings:
            Landscape(model, (torch.randn(9, 3), torch.randn(9, 3)), "gaussian")
        counts.append(readings.count)
    assert counts[0] == counts[1] <= 8


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named_in_any_precision(bad):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).double(), nn.Linear(3, 3).bfloat16())
    with torch.no_grad():
        model[0].bias[1] = bad
        model[2].weight[1, 2] = bad
    with pytest.raises(InputError, match=r"\['0\.bias', '2\.weight'\]"):
        Landscape(model, (torch.randn(9, 3), torch.randn(9, 3)), "gaussian")


def test_an_empty_parameter_is_one_that_is_not_used():
    model = nn.Linear(3, 2)
    model.register_parameter("nothing", nn.Parameter(torch.empty(0)))
    land = Landscape(model, (torch.randn(9, 3), torch.randn(9, 2)), "gaussian")
    (unused,) = [f.message for f in land.findings if f.code == "MODEL502"]
    assert "nothing" in unused
    assert "weight" not in unused
    assert land.dim == 8


def test_in_coordinates_the_loss_is_that_of_the_weights_they_stand_for():
    net = nn.Linear(3, 1, bias=False).double()
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    land = Landscape(net, (x, y), "gaussian")
    scale = torch.tensor([1.0, 0.1, 2.0]).double()
    seen = land.in_coordinates(lambda z: land.center + scale * z)
    z = torch.randn(3).double()
    assert torch.equal(seen.center, torch.zeros(3).double())
    assert torch.equal(seen.loss(z), land.loss(land.center + scale * z))
    assert torch.equal(seen.losses(), land.losses())
    batch = next(iter(land.passes()))
    assert torch.equal(seen.batch_outputs(z, batch), land.batch_outputs(land.center + scale * z, batch))
    assert torch.allclose(seen.batch_gradient(z, batch), scale * land.batch_gradient(land.center + scale * z, batch))
    for ask in (lambda: seen.restrict("weight"), lambda: seen.at(z), lambda: seen.at(net)):
        with pytest.raises(InputError, match="other coordinates"):
            ask()


def test_other_data_and_labels_without_noise_leave_the_landscape_as_it_was():
    land = Landscape(nn.Linear(2, 1), (torch.randn(9, 2), torch.randn(9, 1)), "gaussian")
    part = land.with_data(Examples([land.data.take(torch.tensor([0, 3]))]))
    assert (part.n, land.n) == (2, 9)
    assert torch.equal(part.losses(), land.losses()[[0, 3]])
    assert land.without_noise().noise_free
    assert not land.noise_free
