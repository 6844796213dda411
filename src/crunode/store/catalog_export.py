"""Runs of a catalogue for other programs: a table as CSV, draws as netCDF or zarr in the ArviZ schema."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crunode._extras import need
from crunode.errors import InputError, StoreError
from crunode.store.atomic import write_bytes
from crunode.store.catalog import Catalog
from crunode.store.run_record import flat_settings

__all__ = ["csv_text", "export_csv", "export_draws"]

_COLUMNS = ("run", "kind", "subject", "status", "seed", "created", "updated", "size", "tags", "findings", "summary")
_NUMBERS = ("quantity", "value", "se", "systematic", "ok")
_MOST_SETTINGS = 500


def csv_text(catalog: Catalog, names: Iterable[str]) -> str:
    """A table with one line for each result of each run, and one column for each setting.

    Text that a spreadsheet would take for a formula gets an apostrophe in front.

    Args:
        catalog: The catalogue.
        names: The runs.

    Example:
        >>> import tempfile
        >>> from crunode.store.run_store import RunStore
        >>> with tempfile.TemporaryDirectory() as root:
        ...     _ = RunStore.create(root + "/a", spec={"n": 9}, groups=[[0]], seed=3, provenance={})
        ...     print(csv_text(Catalog(root), ["a"]).splitlines()[0][-28:])
        value,se,systematic,ok,set.n
    """
    table: list[dict[str, Any]] = []
    keys: dict[str, None] = {}
    for name in names:
        entry, record = catalog.get(name), catalog.record(name)
        settings = {f"set.{key}": value for key, value in flat_settings(record.settings).items()}
        keys |= dict.fromkeys(settings)
        base = {"run": name, **{k: v for k, v in entry.to_dict().items() if k in _COLUMNS}, **settings}
        base |= {"tags": " ".join(entry.tags), "findings": " ".join(entry.findings)}
        rows = [dict(zip(_NUMBERS, number, strict=True)) for number in record.numbers] or [{"ok": entry.ok}]
        table += [{**base, **row} for row in rows]
    out = io.StringIO()
    columns = [*_COLUMNS, *_NUMBERS, *sorted(keys)[:_MOST_SETTINGS]]
    writer = csv.DictWriter(out, [_safe(column) for column in columns], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({_safe(key): _safe(value) for key, value in row.items()} for row in table)
    return out.getvalue()


def _safe(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return "" if value is None else "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = "".join(c if c.isprintable() else " " for c in value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") and text else text


def export_csv(catalog: Catalog, names: Iterable[str], path: str | os.PathLike[str]) -> Path:
    """Write `csv_text` to a file; returns its path.

    Raises:
        StoreError: The disk refused.
    """
    target = Path(path).absolute()
    write_bytes(target, csv_text(catalog, names).encode())
    return target


def export_draws(catalog: Catalog, name: str, path: str | os.PathLike[str]) -> Path:
    """Write the draws of a run in the schema of ArviZ: netCDF for a path ending in .nc, zarr for .zarr.

    `arviz.from_netcdf` and `arviz.from_zarr` read them back, as does `xarray.open_datatree`.

    Args:
        catalog: The catalogue.
        name: A run of kind "draws".
        path: The file or folder to write; it must not be there yet.

    Returns:
        The path.

    Raises:
        InputError: The path ends otherwise or is there already, or the run has no draws.
        MissingExtra: xarray, or what it writes the format with, is not installed.
    """
    target = Path(path).absolute()
    if target.suffix not in (".nc", ".zarr"):
        raise InputError(f"expected a path ending in .nc or .zarr, got {target.name}")
    if os.path.lexists(target):
        raise InputError(f"expected a new path, got {target}, which is there; choose another or remove it")
    if target.suffix == ".nc":
        need("h5netcdf", extra="arviz")
    else:
        need("zarr", extra="zarr")
    tree = catalog.draws(name).to_datatree()
    try:
        if target.suffix == ".nc":
            tree.to_netcdf(target, engine="h5netcdf")
        else:
            tree.to_zarr(target, mode="w-", zarr_format=2)  # with one file of metadata, which version 3 has not yet
    except OSError as error:
        raise StoreError(f"could not write {target}: {error.strerror or error}; choose another path") from error
    return target
