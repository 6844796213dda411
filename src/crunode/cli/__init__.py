"""The command line: arguments in, one call of the library, words or JSON out.

`crunode exact` answers without the command parser of the others, whose import takes longer than the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crunode._lazy import exports

if TYPE_CHECKING:
    from crunode.cli.commands import run_words as run_words
    from crunode.cli.printing import print_json as print_json
else:
    __getattr__, __dir__, _names = exports(__name__)
    __all__ = ["main", *_names]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 computed but not ok, 2 wrong usage or input.

    Args:
        arguments: The words after the command's name; those of the process by default.

    Example:
        >>> try:
        ...     main(["--version"])
        ... except SystemExit as end:
        ...     end.code
        crunode ...
        0
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks ± shall not end the program
            stream.reconfigure(errors="replace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read along has seen enough; what is still held back shall not fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise SystemExit(code)


def _run(words: list[str]) -> int:
    if words[0] == "exact":
        from crunode.cli.exact_command import run_exact

        return run_exact(words[1:])
    try:
        from crunode.cli.commands import run_words
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "click"):
            raise
        from crunode.cli.printing import fail

        # typer comes with crunode; it is absent only where crunode was installed without its requirements.
        message = f"this command needs the package {error.name!r}, which is not installed"
        fail("MissingExtra", f"{message}. Install it with: pip install typer", words)
        return 2
    return run_words(words)
