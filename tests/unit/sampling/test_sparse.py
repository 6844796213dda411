"""Products over the non-zero entries of examples: used where they pay, and the same draws as with dense ones."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crunode.core.landscape import Landscape
from crunode.sampling.engine import Engine
from crunode.sampling.group import Group, run_group
from crunode.sampling.metropolis import MALA
from crunode.sampling.native import build, sparse
from crunode.sampling.posterior import Gaussian, Posterior, Rung
from crunode.sampling.replay import sparse as choice
from crunode.sampling.stochastic import SGLD

SOURCE = sparse._SOURCE
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-3}  # of how far chains move
COLUMNS, UNITS, BATCH = 80, 128, 128  # products just large enough


@pytest.fixture
def compiler(tmp_path):
    """A private folder, where a compiler is found."""
    if os.name != "posix" or not any(map(build.shutil.which, build.COMPILERS)):
        pytest.skip("no C compiler")
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def calls(monkeypatch):
    """Names of the compiled products that are called."""
    if sparse.why_not():
        pytest.skip(sparse.why_not())
    seen, run = [], sparse._run
    monkeypatch.setattr(sparse, "_run", lambda library, name, *rest: (seen.append(name), run(library, name, *rest)))
    return seen


def few_hot(most, dtype=torch.float32, rows=300, columns=COLUMNS):
    """Rows of at most so many non-zero entries, the first with none and the second with all of them."""
    generator = torch.Generator().manual_seed(0)
    order = torch.rand(rows, columns, generator=generator).argsort(1).argsort(1)
    count = torch.randint(most + 1, (rows, 1), generator=generator)
    count[:2, 0] = torch.tensor([0, most])
    return (order < count) * torch.randn(rows, columns, dtype=dtype, generator=generator)


def landscape(x, bias=True):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        columns = x.shape[1]
        model = nn.Sequential(nn.Linear(columns, UNITS, bias=bias), nn.Tanh(), nn.Linear(UNITS, 3)).to(x.dtype)
    return Landscape(model, (x, x[:, :3] + 1), F.mse_loss)


def group(x, chains=(0, 1, 5), kernel=None, bias=True):
    posterior = Posterior(landscape(x, bias), 20.0, Gaussian(2.0))
    layout = "batched" if len(chains) > 1 else "sequential"
    rungs = [Rung(20.0 + c, 2.0, 1e-3) for c in chains]
    return Group(posterior, kernel or SGLD(1e-3, BATCH), 0, chains, rungs, 3, 12, 11, layout, ("positions",))


def assert_same_draws(ours, theirs, dtype):
    for name, value in theirs.items():
        spread = float(np.abs(value - value[:, :1]).max())
        assert spread > 0
        assert float(np.abs(ours[name] - value).max()) < TOLERANCE[dtype] * spread, name


@pytest.mark.heavy
@pytest.mark.parametrize("chains", [(0, 1, 5), (5,)], ids=["batched", "sequential"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", [SGLD(1e-3, BATCH), MALA(1e-3)], ids=["minibatches", "all data"])
def test_same_chain_as_without(calls, monkeypatch, chains, dtype, bias, kernel):
    job = group(few_hot(3, dtype), chains, kernel, bias)
    ours = run_group(job).arrays
    assert set(calls) == {"rows", "columns"}
    calls.clear()
    monkeypatch.setattr(sparse, "_library", lambda: (None, "no compiler"))
    assert_same_draws(ours, run_group(job).arrays, dtype)
    assert calls == []


def test_chains_are_the_same_in_any_layout(calls):
    x = few_hot(3, torch.float64)
    together = run_group(group(x)).arrays
    for k, chain in enumerate((0, 1, 5)):
        calls.clear()
        alone = run_group(group(x, (chain,))).arrays
        assert "columns" in calls
        assert_same_draws({name: value[k : k + 1] for name, value in together.items()}, alone, torch.float64)


def test_chains_with_examples_of_their_own(calls, monkeypatch):
    x = few_hot(3, torch.float64)
    each = [landscape(part) for part in x.split(100)]
    job = replace(group(x[:100], (0, 1, 2), MALA(1e-3)), each=each)
    ours = run_group(job).arrays
    assert set(calls) == {"rows", "columns"}
    monkeypatch.setattr(sparse, "_library", lambda: (None, "no compiler"))
    assert_same_draws(ours, run_group(job).arrays, torch.float64)


def test_rows_just_above_the_limit_stay_dense(calls):
    most = max(k for k in range(COLUMNS) if choice.pays(BATCH, COLUMNS, UNITS, k))
    assert 2 < most < COLUMNS // 4
    run_group(group(few_hot(most)))
    assert calls
    calls.clear()
    run_group(group(few_hot(most + 1)))
    assert calls == []


def test_one_row_of_all_examples_decides(calls):
    x = few_hot(3)
    x[-1] = 1
    run_group(group(x))
    assert calls == []


def test_small_products_stay_dense(calls):
    run_group(replace(group(few_hot(3)), kernel=SGLD(1e-3, 16)))
    run_group(group(few_hot(2, columns=20)))
    assert calls == []


@pytest.mark.parametrize("threads", [1, 2, 64])
def test_dense_products_are_as_much_faster_as_there_are_threads(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert choice.pays(128, 106, 512, 2) == (threads < 64)
    assert choice.pays(128, 106, 512, 20) == (threads < 2)


def test_a_layer_met_twice_and_examples_in_other_places(calls):
    """The examples also enter transposed, with weights stored the other way round, and in ways that are no products."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(COLUMNS, UNITS)), nn.Parameter(torch.randn(UNITS, COLUMNS))

        def forward(self, x):
            return (x @ self.a) * (self.b @ x.mT).mT + x.sum(-1, keepdim=True) * (x.relu() @ self.a)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model().double()
    x = few_hot(3, torch.float64)
    land = Landscape(model, (x, torch.zeros(300, UNITS, dtype=x.dtype)), F.mse_loss)
    w, results = torch.stack([land.center, 2 * land.center]), []
    for dense in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if dense:
                patch.setattr(sparse, "_library", lambda: (None, "no compiler"))
            posterior = Posterior(land, nbeta=1.0, prior=Gaussian(1.0))
            engine = Engine(posterior, [0, 1], torch.ones(2), seed=0, batch=BATCH, layout="batched")
            with torch.no_grad():
                results.append([tensor for step in range(3) for tensor in engine.at_step(step)(w)])
            assert engine.why_not_replayed == ""
    assert calls
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("n += x[d] != 0", "n += x[d] > 0"),
        ("sums[k] += value", "sums[k] = value"),
        ("row[k] += value", "row[k] = value"),
        ("memset(block", "if (0) memset(block"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(compiler, tmp_path, monkeypatch, right, wrong):
    text = SOURCE.read_text()
    assert right in text
    other = tmp_path / "sparse.c"
    other.write_text(text.replace(right, wrong))
    monkeypatch.setattr(sparse, "load", lambda source: build.load(other, compiler))
    assert sparse._library.__wrapped__() == (None, "compiled products give another result")


def test_without_a_compiler_or_with_one_that_fails(compiler, tmp_path, monkeypatch):
    broken = tmp_path / "broken.c"
    broken.write_text("void rows_float32(")
    monkeypatch.setattr(sparse, "load", lambda source: build.load(broken, compiler))
    library, why = sparse._library.__wrapped__()
    assert library is None
    assert "failed" in why
    monkeypatch.setattr(sparse, "_library", lambda: (library, why))
    assert sparse.why_not() == why
    assert np.isfinite(run_group(group(few_hot(3))).arrays["excess"]).all()
    x = torch.eye(3)
    with pytest.raises(RuntimeError, match="no compiled products"):
        sparse.product_xw(x, x, torch.empty(sparse.scratch_size(x), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("x", "w", "why"),
    [
        (torch.ones(4, 6), torch.ones(5, 3), "shapes"),
        (torch.ones(2, 4, 6), torch.ones(6, 3), "shapes"),
        (torch.ones(2, 2, 4, 6), torch.ones(2, 2, 6, 3), "shapes"),
        (torch.ones(6, 4).mT, torch.ones(6, 3), "next to each other"),
        (torch.ones(4, 6), torch.ones(12, 6)[::2, ::2], "next to each other"),
        (torch.ones(4, 6), torch.ones(6, 3).double(), "dtype"),
        (torch.ones(4, 6).half(), torch.ones(6, 3).half(), "dtype"),
    ],
)
def test_refusals(calls, x, w, why):
    with pytest.raises(RuntimeError, match=why):
        sparse.product_xw(x, w, torch.empty(1 << 16, dtype=torch.uint8))


def test_a_scratch_space_that_is_too_small(calls):
    x = torch.eye(3)
    with pytest.raises(RuntimeError, match="scratch"):
        sparse.product_xw(x, x, torch.empty(sparse.scratch_size(x) - 1, dtype=torch.uint8))
