import json
import os

import numpy as np
import pytest

from crunode.errors import StoreError
from crunode.store.mending import mend
from crunode.store.run_store import RunStore


def made(home, draws=3):
    """A complete run of three groups, as a sampler would write it."""
    with RunStore.create(
        home, spec={"nbeta_per_chain": [1.0] * 4}, groups=[[0], [1, 2], [3]], seed=0, provenance={}
    ) as store:
        for group, chains in enumerate(store.groups):
            state = store.resume(group)
            start = 0 if state is None else state[1]["step"]
            for step in range(start, draws):
                values = np.array([[10.0 * chain + step] for chain in chains])
                store.append(group, "draws", {"excess": values}, {"at": values[:, 0]}, {"step": step + 1})
        store.finish("complete")
    return RunStore.open(home).draws().arrays["excess"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flipped": flip,
    "cut": lambda path: os.truncate(path, 5),
    "empty": lambda path: os.truncate(path, 0),
    "gone": os.unlink,
}
FILES = {
    "chunk": "chunks/g001-draws-00001.safetensors",
    "state": "state/g001-00000003.safetensors",
    "journal": "groups/g001.json",
}


@pytest.mark.heavy
@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_groups_are_computed_again_and_others_kept(tmp_path, damage, file):
    home = tmp_path / "run"
    before = made(home)
    kept = {path: path.read_bytes() for path in home.rglob("g000*") if path.suffix != ".lock"}
    damage(home / file)
    found = mend(home)
    assert list(found.damaged) == [file]
    assert (found.groups, found.kept) == ((1,), (0, 2))
    assert RunStore.open(home).status == "running"
    assert {path: path.read_bytes() for path in kept} == kept
    assert np.array_equal(made(home), before)
    assert RunStore.open(home).status == "complete"


def test_a_whole_run_is_not_touched(tmp_path):
    home = tmp_path / "run"
    made(home)
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    found = mend(home)
    assert found.damaged == {}
    assert found.kept == (0, 1, 2)
    assert {path: path.read_bytes() for path in files} == files


def test_what_cannot_be_mended_is_said_and_left(tmp_path):
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        mend(tmp_path)
    home = tmp_path / "run"
    made(home)
    flip(home / "manifest.json")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        mend(home)
    assert (home / FILES["chunk"]).exists()


@pytest.mark.heavy
def test_a_run_that_is_being_written_is_left_alone(tmp_path):
    home = tmp_path / "run"
    made(home)
    os.unlink(home / FILES["chunk"])
    mend(home)
    with RunStore(home) as writer:
        writer.resume(1)
        os.unlink(home / "groups/g002.json")
        with pytest.raises(StoreError, match="another process"):
            mend(home)


def test_on_the_command_line(tmp_path, capsys):
    pytest.importorskip("typer")
    import crunode.cli as cli

    def code(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["runs", "mend", "run", "--root", str(tmp_path), *words])
        return end.value.code

    made(tmp_path / "run")
    assert code() == 0
    assert "all files are whole" in capsys.readouterr().out
    os.unlink(tmp_path / "run" / FILES["chunk"])
    assert code() == 1
    assert "1 of 3 groups of chains were dropped" in capsys.readouterr().out
    assert code("--json") == 0
    assert json.loads(capsys.readouterr().out)["kept"] == [0, 1, 2]
