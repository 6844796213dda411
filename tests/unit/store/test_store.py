import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crunode.core.result import Estimate, Finding
from crunode.errors import InputError, StoreError, StoreMismatch
from crunode.store import atomic
from crunode.store import run_store as store
from crunode.store.run_store import RunStore, diff, load_estimate, save_estimate

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "store.md"
GROUPS = [[0, 2], [1]]
SPEC = {"kernel": {"step": 0.1}, "nbeta_per_chain": [1.0, 2.0, 2.0]}


def create(folder, spec=SPEC, groups=GROUPS, seed=0):
    return RunStore.create(folder, spec=spec, groups=groups, seed=seed, provenance={"crunode": "0"})


def chunk(chains, first, draws):
    """Draws that tell their chain and position."""
    excess = np.array([[100.0 * c + first + k for k in range(draws)] for c in chains])
    return {"excess": excess, "distance2": (excess**2).astype(np.float32)}


def filled(folder, lengths=((2, 3), (5,)), finish=True):
    run = create(folder)
    for group, chains in enumerate(GROUPS):
        run.resume(group)
        run.append(group, "warmup", chunk(chains, -1, 1), {}, {"step": 1})
        done = 0
        for draws in lengths[group]:
            run.append(group, "draws", chunk(chains, done, draws), {"x": np.arange(done)}, {"step": 1 + done})
            done += draws
    if finish:
        run.finish("complete")
    return run


