"""Dynamic string sampling: paths below a level, grown bead by bead, many strings side by side.

A string of straight pieces joins the two ends. Where a piece rises above the level, a new bead is put at its highest
place and brought down by gradient descent, at first across the piece, then freely, until it is half way between the
lower end and the level; the two new pieces are looked at in turn. All bad pieces of all strings go through each step
together.

References:
    Freeman & Bruna 2016, "Topology and geometry of half-rectified network optimization", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crunode.topology.descent import lowered
from crunode.topology.heights import Heights
from crunode.topology.paths import Path, examine_path, examine_pieces

__all__ = ["Caps", "Goal", "Outcome", "grow_strings"]

# How far a new bead is moved at random, relative to the length of its piece, in each attempt to bring it down; the
# first attempt goes across the piece, the others anywhere.
_NUDGES = (1e-3, 0.1, 0.5)
# A piece is given up where these many divisions did not bring down its largest loss by this share.
_PATIENCE, _GAIN = 4, 0.02


@dataclass(frozen=True)
class Caps:
    """Where the search gives up.

    Attributes:
        beads: Most beads on a string.
        depth: How often a piece may be divided again.
        steps: Most steps of descent for a bead in each of three attempts.
    """

    beads: int = 96
    depth: int = 10
    steps: int = 200


@dataclass(frozen=True)
class Goal:
    """A string to begin with, and the level to bring it below.

    Attributes:
        points: Its beads, end points included, shape (beads, dim).
        level: The level.
        floor: The lower of the losses at its ends.
        group: Strings of one group are given up as soon as one of them is below its level; None is alone.
    """

    points: Tensor
    level: float
    floor: float
    group: int | None = None

    @property
    def target(self) -> float:
        """The loss that beads are brought down to: half way from the floor to the level."""
        return self.floor + (self.level - self.floor) / 2


@dataclass(frozen=True)
class Outcome:
    """What came of a string.

    Attributes:
        path: A path whose loss stays below the level; None where none was found.
        reason: Why not; empty where one was.
        cap: Whether a cap ended the search.
        beads: Number of beads, ends included.
        depth: How often the most divided piece was.
    """

    path: Path | None
    reason: str
    cap: bool
    beads: int
    depth: int


@dataclass
class _String:
    goal: Goal
    beads: list[Tensor]
    proven: list[bool]
    depths: list[int]
    lowest: list[tuple[float, int]]
    failed: str = ""
    cap: bool = False

    def ended(self) -> bool:
        return bool(self.failed) or all(self.proven)


def grow_strings(
    heights: Heights, goals: Sequence[Goal], generator: torch.Generator, caps: Caps, together: int | None = None
) -> list[Outcome]:
    """Bring strings below their levels, all at once.

    Args:
        heights: The loss.
        goals: Strings and levels.
        generator: Where random nudges come from.
        caps: Where to give up.
        together: Most pieces that are refined in one batch; None for all.

    Example:
        >>> from crunode.core.landscape import Landscape
        >>> circle = Landscape.of_function(lambda w: (w.square().sum() - 1) ** 2, torch.tensor([1.0, 0.0]))
        >>> ends = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> goal = Goal(ends, level=0.05, floor=0.0)
        >>> grow_strings(Heights(circle), [goal], torch.Generator().manual_seed(0), Caps())[0].path.bound <= 0.05
        True
    """
    strings = [_begun(heights, goal, generator, caps) for goal in goals]
    while True:
        todo = [(s, k) for s in strings if not s.ended() for k, done in enumerate(s.proven) if not done]
        todo = todo[:together]
        if not todo:
            break
        first = torch.stack([s.beads[k] for s, k in todo])
        last = torch.stack([s.beads[k + 1] for s, k in todo])
        levels = _column([s.goal.level for s, _ in todo], first)
        seen = examine_pieces(heights, first, last, levels)
        bad = seen.bound > levels
        for (s, k), wrong in zip(todo, bad.tolist(), strict=True):
            s.proven[k] = not wrong
        _give_up_others(strings)
        bad &= torch.tensor([not s.failed for s, _ in todo], device=bad.device)
        index = bad.nonzero().flatten()
        if len(index):
            where = seen.where[index].clamp(0.1, 0.9)[:, None]
            chosen = [todo[i] for i in index.tolist()]
            _give_up(chosen, seen.bound[index].tolist(), caps)
            _divide(chosen, heights, first[index], last[index], where, generator, caps)
    return [_outcome(heights, s) for s in strings]


def _begun(heights: Heights, goal: Goal, generator: torch.Generator, caps: Caps) -> _String:
    points = goal.points.clone()
    along = points[2:] - points[:-2]
    goals = [goal] * len(along)
    inner, values = _brought_down(heights, points[1:-1], along, goals, generator, caps.steps, nudged=False)
    # Beads that stay above the level are left out: the piece over their place is refined anew.
    points = torch.cat([points[:1], inner[values <= goal.level], points[-1:]])
    pieces = len(points) - 1
    return _String(goal, list(points), [False] * pieces, [0] * pieces, [(torch.inf, 0)] * pieces)


def _give_up_others(strings: Sequence[_String]) -> None:
    won = {s.goal.group for s in strings if s.goal.group is not None and not s.failed and all(s.proven)}
    for s in strings:
        if s.goal.group in won and not s.ended():
            s.failed = "another string was below the level before"


def _give_up(pieces: Sequence[tuple[_String, int]], tops: Sequence[float], caps: Caps) -> None:
    """End strings that are at a cap, or whose pieces do not come down by being divided."""
    for (s, k), top in zip(pieces, tops, strict=True):
        rise, tries = s.lowest[k]
        fell = top - s.goal.level < (1 - _GAIN) * rise
        s.lowest[k] = (top - s.goal.level, 0) if fell else (rise, tries + 1)
        if s.lowest[k][1] >= _PATIENCE:
            s.failed = f"{_PATIENCE} divisions of a piece did not bring it below a loss of {rise + s.goal.level:.4g}"
        elif s.depths[k] >= caps.depth:
            s.failed, s.cap = f"a piece was still above the level after {caps.depth} divisions", True
    for s, _ in pieces:
        if not s.failed and len(s.beads) + sum(other is s for other, _ in pieces) > caps.beads:
            s.failed, s.cap = f"more than {caps.beads} beads were needed", True


def _divide(
    pieces: Sequence[tuple[_String, int]],
    heights: Heights,
    first: Tensor,
    last: Tensor,
    where: Tensor,
    generator: torch.Generator,
    caps: Caps,
) -> None:
    """Put a bead on each of these pieces, from the last one of a string to the first."""
    left = [i for i, (s, _) in enumerate(pieces) if not s.failed]
    if not left:
        return
    start = torch.lerp(first[left], last[left], where[left])
    goals = [pieces[i][0].goal for i in left]
    beads, values = _brought_down(heights, start, (last - first)[left], goals, generator, caps.steps)
    placed = sorted(zip(left, beads, values.tolist(), strict=True), key=lambda item: -pieces[item[0]][1])
    for i, bead, value in placed:
        s, k = pieces[i]
        if value > s.goal.level:
            s.failed = f"no descent led below the level from between two beads: it ended at a loss of {value:.4g}"
            continue
        s.beads.insert(k + 1, bead)
        s.depths[k : k + 1] = [s.depths[k] + 1] * 2
        s.proven[k : k + 1] = [False, False]
        s.lowest[k : k + 1] = [s.lowest[k]] * 2


def _brought_down(
    heights: Heights,
    start: Tensor,
    along: Tensor,
    goals: Sequence[Goal],
    generator: torch.Generator,
    steps: int,
    nudged: bool = True,
) -> tuple[Tensor, Tensor]:
    """Beads brought down to their targets, or as far as it went, and their losses."""
    targets, floors = _column([g.target for g in goals], start), _column([g.floor for g in goals], start)
    levels = _column([g.level for g in goals], start)
    lengths = along.norm(dim=1, keepdim=True).clamp_min(1e-300)
    best, height = start.clone(), torch.full_like(targets, torch.inf)
    for attempt, nudge in enumerate(_NUDGES):
        todo = (height > (targets if attempt == 0 else levels)).nonzero().flatten()
        if not len(todo):
            break
        noise = torch.randn(len(todo), start.shape[1], generator=generator, dtype=torch.float64).to(start)
        size = nudge * lengths[todo] if nudged or attempt else 0.0
        begin = start[todo] + size * noise / noise.norm(dim=1, keepdim=True)
        across = (along / lengths)[todo] if attempt == 0 else None
        moved, value = lowered(heights, begin, targets[todo], floors[todo], lengths[todo], steps, across)
        better = value < height[todo]
        best[todo[better]], height[todo[better]] = moved[better], value[better]
    return best, height


def _outcome(heights: Heights, s: _String) -> Outcome:
    path = None if s.failed else examine_path(heights, torch.stack(s.beads), s.goal.level)
    return Outcome(path, s.failed, s.cap, len(s.beads), max(s.depths))


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=like.device)
