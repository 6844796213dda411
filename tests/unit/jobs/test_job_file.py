import pytest

from crunode.errors import InputError
from crunode.jobs.job_file import read_jobs

GOOD = """
store = "runs/study"
seed = 3
on = "processes:2"
deadline = "1h"

[settings]
chains = 2
draws = 10

[[job]]
name = "net"
target = "mypkg.exp:landscape"
settings = { draws = 20, kernel = "SGLD", step = 1e-4 }
matrix = { nbeta = [10.0, 100.0], seed = [0, 1], weights = ["a.safetensors"] }

[[job]]
recipe = "toy-volumes"
size = "paper"

[[job]]
kind = "sweep"
target = "mypkg.exp:landscape"
steps = [1e-4, 1e-3]
"""


@pytest.fixture
def jobs(tmp_path):
    def read(text, **given):
        path = tmp_path / "study.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_jobs(path, **given)

    return read


def test_units(jobs):
    found = jobs(GOOD)
    assert (found.store, found.on, found.deadline) == ("runs/study", "processes:2", "1h")
    assert [unit.name for unit in found.units] == [
        "net-nbeta10-seed0-weightsa.safetensors",
        "net-nbeta10-seed1-weightsa.safetensors",
        "net-nbeta100-seed0-weightsa.safetensors",
        "net-nbeta100-seed1-weightsa.safetensors",
        "toy-volumes",
        "sweep",
    ]
    first, *_, recipe, sweep = found.units
    assert first.settings == {"chains": 2, "draws": 20, "kernel": "SGLD", "step": 1e-4, "nbeta": 10.0}
    assert (first.seed, first.weights, first.kind) == (0, "a.safetensors", "llc")
    assert (recipe.kind, recipe.subject, recipe.size, recipe.seed) == ("recipe", "toy-volumes", "paper", 3)
    assert sweep.axes == {"steps": (1e-4, 1e-3)}
    assert sweep.settings == {"chains": 2, "draws": 10}


def test_the_call_comes_before_the_file(jobs):
    found = jobs(GOOD.split("[[job]]\nrecipe")[0], seed=7, settings={"nbeta": 50.0, "draws": 5})
    (unit,) = found.units
    assert (unit.seed, unit.settings["nbeta"], unit.settings["draws"], unit.settings["chains"]) == (7, 50.0, 5, 2)


JOB = '[[job]]\ntarget = "a.b:c"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"one or more tables \[\[job\]\]"),
        ("job = 3", r"one or more tables \[\[job\]\], got a int"),
        ("job = [1]", "one or more tables"),
        ("= 3", "expected TOML"),
        (b"\xff\xfe", "is no text"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deep|levels"),
        ("a" + ".a" * 3000 + " = 1", "at most 8 levels"),
        ("a = " + "9" * 5000, "expected TOML"),
        ("x = " + str([1] * 30_000), "at most 20000 entries"),
        ("#" * (2**20 + 1), "at most 1048576 bytes"),
        ("stroe = 'a'\n" + JOB, "did you mean store"),
        (JOB + "chains = 3", "job 0: expected keys among"),
        (JOB + 'name = "../x"', "expected a name"),
        (JOB + 'name = "a/b"', "expected a name"),
        (JOB + 'kind = "shell"', "expected kind among llc, sweep, recipe"),
        ('store = "/etc"\n' + JOB, "folder below the current one"),
        ('store = "a/../../b"\n' + JOB, "folder below the current one"),
        ('[[job]]\ntarget = "os.system"', "expected target as"),
        ('[[job]]\ntarget = "a:b; import os"', "expected target as"),
        ("[[job]]\nkind = 'llc'", "job 0: target: expected text"),
        (JOB + 'weights = "../w.pt"', "expected weights as a file below"),
        (JOB + "weights = 3", "expected weights as a file below"),
        (JOB + "seed = -1", "expected seed"),
        (JOB + "seed = true", "expected seed"),
        (JOB + "seed = 1e3", "expected seed"),
        (JOB + "settings = 3", "expected a table"),
        (JOB + "settings = { chain = 3 }", "did you mean chains"),
        (JOB + "settings = { chains = { a = 1 } }", "expected numbers or text"),
        (JOB + "settings = { chains = 2020-01-01 }", "expected numbers or text"),
        (JOB + 'settings = { kernel = "eval" }', "expected a kernel"),
        (JOB + "settings = { step = 1.0 }", "name one too"),
        (JOB + "matrix = 3", "table of lists"),
        (JOB + "matrix = { seed = [] }", "expected a list of values"),
        (JOB + "matrix = { seed = [0, 0] }", "twice"),
        (JOB + f"matrix = {{ seed = {list(range(200))}, chains = {list(range(1, 200))} }}", "at most 10000 units"),
        (JOB + JOB, "llc twice; give the jobs different names"),
        ('[[job]]\nkind = "sweep"\ntarget = "a:b"\nsteps = [0.0]', "positive numbers"),
        ('[[job]]\nkind = "sweep"\ntarget = "a:b"\nsettings = { nbeta = 3.0 }', "settings of a sweep"),
        ('[[job]]\nrecipe = "x"\nmatrix = { chains = [1] }', "seed and size in the matrix of a recipe"),
        ("deadline = 3\n" + JOB, "deadline: expected text"),
    ],
)
def test_wrong_files(jobs, text, said):
    with pytest.raises(InputError, match=said):
        jobs(text)


def test_files_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path / "absent.toml", "/dev/zero"):
        with pytest.raises(InputError, match="expected a job file"):
            read_jobs(path)
    (tmp_path / "link.toml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="expected a job file"):
        read_jobs(tmp_path / "link.toml")


def test_set_with_recipes_alone(jobs):
    with pytest.raises(InputError, match="expected no --set with recipes alone"):
        jobs('[[job]]\nrecipe = "x"', settings={"chains": 3})