def files(folder):
    return {p.relative_to(folder).as_posix() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.fixture
def full(tmp_path):
    return filled(tmp_path / "run")


def test_draws_come_back_in_chain_order(full):
    draws = RunStore.open(full.folder).draws()
    assert np.array_equal(draws.arrays["excess"], chunk([0, 1, 2], 0, 5)["excess"])
    assert draws.arrays["distance2"].dtype == np.float32
    assert np.array_equal(draws.warmup["excess"], chunk([0, 1, 2], -1, 1)["excess"])
    assert draws.nbeta.tolist() == [1.0, 2.0, 2.0]
    assert draws.spec == SPEC
    assert (draws.chains, draws.draws) == (3, 5)


def test_state_and_meta_come_back(tmp_path):
    run = create(tmp_path / "run")
    assert run.resume(1) is None
    run.append(1, "draws", chunk([1], 0, 2), {"x": np.float32([1, 2])}, {"step": 7, "scale": float("inf")})
    state, meta = run.resume(1)
    assert state["x"].tolist() == [1.0, 2.0]
    assert meta == {"step": 7, "scale": float("inf")}
    assert run.resume(0) is None


def test_only_the_last_state_is_kept(full):
    assert {name for name in files(full.folder) if name.startswith("state/")} == {
        "state/g000-00000003.safetensors",
        "state/g001-00000002.safetensors",
    }


def test_transposed_and_big_endian_arrays_keep_their_values(tmp_path):
    run = create(tmp_path / "run", groups=[[0, 1, 2]])
    run.resume(0)
    values = np.arange(6.0).reshape(2, 3).T.astype(">f8")
    run.append(0, "draws", {"excess": values}, {"scalar": np.array(3.0)}, {})
    assert np.array_equal(run.read()[0]["excess"], values)
    assert run.resume(0)[0]["scalar"].shape == ()


def test_handle_is_pickled_without_claims(tmp_path):
    run = create(tmp_path / "run")
    run.resume(0)
    copy = pickle.loads(pickle.dumps(run))
    assert copy.folder == run.folder
    assert len(pickle.dumps(run)) < 500
    with pytest.raises(StoreError, match="not claimed"):
        copy.append(0, "draws", chunk([0, 2], 0, 1), {}, {})


def test_existing_folder_is_continued_with_its_own_groups(tmp_path):
    filled(tmp_path / "run", finish=False).close()
    run = create(tmp_path / "run", groups=[[0], [1, 2]])
    assert run.groups == GROUPS
    assert run.resume(0)[1] == {"step": 3}


def test_groups_of_different_length_are_cut_while_running(tmp_path):
    run = filled(tmp_path / "run", lengths=((2, 3), (4,)), finish=False)
    assert run.draws().draws == 4
    with pytest.raises(StoreError, match=r"got \[5, 4\]"):
        run.finish("complete")
    run.finish("failed")
    assert run.draws().draws == 4


def test_empty_run_reads_as_no_arrays(tmp_path):
    assert create(tmp_path / "run").read() == ({}, {})


def test_one_group_without_draws(tmp_path):
    run = create(tmp_path / "run")
    run.resume(0)
    run.append(0, "draws", chunk([0, 2], 0, 2), {}, {})
    assert run.read()[0]["excess"].shape == (3, 0)


def test_complete_run_takes_no_more_draws(full):
    run = create(full.folder)
    assert run.status == "complete"
    assert run.resume(0)[1] == {"step": 3}
    with pytest.raises(StoreError, match="status 'complete'"):
        run.append(0, "draws", chunk([0, 2], 0, 1), {}, {})


def test_failed_run_is_continued(tmp_path):
    run = filled(tmp_path / "run", finish=False)
    run.finish("failed", findings=[Finding.of("MC204", "chain 1")])
    assert RunStore.open(run.folder).draws().findings[0].code == "MC204"
    again = create(run.folder)
    assert again.status == "running"
    again.resume(0)
    again.append(0, "draws", chunk([0, 2], 5, 1), {}, {})


def test_read_only_handle_does_not_write(full):
    run = RunStore.open(full.folder)
    before = files(full.folder)
    run.resume(0)
    with pytest.raises(StoreError, match="opened for reading"):
        run.append(0, "draws", chunk([0, 2], 0, 1), {}, {})
    with pytest.raises(InputError, match="opened for reading"):
        run.finish("failed")
    assert files(full.folder) == before


def test_finish_lists_files_and_shapes(full):
    manifest = full.manifest
    assert manifest["dims"]["draws"] == {"distance2": [3, 5], "excess": [3, 5]}
    assert set(manifest["files"]) == files(full.folder) - {
        "manifest.json",
        "locks/run.lock",
        "locks/g000.lock",
        "locks/g001.lock",
    }
    for name, entry in manifest["files"].items():
        data = (full.folder / name).read_bytes()
        assert entry == {"sha256": atomic.digest(data), "bytes": len(data)}


def test_other_settings_are_shown(full):
    with pytest.raises(StoreMismatch) as error:
        create(full.folder, spec={"kernel": {"step": 0.2}, "nbeta_per_chain": [1.0, 2.0, 3.0]}, seed=5)
    text = str(error.value)
    assert "kernel.step: stored 0.1, asked 0.2" in text
    assert "nbeta_per_chain.2: stored 2.0, asked 3.0" in text
    assert "seed: stored 0, asked 5" in text


def test_other_chains_are_refused(full):
    with pytest.raises(StoreMismatch, match="chains: stored 3, asked 2"):
        create(full.folder, groups=[[0, 1]])


def test_diff():
    assert diff({"a": 1, "n": float("nan"), "t": (1, 2)}, {"a": 1.0, "n": float("nan"), "t": [1, 2]}) == []
    assert diff({"a": [1, 2]}, {"a": [1]}) == ["a: stored [1, 2], asked [1]"]
    assert diff({"a": {"b": 1}}, {}) == ["a: stored {'b': 1}, asked nothing"]
    assert len(diff({"a": "x" * 500}, {"a": 1})[0]) < 150


@pytest.mark.parametrize("groups", [[[]], [[0], [0]], [[1]], [[0, 2]], [[0], []]])
def test_groups_must_partition_the_chains(tmp_path, groups):
    with pytest.raises(InputError, match="each of the chains"):
        create(tmp_path / "run", groups=groups)
    assert not (tmp_path / "run").exists()


def test_spec_without_json_form_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"spec\.a\.0'.*set"):
        create(tmp_path / "run", spec={"a": [{1}]})


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({}, "2 chains"),
        ({"excess": np.ones(2)}, "2 chains"),
        ({"excess": np.ones((3, 1))}, "2 chains"),
        ({"excess": np.ones((2, 1)), "other": np.ones((2, 2))}, "one number of draws"),
        ({"excess": np.ones((2, 1))}, "earlier draws chunks"),
        ({"excess": np.ones((2, 1)), "distance2": np.ones((2, 1))}, "earlier draws chunks"),
    ],
)
def test_chunk_must_fit(tmp_path, arrays, says):
    run = create(tmp_path / "run")
    run.resume(0)
    run.append(0, "draws", chunk([0, 2], 0, 1), {}, {})
    with pytest.raises(InputError, match=says):
        run.append(0, "draws", arrays, {}, {})
    run.append(0, "draws", chunk([0, 2], 1, 1), {}, {})
    assert run.resume(0) is not None


