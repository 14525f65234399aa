"""User code: Python modules of the user, identified by the digest of their text, and loaded in other processes too.

A result depends on the code behind it. The code of this package has versions; a user's file is identified by the digest
of its text.
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

ENTRY_POINT_GROUP = "gmed.extensions"
"""The group of entry points in which an installed package lists the modules that extend this one."""

MAIN = "__main__"

_known: dict[str, tuple[object, UserModule]] = {}  # by module, with how it was imported


@dataclass(frozen=True)
class UserModule:
    """A user's module, as it was when it was read.

    Attributes
    ----------
    module
        The name of the module.
    file
        The path of its file.
    text
        The text of the file.
    folder
        The folder it can be imported from by its name, if it was imported; ``None`` if it was read as a file.
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
        """Whether another process can load it: not the running script, which cannot be imported."""
        return self.module != MAIN


def digest(text: str) -> str:
    """Return a short digest that identifies a text.

    >>> digest("x = 1")
    '8ff436def145'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_user_module(path: str | Path) -> UserModule:
    """Read a Python file."""
    file = Path(path)
    if file.suffix != ".py":
        raise UsageError(f"{path}: not a Python file, whose name ends in .py")
    try:
        check_regular(file)
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    return UserModule(f"gmed_file_{file.stem}_{digest(text)}", str(file.resolve()), text)


def read_module(name: str) -> ModuleType:
    """Import an installed module."""
    with _wrap_errors(f"the module {name}"):
        return import_module(name)


def ensure_loaded(source: UserModule) -> ModuleType:
    """Return a user's module; it is executed or imported unless this process has already loaded it."""
    if source.folder is None:
        return sys.modules.get(source.module) or exec_module(source)
    if source.module not in sys.modules and source.folder not in sys.path:
        sys.path.append(source.folder)
    module = read_module(source.module)
    found = user_module_of(module)
    if found.digest != source.digest:
        raise UsageError(
            f"{found.file} differs from {source.file} as it was when the runs began. "
            "Use one version everywhere; to use the new one, run again."
        )
    return module


def exec_module(source: UserModule) -> ModuleType:
    """Execute a user's module from its text, and return it."""
    module = ModuleType(source.module)
    module.__file__ = source.file
    sys.modules[source.module] = module
    _known[source.module] = None, source
    try:
        with _wrap_errors(source.file):
            exec(compile(source.text, source.file, "exec"), vars(module))
    except BaseException:
        del sys.modules[source.module]
        raise
    return module


@contextmanager
def _wrap_errors(what: str) -> Iterator[None]:
    """Run user code in the block: its output is sent to standard error, and its errors name the file and line."""
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
    """Return the line of a file in which an error was raised."""
    if isinstance(error, SyntaxError):
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    return line


def user_module_of(thing: Any) -> UserModule:
    """Return a module, or the module that a class or function was defined in, with its text."""
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    imported, source = _known.get(module.__name__, (None, None))
    if source is None or imported is not module.__spec__:  # importing a module again gives it another specification
        source = _read(module, getattr(thing, "__qualname__", module.__name__))
        _known[module.__name__] = module.__spec__, source
    return source


def _read(module: ModuleType, wanted: str) -> UserModule:
    try:
        file = Path(module.__file__ or "")
        text = file.read_text(encoding="utf-8")
    except (AttributeError, OSError, ValueError):
        raise UsageError(
            f"the source of {wanted} cannot be read, but results are identified by it; "
            "move the definition to a separate file"
        ) from None
    levels = module.__name__.count(".") + (file.name == "__init__.py")
    return UserModule(module.__name__, str(file), text, str(file.resolve().parents[levels]))


def is_builtin(part: type) -> bool:
    """Return whether a class is defined in this package."""
    return part.__module__.partition(".")[0] == "gmed"


def user_modules_of(parts: Iterable[type]) -> tuple[UserModule, ...]:
    """Return the modules of classes and all their bases, except those of this package, torch and Python."""
    found: dict[str, UserModule] = {}
    for part in parts:
        for ancestor in part.__mro__:
            if ancestor.__module__.partition(".")[0] not in {"gmed", "torch", *sys.stdlib_module_names}:
                source = user_module_of(ancestor)
                found.setdefault(source.module, source)
    return tuple(found.values())


@cache
def load_entry_points() -> None:
    """Import the extensions of installed packages, once. One that cannot be imported only causes a warning."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            read_module(entry.module)
        except UsageError as error:
            package = entry.dist.name if entry.dist else "an installed package"
            warnings.warn(f"{package} extends gmed, but {error}", stacklevel=2)
