"""Rows of a store: encoding, decoding and validation of stored runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from reprlib import repr as short
from typing import Any, Literal

from gmed.engine import RunResult
from gmed.io.records import GREATEST, Count, RecordError, decode, encode, record_fields, schema
from gmed.results.results import Failure

Fields = Mapping[str, Any] | sqlite3.Row
"""A row of a store: values by column."""


@dataclass(frozen=True)
class StoredRun:
    """The columns of a row besides those of the result.

    Attributes
    ----------
    key
        A hash of the configuration, the versions and the seed.
    config, versions
        JSON: everything that determines the result, and the version of every component.
    recorded
        The time, with its zone.
    """

    key: str
    benchmark: str
    method: str
    seed: Count
    status: Literal["finished", "failed"]
    config: str
    versions: str
    recorded: str
    error: str | None = None
    checksum: str | None = None


@dataclass(frozen=True)
class Parts:
    """The content of the columns ``config`` and ``versions``."""

    config: dict[str, object]
    versions: dict[str, int | str]


RUN = record_fields(StoredRun)
RESULT = {name: kind for name, kind in record_fields(RunResult).items() if name not in RUN}
"""Columns of the result of a finished run."""

MEASURED = tuple(name for name, (_, required) in RESULT.items() if not required)
"""Columns that may be empty in a finished run, and are missing in stores of older schemas that cannot be written."""

_TYPES = {
    name: [form["type"]] if isinstance(form["type"], str) else form["type"]
    for name, form in schema(RunResult)["properties"].items()
}
IN_JSON = {name for name in RESULT if not {"array", "object"}.isdisjoint(_TYPES[name])}
"""Columns of the result that are stored as JSON text, as a table has no lists."""


def encode_result(result: RunResult) -> dict[str, Any]:
    """Return the columns that hold a result."""
    encoded = encode(result)
    columns = {name: encoded[name] for name in RESULT}
    return columns | {name: None if columns[name] is None else json.dumps(columns[name]) for name in IN_JSON}


def decode_row(row: Fields) -> RunResult | Failure:
    """Return the result or the failure of a row, or raise an error that explains why it is invalid."""
    cells = dict(row)
    run = decode(StoredRun, {name: cells[name] for name in RUN if name in cells})
    _check_parts(run.config, run.versions)
    try:
        zone = datetime.fromisoformat(run.recorded).tzinfo
    except ValueError as error:
        raise RecordError(f"is not a time ({error})", "recorded") from None
    if zone is None:
        raise RecordError(f"is {short(run.recorded)}, a time without a time zone", "recorded")
    outcome: RunResult | Failure
    if run.status == "finished":
        result = {
            name: _parse_json(name, cells[name]) if name in IN_JSON else cells[name] for name in RESULT if name in cells
        }
        outcome = decode(RunResult, {"benchmark": run.benchmark, "method": run.method, "seed": run.seed, **result})
        if run.error is not None:
            raise RecordError("has finished, but has an error")
    else:
        if unexpected := [name for name in RESULT if cells.get(name) is not None]:
            raise RecordError(f"has failed, but has {', '.join(unexpected)}")
        if run.error is None:
            raise RecordError("has failed, but has no error")
        outcome = Failure(run.benchmark, run.method, run.seed, run.error)
    if run.checksum is not None and run.checksum != checksum(cells):
        raise RecordError("was changed after it was written: its checksum does not match")
    return outcome


def row_problem(row: Fields) -> str | None:
    """Return what is wrong with a row, or ``None`` if it is valid."""
    try:
        decode_row(row)
    except RecordError as error:
        return str(error)
    return None


def _parse_json(name: str, text: Any) -> Any:
    """Return the value of a column of JSON; an empty one is ``None``."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise RecordError(f"is {short(text)}, not text", name)
    try:
        return _decode_json(text)
    except ValueError as error:
        raise RecordError(f"is not JSON ({error})", name) from None
    except RecursionError:
        raise RecordError("is nested too deeply", name) from None


@lru_cache(maxsize=1024)
def _check_parts(config: str, versions: str) -> None:
    """Reject a configuration or versions that no run can have; most runs of a store share them, hence the cache."""
    decode(Parts, {"config": _parse_json("config", config), "versions": _parse_json("versions", versions)})


_decode_json = json.JSONDecoder().decode
_encode_sorted = json.JSONEncoder(sort_keys=True, default=repr).encode


def checksum(row: Fields) -> str:
    """Return the checksum of all other columns of a row; empty columns do not count."""
    filled = {name: value for name, value in dict(row).items() if name != "checksum" and value is not None}
    return hashlib.sha256(_encode_sorted(filled).encode()).hexdigest()[:16]


def run_name(benchmark: object, method: object, seed: object) -> str:
    """Return the name of a run for messages, truncated, as it is very long in some damaged files.

    >>> run_name("split-mnist", "er", 3), len(run_name("b", "m" * 10**6, 0))
    ('split-mnist er seed 3', 209)
    """
    words = [word if isinstance(word, str) else short(word) for word in (benchmark, method)]
    benchmark, method = (word if len(word) <= 200 else f"{word[:197]}..." for word in words)
    return f"{benchmark} {method} seed {seed if isinstance(seed, int) and abs(seed) <= GREATEST else short(seed)}"


def row_name(row: Fields) -> str:
    """Return the name of a row's run for messages."""
    return run_name(row["benchmark"], row["method"], row["seed"])
