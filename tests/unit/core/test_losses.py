"""Losses of any form: per-example values whose mean is the loss, and findings where it is not."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.core.landscape import Landscape
from crunode.errors import InputError

G = torch.Generator().manual_seed(1)
X = torch.randn(24, 4, generator=G)
CLASSES = torch.randint(0, 3, (24,), generator=G)
REAL = torch.randn(24, 3, generator=G)
COIN = torch.randint(0, 2, (24, 3), generator=G).float()
WEIGHT = torch.tensor([1.0, 2.0, 4.0])


def net(outputs=3):
    torch.manual_seed(0)
    return nn.Linear(4, outputs)


def codes(land):
    return [f.code for f in land.findings]


AGREE = {
    "cross entropy": (CLASSES, F.cross_entropy),
    "cross entropy module": (CLASSES, nn.CrossEntropyLoss()),
    "label smoothing": (CLASSES, nn.CrossEntropyLoss(label_smoothing=0.1)),
    "smoothing by partial": (CLASSES, functools.partial(F.cross_entropy, label_smoothing=0.1)),
    "unused ignore_index": (CLASSES, nn.CrossEntropyLoss(ignore_index=-100)),
    "mse": (REAL, F.mse_loss),
    "mse module": (REAL, nn.MSELoss()),
    "l1": (REAL, F.l1_loss),
    "huber": (REAL, nn.HuberLoss(delta=0.3)),
    "bce": (COIN, nn.BCEWithLogitsLoss()),
    "bce pos_weight": (COIN, nn.BCEWithLogitsLoss(pos_weight=WEIGHT)),
}


@pytest.mark.parametrize("case", AGREE)
def test_torch_losses_give_their_own_mean_and_one_value_per_example(case):
    target, loss = AGREE[case]
    model = net()
    land = Landscape(model, (X, target), loss)
    torch.testing.assert_close(land.loss().float(), loss(model(X), target).detach())
    assert land.losses().shape == (24,)
    assert codes(land) == []


IGNORED = CLASSES.masked_fill(torch.arange(24) % 3 == 0, -100)
DIFFER = {
    "class weights": (CLASSES, nn.CrossEntropyLoss(weight=WEIGHT)),
    "class weights by partial": (CLASSES, functools.partial(F.cross_entropy, weight=WEIGHT)),
    "ignored targets": (IGNORED, F.cross_entropy),
}


@pytest.mark.parametrize("case", DIFFER)
def test_a_mean_that_is_not_over_examples_is_told(case):
    target, loss = DIFFER[case]
    model = net()
    land = Landscape(model, (X, target), loss)
    options = {"weight": WEIGHT} if "weights" in case else {}
    plain = F.cross_entropy(model(X), target, reduction="none", **options).mean()
    torch.testing.assert_close(land.loss().float(), plain.detach())
    assert codes(land) == ["DATA503"]
    own = float(loss(model(X), target).detach())
    assert f"{own:.4g} by" in land.findings[0].message


def test_no_own_mean_no_comparison():
    assert codes(Landscape(net(), (X, CLASSES), nn.CrossEntropyLoss(weight=WEIGHT, reduction="sum"))) == []
    assert codes(Landscape(net(), (X, CLASSES), functools.partial(F.cross_entropy, reduction="sum"))) == []


def test_a_sum_asked_of_torch_still_gives_the_mean():
    a = Landscape(net(), (X, CLASSES), nn.CrossEntropyLoss(reduction="sum"))
    torch.testing.assert_close(a.loss(), Landscape(net(), (X, CLASSES), F.cross_entropy).loss())


def test_positions_are_averaged():
    model, target = nn.Conv1d(1, 3, 1), torch.randint(0, 3, (24, 4))
    land = Landscape(model, (X[:, None], target), F.cross_entropy)
    expected = F.cross_entropy(model(X[:, None]), target, reduction="none").mean(1)
    torch.testing.assert_close(land.losses(), expected.detach())


NAMED = {
    "gaussian": (REAL, lambda o, t: 0.5 * (o - t).square().sum(1)),
    "bernoulli": (COIN, lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none").sum(1)),
    "cross-entropy": (CLASSES, lambda o, t: F.cross_entropy(o, t, reduction="none")),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_losses(name):
    target, expected = NAMED[name]
    model = net()
    land = Landscape(model, (X, target), name)
    torch.testing.assert_close(land.losses(), expected(model(X), target).detach())


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
@pytest.mark.parametrize(("output", "target"), [((24,), (24,)), ((24,), (24, 1)), ((24, 1), (24,)), ((24, 1), (24, 1))])
def test_single_outputs_with_and_without_their_axis(name, output, target):
    model = net(1)
    shaped = nn.Sequential(model, nn.Flatten(0)) if output == (24,) else model
    values = COIN[:, :1]
    land = Landscape(shaped, (X, values.reshape(target)), name)
    torch.testing.assert_close(land.losses(), NAMED[name][1](model(X), values).detach())


def test_targets_that_broadcast_against_outputs_are_refused():
    for loss in (F.mse_loss, nn.MSELoss(), nn.SmoothL1Loss()):
        with pytest.raises(InputError, match=r"broadcast to \(24, 24\)"), pytest.warns(UserWarning, match="size"):
            Landscape(net(1), (X, REAL[:, 0]), loss)
    with pytest.raises(InputError, match="as many target values"):
        Landscape(net(2), (X, REAL), "gaussian")


class TinyTransformer(nn.Module):
    """Next-token logits of a causal transformer; its output as the caller wishes."""

    def __init__(self, form="tensor"):
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.embed = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, input_ids, attention_mask=None):
        padding = (
            None
            if attention_mask is None
            else torch.zeros(input_ids.shape).masked_fill(~attention_mask.bool(), float("-inf"))
        )
        hidden = self.block(self.embed(input_ids), src_mask=self.mask, src_key_padding_mask=padding)
        logits = self.head(hidden)
        forms = {"tensor": logits, "tuple": (logits, hidden), "dict": {"logits": logits}}
        return SimpleNamespace(logits=logits) if self.form == "object" else forms[self.form]


TOKENS = torch.randint(0, 11, (10, 6), generator=G)
MASK = (torch.arange(6) < torch.randint(2, 7, (10, 1), generator=G)).long()


def sequence_means(model, ids, keep):
    logits = model(ids, MASK if keep is not None else None)
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    weight = torch.ones_like(losses) if keep is None else keep[:, 1:].float()
    return ((losses * weight).sum(1) / weight.sum(1)).detach()


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict", "object"])
@pytest.mark.parametrize("data", [TOKENS, (TOKENS,), {"input_ids": TOKENS}], ids=["tensor", "tuple", "dict"])
def test_causal_language_models(form, data):
    land = Landscape(TinyTransformer(form), data, "causal-lm")
    torch.testing.assert_close(land.losses(), sequence_means(TinyTransformer().eval(), TOKENS, None))


def test_causal_language_models_leave_masked_positions_and_labels_out():
    expected = sequence_means(TinyTransformer().eval(), TOKENS, MASK)
    masked = Landscape(TinyTransformer(), {"input_ids": TOKENS, "attention_mask": MASK}, "causal-lm")
    torch.testing.assert_close(masked.losses(), expected)
    both = {"input_ids": TOKENS, "attention_mask": MASK, "labels": TOKENS.masked_fill(MASK == 0, -100)}
    torch.testing.assert_close(Landscape(TinyTransformer(), both, "causal-lm").losses(), expected)


@pytest.mark.parametrize("data", [(TOKENS, TOKENS), {"ids": TOKENS}], ids=["pair", "other name"])
def test_causal_language_models_refuse_what_could_mean_two_things(data):
    with pytest.raises(InputError, match="a mapping with input_ids"):
        Landscape(TinyTransformer(), data, "causal-lm")


def test_functions_of_model_and_batch_are_told_by_name_or_annotation():
    def by_name(net, batch):
        return (net(batch[0]) - batch[1]).square().sum(1)

    def by_hint(m: nn.Module, b):
        return by_name(m, b)

    def with_reduction(model, batch, reduction="mean"):
        losses = by_name(model, batch)
        return losses if reduction == "none" else losses.mean()

    class Criterion(nn.Module):
        def forward(self, model, batch):
            return by_name(model, batch)

    expected = Landscape(net(), (X, REAL), "gaussian").losses() * 2
    for loss in (by_name, by_hint, with_reduction, Criterion()):
        torch.testing.assert_close(Landscape(net(), (X, REAL), loss).losses(), expected)


def test_a_scalar_mean_is_accepted_but_not_where_single_losses_are_needed():
    land = Landscape(net(), (X, REAL), lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    assert not land.pointwise
    torch.testing.assert_close(land.loss(), Landscape(net(), (X, REAL), F.mse_loss).loss())
    with pytest.raises(InputError, match=r"expected one loss per example, got a scalar.*return a vector"):
        land.losses()


@pytest.mark.filterwarnings("ignore::crunode.DiagnosticWarning")
@pytest.mark.parametrize(("kernel", "layout"), [("MALA", "batched"), ("MALA", "sequential"), ("SGLD", "sequential")])
def test_a_scalar_mean_is_enough_for_llc(kernel, layout):
    kernel = cr.MALA(1e-4) if kernel == "MALA" else cr.SGLD(1e-4, 8)
    options = {"kernel": kernel, "layout": layout, "nbeta": 9.0, "precision": 1.0, "chains": 2, "draws": 5, "warmup": 1}
    scalar = cr.llc(net(), (X, REAL), lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), **options)
    single = cr.llc(net(), (X, REAL), F.mse_loss, **options)
    assert scalar.value == pytest.approx(single.value, rel=1e-3, abs=1e-5)


def test_a_loss_module_is_used_as_it_is_and_left_as_it_is():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, output, target):
            return self.scale * (output - target).square().mean(1)

    loss = Scaled().train()
    land = Landscape(net(), (X, REAL), loss)
    assert land.dim == 15
    assert loss.training
    assert loss.scale.requires_grad
    torch.testing.assert_close(land.loss(), 2 * Landscape(net(), (X, REAL), F.mse_loss).loss())


def test_half_precision_outputs_keep_their_losses_apart():
    land = Landscape(net().bfloat16(), (X.bfloat16(), REAL.bfloat16()), "gaussian")
    assert land.losses().dtype == torch.float32


BAD = {
    "unknown name": ("gausian", r"among \['bernoulli'.*did you mean 'gaussian'"),
    "wrong type": (3, "got int"),
    "class": (nn.MSELoss, "make an instance"),
    "returns float": (lambda model, batch: 1.0, "to return a real floating-point tensor.*got float"),
    "returns integers": (lambda model, batch: model(batch[0]).argmax(1), "got dtype torch.int64"),
    "wrong shape": (lambda model, batch: model(batch[0]), r"shape \(24,\).*got shape \(24, 3\)"),
    "too few": (lambda model, batch: model(batch[0])[:5, 0], r"got shape \(5,\)"),
    "sum": (lambda model, batch: model(batch[0]).square().sum(), "got a sum; divide by the batch size"),
    "other arguments": (lambda m, b: m(b[0]), "is used as loss"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_losses_are_refused(case):
    loss, message = BAD[case]
    with pytest.raises(InputError, match=message):
        Landscape(net(), (X, REAL), loss)


def test_a_sum_is_found_at_zero_loss_too():
    model = net()
    with pytest.raises(InputError, match="got a sum"):
        Landscape(model, (X, model(X)), lambda model, batch: (model(batch[0]) - batch[1]).square().sum())


def test_mappings_need_a_function_of_the_model():
    with pytest.raises(InputError, match=r"got a mapping; .*first argument called model"):
        Landscape(net(), {"x": X, "y": REAL}, F.mse_loss)
