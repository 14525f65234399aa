"""Write docs/reference/commands.md: every command with its arguments and options, from the program itself.

python tools/commands.py
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from gmed.cli.app import EXAMPLES, app

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"

INTRODUCTION = """# The command line

What `gmed COMMAND --help` says, for all commands.
Three dots behind an option stand for its value, square brackets at the end of a description for the default.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([INTRODUCTION, *_sections(get_command(app), "")])


def _sections(group: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(None):
        command, full = group.commands[name], f"{path} {name}".strip()
        yield _section(command, full)
        if hasattr(command, "commands"):
            yield from _sections(command, full)


def _section(command: Any, name: str) -> str:
    arguments = [part for part in command.params if part.param_type_name == "argument"]
    options = [part for part in command.params if part.param_type_name == "option" and part.name != "help"]
    usage = " ".join(["gmed", name, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## gmed {name}", command.help, f"```text\n{usage}\n```"]
    parts += [_table("argument", [(part.name, part) for part in arguments])] if arguments else []
    parts += [_table("option", [(_option(part), part) for part in options])] if options else []
    examples = "\n".join(EXAMPLES[name])
    return "\n\n".join([*parts, f"```bash\n{examples}\n```"]) + "\n"


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    return ", ".join(option.opts) + ("" if option.is_flag else " ...")


def _table(kind: str, rows: list[tuple[str, Any]]) -> str:
    lines = [f"| `{name}` | {_text(part)} |" for name, part in rows]
    return "\n".join([f"| {kind} | |", "|---|---|", *lines])


def _text(part: Any) -> str:
    text, default = (part.help or "").replace("|", "\\|").replace("<", "&lt;"), part.default
    if isinstance(default, Enum):
        text, default = f"{text}: {', '.join(choice.value for choice in type(default))}", default.value
    if default not in (None, False, (), []) and not text.endswith("]"):
        text += f" [{default}]"
    return text + (" (required)" if part.required and part.param_type_name == "option" else "")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
