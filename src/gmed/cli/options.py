"""Options that several commands share; those of a run are declared by :class:`gmed.Experiment`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from gmed.engine import load_extension
from gmed.experiment import run_options


def _load(paths: list[str] | None) -> list[str] | None:
    for path in paths or []:
        load_extension(path)
    return paths


_AT_THE_COMMAND_LINE: dict[str, Any] = {
    "memory": int,
    "workers": int,
    "checkpoint_every": float,
    "drop": list[str],
    "extensions": list[str],
}
"""Types of options that are not text; true or false becomes a flag."""


def _option(name: str) -> Any:
    option = run_options()[name]
    flag = option.flag or f"--{name.replace('_', '-')}"
    if bool in option.types:
        return Annotated[bool, typer.Option(flag, help=option.help)]
    callback = _load if name == "extensions" else None  # as the option is read, before the command begins
    kind = _AT_THE_COMMAND_LINE.get(name, str)
    return Annotated[kind | None, typer.Option(flag, help=option.help, callback=callback)]


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of a run, by default all; those that are typed come as a mapping ``options``."""

    def wrapped(command: Callable[..., None]) -> Callable[..., None]:
        taken = names or tuple(run_options())

        @wraps(command)
        def called(**given: Any) -> None:
            options = {name: given.pop(name) for name in taken}
            typed = {name: value for name, value in options.items() if value is not None and value is not False}
            command(**given, options=typed)

        hints = get_type_hints(command, include_extras=True)
        own = [
            p.replace(annotation=hints[p.name]) for p in signature(command).parameters.values() if p.name != "options"
        ]
        arguments = [p for p in own if p.default is Parameter.empty or _is_argument(p)]
        added = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=False if bool in run_options()[name].types else None,
                annotation=_option(name),
            )
            for name in taken
        ]
        further = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own if p not in arguments]
        found = signature(command).replace(parameters=[*arguments, *added, *further])
        called.__signature__ = found  # type: ignore[attr-defined]
        called.__annotations__ = {p.name: p.annotation for p in found.parameters.values()} | {"return": None}
        return called

    return wrapped


def _is_argument(parameter: Parameter) -> bool:
    return any(isinstance(note, typer.models.ArgumentInfo) for note in parameter.annotation.__metadata__)


Extension = _option("extensions")
DataDir = _option("data_dir")
StoreFile = _option("store")
Label = _option("label")
Drop = _option("drop")
Model = _option("model")

Over = Annotated[str | None, typer.Option(help="Method to show gains over [each without its last part]")]
