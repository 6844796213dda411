"""Wrong input: an error that says what was expected, what came and what to do, and nothing left behind."""

import contextlib
import json
import math
import os
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import crunode as cr
from crunode.core.rng import NoiseStream

X = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
QUICK = {"nbeta": 20.0, "precision": 1.0, "kernel": cr.SGLD(1e-4, 8), "chains": 2, "draws": 4, "warmup": 1}


def net():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def llc(model=None, data=(X, Y), loss=F.mse_loss, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        return cr.llc(net() if model is None else model, data, loss, **{**QUICK, **options})


@contextlib.contextmanager
def refused(message, kind=cr.InputError, folder=None):
    """The error, its message, and no file written."""
    before = sorted(folder.rglob("*")) if folder else []
    with pytest.raises(kind, match=message) as caught:
        yield
    assert "expected" in str(caught.value)
    assert (sorted(folder.rglob("*")) if folder else []) == before


def filled(value):
    model = net()
    with torch.no_grad():
        model.bias.fill_(value)
    return model


def frozen():
    return net().requires_grad_(False)


class Odd(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 1).to(dtype), requires_grad=dtype.is_complex)

    def forward(self, x):
        return (x.to(self.w.dtype) @ self.w).real


MODELS = {
    "not a module": (lambda: F.relu, "expected a torch.nn.Module with data and loss.*got"),
    "class": (lambda: nn.Linear, "got type"),
    "no parameters": (nn.Identity, "got 0 without"),
    "all frozen": (frozen, r"got 2 without.*requires_grad_\(True\)"),
    "integers": (lambda: Odd(torch.int64), r"w \(torch.int64\) among them"),
    "complex": (lambda: Odd(torch.complex64), r"w \(torch.complex64\).*two real"),
    "nan weights": (lambda: filled(math.nan), r"finite weights, got non-finite values in \['bias'\]"),
    "inf weights": (lambda: filled(math.inf), "finite weights"),
    "meta": (lambda: net().to("meta"), "meta device; load its weights"),
    "lazy": (lambda: nn.LazyLinear(1), "run the model on a batch first"),
    "wrong inputs": (lambda: nn.Linear(5, 1), r"got RuntimeError: mat1.*the batch holds \(32, 3\)"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("case", MODELS)
def test_models(case, tmp_path):
    make, message = MODELS[case]
    with refused(message, folder=tmp_path):
        llc(make(), store=tmp_path / "run")


WITH_NAN = X.clone()
WITH_NAN[30, 0] = math.nan
DATA = {
    "empty": ((X[:0], Y[:0]), "at least one example, got none"),
    "no data": (None, r"data= and loss= with a module"),
    "length unknown": (iter([(X, Y)]), "got an iterator without one; pass n="),
    "on another device": ((X.to("meta"), Y.to("meta")), r"device cpu or on the CPU, got \['meta'\]"),
    "other precision": ((X.double(), Y.double()), "must have the same dtype.*torch.float64"),
    "missing values": ((WITH_NAN, Y), r"finite losses at the center"),
    "only inputs": (X, r"batches \(inputs, target\)"),
}


@pytest.mark.parametrize("case", DATA)
def test_data(case, tmp_path):
    data, message = DATA[case]
    with refused(message, folder=tmp_path):
        llc(data=data, store=tmp_path / "run")


@pytest.mark.parametrize("reduce", [True, False])
def test_a_loss_that_is_not_finite_beyond_the_first_examples(reduce):
    x = X.repeat(20, 1)
    x[500] = math.inf

    def loss(model, batch):
        values = (model(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean(1)
        return values.mean() if reduce else values

    with refused("finite loss(es)? at the center" if reduce else "the first for example 500"):
        llc(data=(x,), loss=loss)


OUTSIDE = net()
LOSSES = {
    "misspelt": ("gausian", "did you mean 'gaussian'"),
    "wrong type": (0.5, "got float"),
    "missing": (None, "data= and loss="),
    "nan": (lambda model, batch: model(batch[0])[:, 0] * math.nan, r"finite losses at the center, got \[nan"),
    "inf": (lambda model, batch: (model(batch[0]) * math.inf).mean(), r"finite losses at the center, got \["),
    "shape": (lambda model, batch: model(batch[0]), r"shape \(32,\).*got shape \(32, 1\)"),
    "length": (lambda model, batch: model(batch[0])[1:, 0], r"got shape \(31,\)"),
    "detached": (lambda model, batch: model(batch[0])[:, 0].detach(), r"look for detach\(\)"),
    "other model": (lambda model, batch: OUTSIDE(batch[0])[:, 0], "has to use the model it is given"),
    "sum": (lambda model, batch: model(batch[0]).square().sum(), "got a sum; divide by the batch size"),
    "root at zero": (
        lambda model, batch: (model(batch[0]) * 0).square().sum(1).sqrt(),
        "finite gradients at the center",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses(case, tmp_path):
    loss, message = LOSSES[case]
    with refused(message, folder=tmp_path):
        llc(loss=loss, store=tmp_path / "run")


def test_single_losses_of_a_scalar_loss():
    land = cr.Landscape(net(), (X, Y), lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    with refused("return a vector with one entry for each example"):
        cr.sample(cr.Posterior(land, 20.0, cr.Gaussian(1.0)), cr.MALA(1e-4), keep=["pointwise"])


NOT_POSITIVE = [0, -1, math.nan, math.inf, "many", True]
NUMBERS = [("draws", v) for v in (0, -1, 2.5, math.nan, True)]
NUMBERS += [("chains", v) for v in (0, -1, 2.5, math.nan, True)]
NUMBERS += [("warmup", v) for v in (-1, 2.5, math.nan)]
NUMBERS += [("seed", v) for v in (-1, 0.5, None)]
NUMBERS += [("precision", v) for v in NOT_POSITIVE]
NUMBERS += [("nbeta", v) for v in (*NOT_POSITIVE, (), (1.0, 1.0), (1.0, -1.0))]
NUMBERS += [("layout", "fast"), ("on_failure", "ignore"), ("n", 0), ("n", 1.5), ("n", 33)]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_settings(name, value, tmp_path):
    with refused(f"{name}|lower n", folder=tmp_path):
        llc(**{name: value}, store=tmp_path / "run")


@pytest.mark.parametrize("kernel", [cr.SGLD, cr.PSGLD, cr.SGHMC, cr.SGNHT, cr.MALA, cr.HMC])
@pytest.mark.parametrize("step", NOT_POSITIVE)
def test_steps(kernel, step):
    with refused("step as a positive finite number"):
        kernel(step=step)


@pytest.mark.parametrize("batch", [0, -1, 2.5, math.nan, True])
def test_batches(batch):
    with refused("batch as a positive whole number"):
        cr.SGLD(step=1e-4, batch=batch)


def test_landscapes():
    land = cr.Landscape(net(), (X, Y), F.mse_loss)
    with refused("matches parameter names, got 'biases'; there are"):
        land.restrict("biases")
    with refused("at least one pattern"):
        land.restrict()
    with refused("matches parameter names"):
        cr.Landscape(net(), (X, Y), F.mse_loss, params="layers.*")
    with refused("as a torch device that is here, got 'cuda:99'|got 'gpu'"):
        cr.Landscape(net(), (X, Y), F.mse_loss, device="gpu")
    with refused("no data, loss or landscape options beside a Landscape"):
        cr.llc(land, (X, Y), F.mse_loss)
    for potential, at in ((lambda w: w, torch.zeros(2)), (lambda w: 1.0, torch.zeros(2)), (torch.sum, [0.0])):
        with refused("one number as a tensor|at as a floating-point tensor"):
            cr.Landscape.of_function(potential, at)


WEIGHTS = {
    "vector": (torch.zeros(5), "flat vector of 4 weights, got a tensor of shape"),
    "matrix": (torch.zeros(2, 2), "flat vector of 4 weights"),
    "transposed": (
        {"weight": torch.zeros(3, 1), "bias": torch.zeros(1)},
        r"weight of shape \(1, 3\), got shape \(3, 1\)",
    ),
    "missing": ({"weight": torch.zeros(1, 3)}, r"none for \['bias'\]"),
    "unknown": ({"weight": torch.zeros(1, 3), "bias": torch.zeros(1), "b": torch.zeros(1)}, r"got \['b'\] besides"),
    "other model": (nn.Linear(4, 1), "from a model of the same sizes"),
    "nan": (torch.full((4,), math.nan), "finite weights"),
    "numbers": ([0.0] * 4, "a module, a mapping of names to tensors or a flat tensor, got list"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights(case):
    weights, message = WEIGHTS[case]
    with refused(message):
        cr.Landscape(net(), (X, Y), F.mse_loss).at(weights)


@pytest.fixture
def run(tmp_path):
    llc(store=tmp_path / "run")
    return tmp_path / "run"


def edited(manifest, **changes):
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, **changes}))


FOLDERS = {
    "corrupt": (lambda run: (run / "manifest.json").write_text("{not json"), "is corrupt: expected a JSON document"),
    "edited": (lambda run: edited(run / "manifest.json", seed=7), "does not have the sha256 that it states"),
    "another version": (lambda run: edited(run / "manifest.json", version=99), "got format .* version 99"),
    "truncated": (lambda run: [os.truncate(p, 40) for p in run.rglob("*.safetensors")], "truncated|corrupt|bytes"),
    "file missing": (
        lambda run: [p.unlink() for p in run.rglob("*.safetensors")],
        "No such file.*Restore it from a copy|expected",
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", FOLDERS)
def test_damaged_folders(run, case):
    damage, message = FOLDERS[case]
    damage(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(cr.StoreError, match=message):
        llc(store=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", [{"seed": 1}, {"draws": 5}, {"kernel": cr.MALA(1e-4)}, {"model": filled(0.3)}])
def test_folders_of_another_run(run, change):
    with refused(r"to hold this run, got another one; settings differ", cr.StoreMismatch):
        llc(store=run, **change)


def test_folders_that_are_files_or_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(cr.StoreError, match=r"expected .*file"):
        llc(store=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(cr.StoreError, match="choose a folder that can be written"):
        llc(store=tmp_path / "file" / "below")
    with pytest.raises((cr.InputError, cr.StoreError), match="expected"):
        cr.load_estimate(tmp_path / "nowhere")


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    options = {"draws": 170, "layout": "batched"}
    whole = llc(**options, store=tmp_path / "whole")
    at = NoiseStream.at

    def interrupted(self, step):
        if step == 130:
            raise KeyboardInterrupt
        return at(self, step)

    monkeypatch.setattr(NoiseStream, "at", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llc(**options, store=tmp_path / "cut")
    monkeypatch.undo()
    resumed = llc(**options, store=tmp_path / "cut")
    assert resumed.value == whole.value
