"""The training loop of the recipes: epochs, checkpoints, resume, and what is worth recording on the way."""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crunode import EstimationError, InputError
from crunode.core import (
    Examples,
    LossModule,
    Progress,
    as_examples,
    data_digest,
    derived_seed,
    preserved_rng,
    provenance,
)
from crunode_papers.training.history import History
from crunode_papers.training.lengths import Lengths, norm
from crunode_papers.training.store import (
    TrainingStore,
    model_spec,
    optimizer_spec,
    scheduler_spec,
)
from crunode_papers.training.validation import NotFinite, modes_kept, validated

__all__ = ["train"]

# Steps between two looks at the numbers on the device; each look waits for it.
_LOOK = 100
# Validation examples that are evaluated at once.
_AT_ONCE = 1000

OnEpoch = Callable[[int, nn.Module, dict[str, Any]], Mapping[str, float] | None]
OnStep = Callable[[int, nn.Module, Tensor], None]


def train(
    model: nn.Module,
    data: Any,
    loss: Any,
    optimizer: Any,
    *,
    epochs: int,
    batch: int = 128,
    seed: int = 0,
    validation: Any = None,
    store: str | os.PathLike[str] | None = None,
    every: int = 1,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    scheduler: Any = None,
    device: str | torch.device | None = None,
) -> History:
    """Train a model in place, and tell how it went.

    Each epoch goes through the examples once, in an order that comes from (seed, epoch) alone; so do dropout and
    whatever else draws from the global generators, which are given back as they were. A training with a `store` that
    was killed or interrupted goes on from its last checkpoint when the same call is made again, and ends with the same
    numbers as one that never was: bit by bit on the same machine with the same number of threads. A stored training may
    be asked for more epochs.

    Args:
        model: The model; its weights are changed.
        data: Tensors (inputs, targets), or anything else that `Landscape` takes; it is moved to the device once.
        loss: A torch loss, a name such as "cross-entropy", or fn(model, batch); its mean over the batch is minimised.
        optimizer: Any torch optimizer over parameters of the model; or one with the attribute `takes_batch` True,
            whose `step(inputs, targets)` does all of a step and returns the loss, such as `NaturalGradient`. Where it
            has an attribute `last` with a `gradient_norm`, that is recorded.
        epochs: How many, those of earlier calls with the same store included.
        batch: Examples of a step; the last step of an epoch takes what is left.
        seed: All randomness comes from it.
        validation: Data on which loss and, where targets are classes, accuracy are taken after each epoch.
        store: A folder for checkpoints, history and settings.
        every: Epochs between two checkpoints; there is always one at the start and one at the end.
        on_epoch: Called with (epoch, model, row) after each epoch, before its checkpoint. Numbers that it returns by
            name become columns of `History.measured`.
        on_step: Called with (step, model, loss) after each step; the loss is a tensor on the device.
        scheduler: A torch scheduler, stepped after each epoch (with the validation loss, or else the training loss, if
            it is a `ReduceLROnPlateau`).
        device: Where to train; by default where the model is. The model is moved there.

    Returns:
        The history of all epochs, those of earlier calls included.

    Raises:
        InputError: Something given cannot be trained with.
        EstimationError: The loss or the weights became infinite or not a number; `partial` has the history before.
        StoreMismatch: The store holds a training with other settings, or one that began from other weights.
        StoreError: The store is damaged, or in use. With a store, any error and Ctrl-C leave model, optimizer and
            scheduler as they were at the last checkpoint.

    Example:
        >>> x = torch.linspace(-1, 1, 64).reshape(-1, 1)
        >>> net = nn.Linear(1, 1)
        >>> history = train(net, (x, 2 * x + 1), "gaussian", torch.optim.SGD(net.parameters(), lr=0.3), epochs=40)
        >>> len(history), history.loss[-1] < 1e-3 * history.loss[0]
        (40, True)

    References:
        Saghir 2024, section 2.1 (update norms).
    """
    _check_numbers(seed, epochs=epochs, batch=batch, every=every)
    groups = _groups(model, optimizer)
    place = torch.device(device) if device is not None else groups[0][0].device
    read = as_examples(data)
    held = None if validation is None else as_examples(validation)
    settings: dict[str, Any] = {"model": model_spec(model), "loss": LossModule(model, loss).label}
    settings |= {"optimizer": optimizer_spec(optimizer), "scheduler": scheduler_spec(scheduler)}
    settings |= {"batch": batch, "seed": seed, "examples": read.n}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_on(place, model, optimizer))
        stack.enter_context(preserved_rng())
        kept = None
        if store is not None:
            marks = {"data": data_digest(read), "validation": None if held is None else data_digest(held)}
            kept = stack.enter_context(TrainingStore.opened(store, {**settings, **marks}, model, optimizer, scheduler))
        rows = [] if kept is None else kept.begin(epochs)
        findings = tuple(dict.fromkeys((*read.findings, *(() if held is None else held.findings))))
        rest = {"findings": findings, "spec": {**settings, "epochs": epochs}, "seed": seed, "provenance": provenance()}
        batches = _Batches(read.to(place), batch, seed)
        steps = _Steps(LossModule(model, loss, place), optimizer, groups, on_step)
        held = None if held is None else held.to(place)
        bar = stack.enter_context(Progress(epochs * len(batches), "train", len(rows) * len(batches)))
        try:
            for epoch in range(len(rows) + 1, epochs + 1):
                _seed_all(derived_seed(seed, 1, epoch), place)
                row: dict[str, Any] = {"epoch": epoch, "step": epoch * len(batches), **steps.epoch(epoch, batches, bar)}
                row |= validated(steps.module, held, max(batch, _AT_ONCE), epoch)
                row["rate"] = _number(optimizer.param_groups[0].get("lr"))
                _advance(scheduler, row)
                if on_epoch is not None:
                    row |= _returned(on_epoch(epoch, model, dict(row)), row)
                rows.append(row)
                if kept is not None and (epoch % every == 0 or epoch == epochs):
                    kept.keep(epoch, row["step"], rows)
        except BaseException as error:
            if kept is not None:
                kept.put_back()
            if isinstance(error, EstimationError | NotFinite):
                _tell(error, History.of(rows, **rest), kept is not None)
            raise
        optimizer.zero_grad()
    return History.of(rows, **rest)


