import json
import pickle
import threading
import time

import pytest

from crunode.core.deadline import Deadline, check_deadline, seconds_of, working_until
from crunode.core.execute import Processes, Serial
from crunode.core.ledger import Ledger
from crunode.core.logs import LOG, log, logging_to
from crunode.errors import DeadlineReached, EstimationError, InputError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800)]
)
def test_seconds_of(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 m", "-1", "10x", "1h30", "1e3", "nan", "9" * 50, None, 3])
def test_seconds_of_something_else(text):
    with pytest.raises(InputError, match="expected a time such as"):
        seconds_of(text)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "3", True])
def test_wrong_deadlines(seconds):
    with pytest.raises(InputError, match="expected a deadline"):
        Deadline(seconds)


def test_deadline_travels_as_the_time_that_is_left():
    until = Deadline(100)
    assert 99 < pickle.loads(pickle.dumps(until)).left <= 100
    object.__setattr__(until, "end", 0.0)
    assert pickle.loads(pickle.dumps(until)).passed


def test_wall_clock_has_no_part(monkeypatch):
    until = Deadline(100)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not until.passed


def test_check_looks_at_the_innermost():
    check_deadline()
    with working_until(Deadline(0)), working_until(None), pytest.raises(DeadlineReached):
        check_deadline()
    check_deadline()


def test_serial_stops_before_the_next_job():
    until = Deadline(1000)
    seen = []

    def work(x):
        if x == 2:
            object.__setattr__(until, "end", 0.0)
        return x

    with pytest.raises(DeadlineReached, match="3 of 10 jobs done"):
        seen.extend(Serial(until=until).map(work, range(10)))
    assert seen == [0, 1, 2]
    assert list(Serial(until=Deadline(1000)).map(work, range(2))) == [0, 1]


@pytest.mark.heavy
def test_processes_end_what_has_begun():
    until = Deadline(1000)
    results = Processes(1, until=until).map(time.sleep, [0.0, 0.8, 0.0])
    assert next(results) is None
    timer = threading.Timer(0.3, lambda: object.__setattr__(until, "end", 0.0))
    timer.start()
    start = time.monotonic()
    assert next(results) is None, "it began in time"
    assert time.monotonic() - start >= 0.8
    with pytest.raises(DeadlineReached):
        next(results)


def test_ledger_after_an_error():
    ledger = Ledger(list("abcd"), retries=0)
    assert [ledger.begin() for _ in range(3)] == [0, 1, 2]
    ledger.finish(2, (False, KeyError("c")))
    assert ledger.begin() is None, "what comes after an error does not matter"
    ledger.finish(0, (True, "A"))
    ledger.lost(1, "signal 9")
    assert not ledger.pending(1)
    with pytest.raises(EstimationError, match="signal 9"):
        ledger.result(1)


def test_log_has_a_line_for_each_event(tmp_path):
    with logging_to(tmp_path):
        log("start", size="toy", note="x" * 9999)
        list(Serial().map(abs, [1, 2]))
        ledger = Ledger([1], retries=1)
        ledger.lost(0, "signal 9")
        ledger.finish(0, (False, KeyError("bad")))
    log("elsewhere")
    rows = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [row["event"] for row in rows] == ["start", "job done", "job done", "worker lost", "job failed"]
    assert len(rows[0]["note"]) == 2000
    assert all({"time", "clock", "process"} <= row.keys() for row in rows)


def test_log_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "secret").write_text("")
    (tmp_path / LOG).symlink_to(tmp_path / "secret")
    with logging_to(tmp_path):
        log("start")
    with logging_to(tmp_path / "absent"):
        log("start")
    assert (tmp_path / "secret").read_text() == ""
