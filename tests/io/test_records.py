"""Records: decoding, encoding and JSON schema from one definition."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gmed
from gmed.engine import RunResult
from gmed.engine.checkpoint import Checkpoint
from gmed.engine.executors.protocol import KINDS, Job, read_message, write_message
from gmed.io.records import (
    OMITTED,
    Amount,
    AnyText,
    Count,
    Measure,
    Range,
    RecordError,
    Share,
    decode,
    encode,
    schema,
)
from gmed.results.results import Failure, ResultsDocument, Row, document_schema


class Pair(TypedDict):
    """Two numbers."""

    first: Amount
    second: Count


@dataclass(frozen=True)
class Inner:
    """A part.

    Attributes
    ----------
    name
        What it is ``called``,
        in two lines.
    """

    name: str
    kind: Literal["small", "large"] = "small"


@dataclass(frozen=True)
class Outer:
    """Everything that a record can hold.

    More of it.

    Attributes
    ----------
    low, high
        Ends of an interval.
    """

    format: Literal["outer/1"]
    low: Annotated[float, Range(-1, 1)]
    high: float
    count: Count
    rows: list[list[Share]]
    parts: list[Inner]
    by_name: dict[str, Inner]
    pair: Pair | None
    flag: bool
    where: Path | None
    versions: dict[str, int | str]
    anything: object
    p: Measure
    note: AnyText = ""
    state: Annotated[object, OMITTED] = None
    derived: int = field(default=0, init=False)


def outer(**changes):
    return {
        "format": "outer/1", "low": 0.5, "high": 1e9, "count": 3, "rows": [[0.5, 1], []], "parts": [{"name": "a"}],
        "by_name": {"b": {"name": "b", "kind": "large"}}, "pair": {"first": 0, "second": 1}, "flag": True,
        "where": "a/b", "versions": {"engine": 1, "own.py": "0a"}, "anything": [None, {"x": []}], "p": None, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": [[0.5], [0.5, 1.5]]}, "rows[1][1] is 1.5, not a number in 0 .. 1"),
        ({"rows": [[0.5, math.nan]]}, "rows[0][1] is nan, not a number in 0 .. 1"),
        ({"rows": [[math.nan, 0.5]]}, "rows[0][0] is nan, not a number in 0 .. 1"),
        ({"rows": [[True]]}, "rows[0][0] is True, not a number in 0 .. 1"),
        ({"rows": [[0.5, 10**400]]}, "rows[0][1] is 1000"),
        ({"rows": [0.5]}, "rows[0] is 0.5, not a list"),
        ({"rows": (0.5,)}, "rows is (0.5,), not a list"),
        ({"count": -1}, "count is -1, not an integer in 0 .. 9223372036854775807"),
        ({"count": 1.0}, "count is 1.0, not an integer"),
        ({"count": True}, "count is True, not an integer"),
        ({"high": math.inf}, "high is inf, not a number"),
        ({"high": "1"}, "high is '1', not a number"),
        ({"flag": 1}, "flag is 1, not true or false"),
        ({"format": "outer/2"}, "format is 'outer/2', not 'outer/1'"),
        ({"parts": [{"name": "a"}, {"name": 7}]}, "parts[1].name is 7, not text"),
        ({"parts": [{"name": "\ud800"}]}, "parts[0].name is '\\ud800', which is not Unicode"),
        ({"parts": [{}]}, "parts[0] has no 'name'"),
        ({"parts": [{"name": "a", "kind": "huge"}]}, "parts[0].kind is 'huge', not 'small' or 'large'"),
        ({"by_name": {"b": []}}, "by_name['b'] is [], not an object"),
        ({"by_name": {"\ud800": {"name": "b"}}}, "by_name['\\ud800'] is '\\ud800', which is not Unicode"),
        ({"pair": {"first": 1}}, "pair has no 'second'"),
        (
            {"pair": {"first": 1, "second": 1, "third": 1}},
            "pair has 'third', which this version does not know; was it written",
        ),
        ({"versions": {"engine": True}}, "versions['engine'] is True, not an integer or text"),
        ({"where": 7}, "where is 7, not text"),
        ({"state": 7}, "it has 'state', which this version does not know"),
        ({"derived": 7}, "it has 'derived', which this version does not know"),
    ],
    ids=str,
)
def test_an_error_names_the_field_and_the_reason(change, said):
    with pytest.raises(RecordError) as caught:
        decode(Outer, outer(**change))
    assert str(caught.value).startswith(said)


def test_nested_records_are_decoded():
    found = decode(Outer, outer(note="\udcff"), state="of a learner")
    assert found.parts == [Inner("a")] and found.by_name == {"b": Inner("b", "large")} and found.where == Path("a/b")
    assert found.rows == [[0.5, 1], []] and found.note == "\udcff" and math.isnan(found.p)
    assert found.state == "of a learner" and found.derived == 0
    for value in (None, [], 7, "text"):
        with pytest.raises(RecordError, match=r"^it is .*, not an object$"):
            decode(Outer, value)


def test_encoded_value_shares_no_references():
    found = decode(Outer, outer())
    plain = encode(found)
    plain["rows"][0].append(0)
    plain["versions"]["more"] = 1
    assert found.rows == [[0.5, 1], []] and "more" not in found.versions


def test_schema_descriptions_come_from_docstrings():
    found = schema(Outer)
    assert found["description"] == "Everything that a record can hold."
    assert found["properties"]["high"]["description"] == found["properties"]["low"]["description"]
    assert found["properties"]["low"]["description"] == "Ends of an interval."
    inner = found["properties"]["parts"]["items"]["properties"]["name"]
    assert inner == {"type": "string", "description": "What it is called, in two lines."}


def test_non_json_types_are_refused():
    @dataclass
    class Odd:
        names: "set[str]"

    with pytest.raises(TypeError, match="no form in JSON"):
        decode(Odd, {})


# ---------------------------------------------------------------------- any values

INTEGERS = st.integers(-2, 2) | st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**30])
NUMBERS = INTEGERS | st.floats(-2, 2) | st.sampled_from([1e300, -1e300, 0.0, 1.0])
TEXTS = st.sampled_from(["", "small", "large", "outer/1", "gmed-results/1", "x"]) | st.text(max_size=3)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(LEAVES, lambda v: st.lists(v, max_size=2) | st.dictionaries(TEXTS, v, max_size=2), max_leaves=5)
PYTHON_TYPES = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
"""JSON Schema takes 1.0 for a whole number, a record does not."""

RUN = RunResult(
    "split-mnist", "er", 3, [[0.5, 0.1], [0.5, 0.7]], 0.6, 0.6, 7, {"train": 1.5}, {"device": "cpu"}, [0.1, 0.1],
    {"forward": 2.0, "backward": 1.5}, 0.5, [[3, 0], [2, 1]], {"examples": 500.0, "bytes": 1580008},
)  # fmt: skip
CHECKPOINT = Checkpoint(10, [[0.5]], {"train": 1}, [4], {}, [0.1], {"forward": 5, "backward": 5}, 3, [[1, 2]])
ROW = {
    "benchmark": "b", "method": "er+gmed", "n": 2, "mean": 50.0, "std": 1.0, "gain_over": "er",
    "published": {"mean": 1.0, "std": None, "n": 0, "table": "Table 1", "marks": "*"},
    "difference": {"mean": 1.0, "error": None, "low": 1.0, "high": 2.0},
    "gain": {"mean": 1.0, "low": 1.0, "high": 1.0, "p": None, "effect_size": None, "n": 2, "mixed": 0},
}  # fmt: skip
EXAMPLES = [
    (Outer, outer()),
    (RunResult, encode(RUN)),
    (Checkpoint, encode(CHECKPOINT)),
    (Failure, {"benchmark": "b", "method": "er", "seed": 1, "error": "DivergedError"}),
    (Row, ROW),
    (Job, encode(Job.of([gmed.engine.RunSpec.make("split-mnist", "er", 1)], gmed.engine.ExecutionConfig("cpu")))),
]


def places(value, here=()):
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*here, name))


def changed(value, place, new):
    """The value with another at one place, or without what is there if the other is ``...``, or with one more."""
    if not place:
        return value if new is ... else new
    copied = value.copy()
    if len(place) > 1:
        copied[place[0]] = changed(value[place[0]], place[1:], new)
    elif new is ...:
        del copied[place[0]]
    else:
        copied[place[0]] = new
    return copied


@st.composite
def near_valid(draw):
    record, value = draw(st.sampled_from(EXAMPLES))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from(list(places(value))))
        value = changed(value, place, draw(VALUES | st.just(...)))
        if isinstance(value, dict) and draw(st.integers(0, 5)) == 0:
            value = {**value, draw(TEXTS): draw(VALUES)}
    return record, value


def fields_agree(record, value):
    """Decode without the checks across fields, which no schema can express."""
    try:
        decode(record, value, **({"state": {}} if record is Checkpoint else {}))
    except RecordError as error:
        return any(said in str(error) for said in ("last row of accuracy", "the same number of tasks", "must have one"))
    return True


@settings(max_examples=400, deadline=None)
@given(near_valid())
def test_decode_accepts_exactly_what_the_schema_accepts(drawn):
    record, value = drawn
    validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=PYTHON_TYPES)(schema(record))
    assert fields_agree(record, value) == validator.is_valid(value)


@settings(max_examples=200, deadline=None)
@given(near_valid())
def test_decoded_records_round_trip(drawn):
    record, value = drawn
    omitted = {"state": {}} if record is Checkpoint else {}
    try:
        found = decode(record, value, **omitted)
    except RecordError:
        return
    plain = encode(found)
    again = decode(record, json.loads(json.dumps(plain)), **omitted)
    assert json.dumps(encode(again)) == json.dumps(plain)


NUMBER_LISTS = st.lists(st.floats() | st.integers() | st.booleans() | st.just(10**400), max_size=4)


@settings(deadline=None)
@given(NUMBER_LISTS)
def test_list_is_valid_iff_every_number_is(numbers):
    plausible = all(type(number) in (int, float) and 0 <= number <= 1 for number in numbers)
    try:
        found = decode(Outer, outer(rows=[numbers]))
    except RecordError:
        assert not plausible
    else:
        assert plausible and found.rows == [numbers]


@pytest.mark.parametrize("kind", KINDS.values())
def test_worker_messages_round_trip(kind):
    fields = {
        "seen": 1,
        "total": 2,
        "key": "k",
        "accuracy": [[0.5]],
        "text": "\udcff",
        "error": "\udcff",
        "result": RUN,
    }
    message = kind(**{name: fields[name] for name in kind.__dataclass_fields__})
    assert read_message(write_message(message)) == message


def test_the_schema_in_the_package_is_up_to_date():
    """If not: python tools/schema.py."""
    file = Path(gmed.__file__).parent / "results" / "results.schema.json"
    assert json.loads(file.read_text(encoding="utf-8")) == document_schema()
    jsonschema.Draft202012Validator.check_schema(document_schema())


def test_older_documents_validate_against_the_schema():
    run = {name: value for name, value in encode(RUN).items() if name not in ("passes", "memory", "overhead")}
    document = {"schema": "gmed-results/1", "store": None, "runs": [run], "failures": [], "summary": []}
    jsonschema.validate(document, document_schema())
    assert decode(ResultsDocument, document).keys is None
