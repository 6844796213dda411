"""Rules on the tree itself: size, names, `__all__`, imports at import time, machine paths."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MODULES = sorted(path for package in ("crunode", "crunode_papers") for path in (SRC / package).rglob("*.py"))
PACKAGES = [path for path in MODULES if path.name == "__init__.py"]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MAX_LINES = 600
VAGUE = {"utils", "helpers", "misc", "common"}
AT_IMPORT = sys.stdlib_module_names | {"crunode", "crunode_papers", "numpy", "safetensors", "torch"}
NOT_TEXT = {".npz", ".npy", ".png", ".pyc", ".safetensors", ".gz", ".whl"}
GENERATED = {".hypothesis", ".git", "__pycache__", "_build", "build", "dist", "runs"}
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home)/")


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _dotted(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _executed_on_import(node: ast.AST, *, types: bool = False) -> Iterator[ast.AST]:
    """All nodes that run when the module is imported; with `types`, the TYPE_CHECKING blocks too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child  # the name is bound, the body does not run
        elif _is_type_checking(child) and not types:
            for other in child.orelse:
                yield other
                yield from _executed_on_import(other)
        else:
            yield child
            yield from _executed_on_import(child, types=types)


def _allowed(module: str) -> set[str] | frozenset[str]:
    """Top-level packages that a module of crunode may import at import time."""
    if module == "crunode.cli" or module.startswith("crunode.cli.") or module.endswith(".__main__"):
        return AT_IMPORT | {"typer"}
    if module == "crunode.exact" or module.startswith("crunode.exact."):
        return AT_IMPORT - {"numpy", "safetensors", "torch"}
    return AT_IMPORT


def _imported(nodes: Iterator[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def _exports(tree: ast.Module) -> set[str] | None:
    """The strings in `__all__` or the names in the table that `_lazy` reads; None when the module has neither."""
    names: set[str] | None = None
    for node in tree.body:
        if _is_type_checking(node) and node.orelse:
            imports = [inner for inner in node.body if isinstance(inner, ast.ImportFrom)]
            names = {alias.name for inner in imports for alias in inner.names}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            constants = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
            names = (names or set()) | {value for value in constants if isinstance(value, str)}
    return names


def _clashes(path: Path) -> set[str]:
    """Public names of a package that a module beside its `__init__` would replace when imported."""
    beside = {p.stem for p in path.parent.glob("*.py")} | {p.parent.name for p in path.parent.glob("*/*.py")}
    tree, package = _tree(path), _dotted(path)
    as_modules, other = set(), set()
    for node in _executed_on_import(tree, types=True):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            other.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            other.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            itself = (node.level == 0 and node.module == package) or (node.level == 1 and not node.module)
            for alias in node.names:
                name = alias.asname or alias.name
                (as_modules if itself and alias.name == name else other).add(name)
    return beside & (other | ((_exports(tree) or set()) - as_modules))


def _text_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in GENERATED and not re.match(r"\.venv|.*_cache$", f)]
        kept = (
            n for n in names if n not in GENERATED and Path(n).suffix not in NOT_TEXT and not n.startswith(".coverage")
        )
        yield from (Path(folder, name) for name in kept)


def test_no_file_of_tests_is_too_long():  # the census has those of src
    assert not [_relative(path) for path in TESTS if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES]


def test_modules_list_their_public_names():
    assert not [_relative(path) for path in MODULES if _exports(_tree(path)) is None], "no __all__"


def test_names_of_modules_say_something():
    assert not [_relative(path) for path in MODULES if VAGUE & {part.strip("_") for part in _dotted(path).split(".")}]


def test_no_public_name_is_also_a_module():
    clashes = {_relative(path): found for path in PACKAGES if (found := _clashes(path))}
    assert not clashes, "importing the module of that name would replace it"


def test_imports_bring_only_the_required_packages():
    foreign = [
        f"{_relative(path)}, line {line}: {name}"
        for path in MODULES
        for line, name in _imported(_executed_on_import(_tree(path)))
        if name.split(".")[0] not in _allowed(_dotted(path))
    ]
    assert not foreign, "import these inside the function that uses them"


def test_functions_import_optional_packages_through_need():
    """So that what a minimal install lacks is refused in one way, with the extra that brings it."""
    foreign = [
        f"{_relative(path)}, line {line}: {name}"
        for path in MODULES
        for line, name in _imported(ast.walk(_tree(path)))
        if name.split(".")[0] not in AT_IMPORT | {"typer"} and (path.name, name) != ("progress.py", "tqdm")
    ]
    assert not foreign, "import these with crunode._extras.need"


def test_tests_of_crunode_need_no_paper():
    """Where the papers are missing, tests/papers is left out, and all other tests pass."""
    bound = [
        f"{_relative(path)}, line {line}"
        for path in TESTS
        if not path.is_relative_to(ROOT / "tests" / "papers")
        for line, name in _imported(ast.walk(_tree(path)))
        if name.split(".")[0] == "crunode_papers"
    ]
    assert not bound, "move these to tests/papers"


def test_papers_use_public_names():
    """Those that `crunode` or a package directly below it lists, which a third party's recipe can use as well."""
    offered: dict[str, set[str]] = {_dotted(path): _exports(_tree(path)) or set() for path in PACKAGES}
    inside = [
        f"{_relative(path)}, line {node.lineno}: {node.module}.{alias.name}"
        for path in MODULES
        if path.is_relative_to(SRC / "crunode_papers")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "crunode"
        for alias in node.names
        if node.module.count(".") > 1 or alias.name not in offered.get(node.module, ())
    ]
    assert not inside, "use what a package of crunode lists, or have it list this name"


def test_no_machine_paths():
    found = []
    for path in _text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [f"{_relative(path)}: {m.group()}" for m in MACHINE_PATH.finditer(text)]
    assert not found


def test_clash_is_found(tmp_path, monkeypatch):
    package = tmp_path / "crunode"
    package.mkdir()
    (package / "report.py").touch()
    (package / "exact.py").touch()
    init = package / "__init__.py"
    init.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from crunode import exact\n    from crunode.report import report\n"
        "__all__ = ['exact', 'report']\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "SRC", tmp_path)
    assert _clashes(init) == {"report"}


def test_imports_inside_functions_do_not_count():
    source = (
        "import torch\ntry:\n    import rich\nexcept ImportError:\n    pass\n"
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import xarray\n"
        "def f():\n    import scipy\n"
    )
    names = {name for _, name in _imported(_executed_on_import(ast.parse(source)))}
    assert names == {"torch", "rich", "typing"}