def test_bad_types_kinds_and_groups_are_refused(tmp_path):
    run = create(tmp_path / "run")
    run.resume(0)
    with pytest.raises(InputError, match="complex128"):
        run.append(0, "draws", {"excess": np.ones((2, 1), complex)}, {}, {})
    with pytest.raises(InputError, match="name"):
        run.append(0, "draws", chunk([0, 2], 0, 1), {"__metadata__": np.ones(1)}, {})
    with pytest.raises(InputError, match="kind"):
        run.append(0, "posterior", chunk([0, 2], 0, 1), {}, {})
    with pytest.raises(InputError, match="from 0 to 1"):
        RunStore.open(run.folder).resume(2)
    with pytest.raises(InputError, match="status"):
        run.finish("done")
    assert run.resume(0) is None


def test_groups_with_different_arrays_are_refused(tmp_path):
    run = create(tmp_path / "run")
    for group, chains in enumerate(GROUPS):
        run.resume(group)
        run.append(group, "draws", {f"a{group}": np.ones((len(chains), 1))}, {}, {})
    with pytest.raises(StoreError, match="same draws arrays"):
        run.read()


def test_draws_need_one_nbeta_for_each_chain(tmp_path):
    with pytest.raises(StoreError, match="nbeta_per_chain"):
        create(tmp_path / "run", spec={}).draws()


def named(full):
    return sorted(name for name in files(full.folder) if not name.startswith("locks/"))


def read_all(folder):
    run = RunStore.open(folder)
    run.read()
    for group in range(len(run.groups)):
        run.resume(group)


def test_any_flipped_bit_is_found(full):
    for name in named(full):
        path = full.folder / name
        good = path.read_bytes()
        for position in {0, 9, len(good) // 2, len(good) - 2}:
            path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises(StoreError, match=re.escape(name)):
                read_all(full.folder)
        path.write_bytes(good)
    read_all(full.folder)


def test_any_truncated_or_missing_file_is_found(full):
    for name in named(full):
        path = full.folder / name
        good = path.read_bytes()
        for size in {0, 1, len(good) // 2, len(good) - 2}:  # a manifest is whole without its last newline
            path.write_bytes(good[:size])
            with pytest.raises(StoreError, match=re.escape(name)):
                read_all(full.folder)
        path.unlink()
        with pytest.raises(StoreError, match=re.escape(name)):
            read_all(full.folder)
        path.write_bytes(good)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"x")])
def test_nothing_is_sampled_on_top_of_a_lost_chunk(tmp_path, damage):
    run = filled(tmp_path / "run", finish=False)
    damage(run.folder / "chunks/g000-draws-00000.safetensors")
    with pytest.raises(StoreError, match="g000-draws-00000"):
        run.resume(0)


@pytest.mark.parametrize("name", ["manifest.json", "groups/g001.json"])
def test_other_version_is_named(full, name):
    path = full.folder / name
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "version": 99}))
    if name != "manifest.json":  # without the inventory, as in a run that goes on
        manifest = {**full.manifest, "files": {}}
        full.write_manifest(manifest)
    with pytest.raises(StoreError, match=r"(?s)version 1\b.*version 99") as error:
        read_all(full.folder)
    assert name in str(error.value)


def test_open_wants_a_run_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreError, match=r"no manifest\.json"):
            RunStore.open(folder)


def test_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"holds thesis\.tex"):
        create(tmp_path)
    assert files(tmp_path) == {"thesis.tex"}


def test_folder_with_other_groups_is_left_alone(tmp_path):
    (tmp_path / "locks").mkdir()
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "mine.csv").write_text("x")
    with pytest.raises(StoreError, match=r"mine\.csv"):
        create(tmp_path)


@pytest.mark.parametrize("name", ["run", "run/deeper/still"])
def test_file_in_place_of_the_folder(tmp_path, name):
    (tmp_path / "run").write_text("x")
    with pytest.raises(StoreError, match="run"):
        create(tmp_path / name)
    with pytest.raises(StoreError, match="no manifest"):
        RunStore.open(tmp_path / name)


