"""Faults of meaning: the places in a module's syntax where one can be put, and a draw of them by seed."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# Mutants of 150 by package; `criteria` is what estimators/ holds besides the files left out below.
WEIGHTS = {"criteria": 36, "sampling": 26, "curvature": 26, "topology": 20, "exact": 18, "spectra": 12, "recipes": 12}
LEFT_OUT = {  # files below src/crunode, and why
    r"estimators/(coefficient|judgement|cooling|cooled_chain|closing|limits|resolved|scale)\.py": "to be rebuilt",
    r"sampling/tuning\.py": "to be rebuilt",
    r"sampling/(native/build|replay/(calls|capture|memory))\.py": "how steps are made fast, not what they are",
    r"sampling/labels\.py|.*/(pictures|models)\.py|recipes/models\.py": "words, drawings, settings of networks",
    r"curvature/(straight_code|surroundings)\.py": "which way of computing is allowed",
    r"recipes/(fetching|image_files|loading|planning|job_\w+|rerunning|running|registry|table|placing|demo)\.py": "runs",
    r"recipes/(datasets|base)\.py|recipes/benchmark/(peer|table|run)\.py": "data, files and what the peer does",
}
SILENT = {  # functions
    r"__(repr|str|post_init|format|hash|eq|len)__|describe|_?(why|reason|note|words|title)": "words",
    r"_?(figures?$|plot|draw_|picture|panel|axes)": "drawings",
    r"_?(check|valid|require|refuse|expect|guard)": "refusals of bad arguments",
    r"_?(fingerprint|digest|cache|chunk|memory|progress|log_|affordable|rows_at_once|fits|bytes)": "speed and records",
}
NAMES = {  # keywords, parameters, constants and fields
    r"seed|generator|rng|key$|device|dtype|strict|name|title|label|source|note|why|paper": "randomness, kinds, words",
    r"(?i).*(chunk|memory|bytes|workers|timeout|progress|cache|parallel|at_once|block)": "speed and memory",
    r"fig|dpi|colou?r|fontsize|extra$|unit$|stacklevel|__all__|RECIPE|.*NOTES?$|.*WORDS": "drawings and words",
}
WORDS = re.compile(r"\w*(Error|Warning)$|(warn|debug|info|warning|join|format|log|getLogger|print|notice|need|Path)$")
SYMMETRIC = re.compile(  # calls whose arguments may be exchanged, or are of different kinds
    r"(min|max|hypot|maximum|minimum|isclose|allclose|equal|array_equal|add|mul|range|isinstance|getattr|setattr|zip"
    r"|derived_seed|hasattr|replace|lcm|gcd|einsum|islice|product|chain|logaddexp|issubclass|cast|field|dot|vdot|map)$"
)
NUMERIC = set(
    "sqrt log exp log1p expm1 mean sum var std norm square dot logsumexp trace prod cumsum median hypot fsum".split()
)
REDUCE = NUMERIC | set("amin amax min max argmin argmax all any stack cat concatenate diff softmax log_softmax".split())
PAIRS = "min max, amin amax, minimum maximum, argmin argmax, any all, floor ceil, add_ sub_, mul_ div_, sin cos".split(
    ", "
)
PAIRED = {a: b for pair in PAIRS for a, b in (pair.split(), pair.split()[::-1])}
TOKEN = {ast.Add: "+-", ast.Sub: "-+", ast.Mult: "*/", ast.Div: "/*", ast.FloorDiv: ("//", "*"), ast.Pow: ("**", "*")}
TURNED = {ast.Lt: ("<", ">", "<="), ast.LtE: ("<=", ">=", "<"), ast.Gt: (">", "<", ">="), ast.GtE: (">=", "<=", ">")}
NO_NUMBER = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.Set, ast.DictComp)
Lines = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Mutant:
    """A fault: the bytes of `file` from `start` to `end`, `old`, become `new`; the tests of `lines` are to notice."""

    file: str
    function: str
    operator: str
    old: str
    new: str
    nth: int
    start: int
    end: int
    line: int
    lines: Lines

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What it is called, wherever its lines move to."""
        return self.file, self.function, self.old, self.new, self.nth


def _matches(name: str | None, patterns: dict[str, str]) -> bool:
    return any(re.match(pattern, name or "") for pattern in patterns)


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _called(node: ast.AST) -> str:
    func = getattr(node, "func", None)
    return getattr(func, "attr", getattr(func, "id", ""))


def _arithmetic(node: ast.AST) -> bool:
    """A number as far as its syntax tells: no text, no list, no path."""
    if not isinstance(node, ast.BinOp):
        return _called(node) in NUMERIC
    text = (isinstance(n, NO_NUMBER) or isinstance(getattr(n, "value", 0), str) for n in (node.left, node.right))
    nested = (_arithmetic(n) for n in (node.left, node.right) if isinstance(n, ast.BinOp))
    return type(node.op) in TOKEN and not any(text) and all(nested)


