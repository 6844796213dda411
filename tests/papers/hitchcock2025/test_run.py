import json
import math
import sys

import numpy as np
import pytest

import crunode_papers.hitchcock2025.methods as methods
import crunode_papers.hitchcock2025.run as bench
from crunode.core.result import Estimate, Finding
from crunode.errors import InputError
from crunode.sampling.metropolis import HMC
from crunode.sampling.run import sample
from crunode.sampling.stochastic import SGLD
from crunode_papers.hitchcock2025.methods import METHODS, check_methods, estimate_row, gradient_cost
from crunode_papers.hitchcock2025.peer import PeerAbsent, peer_missing, run_peer
from crunode_papers.hitchcock2025.problems import problems_of
from crunode_papers.hitchcock2025.run import read_rows, rows_path, run_benchmark
from crunode_papers.hitchcock2025.table import describe_benchmark

QUICK = {"kernel": HMC(step=1e-5, leaps=3), "nbeta": "wbic", "precision": 1.0, "chains": 4, "draws": 20, "warmup": 5}


def small(kind="1K", examples=200, which=0):
    return problems_of(kind, count=1)[which].with_examples(examples)


@pytest.fixture
def counted(monkeypatch):
    """A method that costs nothing and says how often it was called; wrong by a tenth."""
    calls = []

    def method(problem, landscape, seed, **options):
        calls.append(problem.name)
        if len(calls) == options.get("break_at"):
            raise KeyboardInterrupt
        value = 1.1 * float(problem.local.value)
        return {"value": value, "se": 0.1 * value, "systematic": 0.0, "ok": True, "gradients": 7}

    monkeypatch.setitem(METHODS, "sgld", method)
    return calls


def test_row_of_an_estimate_holds_it_against_the_local_value():
    problem = small()
    row = estimate_row(problem, "crunode", options=QUICK)
    exact = float(problem.local.value)
    assert row["relative_error"] == pytest.approx((row["value"] - exact) / exact)
    assert row["errors_off"] == pytest.approx((row["value"] - exact) / math.hypot(row["se"], row["systematic"]))
    assert (row["n"], row["dim"], row["local"], row["target"]) == (200, problem.dim, str(problem.local.value), "local")
    assert row["gradients"] > 0
    assert row["seconds"] > 0
    assert row["error"] is None


def test_asked_target_decides_which_value_is_the_truth():
    problem = next(p for p in problems_of("1K") if p.local.value > p.whole.value).with_examples(50)
    local, basin = (estimate_row(problem, "sgld", target=t, options={"steps": 20}) for t in ("local", "basin"))
    assert local["value"] == basin["value"]
    for row, exact in ((local, problem.local.value), (basin, problem.whole.value)):
        assert row["relative_error"] == pytest.approx(row["value"] / float(exact) - 1)


def test_published_sgld_is_the_sampler_with_the_published_numbers(monkeypatch):
    seen = {}

    def spy(posterior, kernel, **options):
        seen.update(posterior=posterior, kernel=kernel, options=options)
        return sample(posterior, SGLD(kernel.step, kernel.batch), **{**options, "warmup": 5, "draws": 5})

    monkeypatch.setattr(methods, "sample", spy)
    problem = small(examples=600)
    row = estimate_row(problem, "sgld")
    assert (seen["kernel"].step, seen["kernel"].batch) == (5e-7, 500)
    assert (seen["options"]["warmup"], seen["options"]["draws"], seen["options"]["chains"]) == (9000, 1000, 1)
    assert (row["gradients"], row["example_gradients"]) == (10_000, 5_000_000)
    # nβ = n / log n of the mean square over outputs, which is 2/outputs times ½‖y − f‖².
    scale = 2 / problem.widths[-1]
    assert seen["posterior"].levels == (pytest.approx(scale * 600 / math.log(600)),)
    assert seen["posterior"].precision == 1.0
    estimate_row(problem, "rmsprop-sgld")
    assert type(seen["kernel"]).__name__ == "PSGLD"


@pytest.mark.heavy
def test_sgld_of_a_regular_model_finds_half_its_dimension():
    # A crossing of x² alone: a bowl in one direction, held by γ in none that counts.
    bowl = next(p for p in problems_of("families") if p.name.startswith("crossing-0-1"))
    row = estimate_row(bowl, "sgld", options={"steps": 20_000, "step": 2e-4})
    assert row["value"] == pytest.approx(0.5, abs=0.1)
    assert row["ok"]


