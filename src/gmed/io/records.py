"""Records: dataclasses and typed dictionaries whose annotations define their form in JSON.

The annotations give a decoder that checks every field, an encoder, and a JSON Schema, whose descriptions come from the
docstring.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import getdoc
from itertools import chain
from pathlib import Path
from reprlib import repr as short
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")


class Range(NamedTuple):
    """The minimum and the maximum of a number."""

    low: float
    high: float


OMITTED = "omitted"
"""Marks a field that is not in JSON."""

NULLABLE = "nullable"
"""Marks a number that is ``nan`` where it is undefined, and null in JSON."""

UNCHECKED = "unchecked"
"""Marks text that may be invalid Unicode, such as file names and error messages about them."""

GREATEST = 2**63 - 1
"""The greatest integer that a store can hold, larger than any count or time."""

Share = Annotated[float, Range(0, 1)]
Amount = Annotated[float, Range(0, GREATEST)]
Count = Annotated[int, Range(0, GREATEST)]
Measure = Annotated[float, NULLABLE]
AnyText = Annotated[str, UNCHECKED]


class RecordError(ValueError):
    """A value that is not valid for a record: where in the record, and the reason."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(f"{place.removeprefix('.') or 'it'} {reason}")
        self.reason, self.place = reason, place

    def inside(self, place: str) -> RecordError:
        """Return the same error for the value that contains this one at ``place``."""
        return RecordError(self.reason, place + self.place)


class _Codec(NamedTuple):
    """How the values of one type are decoded, encoded and described.

    Attributes
    ----------
    encode
        ``None`` for values that JSON stores unchanged.
    holds_all
        Checks quickly whether all values of a list have the type; such values are decoded unchanged.
    """

    decode: Callable[..., Any]
    encode: Callable[[Any], Any] | None
    schema: dict[str, Any]
    holds_all: Callable[[list[Any]], bool] = lambda values: False


def decode(record: type[T], value: object, **omitted: object) -> T:
    """Decode a value from JSON to a record, or raise an error that names the invalid field.

    The record may share lists and dictionaries with the value.

    If the record has a method ``validate``, it is called to check fields against each other.

    Parameters
    ----------
    omitted
        The values of fields that are not in JSON.
    """
    kind: Any = record
    decoded: T = _codec(kind).decode(value, **omitted)
    return decoded


def encode(record: object) -> dict[str, Any]:
    """Encode a record to a value for JSON, which shares no list or dictionary with the record."""
    kind: Any = type(record)
    encode_value = _codec(kind).encode
    assert encode_value is not None
    value: dict[str, Any] = encode_value(record)
    return value


