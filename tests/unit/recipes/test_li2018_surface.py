"""What the rows of `li2018-surface` say of planted numbers, and its network."""

import pytest
import torch

from crunode.recipes import li2018_surface as li
from crunode.recipes.base import Cell, Result


def planted(plain, skip=(0.1, 0.12, 0.11), shallow=(0.0, 0.01, 0.0), large=(2.0, 2.2, 1.9)):
    """Results with these nonconvex shares of deep networks, and this sharpness of large batches over small ones."""
    found = []
    for kind, blocks, shares in (("skip", 7, skip), ("plain", 7, plain), ("skip", 1, shallow), ("plain", 1, shallow)):
        for k, share in enumerate(shares):
            value = {"share": share, "ratio": share / 2, "loss": 0.4}
            found.append(Result(Cell(f"{kind} {blocks} {k}", {"kind": kind, "blocks": blocks}), value, 0.0))
    for decay in (0.0, 2e-3):
        for k, factor in enumerate(large):
            small = {"filter": 1.0, "none": 1.0, "norm": 1.0}
            value = {"small": small, "large": {"filter": factor, "none": factor, "norm": 1.0}}
            found.append(Result(Cell(f"{decay} {k}", {"decay": decay}), value, 0.0))
    return found


def verdicts(results):
    return {row.name: row.verdict for row in li.rows(results, "toy") if row.verdict != "shown"}


def test_clear_differences_agree():
    assert set(verdicts(planted((0.3, 0.35, 0.32))).values()) == {"agrees"}


@pytest.mark.parametrize("plain", [(0.1, 0.12, 0.11), (0.05, 0.9, 0.1), (0.01, 0.02, 0.01)])
def test_equal_scattered_and_opposite_shares_differ(plain):
    found = verdicts(planted(plain))
    assert found["16 layers: nonconvex share, without less with skip connections (lower 95 % limit)"] == "differs"


def test_sharper_small_batches_differ():
    found = verdicts(planted((0.3, 0.35, 0.32), large=(0.5, 0.6, 2.0)))
    assert [v for name, v in found.items() if "filter-normalized" in name] == ["differs", "differs"]


def test_failed_cells_leave_the_rest():
    some = [r for r in planted((0.3, 0.35, 0.32)) if r.settings.get("kind") != "plain"]
    assert set(verdicts(some).values()) == {"agrees"}


def test_skip_connections_pass_blocks():
    torch.manual_seed(0)
    with_skip, without = li.ResidualNet(3, True, 4, 7), li.ResidualNet(3, False, 4, 7)
    for net in (with_skip, without):
        for p in net.second.parameters():
            torch.nn.init.zeros_(p)
    x = torch.randn(5, 49)
    assert not torch.allclose(with_skip(x)[0], with_skip(x)[1])
    assert torch.allclose(without(x)[0], without(x)[1])
