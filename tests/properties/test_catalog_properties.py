import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crunode.errors import StoreError
from crunode.store.atomic import digest
from crunode.store.catalog import Catalog
from crunode.store.guarded import inside, is_plain_name, shown
from crunode.store.run_numbers import flat_settings
from crunode.store.run_record import HEADERS

text = st.text(st.characters(), max_size=12)  # lone surrogates too
leaves = st.none() | st.booleans() | st.integers() | st.floats() | text
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
)
KEYS = (
    "status",
    "seed",
    "spec",
    "groups",
    "files",
    "findings",
    "provenance",
    "run",
    "settings",
    "asked",
    "plan",
    "cells",
)


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as undoing:
        undoing.setattr(os, "fsync", lambda handle: None)
        yield


def sealed(form, content):
    body = {"format": form, "version": 1, **content}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**body, "sha256": digest(canonical)}).encode()


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(HEADERS)), st.dictionaries(st.sampled_from(KEYS), trees, max_size=6), st.binary(max_size=30)
)
def test_any_header_is_listed_or_passed_over(header, content, rest):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "sealed").mkdir()
        (root / "sealed" / header).write_bytes(sealed(HEADERS[header][1], content))
        (root / "broken").mkdir()
        (root / "broken" / header).write_bytes(b'{"format": "' + HEADERS[header][1].encode() + b'"' + rest)
        catalog = Catalog(root)
        assert [run.name for run in catalog.list()] == ["broken", "sealed"]
        assert catalog.get("broken").status == "damaged"
        assert catalog.get("sealed").kind == HEADERS[header][0]
        assert catalog.diff("sealed", "sealed") == []
        before = [run.to_dict() for run in catalog.list()]
        catalog.rebuild()
        assert before == [run.to_dict() for run in catalog.list()]


@given(st.text(st.sampled_from("ab./\\:\0"), max_size=12))
def test_no_name_leads_out_of_a_folder(name):
    root = Path("runs").absolute()
    try:
        path = inside(root, name)
    except StoreError:
        return
    assert is_plain_name(name)
    assert Path(os.path.normpath(path)).is_relative_to(root)
    assert path != root


@given(text)
def test_what_is_shown_is_printable_and_one_line(value):
    assert shown(value).isprintable()
    assert len(shown(value).splitlines()) <= 1


@given(st.dictionaries(text, trees, max_size=5))
def test_flat_settings_fit_the_index(content):
    for key, value in flat_settings(content).items():
        key.encode()
        assert isinstance(value, int | float | str)
        assert not isinstance(value, int) or -(2**63) <= value < 2**63
