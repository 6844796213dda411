import functools
import json

import matplotlib  # noqa: F401  (the demonstration draws pictures)
import pytest

from crunode.errors import InputError
from crunode.estimators.coefficient import llc
from crunode.examples import demo
from crunode.sampling.metropolis import HMC


@pytest.mark.heavy
def test_demonstration_writes_everything_and_a_second_call_reads_it(tmp_path, monkeypatch, capsys):
    quick = functools.partial(
        llc, nbeta=50.0, kernel=HMC(step=1e-4, leaps=2), precision=10.0, chains=2, draws=4, warmup=2
    )
    monkeypatch.setattr(demo, "llc", quick)
    monkeypatch.setattr(demo, "_EPOCHS", 2)
    first = demo.run_demo(tmp_path / "runs")
    table = capsys.readouterr().out
    assert json.dumps(first)
    assert first["network"]["test"] > 0.6
    assert [row["exact"] for row in first["cases"]] == ["5", "1/2", "27/2", None]
    assert all(row["name"] in table for row in first["cases"])
    assert {p.name for p in (tmp_path / "runs").glob("*.png")} == {
        "demo.png",
        "network.png",
        "normal-crossing.png",
        "quadratic.png",
        "reduced-rank.png",
    }
    monkeypatch.setattr(demo, "train_network", lambda *_: pytest.fail("trained again"))
    second = demo.run_demo(tmp_path / "runs")
    for one, other in zip(first["cases"], second["cases"], strict=True):
        assert one["value"] == other["value"] or one["value"] != one["value"]


def test_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="folder"):
        demo.run_demo(tmp_path / "file")
