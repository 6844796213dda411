"""Estimates and run folders in plain words, for terminals."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from crunode.core.origin import described
from crunode.core.result import Estimate, Finding
from crunode.findings import FINDINGS
from crunode.store.chunks import length
from crunode.store.folder import well_formed
from crunode.store.run_store import RunStore, load_estimate

__all__ = ["describe_estimate", "describe_findings", "describe_run", "run_summary"]

_CHOSEN = ("kernel", "nbeta", "precision", "chains", "draws", "warmup")
_WIDTH = 100


def describe_findings(findings: Iterable[Finding]) -> str:
    """Findings one after the other, each with what to do about it.

    Example:
        >>> print(describe_findings([Finding.of("LLC105", "n = 12")]))
        warning LLC105: few examples: n = 12
            Use more data, or read the value as an effective dimension at this n.
    """
    lines = []
    for finding in findings:
        lines += _wrapped(f"{finding.severity} {finding.code}: {finding.message}", "", "    ")
        known = FINDINGS.get(finding.code)  # that of another version stays as it was written
        same = known is not None and finding.remedy == str(known.remedy)
        lines += _wrapped(known.remedy.on_command_line if known and same else finding.remedy, "    ", "    ")
    return "\n".join(lines)


def describe_estimate(estimate: Estimate) -> str:
    """The estimate on one line, then its findings with their remedies.

    Example:
        >>> print(describe_estimate(Estimate("llc", 2.5, se=0.1)))
        llc 2.50 ± 0.1 mc ± 0 sys | ok
    """
    return "\n".join(filter(None, [str(estimate), describe_findings(estimate.findings)]))


def run_summary(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a run folder holds, as JSON-able values: status, how far it got, settings with reasons, estimates.

    Args:
        folder: A run folder, complete or not.

    Raises:
        StoreError: It is no run folder, or one of its files is damaged.
    """
    store = RunStore.open(folder)
    with well_formed(store.folder):
        return _summary(store, store.manifest)


def _summary(store: RunStore, manifest: Mapping[str, Any]) -> dict[str, Any]:
    spec, journals = manifest["spec"], store.journals(manifest)
    done = {kind: min((length(j, kind) for j in journals), default=0) for kind in ("warmup", "draws")}
    names = sorted((store.folder / "estimates").glob("*.json"))
    estimates = [load_estimate(store.folder, unquote(path.stem)) for path in names]
    return {
        "folder": str(store.folder),
        "status": manifest["status"],
        "seed": manifest["seed"],
        "progress": {kind: {"done": done[kind], "of": spec.get(kind)} for kind in done},
        "chains": sum(len(group) for group in manifest["groups"]),
        "settings": {name: spec[name] for name in _CHOSEN if name in spec},
        "reasons": dict(spec.get("reasons", {})),
        "findings": manifest["findings"],
        "estimates": [{"summary": str(e), **e.to_dict()} for e in estimates],
        "provenance": manifest["provenance"],
    }


def describe_run(summary: Mapping[str, Any]) -> str:
    """The result of `run_summary` in words.

    Raises:
        StoreError: The folder states settings of a wrong type.
    """
    with well_formed(Path(summary["folder"])):
        return _words(summary)


def _words(summary: Mapping[str, Any]) -> str:
    progress = summary["progress"]
    words = {"warmup": "warm-up steps", "draws": "draws"}
    parts = [f"{p['done']} of {p['of'] if p['of'] is not None else '?'} {words[k]}" for k, p in progress.items()]
    lines = [f"run folder {summary['folder']}", f"status     {summary['status']}, seed {summary['seed']}"]
    if summary["status"] != "complete":
        lines.append(f"           {summary['chains']} chains, each at least {' and '.join(parts)}")
        lines += _wrapped(_ADVICE[summary["status"]], "           ", "           ")
    for estimate in summary["estimates"]:
        lines.append(f"estimate   {estimate['summary']}")
    lines.append("settings")
    for name, value in summary["settings"].items():
        lines += _wrapped(f"{name} = {_setting(name, value)}", "  ", "      ")
        if name in summary["reasons"]:
            lines += _wrapped(f"because: {summary['reasons'][name]}", "      ", "      ")
    for name in sorted(set(summary["reasons"]) - set(summary["settings"])):
        lines += _wrapped(f"{name}: {summary['reasons'][name]}", "  ", "      ")
    found = {(f["code"], f["message"]): f for e in summary["estimates"] for f in e["findings"]}
    found |= {(f["code"], f["message"]): f for f in summary["findings"]}
    lines.append("findings" if found else "findings   none")
    if found:
        lines += textwrap.indent(describe_findings(Finding(**f) for f in found.values()), "  ").splitlines()
    lines.append(f"made with  {described(summary['provenance'])}")
    return "\n".join(lines)


_ADVICE = {
    "running": "Not finished: still being written, or interrupted. The same command with the same --store resumes it.",
    "failed": "A chain diverged. The same command goes on where it stopped; other settings need another folder.",
}


def _setting(name: str, value: Any) -> str:
    if name == "kernel" and isinstance(value, Mapping):
        return f"{value['name']}({', '.join(f'{k}={_short(v)}' for k, v in value.items() if k != 'name')})"
    return _short(value)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list | tuple) else str(value)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)
