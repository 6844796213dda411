"""`crunode exact`: exact learning coefficients, without torch and within a fraction of a second."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from crunode.cli.printing import fail, print_json
from crunode.errors import CrunodeError, EstimationError, InputError
from crunode.exact.registry import Family, catalog, evaluate, family_named
from crunode.exact.result import STATUSES, LearningCoefficient

__all__ = ["run_exact"]

HELP = """\
Usage: crunode exact FAMILY [VALUES] [KEY=VALUE ...] [--KEY VALUE ...] [--json]
       crunode exact list [--json]
       crunode exact --file CASES.json [--json]

Exact learning coefficient λ and multiplicity m of a model family, with the theorem used, its hypotheses and citation.
Values are JSON, lists also 2,2,2; they may be given in the order that `crunode exact FAMILY --help` shows, or all
together as one JSON object.

  crunode exact reduced-rank 6 4 6 --rank 2
  crunode exact dln 2 2 2 2 --rank 1
  crunode exact normal_crossing k=[1,2] h=[0,1]
  crunode exact toy_function 'K=(x**2-y**3)**2'

--file reads a list of {"family": ..., "params": {...}} from a file (- is standard input). Where "lambda" or
"multiplicity" is given too, it is compared.

Exit codes: 0 computed, 1 an expected value differs, 2 wrong usage or input."""

_COMMAS = re.compile(r"\s*[-+\d/ ]+(,[-+\d/ ]+)+\s*")


def run_exact(words: Sequence[str]) -> int:
    """Run `crunode exact` with the words after it; returns the exit code.

    Example:
        >>> run_exact(["normal_crossing", "1", "1"])
        λ = 1/2, m = 2 (exact)
        family      normal_crossing: k = [1, 1]
        ...
        0
    """
    try:
        return _run(list(words))
    except CrunodeError as error:
        fail(type(error).__name__, str(error), words)
        return 1 if isinstance(error, EstimationError) else 2
    except RecursionError:
        fail("InputError", "expected input of reasonable depth, got one nested too deeply", words)
        return 2
    except KeyboardInterrupt:
        fail("Interrupted", "stopped", words)
        return 130


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    words = [word for word in words if word != "--json"]
    if not words or words[0] in ("--help", "-h"):
        print(HELP)
        return 0
    if words[0] == "list":
        if len(words) > 1:
            raise InputError(f"expected nothing after list, got {words[1]!r}")
        _print_list(as_json)
        return 0
    if words[0] == "--file" or words[0].startswith("--file="):
        path = words[0].partition("=")[2] or (words[1] if len(words) > 1 else "")
        if not path or len(words) > (1 if "=" in words[0] else 2):
            raise InputError("expected one file after --file; see: crunode exact --help")
        return _run_file(path, as_json)
    if words[0].startswith("-"):
        raise InputError(f"expected the name of a family first, got {words[0]!r}; see: crunode exact --help")
    family = family_named(words[0])
    if {"--help", "-h"} & set(words[1:]):
        _print_family(family, as_json)
        return 0
    given = _params(family, words[1:])
    params = {name: given[name] for name in family.parameters if name in given}
    found = evaluate(family.name, **params)
    if as_json:
        print_json({"family": family.name, "params": params, **found.to_dict()})
    else:
        print(_words(family, params, found))
    return 0


def _params(family: Family, words: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    values: list[str] = []

    def put(key: str, text: str) -> None:
        names = {name.lower(): name for name in family.parameters}
        name = names.get(key.lower().replace("-", "_"))
        if name is None:
            wanted = ", ".join(family.parameters)
            raise InputError(f"expected the parameters {wanted} of {family.name}, got {key!r}")
        if name in params:
            raise InputError(f"expected {name} once, got it again")
        params[name] = text if name in family.texts else _value(text, name in family.lists)

    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            key, given, text = word[2:].partition("=")
            if given:
                put(key, text)
            elif key.startswith("no-"):
                put(key[3:], "false")
            elif _is_flag(family, key):
                put(key, left.pop(0) if left and left[0] in ("true", "false") else "true")
            elif left and not left[0].startswith("--") and not _is_setting(left[0]):
                put(key, left.pop(0))
            else:
                raise InputError(f"expected a value after {word}, got none")
        elif _is_setting(word):
            key, _, text = word.partition("=")
            put(key, text)
        elif isinstance(group := _value(word, False), dict) and set(group) <= set(family.parameters):
            if not set(group).isdisjoint(params):
                raise InputError(f"expected each parameter once, got {', '.join(set(group) & set(params))} again")
            params.update(group)
        else:
            values.append(word)
    if values and family.rest and family.rest not in params:
        whole = _value(values[0], True) if len(values) == 1 else None
        if isinstance(whole, list) and (family.rest in family.lists or (whole and isinstance(whole[0], list))):
            params[family.rest] = whole
        else:
            params[family.rest] = [_value(text, False) for text in values]
        return params
    open_names = [name for name in family.parameters if name not in params]
    if len(values) > len(open_names):
        raise InputError(
            f"expected at most {len(open_names)} values in order ({', '.join(open_names)}), got {len(values)}"
        )
    for name, text in zip(open_names, values, strict=False):
        put(name, text)
    return params


def _is_setting(word: str) -> bool:
    """KEY=VALUE, where the key is a name: a polynomial's text may hold anything else."""
    key, given, _ = word.partition("=")
    return bool(given) and key.replace("-", "_").isidentifier()


