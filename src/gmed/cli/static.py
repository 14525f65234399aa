"""Answers that need no torch: ``gmed``, ``gmed --help``, ``gmed --version`` and ``gmed completion SHELL``.

Importing torch takes a second. What these commands print is in ``static.json``, written by ``python tools/static.py``
from the full program; a test compares the two.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import click

from gmed._version import __version__


def load() -> dict[str, Any]:
    """Return the texts: of the program, of its commands, and the completion scripts by shell."""
    content: dict[str, Any] = json.loads((files("gmed.cli") / "static.json").read_text(encoding="utf-8"))
    return content


class _Program(click.Group):
    """The program with only the names and summaries of its commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


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
        texts = load()
        version = click.Option(["--version"], is_flag=True, help=texts["version"])
        program = _Program(
            help=texts["help"],
            epilog=texts["epilog"],
            params=[version],
            context_settings={"help_option_names": ["-h", "--help"]},
            commands={name: click.Command(name, help=text) for name, text in texts["commands"].items()},
        )
        with program.make_context(None, [], resilient_parsing=True) as context:
            context.info_name = _program_name()
            print(program.get_help(context))
        return True
    if len(arguments) == 2 and arguments[0] == "completion":
        script = load()["completion"].get(arguments[1])
        if script is not None:
            print(script, end="")
        return script is not None
    return False


def _program_name() -> str:
    from click.utils import _detect_program_name

    return _detect_program_name()
