import importlib.util
import sys
import types

import pytest
import torch
from torch import nn

import crunode as cr
from crunode.core.result import Estimate
from crunode.errors import InputError, MissingExtra
from crunode.store.documents import dumps
from crunode.training.adapters import huggingface_callback, lightning_callback
from crunode.training.schedules import every
from crunode.training.tracker import Tracker

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def probe(land, seed):
    return Estimate("probe", float(land.loss()), se=0.0, seed=seed)


def tracker(at=None):
    return Tracker(cr.Landscape(network(), (X, Y), "gaussian"), {"probe": probe}, at=at or every(3), seed=4)


def batches(epochs=4):
    for _ in range(epochs):
        yield from zip(X.split(6), Y.split(6), strict=True)


def plain_loop():
    net, followed = network(), tracker()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(batches(), start=1):
        optimizer.zero_grad()
        (0.5 * (net(x) - y).square().mean()).backward()
        optimizer.step()
        followed.visit(step, net)
    return followed.trajectory


def text(trajectory):
    return dumps(trajectory.to_dict())


class Wrapped(nn.Module):
    """As a Lightning module has its network."""

    def __init__(self):
        super().__init__()
        self.net = network()
        self.other = nn.Linear(2, 2)


def lightning_like(callback, gather=1):
    """What `lightning.pytorch.Trainer` does as far as callbacks see it."""
    module = Wrapped()
    optimizer = torch.optim.SGD(module.net.parameters(), lr=0.05, momentum=0.9)
    trainer = types.SimpleNamespace(global_step=0, is_global_zero=True)
    for index, (x, y) in enumerate(batches()):
        (0.5 * (module.net(x) - y).square().mean() / gather).backward()
        if (index + 1) % gather == 0:
            optimizer.step()
            optimizer.zero_grad()
            trainer.global_step += 1
        callback.on_train_batch_end(trainer, module, None, (x, y), index)


def huggingface_like(callback, model=None):
    """What `transformers.Trainer` does as far as callbacks see it."""
    net = network() if model is None else model
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
    for x, y in batches():
        optimizer.zero_grad()
        (0.5 * (net(x) - y).square().mean()).backward()
        optimizer.step()
        state.global_step += 1
        callback.on_step_end(None, state, None, model=net, optimizer=optimizer)


@pytest.fixture
def stand_ins(monkeypatch):
    """Modules with the classes to inherit from, in place of the real ones."""
    for name in ("lightning", "lightning.pytorch", "transformers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lightning.pytorch"].Callback = type("Callback", (), {})
    sys.modules["transformers"].TrainerCallback = type("TrainerCallback", (), {})


def test_all_loops_give_the_same_trajectory(stand_ins):
    plain = plain_loop()
    assert plain.steps == (3, 6, 9, 12, 15)
    followed = tracker()
    callback = lightning_callback(followed)
    assert isinstance(callback, sys.modules["lightning.pytorch"].Callback)
    lightning_like(callback)
    assert text(followed.trajectory) == text(plain)
    followed = tracker()
    lightning_like(lightning_callback(followed, part=lambda module: module.net))
    assert text(followed.trajectory) == text(plain)
    followed = tracker()
    callback = huggingface_callback(followed)
    assert isinstance(callback, sys.modules["transformers"].TrainerCallback)
    huggingface_like(callback)
    assert text(followed.trajectory) == text(plain)
    followed = tracker()
    huggingface_like(huggingface_callback(followed), model=nn.Sequential(network()))  # wrapped once more
    assert text(followed.trajectory) == text(plain)


def test_batches_whose_gradients_are_gathered_are_no_steps(stand_ins):
    followed = tracker(every(1))
    lightning_like(lightning_callback(followed), gather=4)
    assert followed.trajectory.steps == (1, 2, 3, 4)


def test_other_processes_do_not_measure(stand_ins):
    followed = tracker(every(1))
    trainer = types.SimpleNamespace(global_step=1, is_global_zero=False)
    lightning_callback(followed).on_train_batch_end(trainer, Wrapped(), None, None, 0)
    state = types.SimpleNamespace(global_step=2, is_world_process_zero=False)
    huggingface_callback(followed).on_step_end(None, state, None, model=network())
    assert len(followed.trajectory) == 0


def test_models_that_cannot_be_found_are_told(stand_ins):
    state = types.SimpleNamespace(global_step=1)
    for model, words in (
        (None, "hand over its model"),
        (nn.Linear(3, 1), "got none"),
        (nn.ModuleList([network(), network()]), "got 2 of them"),
    ):
        with pytest.raises(InputError, match=words):
            huggingface_callback(tracker()).on_step_end(None, state, None, model=model)


def test_missing_packages_are_named(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"crunode\[track\]"):
        lightning_callback(tracker())
    with pytest.raises(MissingExtra, match=r"crunode\[hf\]"):
        huggingface_callback(tracker())


# Looked for and not imported: a full test run is one without some of the packages that crunode only works beside.
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")
def test_real_lightning(tmp_path):
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, _):
            return 0.5 * (self.net(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    followed = tracker()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=6)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=4,
        accelerator="cpu",
        default_root_dir=tmp_path,
        callbacks=[lightning_callback(followed)],
        enable_model_summary=False,
        **quiet,
    )
    trainer.fit(Module(), data)
    assert text(followed.trajectory) == text(plain_loop())


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None,
    reason="needs transformers and accelerate",
)
def test_real_hugging_face(tmp_path):
    import transformers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            return {"loss": 0.5 * (self.net(x) - labels).square().mean()}

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=4,
        per_device_train_batch_size=6,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    followed = tracker()
    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    watch = {"optimizers": (optimizer, constant), "callbacks": [huggingface_callback(followed)]}

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(rows)

    trainer = InOrder(model, arguments, train_dataset=rows, **watch)
    trainer.train()
    assert text(followed.trajectory) == text(plain_loop())
