"""Steps in C: the same chains as torch's, draw by draw, and libraries that are safe to load."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from crunode.core.landscape import Landscape
from crunode.core.rng import BLOCK, NoiseStream
from crunode.sampling.group import Group, _Runner, run_group
from crunode.sampling.native import build, step
from crunode.sampling.native.step import NativeStep, why_not
from crunode.sampling.posterior import Flat, Gaussian, Posterior, Rung
from crunode.sampling.stochastic import PSGLD, SGHMC, SGLD, SGNHT

SOURCE = step._SOURCE
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}


def private(parent):
    if os.name != "posix" or not any(map(build.shutil.which, build.COMPILERS)):
        pytest.skip("no C compiler")
    folder = parent / "private"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def compiler(tmp_path):
    """A private folder, where a compiler is found."""
    return private(tmp_path)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    found, why = build.load(SOURCE, private(tmp_path_factory.mktemp("native")))
    assert found is not None, why
    return found


def group(hidden=8, dtype=torch.float64, prior=None, chains=(0, 1, 5), kernel=None, **options):
    """Chains at two temperatures and steps; with 4200 hidden units, of more than BLOCK parameters."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 1)).to(dtype)
    x = torch.randn(64, 6, dtype=dtype, generator=generator)
    posterior = Posterior(Landscape(model, (x, x[:, :1]), "gaussian"), 20.0, prior or Gaussian(2.0))
    layout = "batched" if len(chains) > 1 else "sequential"
    rungs = [Rung(20.0 + c, posterior.precision * (1 + c), 1e-4 * (1 + c)) for c in chains]
    kernel = kernel or SGLD(1e-4, 16)
    return Group(posterior, kernel, 0, chains, rungs, 5, 20, 11, layout, ("positions",), **options)


@pytest.mark.heavy
@pytest.mark.parametrize("chains", [(0, 1, 5), (5,)], ids=["batched", "sequential"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("hidden", [8, 4200])
@pytest.mark.parametrize("prior", [Gaussian(2.0), Flat()], ids=repr)
@pytest.mark.parametrize("kernel", [SGLD(1e-4, 16), SGHMC(1e-4, 16, friction=0.3)], ids=repr)
def test_same_chain_as_without(library, monkeypatch, hidden, dtype, prior, chains, kernel):
    monkeypatch.setattr(step, "_library", lambda: (library, ""))
    job = group(hidden, dtype, prior, chains, kernel)
    assert (job.posterior.landscape.dim > BLOCK) == (hidden == 4200)
    assert _Runner(job).native is not None
    native, plain = run_group(job), run_group(replace(job, native=False))
    for ours, theirs in ((native.arrays, plain.arrays), (native.warmup, plain.warmup)):
        assert ours.keys() == theirs.keys() >= {"excess", "distance2"}
        for name, value in theirs.items():
            assert ours[name].dtype == value.dtype
            spread = float(np.abs(value - value[:, :1]).max())
            assert spread > 0
            assert float(np.abs(ours[name] - value).max()) < TOLERANCE[dtype] * spread, name


@pytest.mark.parametrize("seed", [0, 3, 2**40 + 1, 2**70, 2**130])
def test_noise_is_that_of_the_stream(library, seed):
    dim, chains = BLOCK + 77, [0, 6, 70_000]
    native = NativeStep(library, seed, chains, torch.zeros(dim).double(), torch.ones(3).double(), 0.0)
    stream = NoiseStream(seed, chains, dim, stream=0, kind="grid", dtype=torch.float64)
    for k in (0, 1, 100_000):
        w = torch.zeros(3, dim).double()
        native(w, torch.zeros_like(w), k)
        torch.testing.assert_close(w, stream.at(k), rtol=0, atol=1e-14)


def test_distance_is_that_of_the_position_left(library, monkeypatch):
    monkeypatch.setattr(step, "_library", lambda: (library, ""))
    job = group()
    arrays = run_group(job).arrays
    offset = arrays["positions"] - job.posterior.landscape.center.numpy()
    np.testing.assert_allclose(arrays["distance2"], np.square(offset).sum(2), rtol=1e-12)


def test_a_moved_tensor_counts_as_changed(library):
    w = torch.zeros(1, 40)
    before = w._version
    NativeStep(library, 0, [0], torch.zeros(40), torch.ones(1), 0.0)(w, torch.zeros(1, 40), 0)
    assert w._version > before


@dataclass(frozen=True)
class Louder(SGLD):
    """A kernel of another kind that inherits."""

    def advance(self, state, gradient, step, noise, uniform, warming):
        return super().advance(state, gradient, step, 2 * noise, uniform, warming)


def test_used_for_plain_kernels_around_the_center_alone(library, monkeypatch):
    monkeypatch.setattr(step, "_library", lambda: (library, ""))
    for kernel in (SGLD(1e-4, 16), SGHMC(1e-4, 16)):
        assert _Runner(group(kernel=kernel)).native is not None
        assert _Runner(group(kernel=kernel, native=False)).native is None
    for kernel in (Louder(1e-4, 16), SGNHT(1e-4, 16), PSGLD(1e-4, 16)):
        assert _Runner(group(kernel=kernel)).native is None
    assert _Runner(group(prior=Gaussian(2.0, mean="origin"))).native is None
    monkeypatch.setattr(step, "_library", lambda: (None, "no compiler"))
    assert _Runner(group()).native is None


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("half * (g", "step[chain] * (g"),
        ("s[1] >> 11", "s[1] >> 12"),
        ("0x931e8875", "0x931e8877"),
        ("0, odd[i])", "0, -odd[i])"),
        ("keep * v[i]", "v[i]"),
    ],
)
def test_a_library_that_computes_something_else_is_not_used(compiler, tmp_path, right, wrong):
    text = SOURCE.read_text()
    assert right in text
    other = tmp_path / "step.c"
    other.write_text(text.replace(right, wrong))
    assert step._agrees(build.load(SOURCE, compiler)[0])
    assert not step._agrees(build.load(other, compiler)[0])


