import json
import math

import pytest

from crunode.reporting.chart_axes import ticks
from crunode.reporting.charts import Chart, Series, chart_data, drawing


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [
        (0, 1, "linear"),
        (-3.7, 12.2, "linear"),
        (1e-9, 2e-9, "linear"),
        (3, 40, "log"),
        (1e-4, 1e5, "log"),
        (0, 900, "log1p"),
    ],
)
def test_ticks_are_few_round_and_inside(low, high, scale):
    found = ticks(low, high, scale)
    assert 2 <= len(found) <= 8
    assert all(low <= v <= high for v in found)
    assert found == sorted(set(found))
    assert all(
        f"{v:.2e}"[:4] in ("0.00", "1.00", "2.00", "4.00", "5.00", "6.00", "8.00") or scale == "linear" for v in found
    )


def test_ticks_of_nothing():
    assert ticks(2.0, 2.0) == [2.0]
    assert ticks(-1e308, 1e308) == [-1e308]


def test_places_are_those_of_the_values():
    chart = Chart("t", "x", "y", [Series("a", [0, 1, 2], [0.0, 5.0, 10.0])])
    *_, width, height = chart.box
    path = drawing(chart)["series"][0]["line"]
    (x0, y0), (x1, y1), (x2, y2) = [[float(v) for v in part.split()] for part in path[1:].split("L")]
    assert (x0, x1, x2) == (0.0, width / 2, float(width))
    assert y1 == pytest.approx(height / 2, abs=0.1)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2 > 0


def test_equal_steps_on_a_log_axis():
    chart = Chart("t", "x", "y", [Series("a", [1, 10, 100], [1.0, 2.0, 3.0])], "log")
    places = [float(part.split()[0]) for part in drawing(chart)["series"][0]["line"][1:].split("L")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_gaps_and_what_is_not_finite():
    chart = Chart("t", "x", "y", [Series("a", [0, 1, 2, 3], [1.0, None, math.nan, 2.0], dots=True, hollow=[True])])
    found = drawing(chart)["series"][0]
    assert found["line"].count("M") == 2
    assert found["dots"].count("h0") == 2
    assert found["holes"].count("h0") == 1
    data = json.loads(chart_data(chart))
    assert data["series"][0]["y"] == [1.0, None, None, 2.0]


def test_wild_numbers_draw_something():
    wild = [1e308, -1e308, 5e-324, 0.0, 1e300]
    for scale in ("linear", "log", "log1p"):
        chart = Chart("t", "x", "y", [Series("a", wild, wild, wild)], scale)
        text = json.dumps(drawing(chart)) + chart_data(chart)
        assert "nan" not in text.lower()
        assert "inf" not in text.lower()
    empty = Chart("t", "x", "y", [Series("a", [math.nan], [1.0])])
    assert not empty.drawable
    assert drawing(empty)["series"][0]["line"] == ""


def test_a_few_wild_draws_do_not_flatten_a_long_trace():
    y = [math.sin(k) for k in range(2000)]
    y[7] = 1e6
    domain = json.loads(chart_data(Chart("t", "x", "y", [Series("a", list(range(2000)), y)])))["domain"]
    assert domain[3] < 2
