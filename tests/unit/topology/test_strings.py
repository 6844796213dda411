"""Strings step by step: when they are given up, and how their beads are moved before they come down."""

import pytest
import torch

from crunode.topology import strings
from crunode.topology.strings import Caps, Goal, _brought_down, _give_up, _give_up_others, _String


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def string(beads=3, depth=0, level=1.0, group=None):
    goal = Goal(torch.zeros(beads, 2).double(), level, 0.0, group)
    pieces = beads - 1
    return _String(goal, list(goal.points), [False] * pieces, [depth] * pieces, [(torch.inf, 0)] * pieces)


def test_a_piece_is_given_up_after_four_divisions_without_a_gain_of_a_fiftieth_of_its_rise():
    s, caps = string(), Caps()
    for top in (2.0, 1.985, 1.985, 1.985):  # a rise of 1, and 0.985 is not enough of a gain
        _give_up([(s, 0)], [top], caps)
        assert not s.failed
    _give_up([(s, 0)], [1.985], caps)
    assert s.failed == "4 divisions of a piece did not bring it below a loss of 2"
    assert (s.cap, s.ended()) == (False, True)
    slow = string()
    for k in range(40):  # a gain of 0.021 of what is left each time is one
        _give_up([(slow, 1)], [1 + 0.979**k], caps)
    assert not slow.failed
    assert slow.lowest[0] == (torch.inf, 0)
    assert slow.lowest[1] == (pytest.approx(0.979**39), 0)
    for top in (3.0, 3.0, 3.0):
        _give_up([(slow, 1)], [top], caps)
    _give_up([(slow, 1)], [1 + 0.979**41], caps)  # a gain makes up for all that was in vain
    assert not slow.failed
    assert slow.lowest[1][1] == 0


def test_caps_end_a_string_and_say_so():
    caps = Caps(beads=6, depth=4)
    for depth, failed in ((3, False), (4, True)):
        s = string(depth=depth)
        _give_up([(s, 1)], [2.0], caps)
        assert (bool(s.failed), s.cap) == (failed, failed)
        assert not failed or s.failed == "a piece was still above the level after 4 divisions"
    for beads, pieces, failed in ((4, 2, False), (4, 3, True), (5, 1, False), (5, 2, True), (6, 1, True)):
        s, other = string(beads), string(4)  # a bead for each of its pieces, and none for those of another string
        _give_up([(s, k) for k in range(pieces)] + [(other, 0)], [2.0] * (pieces + 1), caps)
        assert (bool(s.failed), s.cap) == (failed, failed)
        assert not other.failed
        assert not failed or s.failed == "more than 6 beads were needed"


def test_strings_of_a_group_are_given_up_when_one_is_below_and_others_go_on():
    won, same, other, alone, lost = (string(group=g) for g in (1, 1, 2, None, 1))
    lost.failed = "before"
    _give_up_others([won, same, other, alone, lost])
    assert not same.failed
    won.proven = [True, True]
    also = string(group=1)
    also.proven = [True, True]
    _give_up_others([won, same, other, alone, lost, also])
    assert same.failed == "another string was below the level before"
    assert (lost.failed, won.failed, also.failed, other.failed, alone.failed) == ("before", "", "", "", "")
    alone.proven = [True, True]
    stray = string()
    _give_up_others([alone, stray])
    assert not stray.failed
    beaten = string(group=7)
    beaten.proven, beaten.failed = [True, True], "lost"
    _give_up_others([beaten, later := string(group=7)])
    assert not later.failed


@pytest.mark.parametrize("nudged", [True, False])
def test_beads_are_tried_across_their_piece_and_then_from_further_and_further_away(monkeypatch, nudged):
    calls = []
    losses = [column(0.4, 0.9, 3.0, 3.0), column(4.0, 2.0), column(1.5)]

    def lowered(heights, points, targets, floors, reach, steps, across):
        calls.append((points, targets, floors, reach, steps, across))
        return points + 100, losses[len(calls) - 1]

    monkeypatch.setattr(strings, "lowered", lowered)
    start = torch.zeros(4, 3, dtype=torch.float64)
    along = torch.diag(column(1, 2, 4))[[0, 1, 2, 2]] * column(1, 1, 1, 0.5)[:, None]
    goals = [Goal(start, 1.0, 0.2 * k, None) for k in range(3)] + [Goal(start, 2.5, 0.0, None)]
    best, height = _brought_down(None, start, along, goals, torch.Generator().manual_seed(0), 77, nudged)
    lengths = column(1, 2, 4, 2)
    chosen = [0, 1, 2, 3], [2, 3], [2]  # those that are above their level after what came before
    for (points, targets, floors, reach, steps, across), index, nudge in zip(
        calls, chosen, (1e-3 if nudged else 0.0, 0.1, 0.5), strict=True
    ):
        torch.testing.assert_close(points.norm(dim=1), nudge * lengths[index])
        torch.testing.assert_close(targets, column(0.5, 0.6, 0.7, 1.25)[index])
        torch.testing.assert_close(floors, column(0, 0.2, 0.4, 0)[index])
        torch.testing.assert_close(reach, lengths[index][:, None])
        assert steps == 77
        assert (across is None) == (index != [0, 1, 2, 3])
    torch.testing.assert_close(calls[0][5], along / lengths[:, None])
    torch.testing.assert_close(height, column(0.4, 0.9, 1.5, 2.0))
    torch.testing.assert_close(best[:2], calls[0][0][:2] + 100)
    torch.testing.assert_close(best[2], calls[2][0][0] + 100)
    torch.testing.assert_close(best[3], calls[1][0][1] + 100)
