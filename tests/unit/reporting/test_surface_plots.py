"""Pictures of surfaces are drawn, with holes, marks and colors; bad input is refused."""

import io

import matplotlib
import numpy as np
import pytest

from crunode.errors import InputError
from crunode.reporting.surface_plots import plot_profile, plot_surface
from crunode.topology.surfaces import Surface


def png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def texts(figure):
    return " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


def bowl(*, hole=False):
    x, y = np.linspace(-1, 1, 9), np.linspace(-2, 2, 7)
    losses = 0.1 + x[:, None] ** 2 + 2 * y**2
    if hole:
        losses[0, :2] = np.nan
    llc = np.where(np.isnan(losses), np.nan, 3 + x[:, None] + 0 * y)
    marks = {"path": np.array([[0.5, 1.0], [0.2, 0.5], [0.0, 0.0]]), "end": np.zeros((1, 2))}
    return Surface((x, y), losses, {"λ̂": llc}, {"λ̂": 0 * llc + 0.1}, marks, ("first", "second"))


def line():
    x = np.linspace(-1, 2, 13)
    return Surface((x,), x**4 - x**2 + 1, {"acc": x}, {"acc": 0 * x}, {"a": np.zeros((1, 1))}, ("way",))


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["filled", "contour", "3d"])
@pytest.mark.parametrize("color", [None, "λ̂"])
def test_surfaces_are_drawn(kind, color):
    figure = plot_surface(bowl(hole=True), kind, color, log=color is None)
    assert png(figure)[1:4] == b"PNG"
    assert {"first", "second"} <= set(texts(figure).split())
    if kind != "contour" or color:
        assert (color or "log₁₀ loss") in texts(figure)


def test_axes_are_not_swapped():
    figure = plot_surface(bowl())
    axes = figure.axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-1.0, 1.0), (-2.0, 2.0))
    # Steeper along the second axis: the line of one level reaches further along the first.
    paths = [p.vertices for c in axes.collections for p in c.get_paths() if len(p.vertices) > 8]
    inner = min(paths, key=lambda v: np.ptp(v[:, 0]) + np.ptp(v[:, 1]))
    assert np.ptp(inner[:, 0]) > 1.1 * np.ptp(inner[:, 1]) > 0


def test_profiles_are_drawn():
    assert png(plot_profile(line()))[1:4] == b"PNG"
    figure = line().plot(color="acc", log=True)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_yscale() == "log"
    assert "acc" in texts(figure)


def test_constant_surfaces_are_drawn():
    flat = Surface((np.arange(3.0), np.arange(3.0)), np.ones((3, 3)), labels=("a", "b"))
    assert png(flat.plot())[1:4] == b"PNG"


def test_bad_input():
    with pytest.raises(InputError, match="kind among"):
        plot_surface(bowl(), "pie")
    with pytest.raises(InputError, match="use plot_profile"):
        plot_surface(line())
    with pytest.raises(InputError, match="use plot_surface"):
        plot_profile(bowl())
    with pytest.raises(InputError, match="among the probes"):
        plot_surface(bowl(), color="llc")
    with pytest.raises(InputError, match="among the probes"):
        plot_profile(line(), color="llc")
    with pytest.raises(InputError, match="above 0"):
        plot_surface(Surface((np.arange(2.0),) * 2, -np.ones((2, 2)), labels=("a", "b")), log=True)
    with pytest.raises(InputError, match="finite losses"):
        plot_surface(Surface((np.arange(2.0),) * 2, np.full((2, 2), np.nan), labels=("a", "b")))
