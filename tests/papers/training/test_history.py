"""What a report shows of a training's history."""

from crunode.reporting.result_views import result_view
from crunode_papers.training.history import History


def test_a_page_says_where_the_loss_came_to():
    history = History.of([{"epoch": k, "step": k, "loss": 1.0 / k, "validation_loss": 2.0 / k} for k in range(1, 5)])
    view = result_view(history)
    assert (view.name, view.answer.name, view.answer.number, view.answer.where) == (
        "training",
        "loss",
        "0.25",
        "after 4 epochs",
    )
    assert ("validation_loss", "0.5") in [row[:2] for row in view.tables[0].rows]
