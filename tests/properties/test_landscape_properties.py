"""What holds for any data and any parameters: forms of data agree, vectors and results come back as they went."""

import itertools
import json

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from crunode.core.data import as_examples
from crunode.core.landscape import Landscape
from crunode.core.params import Packing
from crunode.core.result import Estimate, Finding
from crunode.errors import FINDINGS

SEEDS = st.integers(0, 2**31)


def example(seed, n):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, 3, generator=g), torch.randn(n, 2, generator=g)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
    return model, x, y


@settings(max_examples=25)
@given(
    seed=SEEDS,
    n=st.integers(1, 40),
    batch=st.integers(1, 45),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    cuts=st.lists(st.integers(1, 39), max_size=3),
)
def test_forms_batch_sizes_and_orders_of_data_give_the_same_loss(seed, n, batch, shuffle, drop_last, cuts):
    model, x, y = example(seed, n)
    land = Landscape(model, (x, y), "gaussian")
    edges = sorted({0, n, *(c for c in cuts if c < n)})
    parts = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    forms = [
        parts,
        DataLoader(TensorDataset(x, y), batch, shuffle=shuffle, drop_last=drop_last and not shuffle),
        TensorDataset(x, y),
        (x[order].numpy(), y[order].numpy()),
    ]
    for form in forms:
        other = Landscape(model, form, "gaussian")
        assert other.n == n
        torch.testing.assert_close(other.loss(), land.loss(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(other.losses().sort().values, land.losses().sort().values, rtol=1e-4, atol=1e-5)


@settings(max_examples=50)
@given(n=st.integers(1, 60), sizes=st.lists(st.integers(1, 70), min_size=1, max_size=3))
def test_passes_of_any_size_give_every_example_once_in_order(n, sizes):
    examples = as_examples(torch.arange(n))
    for size in sizes:
        assert torch.cat(list(examples.passes(size))).tolist() == list(range(n))


SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


@settings(max_examples=100)
@given(seed=SEEDS, kinds=st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=5))
def test_parameters_come_back_from_the_vector_as_they_went(seed, kinds):
    g = torch.Generator().manual_seed(seed)
    params = {f"p{k}": torch.randn(shape, generator=g).to(dtype) for k, (shape, dtype) in enumerate(kinds)}
    packing = Packing.of(params)
    flat = packing.ravel(params)
    assert flat.shape == (packing.dim,) == (sum(p.numel() for p in params.values()),)
    back = packing.unravel(flat)
    assert list(back) == list(params)
    for name, value in params.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)
    assert torch.equal(packing.ravel(back), flat)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.text(max_size=5), PLAIN, max_size=3)
FOUND = st.builds(Finding.of, st.sampled_from(sorted(FINDINGS)), st.text(max_size=10))
ESTIMATES = st.builds(
    Estimate,
    name=st.text(min_size=1, max_size=8),
    value=NUMBERS,
    se=NUMBERS.map(abs),
    systematic=NUMBERS.map(abs),
    findings=st.lists(FOUND, max_size=3).map(tuple),
    spec=MAPPINGS,
    seed=st.none() | st.integers(0, 2**53),
    diagnostics=MAPPINGS,
    terms=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
    provenance=MAPPINGS,
)


@settings(max_examples=100)
@given(estimate=ESTIMATES)
def test_estimates_come_back_from_their_dictionary_as_they_went(estimate):
    content = json.loads(json.dumps(estimate.to_dict()))
    back = Estimate.from_dict(content)
    assert back == estimate
    assert back.ok == content["ok"]
    assert str(back) == str(estimate)
