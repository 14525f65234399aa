"""The command-line program: its commands, their help, and its errors."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gmed._version import __version__
from gmed.cli import completion, data, doctor, fit, paper, report, results, run, watch
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, run_program
from gmed.errors import GmedWarning, UsageError, alternatives

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "table": results.table,
    "report": report.report,
    "reproduce": paper.reproduce,
    "tune": run.tune,
    "fit": fit.fit,
    "predict": fit.predict,
    "watch": watch.watch,
    "list": run.list_,
    "runs": results.runs,
    "export": results.export,
    "merge": results.merge,
    "rm": results.rm,
    "bench": run.bench,
    "doctor": doctor.doctor,
    "completion": completion.completion,
}

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


OLD_OPTIONS = {"over": "baseline"}
"""New names of options by their old ones, which still work for a release."""


def _current_option(name: str) -> str:
    """Return the current name of an option, with a warning if this is an old one."""
    if name in OLD_OPTIONS:
        warnings.warn(
            f"--{name} is now --{OLD_OPTIONS[name]}; the old name will be removed in the next release", GmedWarning, 2
        )
    return OLD_OPTIONS.get(name, name)


class OrderedGroup(TyperGroup):
    """A command group whose help lists commands in the order of :data:`EXAMPLES`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of :data:`EXAMPLES`."""
        return sorted(self.commands, key=list(EXAMPLES).index)


TYPES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "int range": "INTEGER", "float range": "NUMBER"}
"""What the help calls the types of values, by their names in Python."""


class Command(TyperCommand):
    """A command whose help uses readable names of types."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, which need no type, and the options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            records = [p.get_help_record(ctx) for p in self.get_params(ctx) if p.param_type_name == kind]
            shown = [(_without_types(name, kind == "argument"), text) for name, text in filter(None, records)]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(shown)


def _without_types(name: str, is_argument: bool) -> str:
    """Return an option with a readable name of its type, or an argument without its type.

    >>> _without_types("--drop <list[str]>", False), _without_types("methods... <list[str]>", True)
    ('--drop TEXT', 'methods...')
    """
    name, bracket, kind = name.partition(" <")
    if not bracket or is_argument:
        return name
    kind = kind.removeprefix("list[").rstrip("]>")
    return f"{name} {TYPES.get(kind, kind)}"


def _add_examples(app: typer.Typer, path: str = "") -> None:
    """Add the examples to the help of the program and of its commands and groups."""
    app.info.epilog = _epilog(path)
    for command in app.registered_commands:
        command.cls = Command
        name = command.name or getattr(command.callback, "__name__", "")
        command.epilog = _epilog(f"{path} {name}".strip())
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _add_examples(group.typer_instance, f"{path} {group.name}".strip())


def _epilog(name: str) -> str:
    return "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[name])])


app = typer.Typer(
    cls=OrderedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _current_option,
    },
)
app.add_typer(data.data_app, name="data")
for name, command in COMMANDS.items():
    app.command(name)(command)
_add_examples(app)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"gmed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Online, task-free continual learning with an editable replay memory."""


def main() -> None:
    """Run the program."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that checkpoints are written
    if gc.get_freeze_count() == 0:
        gc.freeze()  # modules are never freed, so the garbage collector need not scan them
    gc.enable()
    run_program(_run_app)


def _run_app() -> None:
    """Run the command line; what the parser refuses is reported like any other error."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        status = EXIT_INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # neither Click's exception nor that of a Typer that contains Click
            raise
        raise UsageError(_describe_refusal(error)) from None
    sys.exit(status or EXIT_OK)


def _describe_refusal(error: Any) -> str:
    """Return the message of the parser in the style of this package, with the command that shows the matching help.

    >>> _describe_refusal(typer.BadParameter("No such option: --sed (Possible options: --seed, --seeds)."))
    'no such option: --sed; did you mean --seed or --seeds?'
    """
    message = str(error.format_message()).removeprefix("Invalid value: ").rstrip(".").replace("Value error, ", "")
    message = f"{message[:1].lower()}{message[1:]}"
    message, _, options = message.partition(" (Possible options: ")
    if options:
        return f"{message}; did you mean {alternatives(options.rstrip(')').split(', '))}?"
    message, _, command = message.replace("'. Did", "' Did").partition(" Did you mean ")
    if command:
        return f"{message}; did you mean {command}"
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}; see {context.command_path} --help"


if __name__ == "__main__":
    main()
