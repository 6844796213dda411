"""The figures of the census: what each module has too much of, and what ties the packages together."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 400, 60, 8
Import = ast.Import | ast.ImportFrom
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


class CensusError(Exception):
    """Something cannot be read or run."""


@dataclass(frozen=True)
class Place:
    """Where a figure has some of its amount."""

    figure: str
    package: str
    where: str
    amount: int = 1


@dataclass(frozen=True)
class Module:
    """A source file; `package` is what lies directly below a package in src, or that one itself.

    `imports` are those that run, with whether inside a function; those for type checkers are left out.
    """

    name: str
    package: str
    path: str
    text: str
    tree: ast.Module
    nodes: list[ast.AST]
    imports: list[tuple[Import, bool]]

    @classmethod
    def read(cls, file: Path, root: Path) -> Module:
        parts = file.relative_to(root / "src").with_suffix("").parts
        name, path = ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file.relative_to(root).as_posix()
        try:
            text = file.read_text(encoding="utf-8")
            tree = ast.parse(text, path)
        except (OSError, ValueError, SyntaxError) as error:
            raise CensusError(f"expected Python source in {path}, got {error}") from error
        found = cls(name, ".".join(parts[:-1][:2]) or name, path, text, tree, [], [])
        waiting: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
        for node, lazy, typed in waiting:  # grows as it goes
            found.nodes.append(node)
            if isinstance(node, Import) and not typed:
                found.imports.append((node, lazy))
            inside = lazy or isinstance(node, FUNCTION | ast.Lambda)
            hidden: set[ast.AST] = set()
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                hidden = set(node.body)
            waiting += [(child, inside, typed or child in hidden) for child in ast.iter_child_nodes(node)]
        return found

    def code(self) -> set[int]:
        """Numbers of the lines that have more than comments and strings that stand alone, as docstrings do."""
        alone = {(n.lineno, n.col_offset) for n in self.nodes if isinstance(n, ast.Expr) and _is_text(n.value)}
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in NO_CODE and token.start not in alone:
                found.update(range(token.start[0], token.end[0] + 1))
        return found

    def source(self, node: ast.ImportFrom) -> str:
        """The module that `node` imports from."""
        here = self.name.split(".") + (["__init__"] if self.path.endswith("__init__.py") else [])
        return ".".join([*(here[: -node.level] if node.level else ()), *([node.module] if node.module else ())])

    def targets(self, node: Import, known: set[str]) -> set[str]:
        """Modules of ours that `node` imports by name."""
        base = f"{self.source(node)}." if isinstance(node, ast.ImportFrom) else ""
        names = [base + alias.name for alias in node.names]
        return {name if name in known else name.rpartition(".")[0] for name in names} & known


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def sizes(module: Module) -> Iterator[Place]:
    """What a module has too much of."""
    code, lines = module.code(), len(module.text.splitlines())
    yield Place("modules", module.package, module.path)
    yield Place("code_lines", module.package, f"{module.path}: {len(code)}", len(code))
    if lines > MAX_FILE:
        yield Place("long_files", module.package, f"{module.path}: {lines}")
    for node in module.nodes:
        if isinstance(node, FUNCTION):
            where = f"{module.path}:{node.lineno} {node.name}"
            length = len(code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            count = sum(arg is not None and arg.arg not in ("self", "cls") for arg in given)
            if length > MAX_FUNCTION:
                yield Place("long_functions", module.package, f"{where}: {length}")
            if count > MAX_PARAMETERS:
                yield Place("wide_functions", module.package, f"{where}: {count}")
    for node in module.tree.body:
        for name in _assigned(node):
            if re.fullmatch("_?[A-Z][A-Z0-9_]*", name):
                yield Place("constants", module.package, f"{module.path}:{node.lineno} {name}")
        if isinstance(node, ast.If) and module.name == module.package and "." not in module.name:
            count = sum(len(part.names) for part in node.body if isinstance(part, ast.ImportFrom))
            yield Place("public_names", module.package, f"{module.path}:{node.lineno}: {count}", count)


def _assigned(node: ast.stmt) -> list[str]:
    """Names that a statement assigns, in tuples too."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def _private(bodies: list[list[ast.stmt]]) -> set[str]:
    """Private names that statements define."""
    every = [node for body in bodies for node in body]
    names = [node.name for node in every if isinstance(node, FUNCTION | ast.ClassDef)]
    return {name for name in [*names, *(n for node in every for n in _assigned(node))] if _is_private(name)}


