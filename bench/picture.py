"""The packages of src and which imports which, as a picture drawn from the sources.

    python bench/picture.py            write docs/images/packages.svg
    python bench/picture.py --check    exit 1 where that file is not what the sources give
    python bench/picture.py --root DIR --out FILE    of another checkout

A package stands above all that it imports from; an arrow is left out where others lead the same way.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from census_figures import Module

ROOT = Path(__file__).parents[1]
FILE = Path("docs", "images", "packages.svg")
WIDE, HIGH, GAP, STEP = 116, 34, 14, 84
STYLE = (
    "text{font:11px sans-serif;text-anchor:middle;fill:#222}rect{fill:#f4f4f0;stroke:#888}path{fill:none;stroke:#999}"
)
PAPERS = "crunode_papers"


def packages(root: Path) -> tuple[dict[str, int], set[tuple[str, str]]]:
    """Lines of code by package, and the pairs of which the first imports from the second; papers are one package."""

    def named(package: str) -> str:
        return PAPERS if package.startswith(PAPERS) else package.rpartition(".")[2]

    modules = [Module.read(file, root) for file in sorted((root / "src").rglob("*.py"))]
    # What stands directly below crunode (errors, the lists of public names) belongs to all.
    modules = [module for module in modules if module.package != "crunode"]
    known = {module.name: named(module.package) for module in modules}
    sizes: Counter[str] = Counter()
    for module in modules:
        sizes[known[module.name]] += len(module.code())
    edges = {
        (known[module.name], known[target])
        for module in modules
        for node, _ in module.imports
        for target in module.targets(node, set(known))
    }
    return dict(sizes), {(one, other) for one, other in edges if one != other}


def levels(names: set[str], edges: set[tuple[str, str]]) -> dict[str, int]:
    """How many packages stand below each in the longest chain of imports."""
    found = dict.fromkeys(names, 0)
    for _ in names:
        for one, other in edges:
            found[one] = max(found[one], min(found[other] + 1, len(names)))
    return found


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Edges without those that a chain of others replaces."""

    def reached(start: str, without: tuple[str, str]) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            here = waiting.pop()
            fresh = {b for a, b in edges if a == here and (a, b) != without} - seen
            seen |= fresh
            waiting += fresh
        return seen

    return {edge for edge in edges if edge[1] not in reached(edge[0], edge)}


def drawn(root: Path) -> str:
    """The picture as SVG."""
    sizes, edges = packages(root)
    height = levels(set(sizes), edges)
    rows = [sorted(name for name in sizes if height[name] == k) for k in range(max(height.values()), -1, -1)]
    rows = [row for row in rows if row]
    width = max(map(len, rows)) * (WIDE + GAP) + GAP
    place = {}
    for k, row in enumerate(rows):
        left = (width - len(row) * (WIDE + GAP) + GAP) / 2
        place |= {name: (left + j * (WIDE + GAP), GAP + k * STEP) for j, name in enumerate(row)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {len(rows) * STEP}">',
        f"<style>{STYLE}</style>",
    ]
    for one, other in sorted(reduced(edges)):
        (x, y), (u, v) = place[one], place[other]
        x, u, y = x + WIDE / 2, u + WIDE / 2, y + HIGH
        lines.append(f'<path d="M{x:g} {y:g}C{x:g} {y + 25:g} {u:g} {v - 25:g} {u:g} {v:g}"/>')
    for name, (x, y) in sorted(place.items()):
        lines.append(f'<rect x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" rx="4"/>')
        lines.append(f'<text x="{x + WIDE / 2:g}" y="{y + 15:g}">{name}</text>')
        lines.append(f'<text x="{x + WIDE / 2:g}" y="{y + 28:g}">{round(sizes[name], -2)} lines</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only see whether the file is current")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--out", type=Path, default=ROOT / FILE, help="the file")
    given = parser.parse_args()
    picture = drawn(given.root)
    if not given.check:
        given.out.write_text(picture, encoding="utf-8")
    elif not given.out.exists() or given.out.read_text(encoding="utf-8") != picture:
        print(f"{given.out.name}: expected the picture of the present imports, got another; `make picture` draws it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
