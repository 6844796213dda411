"""The model's own predictions as labels: when they are taken, and what that changes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.examples import toys
from crunode.sampling.labels import choose_labels


def regression(noise=1.0, n=600, fitted=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=generator)
    net = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.randn(2, 4, generator=generator))
        y = net(x) + noise * torch.randn(n, 2, generator=generator)
        if fitted:
            net.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    return cr.Landscape(net, (x, y), "gaussian")


def test_own_labels_make_the_center_a_zero_of_the_divergence():
    land = regression()
    own = land.self_labelled()
    assert float(own.loss()) == 0.0
    w = land.center + 0.1 * torch.randn(land.dim, generator=torch.Generator().manual_seed(1))
    outputs = land.batch_outputs(w, next(iter(land.passes())))
    expected = 0.5 * (outputs - own.data.tensors()[1]).square().sum(1).mean()
    assert float(own.loss(w)) == pytest.approx(float(expected), rel=1e-6)
    assert float(land.loss()) > 0.5  # the landscape it came from is as it was
    assert own.fingerprint() != land.fingerprint()


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (F.cross_entropy, torch.arange(40) % 3),
        (nn.CrossEntropyLoss(), torch.arange(40) % 3),
        ("cross-entropy", torch.arange(40) % 3),
        ("bernoulli", (torch.arange(120).reshape(40, 3) % 2).float()),
        (F.binary_cross_entropy_with_logits, torch.linspace(0, 1, 120).reshape(40, 3)),
        (F.mse_loss, torch.linspace(-2, 2, 120).reshape(40, 3)),
        (nn.MSELoss(), torch.linspace(-2, 2, 120).reshape(40, 3)),
    ],
)
def test_the_center_is_a_minimum_of_every_loss_with_own_labels(loss, target):
    net = nn.Linear(2, 3).double()
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = target.double() if target.is_floating_point() else target
    own = cr.Landscape(net, (x, target), loss).self_labelled()
    assert float(own.batch_gradient(own.center, next(iter(own.passes()))).abs().max()) < 1e-12
    for k in range(3):
        away = torch.randn(own.dim, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        assert float(own.loss(own.center + away)) > float(own.loss())


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"),
        F.multi_margin_loss,
    ],
)
def test_losses_without_a_known_prediction_keep_the_given_labels(loss):
    land = cr.Landscape(nn.Linear(2, 3), (torch.randn(40, 2), torch.arange(40) % 3), loss)
    assert land.self_labelled() is None
    assert choose_labels(land).kind == "given"


@pytest.mark.heavy
def test_noise_around_the_truth_is_told_from_labels_that_were_fitted():
    true = [choose_labels(regression(seed=s), seed=s) for s in range(6)]
    fitted = [choose_labels(regression(fitted=True, seed=s), seed=s) for s in range(6)]
    assert [labels.kind for labels in true] == ["own"] * 6  # one in a thousand for each to fail
    assert [labels.kind for labels in fitted] == ["given"] * 6
    assert max(labels.ratio for labels in fitted) < 0.05
    assert all("had a part in w*" in labels.reason for labels in fitted)


def test_labels_that_disagree_and_labels_without_noise_are_kept():
    wrong = regression()
    assert choose_labels(wrong.at(wrong.center + 1.0)).kind == "given"
    clean = choose_labels(regression(noise=0.0))
    assert (clean.kind, clean.ratio) == ("given", None)
    assert choose_labels(toys.quadratic(3)).kind == "given"
    few = choose_labels(regression(n=79))
    assert (few.kind, few.ratio) == ("given", None)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_llc_with_noisy_labels_is_that_without_noise():
    options = {"chains": 8, "draws": 100, "warmup": 60, "seed": 0}
    noisy = cr.llc(regression(n=400), **options)
    clean = cr.llc(regression(n=400, noise=0.0), **options)
    assert noisy.value == pytest.approx(clean.value, rel=1e-3)
    assert noisy.value == pytest.approx(4.0, abs=3 * noisy.error)
    assert noisy.diagnostics["labels"]["kind"] == "own"
    assert "DATA504" in {f.code for f in noisy.findings}
    assert "DATA504" not in {f.code for f in clean.findings}


@pytest.mark.filterwarnings("ignore::crunode.errors.DiagnosticWarning")
def test_llc_follows_what_is_asked():
    land, options = regression(n=200), {"chains": 2, "draws": 20, "warmup": 10, "seed": 0}
    plain = cr.llc(land, nbeta="wbic", **options)
    assert plain.diagnostics["labels"] == {"kind": "given", "reason": "as asked", "ratio": None}
    own = cr.llc(land, nbeta="wbic", labels="own", **options)
    assert own.diagnostics["labels"]["kind"] == "own"
    with pytest.raises(cr.InputError, match="labels as 'given' or 'own'"):
        cr.llc(land, labels="true")
    with pytest.raises(cr.InputError, match="own labels"):
        cr.llc(toys.quadratic(2), labels="own")


class Unhashable:
    __hash__ = None

    def __call__(self, output, target, reduction="mean"):
        return F.mse_loss(output, target, reduction=reduction)


def test_ignored_examples_and_unhashable_losses_keep_the_given_labels():
    x, target = torch.linspace(-1, 1, 80).reshape(40, 2), torch.arange(40) % 3
    target[5] = -100
    assert cr.Landscape(nn.Linear(2, 3), (x, target), F.cross_entropy).self_labelled() is None
    assert cr.Landscape(nn.Linear(2, 3), (x, torch.zeros(40, 3)), Unhashable()).self_labelled() is None


def test_a_kernel_with_steps_for_a_ladder_can_be_used():
    assert choose_labels(regression(), kernel=cr.HMC(step=(1e-3, 1e-4, 1e-5))).kind == "own"
