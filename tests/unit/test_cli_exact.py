import json
import resource
import subprocess
import sys

import pytest

import crunode.cli as cli
from crunode.exact import catalog


@pytest.fixture
def run(capsys):
    """Run `crunode exact`: exit code, standard output, standard error."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["exact", *(str(word) for word in words)])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


def test_value_theorem_hypotheses_and_citation_are_printed(run):
    code, out, err = run("reduced-rank", 6, 4, 6, "--rank", 2)
    assert (code, err) == (0, "")
    assert out.startswith("λ = 27/2, m = 1 (exact)\n")
    assert "in_dim = 6, hidden = 4, out_dim = 6, rank = 2" in out
    assert "theorem     four cases" in out
    assert "assumes     the truth is a linear map" in out
    assert "citation    Aoyagi & Watanabe 2005" in out


@pytest.mark.parametrize(
    ("words", "value", "multiplicity"),
    [
        (["reduced-rank", "6", "4", "6", "2"], "27/2", 1),
        (["reduced_rank_regression", "in_dim=6", "hidden=4", "out_dim=6", "rank=2"], "27/2", 1),
        (["reduced_rank_regression", "--in-dim", "6", "--hidden=4", "--out_dim", "6", "rank=2"], "27/2", 1),
        (["dln", "2", "2", "2", "--rank", "1"], "2/1", 2),
        (["dln", "widths=[2,2,2]", "rank=1"], "2/1", 2),
        (["dln", "--widths", "2,2,2", "--rank=1"], "2/1", 2),
        (["dln", "[2,2,2]", "--rank=1"], "2/1", 2),
        (["normal_crossing", "1", "2", "--h", "0,1"], "1/2", 2),
        (["normal-crossing", "k=[1,1]", "h=null"], "1/2", 2),
        (["normal-crossing", "1"], "1/2", 1),
        (["monomial_ideal", "[1,0]", "[0,1]"], "1/1", 1),
        (["monomial_ideal", "[[1,0],[0,1]]"], "1/1", 1),
        (["toy_function", "K=(x**2-y**3)**2", "point=[0,0]"], "5/12", 1),
        (["toy_function", "(x**2-y**3)**2", "--point", "0,0"], "5/12", 1),
        (["linearised_ntk", "[[1,2],[2,4]]"], "1/2", 1),
        (["quadratic_modular_addition_generic", "5", "12", "--centred"], "60/1", 1),
        (["quadratic_modular_addition_generic", "5", "12", "--centred", "true"], "60/1", 1),
        (["quadratic_modular_addition_generic", "--centred", "5", "12"], "60/1", 1),
        (["quadratic_modular_addition_generic", "5", "13", "--no-centred"], "125/2", 1),
        (["dln", '{"widths": [2, 2, 2], "rank": 1}'], "2/1", 2),
        (["lazy-random-features", "5", "10", "centred=true", "activation=t^2"], "25/1", 1),
        (["naive-bayes", "2"], "3/2", 3),
    ],
)
def test_ways_to_give_parameters(run, words, value, multiplicity):
    code, out, err = run(*words, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["lambda"], found["multiplicity"]) == (value, multiplicity)
    assert {"family", "params", "status", "bounds", "hypotheses", "citation"} <= set(found)


def test_bounds_are_an_answer_too(run):
    code, out, _ = run("fourier-solution", 5)
    assert code == 0
    assert out.startswith("47 ≤ λ ≤ 78 (interval)")
    assert "only the bounds are known" in out
    found = json.loads(run("fourier-solution", 5, "--json")[1])
    assert (found["lambda"], found["bounds"]) == (None, ["47/1", "78/1"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reduced-rnk", "1"], "did you mean reduced_rank"),
        (["dln", "2", "2", "2"], "got no rank"),
        (["dln", "2", "2", "--rank", "3"], "rank from 0 to the smallest width"),
        (["dln", "2", "-2", "--rank", "0"], "whole number from 1 up, got -2"),
        (["dln", "2", "2", "--rank"], "expected a value after --rank"),
        (["dln", "2", "2", "--rnk", "1"], "got 'rnk'"),
        (["dln", "2", "2", "rank=1", "rank=2"], "expected rank once"),
        (["dln", "widths=__import__('os')", "rank=0"], "expected widths as a list"),
        (["dln", '{"rank": 1}', '{"rank": 1}', "2", "2"], "got rank again"),
        (["reduced-rank", "1", "2", "3", "4", "5"], "expected at most 4 values"),
        (["--frob"], "expected the name of a family first"),
        (["list", "more"], "nothing after list"),
        (["--file"], "expected one file"),
        (["--file", "a", "b"], "expected one file"),
        (["--file", "no/such/file.json"], "No such file"),
        (["lazy-random-features", "5", "10", "centred=true", "activation=relu"], "no theorem here covers"),
        (["toy_function", "K=" + "(" * 5000], "expected"),
        (["dln", "widths=" + "[" * 100_000, "rank=0"], "expected"),
    ],
)
def test_wrong_usage_exits_2_with_one_line(run, words, message):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    code, out, err = run(*words, "--json")
    assert (code, err) == (2, "")
    assert message in json.loads(out)["error"]["message"]


def test_list_names_every_family(run):
    code, out, _ = run("list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == [f.name for f in catalog()]
    rows = json.loads(run("list", "--json")[1])
    assert all(row["theorem"] and row["citation"] and row["parameters"] for row in rows)


def test_help_of_the_command_and_of_a_family(run):
    for words in ([], ["--help"], ["-h"]):
        code, out, _ = run(*words)
        assert code == 0
        assert "crunode exact FAMILY" in out
    code, out, _ = run("dln", "--help")
    assert code == 0
    assert "widths" in out
    assert "from output to input" in out
    assert json.loads(run("dln", "--help", "--json")[1])["family"] == "dln"


CASES = [
    {"family": "dln", "params": {"widths": [1, 1, 1], "rank": 0}, "lambda": "1/2", "multiplicity": 2},
    {"family": "tanh_zero_truth", "params": {"hidden": 4}},
]


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "cases.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_file_of_cases(run, file):
    code, out, err = run("--file", file(CASES), "--json")
    rows = json.loads(out)
    assert (code, err, len(rows)) == (0, "", 2)
    assert (rows[0]["lambda"], rows[0]["multiplicity"], rows[0]["match"]) == ("1/2", 2, True)
    assert "match" not in rows[1]
    assert {"family", "params", "lambda", "multiplicity", "status", "bounds", "hypotheses", "citation"} <= set(rows[1])
    code, out, _ = run(f"--file={file(CASES)}")
    assert code == 0
    assert out.endswith("2 cases, 1 compared, 0 differ, 0 with errors\n")


@pytest.mark.parametrize(("key", "value"), [("lambda", "2/3"), ("multiplicity", 3), ("lambda", 1)])
def test_file_with_another_expected_value_exits_1(run, file, key, value):
    code, out, _ = run("--file", file([{**CASES[0], key: value}, CASES[1]]), "--json")
    assert code == 1
    assert [row.get("match") for row in json.loads(out)] == [False, None]
    code, out, _ = run("--file", file([{**CASES[0], key: value}]))
    assert code == 1
    assert "DIFFERS" in out


@pytest.mark.parametrize(
    "case",
    [
        {"family": "nothing", "params": {}},
        {"family": "dln", "params": {"widths": [1, 1]}},
        {"family": "dln", "params": {"widths": [0, 1], "rank": 0}},
        {"family": "dln", "params": [1]},
        {"family": None, "params": {}},
        {"params": {}},
        3,
        {**CASES[0], "lambda": "half"},
    ],
)
def test_file_with_a_wrong_case_tells_it_and_goes_on(run, file, case):
    code, out, _ = run("--file", file([case, CASES[0]]), "--json")
    rows = json.loads(out)
    assert code == 2
    assert "expected" in rows[0]["error"]["message"]
    assert rows[1]["match"] is True
    code, out, _ = run("--file", file([case, CASES[0]]))
    assert code == 2
    assert "1 with errors" in out


@pytest.mark.parametrize("content", ["", "{", "3", '{"family": "dln"}', "[" * 100_000])
def test_file_that_holds_no_cases(run, file, content):
    code, out, err = run("--file", file(content))
    assert (code, out) == (2, "")
    assert err.startswith("error: expected")


def test_neither_torch_nor_typer_is_imported():
    code = (
        "import sys\nfrom crunode.cli import main\n"
        "try:\n    main(['exact', 'quadratic-multi-output-generic', '6', '3', '8'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "print(sorted({'torch', 'numpy', 'typer', 'click', 'sympy', 'argparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("λ = 31, m = 1 (exact)")
    assert done.stdout.splitlines()[-1] == "[]"


def _processor_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.heavy
def test_it_starts_at_once():
    # In units of the interpreter's own start, and of processor time: others may use the machine. Measured: 4.8; 18 is
    # what numpy alone takes.
    command = ["-m", "crunode", "exact", "reduced-rank", "6", "4", "6", "--rank", "2"]
    bare, own = (min(_processor_seconds(words) for _ in range(5)) for words in (["-c", "pass"], command))
    assert own < 12 * bare


def test_the_other_commands_list_it(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "exact" in capsys.readouterr().out


def test_a_reader_that_has_seen_enough_ends_it_quietly():
    words = [sys.executable, "-m", "crunode", "exact", "list"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0
