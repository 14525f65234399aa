"""Examples at the end of each command's help."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

EXAMPLES = {
    "": ["gmed run split-mnist er er+gmed --seeds 5", "gmed table", "gmed report --open"],
    "run": ["gmed run split-mnist er er+gmed --seeds 20", "gmed run rows.csv er 'er+gmed(alpha=0.1)' --label kind"],
    "table": ["gmed table split-mnist er er+gmed", "gmed table --metrics"],
    "report": ["gmed report --open", "gmed report split-mnist er er+gmed --format latex -o paper"],
    "reproduce": ["gmed reproduce --list", "gmed reproduce main --benchmarks split-mnist"],
    "tune": [
        "gmed tune rows.csv er+gmed --label kind",
        "gmed tune rows.csv er+gmed --label kind --grid alpha=0.01:10:4",
        "gmed run rows.csv er 'er+gmed(tuned)' --label kind",
    ],
    "fit": [
        "gmed fit rows.csv --label kind -o model.gmed",
        "gmed fit more.csv --label kind --from model.gmed -o new.gmed",
    ],
    "predict": ["gmed predict model.gmed new.csv", "gmed predict model.gmed new.csv --proba -o found.csv"],
    "watch": ["gmed watch", "gmed watch --once"],
    "list": ["gmed list", "gmed list split-mnist", "gmed list --extension my_edit.py"],
    "data": ["gmed data", "gmed data fetch cifar10"],
    "data fetch": ["gmed data fetch cifar10"],
    "data verify": ["gmed data verify", "gmed data verify mini-imagenet --data-dir ~/images"],
    "data remove": ["gmed data remove cifar10"],
    "runs": ["gmed runs", "gmed runs split-mnist --failed"],
    "export": ["gmed export runs.csv", "gmed export runs.parquet split-mnist"],
    "merge": ["gmed merge server.db", "gmed merge results.json --store all.db"],
    "rm": ["gmed rm split-mnist 'er+gmed(alpha=1.0)'", "gmed rm split-mnist --failed"],
    "bench": ["gmed bench split-mnist er er+gmed", "gmed bench split-cifar10 er --replicas 1,20 --device cuda"],
    "doctor": ["gmed doctor", "gmed doctor --json"],
    "completion": [
        "gmed completion bash > ~/.local/share/bash-completion/completions/gmed",
        "gmed completion fish > ~/.config/fish/completions/gmed.fish",
    ],
}
"""Examples by command, the most used commands first."""


class OrderedGroup(TyperGroup):
    """A command group whose help lists commands in the order of :data:`EXAMPLES`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of :data:`EXAMPLES`."""
        return sorted(self.commands, key=list(EXAMPLES).index)


TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "int range": "INTEGER", "float range": "NUMBER"}
"""What the help calls the types of values, by their names in Python."""


class Command(TyperCommand):
    """A command whose help names types in words."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, which need no type, and the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == kind]
            shown = [(_without_types(name, kind == "argument"), text) for name, text in filter(None, records)]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)


def _without_types(name: str, is_argument: bool) -> str:
    """Return an option with the type of its values in words; of an argument only the name.

    >>> _without_types("--drop <list[str]>", False), _without_types("methods... <list[str]>", True)
    ('--drop TEXT', 'methods...')
    """
    name, bracket, kind = name.partition(" <")
    if not bracket or is_argument:
        return name
    kind = kind.removeprefix("list[").rstrip("]>")
    return f"{name} {TYPES.get(kind, kind)}"


def register_epilogs(app: typer.Typer, path: str = "") -> None:
    """Add the examples to the help of the program and of its commands and groups."""
    app.info.epilog = _epilog(path)
    for command in app.registered_commands:
        command.cls = Command
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = _epilog(f"{path} {name}".strip())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            register_epilogs(group.typer_instance, f"{path} {group.name}".strip())


def _epilog(name: str) -> str:
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[name])])
