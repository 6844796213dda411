"""Job files made by chance or by an enemy: a clear error, or units whose names stay below the folder of the results."""

import re
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from crunode.errors import InputError
from crunode.jobs.job_file import read_jobs
from crunode.store.guarded import is_plain_name

scalars = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["../x", "/etc/passwd", "a:b", "HMC"]),
)
keys = st.sampled_from(
    [
        *("name", "kind", "target", "recipe", "size", "weights", "seed", "settings", "matrix", "steps"),
        "store",
        "on",
        "job",
    ]
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() and ord(c) < 0xD800 else "?" for c in text) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    return repr(value)


def looked_at(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.toml")
        path.write_bytes(data)
        said, units = "expected", ()
        try:
            units = read_jobs(path).units
        except InputError as error:
            said = str(error)
        assert "expected" in said or "not valid" in said
        assert not re.search(r"[\x00-\x08\x1b]", said)
        for unit in units:
            assert is_plain_name(unit.name)
            assert "/" not in unit.name
            assert unit.weights is None or is_plain_name(unit.weights)


@given(st.dictionaries(keys, values, max_size=4), st.lists(st.dictionaries(keys, values, max_size=5), max_size=3))
def test_files_of_the_right_form(top, jobs):
    lines = [f"{key} = {toml(value)}" for key, value in top.items() if key != "job"]
    for job in jobs:
        lines += ["[[job]]", *(f"{key} = {toml(value)}" for key, value in job.items())]
    looked_at("\n".join(lines).encode())


@given(st.binary(max_size=200))
def test_files_of_any_form(data):
    looked_at(data)
