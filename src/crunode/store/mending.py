"""Damaged run folders made whole: groups of chains with a lost or changed file are given back to be computed again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from crunode.errors import StoreError
from crunode.store.atomic import locked, read_bytes
from crunode.store.documents import read_document
from crunode.store.folder import VERSION, journal_name, label, well_formed
from crunode.store.guarded import inside
from crunode.store.run_store import UNFINISHED, RunStore

__all__ = ["Mended", "mend"]


@dataclass(frozen=True)
class Mended:
    """What was found in a run folder.

    Attributes:
        damaged: Files that are lost, cut or changed, with the reason.
        groups: Groups of chains that have to be computed again.
        kept: Groups that are whole.
    """

    damaged: dict[str, str]
    groups: tuple[int, ...]
    kept: tuple[int, ...]


def mend(folder: str | os.PathLike[str]) -> Mended:
    """Drop what is left of damaged groups of chains, so that the call that made the run can complete it.

    A group's draws follow from the seed, so the same call as before gives the same draws again; groups that are whole
    are not touched, and nothing is where no file is damaged. A complete run that was damaged is a running one
    afterwards. The manifest cannot be mended.

    Args:
        folder: A run folder of `sample` or `llc`.

    Returns:
        What was damaged, and which groups are to be computed again.

    Raises:
        StoreError: It is no run folder, its manifest is damaged, or another process is writing it.

    Example:
        >>> import tempfile, torch, crunode as cr
        >>> bowl = cr.Landscape.of_function(lambda w: w.square().sum(), torch.zeros(2), n=1000)
        >>> posterior = cr.Posterior(bowl, nbeta=100.0, prior=cr.Gaussian(precision=1.0))
        >>> with tempfile.TemporaryDirectory() as home:
        ...     call = lambda: cr.sample(posterior, cr.HMC(), chains=2, draws=20, warmup=20, seed=0, store=home)
        ...     before = call()
        ...     chunk = min(os.listdir(f"{home}/chunks"))
        ...     os.truncate(f"{home}/chunks/{chunk}", 10)
        ...     found = mend(home)
        ...     again = call()
        >>> len(found.damaged), bool((before.arrays["excess"] == again.arrays["excess"]).all())
        (1, True)
    """
    store = RunStore(folder)
    if not store.file("manifest.json").exists():
        raise StoreError(f"expected a run folder, got {store.folder}, which has no manifest.json; check the path")
    damaged: dict[str, str] = {}
    groups: list[int] = []
    kept: list[int] = []
    with store, well_formed(store.folder):
        manifest = store.manifest
        for group, chains in enumerate(manifest["groups"]):
            store.claim(group)
            found = _damage(store, group, manifest)
            damaged.update(found)
            (groups if found else kept).append(group)
            if found:
                fresh = {"group": group, "chains": chains, "arrays": {}, "chunks": [], "state": None}
                store.write_journal(fresh)
                store.clean(fresh)
        if groups:
            with locked(store.file("locks/run.lock")):
                store.write_manifest({**manifest, "status": "running", **UNFINISHED})
    return Mended(damaged, tuple(groups), tuple(kept))


def _damage(store: RunStore, group: int, manifest: dict[str, Any]) -> dict[str, str]:
    """Files of a group that are not what they should be, with the reason."""
    name = journal_name(group)
    try:
        journal = read_document(store.file(name), "crunode-group", VERSION, manifest["files"].get(name))
    except StoreError as error:
        return {name: str(error)}
    found = {}
    for entry in [*journal["chunks"], *([journal["state"]] if journal["state"] else [])]:
        try:
            if not os.path.basename(entry["file"]).startswith(label(group)):
                raise StoreError(f"{entry['file']} is no file of group {group}")
            read_bytes(inside(store.folder, entry["file"]), entry)
        except StoreError as error:
            found[entry["file"]] = str(error)
    return found
