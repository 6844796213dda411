"""Trackers inside the real Lightning and Hugging Face Trainers give the trajectory of a plain loop.

Neither is a dependency, so these run only where they are installed (`make trainers` makes such an environment).
"""

import importlib.util
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import crunode as cr
from crunode.core.result import Estimate
from crunode.store.documents import dumps
from crunode.training.adapters import huggingface_callback, lightning_callback
from crunode.training.loggers import TensorBoardLogger
from crunode.training.schedules import every

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
EPOCHS, BATCH = 4, 6

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the trainers themselves
]


def needed(*names):
    # Not by importorskip, which the full run takes for a failure: no install of this package alone has them.
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason="trainers have an environment of their own")


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def probe(land, seed):
    return Estimate("probe", float(land.loss()), se=0.0, seed=seed)


def tracker(**options):
    return cr.Tracker(cr.Landscape(network(), (X, Y), "gaussian"), {"probe": probe}, at=every(3), seed=4, **options)


def halved_squares(found, wanted):
    return 0.5 * (found - wanted).square().mean()


@pytest.fixture(scope="module")
def plain():
    net, followed = network(), tracker()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    step = 0
    for _ in range(EPOCHS):
        for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
            optimizer.zero_grad()
            halved_squares(net(x), y).backward()
            optimizer.step()
            step += 1
            followed.visit(step, net)
    assert followed.trajectory.steps == (3, 6, 9, 12, 15)
    return dumps(followed.trajectory.to_dict())


@needed("lightning")
def test_lightning(plain, tmp_path):
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            return halved_squares(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)

    followed = tracker()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[lightning_callback(followed)],
    )
    trainer.fit(Module(), DataLoader(TensorDataset(X, Y), batch_size=BATCH))
    assert dumps(followed.trajectory.to_dict()) == plain


@needed("transformers", "accelerate")
def test_hugging_face(plain, tmp_path):
    import transformers

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x, labels):
            found = self.net(x)
            return {"loss": halved_squares(found, labels), "logits": found}

    class InOrder(transformers.Trainer):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=BATCH)

    model, followed = Model(), tracker()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    trainer = InOrder(
        model=model,
        args=arguments,
        train_dataset=rows,
        optimizers=(optimizer, None),
        callbacks=[huggingface_callback(followed)],
    )
    trainer.train()
    assert dumps(followed.trajectory.to_dict()) == plain


@needed("tensorboard")
def test_tensorboard_reads_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as reader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        followed = tracker(loggers=[TensorBoardLogger(tmp_path)])
    net = network()
    for step in (3, 6):
        followed.visit(step, net)
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()["scalars"]
    name = next(tag for tag in tags if tag.endswith("probe"))
    value = float(cr.Landscape(net, (X, Y), "gaussian").loss())
    assert [(e.step, pytest.approx(e.value, rel=1e-6)) for e in events.Scalars(name)] == [(3, value), (6, value)]
