"""Chains of linear maps: their interval decomposition, and the sub-chains that carry a deep linear network's fiber.

A chain V_0 → V_1 → … → V_L of linear maps is, up to a change of basis at every place, a sum of intervals [i, j]: one
dimension at each of the places i…j, mapped onto each other, and zero beyond (Gabriel 1972). How often each interval
occurs follows from the ranks r_ij of the maps V_i → V_j, and the other way round.

The maps of a product of rank r = r_0L send V_0 through subspaces U_i of dimensions u_i to an image of dimension r. Near
a given chain, those with the same product are the union over the dimensions d_0 = u_0 ≥ u_1 ≥ … ≥ u_L = r of pieces of
codimension r(d_0 + d_L) − r² + Σ_i (u_{i−1} − u_i)(d_i − u_i), and the piece u comes near exactly if the chain has a
sub-chain of dimensions u that is all of V_0 at the one end and the image at the other. With the steps
c_i = u_{i−1} − u_i this is

    c_{i+1} + … + c_j ≤ d_i − r_ij    for all i < j,

so the smallest codimension is the minimum of a sum of convex functions, Σ_i (c_i²/2 + c_i d_i), over the integer points
of a polymatroid (the ranks satisfy Frobenius' inequality), and raising the cheapest step that may still be raised
finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["excess", "flag_length", "intervals", "jacobian_rank", "lowest_steps"]

# Orders in which the search for a flag of sub-chains may fail before the multiplicity is left open.
_TRIES = 3000

Ranks = Mapping[tuple[int, int], int]


def intervals(ranks: Ranks, length: int) -> dict[tuple[int, int], int]:
    """How often each interval [i, j] occurs in a chain with the given ranks; negative where no chain has them.

    Args:
        ranks: Rank of the map from place i to place j, for 0 ≤ i ≤ j ≤ length; the dimension for i = j.
        length: Number of maps.

    Example:
        >>> intervals({(0, 0): 2, (0, 1): 1, (1, 1): 3}, 1)
        {(0, 0): 1, (0, 1): 1, (1, 1): 2}
    """

    def rank(i: int, j: int) -> int:
        return 0 if i < 0 or j > length else ranks[i, j]

    return {
        (i, j): rank(i, j) - rank(i - 1, j) - rank(i, j + 1) + rank(i - 1, j + 1)
        for i in range(length + 1)
        for j in range(i, length + 1)
    }


def jacobian_rank(ranks: Ranks, length: int) -> int:
    """Rank of the differential of the product: Σ_{i=1}^L r_0,i−1 r_iL − Σ_{i=1}^{L−1} r_0i r_iL.

    The i-th map moves the product by A_i X B_i, where B_i goes from V_0 to V_{i−1} and A_i from V_i to V_L. These
    spaces of matrices are spanned by rectangles that overlap in the rectangles of neighbors alone.

    Example:
        >>> jacobian_rank({(0, 0): 2, (0, 1): 1, (1, 1): 3}, 1)
        6
    """
    total = sum(ranks[i, length] * ranks[0, i - 1] for i in range(1, length + 1))
    return total - sum(ranks[i, length] * ranks[0, i] for i in range(1, length))


def lowest_steps(ranks: Ranks, length: int) -> list[int]:
    """The steps c_1…c_L of lowest Σ_i (c_i²/2 + c_i d_i); among equally low ones those with the largest first steps.

    Example:
        >>> lowest_steps({(0, 0): 3, (0, 1): 0, (0, 2): 0, (1, 1): 3, (1, 2): 0, (2, 2): 3}, 2)
        [2, 1]
    """
    steps, room = [0] * (length + 1), _rooms(ranks, length)
    level = [ranks[k, k] for k in range(length + 1)]
    active = list(range(1, length + 1))
    while active and room[0][length]:
        low = min(level[k] for k in active)
        rising = [k for k in active if level[k] == low]
        marked = [0] * (length + 1)
        for k in range(1, length + 1):
            marked[k] = marked[k - 1] + (k in rising)
        lift = min((level[k] - low for k in active if level[k] > low), default=room[0][length])
        for i in range(length):
            for j in range(i + 1, length + 1):
                if marked[j] > marked[i]:
                    lift = min(lift, room[i][j] // (marked[j] - marked[i]))
        if lift:
            for i in range(length):
                for j in range(i + 1, length + 1):
                    room[i][j] -= lift * (marked[j] - marked[i])
            for k in rising:
                steps[k] += lift
                level[k] += lift
            continue
        for k in rising:
            if all(room[i][j] for i in range(k) for j in range(k, length + 1)):
                for i in range(k):
                    for j in range(k, length + 1):
                        room[i][j] -= 1
                steps[k] += 1
                level[k] += 1
            else:
                active.remove(k)
    return steps[1:]


def excess(ranks: Ranks, length: int, steps: Sequence[int]) -> int:
    """Σ_i c_i (d_i − u_i): the codimension of the piece with steps c, beyond what the rank of the product takes.

    Example:
        >>> excess({(0, 0): 3, (1, 1): 3, (2, 2): 3}, 2, [2, 1])
        7
    """
    total, left = 0, ranks[0, 0]
    for k, step in enumerate(steps, start=1):
        left -= step
        total += step * (ranks[k, k] - left)
    return total


def flag_length(ranks: Ranks, length: int, steps: Sequence[int]) -> tuple[int, int]:
    """How many sub-chains of smallest codimension, of different dimensions, can be nested: bounds that mostly agree.

    Args:
        ranks: As for `intervals`.
        length: Number of maps.
        steps: What `lowest_steps` found.

    Returns:
        A number that is reached, and one that is not exceeded.

    Example:
        >>> zero = {(i, j): 3 * (i == j) for i in range(3) for j in range(i, 3)}
        >>> flag_length(zero, 2, [2, 1])
        (2, 2)
    """
    counts = intervals(ranks, length)
    chain = [tuple(steps)]
    while (higher := next(_covers(ranks, length, chain[-1]), None)) is not None:
        chain.append(higher)
    most = len(chain)
    if _nested(ranks, length, counts, chain):
        return most, most
    return _search(ranks, length, counts, chain[0], most)


def _rooms(ranks: Ranks, length: int) -> list[list[int]]:
    return [[ranks[i, i] - ranks[i, j] if j > i else 0 for j in range(length + 1)] for i in range(length + 1)]


def _covers(ranks: Ranks, length: int, steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The next larger dimensions of equal codimension: one unit of a step moves to a later step, as near as it can."""
    sums = [0]
    for step in steps:
        sums.append(sums[-1] + step)
    level = [0] + [step + ranks[k, k] for k, step in enumerate(steps, start=1)]
    reach = [
        max((j for j in range(i + 1, length + 1) if sums[j] - sums[i] == ranks[i, i] - ranks[i, j]), default=0)
        for i in range(length)
    ]
    found: list[tuple[int, int]] = []
    for gap in range(1, length):
        for i in range(1, length - gap + 1):
            j = i + gap
            if not steps[i - 1] or level[i] != level[j] + 1 or any(reach[s] >= j for s in range(i, j)):
                continue
            if not any(i <= a and b <= j for a, b in found):
                found.append((i, j))
                moved = list(steps)
                moved[i - 1] -= 1
                moved[j - 1] += 1
                yield tuple(moved)


