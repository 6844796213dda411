"""The caller's model, data, arguments and global state come out of every public call as they went in."""

import contextlib
import copy
import hashlib
import os
import random
import signal
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import crunode as cr

pytestmark = pytest.mark.heavy

QUICK = {"nbeta": 20.0, "precision": 1.0, "chains": 2, "draws": 6, "warmup": 2}
KERNEL = cr.SGLD(step=1e-4, batch=16)
KERNELS = [KERNEL, cr.PSGLD(1e-4, 16), cr.SGHMC(1e-4, 16), cr.SGNHT(1e-4, 16), cr.MALA(1e-4), cr.HMC(1e-4, leaps=2)]


def tensor_state(tensor):
    if tensor is None:
        return None
    content = hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
    return content, tensor.dtype, tensor.shape, tensor.requires_grad, tensor._version, id(tensor)


def module_state(model):
    state = {}
    for name, module in model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            state[name, kind] = [(key, id(hook)) for key, hook in getattr(module, kind).items()]
        state[name, "mode"] = module.training
        state[name, "attributes"] = sorted(vars(module))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state[name] = tensor_state(tensor), tensor_state(tensor.grad)
    return state


def loader_state(loader):
    return {
        "attributes": {key: id(value) for key, value in vars(loader).items()},
        "generator": tensor_state(loader.generator.get_state())[0],
        "sampler": tensor_state(loader.sampler.generator.get_state())[0],
        "tensors": [tensor_state(t) for t in loader.dataset.tensors],
    }


