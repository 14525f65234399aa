"""The registry of named components of methods: learners, memories, retrievals and edits.

Built-in and custom components are registered by the same decorator, :func:`register`. What identifies a component in
run keys and saved files is declared with it, so that a class or a parameter can be renamed without losing stored
results.
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
"""Values of parameters on each benchmark, by the name of the benchmark or of its family."""


@dataclass(frozen=True)
class Entry:
    """A registered component.

    Attributes
    ----------
    name, part, summary
        The name in the grammar of methods, the class, and a short description.
    memory
        For a learner: the class of its memory, if it has one.
    order
        For a learner: a function that reorders the stream first, if any.
    model
        For a learner: a function that converts the benchmark's network to another one, if any.
    defaults
        Values that replace the constructor's defaults.
    on_benchmarks
        Values of parameters on each benchmark, where they differ.
    edits_on_benchmarks
        For a learner: the same for an edit on top of it, by the name of the edit.
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
        """Whether it accepts a custom retrieval."""
        return "retrieval" in constructor_parameters(self.part)

    def parameters(self) -> dict[str, Parameter]:
        """Return what can be set: parameters of the class; of a learner also its memory, its size and its order."""
        parameters = hyperparameters(self.part)
        if self.memory is not None:
            parameters["memory"] = Parameter("memory", Parameter.KEYWORD_ONLY, annotation=int)
            parameters |= hyperparameters(self.memory)
        for function in (self.order, self.model):
            parameters |= {} if function is None else hyperparameters(function)
        return {k: p.replace(default=self.defaults.get(k, p.default)) for k, p in parameters.items()}

    def parameter_ids(self) -> dict[str, tuple[str, ...]]:
        """Return the ids of parameters whose ids differ from their names."""
        ids: dict[str, tuple[str, ...]] = {}
        for part in (self.part, self.memory, self.order, self.model):
            ids |= {} if part is None else parameter_ids(part)
        return ids

    def defaults_on(self, benchmark: str, family: str) -> dict[str, Any]:
        """Return the values of parameters on a benchmark, those of registered base classes first."""
        values: dict[str, Any] = {}
        for cls in reversed(self.part.__mro__):
            entry = self if cls is self.part else _by_class.get(cls)
            if entry is not None:
                values |= defaults_for(entry.on_benchmarks, benchmark, family)
        return values


METHODS: dict[str, Entry] = {}
"""Learners by the name of the method, which comes first in the grammar."""

EDITS: dict[str, Entry] = {}
"""Edits by name, which come last in the grammar."""

MEMORIES: dict[str, Entry] = {}
"""Memories that can replace a method's own."""

RETRIEVALS: dict[str, Entry] = {}
"""Retrievals that can take the place of a method's."""

TABLES: dict[str, dict[str, Entry]] = {"method": METHODS, "memory": MEMORIES, "retrieval": RETRIEVALS, "edit": EDITS}
"""The registered components by kind, the ``part_kind`` of their class."""

REGISTERED: dict[str, UserModule] = {}
"""The user module that defines each custom component, by name."""

REPLACEABLE: set[str] = set()
"""Names that may be registered again while other user modules are loaded."""

_by_class: dict[type, Entry] = {}
_complete = False  # whether the built-in components are registered
_generation = 0

_REQUIRED_PARAMETERS = {"method": {"model", "seed"}, "memory": {"capacity"}}


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

    Users can set the keyword arguments of its constructor: ``er+my-edit(strength=2.0)``. A result is stored with the
    digest of the file that defines the class, so that a changed file is never mistaken for the old one; increase the
    class's ``version`` when something changes that the file imports from elsewhere.

    Parameters
    ----------
    name
        Lowercase letters, digits and hyphens. It must not be taken.
    memory
        For a learner that stores examples: the class of its memory.
    summary
        A short description; by default the first line of the class's docstring.
    order
        For a learner: reorders the stream first, ``order(stream, seed, ...)``. Its keyword arguments become parameters
        of the method.
    model
        For a learner: converts the benchmark's network to another one, ``model(network, ...)``. Its keyword arguments
        become parameters of the method too.
    defaults
        Values that replace the constructor's defaults.
    on_benchmarks
        Defaults by benchmark: ``{"split-mnist": {"lr": 0.1}}``, or by family of benchmarks: ``mnist``, ``images``, or
        ``own`` for custom data. Subclasses inherit them.
    edits_on_benchmarks
        For a learner: defaults of an edit on top of it, ``{"gmed": {"split-mnist": {"alpha": 1.0}}}``.

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
        raise UsageError(f"{name!r} is not a valid name: use lowercase letters, digits and hyphens, as in my-edit")

    def decorate(part: Part) -> Part:
        kind = _kind(name, part)
        _check_constructor(name, part, _REQUIRED_PARAMETERS.get(kind, set()))
        if kind == "method":
            _check_memory(name, part, memory)
        source = None if is_builtin(part) and not _complete else user_module_of(part)
        _check_name_available(name, part, source)
        for table in TABLES.values():  # it may have had another kind before its file changed
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

    return decorate


def complete() -> None:
    """Declare that all built-in components are registered; later ones are custom."""
    global _complete
    _complete = True


def unregister(sources: Iterable[UserModule]) -> None:
    """Remove the components that these modules have registered."""
    for source in list(sources):
        for name in names_from(source):
            for table in _all_tables():
                table.pop(name, None)
    changed()


def names_from(source: UserModule) -> tuple[str, ...]:
    """Return the names that a module has registered."""
    return tuple(name for name, known in REGISTERED.items() if known == source)


def _all_tables() -> tuple[dict[str, Any], ...]:
    return REGISTERED, *TABLES.values()


