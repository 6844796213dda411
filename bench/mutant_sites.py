"""Faults of meaning: the places in a module's syntax where one can be put, and a draw of them by seed."""

from __future__ import annotations

import ast
import copy
import hashlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

RULES = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text())
PAIRED = RULES["exchanged"] | {new: old for old, new in RULES["exchanged"].items()}
TURNED = {"Lt": (ast.Gt, ast.LtE), "LtE": (ast.GtE, ast.Lt), "Gt": (ast.Lt, ast.GtE), "GtE": (ast.LtE, ast.Gt)}
SWAPPED = {"Add": ast.Sub, "Sub": ast.Add, "Mult": ast.Div, "Div": ast.Mult, "FloorDiv": ast.Mult, "Pow": ast.Mult}
AXES = {"0": 1, "1": 0, "-1": 0, "-2": -1, "2": 1}
NO_NUMBER = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set, ast.DictComp)
PLAIN = (ast.Name, ast.Attribute, ast.BinOp, ast.Call)


class Mutant(NamedTuple):
    """A fault: `old`, the bytes of `file` from `start` to `end`, becomes `new`; tests of `lines` are to notice.

    The first five say which it is, wherever its lines move to.
    """

    file: str
    function: str
    old: str
    new: str
    nth: int
    operator: str
    start: int
    end: int
    line: int
    lines: tuple[tuple[int, int], ...]


def ruled(rule: str, *names: str | None) -> bool:
    return any(re.match(pattern, name or "") for pattern in RULES[rule] for name in names)


def number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def called(node: ast.AST) -> str:
    return getattr(func := getattr(node, "func", None), "attr", getattr(func, "id", ""))


def arithmetic(node: ast.AST) -> bool:
    """Whether it is a number as far as its syntax tells: no text, no list, no path."""
    if not isinstance(node, ast.BinOp):
        return ruled("numeric", called(node))
    sides = (node.left, node.right)
    text = any(isinstance(n, NO_NUMBER) or isinstance(getattr(n, "value", 0), str) for n in sides)
    return type(node.op).__name__ in SWAPPED and not text and all(arithmetic(n) for n in sides if hasattr(n, "op"))


def but(node: ast.AST, **fields: object) -> ast.AST:
    vars(new := copy.copy(node)).update(fields)
    return new


def twice(node: ast.Constant) -> ast.Constant:
    return ast.Constant(2 * node.value or 1)


