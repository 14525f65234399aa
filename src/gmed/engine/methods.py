"""The methods, and the grammar that names them: a base, optionally an edit, each with parameters.

er      er+gmed      er+gmed(alpha=1.0,beta=0.01)      er(memory=200)+gmed(steps=3)

Custom memories and retrievals (:mod:`gmed.engine.extensions`) are named in the same way, and replace those of the base:
er+my-memory(option=1)+my-retrieval+gmed.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import Parameter
from typing import Any, Literal, get_args, get_origin

from torch import nn

from gmed import registry
from gmed.engine.benchmarks import Benchmark, get_benchmark
from gmed.engine.grammar import Component, format_value, parse_component
from gmed.errors import GmedError, GmedWarning, UsageError, check_float, check_int, unknown
from gmed.io.user_code import UserModule, load_entry_points, user_modules_of
from gmed.learners import Learner
from gmed.memory import Memory
from gmed.registry import EDITS, MEMORIES, METHODS, RETRIEVALS, TABLES, Entry, defaults_for, hyperparameters, part_id
from gmed.rng import seeded_torch
from gmed.streams import Stream
from gmed.streams.variants import MAX_PASSES

MAX_NAME_LENGTH = 10_000
"""The maximum length of a method's name."""

registry.complete()
_BUILTIN = frozenset((*METHODS, *EDITS))

_BOUNDS = {"memory": (0, 100_000_000), "passes": (1, MAX_PASSES)}
_DEFAULT_BOUNDS = (-1_000_000, 1_000_000)
"""Bounds of integers in a name, wide enough for every sensible value."""

_COMPONENT = re.compile(r"[^+(]+(?:\([^)]*\)\s*)?")


@dataclass(frozen=True)
class Method:
    """A method with the values of all parameters on one benchmark.

    Attributes
    ----------
    name
        The shortest form of its name, with only those parameters that differ from the benchmark's defaults.
    baseline_name
        The same method without its last component, usually the edit, against which its gain is measured; ``None`` for
        a base alone.
    memory, retrieval
        Custom ones that replace those of the base.
    """

    name: str
    baseline_name: str | None
    base: Component
    edit: Component | None
    memory: Component | None = None
    retrieval: Component | None = None

    @property
    def memory_size(self) -> int | None:
        """The number of examples it stores at most; ``None`` if it has no memory."""
        return self.base.parameters.get("memory")

    def make_stream(self, stream: Stream, seed: int) -> Stream:
        """Return the stream in the order in which this method sees it."""
        order = METHODS[self.base.name].order
        return stream if order is None else order(stream, seed, **_select_kwargs(order, self.base.parameters))

    def make_learner(self, model: nn.Module, seed: int) -> Learner:
        entry, settings = METHODS[self.base.name], self.base.parameters
        if entry.model is not None:
            with seeded_torch(seed, "weights"):
                model = entry.model(model, **_select_kwargs(entry.model, settings))
        parts: dict[str, Any] = _select_kwargs(entry.part, settings)
        if self.memory is not None:
            parts["memory"] = MEMORIES[self.memory.name].part(settings["memory"], **self.memory.parameters)
        elif entry.memory is not None:
            parts["memory"] = entry.memory(settings["memory"], **_select_kwargs(entry.memory, settings))
        if self.retrieval is not None:
            parts["retrieval"] = RETRIEVALS[self.retrieval.name].part(**self.retrieval.parameters)
        if self.edit is not None:
            parts["editing"] = EDITS[self.edit.name].part(**self.edit.parameters)
        learner: Learner = entry.part(model, seed=seed, **parts)
        return learner

    def config(self) -> dict[str, Any]:
        """Return its components and their parameters, by the ids used in run keys."""
        config = {}
        for kind, part in self._named_parts():
            ids = TABLES[kind][part.name].parameter_ids()
            values = {ids[name][0] if name in ids else name: value for name, value in part.parameters.items()}
            config["base" if kind == "method" else kind] = {"name": part.name, **values}
        return config

    def _named_parts(self) -> list[tuple[str, Component]]:
        parts = {"method": self.base, "memory": self.memory, "retrieval": self.retrieval, "edit": self.edit}
        return [(kind, part) for kind, part in parts.items() if part is not None]

    @property
    def graph_signature(self) -> str:
        """Its components and their parameters without the values of floats, which change the numbers that a step
        computes but not its operations: methods with the same signature can be trained together.

        >>> from gmed.engine.benchmarks import get_benchmark
        >>> mnist = get_benchmark("split-mnist")
        >>> signatures = {name: resolve(mnist, f"er+gmed({name})").graph_signature for name in
        ...               ("alpha=1.0", "beta=0.5", "steps=3")}
        >>> signatures["alpha=1.0"] == signatures["beta=0.5"], signatures["alpha=1.0"] == signatures["steps=3"]
        (True, False)
        """
        parts = {
            kind: {k: None if type(v) is float else v for k, v in part.items()} for kind, part in self.config().items()
        }
        return json.dumps(parts, sort_keys=True)

    def versions(self) -> dict[str, int | str]:
        """Return the version of every component of this method; for a user's file, its digest."""
        lineage = [ancestor for part in self._classes() for ancestor in part.__mro__]
        versions: dict[str, int | str] = {part_id(c): int(vars(c)["version"]) for c in lineage if "version" in vars(c)}
        for source in self.sources():
            versions[source.name] = "+".join(filter(None, (str(versions.get(source.name, "")), source.digest)))
        return versions

    def sources(self) -> tuple[UserModule, ...]:
        """Return the user's modules that compute this method."""
        return user_modules_of(self._classes())

    def _classes(self) -> list[type]:
        memory = METHODS[self.base.name].memory
        default = [] if self.memory is not None or memory is None else [memory]
        return [*(TABLES[kind][part.name].part for kind, part in self._named_parts()), *default]


