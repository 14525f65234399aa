"""The methods, and the grammar that names them: a base, optionally an edit, each with parameters.

er      er+gmed      er+gmed(alpha=1.0,beta=0.01)      er(memory=200)+gmed(steps=3)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from gmed.editing import GMED, AdversarialEdit, Edit, OptimalEdit, RandomEdit
from gmed.engine.benchmarks import Benchmark
from gmed.errors import UsageError, finite_number, unknown
from gmed.learners import (
    AGEM,
    BGD,
    CNDPM,
    ER,
    GEM,
    GSS,
    HAL,
    MIR,
    CompCL,
    ERAdam,
    ERAug,
    ERTricks,
    FineTune,
    Learner,
    ProgNN,
)
from gmed.memory import GSSGreedy, LossAwareReservoir, Memory, Reservoir, TaskRing
from gmed.models.mixture import expanded
from gmed.randomness import torch_seeded
from gmed.streams import Stream, iid


@dataclass(frozen=True)
class Recipe:
    """A method as the parts it is made of."""

    summary: str
    learner: type[Learner]
    memory: type[Memory] | None = None
    order: Callable[..., Stream] | None = None  # how the stream is reordered first, if it is
    model: Callable[..., nn.Module] | None = None  # what is made of the benchmark's network, if it is not used itself
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def editable(self) -> bool:
        return "editing" in signature(self.learner).parameters


METHODS = {
    "finetune": Recipe("SGD on the stream alone", FineTune),
    "er": Recipe("experience replay from a reservoir", ER, memory=Reservoir),
    "er-expanded": Recipe("er by Adam, on the network cn-dpm ends with", ERAdam, memory=Reservoir, model=expanded),
    "mir": Recipe("replays what the incoming batch would harm most", MIR, memory=Reservoir),
    "er-aug": Recipe("replays augmented copies too", ERAug, memory=Reservoir),
    "er-t": Recipe("er-aug, loss-aware balanced reservoir, decaying lr", ERTricks, memory=LossAwareReservoir),
    "gss": Recipe("memory of examples whose gradients differ", GSS, memory=GSSGreedy),
    "agem": Recipe("stream gradient, never against the memory's", AGEM, memory=Reservoir),
    "bgd": Recipe("Bayesian gradient descent, no memory", BGD),
    "cn-dpm": Recipe("a new expert when the data call for one", CNDPM),
    "gem": Recipe("task-aware: never against any earlier task", GEM, memory=TaskRing),
    "hal": Recipe("task-aware: replay, and outputs on anchors held", HAL, memory=Reservoir),
    "prog-nn": Recipe("task-aware: a column for every task, earlier ones fixed", ProgNN),
    "comp-cl": Recipe("task-aware: components in every layer, weighted by task", CompCL),
    "iid-online": Recipe("SGD on the shuffled stream, one pass", FineTune, order=iid),
    "iid-offline": Recipe("SGD on the shuffled stream, several passes", FineTune, order=iid, defaults={"passes": 5}),
}

EDITS: dict[str, type[Edit]] = {
    "gmed": GMED,
    "random-edit": RandomEdit,
    "adv-edit": AdversarialEdit,
    "optimal-edit": OptimalEdit,
}


@dataclass(frozen=True)
class Part:
    """A named part and its parameters."""

    name: str
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({','.join(f'{k}={_written(v)}' for k, v in self.parameters.items())})"


@dataclass(frozen=True)
class Method:
    """A method with every parameter settled for one benchmark.

    Attributes
    ----------
    name
        The shortest way to write it: parameters appear where they differ from the benchmark's defaults.
    base_name
        The same method without its edit, or ``None`` if it has none: what its gain is measured against.
    """

    name: str
    base_name: str | None
    base: Part
    edit: Part | None

    def make_stream(self, stream: Stream, seed: int) -> Stream:
        """The stream as this method sees it."""
        order = METHODS[self.base.name].order
        return stream if order is None else order(stream, seed, **_given_to(order, self.base.parameters))

    def make_learner(self, model: nn.Module, seed: int) -> Learner:
        recipe, settings = METHODS[self.base.name], self.base.parameters
        if recipe.model is not None:
            with torch_seeded(seed, "weights"):
                model = recipe.model(model, **_given_to(recipe.model, settings))
        parts: dict[str, Any] = _given_to(recipe.learner, settings)
        if recipe.memory is not None:
            parts["memory"] = recipe.memory(settings["memory"], **_given_to(recipe.memory, settings))
        if self.edit is not None:
            parts["editing"] = EDITS[self.edit.name](**self.edit.parameters)
        return recipe.learner(model, seed=seed, **parts)

    def config(self) -> dict[str, Any]:
        parts = {"base": {"name": self.base.name, **self.base.parameters}}
        return parts | ({"edit": {"name": self.edit.name, **self.edit.parameters}} if self.edit else {})

    def versions(self) -> dict[str, int]:
        """The version of every part that computes this method."""
        recipe = METHODS[self.base.name]
        parts: list[type | None] = [recipe.learner, recipe.memory, EDITS[self.edit.name] if self.edit else None]
        lineage = [ancestor for part in parts if part is not None for ancestor in part.__mro__]
        return {c.__name__: int(vars(c)["version"]) for c in lineage if "version" in vars(c)}


def resolve(benchmark: Benchmark, text: str, memory: int | None = None) -> Method:
    """The method that ``text`` names, with this benchmark's defaults for what it leaves open.

    ``memory`` is the memory size of methods that have one and do not give it themselves.

    >>> from gmed.engine.benchmarks import get_benchmark
    >>> resolve(get_benchmark("split-mnist"), "er+gmed(alpha=5, beta=0.1)").name
    'er+gmed(beta=0.1)'
    >>> resolve(get_benchmark("split-mnist"), "er+gmed", memory=200).edit.parameters["alpha"]
    5.0
    """
    typed = parse(text)
    if typed[0].name in EDITS:
        raise UsageError(f"{typed[0].name} is an edit, and edits what a method replays: er+{typed[0].name}")
    if "," in typed[0].name:
        raise UsageError(f"{text!r}: methods are separated by spaces")
    if typed[0].name not in METHODS:
        raise unknown("method", typed[0].name, METHODS)
    recipe = METHODS[typed[0].name]
    if len(typed) > 2:
        raise UsageError(f"{text!r}: a method takes one edit, not {len(typed) - 1}")

    settings = dict(typed[0].parameters)
    if memory is not None and recipe.memory is not None:
        settings.setdefault("memory", memory)
    base, short_base = _settle(Part(typed[0].name, settings), base_parameters(recipe), benchmark.settings)
    if len(typed) == 1:
        method = Method(str(short_base), None, base, None)
    else:
        name = typed[1].name
        if name not in EDITS:
            raise unknown("edit", name, EDITS)
        if not recipe.editable:
            raise UsageError(f"{text!r}: {base.name} replays no stored examples, so there is nothing to edit")
        usual = benchmark.edits.get(f"{base.name}+{name}", benchmark.edits.get(name, {}))
        edit, short_edit = _settle(typed[1], settable(EDITS[name]), usual)
        method = Method(f"{short_base}+{short_edit}", str(short_base), base, edit)

    method.make_learner(nn.Linear(1, 1), seed=0)  # a bad value is refused here, before anything runs
    method.make_stream(_EMPTY, seed=0)
    return method


def parse(text: str) -> tuple[Part, ...]:
    """The parts of a method's name as written.

    >>> [str(part) for part in parse("er + gmed(steps=3, clamp=[0,1])")]
    ['er', 'gmed(steps=3,clamp=[0,1])']
    """
    parts = re.findall(r"[^+(]+(?:\([^)]*\)\s*)?", text)
    if not parts or "+".join(parts) != text:
        raise UsageError(f"cannot read the method {text!r}; write it like er, er+gmed or 'er+gmed(alpha=1.0)'")
    return tuple(_parse_part(part.strip(), text) for part in parts)


def base_parameters(recipe: Recipe) -> dict[str, Parameter]:
    """What can be set on a recipe: its learner's numbers, its memory's size, its order's passes."""
    found = settable(recipe.learner)
    if recipe.memory is not None:
        found["memory"] = Parameter("memory", Parameter.KEYWORD_ONLY, annotation=int)
        found |= settable(recipe.memory)
    for maker in (recipe.order, recipe.model):
        found |= {} if maker is None else settable(maker)
    return {k: p.replace(default=recipe.defaults.get(k, p.default)) for k, p in found.items()}


