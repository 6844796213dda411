"""Products over non-zero entries: equal to dense ones for any sizes, chains, strides and examples."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from crunode.core.landscape import Landscape
from crunode.sampling.engine import Engine
from crunode.sampling.evaluate import Evaluator
from crunode.sampling.native import sparse
from crunode.sampling.posterior import Flat, Posterior
from crunode.sampling.replay import sparse as choice

pytestmark = pytest.mark.skipif(bool(sparse.why_not()), reason=sparse.why_not())
dtypes = st.sampled_from(list(sparse.DTYPES))


def examples(generator, shape, density, dtype):
    """Entries of any sign, most of them zero; rows of nothing but zeros and of none come up too."""
    rows = torch.rand((*shape[:-1], 1), generator=generator)
    kept = torch.rand(shape, generator=generator) < torch.where(rows < 0.1, 0, torch.where(rows > 0.95, 1, density))
    return torch.randn(shape, generator=generator, dtype=dtype) * kept


@settings(max_examples=60)
@given(
    chains=st.sampled_from([(), (1,), (3,)]),
    shared=st.booleans(),
    rows=st.integers(1, 9),
    columns=st.integers(1, 150),
    units=st.integers(1, 200),
    density=st.floats(0, 1),
    dtype=dtypes,
    straight=st.tuples(st.booleans(), st.booleans()),
    padding=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_equal_to_dense_products(chains, shared, rows, columns, units, density, dtype, straight, padding, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):  # a part of wider rows, so that these do not follow one another in memory
        return torch.randn(*chains, *shape[:-1], shape[-1] + padding, dtype=dtype, generator=generator)[
            ..., : shape[-1]
        ]

    x = examples(generator, (*chains, rows, columns + padding), density, dtype)[..., :columns]
    if shared and chains:
        x = x[:1].expand(*chains, -1, -1)
    w = random(columns, units) if straight[0] else random(units, columns).mT
    y = random(rows, units) if straight[1] else random(units, rows).mT
    scratch = torch.empty(sparse.scratch_size(x), dtype=torch.uint8)
    scale = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    cases = (
        (sparse.product_xw, x, w, random(rows, units)),
        (sparse.product_xt_y, x.mT, y, random(columns, units)),
        (sparse.product_yt_x, y.mT, x, random(units, columns)),
    )
    for product, a, b, into in cases:
        wanted = a @ b
        bound = scale * (a.abs() @ b.abs() + 1e-30)
        made = product(a, b, scratch, out=into.fill_(torch.nan))
        assert made is into
        for result in (made, product(a, b, scratch)):
            assert result.shape == wanted.shape
            assert bool(((result - wanted).abs() <= bound).all())


def test_what_is_not_finite_is_not_passed_over():
    x = torch.zeros(3, 40, dtype=torch.float64)
    x[0, 3], x[1, 7], x[2, 39] = torch.nan, torch.inf, -0.0
    made = sparse.product_xw(
        x, torch.ones(40, 70, dtype=x.dtype), torch.empty(sparse.scratch_size(x), dtype=torch.uint8)
    )
    assert torch.equal(made[:, 0].isnan(), torch.tensor([True, False, False]))
    assert torch.equal(made[:, 69].isinf(), torch.tensor([False, True, False]))


@settings(max_examples=25)
@given(
    columns=st.integers(17, 70),  # fewer are kept feature by feature
    units=st.integers(5, 70),
    outputs=st.integers(5, 70),
    density=st.floats(0, 0.15),
    dtype=dtypes,
    chains=st.sampled_from([[4], [0, 2, 3]]),
    batch=st.sampled_from([7, None]),
    bias=st.booleans(),
    sequence=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_gradients_are_those_of_a_plain_evaluation(
    columns, units, outputs, density, dtype, chains, batch, bias, sequence, seed
):
    """Of any sizes: what decides whether such a product pays is left out."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(columns, units, bias), nn.Tanh(), nn.Linear(units, outputs, bias)).to(dtype)
    x = examples(generator, (20, *([2] if sequence else []), columns), density, dtype)
    land = Landscape(model, (x, x[..., :1].expand(*x.shape[:-1], outputs).clone()), F.mse_loss)
    point = land.center + 0.1 * torch.randn(len(chains), land.dim, dtype=dtype, generator=generator)
    layout = "batched" if len(chains) > 1 else "sequential"
    results, called, run = [], [], sparse._run
    for plain in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choice, "_SMALL", 0)
            patch.setattr(choice, "pays", lambda *_: True)
            patch.setattr(sparse, "_run", lambda *given: (called.append(given[1]), run(*given)))
            if plain:
                patch.setattr(Evaluator, "_recorded", lambda *_: None)
            posterior = Posterior(land, nbeta=3.0, prior=Flat())
            engine = Engine(posterior, chains, torch.full((len(chains),), 3.0), seed=1, batch=batch, layout=layout)
            with torch.no_grad():
                results.append([tensor for step in range(2) for tensor in engine.at_step(step)(point * (1 + step))])
            assert plain or engine.why_not_replayed == ""
    few = choice.most_nonzero(x) <= (columns - 1) // 4
    assert set(called) == ({"rows", "columns"} if few else set())
    for ours, theirs in zip(*results, strict=True):
        tolerance = 1e3 * torch.finfo(dtype).eps
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * (1 + float(theirs.abs().max())))
