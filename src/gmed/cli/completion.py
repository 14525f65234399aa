"""Shell completion: gmed completion. The script contains all completions, so pressing Tab does not start Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from gmed.cli.report import Format
from gmed.data.registry import DATASETS
from gmed.engine.benchmarks import BENCHMARKS
from gmed.paper.artifacts import ARTIFACTS
from gmed.registry import EDITS, METHODS


class Shell(StrEnum):
    """The supported shells."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


CHOICES: dict[str, tuple[str, ...]] = {
    "--device": ("auto", "cpu", "cuda"),
    "--format": tuple(Format),
    "--split": ("by-class", "by-time", "by-column=", "none"),
}
"""The values of options that have a fixed set of them."""


@dataclass(frozen=True)
class Words:
    """The completions of a command.

    Attributes
    ----------
    commands
        Its subcommands, each with a one-line description.
    options
        Its options, each with a one-line description.
    taking
        The options that take a value.
    values
        The values of those options that have a fixed set of them.
    first, further
        Names for its first argument and for the others; empty if the arguments are files.
    """

    commands: dict[str, str]
    options: dict[str, str]
    taking: tuple[str, ...]
    values: dict[str, tuple[str, ...]]
    first: tuple[str, ...]
    further: tuple[str, ...]


def completion(context: typer.Context, shell: Annotated[Shell, typer.Argument(help="The shell")]) -> None:
    """Print a shell-completion script. It completes commands, options, benchmarks and methods."""
    print(SCRIPTS[shell](dict(_visit(context.find_root().command))), end="")


def _visit(command: Any, path: str = "") -> Iterator[tuple[str, Words]]:
    """Yield the path and the completions of a command, then those of its subcommands."""
    subcommands = {name: sub for name, sub in getattr(command, "commands", {}).items() if not sub.hidden}
    options = {name: param for param in command.params if param.param_type_name == "option" for name in param.opts}
    taking = tuple(name for name, option in options.items() if not option.is_flag)
    arguments = [param.name for param in command.params if param.param_type_name == "argument"]
    first, further = _argument_names(path, arguments)
    yield (
        path,
        Words(
            commands={name: _first_paragraph(sub.help) for name, sub in subcommands.items()},
            options={
                **{name: _first_paragraph(option.help) for name, option in options.items()},
                "--help": "Show help and exit",
            },
            taking=taking,
            values={name: CHOICES[name] for name in taking if name in CHOICES},
            first=first,
            further=further,
        ),
    )
    for name, sub in subcommands.items():
        yield from _visit(sub, f"{path} {name}".strip())


def _argument_names(path: str, arguments: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that complete the first argument of a command, and those for the others."""
    edited = [f"{base}+{edit}" for base in METHODS for edit in EDITS if METHODS[base].editable]
    names = {
        "benchmark": tuple(b.name for b in BENCHMARKS.values() if not b.tuning and not b.fuzzy),
        "methods": (*METHODS, *edited),
        "method": tuple(edited),
        "target": tuple(ARTIFACTS),
        "shell": tuple(Shell),
        "name": tuple(DATASETS) if path.startswith("data") else (),
    }
    words = [names.get(argument, ()) for argument in arguments]
    return (words[0] if words else ()), tuple(word for others in words[1:] for word in others)


def _first_paragraph(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").split("\n\n")[0]).strip().rstrip(".")


def bash(program: dict[str, Words]) -> str:
    """Return the completion script for bash."""
    cases = "".join(
        f"    {path!r})\n"
        f"      commands='{' '.join(words.commands)}' options='{' '.join(words.options)}' "
        f"taking='{' '.join(words.taking)}'\n"
        f"      first='{' '.join(words.first)}' further='{' '.join(words.further)}' ;;\n"
        for path, words in program.items()
    )
    values = {name: choices for words in program.values() for name, choices in words.values.items()}
    value_cases = "".join(f"      {name}) words='{' '.join(choices)}' ;;\n" for name, choices in values.items())
    return f"""# Completion of gmed: source this, or put it where your shell looks for completions.
_gmed_words() {{
  case $1 in
{cases}  esac
}}

_gmed() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= commands= options= taking= first= further= words= word= position=0 i
  _gmed_words ''
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    if [[ " $taking " == *" $word "* ]]; then
      ((++i))
    elif [[ $word == -* ]]; then
      continue
    elif [[ $position == 0 && " $commands " == *" $word "* ]]; then
      command="${{command:+$command }}$word"
      _gmed_words "$command"
    else
      ((++position))
    fi
  done
  if [[ " $taking " == *" $before "* ]]; then
    case $before in
{value_cases}    esac
  elif [[ $current == -* ]]; then
    words=$options
  elif [[ -n $commands && $position == 0 ]]; then
    words=$commands
  elif [[ $position == 0 ]]; then
    words=$first
  else
    words=$further
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}

complete -o default -F _gmed gmed
"""


def zsh(program: dict[str, Words]) -> str:
    """Return the completion script for zsh, which can use completions of bash."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(program)}"


def fish(program: dict[str, Words]) -> str:
    """Return the completion script for fish."""
    lines = ["# Completion of gmed: put this into ~/.config/fish/completions/gmed.fish"]
    for path, words in program.items():
        condition = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path.split())
        subcommands = " ".join(words.commands)
        if subcommands:
            no_subcommand = f"not __fish_seen_subcommand_from {subcommands}"
            condition = f"{condition}; and {no_subcommand}" if condition else no_subcommand
        for name, description in words.commands.items():
            lines.append(f"complete -c gmed -f -n {_quote(condition)} -a {name} -d {_quote(description)}")
        for name, description in words.options.items():
            flag = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            required = " -r" if name in words.taking else ""
            values = f" -f -a {_quote(' '.join(words.values[name]))}" if name in words.values else ""
            lines.append(f"complete -c gmed -n {_quote(condition)} {flag}{required}{values} -d {_quote(description)}")
        if names := " ".join((*words.first, *words.further)):
            no_files = "" if path in ACCEPTS_FILES else " -f"
            lines.append(f"complete -c gmed{no_files} -n {_quote(condition)} -a {_quote(names)}")
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


ACCEPTS_FILES = {"run", "table", "tune", "bench", "rm"}
"""Commands whose arguments may be names or files."""

SCRIPTS: dict[Shell, Callable[[dict[str, Words]], str]] = {Shell.bash: bash, Shell.zsh: zsh, Shell.fish: fish}
