"""What a caller writes stays what it is: names, arguments and defaults of everything public, in one file.

A default that changes, changes the answer of every call that leaves it out. `CRUNODE_WRITE_SIGNATURES=1` writes the
file anew; the difference belongs in `changes/`.
"""

import dataclasses
import importlib
import inspect
import os
import re
from pathlib import Path

FILE = Path(__file__).parents[2] / "docs" / "reference" / "signatures.txt"
PACKAGES = ("", ".curvature", ".estimators", ".exact", ".jobs", ".sampling", ".spectra", ".testing", ".topology")
PACKAGES += (".training",)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def arguments(thing):
    """Names and defaults, without annotations."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # written in C, or no constructor of its own
        return "(...)"
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return ADDRESS.sub("", str(inspect.Signature(plain)))


def lines_of(name, thing):
    if not callable(thing):
        return [f"{name} = {thing!r}"] if isinstance(thing, int | float | str | tuple) else []
    found = [f"{name}{arguments(thing)}"]
    if inspect.isclass(thing):
        for base in reversed(thing.__mro__):
            if not base.__module__.startswith("crunode"):
                continue
            for method, value in vars(base).items():
                inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not method.startswith("_") and inspect.isfunction(inner):
                    found.append(f"{name}.{method}{arguments(inner)}")
        if dataclasses.is_dataclass(thing):
            found += [
                f"{name}.{f.name} = {f.default!r}"
                for f in dataclasses.fields(thing)
                if f.default is not dataclasses.MISSING and not f.init
            ]
    return found


def public():
    found = set()
    for package in PACKAGES:
        module = importlib.import_module(f"crunode{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and name != "__version__":
                found.update(lines_of(f"crunode{package}.{name}", thing))
    return sorted(found)


def test_names_arguments_and_defaults():
    now = public()
    if os.environ.get("CRUNODE_WRITE_SIGNATURES") == "1":
        FILE.write_text("\n".join(now) + "\n", encoding="utf-8")
    before = FILE.read_text(encoding="utf-8").splitlines()
    changed = [f"- {line}" for line in before if line not in now] + [f"+ {line}" for line in now if line not in before]
    assert not changed, "\n".join(changed)


def test_a_changed_default_is_seen():
    def one(x, *, size=0.5):
        """A function."""

    def other(x, *, size=1.0):
        """The same with another default."""

    assert lines_of("f", one) == ["f(x, *, size=0.5)"]
    assert lines_of("f", one) != lines_of("f", other)
