"""Extension files: Python files that register custom edits, memories, retrievals and learners under a name.

The name then works wherever methods are named: on the command line, in experiment files, in the store, in tables.
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
    """Load a file that registers custom components, and return the names it registers.

    Loading it again has no effect unless its text has changed; the new components then replace the old ones.
    """
    with _all_or_nothing():
        source = read_user_module(path)
        if not names_from(source):
            exec_module(source)
        if not names_from(source):
            raise UsageError(f"{path}: registers nothing; decorate a class with @gmed.register('my-edit')")
        registry.unregister(known for known in REGISTERED.values() if known.file == source.file and known != source)
    return names_from(source)


@lru_cache(maxsize=1)
def ensure_all_loaded(sources: tuple[UserModule, ...]) -> None:
    """Load user modules into this process; their components replace others with the same names.

    For worker processes, which load different files for different jobs.
    """
    from_files = {name: source for name, source in REGISTERED.items() if source.folder is None}
    with _all_or_nothing():
        for name in from_files:
            del REGISTERED[name]
        REPLACEABLE.update(from_files)
        try:
            for source in sources:
                if source.folder is None:
                    exec_module(source)
                else:
                    ensure_loaded(source)
        finally:
            REPLACEABLE.clear()
        for name, source in from_files.items():
            REGISTERED.setdefault(name, source)
        registry.changed()


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """Restore the registry if the block fails, so that a file that fails registers no names."""
    before = registry.snapshot()
    try:
        yield
    except BaseException:
        registry.restore(before)
        raise
