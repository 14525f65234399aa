"""The parts that methods are made of, each under its name: learners, memories, retrievals and edits.

This package's own parts join by the same decorator as everybody's, :func:`register`. What identifies a part in run keys
and saved files is declared with it, so a class or a parameter can be renamed and every stored result is still found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, isabstract, signature
from typing import Any, TypeVar, Unpack, get_args, get_origin, get_type_hints

from gmed.errors import UsageError
from gmed.io.user_code import UserModule, is_builtin, user_module_of

Part = TypeVar("Part", bound=type)
Defaults = Mapping[str, Mapping[str, Any]]
"""Values of parameters on each benchmark, by its name or by that of its family."""


@dataclass(frozen=True)
class Entry:
    """What is registered under a name.

    Attributes
    ----------
    name, part, summary
        The name in the grammar of methods, the class, and what it is in a few words.
    memory
        Of a learner: the kind of memory it is given, if any.
    order
        Of a learner: how the stream is reordered first, if it is.
    model
        Of a learner: what is made of the benchmark's network, if that is not used itself.
    defaults
        What takes the place of the constructor's own defaults.
    on_benchmarks
        Values of parameters on each benchmark, where they differ.
    edits_on_benchmarks
        Of a learner: the same for an edit on top of it, by the name of the edit.
    """

    name: str
    part: type
    summary: str
    memory: type | None = None
    order: Callable[..., Any] | None = None
    model: Callable[..., Any] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    on_benchmarks: Defaults = field(default_factory=dict)
    edits_on_benchmarks: Mapping[str, Defaults] = field(default_factory=dict)

    @property
    def editable(self) -> bool:
        return "editing" in constructor_parameters(self.part)

    @property
    def retrieves(self) -> bool:
        """Whether what it replays can be chosen otherwise."""
        return "retrieval" in constructor_parameters(self.part)

    def parameters(self) -> dict[str, Parameter]:
        """Return what can be set: a part's parameters, a learner's memory and its size, the passes of its order."""
        found = hyperparameters(self.part)
        if self.memory is not None:
            found["memory"] = Parameter("memory", Parameter.KEYWORD_ONLY, annotation=int)
            found |= hyperparameters(self.memory)
        for maker in (self.order, self.model):
            found |= {} if maker is None else hyperparameters(maker)
        return {k: p.replace(default=self.defaults.get(k, p.default)) for k, p in found.items()}

    def parameter_ids(self) -> dict[str, tuple[str, ...]]:
        """Return the ids of parameters that have others than their names."""
        found: dict[str, tuple[str, ...]] = {}
        for maker in (self.part, self.memory, self.order, self.model):
            found |= {} if maker is None else parameter_ids(maker)
        return found

    def defaults_on(self, benchmark: str, family: str) -> dict[str, Any]:
        """Return the values of parameters on a benchmark, those of registered base classes first."""
        found: dict[str, Any] = {}
        for kind in reversed(self.part.__mro__):
            entry = self if kind is self.part else _by_class.get(kind)
            if entry is not None:
                found |= defaults_for(entry.on_benchmarks, benchmark, family)
        return found


METHODS: dict[str, Entry] = {}
"""Learners by the name of the method, which comes first in the grammar."""

EDITS: dict[str, Entry] = {}
MEMORIES: dict[str, Entry] = {}
"""Memories that can take the place of a method's."""

RETRIEVALS: dict[str, Entry] = {}

TABLES: dict[str, dict[str, Entry]] = {"method": METHODS, "memory": MEMORIES, "retrieval": RETRIEVALS, "edit": EDITS}
"""What is registered, by the kind of part: the ``part_kind`` of its class."""

REGISTERED: dict[str, UserModule] = {}
"""The names of parts that are not this package's, and where each is defined."""

REPLACEABLE: set[str] = set()
"""Names that may be given again, while the files of others are read."""

_by_class: dict[type, Entry] = {}
_complete = False  # whether this package's own parts are registered
_generation = 0

_ALWAYS_GIVEN = {"method": {"model", "seed"}, "memory": {"capacity"}}