def private_attributes(module: Module) -> set[str]:
    """Private names of the module's classes: methods, variables, attributes of `self`."""
    stored = [n for n in module.nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    own = {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")}
    bodies = [node.body for node in module.nodes if isinstance(node, ast.ClassDef)]
    return _private(bodies) | {name for name in own if _is_private(name)}


def private_reads(module: Module, known: set[str], own: set[str], ours: set[str]) -> Iterator[Place]:
    """Uses of private names that other modules of ours define; `own` and `ours` are names of attributes."""
    sources = [(n, module.source(n)) for n in module.nodes if isinstance(n, ast.ImportFrom)]
    aliases = {a.asname or a.name for node, source in sources for a in node.names if f"{source}.{a.name}" in known}
    plain = [alias for node in module.nodes if isinstance(node, ast.Import) for alias in node.names]
    aliases |= {alias.asname or alias.name for alias in plain if alias.name in known}
    found: list[tuple[ast.stmt | ast.expr, str]]
    found = [(node, alias.name) for node, source in sources if source in known for alias in node.names]
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            base = ast.unparse(node.value)
            if base in aliases or (node.attr in ours - own and base not in ("self", "cls", "super()")):
                found.append((node, node.attr))
    for node, name in found:
        if _is_private(name):
            yield Place("private_reads", module.package, f"{module.path}:{node.lineno} {name}")


def entanglement(modules: list[Module]) -> Iterator[Place]:
    """Imports between packages, modules that import one another in circles, and private names."""
    known = {module.name: module.package for module in modules}
    private = {module.name: private_attributes(module) for module in modules}
    ours = set().union(*private.values())
    eager: dict[str, set[str]] = {name: set() for name in known}
    every: dict[str, set[str]] = {name: set() for name in known}
    edges = set()
    for module in modules:
        for node, lazy in module.imports:
            targets = module.targets(node, set(known)) - {module.name}
            every[module.name] |= targets
            eager[module.name] |= set() if lazy else targets
            for package in {known[target] for target in targets} - {module.package}:
                edges.add((module.package, package))
                yield Place("crossing_imports", module.package, f"{module.path}:{node.lineno} {package}")
        yield from private_reads(module, set(known), private[module.name], ours)
    yield from (Place("package_edges", source, f"{source} -> {target}") for source, target in sorted(edges))
    circles = set(cyclic(eager))
    yield from (Place("cyclic_modules", known[name], name) for name in sorted(circles))
    yield from (Place("lazily_cyclic_modules", known[name], name) for name in sorted(set(cyclic(every)) - circles))


def cyclic(graph: dict[str, set[str]]) -> Iterator[str]:
    """Nodes that can be reached from themselves, which are those of strongly connected components of two and more."""
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting and start not in seen:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph[node]
        if start in seen:
            yield start


def strictness(root: Path, modules: list[Module]) -> Iterator[Place]:
    """Errors of `mypy --strict`, which keeps a cache of its own, so that the plain check keeps its."""
    if importlib.util.find_spec("mypy") is None:
        raise CensusError(f"expected mypy beside {sys.executable}, got none; run `make setup`")
    tops = sorted({f"src/{module.name.split('.')[0]}" for module in modules})
    words = ["--strict", "--cache-dir=.mypy_cache/strict", "--no-pretty", "--no-error-summary", *tops]
    done = subprocess.run([sys.executable, "-m", "mypy", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise CensusError(f"expected mypy to finish, got exit {done.returncode}: {done.stdout}{done.stderr}")
    home = {module.path: module.package for module in modules}
    for line in done.stdout.splitlines():
        path, _, said = line.partition(":")
        if " error: " in said and path in home:
            yield Place("mypy_strict", home[path], line)


def census(root: Path, mypy: bool) -> list[Place]:
    """All places of all figures of the sources in `root`."""
    modules = [Module.read(file, root) for file in sorted((root / "src").rglob("*.py"))]
    if not modules:
        raise CensusError(f"expected Python files in {root / 'src'}, got none")
    found = [place for module in modules for place in sizes(module)] + list(entanglement(modules))
    return found + (list(strictness(root, modules)) if mypy else [])
