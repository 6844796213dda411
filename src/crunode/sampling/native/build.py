"""Compiling a C file that comes with the package, once for each processor, into the user's cache.

Nothing here raises: where there is no compiler, no home folder or no trust in what lies there, there is no library,
and whoever asked computes in another way.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

__all__ = ["COMPILERS", "cache_folder", "load"]

COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
_LONGEST = 30  # seconds


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "crunode" / "native"


def load(source: Path, folder: Path | None = None) -> tuple[ctypes.CDLL | None, str]:
    """The library made from a C file, compiled unless it was before; or None and why there is none.

    A library is named by its source, compiler flags and processor, so that another version, or another machine with
    the same home folder, gets its own. It is written under a temporary name and renamed, so that processes that
    compile at the same time do not disturb one another.

    Args:
        source: The C file.
        folder: Where libraries are kept; the user's cache by default. Others may not be able to write there.
    """
    try:
        if os.name != "posix":
            return None, f"not tried on {platform.system()}"
        folder = folder or cache_folder()
        text = source.read_bytes()
        key = hashlib.sha256(b"\0".join([text, repr(_FLAGS).encode(), _processor().encode()])).hexdigest()[:24]
        library = folder / f"{source.stem}-{key}.so"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        if not library.exists():
            _compile(source, library)
        _check_private(library)
        return ctypes.CDLL(str(library)), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"{type(error).__name__}: {error}"


def _compile(source: Path, library: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise RuntimeError(f"no C compiler among {', '.join(COMPILERS)}")
    handle, name = tempfile.mkstemp(suffix=".so", dir=library.parent)  # readable and writable by the owner alone
    os.close(handle)
    try:
        command = [compiler, *_FLAGS, "-o", name, str(source)]
        done = subprocess.run(command, capture_output=True, timeout=_LONGEST, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{compiler} failed: {done.stderr.decode(errors='replace').strip()[:300]}")
        os.chmod(name, 0o700)
        os.replace(name, library)
    finally:
        Path(name).unlink(missing_ok=True)


def _check_private(path: Path) -> None:
    """Refuse what another user could have written or put there, links included."""
    found = path.lstat()
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    if not kind or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RuntimeError(f"{path} is not a private file or folder of this user")


def _processor() -> str:
    """What code for this very processor depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kept = [line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features", "isa")]
        return "\n".join([platform.machine(), *sorted(set(kept))])
    except OSError:
        return f"{platform.platform()} {platform.processor()} {platform.node()}"
