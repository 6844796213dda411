"""The demonstration: a trained network and three landscapes with known coefficients."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from crunode.core.execute import Executor
from crunode.core.landscape import Landscape
from crunode.core.result import Estimate
from crunode.core.threads import one_thread
from crunode.errors import DiagnosticWarning, InputError
from crunode.estimators.coefficient import llc
from crunode.examples.images import packaged_images
from crunode.examples.toys import exact_normal_crossing, exact_reduced_rank, normal_crossing, quadratic, reduced_rank
from crunode.reporting.overview import plot_overview

__all__ = ["Case", "run_demo", "train_network"]

_POOL = 2
_HIDDEN = 16
_EPOCHS = 30
_ROW = "{:<30} {:>10} {:>26} {:>6}  {:<24} {:>7}"


@dataclass(frozen=True)
class Case:
    """One line of the demonstration: a name, a folder, a landscape and its exact coefficient where it is known."""

    name: str
    folder: str
    build: Callable[[], Landscape]
    exact: Fraction | None


_KNOWN = (
    Case("quadratic, 10 parameters", "quadratic", lambda: quadratic(10), Fraction(5)),
    Case("normal crossing x²y²", "normal-crossing", lambda: normal_crossing(1, 1), exact_normal_crossing(1, 1)),
    Case(
        "reduced rank 6-4-6, rank 2",
        "reduced-rank",
        lambda: reduced_rank(6, 4, 6, 2),
        exact_reduced_rank(6, 4, 6, 2),
    ),
)


def run_demo(store: str | os.PathLike[str], executor: Executor | None = None) -> dict[str, Any]:
    """Train a small network on Fashion-MNIST, estimate its coefficient and three known ones, print and draw them.

    Run folders, weights and pictures go below `store`; a second call reads what is there and finishes what is not.

    Args:
        store: A folder, made when absent.
        executor: Where chains run; the numbers do not depend on it.

    Returns:
        JSON-able values: `ok`, `network` (accuracies), `cases` (one per line of the table), `pictures`.
    """
    home = Path(store)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"expected a folder that can be made, got {home}: {error.strerror}") from error
    images = packaged_images()
    train, test = images.tensors("train", _POOL), images.tensors("test", _POOL)
    start = time.perf_counter()
    with one_thread():
        net = _network(home / "network.safetensors", train)
    accuracy = {"train": _accuracy(net, train), "test": _accuracy(net, test)}
    print(
        f"Network {train[0].shape[1]}-{_HIDDEN}-10 on {len(train[1])} Fashion-MNIST images "
        f"({time.perf_counter() - start:.1f} s): accuracy {accuracy['train']:.1%} train, {accuracy['test']:.1%} test\n"
    )
    trained = Case("trained network", "network", lambda: Landscape(net, train, F.cross_entropy), None)
    print(_ROW.format("landscape", "parameters", "λ ± mc ± sys", "exact", "verdict", "seconds"), flush=True)
    rows, estimates = [], []
    for case in (*_KNOWN, trained):
        row, estimate = _measure(case, home, executor)
        rows.append(row)
        estimates.append(estimate)
        print(_line(row), flush=True)
    pictures = [
        _save(estimate.plot(), home / f"{row['folder']}.png") for row, estimate in zip(rows, estimates, strict=True)
    ]
    overview = plot_overview(rows, trained.build(), estimates[-1])
    pictures.append(_save(overview, home / "demo.png"))
    print("\nmc: Monte-Carlo error; sys: errors that more draws would not remove.")
    print(f"Half the number of parameters, the λ of a regular model, is {rows[-1]['half']:g} for the network.")
    print(f"Run folders and pictures are in {home}; look at one with: crunode show {home / rows[-1]['folder']}")
    ok = all(row["ok"] and row["agrees"] is not False for row in rows)
    return {"ok": ok, "network": accuracy, "cases": rows, "pictures": pictures}


def train_network(x: Tensor, y: Tensor, seed: int = 0) -> nn.Module:
    """A small network with one hidden layer, trained by Adam; the same one each time.

    Args:
        x: Inputs, one row for each example.
        y: Classes from 0 to 9.
        seed: Weights and order of the examples come from it.

    Example:
        >>> net = train_network(torch.rand(64, 4), torch.arange(64) % 10)
        >>> sum(p.numel() for p in net.parameters())
        250
    """
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(x.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 10))
    with torch.no_grad():
        for parameter in net.parameters():
            width = (parameter.shape[1] if parameter.ndim > 1 else 4) ** -0.5
            parameter.copy_(width * torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _EPOCHS)
    for _ in range(_EPOCHS):
        for index in torch.split(torch.randperm(len(y), generator=generator), 100):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(net(x[index]), y[index]))
            optimizer.step()
        schedule.step()
    return net


def _network(path: Path, train: tuple[Tensor, Tensor]) -> nn.Module:
    """The trained network, kept in a file: a resumed run must see the very same weights."""
    if not path.exists():
        net = train_network(*train)
        partial = path.with_suffix(".partial")
        save_file({name: value.contiguous() for name, value in net.state_dict().items()}, partial)
        partial.replace(path)
    net = nn.Sequential(nn.Linear(train[0].shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 10))
    net.load_state_dict(load_file(path))
    return net


def _accuracy(net: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float((net(data[0]).argmax(1) == data[1]).float().mean())


def _measure(case: Case, home: Path, executor: Executor | None) -> tuple[dict[str, Any], Estimate]:
    start = time.perf_counter()
    land = case.build()
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", DiagnosticWarning)  # the table gives the verdict
        estimate = llc(land, seed=0, store=home / case.folder, executor=executor, on_failure="return")
    agrees = None if case.exact is None else bool(abs(estimate.value - float(case.exact)) <= 2 * estimate.error)
    row = {
        "name": case.name,
        "folder": case.folder,
        "parameters": land.dim,
        "half": land.dim / 2,
        "value": estimate.value,
        "se": estimate.se,
        "systematic": estimate.systematic,
        "error": estimate.error,
        "exact": None if case.exact is None else str(case.exact),
        "agrees": agrees,
        "ok": estimate.ok,
        "findings": [f.code for f in estimate.findings if f.severity != "info"],
        "seconds": round(time.perf_counter() - start, 1),
    }
    return row, estimate


def _line(row: dict[str, Any]) -> str:
    value = f"{row['value']:.4g} ± {row['se']:.2g} ± {row['systematic']:.2g}"
    verdict = ("ok" if row["ok"] else "not ok") + (f" ({', '.join(row['findings'])})" if row["findings"] else "")
    if row["agrees"] is not None:
        verdict += ", agrees" if row["agrees"] else ", more than 2 errors off"
    return _ROW.format(row["name"], row["parameters"], value, row["exact"] or "", verdict, row["seconds"])


def _save(figure: Any, path: Path) -> str:
    figure.savefig(path)
    return str(path)