class Sites:
    """All faults that can be put into one module."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.starts = file, source, [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        tree = ast.parse(source)
        self.bodies = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        labelled = [n for n in ast.walk(tree) if _called(n) in {"Estimate", "of"} and n.args]
        self.labels = {(_called(n), self.text(n.args[0])) for n in labelled if isinstance(n.args[0], ast.Constant)}
        self.found: dict[tuple[str, str, str, str, int], Mutant] = {}
        self.function, self.types, self.keys = "", dict[str, str](), list[str]()
        self.lines: Lines = ()
        self.settled = True  # outside functions, where a number is a constant
        for node in tree.body:
            self.visit(node)

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.AST) -> str:
        return self.source[slice(*self.span(node))].decode()

    def put(self, operator: str, node: ast.AST, new: str, within: tuple[int, int] | None = None) -> None:
        """A fault in `node`: it, or the bytes `within` it, become `new`."""
        first, last = self.span(node)
        start, end = within or (first, last)
        made = (self.source[first:start] + new.encode() + self.source[end:last]).decode()
        key, nth = (self.file, self.function, self.text(node), made), 0
        while (*key, nth) in self.found:
            nth += 1
        self.found[*key, nth] = Mutant(*key[:2], operator, *key[2:], nth, first, last, node.lineno, self.lines)

    def reading(self, name: str) -> Lines:
        """The functions that read a constant or a field; all of the module's where none is seen to."""
        named = [
            f for f in self.bodies if any(name in (getattr(n, "id", 0), getattr(n, "attr", 0)) for n in ast.walk(f))
        ]
        return tuple((f.body[0].lineno, f.end_lineno) for f in named or self.bodies)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef):
            return self.visit_function(node)
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.Import) or WORDS.match(_called(node)):
            return None
        if isinstance(node, ast.keyword) and _matches(node.arg, NAMES):
            return None
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self.lines = ((node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno),)
            if isinstance(node, ast.If) and all(isinstance(n, ast.Raise) for n in body):
                children = node.orelse
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if _matches(getattr(target, "id", ""), NAMES):
                    return None
                children = [node.value] if node.value else []
                if self.settled:
                    self.lines = self.reading(self.text(target))
        self.faults(node)
        for child in children:
            self.visit(child)
        return None

    def visit_function(self, node: ast.FunctionDef) -> None:
        if _matches(node.name, SILENT):
            return
        kept = self.function, self.types, self.keys, self.settled
        self.function, self.settled = f"{self.function}.{node.name}".lstrip("."), False
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        self.types = {a.arg: ast.unparse(a.annotation) for a in args if a.annotation}
        subscripts = [n.slice for n in ast.walk(node) if isinstance(n, ast.Subscript)]
        self.keys = sorted({self.text(n) for n in subscripts if isinstance(getattr(n, "value", 0), str)})
        self.lines = ((node.body[0].lineno, node.end_lineno),)
        count = len(node.args.posonlyargs + node.args.args) - len(node.args.defaults)
        for arg, value in zip(args[count:], [*node.args.defaults, *node.args.kw_defaults], strict=True):
            if value and _number(value) and not _matches(arg.arg, NAMES):
                self.constant("default", value)
        for child in node.body:
            self.visit(child)
        self.function, self.types, self.keys, self.settled = kept

    def constant(self, operator: str, node: ast.Constant) -> None:
        self.put(operator, node, repr(2 * node.value or node.value + 1))

    def kind(self, node: ast.AST) -> str:
        """The type of an argument as far as its syntax tells, "" if it does not."""
        if isinstance(node, ast.Name):
            return self.types.get(node.id, "name")
        return type(node).__name__ if _number(node) or isinstance(node, ast.BinOp | ast.Attribute | ast.Call) else ""

    def exchange(self, operator: str, whole: ast.AST, one: ast.AST, two: ast.AST) -> None:
        if self.kind(one) == self.kind(two) != "" and self.text(one) != self.text(two):
            start, middle, last, end = *self.span(one), *self.span(two)
            between = self.source[middle:last].decode()
            self.put(operator, whole, self.text(two) + between + self.text(one), (start, end))

    def faults(self, node: ast.AST) -> None:
        """What can be wrong at a node itself."""
        value = getattr(node, "value", None)
        if isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.keyword) and value and _arithmetic(value):
            self.put("factor", value, f"(2 * ({self.text(value)}))")
            self.put("factor", value, f"(({self.text(value)}) / 2)")
            self.put("sign", value, f"(-({self.text(value)}))")
        if isinstance(node, ast.BinOp) and _arithmetic(node):
            self.faults_of_operation(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not self.settled:
            if not _number(node.operand):
                self.put("sign", node, f"({self.text(node.operand)})")
        elif isinstance(node, ast.AugAssign) and type(node.op) in TOKEN:
            old, new = TOKEN[type(node.op)]
            gap = self.gap(node.target, node.value, f"{old}=")
            self.put("operator", node, f"{new}=", gap)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in TURNED:
            old, turned, bound = TURNED[type(node.ops[0])]
            gap = self.gap(node.left, node.comparators[0], old)
            self.put("comparison", node, turned, gap)
            if any(_number(n) or _called(n) == "len" for n in (node.left, node.comparators[0])):
                self.put("bound", node, bound, gap)
        elif isinstance(node, ast.Call):
            self.faults_of_call(node)
        elif isinstance(node, ast.Dict):
            for k in range(len(node.keys) - 1):
                self.exchange("label", node, *node.values[k : k + 2])
        elif isinstance(node, ast.Subscript) and self.text(node.slice) in self.keys and len(self.keys) > 1:
            at = self.keys.index(self.text(node.slice))
            self.put("label", node, self.keys[at - 1], self.span(node.slice))
        elif self.settled and _number(node):
            self.constant("constant", node)

    def gap(self, left: ast.AST, right: ast.AST, token: str) -> tuple[int, int]:
        start = self.source.index(token.encode(), self.span(left)[1], self.span(right)[0])
        return start, start + len(token)

    def faults_of_operation(self, node: ast.BinOp) -> None:
        old, new = TOKEN[type(node.op)]
        gap = self.gap(node.left, node.right, old)
        self.put("operator", node, new, gap)
        first, last = self.span(node)
        if isinstance(node.op, ast.Add | ast.Sub):
            self.put("term", node, "", (gap[0], last))
            if isinstance(node.op, ast.Add):
                self.put("term", node, "", (first, gap[1]))
        for side in (node.left, node.right):
            if _number(side) and isinstance(node.op, ast.Mult | ast.Div):
                self.put("factor", node, "1" if side.value in (2, 0.5) else repr(2 * side.value), self.span(side))
        if isinstance(node.op, ast.Pow):
            self.put("exponent", node, f"({self.text(node.right)} + 1)", (gap[1], last))

    def faults_of_call(self, node: ast.Call) -> None:
        name, (start, end), after = _called(node), self.span(node), self.span(node.func)[1]
        if name in PAIRED:
            self.put(
                "extremum" if len(PAIRED[name]) == len(name) or "m" in name else "operator",
                node,
                PAIRED[name],
                (after - len(name), after),
            )
        if name in {"sqrt", "square"}:
            own = isinstance(node.func, ast.Attribute) and not node.args
            self.put("exponent", node, "", (after - len(name) - 1, end) if own else (start, after))
        axes = [k.value for k in node.keywords if k.arg in {"axis", "dim"}]
        if name in REDUCE and isinstance(node.func, ast.Attribute):
            axes += node.args[:1] if self.text(node.func.value) not in {"np", "torch"} else node.args[1:2]
        for axis in axes:
            other = {"0": "1", "1": "0", "-1": "0", "-2": "-1", "2": "1"}.get(self.text(axis))
            if other:
                self.put("axis", node, other, self.span(axis))
        if node.args and (name, self.text(node.args[0])) in self.labels:
            labels = sorted(text for of, text in self.labels if of == name)
            if len(labels) > 1:
                self.put("label", node, labels[labels.index(self.text(node.args[0])) - 1], self.span(node.args[0]))
        if not SYMMETRIC.match(name):
            for k in range(len(node.args) - 1):
                self.exchange("arguments", node, *node.args[k : k + 2])
            given = [k for k in node.keywords if not _matches(k.arg, NAMES)]
            for k in range(len(given) - 1):
                self.exchange("arguments", node, given[k].value, given[k + 1].value)


def package(file: str) -> str:
    """The row of `WEIGHTS` that a file counts to, "" if it counts to none."""
    inside = file.split("crunode/", 1)[-1]
    first = inside.split("/")[0].replace("estimators", "criteria")
    return first if first in WEIGHTS and not _matches(inside, LEFT_OUT) else ""


def draw(root: Path, seed: int, count: int = 150) -> list[Mutant]:
    """Mutants by seed, as many of each package as `WEIGHTS` says, of its operators in turn.

    Each place is ranked by a digest of what it is called, so that a draw changes only where the source does.
    """
    ranked: dict[str, dict[str, list[tuple[str, Mutant]]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((root / "src").rglob("*.py")):
        file = path.relative_to(root).as_posix()
        where = package(file)
        if where:
            for mutant in Sites(file, path.read_bytes()).found.values():
                rank = hashlib.sha256(repr((seed, mutant.key)).encode()).hexdigest()
                ranked[where][mutant.operator].append((rank, mutant))
    drawn: list[Mutant] = []
    for where, share in WEIGHTS.items():
        turns = [sorted(places, key=lambda p: p[0]) for _, places in sorted(ranked[where].items())]
        turns.sort(key=lambda places: places[0][0])
        lines, wanted = set(), round(count * share / 150)
        while wanted and any(turns):
            for places in (p for p in turns if p):
                _, mutant = places.pop(0)
                if wanted and (mutant.file, mutant.line) not in lines:
                    lines.add((mutant.file, mutant.line))
                    drawn.append(mutant)
                    wanted -= 1
    return drawn
