"""Fetching published data sets into the user's cache: only when asked, checked before anything is kept."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from crunode import InputError
from crunode.core import Progress
from crunode.store import digest, locked, write_bytes
from crunode_papers.image_data.image_files import ARRAYS, idx_name, missing_files
from crunode_papers.image_data.published import PUBLISHED, Published

__all__ = ["fetch_images"]

_TIMEOUT = 60.0
_PIECE = 1 << 20
_HAND = "get the file by other means and place it in a folder named by CRUNODE_DATA"


def fetch_images(name: str, cache: Path) -> Path:
    """Fetch the files of a data set into a folder below `cache`, and hold them against their published checksums.

    Each file is kept only once it was found to be right, and written whole or not at all; files that are there are not
    fetched again. Two processes do not fetch the same at once.

    Returns:
        The folder.

    Raises:
        InputError: No source could be reached, or what came is not what was published. Nothing of it stays.
        StoreError: The cache cannot be written.
    """
    known = PUBLISHED[name]
    folder = cache / known.folders[0]
    with locked(cache / "locks" / f"{name}.lock"):
        if known.md5 is not None:
            if missing_files(folder) != []:
                _fetch_archive(known, folder)
        else:
            for array in ARRAYS:
                path = folder / f"{idx_name(array)}.gz"
                if not path.is_file():
                    write_bytes(path, _fetch_idx(known, array))
    return folder


def _fetch_idx(known: Published, array: str) -> bytes:
    expected = known.digests["full"][array]

    def check(data: bytes) -> str | None:
        try:
            found = digest(gzip.decompress(data))
        except (OSError, EOFError, zlib.error) as error:
            return f"no whole gzip file ({error})"
        return None if found == expected else f"content with sha256 {found} in place of {expected}"

    return _first([source + f"{idx_name(array)}.gz" for source in known.sources], check, known.megabytes)


def _fetch_archive(known: Published, folder: Path) -> None:
    def check(data: bytes) -> str | None:
        found = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return None if found == known.md5 else f"a file with md5 {found} in place of {known.md5}"

    data = _first(list(known.sources), check, known.megabytes)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            # By their last names, so that no path of the archive decides where something is written.
            name = PurePosixPath(member.name).name
            opened = archive.extractfile(member) if member.isfile() and name.endswith(".bin") else None
            if opened is not None:
                write_bytes(folder / name, opened.read())


def _first(addresses: list[str], check: Callable[[bytes], str | None], megabytes: int) -> bytes:
    """What the first address gives that is right."""
    reasons = []
    for address in addresses:
        try:
            data = _read(address, megabytes)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reasons.append(f"{address}: {type(error).__name__}: {error}")
            continue
        wrong = check(data)
        if wrong is None:
            return data
        reasons.append(f"{address}: {wrong}")
    raise InputError(f"expected the published file from the network, got {'; '.join(reasons)}. Try again, or {_HAND}.")


def _read(address: str, megabytes: int) -> bytes:
    pieces: list[bytes] = []
    with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
        length = answer.headers.get("Content-Length")
        with Progress(int(length) if length else 0, address.rsplit("/", 1)[-1]) as bar:
            while piece := answer.read(_PIECE):
                pieces.append(piece)
                bar.advance(len(piece))
                if sum(map(len, pieces)) > 2 * megabytes * 1_000_000:
                    raise ValueError(f"more than {2 * megabytes} MB came, which cannot be it")
    data = b"".join(pieces)
    if length and len(data) != int(length):
        raise ValueError(f"{len(data)} bytes came of {length}: the connection was cut")
    return data
