"""How the program ends: errors in one line and an exit code, also where its output cannot be written."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from gmed.cli.console import EXIT_OUTPUT_CLOSED, EXIT_USAGE
from gmed.errors import GmedError, GmedWarning


class OutputError(Exception):
    """Standard output or standard error cannot be written."""

    def __init__(self, name: str, reason: OSError) -> None:
        super().__init__(f"{name} cannot be written ({reason.strerror})")
        self.is_closed = reason.errno == errno.EPIPE


class CheckedOutput:
    """A stream whose errors cannot be taken for those of a file, and are not swallowed on the way up."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._checked():
            return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        with self._checked():
            self.stream.writelines(lines)

    def flush(self) -> None:
        with self._checked():
            self.stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(self.name, error) from error

    def silence(self) -> None:
        """Let what is still to be written go nowhere, so that the interpreter does not fail on it as it ends."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)


def run_program(program: Callable[[], object]) -> None:
    """Run the command line and end as the documentation says.

    An error made on purpose becomes one line and exit code 2. A reader that closes the pipe ends the program with 141,
    as it ends others; any other stream that cannot be written is an error.
    """
    before = sys.stdout, sys.stderr
    streams = [
        None if stream is None else CheckedOutput(stream, name)
        for stream, name in zip(before, ("standard output", "standard error"), strict=True)
    ]
    sys.stdout, sys.stderr = streams
    try:
        with _plain_warnings():
            _run(program)
    except OutputError as error:
        for stream in filter(None, streams):
            with suppress(OutputError):
                stream.flush()
                continue
            stream.silence()
        if error.is_closed:
            sys.exit(EXIT_OUTPUT_CLOSED)
        with suppress(OutputError):
            print(f"gmed: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_USAGE)
    finally:
        sys.stdout, sys.stderr = before


def _run(program: Callable[[], object]) -> None:
    try:
        program()
    except GmedError as error:
        print(f"gmed: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Inside, a warning made on purpose is one line on standard error, and said once."""
    with warnings.catch_warnings():
        usual, said = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *where: Any, **how: Any) -> None:
            if not issubclass(category, GmedWarning):
                usual(message, category, *where, **how)
            elif str(message) not in said:
                said.add(str(message))
                print(f"gmed: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield
