"""`sample()`: what is recorded, what is refused, how it fails, and what a run folder holds it to."""

import shutil
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.errors import EstimationError, InputError, StoreMismatch
from crunode.estimators.coefficient import llc
from crunode.sampling.metropolis import HMC, MALA
from crunode.sampling.posterior import Flat, Gaussian, Posterior
from crunode.sampling.run import sample
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT
from crunode.store.run_store import RunStore

SIZE = {"chains": 2, "draws": 30, "warmup": 20}
STABLE = SGLD(1e-3, 16)
# Twice the largest stable step on this loss: overflows double precision within some thousand steps.
UNSTABLE = SGLD(1.0, 64)


def regression(weight=0.0, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    nn.init.constant_(model.weight, 1.0 + weight)
    return Landscape(model, (x, x.sum(1, keepdim=True) + shift), "gaussian")


def target(nbeta=20.0, **options):
    return Posterior(regression(**options), nbeta, Gaussian(1.0))


def same(one, other):
    return all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


class Interrupted(Exception):
    """What stops a run in these tests."""


class StopAfter:
    """An observable that ends the run at its k-th call."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, landscape, w):
        self.left -= 1
        if self.left < 0:
            raise Interrupted
        return w.sum()


# What is recorded


@pytest.mark.parametrize("kernel", [STABLE, HMC(1e-3, leaps=2)], ids=repr)
def test_warmup_is_apart(kernel):
    draws = sample(target(), kernel, **SIZE)
    assert draws.arrays["excess"].shape == (2, 30)
    assert draws.warmup["excess"].shape == (2, 20)
    assert draws.draws == 30
    longer = sample(target(), kernel, **{**SIZE, "draws": 50, "warmup": 0})
    if isinstance(kernel, SGLD):  # the same chain, cut elsewhere
        joined = np.concatenate([draws.warmup["excess"], draws.arrays["excess"]], axis=1)
        np.testing.assert_array_equal(joined, longer.arrays["excess"])
    assert longer.warmup == {}


def test_warmup_enters_no_estimate():
    land = regression()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = sample(Posterior(land, 20.0, Gaussian(1.0)), HMC(1e-2, leaps=4), **SIZE)
        value = llc(drawn).value
        poisoned = {name: np.full_like(array, 1e6) for name, array in drawn.warmup.items()}
        other = type(drawn)(drawn.arrays, poisoned, drawn.nbeta, drawn.spec)
        assert llc(other).value == value
    assert value == pytest.approx(float((20.0 * drawn.arrays["excess"]).mean()))


def test_ladder_bookkeeping():
    levels = (5.0, 80.0, 20.0)
    steps = (4e-3, 5e-4, 1e-3)
    draws = sample(target(levels), SGLD(steps, 64), **SIZE)
    np.testing.assert_array_equal(draws.nbeta, [5, 5, 80, 80, 20, 20])
    assert draws.spec["nbeta_per_chain"] == draws.nbeta.tolist()
    assert draws.spec["kernel"]["step"] == list(steps)
    assert draws.levels() == [5, 20, 80]
    np.testing.assert_array_equal(draws.at(80.0)["excess"], draws.arrays["excess"][2:4])
    # A level gives what it gives alone, for the chains that have the same identity.
    alone = sample(target(5.0), SGLD(steps[0], 64), **SIZE)
    np.testing.assert_allclose(draws.at(5.0)["excess"], alone.arrays["excess"], rtol=1e-9)


def test_first_draw_without_warmup_is_the_center():
    draws = sample(target(), STABLE, chains=2, draws=3, warmup=0, keep=["positions"])
    np.testing.assert_array_equal(draws.arrays["positions"][:, 0], 1.0)
    np.testing.assert_allclose(draws.arrays["excess"][:, 0], 0.0, atol=1e-15)  # two ways to sum the same
    np.testing.assert_array_equal(draws.arrays["distance2"][:, 0], 0.0)


@pytest.mark.parametrize("kernel", [SGLD(1e-3, 64), PSGLD(1e-3, 64), SGHMC(1e-3, 64), SGNHT(1e-3, 64), MALA(1e-3)])
def test_everything_recorded_belongs_to_the_same_position(kernel):
    land = regression()
    draws = sample(Posterior(land, 20.0, Gaussian(1.0)), kernel, keep=["positions", "pointwise"], **SIZE).arrays
    w = torch.from_numpy(draws["positions"])
    losses = np.array([[float(land.loss(row)) for row in chain] for chain in w])
    np.testing.assert_allclose(draws["excess"], losses - float(land.loss()), atol=1e-12)
    np.testing.assert_allclose(draws["pointwise"].mean(2), losses, atol=1e-12)
    np.testing.assert_allclose(draws["distance2"], ((draws["positions"] - 1) ** 2).sum(2), atol=1e-12)


def test_observe_sees_landscape_and_position():
    seen = {"norm": lambda land, w: w.norm(), "pair": lambda land, w: torch.stack([w[0], land.loss(w)])}
    draws = sample(target(), STABLE, observe=seen, keep=["positions"], **SIZE)
    np.testing.assert_allclose(draws.arrays["norm"], np.linalg.norm(draws.arrays["positions"], axis=2))
    assert draws.arrays["pair"].shape == (2, 30, 2)
    np.testing.assert_array_equal(draws.arrays["pair"][:, :, 0], draws.arrays["positions"][:, :, 0])
    assert "norm" not in draws.warmup


def test_pointwise_needs_pointwise_losses():
    model = nn.Linear(3, 1)
    land = Landscape(model, torch.ones(8, 3), lambda model, batch: model(batch).square().mean())
    with pytest.raises(InputError, match="one loss per example"):
        sample(Posterior(land, 1.0, Gaussian(1.0)), STABLE, keep=["pointwise"])


@pytest.mark.heavy
def test_compiled_gives_the_same_draws():
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler")
    size = {"chains": 2, "draws": 5, "warmup": 2, "layout": "batched"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = sample(target(), STABLE, compiled=True, **size)
    np.testing.assert_allclose(compiled.arrays["excess"], sample(target(), STABLE, **size).arrays["excess"], rtol=1e-6)


# What is refused


@pytest.mark.parametrize("name", ["chains", "draws", "warmup"])
@pytest.mark.parametrize("value", [-1, 0, 2.0, True, "4", float("nan")])
def test_counts(name, value):
    if (name, value) == ("warmup", 0) and value is not False:
        return
    with pytest.raises(InputError, match=f"expected {name} as a whole number"):
        sample(target(), STABLE, **{name: value})


@pytest.mark.parametrize("seed", [-1, 1.0, True, None])
def test_seed(seed):
    with pytest.raises(InputError, match="expected seed"):
        sample(target(), STABLE, seed=seed)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "wibc"])
def test_nbeta_and_precision(value):
    with pytest.raises(InputError, match="nbeta"):
        Posterior(regression(), value)
    with pytest.raises(InputError, match="precision"):
        Gaussian(value)


@pytest.mark.parametrize("value", [0, -1e-3, float("nan"), float("inf"), True, (1e-3, 0.0)])
@pytest.mark.parametrize("kind", [SGLD, PSGLD, SGHMC, SGNHT, MALA, HMC])
def test_step(kind, value):
    with pytest.raises(InputError, match="step"):
        kind(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "parallel"}, "expected layout"),
        ({"keep": ["position"]}, "expected keep"),
        ({"kernel": SGLD((1e-3, 1e-4), 16)}, "one step for each"),
    ],
)
def test_options(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        sample(target(), **{"kernel": STABLE, "store": tmp_path / "run", **SIZE, **options})
    assert not (tmp_path / "run").exists()


# How it fails


def test_diverged_chain_raises_with_what_there_was():
    with pytest.raises(EstimationError, match="MC204") as caught:
        sample(target(), UNSTABLE, chains=2, draws=3000, warmup=10)
    partial = caught.value.partial
    assert partial.warmup["excess"].shape == (2, 10)
    assert 0 < partial.draws < 3000
    assert [f.code for f in partial.findings] == ["LLC105", "MC204"]


@pytest.mark.heavy
@pytest.mark.parametrize("layout", ["batched", "sequential"])
def test_survivors_are_no_answer(layout):
    kernel = SGLD((1e-3, 1.0), 64)
    options = {"kernel": kernel, "nbeta": (2.0, 20.0), "precision": 1.0, "layout": layout, "chains": 2}
    failed = llc(regression(), draws=2000, warmup=10, on_failure="return", **options)
    assert np.isnan(failed.value)
    assert not failed.ok
    assert "MC204" in [f.code for f in failed.findings]
    with pytest.raises(EstimationError, match="MC204") as caught:
        llc(regression(), draws=2000, warmup=10, **options)
    assert np.isnan(caught.value.partial.value)


@pytest.mark.parametrize("last", [False, True], ids=["midway", "at the end"])
def test_diverged_run_in_a_folder_stays_failed(tmp_path, last):
    draws = 3000
    if last:  # so that nothing is left to be sampled when the run is started again
        with pytest.raises(EstimationError) as caught:
            sample(target(), UNSTABLE, chains=2, draws=draws, warmup=0)
        draws = caught.value.partial.draws
    for _ in range(3):
        with pytest.raises(EstimationError, match="MC204"):
            sample(target(), UNSTABLE, chains=2, draws=draws, warmup=0, store=tmp_path / "run")
        assert RunStore.open(tmp_path / "run").status == "failed"


# Run folders


def test_folder_returns_the_same_without_sampling(tmp_path):
    first = sample(target(), STABLE, store=tmp_path / "run", **SIZE)
    assert same(first, sample(target(), STABLE, **SIZE))
    stamp = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    again = sample(target(), STABLE, store=tmp_path / "run", executor=Untouched(), **SIZE)
    assert same(first, again)
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == stamp
    assert [f.code for f in again.findings] == [f.code for f in first.findings]


class Untouched:
    """An executor that must get nothing to do."""

    def map(self, fn, jobs):
        assert not jobs
        return iter(())


def test_interrupted_run_goes_on_in_the_same_process(tmp_path):
    size = {"chains": 2, "draws": 120, "warmup": 20, "layout": "batched"}
    whole = sample(target(), STABLE, observe={"sum": StopAfter(10**9)}, **size)
    with pytest.raises(Interrupted) as kept:  # the traceback, and all it holds, stays alive as in a notebook
        sample(target(), STABLE, observe={"sum": StopAfter(150)}, store=tmp_path / "run", **size)
    assert RunStore.open(tmp_path / "run").read()[0]["excess"].shape == (2, 50)
    resumed = sample(target(), STABLE, observe={"sum": StopAfter(150)}, store=tmp_path / "run", **size)
    assert same(whole, resumed)
    assert kept.value is not None


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"seed": 1}, "seed: stored 0, asked 1"),
        ({"draws": 40}, "draws: stored 30, asked 40"),
        ({"chains": 3}, "chains: stored 2, asked 3"),
        ({"warmup": 0}, "warmup: stored 20, asked 0"),
        ({"kernel": SGLD(2e-3, 16)}, "kernel.step: stored 0.001, asked 0.002"),
        ({"kernel": SGHMC(1e-3, 16)}, "kernel.name: stored 'SGLD', asked 'SGHMC'"),
        ({"posterior": target(30.0)}, "nbeta: stored 20.0, asked 30.0"),
        ({"posterior": target(weight=0.1)}, "landscape: stored"),
        ({"posterior": target(shift=0.1)}, "landscape: stored"),
        ({"posterior": Posterior(regression(), 20.0, Flat())}, "prior: stored"),
        ({"keep": ["positions"]}, "keep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_folder_of_another_run_shows_the_difference(tmp_path, change, line):
    call = {"posterior": target(), "kernel": STABLE, "store": tmp_path / "run", **SIZE}
    sample(**call)
    with pytest.raises(StoreMismatch, match="settings differ") as caught:
        sample(**{**call, **change})
    assert line in str(caught.value)


def test_folder_names_the_layout(tmp_path):
    sample(target(), STABLE, store=tmp_path / "run", layout="sequential", **SIZE)
    again = sample(target(), STABLE, store=tmp_path / "run", layout="batched", **SIZE)
    assert again.spec["layout"]["layout"] == "sequential"


def test_trajectories_leave_the_center_in_many_dimensions():
    # A step that suits the density; from the center all directions err the same way, and a strict test lets none pass.
    dim, nbeta = 8000, 1000.0
    land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(dim))
    posterior = Posterior(land, nbeta, Gaussian(1.0))
    drawn = sample(posterior, HMC(step=0.14 / (2 * nbeta)), chains=2, draws=60, warmup=60)
    assert nbeta * drawn.arrays["excess"].mean() == pytest.approx(dim / 2, rel=0.03)
    assert drawn.arrays["accept"].mean() > 0.5
