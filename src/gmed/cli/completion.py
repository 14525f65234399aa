"""Completion for shells: gmed completion. A script of the words there are, so that a Tab starts no Python."""

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
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


CHOICES: dict[str, tuple[str, ...]] = {
    "--device": ("auto", "cpu", "cuda"),
    "--format": tuple(Format),
    "--split": ("by-class", "by-time", "by-column=", "none"),
}
"""Options with few values."""


@dataclass(frozen=True)
class Words:
    """What can follow a command.

    Attributes
    ----------
    commands
        Those inside it, with a line about each.
    options
        Its options, with a line about each.
    taking
        The options that are followed by a value.
    values
        Of such options, the values where they are few.
    first, further
        Its first argument and the others, where they are names; else they are files.
    """

    commands: dict[str, str]
    options: dict[str, str]
    taking: tuple[str, ...]
    values: dict[str, tuple[str, ...]]
    first: tuple[str, ...]
    further: tuple[str, ...]


def register_completion(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command("completion")(_completion)


def _completion(context: typer.Context, shell: Annotated[Shell, typer.Argument(help="The shell it is for")]) -> None:
    """Print a script that completes commands, options, benchmarks and methods when Tab is pressed."""
    print(SCRIPTS[shell](dict(_visit(context.find_root().command))), end="")


def _visit(command: Any, path: str = "") -> Iterator[tuple[str, Words]]:
    inner = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    options = [part for part in command.params if part.param_type_name == "option"]
    named = {name: part for part in options for name in part.opts}
    taking = tuple(name for name, part in named.items() if not part.is_flag)
    first, further = _arguments(path, [part.name for part in command.params if part.param_type_name == "argument"])
    yield (
        path,
        Words(
            commands={name: _line(each.help) for name, each in inner.items()},
            options={**{name: _line(part.help) for name, part in named.items()}, "--help": "Show help and exit"},
            taking=taking,
            values={name: CHOICES[name] for name in taking if name in CHOICES},
            first=first,
            further=further,
        ),
    )
    for name, each in inner.items():
        yield from _visit(each, f"{path} {name}".strip())


def _arguments(path: str, names: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names for the first argument of a command, and for those after it."""
    edited = [f"{base}+{edit}" for base in METHODS for edit in EDITS if METHODS[base].editable]
    known = {
        "benchmark": tuple(b.name for b in BENCHMARKS.values() if not b.tuning and not b.fuzzy),
        "methods": (*METHODS, *edited),
        "method": tuple(edited),
        "target": tuple(ARTIFACTS),
        "shell": tuple(Shell),
        "name": tuple(DATASETS) if path.startswith("data") else (),
    }
    words = [known.get(name, ()) for name in names]
    return (words[0] if words else ()), tuple(word for each in words[1:] for word in each)


def _line(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").split("\n\n")[0]).strip().rstrip(".")


def bash(program: dict[str, Words]) -> str:
    """For bash."""
    cases = "".join(
        f"    {path!r})\n"
        f"      commands='{' '.join(words.commands)}' options='{' '.join(words.options)}' "
        f"taking='{' '.join(words.taking)}'\n"
        f"      first='{' '.join(words.first)}' further='{' '.join(words.further)}' ;;\n"
        for path, words in program.items()
    )
    values = {name: some for words in program.values() for name, some in words.values.items()}
    chosen = "".join(f"      {name}) words='{' '.join(some)}' ;;\n" for name, some in values.items())
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
{chosen}    esac
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
    """For zsh, which can read completions of bash."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(program)}"


def fish(program: dict[str, Words]) -> str:
    """For fish."""
    lines = ["# Completion of gmed: put this into ~/.config/fish/completions/gmed.fish"]
    for path, words in program.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path.split())
        inside = " ".join(words.commands)
        if inside:
            outside = f"not __fish_seen_subcommand_from {inside}"
            seen = f"{seen}; and {outside}" if seen else outside
        for name, about in words.commands.items():
            lines.append(f"complete -c gmed -f -n {_quoted(seen)} -a {name} -d {_quoted(about)}")
        for name, about in words.options.items():
            kind = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            taking = " -r" if name in words.taking else ""
            few = f" -f -a {_quoted(' '.join(words.values[name]))}" if name in words.values else ""
            lines.append(f"complete -c gmed -n {_quoted(seen)} {kind}{taking}{few} -d {_quoted(about)}")
        if names := " ".join((*words.first, *words.further)):
            alone = "" if path in ACCEPTS_FILES else " -f"
            lines.append(f"complete -c gmed{alone} -n {_quoted(seen)} -a {_quoted(names)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


ACCEPTS_FILES = {"run", "table", "tune", "bench", "rm"}
"""Commands whose names may also be those of files."""

SCRIPTS: dict[Shell, Callable[[dict[str, Words]], str]] = {Shell.bash: bash, Shell.zsh: zsh, Shell.fish: fish}
