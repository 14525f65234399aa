"""Options shared by several commands; those of a run are declared in :data:`gmed.experiment.OPTIONS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, get_type_hints

import typer

from gmed.engine import load_extension
from gmed.experiment import OPTIONS


def _load_extensions(paths: list[str] | None) -> list[str] | None:
    for path in paths or []:
        load_extension(path)
    return paths


def _option(name: str) -> Any:
    option = OPTIONS[name]
    flag = option.flag or f"--{name.replace('_', '-')}"
    if bool in option.types:
        return Annotated[bool, typer.Option(flag, help=option.help)]
    callback = _load_extensions if name == "extensions" else None  # runs while options are parsed
    return Annotated[option.parsed | None, typer.Option(flag, help=option.help, callback=callback)]


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the named options of a run, by default all, to a command.

    Those set by the user are passed to the command as the mapping ``options``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        added_names = names or tuple(OPTIONS)

        @wraps(command)
        def wrapper(**arguments: Any) -> None:
            options = {name: arguments.pop(name) for name in added_names}
            set_by_user = {name: value for name, value in options.items() if value is not None and value is not False}
            command(**arguments, options=set_by_user)

        hints = get_type_hints(command, include_extras=True)
        parameters = [
            p.replace(annotation=hints[p.name]) for p in signature(command).parameters.values() if p.name != "options"
        ]
        positional = [p for p in parameters if p.default is Parameter.empty or _is_argument(p)]
        added = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=False if bool in OPTIONS[name].types else None,
                annotation=_option(name),
            )
            for name in added_names
        ]
        keyword_only = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in parameters if p not in positional]
        extended = signature(command).replace(parameters=[*positional, *added, *keyword_only])
        wrapper.__signature__ = extended  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in extended.parameters.values()} | {"return": None}
        return wrapper

    return decorate


def _is_argument(parameter: Parameter) -> bool:
    return any(isinstance(info, typer.models.ArgumentInfo) for info in parameter.annotation.__metadata__)


Extension = _option("extensions")
DataDir = _option("data_dir")
StoreFile = _option("store")
Drop = _option("drop")
Model = _option("model")
Baseline = _option("baseline")
Json = Annotated[bool, typer.Option("--json", help="Print only a JSON document")]
ResultsJson = Annotated[bool, typer.Option("--json", help="Print only a JSON document to standard output")]
