"""Rows of a store: what a run is there, and whether a row is what a run can have left."""

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
"""What a row of a store holds, by column."""


@dataclass(frozen=True)
class StoredRun:
    """What a row holds besides a result.

    Attributes
    ----------
    key
        A hash of the configuration, the versions and the seed.
    config, versions
        JSON: everything that decides the result, and the version of every part that computed it.
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
    """What the columns ``config`` and ``versions`` hold."""

    config: dict[str, object]
    versions: dict[str, int | str]


RUN = record_fields(StoredRun)
RESULT = {name: kind for name, kind in record_fields(RunResult).items() if name not in RUN}
"""Columns of what a finished run has found."""

MEASURED = tuple(name for name, (_, needed) in RESULT.items() if not needed)
"""Columns that may be empty in a finished run, and are missing in stores of older schemas that cannot be written."""

_TYPES = {
    name: [form["type"]] if isinstance(form["type"], str) else form["type"]
    for name, form in schema(RunResult)["properties"].items()
}
IN_JSON = {name for name in RESULT if not {"array", "object"}.isdisjoint(_TYPES[name])}
"""Those that are JSON there, as a table has no lists."""


def encode_result(result: RunResult) -> dict[str, Any]:
    """Return the columns that hold a result."""
    plain = encode(result)
    found = {name: plain[name] for name in RESULT}
    return found | {name: None if found[name] is None else json.dumps(found[name]) for name in IN_JSON}


def decode_row(row: Fields) -> RunResult | Failure:
    """Return what the run of a row has found or ended in, or raise the error that says why it can be neither."""
    cells = dict(row)
    run = decode(StoredRun, {name: cells[name] for name in RUN if name in cells})
    _check_parts(run.config, run.versions)
    try:
        zone = datetime.fromisoformat(run.recorded).tzinfo
    except ValueError as error:
        raise RecordError(f"is no time ({error})", "recorded") from None
    if zone is None:
        raise RecordError(f"is {short(run.recorded)}, a time without its zone", "recorded")
    found: RunResult | Failure
    if run.status == "finished":
        result = {
            name: _parsed(name, cells[name]) if name in IN_JSON else cells[name] for name in RESULT if name in cells
        }
        found = decode(RunResult, {"benchmark": run.benchmark, "method": run.method, "seed": run.seed, **result})
        if run.error is not None:
            raise RecordError("has finished, but has an error")
    else:
        if strange := [name for name in RESULT if cells.get(name) is not None]:
            raise RecordError(f"has failed, but has {', '.join(strange)}")
        if run.error is None:
            raise RecordError("has failed, but has no error")
        found = Failure(run.benchmark, run.method, run.seed, run.error)
    if run.checksum is not None and run.checksum != checksum(cells):
        raise RecordError("was changed after it was written: its checksum is another one")
    return found


def row_problem(row: Fields) -> str | None:
    """Return what is wrong with a row, if anything is."""
    try:
        decode_row(row)
    except RecordError as error:
        return str(error)
    return None


def _parsed(name: str, text: Any) -> Any:
    """Return the value of a column of JSON; one that is empty is null."""
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
    """Refuse another configuration or other versions than a run can have; most runs of a store share them."""
    decode(Parts, {"config": _parsed("config", config), "versions": _parsed("versions", versions)})


_decode_json = json.JSONDecoder().decode
_encode_sorted = json.JSONEncoder(sort_keys=True, default=repr).encode


def checksum(row: Fields) -> str:
    """Return the checksum of everything that a row holds, but for itself; a column that is empty does not count."""
    filled = {name: value for name, value in dict(row).items() if name != "checksum" and value is not None}
    return hashlib.sha256(_encode_sorted(filled).encode()).hexdigest()[:16]


def run_name(benchmark: object, method: object, seed: object) -> str:
    """Return what a run is called in a message, cut where a damaged file makes it endless.

    >>> run_name("split-mnist", "er", 3), len(run_name("b", "m" * 10**6, 0))
    ('split-mnist er seed 3', 209)
    """
    words = [word if isinstance(word, str) else short(word) for word in (benchmark, method)]
    benchmark, method = (word if len(word) <= 200 else f"{word[:197]}..." for word in words)
    return f"{benchmark} {method} seed {seed if isinstance(seed, int) and abs(seed) <= GREATEST else short(seed)}"


def row_name(row: Fields) -> str:
    """Return what the run of a row is called in a message."""
    return run_name(row["benchmark"], row["method"], row["seed"])