def _tell(error: EstimationError | NotFinite, history: History, kept: bool) -> None:
    """Give an error the history before it, and raise one that says what became of the model."""
    if isinstance(error, NotFinite):
        where = "it was put back to the last checkpoint" if kept else "its weights are of no use"
        raise EstimationError(
            f"expected a finite loss, got {error}; the model: {where}. Lower the learning rate, or look for "
            "examples that are not finite.",
            history,
        ) from None
    if error.partial is None:
        error.partial = history


class _Batches:
    """The examples in shuffled batches."""

    def __init__(self, examples: Examples, size: int, seed: int) -> None:
        self._examples, self._size, self._seed = examples, size, seed
        # Examples of unlike shapes come in batches of their own, which are shuffled as a whole.
        self._whole = None if examples.stacked else list(examples.passes(size))
        self._device = examples.tensors()[0].device

    def __len__(self) -> int:
        return len(self._whole) if self._whole is not None else math.ceil(self._examples.rows / self._size)

    def of_epoch(self, epoch: int) -> Iterator[tuple[Any, int]]:
        """Batches and their numbers of examples."""
        generator = torch.Generator().manual_seed(derived_seed(self._seed, 0, epoch))
        count = self._examples.rows if self._whole is None else len(self._whole)
        order = torch.randperm(count, generator=generator)
        if self._whole is not None:
            for k in order.tolist():
                yield self._whole[k], Examples([self._whole[k]]).rows
        else:
            for index in torch.split(order.to(self._device), self._size):
                yield self._examples.take(index), len(index)


