"""Methods of one's own: an edit, a memory, a retrieval or a learner in one file, and a name for it.

The name is known at once wherever methods are named: at the command line, in experiment files, in the store, in tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import Parameter, isabstract
from pathlib import Path
from typing import Any, TypeVar

from gmed.editing import Edit
from gmed.engine.methods import EDITS, MEMORIES, METHODS, RETRIEVALS, Recipe, constructor_parameters
from gmed.engine.sources import Source, file_source, have, run, source_of
from gmed.errors import UsageError
from gmed.learners import Learner
from gmed.memory import Memory
from gmed.retrieval import Retrieval

Part = TypeVar("Part", bound=type[Edit | Memory | Retrieval | Learner])

REGISTERED: dict[str, Source] = {}
"""The names of parts of somebody's own, and where each is defined."""

_replaceable: set[str] = set()  # names that may be given anew, while others' files are read

_TABLES: tuple[dict[str, Any], ...] = (METHODS, EDITS, MEMORIES, RETRIEVALS)

_KINDS: dict[type, tuple[dict[str, Any], set[str]]] = {  # where each is kept, and what it is always given
    Edit: (EDITS, set()),
    Memory: (MEMORIES, {"capacity"}),
    Retrieval: (RETRIEVALS, set()),
    Learner: (METHODS, {"model", "seed"}),
}


def register(name: str, *, memory: type[Memory] | None = None) -> Callable[[Part], Part]:
    """Give a class of one's own a name in the grammar of methods.

    What its constructor takes by keyword is what users can set: ``er+my-edit(strength=2.0)``. A result is stored with
    the digest of the file the class is defined in, so that a changed file is never taken for the old one; raise the
    class's ``version`` when something changes that the file takes from elsewhere.

    Parameters
    ----------
    name
        Small letters, digits and hyphens. It must be free.
    memory
        Of a learner that remembers: which kind of memory it is given.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import gmed
    >>> @gmed.register("fading")
    ... @dataclass(frozen=True)
    ... class Fading(gmed.editing.Edit):
    ...     '''Stored examples fade.'''
    ...     share: float = 0.01
    ...     def edit(self, x_m, y_m, age, moment):
    ...         return x_m * (1 - self.share)
    >>> gmed.engine.resolve(gmed.engine.get_benchmark("split-mnist"), "er + fading(share=0.5)").name
    'er+fading(share=0.5)'
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} cannot be the name of a part: small letters, digits and hyphens, such as my-edit")

    def named(part: Part) -> Part:
        kind = _kind(name, part)
        table, given = _KINDS[kind]
        _check_constructor(name, part, given)
        source = source_of(part)
        _check_free(name, part, source)
        for other in _TABLES:  # it may have been of another kind before its file changed
            other.pop(name, None)
        table[name] = _recipe(name, part, memory) if issubclass(part, Learner) else part
        REGISTERED[name] = source
        return part

    return named


def load_extension(path: str | Path) -> tuple[str, ...]:
    """Load a file that registers parts of one's own; the names it registers.

    Loaded again it is as it was, unless its text has changed: then the new parts take the place of the old.
    """
    with _all_or_nothing():
        source = file_source(path)
        if not _names(source):
            run(source)
        if not _names(source):
            raise UsageError(f"{path}: registers nothing; put @gmed.register('my-edit') above the class it is about")
        _unregister(known for known in REGISTERED.values() if known.file == source.file and known != source)
    return _names(source)


@lru_cache(maxsize=1)
def have_all(sources: tuple[Source, ...]) -> None:
    """Have these parts of somebody's own in this process, whoever had their names before.

    For processes that compute for others, now with one file and now with another.
    """
    names = {name: known for name, known in REGISTERED.items() if known.folder is None}
    with _all_or_nothing():
        for name in names:
            del REGISTERED[name]
        _replaceable.update(names)
        try:
            for source in sources:
                if source.folder is None:
                    run(source)
                else:
                    have(source)
        finally:
            _replaceable.clear()
        for name, known in names.items():
            REGISTERED.setdefault(name, known)


def _names(source: Source) -> tuple[str, ...]:
    return tuple(name for name, known in REGISTERED.items() if known == source)


def _unregister(sources: Iterable[Source]) -> None:
    for source in list(sources):
        for name in _names(source):
            for table in (REGISTERED, *_TABLES):
                table.pop(name, None)


@contextmanager
def _all_or_nothing() -> Iterator[None]:
    """A file that fails leaves no name behind."""
    before = [dict(table) for table in (REGISTERED, *_TABLES)]
    try:
        yield
    except BaseException:
        for table, content in zip((REGISTERED, *_TABLES), before, strict=True):
            table.clear()
            table.update(content)
        raise


def _kind(name: str, part: Any) -> type:
    kinds = [kind for kind in _KINDS if isinstance(part, type) and issubclass(part, kind)]
    if not kinds:
        raise UsageError(
            f"{name}: {getattr(part, '__name__', part)!r} is none of these: a class derived from gmed.editing.Edit, "
            "gmed.memory.Memory, gmed.retrieval.Retrieval or gmed.learners.Learner"
        )
    if isabstract(part):
        raise UsageError(f"{name}: {part.__name__} has no method {', '.join(sorted(part.__abstractmethods__))}")
    return kinds[0]


def _check_constructor(name: str, part: type, given: set[str]) -> None:
    try:
        parameters = constructor_parameters(part)
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{name}: the constructor of {part.__name__} cannot be understood: {error}") from error
    for parameter in parameters.values():
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise UsageError(f"{name}: {part.__name__} takes {parameter}; what can be set must be taken by its name")
    if missing := sorted(given - parameters.keys()):
        raise UsageError(f"{name}: the constructor of {part.__name__} must take {' and '.join(missing)}")


def _check_free(name: str, part: type, source: Source) -> None:
    known = REGISTERED.get(name)
    if known is not None:
        if known.file != source.file and known.digest != source.digest:
            raise UsageError(f"the name {name} is taken: by {known.file}; choose another")
        holder = next(table[name] for table in _TABLES if name in table)
        holder = holder.learner if isinstance(holder, Recipe) else holder
        if known == source and holder.__qualname__ != part.__qualname__:
            raise UsageError(f"the name {name} is taken: by {holder.__qualname__} in the same file; choose another")
    elif name not in _replaceable and any(name in table for table in _TABLES):
        raise UsageError(f"the name {name} is taken: by this package, see gmed list; choose another")


def _recipe(name: str, learner: type[Learner], memory: type[Memory] | None) -> Recipe:
    parameter = constructor_parameters(learner).get("memory")
    if parameter is not None and parameter.default is Parameter.empty and memory is None:
        raise UsageError(f"{name}: {learner.__name__} takes a memory; say which: register({name!r}, memory=Reservoir)")
    if parameter is None and memory is not None:
        raise UsageError(f"{name}: {learner.__name__} takes no memory, so none can be given to it")
    summary = (learner.__doc__ or learner.__name__).strip().split("\n")[0].rstrip(".")
    return Recipe(summary, learner, memory)
