"""The run folder: draws on disk that survive a kill, resume to the same draws, and are checked when read."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

import numpy as np

from crunode.core.result import Draws, Estimate, Finding
from crunode.errors import InputError, StoreError
from crunode.store.atomic import digest, locked, read_bytes, write_bytes
from crunode.store.belongs import refuse
from crunode.store.chunks import Kind, checked, length, pack, shapes, unpack
from crunode.store.documents import diff, plain, read_document, write_document
from crunode.store.folder import VERSION, RunFolder, chain_count, journal_name, label, well_formed
from crunode.store.guarded import inside

__all__ = ["UNFINISHED", "VERSION", "RunStore", "diff", "load_estimate", "save_estimate"]

UNFINISHED: dict[str, Any] = {"dims": {}, "files": {}, "findings": [], "estimates": [], "extra": {}}
"""What the manifest of a run says of its end before it has come."""


class RunStore(RunFolder):
    """A handle on a run folder: cheap to make, and to pickle into another process.

    Chains are partitioned into groups, and each group is written by one process at a time. `resume` claims a
    group for this handle and says where it stands; every `append` then commits a chunk of draws together with
    the sampler state after it. A process killed at any moment leaves the folder at the last commit.

    Args:
        folder: The run folder. Use `create` or `open`, which check it.
        writable: Whether groups may be claimed.

    Example:
        >>> import tempfile
        >>> spec = {"nbeta_per_chain": [10.0, 10.0]}
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     store = RunStore.create(f"{parent}/a", spec=spec, groups=[[0, 1]], seed=0, provenance={})
        ...     print(store.resume(0))
        ...     store.append(0, "draws", {"excess": np.ones((2, 3))}, {"w": np.zeros(4)}, {"step": 3})
        ...     state, meta = store.resume(0)
        ...     store.finish("complete")
        ...     print(meta, store.draws().draws)
        None
        {'step': 3} 3
    """

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        spec: Mapping[str, Any],
        groups: Sequence[Sequence[int]],
        seed: int,
        provenance: Mapping[str, Any],
    ) -> RunStore:
        """Make a run folder, or open the one that is there to continue it.

        An existing folder keeps the partition and the provenance it was made with: the partition asked for
        must only have the same chains, so a run can be continued with another number of workers.

        Args:
            folder: Path of the folder; it must be absent, empty, or a run folder.
            spec: Resolved settings, as JSON-able values.
            groups: Partition of the chains 0, 1, ... into groups of work; empty for an estimate without chains.
            seed: The seed all randomness comes from.
            provenance: Versions and source state.

        Raises:
            InputError: The groups are not a partition of 0, 1, ..., or the spec has no JSON form.
            StoreMismatch: The folder holds a run with other settings; the message shows which.
            StoreError: The folder is something else, is corrupt, or cannot be written.
        """
        store = cls(folder)
        chains = sorted(chain for group in groups for chain in group)
        if chains != list(range(len(chains))) or not all(len(group) for group in groups):
            raise InputError(
                "expected groups that hold each of the chains 0, 1, ... once, "
                f"got {[list(group) for group in groups]}; pass for example [[0, 1], [2, 3]]"
            )
        content = {
            "status": "running",
            "seed": plain(seed, "seed"),
            "groups": plain([list(group) for group in groups], "groups"),
            "spec": plain(spec, "spec"),
            "provenance": plain(provenance, "provenance"),
            **UNFINISHED,
        }
        if store.file("manifest.json").exists() and store._matches(content)["status"] != "failed":
            return store
        store.check_vacant()
        with locked(store.file("locks/run.lock")):
            if store.file("manifest.json").exists():
                found = store._matches(content)
                if found["status"] == "failed":
                    store.write_manifest({**found, "status": "running", **UNFINISHED})
                return store
            store.check_vacant()
            store.clean(None)
            for number, group in enumerate(content["groups"]):
                store.write_journal({"group": number, "chains": group, "arrays": {}, "chunks": [], "state": None})
            store.write_manifest(content)  # last: what it names is there
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> RunStore:
        """Open a run folder for reading only.

        Raises:
            StoreError: There is no run in the folder, or its manifest is unreadable.
        """
        store = cls(folder, writable=False)
        if not store.file("manifest.json").exists():
            raise StoreError(f"expected a run folder, got {store.folder}, which has no manifest.json; check the path")
        _ = store.manifest
        return store

    def resume(self, group: int) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
        """Claim a group for this handle, and return the state and metadata of its last commit.

        What an interrupted commit left behind is removed. A claim lasts until `finish`, `close`, a failed
        `append`, or the end of the process. A handle from `open`, and a complete run, are read without claim.

        Returns:
            `(state, meta)` as given to the last `append`, or None before the first.

        Raises:
            StoreError: Another process is writing the group, or a file of it is missing or corrupt.
        """
        with well_formed(self.folder):
            manifest = self.manifest
            if self.writable and manifest["status"] != "complete":
                self.claim(group)
            journal = self.journal(group, manifest)
            for entry in journal["chunks"]:
                self._check_size(entry)
            if self.claimed(group):
                self.clean(journal)
            if journal["state"] is None:
                return None
            return unpack(read_bytes(self.file(journal["state"]["file"]), journal["state"]))

    def append(
        self,
        group: int,
        kind: Kind,
        arrays: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
    ) -> None:
        """Commit a chunk of draws and the sampler state after it, both or neither.

        Args:
            group: Index of a group that this handle has claimed by `resume`.
            kind: "warmup" or "draws".
            arrays: Named arrays of shape (chain in group, draw in chunk, ...); the same names, types and
                trailing shapes in each chunk of a kind.
            state: Arrays from which the sampler can continue.
            meta: Small JSON-able values kept with the state, such as `{"step": 1200}`.

        Raises:
            InputError: The arrays do not fit the group or its earlier chunks.
            StoreError: The group is not claimed, or the disk refused. Nothing half-written counts; call
                `resume` to see where the group stands.
        """
        if not self.claimed(group):
            raise StoreError(
                f"group {group} of {self.folder} is not claimed by this handle (status {self.status!r}"
                f"{'' if self.writable else ', opened for reading'}); call resume({group}) before append, "
                "and again after a failed append"
            )
        journal = self.journal(group, self.manifest)
        like, draws = checked(journal, kind, arrays)
        number = sum(entry["kind"] == kind for entry in journal["chunks"])
        chunk_name = f"chunks/{label(group)}-{kind}-{number:05d}.safetensors"
        state_name = f"state/{label(group)}-{len(journal['chunks']) + 1:08d}.safetensors"
        chunk_data, state_data = pack(arrays), pack(state, meta)
        try:
            wrote_chunk = write_bytes(self.file(chunk_name), chunk_data)
            wrote_state = write_bytes(self.file(state_name), state_data)
            committed = {
                **journal,
                "arrays": {**journal["arrays"], kind: like},
                "chunks": [*journal["chunks"], {"file": chunk_name, "kind": kind, "draws": draws, **wrote_chunk}],
                "state": {"file": state_name, **wrote_state},
            }
            self.write_journal(committed)
        except BaseException:
            # Whether the commit took place is for the disk to say: the next append must resume first.
            self.release(group)
            raise
        if journal["state"] is not None:
            with contextlib.suppress(OSError):  # an old state does no harm, and goes later
                os.unlink(self.file(journal["state"]["file"]))

    def read(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """All draws and all warm-up, each array of shape (chain, draw, ...) in the order of the chains.

        While a run is not complete its groups may have come to different lengths; the shortest is returned.

        Returns:
            `(arrays, warmup)`.

        Raises:
            StoreError: A file is missing, truncated or corrupt; the message names it.
        """
        with well_formed(self.folder):
            journals = self.journals(self.manifest)
            return self._gather(journals, "draws"), self._gather(journals, "warmup")

    def draws(self) -> Draws:
        """The stored draws with their settings; see `read`.

        Raises:
            StoreError: As `read`; or the spec lacks `nbeta_per_chain`, one number for each chain.
        """
        manifest = self.manifest
        with well_formed(self.folder):
            nbeta = np.asarray(manifest["spec"].get("nbeta_per_chain", ()), dtype=np.float64)
            chains = chain_count(manifest)
            findings = tuple(Finding(**finding) for finding in manifest["findings"])
            provenance = manifest["provenance"]
            roles = manifest["spec"].get("role_per_chain", ["ladder"] * chains)
            if len(roles) != chains or not all(isinstance(role, str) for role in roles):
                raise ValueError(f"{len(roles)} roles for {chains} chains")
        if nbeta.shape != (chains,):
            raise StoreError(
                f"{self.folder}: expected {chains} numbers in the setting nbeta_per_chain, got {nbeta.size}; "
                "store it with the spec when the folder is created"
            )
        arrays, warmup = self.read()
        return Draws(arrays, warmup, nbeta, manifest["spec"], findings, provenance)

    def finish(
        self,
        status: Literal["complete", "failed"],
        *,
        findings: Sequence[Finding] = (),
        estimates: Sequence[Estimate] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the final status, with an inventory of all files, and release the claims of this handle.

        A complete run takes no more draws. A failed one is continued by `create`.

        Args:
            status: "complete" or "failed".
            findings: What was noticed while sampling.
            estimates: Estimates to save in the folder, as by `save_estimate`.
            extra: Anything else to keep in the manifest, as JSON-able values.

        Raises:
            StoreError: The run is declared complete but its groups have different numbers of draws or none,
                or the disk refused.
        """
        if not self.writable or status not in ("complete", "failed"):
            asked = repr(status) if self.writable else "finish on a handle opened for reading"
            raise InputError(f"expected status 'complete' or 'failed' on a handle from create, got {asked}")
        manifest = self.manifest
        journals = self.journals(manifest)
        lengths = [length(journal, "draws") for journal in journals]
        if status == "complete" and (len(set(lengths)) > 1 or not all(j["chunks"] for j in journals)):
            raise StoreError(
                f"{self.folder}: expected the same number of draws in all groups of a complete run, "
                f"got {lengths}; run the groups to their end first, or finish with status 'failed'"
            )
        for estimate in estimates:
            save_estimate(self.folder, estimate)
        files = {}
        for group, journal in enumerate(journals):
            if self.claimed(group):
                self.clean(journal)
            data = read_bytes(self.file(journal_name(group)))
            entries = [*journal["chunks"], *([journal["state"]] if journal["state"] else [])]
            files.update({e["file"]: {"sha256": e["sha256"], "bytes": e["bytes"]} for e in entries})
            files[journal_name(group)] = {"sha256": digest(data), "bytes": len(data)}
        final = {
            "status": status,
            "dims": {"draws": shapes(journals, "draws"), "warmup": shapes(journals, "warmup")},
            "files": dict(sorted(files.items())),
            "findings": [asdict(finding) for finding in findings],
            "estimates": [estimate.name for estimate in estimates],
            "extra": plain(extra or {}, "extra"),
        }
        with locked(self.file("locks/run.lock")):
            self.write_manifest({**manifest, **final})
        self.close()

    def _matches(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest on disk, when it belongs to the run that is asked for."""
        with well_formed(self.folder):
            manifest = self.manifest
            lines = diff(manifest["spec"], asked["spec"])
            lines += diff(*({"seed": each["seed"], "chains": chain_count(each)} for each in (manifest, asked)))
        refuse(self.folder, "this run", lines)
        return manifest

    def _check_size(self, entry: Mapping[str, Any]) -> None:
        """Find a lost or cut file without reading it, so that nothing is sampled on top of it."""
        path = self.file(entry["file"])
        found = None
        with contextlib.suppress(OSError):
            found = path.stat().st_size
        if found != entry["bytes"]:
            raise StoreError(
                f"{path} is {'missing' if found is None else 'truncated or overwritten'}: "
                f"expected {entry['bytes']} bytes, got {found or 'none'}. "
                "Restore it from a copy, or run again in a new folder."
            )

    def _gather(self, journals: Sequence[Mapping[str, Any]], kind: Kind) -> dict[str, np.ndarray]:
        likes = [journal["arrays"][kind] for journal in journals if kind in journal["arrays"]]
        if any(like != likes[0] for like in likes):
            raise StoreError(
                f"{self.folder}: expected the same {kind} arrays in all groups, got {likes}; "
                "write the same names, types and shapes in each group"
            )
        wanted = {
            name: (tuple(shape), np.dtype(likes[0][name]["dtype"])) for name, shape in shapes(journals, kind).items()
        }
        needed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in wanted.values())
        stored = sum(entry["bytes"] for journal in journals for entry in journal["chunks"] if entry["kind"] == kind)
        if needed > stored:
            raise StoreError(
                f"{self.folder} is corrupt: expected {needed} bytes of {kind} in its chunks, which have {stored}. "
                "Restore it from a copy, or run again in a new folder."
            )
        result = {name: np.empty(shape, dtype) for name, (shape, dtype) in wanted.items()}
        for journal in journals:
            start = 0
            for entry in (entry for entry in journal["chunks"] if entry["kind"] == kind):
                chunk, _ = unpack(read_bytes(self.file(entry["file"]), entry))
                for name, whole in result.items():
                    kept = chunk[name][:, : max(whole.shape[1] - start, 0)]
                    whole[journal["chains"], start : start + kept.shape[1]] = kept
                start += entry["draws"]
        return result


def save_estimate(folder: str | os.PathLike[str], estimate: Estimate) -> Path:
    """Write an estimate, without its draws, to `estimates/<name>.json` in a run folder.

    Characters of the name that not every file system takes are percent-encoded. An estimate of the same name
    is replaced.

    Returns:
        Path of the file.

    Raises:
        StoreError: The disk refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_estimate(folder, Estimate("llc", 2.5, se=0.1))
        ...     print(load_estimate(folder))
        llc 2.50 ± 0.1 mc ± 0 sys | ok
    """
    path = Path(folder).absolute() / "estimates" / f"{quote(estimate.name, safe=' ')}.json"
    with locked(path.parent.parent / "locks" / "run.lock"):
        write_document(path, "crunode-estimate", VERSION, {"estimate": plain(estimate.to_dict(), estimate.name)})
    return path


def load_estimate(folder: str | os.PathLike[str], name: str | None = None) -> Estimate:
    """Read an estimate back, with its draws when the folder has some.

    Args:
        folder: The folder given to `save_estimate`.
        name: Name of the estimate; may be left out when the folder has one.

    Raises:
        InputError: There is no such estimate, or several and no name.
        StoreError: A file is corrupt.
    """
    home = Path(folder).absolute()
    names = sorted(unquote(path.stem) for path in (home / "estimates").glob("*.json"))
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        raise InputError(f"expected the name of an estimate in {home}, one of {names}, got {name!r}")
    path = inside(home, f"estimates/{quote(str(name), safe=' ')}.json")
    content = read_document(path, "crunode-estimate", VERSION).get("estimate")
    draws = None
    if (home / "manifest.json").exists():
        stored = RunStore.open(home).draws()
        draws = stored if "excess" in stored.arrays else None
    with well_formed(home):
        found = Estimate.from_dict({} if content is None else content, draws)
        str(found)  # fails here, and not where it is printed, when diagnostics are of a wrong type
    return found