def schema(record: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a record: what :func:`decode` accepts, without checks across fields."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_codec(record).schema}


@cache
def _codec(kind: Any) -> _Codec:
    base, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    origin, arguments = get_origin(base) or base, get_args(base)
    if base is object:
        return _Codec(lambda value: value, None, {})
    if base in (int, float):
        codec = _number(base, next((mark for mark in marks if isinstance(mark, Range)), None))
        return _nullable(codec) if NULLABLE in marks else codec
    if base is str:
        return _Codec(_check_string if UNCHECKED in marks else _check_text, None, {"type": "string"}, _are_texts)
    if base is bool:
        return _Codec(_check_bool, None, {"type": "boolean"})
    if base is Path:
        return _Codec(lambda value: Path(_check_string(value)), str, {"type": "string"})
    if origin is Literal:
        return _choice(arguments)
    if origin is list:
        return _list(_codec(arguments[0]))
    if origin is dict and arguments[0] is str:
        return _dict(_codec(arguments[1]))
    if origin in (Union, UnionType) and NoneType in arguments and len(arguments) == 2:
        return _optional(_codec(next(each for each in arguments if each is not NoneType)))
    if base == int | str:
        return _Codec(_check_number_or_text, None, {"type": ["integer", "string"]})
    if is_dataclass(base) or is_typeddict(base):
        return _record(base)
    raise TypeError(f"{kind} has no form in JSON")


def _wrong(value: object, expected: str) -> RecordError:
    return RecordError(f"is {short(value)}, not {expected}")


def _number(base: type, limits: Range | None) -> _Codec:
    kinds, name = ({int}, "an integer") if base is int else ({int, float}, "a number")
    schema = {"type": "integer" if base is int else "number"}
    if limits is None:

        def check_any(value: Any) -> Any:
            if type(value) in kinds and -math.inf < value < math.inf:
                return value
            raise _wrong(value, name)

        return _Codec(check_any, None, schema)
    low, high = limits

    def check(value: Any) -> Any:
        if type(value) in kinds and low <= value <= high:
            return value
        raise _wrong(value, f"{name} in {low} .. {high}")

    def holds_all(values: list[Any]) -> bool:
        return kinds.issuperset(map(type, values)) and not [x for x in values if not low <= x <= high]

    return _Codec(check, None, {**schema, "minimum": low, "maximum": high}, holds_all)


def _nullable(number: _Codec) -> _Codec:
    return _Codec(
        lambda value: math.nan if value is None else number.decode(value),
        lambda value: value if math.isfinite(value) else None,
        {**number.schema, "type": [number.schema["type"], "null"]},
    )


def _check_string(value: Any) -> str:
    if type(value) is not str:
        raise _wrong(value, "text")
    return value


def _check_text(value: Any) -> str:
    text = _check_string(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RecordError(f"is {short(value)}, which is not Unicode") from None
    return text


def _are_texts(values: list[Any]) -> bool:
    return {str}.issuperset(map(type, values)) and "".join(values).isascii()


def _check_bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong(value, "true or false")
    return value


def _check_number_or_text(value: Any) -> int | str:
    if type(value) is int:
        return value
    if type(value) is not str:
        raise _wrong(value, "an integer or text")
    return _check_text(value)


def _choice(words: tuple[Any, ...]) -> _Codec:
    def check(value: Any) -> Any:
        if type(value) is str and value in words:
            return value
        raise _wrong(value, " or ".join(map(repr, words)))

    return _Codec(check, None, {"const": words[0]} if len(words) == 1 else {"enum": list(words)})


def _list(item: _Codec) -> _Codec:
    check, encode_item = item.decode, item.encode

    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _wrong(value, "a list")
        if item.holds_all(value):
            return value
        try:
            return [check(each) for each in value]
        except RecordError:
            _locate(check, enumerate(value))
            raise

    write = list if encode_item is None else lambda value: [encode_item(each) for each in value]

    def holds_all(values: list[Any]) -> bool:
        return {list}.issuperset(map(type, values)) and item.holds_all([*chain.from_iterable(values)])

    return _Codec(read, write, {"type": "array", "items": item.schema}, holds_all)


def _dict(item: _Codec) -> _Codec:
    check, encode_item = item.decode, item.encode

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        if _are_texts([*value]) and item.holds_all([*value.values()]):
            return value
        try:
            return {_check_text(name): check(each) for name, each in value.items()}
        except RecordError:
            _locate(_check_text, ((name, name) for name in value))
            _locate(check, value.items())
            raise

    write = dict if encode_item is None else lambda value: {name: encode_item(each) for name, each in value.items()}
    return _Codec(read, write, {"type": "object", "additionalProperties": item.schema})


def _locate(check: Callable[[Any], Any], items: Iterable[tuple[object, Any]]) -> None:
    """Raise the error of the first invalid value, with its position."""
    for position, each in items:
        try:
            check(each)
        except RecordError as error:
            raise error.inside(f"[{short(position)}]") from None


def _optional(codec: _Codec) -> _Codec:
    check, encode_value = codec.decode, codec.encode
    kind = codec.schema.get("type")
    null = (
        {**codec.schema, "type": [kind, "null"]}
        if isinstance(kind, str)
        else {"anyOf": [codec.schema, {"type": "null"}]}
    )
    return _Codec(
        lambda value: None if value is None else check(value),
        None if encode_value is None else lambda value: None if value is None else encode_value(value),
        null,
    )


def _record(record: Any) -> _Codec:
    kinds = record_fields(record)
    required = {name for name, (_, is_required) in kinds.items() if is_required}
    codecs = {name: _codec(kind) for name, (kind, _) in kinds.items()}
    checks = {name: codec.decode for name, codec in codecs.items()}
    validate = getattr(record, "validate", None)

    def read(value: Any, **omitted: Any) -> Any:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        if not value.keys() >= required:
            raise RecordError(f"has no {', '.join(map(short, sorted(required - value.keys())))}")
        if not value.keys() <= checks.keys():
            unknown = [short(name) for name in value if name not in checks]
            raise RecordError(
                f"has {', '.join(unknown[:5])}, which this version does not know; was it written by a newer gmed?"
            )
        decoded = {}
        for name, each in value.items():
            try:
                decoded[name] = checks[name](each)
            except RecordError as error:
                raise error.inside(f".{name}") from None
        instance = record(**decoded, **omitted)
        if validate is not None:
            validate(instance)
        return instance

    encoders = [(name, codec.encode) for name, codec in codecs.items()]

    def write(value: Any) -> dict[str, Any]:
        plain = value if isinstance(value, dict) else vars(value)
        return {
            name: plain[name] if encode_field is None else encode_field(plain[name]) for name, encode_field in encoders
        }

    about, texts = _descriptions(record)
    properties = {
        name: {**codec.schema, **({"description": texts[name]} if name in texts else {})}
        for name, codec in codecs.items()
    }
    return _Codec(
        read,
        write,
        {
            "description": about,
            "type": "object",
            "required": [name for name in kinds if name in required],
            "additionalProperties": False,
            "properties": properties,
        },
    )


@cache
def record_fields(record: Any) -> dict[str, tuple[Any, bool]]:
    """Return the fields of a record that are in JSON, each with its type and whether it is required."""
    hints = get_type_hints(record, include_extras=True)
    if is_typeddict(record):
        return {name: (kind, True) for name, kind in hints.items()}
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(record)
        if field.init and OMITTED not in get_args(hints[field.name])
    }


def _descriptions(record: type) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring, and the descriptions of attributes, also of inherited ones."""
    texts: dict[str, str] = {}
    for each in reversed(record.__mro__):
        _, _, attributes = (getdoc(each) or "").partition("\nAttributes\n----------\n")
        for names, text in re.findall(r"^(\w[\w, ]*)\n((?: +.*\n?)+)", attributes, re.MULTILINE):
            texts |= dict.fromkeys(names.split(", "), _plain(text))
    return _plain((getdoc(record) or "").partition("\n\n")[0]), texts


def _plain(text: str) -> str:
    return " ".join(re.sub(r":\w+:`~?([^`]+)`|``", r"\1", text).split())
