"""A name and its parameters, as they are written: gmed(alpha=1.0,steps=3)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from gmed.errors import UsageError

MAX_BITS = 14_000
"""Of a whole number. Python writes no longer ones in digits."""

_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Component:
    """A named part and its parameters."""

    name: str
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({','.join(f'{k}={format_value(v)}' for k, v in self.parameters.items())})"


def parse_component(part: str, text: str) -> Component:
    """What a part of a longer text says.

    >>> parse_component("gmed(steps=3, clamp=[0,1])", "er+gmed(steps=3, clamp=[0,1])").parameters
    {'steps': 3, 'clamp': [0, 1]}
    >>> parse_component("my-edit(norm=l2)", "er+my-edit(norm=l2)").parameters
    {'norm': 'l2'}
    """
    name, _, arguments = part.partition("(")
    try:
        call = ast.parse(f"part({arguments or ')'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        parameters = {str(k.arg): _value(k.value) for k in call.keywords}
        if "None" in parameters or not all(map(_can_be_written, parameters.values())):  # that is part(**given)
            raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"cannot read {part!r} in {text!r}; parameters are written name=value, as in 'er+gmed(alpha=1.0,beta=0.01)'"
        ) from None
    if len(parameters) < len(call.keywords):
        names = [str(k.arg) for k in call.keywords]
        again = next(one for one in names if names.count(one) > 1)
        raise UsageError(f"{name.strip()}: {again} is given twice in {text!r}")
    return Component(name.strip(), parameters)


def _value(node: ast.expr) -> Any:
    """What is written for a parameter: a literal, or a word as it stands."""
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_value(each) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {_value(key): _value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def _can_be_written(value: Any) -> bool:
    """Whether JSON can carry a value, and a name: numbers that are not endless, words, lists and tables of them."""
    if isinstance(value, (list, tuple)):
        return all(map(_can_be_written, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _can_be_written(inner) for key, inner in value.items())
    if isinstance(value, int):
        return value.bit_length() <= MAX_BITS
    return value is None or isinstance(value, (float, str))


def format_value(value: Any) -> str:
    """A value as it is written in a name."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(format_value(v) for v in value)}]"
    if isinstance(value, str):
        is_word = value.isascii() and value.isidentifier() and value.lower() not in _WORDS and not iskeyword(value)
        return value if is_word else repr(value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