def test_file_in_place_of_a_subfolder(tmp_path):
    run = create(tmp_path / "run")
    run.resume(0)
    (run.folder / "chunks").write_text("x")
    with pytest.raises(StoreError, match=r"could not write .*g000-draws-00000.*run again"):
        run.append(0, "draws", chunk([0, 2], 0, 1), {}, {})


def test_estimate_round_trip(full):
    findings = (Finding.of("LLC105", "n = 12"),)
    estimate = Estimate(
        "llc",
        2.5,
        0.1,
        0.05,
        findings,
        {"a": [1]},
        3,
        {"rhat": float("nan")},
        {"heating": 0.01},
        {"git": None},
    )
    path = save_estimate(full.folder, estimate)
    back = load_estimate(full.folder)
    assert path == full.folder / "estimates" / "llc.json"
    assert str(back.to_dict()) == str(estimate.to_dict())
    assert back.draws.draws == 5


def test_estimate_names_and_choice(full):
    for name in ("a/b", "..", "llc"):
        save_estimate(full.folder, Estimate(name, 1.0, 0.1))
    assert load_estimate(full.folder, "a/b").name == "a/b"
    assert load_estimate(full.folder, "..").name == ".."
    with pytest.raises(InputError, match=r"one of \['\.\.', 'a/b', 'llc'\], got None"):
        load_estimate(full.folder)
    assert {p.parent.name for p in full.folder.parent.rglob("*.json")} == {"run", "groups", "estimates"}


def test_estimate_without_draws(tmp_path):
    save_estimate(tmp_path / "a", Estimate("llc", 1.0, 0.1))
    assert load_estimate(tmp_path / "a").draws is None
    save_estimate(create(tmp_path / "b").folder, Estimate("llc", 1.0, 0.1))
    assert load_estimate(tmp_path / "b").draws is None


def test_changed_estimate_is_found(full):
    path = save_estimate(full.folder, Estimate("llc", 2.5, 0.1))
    path.write_text(path.read_text().replace("2.5", "3.5"))
    with pytest.raises(StoreError, match=r"llc\.json is corrupt"):
        load_estimate(full.folder)


def test_finish_saves_estimates(tmp_path):
    run = filled(tmp_path / "run", finish=False)
    run.finish("complete", estimates=[Estimate("llc", 2.5, 0.1)], extra={"wall": 1.5})
    assert run.manifest["estimates"] == ["llc"]
    assert run.manifest["extra"] == {"wall": 1.5}
    assert load_estimate(run.folder, "llc").value == 2.5


@pytest.mark.heavy
def test_second_handle_waits_its_turn(tmp_path):
    one, two = create(tmp_path / "run"), create(tmp_path / "run")
    one.resume(0)
    with pytest.raises(StoreError, match=r"group 0 .* being written by another process"):
        two.resume(0)
    two.resume(1)
    with one:
        one.resume(0)
    assert two.resume(0) is None


WRITER = """
import sys, time
from crunode.store.run_store import RunStore
run = RunStore(sys.argv[1])
run.resume(0)
print("claimed", flush=True)
time.sleep(60)
"""


@pytest.mark.heavy
def test_lock_of_a_killed_process_is_free(tmp_path):
    run = create(tmp_path / "run")
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(run.folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "claimed\n"
        with pytest.raises(StoreError, match="being written by another process"):
            run.resume(0)
        assert run.resume(1) is None
    finally:
        process.kill()
        process.communicate()
    assert run.resume(0) is None


def test_page_states_what_is_written(tmp_path, monkeypatch):
    text = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    exec(example, {})
    stated = {"locks/run.lock": b"", "locks/g000.lock": b""}
    for name, language, content in re.findall(r"^`([^`]+)`[^\n]*:\n\n```(json|text)\n(.*?)```", text, re.S | re.M):
        stated[name] = content.encode() if language == "json" else bytes.fromhex(content)
    assert files("run") == set(stated)
    for name, content in stated.items():
        assert Path("run", name).read_bytes() == content, name
    for key in RunStore.open("run").manifest:
        assert f"`{key}`" in text
    assert f"version {store.VERSION};" in text
