"""What `freeman2016-connectivity` rests on, and what its rows would say of wrong numbers."""

import torch

from crunode.core.landscape import Landscape
from crunode.jobs.recipe import Cell, Result
from crunode.topology.heights import Heights
from crunode_papers.freeman2016 import connectivity as freeman


def result(kind, value, **settings):
    return Result(Cell(kind, {"kind": kind, **settings}), value, 0.0)


def test_half_path_ends_at_the_two_networks_and_is_highest_at_a_corner():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    y = x[:, 0].abs()
    hidden = [torch.randn(8, 2, generator=generator, dtype=torch.float64) for _ in range(2)]
    outer = [freeman._fitted(w, x, y) for w in hidden]
    corners = freeman.half_path(tuple(hidden), tuple(outer), x, y)
    assert torch.equal(corners[0], torch.cat([hidden[0].flatten(), outer[0]]))
    assert torch.equal(corners[-1], torch.cat([hidden[1].flatten(), outer[1]]))
    land = Landscape(freeman._TwoLayers(8, 2), (x, y), torch.nn.functional.mse_loss)
    heights = Heights(land)
    tops = heights.values(corners)
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    for k in range(len(corners) - 1):
        along = heights.values(torch.lerp(corners[k], corners[k + 1], shares))
        assert float(along.max()) <= float(torch.maximum(tops[k], tops[k + 1])) + 1e-12


def test_rows_tell_wrong_numbers():
    pair = {"value": 0.3, "error": 0.01, "line": 1.0}
    good, bad = {"below": 4, "above": 1, "lowest": 0.251, "highest": 0.255}, {"below": 3, "above": 2, "lowest": 0.2}
    rows = freeman.rows(
        [
            result("chain", {"pairs": [pair]}, width=1),
            result("units", {"pairs": [pair]}, width=3),
            result("orthants", good, inputs=2),
            result("orthants", {**bad, "highest": 0.4}, inputs=2),
            *(
                result("gap", {"gaps": [m**-0.2, 1.1 * m**-0.2], "over_corners": 0.1}, inputs=2, width=m)
                for m in (8, 16, 32)
            ),
        ],
        "toy",
    )
    verdicts = [row.verdict for row in rows]
    assert verdicts == ["differs"] * 2 + ["agrees"] * 4 + ["differs"] * 4 + ["shown"] + ["differs"] * 3
