"""How large and how entangled the sources are, by package, and that none of it grows unnoticed.

    python bench/census.py                    the figures by package
    python bench/census.py --list FIGURE      where they come from
    python bench/census.py --check            exit 1 where one is above census.toml, or was raised without a reason
    python bench/census.py --write            write to census.toml what became smaller
    python bench/census.py --raise REASON     write what grew as well, with the reason

Exit 2: wrong usage, or something that cannot be read. docs/design.md says what each figure counts.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from census_figures import CensusError, Place, census

FIGURES = {
    "code_lines": "code",
    "modules": "modules",
    "long_files": ">400",
    "long_functions": ">60",
    "wide_functions": ">8",
    "constants": "constants",
    "private_reads": "private",
    "package_edges": "edges",
    "crossing_imports": "imports",
    "cyclic_modules": "cyclic",
    "lazily_cyclic_modules": "lazily",
    "public_names": "public",
    "mypy_strict": "mypy",
}
"""The figures, and how the table heads them."""

FILE, ALL = "census.toml", "all"
HEAD = "# Figures of `make census` that may not grow; docs/design.md says what they count and how to change them.\n"
LARGE = ("long_files", "long_functions", "wide_functions")
"""Figures of places that are none, but for those with a reason under `later`."""
LATER = {"place": str, "reason": str}
KEYS = {"figure": str, "package": str, "from": int, "to": int, "reason": str}
Figures = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Limits:
    """What census.toml holds: the most that each figure may be, by package, why some were raised, what is for later."""

    figures: Figures
    raised: list[dict[str, Any]]
    later: list[dict[str, str]]

    @classmethod
    def parse(cls, text: str) -> Limits:
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise CensusError(f"expected {FILE} as TOML, got a file that is none ({error}); mend it") from error
        raised, later = content.pop("raised", []), content.pop("later", [])
        for figure, row in content.items():
            if figure not in FIGURES or not isinstance(row, dict) or not all(type(v) is int for v in row.values()):
                raise CensusError(f"expected whole numbers by package below a figure in {FILE}, got {figure} = {row}")
        for entry in raised if isinstance(raised, list) else [raised]:
            if not isinstance(entry, dict) or {key: type(value) for key, value in entry.items()} != KEYS:
                raise CensusError(f"expected {', '.join(KEYS)} in each of raised in {FILE}, got {entry}")
        for entry in later if isinstance(later, list) else [later]:
            if not isinstance(entry, dict) or {key: type(value) for key, value in entry.items()} != LATER:
                raise CensusError(f"expected {', '.join(LATER)} in each of later in {FILE}, got {entry}")
        return cls(content, raised, later)

    def text(self) -> str:
        """The content of the file. Totals are in it to be seen in its history."""
        lines = [HEAD]
        if self.raised:
            lines += ["raised = [", *(f"  {_inline(entry)}," for entry in self.raised), "]", ""]
        if self.later:
            lines += ["later = [", *(f"  {_inline(entry)}," for entry in self.later), "]", ""]
        for figure in FIGURES:
            row = {package: value for package, value in sorted(self.figures.get(figure, {}).items()) if package != ALL}
            lines += [f"[{figure}]", f"{ALL} = {sum(row.values())}"]
            lines += [*(f"{_word(package)} = {value}" for package, value in row.items() if value), ""]
        return "\n".join(lines).rstrip() + "\n"

    def moved(self, found: Figures, reason: str | None) -> Limits:
        """These limits at what is smaller now and, with a reason, at what is larger."""
        figures, raised = {figure: dict(row) for figure, row in self.figures.items()}, list(self.raised)
        for figure, row in found.items():
            limits = figures.setdefault(figure, {})
            for package in sorted({*row, *limits} - {ALL}):
                got, limit = row.get(package, 0), limits.get(package, 0)
                if got < limit or reason is not None:
                    limits[package] = got
                if got > limit and reason:
                    values = (figure, package, limit, got, reason)
                    raised.append(dict(zip(KEYS, values, strict=True)))
        return Limits(figures, raised, self.later)


def _word(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)


def _inline(entry: dict[str, Any]) -> str:
    return f"{{ {', '.join(f'{key} = {_word(value)}' for key, value in entry.items())} }}"


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a reason in words, got none")
    return text


def counted(places: list[Place], figures: list[str]) -> Figures:
    """Amounts by figure and package."""
    found: Figures = {figure: {} for figure in figures}
    for place in places:
        row = found[place.figure]
        row[place.package] = row.get(place.package, 0) + place.amount
    return found


def grown(limits: Limits, found: Figures) -> Iterator[str]:
    """What is above its limit, and totals that are none."""
    for figure, row in found.items():
        held = limits.figures.get(figure, {})
        for package, got in sorted(row.items()):
            if got > held.get(package, 0):
                yield (
                    f"{figure} of {package}: expected at most {held.get(package, 0)}, got {got}; make it smaller, or "
                    f"raise it in {FILE} with a reason (`make census LIST={figure}`, `make census RAISE=REASON`)"
                )
        total = sum(value for package, value in held.items() if package != ALL)
        if held.get(ALL, 0) != total:
            yield f"{figure} of {ALL} in {FILE}: expected the sum {total}, got {held.get(ALL)}; `make census WRITE=1`"


def too_large(limits: Limits, places: list[Place]) -> Iterator[str]:
    """Files and functions that are too large and not among those for later; and those that are there in vain."""
    known = {entry["place"] for entry in limits.later}
    found = {re.sub(r":\d+ ", " ", p.where.rpartition(":")[0]): p.figure for p in places if p.figure in LARGE}
    if known:  # a tree that has no such list yet is held by its figures alone
        for place in sorted(found.keys() - known):
            yield f"{place}: expected none of {found[place]}; split it, or give a reason under later in {FILE}"
        yield from (
            f"{place} under later in {FILE}: it is not too large; drop the line" for place in known - found.keys()
        )


def unexplained(limits: Limits, before: Limits) -> Iterator[str]:
    """Limits that were raised without a reason; a figure that the former file did not have counts as no raise."""
    given = {(each["figure"], each["package"], each["to"]) for each in limits.raised if each["reason"].strip()}
    for figure, old in before.figures.items():
        for package, value in limits.figures.get(figure, {}).items():
            if value > old.get(package, 0) and package != ALL and (figure, package, value) not in given:
                entry = dict(zip(KEYS, (figure, package, old.get(package, 0), value, "..."), strict=True))
                yield f"{FILE}: expected a reason for a raised figure, got none; add {_inline(entry)} to raised"


def before(root: Path, text: str) -> Limits | None:
    """The last content of the file that git knows and that is not `text`; None where there is none to be had."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, check=False)
        return done.stdout.decode(errors="replace") if done.returncode == 0 else ""

    try:
        commits = git("log", "-2", "--format=%H", "--", FILE).split()
        texts = [git("show", f"{commit}:./{FILE}") for commit in commits]
        return next((Limits.parse(old) for old in texts if old and old != text), None)
    except (OSError, CensusError):
        return None


def table(found: Figures) -> str:
    """The figures by package, and in all."""
    packages = sorted({package for row in found.values() for package in row})
    rows = [["package", *(FIGURES[figure] for figure in found)]]
    rows += [[package, *(str(row.get(package, 0)) for row in found.values())] for package in packages]
    rows.append([ALL, *(str(sum(row.values())) for row in found.values())])
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join([r[0].ljust(wide[0]), *map(str.rjust, r[1:], wide[1:])]) for r in rows)


def read(file: Path) -> str | None:
    """The text of census.toml; None where there is no such file."""
    try:
        return file.read_text(encoding="utf-8") if file.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise CensusError(f"expected {FILE} as text, got {error}") from error


def run(options: argparse.Namespace) -> int:
    root: Path = options.root
    figures = [figure for figure in FIGURES if options.mypy or figure != "mypy_strict"]
    text = read(root / FILE)
    if text is None and options.check:
        raise CensusError(f"expected {root / FILE}, got no such file; `make census WRITE=1` makes it")
    limits = Limits({}, [], []) if text is None else Limits.parse(text)
    places = census(root, options.mypy)
    found = counted(places, figures)
    if options.list:
        for where in sorted(place.where for place in places if place.figure == options.list):
            print(where)
        return 0
    if not options.check:
        print(table(found))
    if options.write or options.reason:
        text = limits.moved(found, "" if text is None else options.reason).text()
        limits = Limits.parse(text)
        (root / FILE).write_text(text, encoding="utf-8")
    elif not options.check:
        return 0
    former = before(root, text or "")
    wrong = [*grown(limits, found), *(unexplained(limits, former) if former else ()), *too_large(limits, places)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the tree to look at")
    parser.add_argument("--no-mypy", dest="mypy", action="store_false", help="leave the errors of mypy --strict out")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--list", choices=FIGURES, metavar="FIGURE", help=f"one of {', '.join(FIGURES)}")
    one.add_argument("--check", action="store_true", help="compare with census.toml")
    one.add_argument("--write", action="store_true", help="lower census.toml to the present figures, or make it")
    one.add_argument("--raise", dest="reason", metavar="REASON", type=_reason, help="write higher figures, too")
    try:
        return run(parser.parse_args())
    except CensusError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
