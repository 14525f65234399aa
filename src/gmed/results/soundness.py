"""Whether a run is what a run can have found, whatever file it was read from."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from reprlib import repr as short
from statistics import fmean
from typing import Any

from gmed.engine import RunResult

RESULTS = (
    *("steps", "final_accuracy", "pooled_accuracy", "accuracy", "timings", "environment"),
    *("untrained", "passes", "prequential", "memory", "overhead"),
)
"""Columns of what a finished run has found."""

Fields = Mapping[str, Any] | sqlite3.Row
"""What a row of a store holds, by column."""

GREATEST = 2**63 - 1
"""The greatest number that a store can hold, and more than anything that is counted or timed."""

ROUNDING = 1e-9
"""How far a mean may be from another computation of it."""

NAMES = ("key", "benchmark", "method", "config", "versions", "recorded", "status")
"""Columns of text that every row has."""


def check_sound(run: RunResult) -> None:
    """Refuse what no run can have found.

    >>> check_sound(RunResult("split-mnist", "er", 0, [[1.5]], 1.5, 1.5, 500, {}, {}))
    Traceback (most recent call last):
    ValueError: the accuracies of split-mnist er seed 0 are not in 0 .. 1
    >>> check_sound(RunResult("split-mnist", "er", 0, [[0.5, 0.7]], 0.9, 0.6, 500, {}, {}))
    Traceback (most recent call last):
    ValueError: the final accuracy of split-mnist er seed 0 is not the mean of its last accuracies
    """
    name = run_name(run.benchmark, run.method, run.seed)
    _check_text(name, run.benchmark, run.method)
    if not (type(run.seed) is int and 0 <= run.seed <= GREATEST):
        raise ValueError(f"the seed of {name} is not a whole number from 0 on")
    shares = [run.final_accuracy, run.pooled_accuracy, *(share for points in run.accuracy for share in points)]
    shares += [] if run.prequential is None else [run.prequential]
    shares += [] if run.untrained is None else run.untrained
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        raise ValueError(f"the accuracies of {name} are not in 0 .. 1")
    if len({len(points) for points in run.accuracy}) != 1 or not run.accuracy[-1]:
        raise ValueError(f"{name} has another number of tasks at another point of evaluation, or no such point")
    last = run.accuracy[-1]
    if abs(fmean(last) - run.final_accuracy) > ROUNDING:
        raise ValueError(f"the final accuracy of {name} is not the mean of its last accuracies")
    if not min(last) - ROUNDING <= run.pooled_accuracy <= max(last) + ROUNDING:
        raise ValueError(f"the pooled accuracy of {name} is outside its last accuracies")
    if type(run.steps) is not int or not all(isinstance(d, dict) for d in (run.timings, run.environment)):
        raise ValueError(f"the row of {name} is damaged")
    if not 1 <= run.steps <= GREATEST:
        raise ValueError(f"the steps of {name} are not a whole number from 1 on")
    if not all(isinstance(told, str) for told in run.environment.values()):
        raise ValueError(f"the environment of {name} is not told in words")
    _check_text(name, *run.environment, *run.environment.values(), *run.timings)
    if run.untrained is not None and len(run.untrained) != len(last):
        raise ValueError(f"{name} has another number of tasks untrained")
    if run.memory is not None and (
        len(run.memory) != len(run.accuracy) or len({len(counts) for counts in run.memory}) != 1
    ):
        raise ValueError(f"{name} has counted its memory for other classes or points of evaluation")
    amounts = {
        "timings": run.timings.values(),
        "passes": () if run.passes is None else (run.passes["forward"], run.passes["backward"]),
        "memory": () if run.memory is None else [count for point in run.memory for count in point],
        "overhead": () if run.overhead is None else (run.overhead["examples"], run.overhead["bytes"]),
    }
    for what, found in amounts.items():
        if not all(type(amount) in (int, float) and 0 <= amount <= GREATEST for amount in found):
            raise ValueError(f"the {what} of {name} are not numbers from 0 on, or too large")


def row_problem(row: Fields) -> str | None:
    """Return what is wrong with a row of a store, if anything is."""
    try:
        _check_row(row)
    except RecursionError:
        return "its lists are nested too deeply"
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        return str(error) or type(error).__name__
    return None


def _check_row(row: Fields) -> None:
    _check_text("the row", *(row[name] for name in NAMES))
    for name in ("config", "versions"):
        if not isinstance(json.loads(row[name]), dict):
            raise ValueError(f"its {name} is not a JSON object")
    if not all(type(version) in (int, str) for version in json.loads(row["versions"]).values()):
        raise ValueError("its versions are not numbers or names")
    if datetime.fromisoformat(row["recorded"]).tzinfo is None:
        raise ValueError("the time that it was recorded at has no time zone")
    if row["status"] == "finished":
        check_sound(result_of(row))
        if row["error"] is not None:
            raise ValueError("it has finished, but has an error")
    elif row["status"] != "failed":
        raise ValueError(f"its status is {short(row['status'])}")
    elif not (type(row["seed"]) is int and 0 <= row["seed"] <= GREATEST):
        raise ValueError("its seed is not a whole number from 0 on")
    elif found := [name for name in RESULTS if dict(row).get(name) is not None]:
        raise ValueError(f"it has failed, but has {', '.join(found)}")
    else:
        _check_text("its error", row["error"])
    written = dict(row).get("checksum")
    if written is not None and written != checksum(row):
        raise ValueError("it was changed after it was written: its checksum is another one")


def _check_text(what: str, *texts: object) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{what} has {short(text)} where there should be text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} has text that is not Unicode: {short(text)}") from None


def checksum(row: Fields) -> str:
    """Return the checksum of everything that a row holds, but for itself; a column that is empty does not count."""
    told = {name: value for name, value in dict(row).items() if name != "checksum" and value is not None}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def result_of(row: Fields) -> RunResult:
    """Return the result that the row of a finished run holds, as it stands."""
    told = dict(row)
    return RunResult(
        benchmark=row["benchmark"],
        method=row["method"],
        seed=row["seed"],
        accuracy=json.loads(row["accuracy"]),
        final_accuracy=row["final_accuracy"],
        pooled_accuracy=row["pooled_accuracy"],
        steps=row["steps"],
        timings=json.loads(row["timings"]),
        environment=json.loads(row["environment"]),
        untrained=json.loads(told.get("untrained") or "null"),
        passes=json.loads(told.get("passes") or "null"),
        prequential=told.get("prequential"),
        memory=json.loads(told.get("memory") or "null"),
        overhead=json.loads(told.get("overhead") or "null"),
    )


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
