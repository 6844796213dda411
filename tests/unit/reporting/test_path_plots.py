"""Pictures of paths and merge trees."""

import pytest
import torch

from crunode.core.landscape import Landscape
from crunode.topology import barrier, connect, merge_tree

pytest.importorskip("matplotlib")
from crunode.reporting.path_plots import plot_merge_tree, plot_path


def circle():
    return Landscape.of_function(lambda w: (w.square().sum() - 1) ** 2, torch.tensor([1.0, 0.0], dtype=torch.float64))


ENDS = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)


def test_path_of_a_connection_a_barrier_and_alone(tmp_path):
    found = connect(circle(), *ENDS, 0.1)
    axes = plot_path(found).axes[0]
    assert axes.lines[0].get_ydata().max() == found.path.largest
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["may be between grid points", "level"]
    low = barrier(circle(), *ENDS, "line")
    plot_path(low).savefig(tmp_path / "path.png")
    assert len(plot_path(low.path).axes[0].lines) == 1


def test_an_unknown_connection_says_so():
    wells = Landscape.of_function(lambda w: (w[0] ** 2 - 1) ** 2, torch.ones(1))
    found = connect(wells, torch.tensor([-1.0]), torch.tensor([1.0]), 0.5, strings=1)
    assert "unknown" in plot_path(found).axes[0].texts[0].get_text()


def test_merge_tree_has_a_line_for_each_merge(tmp_path):
    solutions = [torch.tensor([x, y], dtype=torch.float64) for x, y in ((1, 0), (-1, 0), (0, 1), (0, 1.2))]
    tree = merge_tree(circle(), solutions, tolerance=0.1, strings=2)
    figure = plot_merge_tree(tree)
    figure.savefig(tmp_path / "tree.png")
    assert len(figure.axes[0].lines) == len(tree.merges) + 1
    assert sorted(label.get_text() for label in figure.axes[0].get_xticklabels()) == ["0", "1", "2", "3"]
