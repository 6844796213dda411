"""The classes of the benchmark and their problems.

The classes 1K to 100M are the published ones: random deep linear networks, named by how many parameters they have. The
class "reference" has eight deep linear networks at their most singular point, without and with label noise; "families"
has other models that `crunode.exact` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from crunode import InputError
from crunode.exact import deep_linear
from crunode_papers.hitchcock2025.families import family_problems
from crunode_papers.hitchcock2025.linear import exact_linear, random_network, random_shape, singular_network
from crunode_papers.hitchcock2025.problem import Problem

__all__ = ["CLASSES", "KINDS", "REFERENCE", "SizeClass", "nearest_class", "problems_of"]


@dataclass(frozen=True)
class SizeClass:
    """A class of random deep linear networks, and how the published baseline was set for it.

    Attributes:
        name: Its name.
        layers: Least and largest number of layers.
        widths: Least and largest width.
        n: Number of examples.
        step: ε of the published SGLD.
        steps: Its length.
        count: Networks to take by default.
    """

    name: str
    layers: tuple[int, int]
    widths: tuple[int, int]
    n: int
    step: float
    steps: int
    count: int


CLASSES = {
    c.name: c
    for c in (
        SizeClass("1K", (2, 5), (5, 50), 10**5, 5e-7, 10_000, 100),
        SizeClass("10K", (2, 10), (5, 100), 10**5, 5e-7, 10_000, 100),
        SizeClass("100K", (2, 10), (50, 500), 10**6, 1e-7, 50_000, 20),
        SizeClass("1M", (2, 20), (100, 1000), 10**6, 5e-8, 50_000, 20),
        SizeClass("10M", (2, 20), (500, 2000), 10**6, 2e-8, 50_000, 5),
        SizeClass("100M", (2, 40), (500, 3000), 10**6, 2e-8, 50_000, 5),
    )
}
KINDS = (*CLASSES, "reference", "families")

# Widths from input to output and the rank of the true map.
REFERENCE: tuple[tuple[tuple[int, ...], int], ...] = (
    ((5, 3, 5), 0),
    ((8, 3, 4), 0),
    ((6, 4, 6), 2),
    ((10, 10, 10), 3),
    ((20, 4, 20), 4),
    ((10, 10, 10, 10), 4),
    ((5, 5, 5, 5, 5), 2),
    ((6, 12, 12, 3), 1),
)
_REFERENCE_EXAMPLES = 4096


def problems_of(kind: str, *, count: int | None = None, first_seed: int = 5000) -> list[Problem]:
    """The problems of a class.

    Args:
        kind: A class out of `KINDS`.
        count: Number of networks, or in "reference" and "families" of seeds for each case. By default 100 (1K and
            10K), 20 (100K and 1M), 5 (10M and 100M), and one seed.
        first_seed: Seeds go on from it.

    Returns:
        The problems; none of them holds data yet.

    Raises:
        InputError: No such class, or numbers that are not whole.

    Example:
        >>> found = problems_of("1K", count=2)
        >>> [(p.name, p.widths, p.ranks, p.local.value, p.whole.value) for p in found][0]
        ('1K-s5000', (28, 30, 34, 12), (28, 30, 12), Fraction(168, 1), Fraction(168, 1))

    References:
        Lau et al. 2023 for the random networks.
    """
    if kind not in KINDS:
        raise InputError(f"expected a class among {', '.join(KINDS)}, got {kind!r}")
    for name, value, least in (("count", count, 1), ("first_seed", first_seed, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"expected {name} as a whole number from {least} up, got {value!r}")
    number = count or (CLASSES[kind].count if kind in CLASSES else 1)
    seeds = range(first_seed, first_seed + number)
    if kind in CLASSES:
        return [_random(CLASSES[kind], seed) for seed in seeds]
    if kind == "families":
        return [problem for seed in seeds for problem in family_problems(seed)]
    return [_reference(*case, noise, seed) for seed in seeds for noise in (0, 1) for case in REFERENCE]


def nearest_class(dim: int) -> SizeClass:
    """The class of random networks whose name is nearest to `dim` parameters, in ratio.

    Example:
        >>> nearest_class(50).name, nearest_class(4_000_000).name
        ('1K', '10M')
    """
    sizes = [1000 * 10**k for k in range(len(CLASSES))]
    ratios = [max(dim / size, size / dim) for size in sizes]
    return list(CLASSES.values())[ratios.index(min(ratios))]


def _random(size: SizeClass, seed: int) -> Problem:
    widths, ranks = random_shape(seed, size.layers, size.widths)
    local, whole = exact_linear(widths, ranks)
    return Problem(
        f"{size.name}-s{seed}",
        size.name,
        seed,
        partial(random_network, layers=size.layers, widths=size.widths),
        local,
        whole,
        sum(a * b for a, b in pairwise(widths)),
        size.n,
        tuple(widths),
        tuple(ranks),
        "linear",
    )


def _reference(widths: tuple[int, ...], rank: int, noise: int, seed: int) -> Problem:
    value = deep_linear(widths[::-1], rank=rank)
    return Problem(
        f"{'-'.join(map(str, widths))}-r{rank}-noise{noise}-s{seed}",
        "reference",
        seed,
        partial(singular_network, widths=widths, rank=rank, noise=float(noise)),
        value,
        value,
        sum(a * b for a, b in pairwise(widths)),
        _REFERENCE_EXAMPLES,
        widths,
        (rank,) * (len(widths) - 1),
        "linear",
    )
