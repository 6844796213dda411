"""Where a result came from: the library's commit and whether it was changed, torch and its build, the machine."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Source", "described", "merged", "provenance", "source_of"]

_PATIENCE = 5.0  # seconds for git


@dataclass(frozen=True)
class Source:
    """The state of the library's sources.

    Attributes:
        commit: The commit they are from; None where it cannot be known.
        changed: Whether they differ from it; None where that cannot be known.
    """

    commit: str | None = None
    changed: bool | None = None


def provenance() -> dict[str, Any]:
    """Versions, machine kind and the state of the library's sources, as stored beside every result.

    `git` is the commit of the library: that of the repository which tracks its files, or the one it was installed
    from; never that of a repository around the working directory. `changed` tells whether its files differed from that
    commit when the process first asked. Both are None where they cannot be known.

    Example:
        >>> sorted(provenance())[:3]
        ['changed', 'crunode', 'git']
    """
    import torch  # here, so that what is stored can be told without it

    return {**_settled(), "threads": torch.get_num_threads()}


@functools.cache
def _settled() -> Mapping[str, Any]:
    """What stays the same as long as the process lives."""
    import numpy as np
    import torch

    from crunode import __version__

    source = source_of(Path(__file__).resolve().parents[1])
    return {
        "crunode": __version__,
        "git": source.commit,
        "changed": source.changed,
        "torch": str(torch.__version__),
        "torch_build": _torch_build(),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _torch_build() -> str:
    """Commit, CUDA or ROCm, linear algebra and vector instructions of torch, which numbers may depend on."""
    import torch

    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    hip = getattr(torch.version, "hip", None)
    parts = [
        f"commit {str(torch.version.git_version)[:12]}",
        f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only",
        f"BLAS {blas.group(1) if blas else 'not known'}",
        torch.backends.cpu.get_cpu_capability(),
    ]
    return "; ".join([*parts, *(["debug"] if torch.version.debug else [])])


def source_of(package: Path) -> Source:
    """The state of the package in a folder, from the repository that tracks it, else from how it was installed.

    Example:
        >>> source_of(Path("no/such/folder/crunode"))
        Source(commit=None, changed=None)
    """
    try:
        package = package.resolve()
        home = next((folder / ".git" for folder in package.parents if (folder / ".git").exists()), None)
        return (_tracked(package, home) if home is not None else None) or _installed(package)
    except Exception:  # odd files, broken metadata: no run is to fail for this
        return Source()


def _tracked(package: Path, home: Path) -> Source | None:
    """From the repository around the package; None where it is not the package's own."""
    listed = _git(package.parent, "ls-files", "--error-unmatch", "--", f"{package.name}/__init__.py")
    if listed is None or listed.returncode > 1:  # no git here, or one that may not read this folder
        return Source(_commit(home)) if _indexed(package, home) else None
    if listed.returncode == 1:
        return None
    words = ("status", "--porcelain=v2", "--branch", "--untracked-files=all", "--", f"{package.name}*")
    status = _git(package.parent, *words)
    if status is None or status.returncode:
        return Source(_commit(home))
    heads = [line.split()[-1] for line in status.stdout.splitlines() if line.startswith("# branch.oid ")]
    others = [line for line in status.stdout.splitlines() if not line.startswith("#")]
    changed = any(line[0] != "?" or line.rstrip('"').endswith(".py") for line in others)
    return Source(next((head for head in heads if head != "(initial)"), None), changed)


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str] | None:
    """What git says in a folder, whatever repository the environment names; None where there is no git."""
    around = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    given: dict[str, Any] = {"cwd": folder, "env": {**around, "GIT_OPTIONAL_LOCKS": "0"}, "timeout": _PATIENCE}
    try:
        return subprocess.run(
            ["git", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            **given,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _repository(home: Path) -> Path:
    """The folder of the repository; `home` is that, or the file of a worktree or submodule that names it."""
    return home if home.is_dir() else (home.parent / home.read_text().removeprefix("gitdir:").strip()).resolve()


def _indexed(package: Path, home: Path) -> bool:
    """Whether the repository's list of files has the package, as far as that can be told without git."""
    index = _repository(home) / "index"
    wanted = (package / "__init__.py").relative_to(home.parent).as_posix()
    return index.exists() and wanted.encode() in index.read_bytes()


def _commit(home: Path) -> str | None:
    """The commit checked out, read from the repository's files."""
    home = _repository(home)
    text = (home / "HEAD").read_text().strip()
    if not text.startswith("ref: "):
        return text
    shared = home / (home / "commondir").read_text().strip() if (home / "commondir").exists() else home
    loose = shared / text[5:]
    if loose.exists():
        return loose.read_text().strip()
    rows = (line.split() for line in (shared / "packed-refs").read_text().splitlines())
    return next((row[0] for row in rows if row[1:] == [text[5:]]), None)


def _installed(package: Path) -> Source:
    """The commit that an installation from a repository notes (PEP 610), where it is the one of this package."""
    found = metadata.distribution(package.name)
    if Path(str(found.locate_file(f"{package.name}/__init__.py"))).resolve() != package / "__init__.py":
        return Source()
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return Source(origin.get("vcs_info", {}).get("commit_id"))


def merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The provenance of something made of parts: one value where they agree, else the list of all; None for not known.

    Example:
        >>> merged([{"git": "a", "threads": 1}, {"git": "b", "threads": 1}, {"threads": 1}])
        {'git': ['a', 'b', None], 'threads': 1}
    """
    found: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        values: list[Any] = []
        for part in parts:
            given = part.get(key)
            values += [v for v in (given if isinstance(given, list) else [given]) if v not in values]
        found[key] = values[0] if len(values) == 1 else values
    return found


def described(found: Mapping[str, Any]) -> str:
    """A provenance in words.

    Example:
        >>> described({"crunode": "0.1.0", "git": ["a", None], "changed": False, "device": None})
        'crunode 0.1.0, git a and not known, changed no'
    """
    words = {True: "yes", False: "no", None: "not known"}

    def said(value: Any) -> str:
        values = value if isinstance(value, list) else [value]
        return " and ".join(words[v] if v is None or isinstance(v, bool) else str(v) for v in values)

    return ", ".join(f"{key} {said(v)}" for key, v in found.items() if isinstance(v, str | int | list))
