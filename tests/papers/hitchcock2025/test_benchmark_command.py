import json

import pytest

import crunode_papers.hitchcock2025.__main__ as command
import crunode_papers.hitchcock2025.run as bench

QUICK = ["--set", "kernel=HMC", "--set", "step=1e-5", "--set", "leaps=2", "--set", "nbeta=wbic"]
QUICK += ["--set", "precision=1.0", "--set", "chains=2", "--set", "draws=10", "--set", "warmup=2"]


def test_a_benchmark_prints_its_table_and_writes_its_record(run, tmp_path):
    out = tmp_path / "record.json"
    words = ["--class", "1K", "--count", "2", "--first-seed", "7", "--examples", "50", "--out", out]
    code, text, _ = run(*words, *QUICK)
    assert code == 0
    assert "1K" in text
    record = json.loads(out.read_text())
    assert [row["seed"] for row in record["rows"]] == [7, 8]
    words = "--class 1K --count 2 --first-seed 7 --set kernel=HMC"
    assert record["command"].startswith(f"python -m crunode_papers.hitchcock2025 {words}")
    assert "--examples 50" in record["command"]


def test_json_is_one_document(run):
    code, text, _ = run("--count", "1", "--examples", "50", "--json", *QUICK)
    assert code == 0
    assert json.loads(text)["rows"][0]["problem"] == "1K-s5000"


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as end:
            command.main([str(word) for word in words])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


@pytest.fixture
def record(monkeypatch):
    """What was asked of the library, and a record with given values in place of a run."""
    seen = {"values": [1.0, 2.0], "method": "crunode"}

    def fake(kinds, methods, **options):
        seen.update(options, kinds=kinds, methods=methods)
        rows = [{"value": value, "method": seen["method"]} for value in seen["values"]]
        return {"rows": rows, "summary": [], "notes": [], "settings": {"target": "local"}}

    monkeypatch.setattr(bench, "run_benchmark", fake)
    return seen


def test_exit_code_says_whether_all_estimates_are_there(run, record):
    assert run()[0] == 0
    record["values"] = [1.0, None]
    assert run()[0] == 1
    record["method"] = "sgld"  # baselines may fail
    assert run("--method", "sgld")[0] == 0


def test_options_reach_the_run(run, record):
    run("--class", "1K", "--class", "10K", "--method", "crunode", "--method", "sgld", "--budget", "9")
    assert (record["kinds"], record["methods"]) == (["1K", "10K"], ["crunode", "sgld"])
    assert record["options"] == {"crunode": {"budget": 9}}
    run("--target", "basin", "--workers", "3", "--peer-python", "elsewhere")
    assert record["options"] == {"crunode": {"target": "basin"}}
    assert (record["target"], record["workers"], record["peer_python"]) == ("basin", 3, "elsewhere")
    run()  # what is not asked for is left to the estimator
    assert record["options"] == {"crunode": {}}
    assert (record["kinds"], record["methods"], record["target"]) == (["1K"], ["crunode"], "local")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--class", "2K"], "a class among"),
        (["--method", "nuts"], "a method among"),
        (["--count", "0"], "count as a whole number"),
        (["--count", "many"], "valid int"),
        (["--set", "chain=3"], "settings among"),
        (["--target", "global"], "'local' or 'basin'"),
        (["speed"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_exits_with_2(run, words, message):
    code, _, error = run(*words)
    assert code == 2
    assert message in error