def test_a_baseline_that_fails_is_recorded_as_failed():
    row = estimate_row(small(examples=100), "sgld", options={"steps": 50, "step": 1e3})
    assert math.isnan(row["value"])
    assert row["error"].startswith("EstimationError")
    assert not row["ok"]
    assert math.isnan(row["relative_error"])
    wrong = estimate_row(small(examples=100), "sgld", options={"draws": 5})
    assert "only steps, step and batch" in wrong["error"]


def test_estimates_pass_options_on_untouched(monkeypatch):
    seen = {}

    def spy(landscape, **options):
        seen.update(options)
        cost = {"gradients": 12, "examples": 34}
        finding = Finding.of("MC202", "few")
        return Estimate("llc", 2.0, se=0.1, findings=(finding,), diagnostics={"cost": cost})

    monkeypatch.setattr(methods, "llc", spy)
    row = estimate_row(small(examples=20), "crunode", options={"budget": 24_000, "target": "local"})
    assert (seen["budget"], seen["target"], seen["seed"], seen["on_failure"]) == (24_000, "local", 5000, "return")
    assert (row["gradients"], row["example_gradients"], row["findings"]) == (12, 34, ["MC202"])


def test_cost_from_the_settings_where_it_is_not_counted():
    spec = {"warmup": 5, "draws": 15, "chains": 2, "nbeta": [1.0, 2.0], "n": 100, "kernel": {"leaps": 4}}
    found = gradient_cost(Estimate("llc", 1.0, 0.1, spec=spec))
    assert found == {"gradients": 320, "example_gradients": 32_000}
    batches = {**spec, "kernel": {"batch": 10}}
    assert gradient_cost(Estimate("llc", 1.0, 0.1, spec=batches)) == {"gradients": 80, "example_gradients": 800}


def test_record_has_what_reproduces_it(tmp_path, counted):
    out = tmp_path / "record.json"
    record = run_benchmark(["1K"], ["sgld"], count=3, examples=20, out=out, command="python -m it")
    assert json.loads(out.read_text()) == record
    assert record["command"] == "python -m it"
    assert record["settings"]["examples"] == 20
    assert [row["n"] for row in record["rows"]] == [20, 20, 20]
    assert record["summary"][0]["median_relative_error"] == pytest.approx(0.1)
    assert record["summary"][0]["order_preserved"] == 1
    assert {"crunode", "torch", "git", "device"} <= set(record["provenance"])
    assert not rows_path(out).exists()
    table = describe_benchmark(record)
    assert "10.0 % (10.0 % to 10.0 %)" in table
    assert len({len(line) for line in table.splitlines()[1:3]}) == 1


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, counted, monkeypatch):
    out = tmp_path / "record.json"
    call = {"kinds": ["1K"], "methods": ["sgld"], "count": 4, "examples": 20, "out": out}
    monkeypatch.setattr(bench, "provenance", lambda: {"git": "one", "changed": True})
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(**call, options={"sgld": {"break_at": 3}})
    assert len(read_rows(rows_path(out))) == 2
    assert not out.exists()
    with rows_path(out).open("a") as stream:
        stream.write('{"key": "cut of')  # what a kill leaves behind
    monkeypatch.setattr(bench, "provenance", lambda: {"git": "other", "changed": None})
    record = run_benchmark(**call, options={"sgld": {"break_at": 3}})
    assert [(row["git"], row["changed"]) for row in record["rows"]] == [("one", True)] * 2 + [("other", None)] * 2
    assert (record["provenance"]["git"], record["provenance"]["changed"]) == (["one", "other"], [True, None])
    assert counted == ["1K-s5000", "1K-s5001", "1K-s5002", "1K-s5002", "1K-s5003"]
    assert [row["problem"] for row in record["rows"]] == [f"1K-s500{k}" for k in range(4)]
    run_benchmark(**call, options={"sgld": {"break_at": 99}})
    assert len(counted) == 9  # a finished run starts anew


def test_rows_of_other_settings_are_not_taken_for_these(tmp_path, counted):
    out = tmp_path / "record.json"
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(["1K"], ["sgld"], count=2, examples=20, out=out, options={"sgld": {"break_at": 2}})
    record = run_benchmark(["1K"], ["sgld"], count=2, examples=30, out=out)
    assert [row["n"] for row in record["rows"]] == [30, 30]
    assert len(counted) == 4


def test_a_line_cut_off_does_not_spoil_the_next_one(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"key": "a", "row": {"x": 1}}\n{"key": "b", "ro')
    job = bench.Job(small(examples=20), ("sgld",), "local", {"sgld": {"steps": 10}}, None, file)
    bench.run_job(job)
    assert set(read_rows(file)) == {"a", job.key("sgld")}


@pytest.mark.slow
def test_workers_give_the_rows_of_a_serial_run(tmp_path):
    call = {"kinds": ["1K"], "methods": ["sgld"], "count": 2, "examples": 50, "options": {"sgld": {"steps": 30}}}
    serial, spread = run_benchmark(**call), run_benchmark(**call, workers=2, out=tmp_path / "record.json")
    assert [r["value"] for r in spread["rows"]] == pytest.approx([r["value"] for r in serial["rows"]], rel=1e-4)


def test_problems_without_an_exact_value_of_the_target_are_left_out(counted):
    record = run_benchmark(["families"], ["sgld"], target="basin")
    assert all(row["global"] is not None for row in record["rows"])
    assert "14 problems without an exact value of the basin" in record["notes"][0]


def test_devinterp_is_left_out_with_a_note_where_it_is_not_there(counted):
    record = run_benchmark(["1K"], ["sgld", "devinterp"], count=1, examples=20, peer_python="no/python")
    assert [row["method"] for row in record["rows"]] == ["sgld"]
    assert record["notes"] == [f"devinterp is left out: {peer_missing('no/python')}"]
    with pytest.raises(InputError, match="no/python is not there"):
        run_benchmark(["1K"], ["devinterp"], count=1, peer_python="no/python")
    with pytest.raises(PeerAbsent):
        run_peer(small(examples=20), small(examples=20).landscape(), 0, batch=5, peer_python="no/python")


PEER = """
import argparse, json, numpy as np
parser = argparse.ArgumentParser()
parser.add_argument("problem")
for name in ("activation", "batch", "seed"):
    parser.add_argument("--" + name)
args = parser.parse_args()
with np.load(args.problem) as content:
    shapes = {name: content[name].shape for name in content.files}
if args.seed == "13":
    raise ValueError("no luck")
print("chatter")
value = None if args.seed == "14" else float(shapes["x"][0])
print(json.dumps({"value": value, "std": 2.0, "error": None, "gradients": 1000, "seconds": 0.5, "settings": shapes}))
"""


@pytest.mark.heavy
def test_the_peer_gets_weights_and_data_and_its_answer_is_read(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(PEER)
    problem = small("families", 30, which=6)
    options = {"batch": 10, "peer_python": sys.executable, "peer_script": script}
    found = run_peer(problem, problem.landscape(), 12, **options)
    assert (found["value"], found["se"], found["ok"], found["seconds"]) == (30.0, 2.0, True, 0.5)
    assert (found["gradients"], found["example_gradients"]) == (1000, 10_000)
    inputs, hidden, outputs = problem.widths
    assert found["settings"] == {
        "0.weight": [hidden, inputs],
        "2.weight": [outputs, hidden],
        "x": [30, inputs],
        "y": [30, outputs],
    }
    with pytest.raises(RuntimeError, match="ValueError: no luck"):
        run_peer(problem, problem.landscape(), 13, **options)
    nothing = run_peer(problem, problem.landscape(), 14, **options)
    assert np.isnan(nothing["value"])
    assert not nothing["ok"]
    crossing = small("families", None, which=-1)
    with pytest.raises(InputError, match="a function of its own"):
        run_peer(crossing, crossing.landscape(), 0, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": ["nuts"]}, "a method among crunode"),
        ({"kinds": ["2K"]}, "a class among"),
        ({"target": "global"}, "'local' or 'basin'"),
        ({"workers": 0}, "workers as a whole number from 1"),
        ({"workers": True}, "workers as a whole number"),
        ({"device": "nowhere"}, "device as one that is here"),
        ({"methods": []}, "at least one method"),
        ({"kinds": []}, "at least one class"),
        ({"examples": 0}, "examples as a positive"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments, words, counted):
    with pytest.raises(InputError, match=words):
        run_benchmark(**{"kinds": ["1K"], "methods": ["sgld"], "count": 1, **arguments})
    assert counted == []


def test_methods_are_taken_once():
    assert check_methods(["sgld", "crunode", "sgld"]) == ["sgld", "crunode"]
