"""The syntax of a name with parameters: gmed(alpha=1.0,steps=3)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from gmed.errors import UsageError

MAX_BITS = 14_000
"""The longest integer that is accepted; Python does not print longer ones in decimal."""

_CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Component:
    """A name and its parameters."""

    name: str
    parameters: Mapping[str, Any]

    def __str__(self) -> str:
        if not self.parameters:
            return self.name
        return f"{self.name}({','.join(f'{k}={format_value(v)}' for k, v in self.parameters.items())})"


def parse_component(part: str, text: str) -> Component:
    """Parse one component of a longer text.

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
        parameters = {str(k.arg): _parse_value(k.value) for k in call.keywords}
        if "None" in parameters or not all(map(_is_writable, parameters.values())):  # that is part(**given)
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


def _parse_value(node: ast.expr) -> Any:
    """Return the value of a parameter: a literal, or a string without quotes."""
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [_parse_value(each) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.Dict) and None not in node.keys:
        return {
            _parse_value(key): _parse_value(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    if isinstance(node, ast.Name):
        return _CONSTANTS.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def _is_writable(value: Any) -> bool:
    """Return whether JSON and a name can hold a value: a number that is not too long, a string, a list or a dict."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_writable, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_writable(inner) for key, inner in value.items())
    if isinstance(value, int):
        return value.bit_length() <= MAX_BITS
    return value is None or isinstance(value, (float, str))


def format_value(value: Any) -> str:
    """Return a value in the syntax of names."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(format_value(v) for v in value)}]"
    if isinstance(value, str):
        is_word = value.isascii() and value.isidentifier() and value.lower() not in _CONSTANTS and not iskeyword(value)
        return value if is_word else repr(value)
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