def resolve(benchmark: Benchmark, text: str, memory: int | None = None) -> Method:
    """Return the method that ``text`` names, with this benchmark's defaults for parameters that it leaves out.

    It is constructed once, so an invalid value raises an error here, before anything runs. ``memory`` is the memory
    size of methods that have one and do not set it themselves.

    >>> from gmed.engine.benchmarks import get_benchmark
    >>> resolve(get_benchmark("split-mnist"), "er+gmed(alpha=5, beta=0.1)").name
    'er+gmed(beta=0.1)'
    >>> resolve(get_benchmark("split-mnist"), "er+gmed", memory=200).edit.parameters["alpha"]
    5.0
    """
    return _resolve(benchmark.name, text, memory, registry.generation())


class UnderstoodWarning(GmedWarning):
    """The name of a method was misspelled, but could be corrected."""


def understand(text: str) -> str:
    """Return the method that a user most likely means, with a warning; corrects case, and hyphens for plus signs.

    Registered names are never changed. Names in files are not interpreted.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     understand("ER+GMED"), understand("er-t-random-edit(stride=0.1)"), understand("er-t"), understand("er-x")
    ('er+gmed', 'er-t+random-edit(stride=0.1)', 'er-t', 'er-x')
    """
    try:
        parts = parse(text)
    except UsageError:
        return text  # the error is reported when the method is resolved
    names = [_registered_names(part.name) for part in parts]
    if [[part.name] for part in parts] == names or not all(names):
        return text
    components = [
        Component(name, part.parameters if name == known[-1] else {})
        for part, known in zip(parts, names, strict=True)
        for name in known
    ]
    understood = "+".join(map(str, components))
    warnings.warn(f"{text} is interpreted as {understood}", UnderstoodWarning, stacklevel=2)
    return understood


def _registered_names(name: str) -> list[str]:
    """Return the registered names that a name consists of, itself if it is one; none if it is not made of such."""
    if _kind(name) is not None:
        return [name]
    words = name.lower().replace("_", "-").split("-")
    for end in range(len(words), 0, -1):
        first = "-".join(words[:end])
        if _kind(first) is None:
            continue
        if end == len(words):
            return [first]
        if others := _registered_names("-".join(words[end:])):
            return [first, *others]
    return []


@lru_cache(maxsize=4096)
def _resolve(benchmark: str, text: str, memory: int | None, generation: int) -> Method:
    text = understand(text)
    method = read_method(get_benchmark(benchmark), text, memory)
    _dry_run(text, method)
    return method


