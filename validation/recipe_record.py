"""Keep a recipe's table: what the folder of a finished run holds, without the values of its cells.

    crunode recipe run murfet2020-rlct --size paper --store runs/rlct
    python validation/recipe_record.py runs/rlct

writes validation/murfet2020-rlct.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

_KEPT = ("recipe", "recipe_version", "size", "seed", "ok", "provenance", "rows")


def record(folder: Path, device: str | None = None) -> dict[str, Any]:
    """The table of a run, with the seconds that its cells took, and which cells were made by what."""
    run = json.loads((folder / "result.json").read_text())
    cells = [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*.json"))]
    command = f"crunode recipe run {run['recipe']} --size {run['size']} --seed {run['seed']} --store DIR"
    seconds = {cell["cell"]: round(cell["seconds"], 1) for cell in cells}
    made: list[dict[str, Any]] = []
    for cell in cells:
        same = next((each for each in made if each["provenance"] == cell["provenance"]), None)
        if same is None:
            made.append(same := {"provenance": cell["provenance"], "cells": []})
        same["cells"].append(cell["cell"])
    kept = {key: run[key] for key in _KEPT}
    return {"command": command, "device": device, **kept, "seconds": seconds, "made": made}


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", help="the machine in words, where it matters")
    options = parser.parse_args()
    found = record(options.folder, options.device)
    home = Path(__file__).parent / f"{found['recipe']}.json"
    home.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(home)


if __name__ == "__main__":
    main()
