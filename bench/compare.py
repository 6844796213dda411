"""Merge the JSON lines of both sides into validation/speed_cpu.json and print the table.

Lines of the same tool and case (several rounds of one run) are pooled: the figure is the median of all
their repeats. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASE = ("model", "chains")
VARIANT = ("loader", "sampler", "layout", "compiled", "device", "dtype")
MEASURED = ("us_per_step_chain", "repeats", "cpu_us_per_step_chain", "load_average")


def read(paths: list[Path]) -> list[dict]:
    rows = []
    for path in paths:
        if not path.exists():
            print(f"{path.name}: absent, left out")
            continue
        rows += [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return rows


def pool(rows: list[dict]) -> list[dict]:
    """One row for each tool, version, case and variant."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ("tool", "version", "torch", *CASE, *VARIANT))
        groups.setdefault(key, []).append(row)
    pooled = []
    for members in groups.values():
        repeats = [value for row in members for value in row.get("repeats") or [row["us_per_step_chain"]]]
        row = {name: value for name, value in members[-1].items() if name not in MEASURED}
        row["us_per_step_chain"] = statistics.median(repeats)
        row["repeats"] = repeats
        row["relative_spread"] = (max(repeats) - min(repeats)) / row["us_per_step_chain"]
        for name in ("cpu_us_per_step_chain", "load_average"):
            values = [member[name] for member in members if member.get(name) is not None]
            if values:
                row[name] = statistics.median(values)
        pooled.append(row)
    return pooled


def label(row: dict) -> str:
    """What tells apart the crunode rows of one case."""
    parts = [str(row[name]) for name in ("layout", "loader", "dtype", "device") if row.get(name)]
    if row.get("compiled") is not None:
        parts.append("compiled" if row["compiled"] else "eager")
    return " ".join(parts) or "-"


def ratios(rows: list[dict]) -> list[dict]:
    """For each crunode row: the peer's figures of the same case, and how many times slower they are."""
    out = []
    for row in rows:
        if row["tool"] != "crunode":
            continue
        entry = {name: row[name] for name in CASE}
        entry |= {"variant": label(row), "crunode_us": row["us_per_step_chain"]}
        for loader in ("dataloader", "ideal"):
            peers = [
                peer["us_per_step_chain"]
                for peer in rows
                if peer["tool"] == "devinterp"
                and peer.get("loader") == loader
                and all(peer[name] == row[name] for name in CASE)
            ]
            if peers:  # the faster one, should several samplers of the peer have been measured
                entry[f"devinterp_{loader}_us"] = min(peers)
                entry[f"ratio_{loader}"] = min(peers) / row["us_per_step_chain"]
        out.append(entry)
    return out


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def git(*args: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def provenance(rows: list[dict]) -> dict:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            tool: sorted({f"{row.get('version')} (torch {row.get('torch')})" for row in rows if row["tool"] == tool})
            for tool in sorted({row["tool"] for row in rows})
        },
        "threads": sorted({row["threads"] for row in rows if "threads" in row}),
        "git_commit": git("rev-parse", "HEAD") or None,
        "git_modified": bool(git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")),
    }


def table(rows: list[dict], pairs: list[dict]) -> None:
    print("Microseconds per step and chain (median; one thread).\n")
    print("| model | chains | devinterp dataloader | devinterp ideal | crunode | us | ratio | ratio, ideal |")
    print("|---|---|---|---|---|---|---|---|")

    def show(entry: dict, key: str, form: str) -> str:
        return format(entry[key], form) if key in entry else "-"

    for row in rows:  # peer cases that no crunode row answers are printed too
        case = {name: row[name] for name in CASE}
        if not any(all(pair[name] == case[name] for name in CASE) for pair in pairs):
            peers = [r for r in rows if r["tool"] == "devinterp" and all(r[n] == case[n] for n in CASE)]
            case |= {f"devinterp_{peer['loader']}_us": peer["us_per_step_chain"] for peer in peers}
            pairs = [*pairs, {**case, "variant": "-"}]
    for pair in pairs:
        cells = [pair["model"], str(pair["chains"]), show(pair, "devinterp_dataloader_us", ".0f")]
        cells += [show(pair, "devinterp_ideal_us", ".0f"), pair["variant"], show(pair, "crunode_us", ".1f")]
        cells += [show(pair, "ratio_dataloader", ".1f"), show(pair, "ratio_ideal", ".1f")]
        print("| " + " | ".join(cells) + " |")
    widest = max(rows, key=lambda row: row["relative_spread"])
    print(
        f"\nWidest spread (max - min over median): {widest['relative_spread']:.0%}, "
        f"{widest['tool']} {widest['model']} {widest['chains']} chains."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", nargs="+", type=Path, help="JSON-lines files of either side")
    parser.add_argument("--out", type=Path, default=ROOT / "validation" / "speed_cpu.json")
    args = parser.parse_args()
    rows = pool(read(args.inputs))
    if not rows:
        raise SystemExit("nothing was measured")
    pairs = ratios(rows)
    table(rows, pairs)
    if not pairs or not any(row["tool"] == "devinterp" for row in rows):
        print("Only one side was measured: no record written.")
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(rows), "comparison": pairs, "rows": rows}
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{args.out.name} written")


if __name__ == "__main__":
    main()
