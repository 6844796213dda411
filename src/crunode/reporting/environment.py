"""What this installation has: versions, devices, threads, optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from importlib import metadata
from typing import Any

__all__ = ["EXTRAS", "environment"]

EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "plot": (("matplotlib",), "pictures of estimates (est.plot())"),
    "report": (("jinja2",), "reports as one HTML file"),
    "app": (("fastapi", "jinja2", "uvicorn"), "the dashboard (crunode serve)"),
    "arviz": (("xarray", "arviz"), "draws in the ArviZ schema (draws.to_datatree())"),
    "zarr": (("zarr",), "draws as zarr archives"),
    "hf": (("transformers",), "language models of Hugging Face"),
    "ray": (("ray",), "chains on a Ray cluster"),
    "track": (("lightning", "tensorboard", "wandb", "mlflow"), "trackers in Lightning, and loggers for them"),
    "symbolic": (("sympy",), "polynomials given as text"),
}
"""Packages of each extra, and what it is for."""

_REQUIRED = ("torch", "numpy", "safetensors", "typer", "tqdm")


def environment() -> dict[str, Any]:
    """Versions, devices, threads and extras as JSON-able values; missing packages are reported, not raised.

    Example:
        >>> sorted(environment())
        ['crunode', 'devices', 'extras', 'packages', 'platform', 'python', 'threads']
    """
    from crunode import __version__

    devices, threads = _hardware()
    extras = {}
    for extra, (packages, purpose) in EXTRAS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        extras[extra] = {"present": not missing, "missing": missing, "purpose": purpose}
    return {
        "crunode": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in _REQUIRED},
        "devices": devices,
        "threads": threads,
        "extras": extras,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _hardware() -> tuple[list[str], dict[str, int | None]]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return ["cpu"], {"cores": cores, "torch": None}
    devices = ["cpu"]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {found.name}, {found.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        devices.append("mps")
    return devices, {"cores": cores, "torch": torch.get_num_threads()}
