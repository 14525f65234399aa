"""Shell completion, help, colours and width of the command line."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gmed.cli.app import EXAMPLES, app
from gmed.cli.console import make_console
from helpers import invoke

PROGRAM = typer.main.get_command(app)
COMMANDS = [*PROGRAM.commands, *(f"data {name}" for name in PROGRAM.commands["data"].commands)]
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def gmed(*words, **environment):
    done = invoke(*words, environment=environment)
    assert done.exit_code == 0, (words, done.output, done.exception)
    return done.output


# ---------------------------------------------------------------------- completion


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("shell") / "gmed.bash"
    path.write_text(subprocess.check_output([sys.executable, "-m", "gmed.cli", "completion", "bash"], text=True))
    return path


def completed(script, line):
    """What bash offers when Tab is pressed at the end of a line."""
    *before, current = line.split(" ")
    program = f"""
      set -eu
      source {shlex.quote(str(script))}
      COMP_WORDS=({" ".join(map(shlex.quote, [*before, current]))})
      COMP_CWORD={len(before)}
      _gmed || true
      printf '%s\\n' "${{COMPREPLY[@]}}"
      complete -p gmed >&2
    """
    done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "-F _gmed gmed" in done.stderr, done.stderr
    return done.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gmed ru", ["runs", "run"]),
        ("gmed run split-m", ["split-mnist", "split-mnist-full", "split-mini-imagenet"]),
        (
            "gmed run split-",
            ["split-mnist", "split-mnist-full", "split-cifar10", "split-cifar100", "split-mini-imagenet"],
        ),
        ("gmed run split-mnist er+", ["er+gmed", "er+random-edit", "er+adv-edit", "er+optimal-edit"]),
        ("gmed run split-mnist --seeds 20 er --mem", ["--memory"]),
        ("gmed run split-mnist er --device c", ["cpu", "cuda"]),
        ("gmed run split-mnist er --seeds ", []),
        ("gmed report --format l", ["latex"]),
        ("gmed data fe", ["fetch"]),
        ("gmed data fetch cifar1", ["cifar10", "cifar100"]),
        ("gmed reproduce mem", ["memory", "memory-figure"]),
        ("gmed completion z", ["zsh"]),
    ],
)
def test_bash_completes(script, line, offered):
    assert sorted(completed(script, line)) == sorted(offered)


@needs_bash
def test_bash_completion_covers_every_command_and_option(script):
    assert set(completed(script, "gmed ")) == set(PROGRAM.commands)
    for name in COMMANDS:
        command = PROGRAM
        for part in name.split():
            command = command.commands[part]
        options = {option for each in command.params for option in getattr(each, "opts", ()) if option[:2] == "--"}
        assert options | {"--help"} <= set(completed(script, f"gmed {name} --"))


def test_other_shells_complete_the_same_words():
    assert "bashcompinit" in gmed("completion", "zsh") and "_gmed_words" in gmed("completion", "zsh")
    fish = gmed("completion", "fish")
    assert all(re.search(rf"^complete -c gmed .*-a {name} -d '", fish, flags=re.M) for name in PROGRAM.commands)
    assert all(shlex.split(line.replace("\\'", "")) for line in fish.splitlines())  # quotes are closed
    assert CliRunner().invoke(app, ["completion", "csh"]).exit_code == 2


# ---------------------------------------------------------------------- help


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns_and_ends_with_examples(name):
    text = gmed(*name.split(), "--help")
    assert all(len(line) <= 80 for line in text.splitlines()), text
    ending = text.rstrip().splitlines()[-len(EXAMPLES[name]) :]
    assert [line.strip() for line in ending] == EXAMPLES[name]


def test_every_command_has_examples():
    assert set(EXAMPLES) == {"", *COMMANDS}
    for line in (line for lines in EXAMPLES.values() for line in lines if line.startswith("gmed ")):
        command, words = PROGRAM, shlex.split(line)[1:]
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        known = {option for each in command.params for option in getattr(each, "opts", ())}
        assert command is not PROGRAM and {word for word in words if word.startswith("-")} <= known, line


def test_help_lists_commands_by_use():
    listed = re.findall(r"^  (\w+) {2,}\w", gmed("--help").partition("Commands:")[2], flags=re.M)
    assert listed == [name for name in EXAMPLES if name and " " not in name]
    assert listed[:3] == ["run", "table", "report"]


# ---------------------------------------------------------------------- colours and width


def in_a_terminal(*words, **environment):
    """What a command writes to a terminal."""
    pty = pytest.importorskip("pty", reason="needs terminals as Unix has them")
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    env = {**kept, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    process = subprocess.Popen([sys.executable, "-m", "gmed.cli", *words], stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    assert process.wait(60) == 0
    os.close(ours)
    return written.decode()


@pytest.mark.slow
def test_colours_in_a_terminal_unless_disabled(tmp_path):
    words = "doctor", "--store", str(tmp_path / "none.db")
    colour = re.compile(r"\x1b\[[\d;]*3\d")
    assert colour.search(in_a_terminal(*words))
    plain = in_a_terminal(*words, NO_COLOR="1")
    assert "gmed" in plain and not colour.search(plain)


@pytest.mark.slow
def test_piped_output_is_plain_text_of_at_most_80_columns(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert make_console().no_color
    for words in (["list"], ["data"], ["reproduce", "--list", "--no-estimate"]):
        said = gmed(*words)
        assert "\x1b" not in said
        assert all(len(line) <= 80 for line in said.splitlines() if "/" not in line), said  # a path stays in one piece