@pytest.mark.heavy
def test_compiled_once(compiler, monkeypatch):
    assert build.load(SOURCE, compiler)[0] is not None
    monkeypatch.setattr(build, "COMPILERS", ())
    assert build.load(SOURCE, compiler)[0] is not None


def test_without_a_compiler_or_with_one_that_fails(compiler, tmp_path, monkeypatch):
    broken = tmp_path / "broken.c"
    broken.write_text("int step(")
    library, why = build.load(broken, compiler)
    assert library is None
    assert "failed" in why
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    library, why = build.load(SOURCE, compiler)
    assert library is None
    assert "no-such-compiler" in why
    assert list(compiler.iterdir()) == []


def test_folders_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    library, why = build.load(SOURCE, tmp_path / "file" / "below")
    assert library is None
    assert "NotADirectoryError" in why


@pytest.mark.heavy
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_what_others_can_write_is_not_loaded(compiler, mode):
    assert build.load(SOURCE, compiler)[0] is not None
    (path,) = compiler.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(mode)
    assert build.load(SOURCE, compiler)[0] is None
    path.chmod(0o700)
    assert build.load(SOURCE, compiler)[0] is not None
    compiler.chmod(mode)
    library, why = build.load(SOURCE, compiler)
    assert library is None
    assert "not a private" in why


@pytest.mark.heavy
def test_links_and_files_of_others_are_not_loaded(compiler, tmp_path, monkeypatch):
    assert build.load(SOURCE, compiler)[0] is not None
    link = tmp_path / "link"
    link.symlink_to(compiler)
    assert "not a private" in build.load(SOURCE, link)[1]
    monkeypatch.setattr(build.os, "geteuid", lambda: os.getuid() + 1)
    assert "not a private" in build.load(SOURCE, compiler)[1]


@pytest.mark.heavy
def test_compiling_at_the_same_time(compiler):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: build.load(SOURCE, compiler)[0], range(3)))
    assert None not in found
    assert [path.name.startswith("step-") for path in compiler.iterdir()] == [True]


def test_the_reason_is_given():
    assert (why_not() == "") == (step._library()[0] is not None)
