"""Files that register parts of one's own: an edit, a memory, a retrieval or a learner, each with a name for it.

The name is known at once wherever methods are named: at the command line, in experiment files, in the store, in tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from gmed import registry
from gmed.errors import UsageError
from gmed.io.user_code import UserModule, ensure_loaded, exec_module, read_user_module
from gmed.registry import REGISTERED, REPLACEABLE, names_from


def load_extension(path: str | Path) -> tuple[str, ...]:
    """Load a file that registers parts of one's own; return the names it registers.

    Loaded again it is as it was, unless its text has changed: then the new parts take the place of the old.
    """
    with _all_or_nothing():
        source = read_user_module(path)
        if not names_from(source):
            exec_module(source)
        if not names_from(source):
            raise UsageError(f"{path}: registers nothing; put @gmed.register('my-edit') above the class it is about")
        registry.unregister(known for known in REGISTERED.values() if known.file == source.file and known != source)
    return names_from(source)


@lru_cache(maxsize=1)
def ensure_all_loaded(sources: tuple[UserModule, ...]) -> None:
    """Have these parts of somebody's own in this process, whoever had their names before.

    For processes that compute for others, now with one file and now with another.
    """
    names = {name: known for name, known in REGISTERED.items() if known.folder is None}
    with _all_or_nothing():
        for name in names:
            del REGISTERED[name]
        REPLACEABLE.update(names)
        try:
            for source in sources:
                if source.folder is None:
                    exec_module(source)
                else:
                    ensure_loaded(source)
        finally:
            REPLACEABLE.clear()
        for name, known in names.items():
            REGISTERED.setdefault(name, known)
        registry.changed()


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """A file that fails leaves no name behind."""
    before = registry.snapshot()
    try:
        yield
    except BaseException:
        registry.restore(before)
        raise
