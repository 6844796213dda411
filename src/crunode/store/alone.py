"""Run folders of estimates that took no chains: the manifest names no groups, the answer is in `estimates`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crunode.core.result import Estimate
from crunode.errors import StoreMismatch
from crunode.store.belongs import refuse
from crunode.store.documents import diff
from crunode.store.run_store import RunStore, load_estimate

__all__ = ["check_alone", "keep_alone", "kept_alone"]


def kept_alone(folder: str | os.PathLike[str], question: Mapping[str, Any]) -> Estimate | None:
    """The estimate that a folder holds without chains; None where it holds none, or a run with chains.

    Args:
        folder: The run folder.
        question: What is asked for, in JSON's types.

    Raises:
        StoreMismatch: It answers another question; the message shows the difference.
        StoreError: The folder is damaged.

    Example:
        >>> kept_alone("no such folder", {"seed": 0}) is None
        True
    """
    if not (Path(folder) / "manifest.json").exists():
        return None
    handle = RunStore.open(folder)
    if handle.groups or handle.status != "complete":
        return None
    refuse(folder, "this run, which took no chains", diff(handle.spec.get("question", {}), question))
    return load_estimate(folder)


def check_alone(folder: str | os.PathLike[str], question: Mapping[str, Any]) -> None:
    """See that a folder can take an estimate without chains, before it is computed.

    Args:
        folder: The run folder, or where it is to be.
        question: What is asked for, in JSON's types.

    Raises:
        StoreMismatch: It holds a run with chains; the message shows how what was asked for differs.
        StoreError: It holds something else.
    """
    handle = RunStore(folder)
    handle.check_vacant()
    if not (Path(folder) / "manifest.json").exists() or not handle.groups:
        return
    stored = handle.spec.get("asked", {})
    lines = diff(*({key: each[key] for key in stored if key in question} for each in (stored, question)))
    raise StoreMismatch(
        f"expected {folder} to be new or to hold an estimate without chains, which is how this call is answered, got "
        f"a run of {sum(map(len, handle.groups))} chains (status {handle.status!r}); settings differ:\n  "
        + "\n  ".join(lines[:20] or ["none: it was written by crunode.sample, or by another version"])
        + "\nChoose another folder, or repeat the call with the stored settings."
    )


def keep_alone(folder: str | os.PathLike[str], estimate: Estimate) -> None:
    """Make a complete run folder of an estimate without chains, with its question under `spec["question"]`.

    Args:
        folder: Path of the folder; it must be absent, empty, or hold the same run.
        estimate: The answer.

    Raises:
        StoreMismatch: The folder holds another run; the message shows the difference.
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as home:
        ...     keep_alone(home + "/a", Estimate("llc", 2.5, se=0.0, spec={"question": {"seed": 0}}, seed=0))
        ...     print(kept_alone(home + "/a", {"seed": 0}))
        llc 2.5 ± 0 mc ± 0 sys | ok
    """
    handle = RunStore.create(
        folder, spec=estimate.spec, groups=[], seed=estimate.seed or 0, provenance=estimate.provenance
    )
    if handle.status != "complete":
        handle.finish("complete", findings=estimate.findings, estimates=[estimate])
