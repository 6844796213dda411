import math

import numpy as np
import pytest

from crunode.core.result import Estimate, Finding
from crunode.errors import InputError, StoreError
from crunode.store.documents import dumps
from crunode.training.trajectory import Trajectory, Visit


def failed(name):
    finding = Finding.of("TRACK901", "ValueError: no")
    return Estimate(name, math.nan, math.nan, math.nan, (finding,), diagnostics={"error": "ValueError: no"})


def trajectory(count=12, drop=6, doubt=()):
    rng = np.random.default_rng(0)
    visits = []
    for k in range(count):
        doubts = (Finding.of("MC201", "R-hat 1.4"),) if k in doubt else ()
        llc = Estimate("llc", (9.0 if k < drop else 4.0) + 0.1 * rng.normal(), se=0.1, findings=doubts, spec={"a": [1]})
        visits.append(Visit(10 * k, 0.5 - 0.01 * k, "ab", {"llc": llc, "trace": Estimate("trace", 1.0 * k, se=0.0)}))
    return Trajectory(tuple(visits), ("llc", "trace"), n=1000, spec={"seed": 3}, seed=3)


def test_columns():
    found = trajectory(4, drop=2)
    assert found.steps == (0, 10, 20, 30)
    assert found.values("trace").tolist() == [0, 1, 2, 3]
    assert found.errors("llc").tolist() == [0.1] * 4
    assert found["llc"][2] is found.at(20).estimates["llc"]
    assert found.loss.tolist() == pytest.approx([0.5, 0.49, 0.48, 0.47])
    assert found.is_ok
    for wrong in (lambda: found["loss"], lambda: found.at(5), lambda: found.transitions("loss")):
        with pytest.raises(InputError, match="expected one of the"):
            wrong()


def test_files_are_read_back_as_they_were(tmp_path):
    found = trajectory()
    broken = Visit(200, math.nan, "", {"llc": failed("llc"), "trace": failed("trace")})
    found = Trajectory((*found.visits, broken), found.names, 1000, (Finding.of("TRACK902", "x"),), found.spec, 3)
    found.save(tmp_path / "a.json")
    again = Trajectory.load(tmp_path / "a.json")
    assert dumps(again.to_dict()) == dumps(found.to_dict())
    assert again.failures() == [(200, "llc", "ValueError: no"), (200, "trace", "ValueError: no")]
    assert not again.is_ok
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(text.replace("R-hat", "r-hat").replace('"n": 1000', '"n": 1001'))
    with pytest.raises(StoreError, match="corrupt"):
        Trajectory.load(tmp_path / "a.json")
    with pytest.raises(StoreError, match="could not read"):
        Trajectory.load(tmp_path / "b.json")


def test_other_content_is_refused():
    found = trajectory(3).to_dict()
    for change in ({"visits": 3}, {"n": "many"}, {"names": ["llc"]}, {"visits": found["visits"][::-1]}):
        with pytest.raises(InputError, match="expected"):
            Trajectory.from_dict(found | change)
    with pytest.raises(InputError, match="expected"):
        Trajectory.from_dict({})


def test_transitions_leave_out_what_is_not_ok():
    assert [c.step for c in trajectory().transitions("llc").changes] == [60]
    doubtful = trajectory(doubt=range(2, 12))
    with pytest.raises(InputError, match="got 2 of 12 visits that can be used; only_ok=False"):
        doubtful.transitions("llc")
    assert [c.step for c in doubtful.transitions("llc", only_ok=False).changes] == [60]
    visits = list(trajectory().visits)
    visits[3] = Visit(30, 0.4, "", {"llc": failed("llc"), "trace": visits[3].estimates["trace"]})
    holed = Trajectory(tuple(visits), ("llc", "trace"), n=1000)
    for only_ok in (True, False):
        found = holed.transitions("llc", only_ok=only_ok)
        assert (found.points, [c.step for c in found.changes]) == (11, [60])


def test_two_steps_as_basins():
    found = trajectory().free_energy_comparison(0, 110)
    one, other = trajectory().at(0), trajectory().at(110)
    expected = 1000 * (0.5 - 0.39) + (one.estimates["llc"].value - other.estimates["llc"].value) * math.log(1000)
    assert found.difference.value == pytest.approx(expected)
    assert (found.favored, found.critical) == ("step 110", None)
    with pytest.raises(InputError, match="visited steps"):
        trajectory().free_energy_comparison(0, 5)


def test_words():
    found = trajectory(doubt=[11])
    assert str(found).endswith("1 estimates not ok")
    assert len(found.table().splitlines()) == 13
    assert str(Trajectory((), ("llc",), n=3)) == "no visits"


def test_pictures():
    pytest.importorskip("matplotlib")
    visits = list(trajectory(doubt=[4]).visits)
    visits[3] = Visit(30, 0.4, "", {"llc": failed("llc"), "trace": visits[3].estimates["trace"]})
    figure = Trajectory(tuple(visits), ("llc", "trace"), n=1000).plot()
    upper, lower = figure.axes
    assert upper.get_title(loc="left") == "llc: 1 change"
    assert [line.get_marker() for line in upper.lines].count("x") == 1
    assert len(figure.axes) == 2
    assert len(trajectory().plot(["llc"], transitions=False).axes) == 1
    with pytest.raises(InputError, match="to draw"):
        Trajectory((), ("llc",), n=3).plot()
    assert lower.get_xlabel() == "step"