class _Steps:
    """Steps of an optimizer, with what is recorded of them; nothing waits for the device between two looks."""

    def __init__(self, module: LossModule, optimizer: Any, groups: list[list[Tensor]], on_step: OnStep | None) -> None:
        self.module, self._optimizer, self._groups, self._on_step = module, optimizer, groups, on_step
        self._own = module.has_own_mean()
        self._step = self._given_batch if getattr(optimizer, "takes_batch", False) else self._with_closure

    def epoch(self, number: int, batches: _Batches, bar: Progress) -> dict[str, float | None]:
        """Go through the batches once: mean loss and norms, and the time it took."""
        start = time.perf_counter()
        seen, lengths = _Record(), Lengths(self._optimizer)
        for k, (batch, count) in enumerate(batches.of_epoch(number)):
            lengths.before()
            loss, gradient = self._step(batch)
            seen.add(count, loss, lengths.after(gradient), gradient)
            if self._on_step is not None:
                self._on_step((number - 1) * len(batches) + k + 1, self.module.model, loss)
            if (k + 1) % _LOOK == 0:
                seen.look(number)
            bar.advance()
        seen.look(number)
        if not torch.stack([p.isfinite().all() for group in self._groups for p in group]).all():
            raise NotFinite(f"weights that are not finite after epoch {number}")
        return {**seen.means(), "seconds": time.perf_counter() - start}

    def _with_closure(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        seen: list[Tensor] = []

        def closure() -> Tensor:
            self._optimizer.zero_grad()
            losses: Tensor = self.module(batch, own=self._own)
            loss = losses.mean() if losses.ndim else losses
            torch.autograd.backward(loss)
            if not seen:  # some optimizers ask more than once in a step
                seen.extend((loss.detach(), norm([p.grad for g in self._groups for p in g if p.grad is not None])))
            return loss

        self._optimizer.step(closure)
        return seen[0], seen[1]

    def _given_batch(self, batch: Any) -> tuple[Tensor, Tensor | None]:
        if not isinstance(batch, tuple) or len(batch) != 2:
            raise InputError(
                f"expected data as (inputs, targets) for {type(self._optimizer).__name__}, got batches of type "
                f"{type(batch).__name__}"
            )
        loss = self._optimizer.step(*batch)
        if not isinstance(loss, Tensor):
            raise InputError(
                f"expected {type(self._optimizer).__name__}.step(inputs, targets) to return the loss as a tensor, got "
                f"{type(loss).__name__}"
            )
        gradient = getattr(getattr(self._optimizer, "last", None), "gradient_norm", None)
        return loss.detach(), None if gradient is None else torch.as_tensor(gradient)


class _Record:
    """Losses and norms of the steps of an epoch, fetched from the device now and then."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._recent: list[tuple[Tensor, ...]] = []
        self._seen: list[tuple[float, ...]] = []

    def add(self, count: int, loss: Tensor, update: Tensor, gradient: Tensor | None) -> None:
        self._counts.append(count)
        self._recent.append((loss, update) if gradient is None else (loss, update, gradient))

    def look(self, epoch: int) -> None:
        """Fetch what came since the last look.

        Raises:
            NotFinite: One of the numbers is infinite or not a number.
        """
        if self._recent:
            columns = zip(*self._recent, strict=True)
            fetched = list(zip(*(torch.stack(column).tolist() for column in columns), strict=True))
            for k, (loss, update, *_) in enumerate(fetched, start=len(self._seen) + 1):
                if not math.isfinite(loss):
                    raise NotFinite(f"{loss} in step {k} of epoch {epoch}")
                if not math.isfinite(update):
                    raise NotFinite(f"weights that are not finite after step {k} of epoch {epoch} (loss {loss:.4g})")
            self._seen += fetched
            self._recent = []

    def means(self) -> dict[str, float | None]:
        columns = [np.array(column) for column in zip(*self._seen, strict=True)]
        return {
            "loss": float(np.average(columns[0], weights=self._counts)),
            "update_norm": float(columns[1].mean()),
            "gradient_norm": float(columns[2].mean()) if len(columns) > 2 else None,
        }


def _advance(scheduler: Any, row: Mapping[str, Any]) -> None:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        watched = row["validation_loss"]
        scheduler.step(row["loss"] if watched is None else watched)
    elif scheduler is not None:
        scheduler.step()


def _returned(found: Any, row: Mapping[str, Any]) -> dict[str, float]:
    if found is None:
        return {}
    if not isinstance(found, Mapping) or any(not isinstance(key, str) or key in row for key in found):
        names = list(found) if isinstance(found, Mapping) else type(found).__name__
        raise InputError(f"expected on_epoch to return numbers by new names, or None, got {names}")
    try:
        return {key: float(v.detach() if isinstance(v, Tensor) else v) for key, v in found.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"expected numbers from on_epoch, got {dict(found)!r}") from error


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _seed_all(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    random.seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def _on(device: torch.device, model: nn.Module, optimizer: Any) -> Iterator[None]:
    """The model on the device, in training mode unless parts of it were put in another; modes are given back."""
    if any(p.device != device for p in model.parameters()):
        model.to(device)
        if optimizer.state:
            optimizer.load_state_dict(optimizer.state_dict())  # moves the state to where the parameters are
    with modes_kept(model):
        if not model.training:
            model.train()
        yield


def _check_numbers(seed: Any, **counts: Any) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"expected {name} as a positive whole number, got {count!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"expected seed as a whole number from 0 up, got {seed!r}")


def _groups(model: nn.Module, optimizer: Any) -> list[list[Tensor]]:
    """The optimizer's parameters, group by group, once it is known that they are the model's."""
    if not isinstance(model, nn.Module):
        raise InputError(f"expected a torch module as model, got {type(model).__name__}")
    if not hasattr(optimizer, "param_groups") or not callable(getattr(optimizer, "step", None)):
        what = (
            f"the class {optimizer.__name__}; make an instance"
            if isinstance(optimizer, type)
            else type(optimizer).__name__
        )
        raise InputError(f"expected a torch optimizer, got {what}")
    groups = [list(group["params"]) for group in optimizer.param_groups]
    own = {id(p) for p in model.parameters()}
    foreign = sum(id(p) not in own for group in groups for p in group)
    if foreign or not any(groups):
        raise InputError(
            f"expected an optimizer over parameters of the model, got one with {foreign} others; make the optimizer "
            "from model.parameters(), after the model was built and moved"
        )
    return groups
