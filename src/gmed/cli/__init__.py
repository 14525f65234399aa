"""The command line: ``gmed``.

Importing torch takes a second, so ``gmed``, ``gmed --help``, ``gmed --version`` and ``gmed completion SHELL`` are
answered without it. What they print is in ``static.json``, written by ``python tools/static.py`` from the full program;
a test compares the two.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from gmed._version import __version__

WIDTH = 80
"""The width that help is laid out for, also in wider terminals. In narrower ones the full program lays it out."""


def main() -> None:
    """Run the command line."""
    import gc

    from gmed.cli.exit import run_program

    answered = False

    def try_answer() -> None:
        nonlocal answered
        answered = answer(sys.argv[1:])

    run_program(try_answer)
    if not answered:
        gc.disable()  # imports create no garbage; the program enables collection again
        from gmed.cli.app import main as run

        run()


def answer(arguments: list[str]) -> bool:
    """Print the answer to these arguments, and return whether there is one without torch.

    >>> answer(["--version"])
    gmed 0.1.0
    True
    >>> answer(["run", "--help"])
    False
    """
    if arguments == ["--version"]:
        print(f"gmed {__version__}")
        return True
    if arguments in ([], ["--help"], ["-h"]):
        is_laid_out = Path(sys.argv[0]).stem == "gmed" and shutil.get_terminal_size().columns >= WIDTH
        if is_laid_out:
            print(_static_texts()["help"])
        return is_laid_out
    if len(arguments) == 2 and arguments[0] == "completion":
        script = _static_texts()["completion"].get(arguments[1])
        if script is not None:
            print(script, end="")
        return script is not None
    return False


def _static_texts() -> dict[str, Any]:
    """Return the help of the program, and the completion scripts by shell."""
    content: dict[str, Any] = json.loads((files("gmed.cli") / "static.json").read_text(encoding="utf-8"))
    return content
