"""What is kept of an estimate's settings along a trajectory."""

from __future__ import annotations

from typing import Any

from crunode.core.result import Estimate
from crunode.sampling.tuning import KERNELS, Plan

__all__ = ["held_settings"]


def held_settings(estimate: Estimate) -> dict[str, Any]:
    """The arguments with which `llc` uses the settings of an earlier estimate instead of tuning again.

    These are the levels of nβ, the precision γ, the kernel with its step, the numbers of chains, draws and warm-up
    steps, and whose labels were taken. An estimate that comes from the valley of a noise-free
    loss, with chains beside it or without, is made by a rule that has nothing to tune; of it only the choice of labels
    is kept.

    Args:
        estimate: What `llc` gave.

    Returns:
        Keyword arguments of `llc`.

    Example:
        >>> import torch
        >>> from crunode import Landscape, llc
        >>> land = Landscape.of_function(lambda w: w.square().sum(), torch.zeros(1))
        >>> first = llc(land, nbeta=100.0, precision=1.0, chains=32, draws=50)
        >>> kept = held_settings(first)
        >>> kept["nbeta"], kept["chains"], kept["kernel"].step == first.spec["kernel"]["step"]
        ((100.0,), 32, True)
    """
    spec, labels = estimate.spec, estimate.diagnostics.get("labels")
    kept: dict[str, Any] = {} if labels is None else {"labels": labels["kind"]}
    if "kernel" not in spec or "limit" in spec:
        return kept
    kept |= {"nbeta": tuple(spec["nbeta"])}
    kept |= {name: spec[name] for name in ("precision", "chains", "draws", "warmup")}
    if spec["kernel"]["name"] in KERNELS:  # others stay as they were given
        kept["kernel"] = Plan.from_spec(spec).kernel
    return kept
