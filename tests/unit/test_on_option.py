import pytest

pytest.importorskip("typer")

from crunode.cli.on_option import executor_from
from crunode.core.execute import Processes, Serial
from crunode.core.execute_ray import Ray
from crunode.errors import InputError


@pytest.mark.parametrize(
    ("on", "executor"),
    [
        (None, None),
        ("serial", Serial()),
        ("processes", Processes()),
        ("processes:3", Processes(3)),
        ("ray", Ray()),
        ("ray://", Ray()),
        ("ray://auto", Ray("auto")),
        ("ray://10.0.0.1:6379,gpus=0.5,retries=5", Ray("10.0.0.1:6379", gpus_per_job=0.5, retries=5)),
        ("ray,cpus=2,workers=7", Ray(cpus_per_job=2.0, workers=7)),
    ],
)
def test_on(on, executor):
    assert executor_from(on) == executor


def test_workers_and_deadline():
    assert executor_from(None, 4) == Processes(4)
    assert executor_from(None, 1, "1m").until.seconds == 60
    assert executor_from("ray", 1, "2h").until.seconds == 7200
    assert executor_from("processes:2", 1, "5").until.seconds == 5


@pytest.mark.parametrize(
    "on",
    [
        *("", "Serial", "serial:2", "serial,x=1", "processes:", "processes:x", "processes:0", "processes:2,gpus=1"),
        *(
            "ray:auto",
            "ray:/",
            "rayon",
            "ray,gpus",
            "ray,gpus=x",
            "ray,gpus=1,gpus=1",
            "ray,speed=1",
            "ray,retries=1.5",
        ),
    ],
)
def test_wrong_words(on):
    with pytest.raises(InputError, match="expected"):
        executor_from(on)


def test_both():
    with pytest.raises(InputError, match="got both; --on processes:2"):
        executor_from("serial", 2)