def _is_flag(family: Family, key: str) -> bool:
    return key in ("centred", "bias") and key in family.parameters


def _value(text: str, is_list: bool) -> Any:
    if is_list and _COMMAS.fullmatch(text):
        return [_value(part.strip(), False) for part in text.split(",")]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _run_file(path: str, as_json: bool) -> int:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        cases = json.loads(text)
    except OSError as error:
        raise InputError(f"expected a file with cases, got {path!r}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"expected JSON in {path!r}, got text that is none: {error}") from None
    if not isinstance(cases, list):
        raise InputError(f"expected a list of cases in {path!r}, got {type(cases).__name__}")
    rows = [_row(case) for case in cases]
    if as_json:
        print_json(rows)
    else:
        for i, row in enumerate(rows):
            print(_row_words(i, row))
        wrong, failed = sum(row.get("match") is False for row in rows), sum("error" in row for row in rows)
        compared = sum("match" in row for row in rows)
        print(f"{len(rows)} cases, {compared} compared, {wrong} differ, {failed} with errors")
    if any("error" in row for row in rows):
        return 2
    return 1 if any(row.get("match") is False for row in rows) else 0


def _row(case: Any) -> dict[str, Any]:
    if not isinstance(case, Mapping) or not isinstance(case.get("params"), Mapping):
        message = f'expected a case {{"family": ..., "params": {{...}}}}, got {repr(case)[:80]}'
        return {"family": None, "params": None, "error": {"type": "InputError", "message": message}}
    head = {"family": case.get("family"), "params": dict(case["params"])}
    try:
        found = evaluate(case.get("family", ""), **{str(k): v for k, v in case["params"].items()})
        row = {**head, **found.to_dict()}
        expected = {key: case[key] for key in ("lambda", "multiplicity") if case.get(key) is not None}
        if expected:
            row["expected"] = expected
            row["match"] = _matches(found, expected)
        return row
    except (CrunodeError, RecursionError) as error:
        return {**head, "error": {"type": type(error).__name__, "message": str(error)}}


def _matches(found: LearningCoefficient, expected: Mapping[str, Any]) -> bool:
    if "lambda" in expected:
        text = str(expected["lambda"])
        try:
            wanted = Fraction(text) if len(text) < 1000 and "e" not in text.lower() else None
        except (ValueError, ZeroDivisionError):
            wanted = None
        if wanted is None:
            raise InputError(f'expected lambda as a rational such as "27/2", got {text[:80]!r}')
        if found.value != wanted or found.status not in ("exact", "conditional"):
            return False
    return "multiplicity" not in expected or found.multiplicity == expected["multiplicity"]


def _print_list(as_json: bool) -> None:
    if as_json:
        print_json([family.to_dict() for family in catalog()])
        return
    for family in catalog():
        names = [f"[{name}]" if name in family.defaults else name for name in family.parameters]
        print(f"{family.name} {' '.join(names)}\n    {family.theorem} ({family.scope}) [{family.citation}]")


def _print_family(family: Family, as_json: bool) -> None:
    if as_json:
        print_json(family.to_dict())
        return
    print(f"{family.name}: {family.theorem} ({family.scope}) [{family.citation}]")
    if family.aliases:
        print(f"also {', '.join(family.aliases)}")
    for name, meaning in family.parameters.items():
        default = f" (default {json.dumps(family.defaults[name])})" if name in family.defaults else ""
        print(f"  {name:<18} {meaning}{default}")


def _words(family: Family, params: Mapping[str, Any], found: LearningCoefficient) -> str:
    shown = str(found).removesuffix(f" [{found.citation}]")
    given = ", ".join(f"{key} = {_short(json.dumps(value, default=str))}" for key, value in params.items())
    lines = [shown, f"family      {family.name}: {given}", f"theorem     {family.theorem} ({family.scope})"]
    lines += [f"{'assumes' if not i else '':<12}{text}" for i, text in enumerate(found.hypotheses)]
    lines.append(f"citation    {found.citation}")
    if found.status != "exact":
        lines.append(f"status      {found.status}: {STATUSES[found.status]}")
    for key, value in found.details.items():
        if key != "local" and value is not None:
            lines.append(f"{key.replace('_', ' '):<11} {_short(str(value))}")
    return "\n".join(lines)


def _row_words(i: int, row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{i:>4} {row['family']}: error: {row['error']['message']}"
    value = row["lambda"] or f"in [{row['bounds'][0]}, {row['bounds'][1]}]"
    verdict = {True: "ok", False: "DIFFERS", None: ""}[row.get("match")]
    expected = f", expected {row['expected']}" if row.get("match") is False else ""
    return f"{i:>4} {row['family']}: λ {value}, m {row['multiplicity']} ({row['status']}) {verdict}{expected}".rstrip()


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
