"""Replaying recorded operations: the same results as without, for any module, or a refusal."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crunode.core.landscape import Landscape
from crunode.sampling.engine import Engine
from crunode.sampling.evaluate import Evaluator
from crunode.sampling.posterior import Flat, Gaussian, Posterior
from crunode.sampling.replay.tape import Untapeable, record


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return self.second(torch.tanh(self.first(x) + self.shift))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.query, self.out = nn.Embedding(7, 8), nn.Linear(8, 24), nn.Linear(8, 7)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids):
        q, k, v = self.query(self.norm(self.embed(ids))).chunk(3, -1)
        mask = torch.ones(ids.shape[-1], ids.shape[-1], dtype=torch.bool).tril()
        scores = (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf)
        return self.out(torch.softmax(scores, -1) @ v)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        y = self.linear(x)
        return y if float(y.detach().mean()) > 0 else 2 * y


def _bce(output, target):
    return F.binary_cross_entropy_with_logits(output, target, reduction="none").sum(-1)


def _scalar(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def _cases():
    torch.manual_seed(0)
    x, y, label = torch.randn(24, 3), torch.randn(24, 3), torch.randint(4, (24,))
    image, ids = torch.randn(24, 1, 6, 6), torch.randint(7, (24, 5))
    wide = nn.Sequential(nn.Linear(3, 40), nn.ReLU(inplace=True), nn.Linear(40, 4))
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)).eval()
    frozen = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    frozen[0].requires_grad_(False)
    half = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3))
    half[0].bfloat16()
    return {
        "linear": (nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 3, bias=False)), (x, y), F.mse_loss),
        "tied": (Tied(), (x, y), "gaussian"),
        "wide": (wide, (x, label), F.cross_entropy),
        "conv": (conv, (image, label), F.cross_entropy),
        "attention": (Attention(), ids, "causal-lm"),
        "frozen": (frozen, (x, y), F.smooth_l1_loss),
        "scalar": (nn.Linear(3, 3), (x, y), _scalar),
        "double": (nn.Linear(3, 3).double(), (x.double(), y.double()), F.mse_loss),
        "logits": (nn.Linear(3, 3), (x, (y > 0).float()), _bce),
        "unused": (Unused(), (x, y), F.mse_loss),
    }


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.used(x)


CASES = _cases()


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", ["batched", "sequential"])
@pytest.mark.parametrize("batch", [8, None])
def test_replay_equals_plain(name, layout, batch, monkeypatch):
    land = Landscape(*CASES[name])
    posterior = Posterior(land, nbeta=10.0, prior=Gaussian(precision=1.0))
    chains = [0, 1, 2] if layout == "batched" else [1]
    nbeta = torch.tensor([10.0, 20.0, 30.0])[: len(chains)]
    generator = torch.Generator().manual_seed(3)
    w = land.center + 0.1 * torch.randn(len(chains), land.dim, generator=generator, dtype=land.center.dtype)
    results = []
    for recorded in (True, False):
        if not recorded:
            monkeypatch.setattr(Evaluator, "_recorded", lambda *_: None)
        engine = Engine(posterior, chains, nbeta, seed=0, batch=batch, layout=layout)
        with torch.no_grad():
            results.append([engine.at_step(step)(w + 0.1 * step) for step in range(3)])
        if recorded:
            assert engine.why_not_replayed == ""
    for replayed, plain in zip(*results, strict=True):
        for a, b in zip(replayed, plain, strict=True):
            assert a.is_contiguous()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))


def test_results_belong_to_the_caller():
    land = Landscape.of_function(lambda w: w.sum().square() + 3 * w[0], torch.zeros(3, dtype=torch.float64))
    engine = Engine(
        Posterior(land, nbeta=1.0, prior=Gaussian(precision=1.0)),
        [0, 1],
        torch.ones(2),
        seed=0,
        batch=None,
        layout="batched",
    )
    w = torch.ones(2, 3, dtype=torch.float64)
    with torch.no_grad():
        first = engine(w)[0].clone()
        engine(w)[0].zero_()
        assert torch.equal(engine(w)[0], first)


def test_branches_are_not_replayed_but_work():
    land = Landscape(Branch(), (torch.randn(8, 3), torch.zeros(8, 1)), F.mse_loss)
    engine = Engine(Posterior(land, nbeta=1.0, prior=Flat()), [0], torch.ones(1), seed=0, batch=4, layout="sequential")
    with torch.no_grad():
        gradient, _ = engine(land.center[None].clone())
    assert torch.isfinite(gradient).all()
    assert "depends on values" in engine.why_not_replayed


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: (x * torch.rand(3),), "chance"),
        (lambda x: (x.add_(1),), "outlives"),
        (lambda x: (x[x > 0],), "values"),
    ],
)
def test_refusals(fn, why):
    with pytest.raises(Untapeable, match=why):
        record(fn, torch.ones(3))


def test_operations_in_place_are_kept():
    def fn(x):
        y = torch.zeros(4, 3)
        y[1:3] = x
        y[2].mul_(2)
        return y.sum(0), y

    x = torch.randn(2, 3)
    replay = record(fn, torch.ones(2, 3), narrow=32)
    for a, b in zip(replay(x), fn(x), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(replay(2 * x), fn(2 * x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(3, 200, 150), (200, 150)])
def test_large_results_lie_in_standing_memory(shape):
    def fn(w, x):
        product = x @ w
        return torch.cat([product.flatten(-2), product.cos().flatten(-2), x.flatten(-2)], -1), product.sum()

    w, x = torch.randn(*shape[:-2], 150, 150), torch.randn(*shape)
    new, same = record(fn, w, x), record(fn, w, x, overwrite=True)
    for replay in (new, same):
        for factor in (1, 2):
            for a, b in zip(replay(factor * w, x), fn(factor * w, x), strict=True):
                torch.testing.assert_close(a, b)
    assert same(w, x)[0].data_ptr() == same(2 * w, x)[0].data_ptr()
    first = new(w, x)[0]
    before = first.clone()
    new(2 * w, x)
    assert torch.equal(first, before)


def test_views_follow_the_arguments():
    """Replayed on the same memory with other content, on other memory, and on memory that was given back."""
    w, x = torch.randn(12, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def fn(w, x):
        first, second = w[:9].reshape(3, 3), w[9:]
        return torch.cat([(x @ first).sum(0), second * 2]), (x @ first @ second).square().sum()

    replay = record(fn, w, x)
    for k in range(6):
        point, rows = (w.mul_(1.1), x) if k % 2 else (torch.randn_like(w), torch.randn_like(x))
        for made, wanted in zip(replay(point, rows), fn(point, rows), strict=True):
            assert torch.allclose(made, wanted)


@pytest.mark.parametrize("shape", [(40, 3), (5, 40, 3), (2, 5, 40, 3), (40, 33), (3, 40), (40, 1)])
@pytest.mark.parametrize("axis", [-1, 0])
def test_softmax_over_few_classes(shape, axis):
    """Rearranged where classes come last and are few, left alone otherwise, and equal either way."""

    def fn(w, x):
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            value = F.log_softmax(w * x, axis)[..., 0].sum()
            return torch.autograd.grad(value, w)[0], value.detach()

    w, x = torch.randn(2, *shape, dtype=torch.float64)
    replay = record(fn, w, x, narrow=32)
    for point in (w, 2 * w):
        for made, wanted in zip(replay(point, x), fn(point, x), strict=True):
            torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("columns", [2, 10, 33])
@pytest.mark.parametrize("bias", [(), (1,), (40, 1)])
def test_products_with_a_narrow_result_and_a_bias(columns, bias):
    def fn(b, x, w):
        return (torch.addmm(b, x, w).exp(),)

    shape = (*bias[:-1], columns) if bias else ()
    # In double precision: exp makes more of the rounding of large sums than the comparison allows for.
    b, x, w = (torch.randn(size, dtype=torch.float64) for size in (shape, (40, 7), (7, columns)))
    replay = record(fn, b, x, w, narrow=32)
    for factor in (1, 2):
        torch.testing.assert_close(replay(factor * b, x, w), fn(factor * b, x, w))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("factor", [2.0, -3, 0.0])
def test_a_number_meets_what_multiplies_after_it(dtype, factor):
    def fn(x, y):
        return x * (y * factor), (y * factor) * x, (y * factor).sum()

    x, y = torch.randn(4, 3, dtype=torch.float64), torch.arange(3).to(dtype)
    x[0, 0] = torch.inf
    replay = record(fn, x, y)
    for point in (x, x.flip(0)):
        for made, wanted in zip(replay(point, y), fn(point, y), strict=True):
            torch.testing.assert_close(made, wanted, equal_nan=True)