def global_state():
    return {
        "torch": tensor_state(torch.get_rng_state())[0],
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warnings": list(warnings.filters),
        "numpy errors": np.geterr(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "interrupt": signal.getsignal(signal.SIGINT),
    }


@contextlib.contextmanager
def unchanged(model, loader, options):
    def state():
        return {**global_state(), **module_state(model), **loader_state(loader)}

    given = copy.deepcopy(options)
    before = state()
    yield
    after = state()
    assert [key for key in before if before[key] != after[key]] == []
    assert before.keys() == after.keys()
    assert options == given


@pytest.fixture
def model():
    """A model in a mixed state: partly frozen, with gradients, buffers, hooks and submodules in different modes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1))
    net(torch.randn(5, 3)).sum().backward()
    net[0].bias.requires_grad_(False)
    net[4].bias.grad = None
    net[3].eval()
    net[3].register_forward_hook(lambda *_: None)
    return net


@pytest.fixture
def loader():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(2))
    return DataLoader(data, 16, sampler=sampler, generator=torch.Generator().manual_seed(3), drop_last=True)


@pytest.fixture(autouse=True)
def _quiet():
    # The first gradient of torch.func imports half of torch, which sets a variable of the environment and a filter.
    torch.func.grad(torch.sum)(torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cr.DiagnosticWarning)
        yield


def landscape(model, loader):
    return cr.Landscape(model, loader, F.mse_loss)


def test_landscape_and_its_methods(model, loader):
    options = {"n": 50, "params": ("0.*", "4.*"), "device": "cpu"}
    with unchanged(model, loader, options):
        land = cr.Landscape(model, loader, F.mse_loss, **options)
        part = land.restrict("4.*")
        moved = land.at({name: value.detach() + 1 for name, value in model.named_parameters()})
        for each in (land, part, moved, land.at(model), land.at(land.center)):
            each.loss()
            each.losses()
            each.fingerprint()


def test_weights_given_to_at_are_copied(model, loader):
    land = landscape(model, loader)
    w = land.center + 1
    moved = land.at(w)
    before = moved.loss()
    w.zero_()
    assert moved.loss() == before


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)
@pytest.mark.parametrize("layout", ["batched", "sequential"])
def test_llc(model, loader, kernel, layout):
    options = {**QUICK, "kernel": kernel, "layout": layout, "seed": 5}
    with unchanged(model, loader, options):
        cr.llc(model, loader, F.mse_loss, **options)


def test_llc_with_everything_tuned(model, loader):
    options = {"chains": 2, "draws": 4, "warmup": 1}
    with unchanged(model, loader, options):
        cr.llc(model, loader, nn.MSELoss(), **options)


def test_tune(model, loader):
    posterior = cr.Posterior(landscape(model, loader), nbeta="wbic")
    options = {"kernel": cr.SGLD(), "seed": 1}
    with unchanged(model, loader, options):
        cr.tune(posterior, **options)


def test_sample_with_store_and_resume(model, loader, tmp_path):
    posterior = cr.Posterior(landscape(model, loader), nbeta=20.0, prior=cr.Gaussian(1.0))
    options = {
        "kernel": KERNEL,
        "chains": 2,
        "draws": 6,
        "warmup": 2,
        "keep": ["positions", "pointwise"],
        "observe": {"norm": lambda land, w: w.norm()},
        "store": tmp_path / "run",
    }
    with unchanged(model, loader, options):
        first = cr.sample(posterior, **options)
        second = cr.sample(posterior, **options)
    assert np.array_equal(first.arrays["positions"], second.arrays["positions"])


def test_llc_of_draws_and_from_a_folder(model, loader, tmp_path):
    drawn = cr.sample(cr.Posterior(landscape(model, loader), 20.0, cr.Gaussian(1.0)), KERNEL, draws=6, warmup=2)
    arrays = {name: value.copy() for name, value in drawn.arrays.items()}
    options = {**QUICK, "kernel": KERNEL, "store": tmp_path / "run"}
    with unchanged(model, loader, options):
        cr.llc(drawn)
        cr.llc(model, loader, F.mse_loss, **options)
        cr.load_estimate(options["store"])
    assert all(np.array_equal(arrays[name], value) for name, value in drawn.arrays.items())


def test_llc_in_other_processes(model, loader):
    model[3]._forward_hooks.clear()  # a hook made on the spot cannot be sent
    options = {**QUICK, "kernel": KERNEL, "executor": cr.Processes(workers=1)}
    with unchanged(model, loader, options):
        away = cr.llc(model, loader, F.mse_loss, **options)
        here = cr.llc(model, loader, F.mse_loss, **{**options, "executor": None, "layout": "batched"})
    np.testing.assert_allclose(away.draws.arrays["excess"], here.draws.arrays["excess"], rtol=1e-3, atol=1e-6)


class Interrupting:
    """A loss that raises from inside, after so many evaluations."""

    def __init__(self, calls, error):
        self.calls, self.error = calls, error

    def __call__(self, model, batch):
        self.calls -= 1
        if self.calls < 0:
            raise self.error
        return (model(batch[0]) - batch[1]).square().mean(1)


def probe_calls(model, loader):
    loss = Interrupting(10**6, None)
    land = cr.Landscape(model, loader, loss)
    assert land.n == 64
    return 10**6 - land.loss_form.fn.calls


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("layout", ["batched", "sequential"])
def test_after_an_interruption_inside_the_loss(model, loader, tmp_path, error, layout, store):
    loss = Interrupting(probe_calls(model, loader) + 8, error("from inside"))
    options = {**QUICK, "draws": 50, "layout": layout, "store": tmp_path / "run" if store else None}
    with unchanged(model, loader, options), pytest.raises(error, match="from inside"):
        cr.llc(model, loader, loss, kernel=KERNEL, **options)


def test_after_an_interruption_while_looking_at_the_loss(model, loader):
    with unchanged(model, loader, {}), pytest.raises(KeyboardInterrupt):
        cr.Landscape(model, loader, Interrupting(2, KeyboardInterrupt()))


BAD = {
    "loss": {"loss": "gausian"},
    "nbeta": {"nbeta": -1.0},
    "draws": {"draws": 0},
    "pattern": {"params": ("9.*",)},
    "n": {"n": 1000},
    "kernel": {"kernel": cr.SGLD(step=(1e-4, 1e-4), batch=16)},
}


@pytest.mark.parametrize("case", BAD)
def test_after_wrong_input(model, loader, case):
    options = {"loss": F.mse_loss, "kernel": KERNEL, **QUICK, **BAD[case]}
    with unchanged(model, loader, options), pytest.raises(cr.InputError):
        cr.llc(model, loader, **options)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("layout", ["batched", "sequential"])
def test_after_a_diverging_chain(model, loader, tmp_path, layout, store):
    options = {**QUICK, "draws": 60, "kernel": cr.SGLD(step=1e9, batch=16), "layout": layout}
    options["store"] = tmp_path / "run" if store else None
    with unchanged(model, loader, options):
        with pytest.raises(cr.EstimationError) as caught:
            cr.llc(model, loader, F.mse_loss, **options)
        assert not caught.value.partial.ok
        assert not cr.llc(model, loader, F.mse_loss, **options, on_failure="return").ok


def test_after_a_refused_folder(model, loader, tmp_path):
    options = {**QUICK, "kernel": KERNEL, "store": tmp_path / "run"}
    cr.llc(model, loader, F.mse_loss, **options)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    options["seed"] = 9
    with unchanged(model, loader, options), pytest.raises(cr.StoreMismatch):
        cr.llc(model, loader, F.mse_loss, **options)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