def settable(part: Callable[..., Any]) -> dict[str, Parameter]:
    """The arguments of a part that are settings, not other parts."""
    parts = {"model", "memory", "capacity", "editing", "stream", "seed"}
    return {k: p for k, p in _parameters(part).items() if k not in parts}


@lru_cache(maxsize=256)
def _parameters(part: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(part, eval_str=True).parameters


def _given_to(part: Callable[..., Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    taken = settable(part)
    return {k: v for k, v in settings.items() if k in taken}


def _settle(typed: Part, allowed: Mapping[str, Parameter], usual: Mapping[str, Any]) -> tuple[Part, Part]:
    """A part with a value for everything (as typed, else the benchmark's, else the part's own default), and
    the part with only what differs from the defaults.
    """
    for name in typed.parameters:
        if name not in allowed:
            raise unknown(f"parameter of {typed.name}:", name, allowed)
    full, short = {}, {}
    for name, parameter in allowed.items():
        default = usual.get(name, parameter.default)
        value = typed.parameters.get(name, default)
        if value is Parameter.empty:
            raise UsageError(f"{typed.name} needs {name}=...: this benchmark has no published value for it")
        full[name] = _converted(typed.name, name, value, parameter.annotation)
        if full[name] != default:
            short[name] = full[name]
    return Part(typed.name, full), Part(typed.name, short)


def _converted(part: str, name: str, value: Any, kind: Any) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return finite_number(f"{part}'s {name}", value)
    if kind in (float, int, bool) and type(value) is not kind:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}[kind]
        raise UsageError(f"{part}({name}=...) takes {wanted}, not {_written(value)}")
    return tuple(map(float, value)) if _is_range(value) else value


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and all(type(end) in (int, float) for end in value)


_EMPTY = Stream(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64), (), (), 1)
_WORDS = {"true": True, "false": False, "none": None}


def _parse_part(part: str, text: str) -> Part:
    name, _, arguments = part.partition("(")
    lowered = re.sub(r"\b(true|false|none)\b", lambda m: str(_WORDS[m[0].lower()]), arguments, flags=re.I)
    try:
        call = ast.parse(f"part({lowered or ')'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        parameters = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
        if len(parameters) < len(call.keywords):
            raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"cannot read {part!r} in the method {text!r}; parameters are written name=value, "
            "as in 'er+gmed(alpha=1.0,beta=0.01)'"
        ) from None
    return Part(name.strip(), parameters)


def _written(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_written(v) for v in value)}]"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
