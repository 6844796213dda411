"""devinterp, run in an environment of its own: its requirements and crunode's need not agree."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from crunode import InputError, Landscape
from crunode_papers.hitchcock2025.problem import Problem

__all__ = ["PEER_PYTHON", "PEER_SCRIPT", "PeerAbsent", "peer_missing", "run_peer"]

PEER_PYTHON = ".venv-peer/bin/python"
PEER_SCRIPT = "bench/peer/llc.py"


class PeerAbsent(InputError):
    """devinterp cannot be run: its environment or the script that calls it is not there.

    Example:
        >>> issubclass(PeerAbsent, InputError)
        True
    """


def peer_missing(python: str | os.PathLike[str] = PEER_PYTHON, script: str | os.PathLike[str] = PEER_SCRIPT) -> str:
    """Why devinterp cannot be run here; empty where it can.

    Example:
        >>> peer_missing("no/such/python")
        'no/such/python is not there; make it with bench/run.sh, or name another one'
    """
    if not os.access(python, os.X_OK):
        return f"{python} is not there; make it with bench/run.sh, or name another one"
    if not Path(script).is_file():
        return f"{script} is not there; run in the folder of the sources"
    return ""


def run_peer(
    problem: Problem,
    landscape: Landscape,
    seed: int,
    *,
    batch: int,
    peer_python: str | os.PathLike[str] = PEER_PYTHON,
    peer_script: str | os.PathLike[str] = PEER_SCRIPT,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Estimate with devinterp at its defaults, on one thread.

    Weights and data travel in a file. The time is that of its estimate alone, without its start.

    Args:
        problem: Says what network it is.
        landscape: Weights and data.
        seed: Of its chains.
        batch: Examples in a minibatch, which devinterp has no default for.
        peer_python: The interpreter of its environment.
        peer_script: The script that calls it.
        timeout: Seconds after which it is ended and counts as failed.

    Raises:
        PeerAbsent: The environment or the script is not there.
        InputError: The landscape is not that of a network it can be given.
        RuntimeError: It failed or took too long.
    """
    missing = peer_missing(peer_python, peer_script)
    if missing:
        raise PeerAbsent(f"expected devinterp in an environment of its own, but {missing}")
    if problem.activation is None:
        raise InputError(f"expected a network to give to devinterp, got {problem.name}, a function of its own")
    named = landscape.packing.unravel(landscape.center)
    x, y = landscape.data.tensors()
    tensors = {name: value.detach().cpu().numpy() for name, value in {**named, "x": x, "y": y}.items()}
    with tempfile.TemporaryDirectory(prefix="crunode-peer-") as folder:
        given = Path(folder) / "problem.npz"
        np.savez(given, **tensors)  # type: ignore[arg-type]
        words = [str(peer_python), str(peer_script), str(given), "--activation", problem.activation]
        words += ["--batch", str(batch), "--seed", str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"devinterp took more than {timeout} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"devinterp failed: {lines[-1]}")
    content = json.loads(done.stdout.strip().splitlines()[-1])
    value, spread = (math.nan if content[k] is None else content[k] for k in ("value", "std"))
    return {
        "value": value,
        "se": spread,
        "systematic": 0.0,
        "ok": math.isfinite(value),
        "error": content["error"],
        "gradients": content["gradients"],
        "example_gradients": content["gradients"] * batch,
        "seconds": content["seconds"],
        "settings": content["settings"],
    }
