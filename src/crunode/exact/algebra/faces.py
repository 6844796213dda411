"""The Newton polyhedron conv(support) + R^n_{≥0}: facets, vertices and compact faces, in exact integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

from crunode.exact.algebra.ideals import minimal_exponents
from crunode.exact.algebra.polynomials import Exponent, TooLarge

__all__ = ["Face", "NewtonPolyhedron"]

MOST_FACETS = 400
MOST_FACES = 4000


@dataclass(frozen=True)
class Face:
    """A compact face.

    Attributes:
        points: Exponents of the support on it.
        facets: The facets that hold it, as bits.
        normal: A positive integer weight that is least exactly on this face.
    """

    points: tuple[Exponent, ...]
    facets: int
    normal: Exponent


class NewtonPolyhedron:
    """Facets and compact faces of the Newton polyhedron of a set of exponents.

    Attributes:
        support: All exponents given.
        facets: Inner normals with their least value over the support.

    Example:
        >>> polygon = NewtonPolyhedron([(4, 0), (2, 1), (0, 3), (3, 3)])
        >>> sorted(normal for normal, _ in polygon.facets)
        [(0, 1), (1, 0), (1, 1), (1, 2)]
        >>> polygon.vertices
        [(0, 3), (2, 1), (4, 0)]
    """

    def __init__(self, support: Iterable[Exponent]) -> None:
        self.support = sorted(set(support))
        self.facets = _facets(minimal_exponents(self.support))
        self._masks = {point: self._mask(point) for point in self.support}
        self._axes = [
            sum(1 << k for k, (normal, _) in enumerate(self.facets) if not normal[j])
            for j in range(len(self.support[0]))
        ]
        self.vertices = [point for point, mask in self._masks.items() if mask and self._points(mask) == (point,)]
        self.vertices = [point for point in self.vertices if self._compact(self._masks[point])]

    def _mask(self, point: Sequence[int]) -> int:
        return sum(
            1 << k
            for k, (normal, least) in enumerate(self.facets)
            if sum(a * b for a, b in zip(normal, point, strict=True)) == least
        )

    def _points(self, mask: int) -> tuple[Exponent, ...]:
        return tuple(point for point, own in self._masks.items() if own & mask == mask)

    def _compact(self, mask: int) -> bool:
        """Whether the face in all these facets holds no direction e_j."""
        return all(mask & ~axis for axis in self._axes)

    def _face(self, mask: int) -> Face:
        chosen = [normal for k, (normal, _) in enumerate(self.facets) if mask >> k & 1]
        weight = tuple(map(sum, zip(*chosen, strict=True)))
        common = gcd(*weight)
        return Face(self._points(mask), mask, tuple(entry // common for entry in weight))

    def compact_faces(self) -> list[Face]:
        """All compact faces, vertices first.

        Raises:
            TooLarge: There are too many.
        """
        known = {self._masks[point]: None for point in self.vertices}
        waiting = list(known)
        while waiting:
            mask = waiting.pop()
            for point in self.vertices:
                joined = mask & self._masks[point]
                if joined not in known and joined and self._compact(joined):
                    known[joined] = None
                    waiting.append(joined)
                    if len(known) > MOST_FACES:
                        raise TooLarge(f"the Newton polyhedron has more than {MOST_FACES} compact faces")
        return sorted(map(self._face, known), key=lambda face: (len(face.points), face.points))

    def on_boundary(self, point: Exponent) -> bool:
        """Whether the exponent lies on a compact face."""
        mask = self._mask(point)
        return bool(mask) and self._compact(mask)

    def codimension(self, mask: int) -> int:
        """Codimension of the smallest face within all the facets of `mask`; 0 for the whole polyhedron."""
        from crunode.exact.algebra.program import rank

        chosen = [normal for k, (normal, _) in enumerate(self.facets) if mask >> k & 1]
        return rank(chosen) if chosen else 0

    def mask_of_weights(self, tight: Iterable[Exponent], directions: Iterable[int]) -> int:
        """The facets that hold all given points and directions e_j."""
        found = (1 << len(self.facets)) - 1
        for point in tight:
            found &= self._mask(point)
        for j in directions:
            found &= self._axes[j]
        return found


def _facets(points: list[Exponent]) -> list[tuple[Exponent, int]]:
    """Extreme rays of {(ω, c) : ω ≥ 0, ω·α ≥ c}, by the double description method."""
    size = len(points[0])
    # A constraint is a row over (ω, c); a ray carries the bits of the constraints it meets with equality.
    first = points[0]
    rays: list[tuple[tuple[int, ...], int]] = [((*([0] * size), -1), (1 << size) - 1)]
    for j in range(size):
        ray = tuple(int(i == j) for i in range(size))
        rays.append(((*ray, first[j]), ((1 << size) - 1) & ~(1 << j) | 1 << size))
    for place, point in enumerate(points[1:], start=size + 1):
        bit = 1 << place
        values = [sum(a * b for a, b in zip(ray[:-1], point, strict=True)) - ray[-1] for ray, _ in rays]
        if min(values) >= 0:
            rays = [(ray, mask | bit if not value else mask) for (ray, mask), value in zip(rays, values, strict=True)]
            continue
        kept = [
            (ray, mask if value else mask | bit) for (ray, mask), value in zip(rays, values, strict=True) if value >= 0
        ]
        above = [(item, value) for item, value in zip(rays, values, strict=True) if value > 0]
        below = [(item, value) for item, value in zip(rays, values, strict=True) if value < 0]
        masks = [mask for _, mask in rays]
        for (one, mask_one), up in above:
            for (two, mask_two), down in below:
                shared = mask_one & mask_two
                if shared.bit_count() < size - 1 or sum(mask & shared == shared for mask in masks) > 2:
                    continue
                new = [up * b - down * a for a, b in zip(one, two, strict=True)]
                common = gcd(*new)
                kept.append((tuple(entry // common for entry in new), shared | bit))
        rays = kept
        if len(rays) > MOST_FACETS:
            raise TooLarge(f"the Newton polyhedron has more than {MOST_FACETS} facets")
    return [(ray[:-1], ray[-1]) for ray, _ in rays if any(ray[:-1])]
