"""Error handling of the program: errors in one line and an exit code, even if the output cannot be written."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from gmed.errors import GmedError, GmedWarning

EXIT_OK, EXIT_RUN_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED = 0, 1, 2, 130, 141
"""Exit codes; the last is that of a program ended by SIGPIPE."""


class OutputError(Exception):
    """Standard output or standard error cannot be written."""

    def __init__(self, name: str, reason: OSError) -> None:
        super().__init__(f"{name} cannot be written ({reason.strerror})")
        self.is_closed = reason.errno == errno.EPIPE


class CheckedOutput:
    """A stream that raises :class:`OutputError`, which is neither mistaken for a file error nor swallowed."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream, self.name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text to the stream."""
        with self._checked():
            return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines to the stream."""
        with self._checked():
            self.stream.writelines(lines)

    def flush(self) -> None:
        """Flush the stream."""
        with self._checked():
            self.stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(self.name, error) from error

    def silence(self) -> None:
        """Discard the remaining output, so that the interpreter does not fail on it at exit."""
        with suppress(OSError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.stream.fileno())
            os.close(devnull)


def run_program(program: Callable[[], object]) -> None:
    """Run the command line and exit as documented.

    A :class:`~gmed.errors.GmedError` becomes one line and exit code 2. If the reader closes the pipe, the exit code is
    141, as for other programs; any other output that cannot be written is an error.
    """
    original = sys.stdout, sys.stderr
    streams = [
        None if stream is None else CheckedOutput(stream, name)
        for stream, name in zip(original, ("standard output", "standard error"), strict=True)
    ]
    sys.stdout, sys.stderr = streams
    try:
        with _one_line_warnings():
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
        sys.stdout, sys.stderr = original


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
def _one_line_warnings() -> Iterator[None]:
    """Print each distinct :class:`~gmed.errors.GmedWarning` of the block once, in one line on standard error."""
    with warnings.catch_warnings():
        default, printed = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if not issubclass(category, GmedWarning):
                default(message, category, *args, **kwargs)
            elif str(message) not in printed:
                printed.add(str(message))
                print(f"gmed: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield
