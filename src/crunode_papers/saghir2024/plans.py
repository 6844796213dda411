"""Settings that the four recipes share, and cells made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crunode.core import derived_seed
from crunode.jobs import Cell

__all__ = ["FULL", "LENET", "TOY", "ffnn", "net_name", "repeated"]

TOY: Mapping[str, Any] = {
    "source": "small",
    "examples": 600,
    "pool": 4,
    "batch": 64,
    "probe": {"chains": 2, "warmup": 30, "draws": 40, "batch": 128, "step": 0.05, "resolution": 0.5},
}
"""Seconds on one core: a part of the images that come with the package, at 7 × 7 pixels."""

FULL: Mapping[str, Any] = {
    "source": "full",
    "examples": 60_000,
    "pool": 1,
    "batch": 128,
    "probe": {"chains": 4, "warmup": 600, "draws": 500, "batch": 256, "step": 0.02, "resolution": 0.3},
}
"""All images, in batches as the paper has them."""

LENET: Mapping[str, Any] = {"model": "lenet5"}


def ffnn(layers: int, width: int) -> dict[str, Any]:
    """A fully connected network.

    Example:
        >>> net_name(ffnn(2, 256))
        'FFNN 2 × 256'
    """
    return {"model": "ffnn", "layers": layers, "width": width}


def net_name(net: Mapping[str, Any]) -> str:
    """A network as tables name it."""
    return "LeNet-5" if net["model"] == "lenet5" else f"FFNN {net['layers']} × {net['width']}"


def repeated(cells: Sequence[tuple[str, Mapping[str, Any]]], repeats: int, seed: int) -> list[Cell]:
    """Cells for each repeat. Those of one repeat share initial weights and the order of examples.

    Example:
        >>> [cell.name for cell in repeated([("a", {}), ("b", {})], 2, 0)]
        ['a, seed 0', 'b, seed 0', 'a, seed 1', 'b, seed 1']
    """
    return [
        Cell(f"{name}, seed {k}", {**settings, "repeat": k, "seed": derived_seed(seed, k)})
        for k in range(repeats)
        for name, settings in cells
    ]