def register(
    name: str,
    *,
    memory: type | None = None,
    summary: str | None = None,
    order: Callable[..., Any] | None = None,
    model: Callable[..., Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    on_benchmarks: Defaults | None = None,
    edits_on_benchmarks: Mapping[str, Defaults] | None = None,
) -> Callable[[Part], Part]:
    """Give a class a name in the grammar of methods.

    What its constructor takes by keyword is what users can set: ``er+my-edit(strength=2.0)``. A result is stored with
    the digest of the file the class is defined in, so that a changed file is never taken for the old one; raise the
    class's ``version`` when something changes that the file takes from elsewhere.

    Parameters
    ----------
    name
        Small letters, digits and hyphens. It must be free.
    memory
        Of a learner that remembers: which kind of memory it is given.
    summary
        What it is, in a few words; by default the first line of the class's docstring.
    order
        Of a learner: reorders the stream first, ``order(stream, seed, ...)``. Its keywords are the method's parameters.
    model
        Of a learner: makes another network of the benchmark's, ``model(network, ...)``. Likewise.
    defaults
        What takes the place of the constructor's own defaults.
    on_benchmarks
        Defaults by benchmark: ``{"split-mnist": {"lr": 0.1}}``. A family of benchmarks is named too: ``mnist``,
        ``images``, or ``own`` for data of one's own. Subclasses inherit them.
    edits_on_benchmarks
        Of a learner: defaults of an edit on top of it, ``{"gmed": {"split-mnist": {"alpha": 1.0}}}``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import gmed
    >>> @gmed.register("fading", on_benchmarks={"rotated-mnist": {"share": 0.05}})
    ... @dataclass(frozen=True)
    ... class Fading(gmed.editing.Edit):
    ...     '''Stored examples fade.'''
    ...     share: float = 0.01
    ...     def edit(self, x_m, y_m, edit_count, context):
    ...         return x_m * (1 - self.share)
    >>> gmed.engine.resolve(gmed.engine.get_benchmark("split-mnist"), "er + fading(share=0.5)").name
    'er+fading(share=0.5)'
    >>> gmed.engine.resolve(gmed.engine.get_benchmark("rotated-mnist"), "er+fading").edit.parameters["share"]
    0.05
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r} cannot be the name of a part: small letters, digits and hyphens, such as my-edit")

    def registered(part: Part) -> Part:
        kind = _kind(name, part)
        _check_constructor(name, part, _ALWAYS_GIVEN.get(kind, set()))
        if kind == "method":
            _check_memory(name, part, memory)
        source = None if is_builtin(part) and not _complete else user_module_of(part)
        _check_name_available(name, part, source)
        for table in TABLES.values():  # it may have been of another kind before its file changed
            table.pop(name, None)
        entry = Entry(
            name,
            part,
            summary or (part.__doc__ or part.__name__).strip().split("\n")[0].rstrip("."),
            memory,
            order,
            model,
            defaults or {},
            on_benchmarks or {},
            edits_on_benchmarks or {},
        )
        TABLES[kind][name] = entry
        _by_class.setdefault(part, entry)
        if source is not None:
            REGISTERED[name] = source
        changed()
        return part

    return registered


def complete() -> None:
    """Say that this package's own parts are registered: whatever follows is somebody else's."""
    global _complete
    _complete = True


def unregister(sources: Iterable[UserModule]) -> None:
    """Remove what these sources have registered."""
    for source in list(sources):
        for name in names_from(source):
            for table in _all_tables():
                table.pop(name, None)
    changed()


def names_from(source: UserModule) -> tuple[str, ...]:
    """Return the names that a source has registered."""
    return tuple(name for name, known in REGISTERED.items() if known == source)


def _all_tables() -> tuple[dict[str, Any], ...]:
    return REGISTERED, *TABLES.values()


def snapshot() -> list[dict[str, Any]]:
    """Return what is registered, for :func:`restore`."""
    return [dict(table) for table in _all_tables()]


def restore(before: list[dict[str, Any]]) -> None:
    """Have registered what was then."""
    for table, content in zip(_all_tables(), before, strict=True):
        table.clear()
        table.update(content)
    changed()


def changed() -> None:
    """Note that names mean something else now."""
    global _generation
    _generation += 1


def generation() -> int:
    """Return a number that changes whenever names are registered or removed, for caches of what names mean."""
    return _generation


# ---------------------------------------------------------------- identity


def part_id(part: type) -> str:
    """Return what identifies a class in run keys and saved files: its own ``id``, else its name.

    >>> from gmed.learners import ER
    >>> class Renamed(ER):
    ...     id = "MyER"
    >>> class Derived(Renamed):
    ...     '''It inherits much, and no identity.'''
    >>> part_id(Renamed), part_id(Derived)
    ('MyER', 'Derived')
    """
    return str(vars(part).get("id", part.__name__))


def parameter_ids(part: Callable[..., Any]) -> dict[str, tuple[str, ...]]:
    """Return the ids of a part's parameters that have others than their names.

    A class declares them, ``parameter_ids = {"subsample": "candidates"}``; a function has them as an attribute. The id
    stands in run keys; it is also accepted where methods are written. Where a parameter was renamed twice, the later
    ones of several ids are only accepted.
    """
    found: dict[str, tuple[str, ...]] = {}
    for kind in reversed(getattr(part, "__mro__", (part,))):
        for name, ids in vars(kind).get("parameter_ids", {}).items():
            found[name] = (ids,) if isinstance(ids, str) else tuple(ids)
    return found


def defaults_for(values: Defaults, benchmark: str, family: str) -> dict[str, Any]:
    """Return what is said of a benchmark's family, and over it what is said of the benchmark."""
    return {**values.get(family, {}), **values.get(benchmark, {})}


# ---------------------------------------------------------------- constructors


def hyperparameters(part: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the arguments of a part that are settings, not other parts; of a function not what it is made of."""
    parts = {"model", "memory", "capacity", "editing", "retrieval", "criterion", "optimizer", "seed"}
    found = constructor_parameters(part)
    given = parts if isinstance(part, type) else {*parts, next(iter(found), "")}
    return {k: p for k, p in found.items() if k not in given}


@lru_cache(maxsize=256)
def constructor_parameters(part: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return what a part takes; of a class whose constructor passes the rest on, what its base takes too.

    ``**replay`` passes on all of it, ``**replay: Unpack[SomeTypedDict]`` what that names.

    >>> from gmed.learners import ER
    >>> list(constructor_parameters(ER))[:3]
    ['model', 'lr', 'memory']
    """
    own = dict(signature(part, eval_str=True).parameters)
    rest = next((name for name, p in own.items() if p.kind is Parameter.VAR_KEYWORD), None)
    lineage = [kind for kind in getattr(part, "__mro__", ())[:-1] if "__init__" in vars(kind)]
    if rest is None or len(lineage) < 2:
        return own
    hint = own.pop(rest).annotation
    passed = get_type_hints(get_args(hint)[0]).keys() | {"self", "model"} if get_origin(hint) is Unpack else None
    base = constructor_parameters(lineage[1])
    return {**{k: p for k, p in base.items() if passed is None or k in passed}, **own}


# ---------------------------------------------------------------- checks


def _kind(name: str, part: Any) -> str:
    kind = getattr(part, "part_kind", None) if isinstance(part, type) else None
    if kind not in TABLES:
        raise UsageError(
            f"{name}: {getattr(part, '__name__', part)!r} is none of these: a class derived from gmed.editing.Edit, "
            "gmed.memory.Memory, gmed.retrieval.Retrieval or gmed.learners.Learner"
        )
    if isabstract(part):
        raise UsageError(f"{name}: {part.__name__} has no method {', '.join(sorted(part.__abstractmethods__))}")
    return str(kind)


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


def _check_memory(name: str, learner: type, memory: type | None) -> None:
    parameter = constructor_parameters(learner).get("memory")
    if parameter is not None and parameter.default is Parameter.empty and memory is None:
        raise UsageError(f"{name}: {learner.__name__} takes a memory; say which: register({name!r}, memory=Reservoir)")
    if parameter is None and memory is not None:
        raise UsageError(f"{name}: {learner.__name__} takes no memory, so none can be given to it")


def _check_name_available(name: str, part: type, source: UserModule | None) -> None:
    known = REGISTERED.get(name)
    if known is not None and source is not None:
        if known.file != source.file and known.digest != source.digest:
            raise UsageError(f"the name {name} is taken: by {known.file}; choose another")
        holder = next(table[name] for table in TABLES.values() if name in table).part
        if known == source and holder.__qualname__ != part.__qualname__:
            raise UsageError(f"the name {name} is taken: by {holder.__qualname__} in the same file; choose another")
    elif name not in REPLACEABLE and any(name in table for table in TABLES.values()):
        raise UsageError(f"the name {name} is taken: by this package, see gmed list; choose another")