def snapshot() -> list[dict[str, Any]]:
    """Return a copy of the registry, for :func:`restore`."""
    return [dict(table) for table in _all_tables()]


def restore(before: list[dict[str, Any]]) -> None:
    """Restore the registry from a copy."""
    for table, content in zip(_all_tables(), before, strict=True):
        table.clear()
        table.update(content)
    changed()


def changed() -> None:
    """Note that the registry has changed."""
    global _generation
    _generation += 1


def generation() -> int:
    """Return a number that changes whenever names are registered or removed, for caches that depend on them."""
    return _generation


# ---------------------------------------------------------------- identity


def part_id(part: type) -> str:
    """Return what identifies a class in run keys and saved files: its own ``id``, else its name.

    >>> from gmed.learners import ER
    >>> class Renamed(ER):
    ...     id = "MyER"
    >>> class Derived(Renamed):
    ...     '''It does not inherit the id.'''
    >>> part_id(Renamed), part_id(Derived)
    ('MyER', 'Derived')
    """
    return str(vars(part).get("id", part.__name__))


def parameter_ids(part: Callable[..., Any]) -> dict[str, tuple[str, ...]]:
    """Return the ids of a component's parameters whose ids differ from their names.

    A class declares them, ``parameter_ids = {"subsample": "candidates"}``; a function has them as an attribute. Run
    keys contain the id, and names of methods accept it too. For a parameter that was renamed twice there are several
    ids: run keys contain the first, and the others are only accepted.
    """
    parameters: dict[str, tuple[str, ...]] = {}
    for cls in reversed(getattr(part, "__mro__", (part,))):
        for name, ids in vars(cls).get("parameter_ids", {}).items():
            parameters[name] = (ids,) if isinstance(ids, str) else tuple(ids)
    return parameters


def defaults_for(values: Defaults, benchmark: str, family: str) -> dict[str, Any]:
    """Return the values for a benchmark's family, overridden by those for the benchmark itself."""
    return {**values.get(family, {}), **values.get(benchmark, {})}


# ---------------------------------------------------------------- constructors


def hyperparameters(part: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the parameters of a component that are settings, not other components; not the first of a function."""
    parts = {"model", "memory", "capacity", "editing", "retrieval", "criterion", "optimizer", "seed"}
    parameters = constructor_parameters(part)
    excluded = parts if isinstance(part, type) else {*parts, next(iter(parameters), "")}
    return {k: p for k, p in parameters.items() if k not in excluded}


@lru_cache(maxsize=256)
def constructor_parameters(part: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the parameters of a component, including those that its constructor passes on to its base class.

    ``**replay`` passes on all of them, ``**replay: Unpack[SomeTypedDict]`` those that the dictionary names.

    >>> from gmed.learners import ER
    >>> list(constructor_parameters(ER))[:3]
    ['model', 'lr', 'memory']
    """
    parameters = dict(signature(part, eval_str=True).parameters)
    rest = next((name for name, p in parameters.items() if p.kind is Parameter.VAR_KEYWORD), None)
    classes = [cls for cls in getattr(part, "__mro__", ())[:-1] if "__init__" in vars(cls)]
    if rest is None or len(classes) < 2:
        return parameters
    hint = parameters.pop(rest).annotation
    passed = get_type_hints(get_args(hint)[0]).keys() | {"self", "model"} if get_origin(hint) is Unpack else None
    base = constructor_parameters(classes[1])
    return {**{k: p for k, p in base.items() if passed is None or k in passed}, **parameters}


# ---------------------------------------------------------------- checks


def _kind(name: str, part: Any) -> str:
    kind = getattr(part, "part_kind", None) if isinstance(part, type) else None
    if kind not in TABLES:
        raise UsageError(
            f"{name}: {getattr(part, '__name__', part)!r} must be a class derived from gmed.editing.Edit, "
            "gmed.memory.Memory, gmed.retrieval.Retrieval or gmed.learners.Learner"
        )
    if isabstract(part):
        raise UsageError(f"{name}: {part.__name__} does not implement {', '.join(sorted(part.__abstractmethods__))}")
    return str(kind)


def _check_constructor(name: str, part: type, required: set[str]) -> None:
    try:
        parameters = constructor_parameters(part)
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise UsageError(f"{name}: cannot read the signature of {part.__name__}: {error}") from error
    for parameter in parameters.values():
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise UsageError(
                f"{name}: {part.__name__} takes {parameter}, which is not supported; list each parameter by name"
            )
    if missing := sorted(required - parameters.keys()):
        raise UsageError(f"{name}: the constructor of {part.__name__} must take {' and '.join(missing)}")


def _check_memory(name: str, learner: type, memory: type | None) -> None:
    parameter = constructor_parameters(learner).get("memory")
    if parameter is not None and parameter.default is Parameter.empty and memory is None:
        raise UsageError(
            f"{name}: {learner.__name__} takes a memory; specify its class: register({name!r}, memory=Reservoir)"
        )
    if parameter is None and memory is not None:
        raise UsageError(f"{name}: {learner.__name__} takes no memory; remove memory= from register")


def _check_name_available(name: str, part: type, source: UserModule | None) -> None:
    known = REGISTERED.get(name)
    if known is not None and source is not None:
        if known.file != source.file and known.digest != source.digest:
            raise UsageError(f"the name {name} is taken by {known.file}; choose another")
        holder = next(table[name] for table in TABLES.values() if name in table).part
        if known == source and holder.__qualname__ != part.__qualname__:
            raise UsageError(f"the name {name} is taken by {holder.__qualname__} in the same file; choose another")
    elif name not in REPLACEABLE and any(name in table for table in TABLES.values()):
        raise UsageError(f"the name {name} is taken by this package (see gmed list); choose another")