def read_method(benchmark: Benchmark, text: str, memory: int | None = None) -> Method:
    """Return the method that ``text`` names without constructing any of its components.

    For names that come from a file. Time and memory do not depend on the values of the parameters.

    >>> from gmed.engine.benchmarks import get_benchmark
    >>> read_method(get_benchmark("split-mnist"), "iid-offline(passes=999999999)")
    Traceback (most recent call last):
    gmed.errors.UsageError: iid-offline's passes must be an integer of at most 1,000, not 999999999
    """
    return _read_method(benchmark.name, text, memory, registry.generation())


@lru_cache(maxsize=16384)
def _read_method(benchmark_name: str, text: str, memory: int | None, generation: int) -> Method:
    benchmark = get_benchmark(benchmark_name)
    first, *others = parse(text)
    if "," in first.name:
        raise UsageError(f"{text!r}: separate methods by spaces, not commas")
    kind_of_first = _kind(first.name)
    if kind_of_first is None:
        raise _unknown("method", first.name, METHODS)
    if kind_of_first != "method":
        raise UsageError(f"{first.name} is {_KIND_HELP[kind_of_first]}; write it after a method: er+{first.name}")
    named = _named(text, others)
    entry = METHODS[first.name]
    _check_accepted(text, entry, named)

    settings = dict(first.parameters)
    if memory is not None and entry.memory is not None:
        settings.setdefault("memory", memory)
    base_entry = replace(entry, memory=Memory) if "memory" in named else entry
    benchmark_names = benchmark.defaults_key, benchmark.family
    base, short_base = _fill_defaults(
        Component(first.name, settings), base_entry, {**benchmark.settings, **entry.defaults_on(*benchmark_names)}
    )
    resolved, short = {}, [str(short_base)]
    for kind, part in named.items():
        part_entry = TABLES[kind][part.name]
        defaults = part_entry.defaults_on(*benchmark_names)
        if kind == "edit":
            defaults = defaults_for(entry.edits_on_benchmarks.get(part.name, {}), *benchmark_names) or defaults
        else:
            defaults = {**benchmark.settings, **defaults}
        resolved[kind], shortest = _fill_defaults(part, part_entry, defaults)
        short.append(str(shortest))
    baseline_name = "+".join(short[:-1]) or None
    return Method(
        "+".join(short), baseline_name, base, resolved.get("edit"), resolved.get("memory"), resolved.get("retrieval")
    )


def entry_of(name: str) -> Entry:
    """Return the registered component of this name."""
    kind = _kind(name)
    if kind is None:
        raise _unknown("component", name, {**METHODS, **MEMORIES, **RETRIEVALS, **EDITS})
    return TABLES[kind][name]


def _kind(name: str) -> str | None:
    """Return the kind of a named component, or ``None``, loading installed extensions if the name is not known yet."""
    for _ in range(2):
        for kind in ("method", *_KINDS):
            if name in TABLES[kind]:
                return kind
        load_entry_points()
    return None


_KINDS = ("memory", "retrieval", "edit")
"""The kinds of components that can follow the base, in this order."""

_KIND_HELP = {
    "memory": "a memory, which replaces the memory of a method",
    "retrieval": "a retrieval, which chooses the examples that a method replays",
    "edit": "an edit, which changes the examples that a method replays",
}


def _named(text: str, others: Sequence[Component]) -> dict[str, Component]:
    """Return the components after the base by kind, in the order in which names are written."""
    by_kind: dict[str, Component] = {}
    for part in others:
        kind = _kind(part.name)
        if kind == "method":
            raise UsageError(f"{text!r}: {part.name} is a method and must come first: {part.name}+gmed")
        if kind is None:
            raise _unknown("edit, memory or retrieval", part.name, {**EDITS, **MEMORIES, **RETRIEVALS})
        if kind in by_kind:
            raise UsageError(f"{text!r}: a method takes only one {kind}, not both {by_kind[kind].name} and {part.name}")
        by_kind[kind] = part
    return {kind: by_kind[kind] for kind in _KINDS if kind in by_kind}


def _unknown(kind: str, name: str, valid: Iterable[str]) -> UsageError:
    message = str(unknown(kind, name, valid))
    message += "" if message.endswith("?") else "."
    return UsageError(f"{message} If it is your own, load its file with --extension FILE.py")


