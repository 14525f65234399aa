"""Python of one's own: where it was read, what it said then, and how another process comes to have it too.

A result depends on the code that computed it. Code of this package has versions; a file of somebody's own is known by
the digest of its text.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from gmed.errors import UsageError
from gmed.io.files import check_regular
from gmed.io.records import AnyText

GROUP = "gmed.extensions"
"""The group of entry points by which an installed package names its modules that extend this one."""

SCRIPT = "__main__"

_known: dict[str, tuple[object, Source]] = {}  # by module, with how it was imported


@dataclass(frozen=True)
class Source:
    """A module of somebody's own, as it was read.

    Attributes
    ----------
    module
        The name of the module.
    file
        Where it was read.
    text
        What it said.
    folder
        Where the module can be imported from by its name, if it was imported; one that was read as a file has none.
    """

    module: str
    file: AnyText
    text: str
    folder: AnyText | None = None

    @property
    def name(self) -> str:
        """The name of the file, without its folder."""
        return Path(self.file).name

    @property
    def digest(self) -> str:
        return digest(self.text)

    @property
    def portable(self) -> bool:
        """Whether another process can have it: not the script that is running, which nobody may import."""
        return self.module != SCRIPT


def digest(text: str) -> str:
    """What is kept of a text to know it again.

    >>> digest("x = 1")
    '8ff436def145'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_source(path: str | Path) -> Source:
    """What a Python file says now."""
    file = Path(path)
    if file.suffix != ".py":
        raise UsageError(f"{path}: not the name of a Python file, which ends in .py")
    try:
        check_regular(file)
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    return Source(f"gmed_file_{file.stem}_{digest(text)}", str(file.resolve()), text)


def read_module(name: str) -> ModuleType:
    """An installed module."""
    with _explained(f"the module {name}"):
        return import_module(name)


def have(source: Source) -> ModuleType:
    """The module of a source, run from its text or imported; one that is here is not run again."""
    if source.folder is None:
        return sys.modules.get(source.module) or run(source)
    if source.module not in sys.modules and source.folder not in sys.path:
        sys.path.append(source.folder)
    module = read_module(source.module)
    found = source_of(module)
    if found.digest != source.digest:
        raise UsageError(
            f"{found.file} is not what {source.file} was when this began. "
            "Use the same one everywhere, and run again to use the new one."
        )
    return module


def run(source: Source) -> ModuleType:
    """The module of a source that was read from a file, run anew."""
    module = ModuleType(source.module)
    module.__file__ = source.file
    sys.modules[source.module] = module
    _known[source.module] = None, source
    try:
        with _explained(source.file):
            exec(compile(source.text, source.file, "exec"), vars(module))
    except BaseException:
        del sys.modules[source.module]
        raise
    return module


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Inside, code of somebody's own runs: it prints to standard error, and what it raises is said with its line."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        if isinstance(error, UsageError):
            raise
        line = _line(error, what)
        where = f" in line {line}" if line else ""
        raise UsageError(f"{what} does not import: {type(error).__name__}{where}: {error}") from error


def _line(error: BaseException, file: str) -> int | None:
    """The line of a file where an error arose."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return line


def source_of(thing: Any) -> Source:
    """The source of a module, or of the module that a class or function was defined in."""
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    imported, source = _known.get(module.__name__, (None, None))
    if source is None or imported is not module.__spec__:  # importing anew gives a module another specification
        source = _read(module, getattr(thing, "__qualname__", module.__name__))
        _known[module.__name__] = module.__spec__, source
    return source


def _read(module: ModuleType, wanted: str) -> Source:
    try:
        file = Path(module.__file__ or "")
        text = file.read_text(encoding="utf-8")
    except (AttributeError, OSError, ValueError):
        raise UsageError(
            f"the source of {wanted} cannot be read, so its results could not be told from those of another; "
            "write it to a file of its own"
        ) from None
    levels = module.__name__.count(".") + (file.name == "__init__.py")
    return Source(module.__name__, str(file), text, str(file.resolve().parents[levels]))


def is_ours(part: type) -> bool:
    """Whether a class is defined in this package."""
    return part.__module__.partition(".")[0] == "gmed"


def sources_of(parts: Iterable[type]) -> tuple[Source, ...]:
    """The sources of classes and of all they inherit from, but for what is this package's, torch's or Python's."""
    found: dict[str, Source] = {}
    for part in parts:
        for ancestor in part.__mro__:
            if ancestor.__module__.partition(".")[0] not in {"gmed", "torch", *sys.stdlib_module_names}:
                source = source_of(ancestor)
                found.setdefault(source.module, source)
    return tuple(found.values())


@cache
def read_installed() -> None:
    """Import whatever installed packages name as extensions, once. One that does not import is only warned of."""
    for entry in entry_points(group=GROUP):
        try:
            read_module(entry.module)
        except UsageError as error:
            package = entry.dist.name if entry.dist else "an installed package"
            warnings.warn(f"{package} extends gmed, but {error}", stacklevel=2)