class Sites:
    """All faults that can be put into one module."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, tree = file, source, ast.parse(source)
        self.starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
        self.bodies = [
            (n, set(re.findall(r"\w+", ast.unparse(n)))) for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)
        ]
        first = ((called(n), n.args[0]) for n in ast.walk(tree) if called(n) in ("Estimate", "of") and n.args)
        self.labels = sorted({(name, n.value) for name, n in first if isinstance(n, ast.Constant)})
        self.found: dict[tuple[str, str, str, str, int], Mutant] = {}
        self.function, self.types, self.keys, self.lines = "", dict[str, str](), list[str](), list[tuple[int, int]]()
        for node in tree.body:
            self.visit(node)

    def put(self, operator: str, node: ast.AST, new: ast.AST) -> None:
        start, end = (
            self.starts[y - 1] + x for y, x in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        old, text = self.source[start:end].decode(), ast.unparse(new)
        text = text if isinstance(new, ast.stmt | ast.Call | ast.Constant | ast.Name) else f"({text})"
        if text[-1] in ")}":  # as many lines as before
            text = text[:-1] + "\n" * (old.count("\n") - text.count("\n")) + text[-1]
        key, nth = (self.file, self.function, old, text), 0
        while (*key, nth) in self.found:
            nth += 1
        self.found[*key, nth] = Mutant(*key, nth, operator, start, end, node.lineno, tuple(self.lines))

    def visit(self, node: ast.AST) -> None:
        children, body, value = ast.iter_child_nodes(node), getattr(node, "body", None), getattr(node, "value", None)
        if isinstance(node, ast.FunctionDef):
            return self.visit_function(node)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or ruled("calls", called(node)):
            return None
        if isinstance(node, ast.stmt):
            self.lines = [(node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno)]
        if isinstance(node, ast.If) and all(isinstance(n, ast.Raise) for n in body):
            children = iter(node.orelse)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.keyword):
            target = getattr(node, "arg", None) or getattr(node, "target", None) or getattr(node, "targets", [None])[0]
            name = target if isinstance(target, str) else ast.unparse(target).strip("(") if target else ""
            children = iter([value] if value and not ruled("names", name) else [])
            if not self.function and isinstance(
                node, ast.stmt
            ):  # a constant or a field: functions that read it, or all
                read = [f for f, words in self.bodies if words & set(re.findall(r"\w+", name))]
                self.lines = [(f.body[0].lineno, f.end_lineno) for f in read or (f for f, _ in self.bodies)]
        if isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.keyword) and value and arithmetic(value):
            self.put("factor", value, ast.BinOp(ast.Constant(2), ast.Mult(), value))
            self.put("factor", value, ast.BinOp(value, ast.Div(), ast.Constant(2)))
            self.put("sign", value, ast.UnaryOp(ast.USub(), value))
        for operator, new in self.faults(node):
            self.put(operator, node, new)
        for child in children:
            self.visit(child)
        return None

    def visit_function(self, node: ast.FunctionDef) -> None:
        if ruled("functions", node.name, f"{Path(self.file).stem}.{node.name}"):
            return
        kept = self.function, self.types, self.keys
        self.function, self.lines = f"{self.function}.{node.name}".strip("."), [(node.body[0].lineno, node.end_lineno)]
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.types = {a.arg: ast.unparse(a.annotation) for a in args if a.annotation}
        values = (getattr(n.slice, "value", None) for n in ast.walk(node) if isinstance(n, ast.Subscript))
        self.keys = sorted({v for v in values if isinstance(v, str)})
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        for arg, value in zip(args[len(args) - len(defaults) :], defaults, strict=True):
            if value and number(value) and not ruled("names", arg.arg):
                self.put("default", value, twice(value))
        for child in node.body:
            self.visit(child)
        self.function, self.types, self.keys = kept

    def exchanged(self, values: Sequence[ast.AST]) -> Iterator[list[ast.AST]]:
        """Values with two neighbours exchanged that are of one type as far as their syntax tells."""
        for k, pair in enumerate(pairwise(values)):
            kinds = [self.types.get(n.id, "?") if isinstance(n, ast.Name) else type(n) for n in pair]
            texts, same = [ast.unparse(n) for n in pair], isinstance(pair[0], PLAIN) or all(map(number, pair))
            if same and kinds[0] == kinds[1] and texts[0] != texts[1] and not ruled("objects", *texts):
                yield [*values[:k], pair[1], pair[0], *values[k + 2 :]]

    def faults(self, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
        """What can stand instead of a node, by operator."""
        op = type(getattr(node, "op", None)).__name__
        match node:
            case ast.BinOp(left=left, right=right) if arithmetic(node):
                yield "operator", but(node, op=SWAPPED[op]())
                yield from [("term", left)] * (op in ("Add", "Sub")) + [("term", right)] * (op == "Add")
                if op == "Pow":
                    yield "exponent", but(node, right=ast.BinOp(right, ast.Add(), ast.Constant(1)))
                if number(left) and op in ("Mult", "Div"):
                    yield "factor", but(node, left=twice(left))
                if number(right) and op in ("Mult", "Div"):
                    yield "factor", but(node, right=twice(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not number(operand):
                yield "sign", operand
            case ast.AugAssign() if op in SWAPPED:
                yield "operator", but(node, op=SWAPPED[op]())
            case ast.Compare(left=left, ops=[turned], comparators=[right]) if type(turned).__name__ in TURNED:
                if not ruled("names", ast.unparse(left), ast.unparse(right)):
                    yield "comparison", but(node, ops=[TURNED[type(turned).__name__][0]()])
                    # Between floats, or at zero, this seldom makes another result.
                    if any(
                        called(n) == "len" or (type(getattr(n, "value", None)) is int and n.value)
                        for n in (left, right)
                    ):
                        yield "bound", but(node, ops=[TURNED[type(turned).__name__][1]()])
            case ast.Dict(values=values):
                yield from (("label", but(node, values=new)) for new in self.exchanged(values))
            case ast.Subscript(slice=ast.Constant(value=key)) if key in self.keys[1:]:
                yield "label", but(node, slice=ast.Constant(self.keys[self.keys.index(key) - 1]))
            case ast.Constant() if number(node) and not self.function:
                yield "constant", twice(node)
            case ast.Call(func=func, args=args, keywords=keywords):
                name = called(node)
                if name in PAIRED:
                    yield (
                        "extremum",
                        but(node, func=but(func, **{"id" if hasattr(func, "id") else "attr": PAIRED[name]})),
                    )
                if name in ("sqrt", "square"):  # math.sqrt(x) or x.sqrt()
                    yield "exponent", args[0] if args else func.value
                kept = [k for k in keywords if k.arg and not ruled("names", k.arg)]
                values, first = args + [k.value for k in kept], int(ast.unparse(func).startswith(("np.", "torch.")))
                along = [k for k, key in enumerate(kept, len(args)) if key.arg in ("axis", "dim")]
                along += [first] * (ruled("reduced", name) and isinstance(func, ast.Attribute) and first < len(args))
                axes = [(k, AXES[text]) for k in along if (text := ast.unparse(values[k])) in AXES]
                changed = [("axis", [*values[:k], ast.Constant(axis), *values[k + 1 :]]) for k, axis in axes]
                labels = [label for of, label in self.labels if of == name]
                if args and getattr(args[0], "value", None) in labels[1:]:
                    changed.append(("label", [ast.Constant(labels[labels.index(args[0].value) - 1]), *values[1:]]))
                if not ruled("alike", name):
                    changed += [("arguments", new) for new in self.exchanged(values)]
                for operator, new in changed:
                    given = {id(k): but(k, value=v) for k, v in zip(kept, new[len(args) :], strict=True)}
                    yield operator, but(node, args=new[: len(args)], keywords=[given.get(id(k), k) for k in keywords])


def package(file: str) -> str:
    """The row of weights that a file counts to, "" if it counts to none."""
    inside = file.removeprefix("src/").removeprefix("crunode/")
    name = {"estimators": "criteria", "crunode_papers": "papers"}.get(top := inside.split("/")[0], top)
    return name if name in RULES["weights"] and not ruled("files", inside) else ""


def draw(root: Path, seed: int, count: int = 150) -> list[Mutant]:
    """Mutants by seed, of each package by its weight, of its operators in turn, one in a line.

    Places are ranked by a digest of what each is called, so that a draw changes only where the source does.
    """
    ranked: dict[str, dict[str, list[tuple[str, Mutant]]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(path.relative_to(root).as_posix() for path in (root / "src").rglob("*.py")):
        for m in Sites(file, (root / file).read_bytes()).found.values() if package(file) else ():
            ranked[package(file)][m.operator].append((hashlib.sha256(repr((seed, m[:5])).encode()).hexdigest(), m))
    drawn: dict[tuple[str, int], Mutant] = {}
    for name, places in ranked.items():
        turns, most = sorted(map(sorted, places.values())), len(drawn) + round(count * RULES["weights"][name] / 150)
        while any(turns) and len(drawn) < most:
            for turn in (turn for turn in turns if turn and len(drawn) < most):
                mutant = turn.pop(0)[1]
                drawn.setdefault((mutant.file, mutant.line), mutant)
    return list(drawn.values())
