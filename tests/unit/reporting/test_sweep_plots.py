import io
import json
import math
import sys

import matplotlib
import pytest

from crunode.core.result import Estimate
from crunode.errors import MissingExtra
from crunode.estimators.sweep_result import Cell, Sweep
from crunode.reporting.sweep_plots import plot_sweep

CHOICE = (1e-4, 10.0, 50.0)
NAN = math.nan


def png(figure):
    """The picture's bytes, which makes matplotlib draw everything."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=30)
    return buffer.getvalue()


def texts(figure):
    return " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


def value_at(step, precision, nbeta):
    return 2 + step * 1e3 + nbeta / 100 - 0.01 * precision


def made(steps=(1e-5, 1e-4, 1e-3), precisions=(1.0, 10.0), nbetas=(20.0, 50.0), value=value_at, estimate=2.0):
    """A sweep with invented values, the largest step diverging and the smallest not ok."""
    trace = tuple((float(x), 2.0 + 0.1 * x) for x in range(-3, 6))

    def cell(step, precision, nbeta):
        if step == 1e-3:
            bad = {"value": NAN, "se": NAN, "systematic": NAN, "ok": False, "findings": ("MC204",)}
            return Cell(step, precision, nbeta, **bad, trace=((-3.0, 1.0), (-2.0, 1e30)))
        found = {"value": value(step, precision, nbeta), "se": 0.1, "systematic": 0.2, "ok": step > 1e-5}
        return Cell(step, precision, nbeta, **found, trace=trace)

    cells = tuple(cell(e, g, b) for b in nbetas for g in precisions for e in steps)
    return Sweep(steps, precisions, nbetas, cells, (cell(*CHOICE),) * 7, Estimate("llc", estimate, se=0.1))


def hatched(axes, hatch):
    return [p for p in axes.findobj(matplotlib.patches.Rectangle) if p.get_hatch() == hatch]


@pytest.mark.heavy
def test_each_nbeta_has_map_lines_and_traces():
    figure = made().plot()
    assert png(figure).startswith(b"\x89PNG")
    assert len(figure.axes) == 7  # the last one is the scale of colors
    assert texts(figure).count("nβ = 50") == 3
    assert "default estimate: 2" in texts(figure)


def test_map_has_the_values_where_they_belong():
    image = made().plot().axes[1].images[0]
    shown = image.get_array()
    assert shown.shape == (2, 3)
    assert shown[1, 0] == pytest.approx(value_at(1e-5, 10.0, 50.0))
    assert shown[0, 1] == pytest.approx(value_at(1e-4, 1.0, 50.0))


def test_diverged_cells_are_hatched_and_have_no_color():
    axes = made().plot().axes[1]
    crossed, slanted = hatched(axes, "xxx"), hatched(axes, "///")
    assert sorted(p.get_xy() for p in crossed) == [(1.5, -0.5), (1.5, 0.5)]
    assert sorted(p.get_xy() for p in slanted) == [(-0.5, -0.5), (-0.5, 0.5)]
    shown = axes.images[0].get_array()
    assert shown.mask.tolist() == [[False, False, True]] * 2


def test_tuners_choice_is_marked_on_the_nearest_map_only():
    figure = made().plot()
    stars = [[line for line in axes.lines if line.get_marker() == "*"] for axes in figure.axes[:2]]
    assert [len(found) for found in stars] == [0, 1]
    (x,), (y,) = stars[1][0].get_data()
    assert x == pytest.approx(1)
    assert 1 <= y < 1.5


def test_lines_leave_out_what_diverged_and_show_the_default_estimate():
    axes = made().plot().axes[3]
    lengths = [len(bars.lines[0].get_xdata()) for bars in axes.containers]
    assert lengths == [2, 2, 0]
    assert any(list(line.get_ydata()) == [2.0, 2.0] for line in axes.lines)


def test_trace_that_diverges_does_not_flatten_the_others():
    axes = made().plot().axes[5]
    assert axes.get_ylim()[1] < 10
    assert [line.get_linestyle() for line in axes.lines[:3]] == ["-", "-", "--"]
    assert "γ = 10" in axes.get_title(loc="left")


@pytest.mark.heavy
@pytest.mark.parametrize(
    "options",
    [
        {"steps": (1e-4,), "precisions": (1.0,), "nbetas": (50.0,)},
        {"precisions": (1.0,)},
        {"steps": (1e-3,)},
        {
            "steps": tuple(1e-6 * k for k in range(1, 13)),
            "precisions": tuple(map(float, range(1, 13))),
            "nbetas": (9.0,),
        },
        {"value": lambda e, g, b: 1e6 * e * g},
        {"value": lambda e, g, b: -3.0 if g == 1 else 1e6 * e * b},
        {"value": lambda e, g, b: 0.0},
    ],
    ids=["one", "precision", "diverged", "large", "decades", "negative", "zero"],
)
def test_sweeps_of_any_shape_and_size(options):
    png(made(**options).plot())


@pytest.mark.heavy
def test_drawn_from_json_with_nulls():
    content = made(estimate=NAN).to_dict()
    text = json.dumps(content).replace("NaN", "null")
    assert png(plot_sweep(json.loads(text))) == png(plot_sweep(content))


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"crunode\[plot\]"):
        made().plot()