def _nested(ranks: Ranks, length: int, counts: Mapping[tuple[int, int], int], chain: Sequence[tuple[int, ...]]) -> bool:
    """Whether the given chain has nested sub-chains with these steps, smallest first.

    Sub-chains may be taken as sums of ends [i', j] of the intervals [i, j], so each interval has at every place the
    time at which it joins, and that never rises along the interval. How many join when is given at every place.
    Intervals that go on should have late times, so those that end last get the latest ones they may have.
    """
    never = len(chain)
    left = [ranks[0, 0]] * never
    held: dict[tuple[int, int], int] = {}  # (end, time) -> number of intervals at this place
    for i in range(1, length):
        left = [u - steps[i - 1] for u, steps in zip(left, chain, strict=True)]
        joined = [u - ranks[0, i] for u in left]
        for j in range(i, length):
            if counts[i, j]:
                held[j, never] = held.get((j, never), 0) + counts[i, j]
        free = {t: joined[t] - (joined[t - 1] if t else 0) for t in range(never)}
        free[never] = sum(held.values()) - joined[-1]
        times = [t for t in range(never, -1, -1) if free[t]]
        given: dict[tuple[int, int], int] = {}
        for (j, bound), number in sorted(held.items(), reverse=True):
            for t in times:
                if t > bound or not free[t]:
                    continue
                taken = min(number, free[t])
                free[t] -= taken
                number -= taken
                if j > i:
                    given[j, t] = given.get((j, t), 0) + taken
                if not number:
                    break
            if number:
                return False
        held = given
    return True


def _search(
    ranks: Ranks, length: int, counts: Mapping[tuple[int, int], int], first: tuple[int, ...], most: int
) -> tuple[int, int]:
    """The longest nested chain out of all steps of smallest codimension, as far as a bounded search tells."""
    above = {first: list(_covers(ranks, length, first))}
    waiting = list(above[first])
    while waiting and len(above) < 200:
        steps = waiting.pop()
        if steps not in above:
            above[steps] = list(_covers(ranks, length, steps))
            waiting += above[steps]
    if waiting:
        return 1, most
    order = sorted(above, key=lambda steps: sum(k * step for k, step in enumerate(steps)), reverse=True)
    higher: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    tallest: dict[tuple[int, ...], int] = {}
    for steps in order:
        higher[steps] = set(above[steps]).union(*(higher[other] for other in above[steps]))
        tallest[steps] = 1 + max((tallest[other] for other in above[steps]), default=0)
    best, tries = 1, 0

    def extend(chain: list[tuple[int, ...]]) -> None:
        nonlocal best, tries
        best = max(best, len(chain))
        options = sorted(higher[chain[-1]] if chain else order, key=lambda steps: -tallest[steps])
        for steps in options:
            if len(chain) + tallest[steps] <= best or tries >= _TRIES:
                break
            tries += 1
            if _nested(ranks, length, counts, [*chain, steps]):
                extend([*chain, steps])

    extend([])
    return best, best if tries < _TRIES else most - 1