def _check_accepted(text: str, entry: Entry, named: Mapping[str, Component]) -> None:
    """Raise an error if a method does not accept these components."""
    first = text.partition("+")[0].partition("(")[0].strip()
    if "edit" in named and not entry.editable:
        accepting = ", ".join(name for name, other in METHODS.items() if other.editable)
        raise UsageError(f"{text!r}: {first} takes no edit; these do: {accepting}")
    if "memory" in named and entry.memory is None:
        raise UsageError(f"{text!r}: {first} stores no examples, so there is no memory to replace")
    if "retrieval" in named and not entry.retrieves:
        accepting = ", ".join(name for name, other in METHODS.items() if other.retrieves)
        raise UsageError(f"{text!r}: {first} takes no retrieval; these do: {accepting}")


def _dry_run(text: str, method: Method) -> None:
    try:
        with seeded_torch(0, "dry run"):  # preserves the caller's random state
            method.make_learner(nn.Linear(1, 1), seed=0)
    except GmedError:
        raise
    except Exception as error:  # raised by user code
        if not method.sources():
            raise
        raise UsageError(f"{text!r} cannot be constructed: {type(error).__name__}: {error}") from error


def parse(text: str) -> tuple[Component, ...]:
    """Split a method's name into its components as written.

    >>> [str(part) for part in parse("er + gmed(steps=3, clamp=[0,1])")]
    ['er', 'gmed(steps=3,clamp=[0,1])']
    """
    if len(text) > MAX_NAME_LENGTH:
        raise UsageError(
            f"a method's name has at most {MAX_NAME_LENGTH:,} characters, not {len(text):,}: {text[:50]!r}..."
        )
    parts, position = [], 0
    while match := _COMPONENT.match(text, position):
        parts.append(match[0])
        position = match.end() + 1
        if text[match.end() : position] != "+":
            break
    if position <= len(text):
        raise UsageError(f"cannot read the method {text!r}; write it like er, er+gmed or 'er+gmed(alpha=1.0)'")
    return tuple(parse_component(part.strip(), text) for part in parts)


def _select_kwargs(part: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    accepted = hyperparameters(part)
    return {k: v for k, v in settings.items() if k in accepted}


def _fill_defaults(typed: Component, entry: Entry, defaults: Mapping[str, Any]) -> tuple[Component, Component]:
    """Return a component with a value for every parameter (as typed, else the benchmark's default, else the
    constructor's), and the same with only the values that differ from the defaults.
    """
    allowed = entry.parameters()
    names = {other: name for name, ids in entry.parameter_ids().items() for other in ids}
    values: dict[str, Any] = {}
    for typed_name, value in typed.parameters.items():
        name = typed_name if typed_name in allowed else names.get(typed_name, typed_name)
        if name not in allowed:
            raise unknown(f"parameter of {typed.name}:", name, allowed)
        if name in values:
            raise UsageError(f"{typed.name}: {name} is given twice, also as {typed_name}")
        values[name] = value
    full, short = {}, {}
    for name, parameter in allowed.items():
        default = defaults.get(name, parameter.default)
        value = values.get(name, default)
        if value is Parameter.empty:
            raise UsageError(f"{typed.name} needs {name}=...: this benchmark has no published value for it")
        full[name] = _convert(typed.name, name, value, parameter.annotation)
        if type(full[name]) is int and (typed.name in _BUILTIN or name == "memory"):
            check_int(f"{typed.name}'s {name}", full[name], *_BOUNDS.get(name, _DEFAULT_BOUNDS))
        if full[name] != default:
            short[name] = full[name]
    return Component(typed.name, full), Component(typed.name, short)


_TYPE_NAMES = {float: "a number", int: "an integer", bool: "true or false", str: "a string"}


def _convert(part: str, name: str, value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return check_float(f"{part}'s {name}", value)
    if kind in _TYPE_NAMES and type(value) is not kind:
        raise UsageError(f"{part}({name}=...) takes {_TYPE_NAMES[kind]}, not {format_value(value)}")
    if get_origin(kind) is Literal and value not in (choices := get_args(kind)):
        raise UsageError(
            f"{part}({name}=...) takes {' or '.join(map(format_value, choices))}, not {format_value(value)}"
        )
    return tuple(map(float, value)) if _is_range(value) else value


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and all(type(end) in (int, float) for end in value)
