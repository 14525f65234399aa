from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from gmed.engine import BENCHMARKS, RunResult, RunSpec, get_benchmark
from gmed.errors import GmedError, StoreError
from gmed.results.results import Failure

APPLICATION_ID = 0x474D4544  # "GMED": tells a store from other SQLite files

_RUNS = """
CREATE TABLE runs (
    key              TEXT PRIMARY KEY,      -- hash of config, versions and seed
    benchmark        TEXT NOT NULL,
    method           TEXT NOT NULL,
    seed             INTEGER NOT NULL,
    status           TEXT NOT NULL CHECK (status IN ('finished', 'failed')),
    config           TEXT NOT NULL,         -- JSON: everything that decides the result
    versions         TEXT NOT NULL,         -- JSON: version of every part that computed it
    recorded         TEXT NOT NULL,         -- UTC time
    steps            INTEGER,
    final_accuracy   REAL,                  -- mean over tasks, 0 .. 1
    pooled_accuracy  REAL,                  -- over all test examples, 0 .. 1
    accuracy         TEXT,                  -- JSON: accuracy[point of evaluation][task]
    timings          TEXT,                  -- JSON: seconds by stage
    environment      TEXT,                  -- JSON: device and library versions
    error            TEXT
) STRICT;
CREATE INDEX runs_by_method ON runs (benchmark, method, seed);
"""
_CLAIMS = """
CREATE TABLE sweeps (
    id               INTEGER PRIMARY KEY,
    host             TEXT NOT NULL,
    process          TEXT NOT NULL,         -- its number, and when it started
    seen             REAL NOT NULL          -- when it last said that it is alive, in seconds since 1970
) STRICT;
CREATE TABLE claims (
    key              TEXT PRIMARY KEY,      -- of a run that a sweep is computing
    sweep            INTEGER NOT NULL REFERENCES sweeps (id) ON DELETE CASCADE
) STRICT;
"""
_MEASURED = """
ALTER TABLE runs ADD COLUMN untrained TEXT;    -- JSON: accuracy by task before the first step
ALTER TABLE runs ADD COLUMN passes TEXT;       -- JSON: examples sent through the model per example of the stream
ALTER TABLE runs ADD COLUMN prequential REAL;  -- share of the stream predicted before it was learned from, 0 .. 1
"""
_OBSERVED = """
ALTER TABLE runs ADD COLUMN memory TEXT;       -- JSON: examples stored, by point of evaluation and class
ALTER TABLE sweeps ADD COLUMN began REAL NOT NULL DEFAULT 0;  -- in seconds since 1970
CREATE TABLE planned (
    key              TEXT NOT NULL,         -- of a run that a sweep set out to compute
    sweep            INTEGER NOT NULL REFERENCES sweeps (id) ON DELETE CASCADE,
    benchmark        TEXT NOT NULL,
    method           TEXT NOT NULL,
    seed             INTEGER NOT NULL,
    seen             INTEGER NOT NULL DEFAULT 0,  -- examples it has learned from
    total            INTEGER NOT NULL DEFAULT 0,  -- of so many, 0 before it begins
    PRIMARY KEY (key, sweep)
) STRICT;
CREATE TABLE observed (
    key              TEXT NOT NULL,         -- of a run that was watched
    what             TEXT NOT NULL,
    content          TEXT NOT NULL,         -- JSON
    recorded         TEXT NOT NULL,         -- UTC time
    PRIMARY KEY (key, what)
) STRICT;
"""
_OVERHEAD = """
ALTER TABLE runs ADD COLUMN overhead TEXT;     -- JSON: memory that the method took, in examples and in bytes
UPDATE runs SET
    overhead = json_object(
        'examples', CAST(json_extract(environment, '$."overhead in examples"') AS REAL),
        'bytes', CAST(json_extract(environment, '$."overhead in bytes"') AS INTEGER)
    ),
    environment = json_remove(environment, '$."overhead in examples"', '$."overhead in bytes"')
    WHERE json_extract(environment, '$."overhead in bytes"') IS NOT NULL;
"""
_OBSERVED_ALONE = """
ALTER TABLE observed ADD COLUMN benchmark TEXT NOT NULL DEFAULT '';  -- of the run, whose result need not be here
ALTER TABLE observed ADD COLUMN method TEXT NOT NULL DEFAULT '';
DELETE FROM observed WHERE key NOT IN (SELECT key FROM runs);
UPDATE observed SET (benchmark, method) = (SELECT benchmark, method FROM runs WHERE runs.key = observed.key);
"""
MIGRATIONS = [_RUNS, _CLAIMS, _MEASURED, _OBSERVED, _OVERHEAD, _OBSERVED_ALONE]
"""What leads from one version of the schema to the next; an empty file has version 0."""

SCHEMA_VERSION = len(MIGRATIONS)

WITH_OBSERVED = 4
"""The schema from which on there is a table of what was observed."""

OBSERVED = "key, what, content, recorded, benchmark, method"

MEASURED = ("untrained", "passes", "prequential", "memory", "overhead")
"""Columns that may be empty in a finished run, and are missing in stores of older schemas that cannot be written."""

Outcomes = Sequence[tuple[RunSpec, RunResult | str]]
"""Runs, each with its result or with the error it ended in."""


class Merged(NamedTuple):
    """What became of the runs of another store.

    Attributes
    ----------
    added, known
        How many were new here, and how many were here already.
    conflicts
        Those that are here with another result, which was kept.
    observed
        How many things were new here that had been observed of runs.
    """

    added: int
    known: int
    conflicts: list[str]
    observed: int = 0


class Timing(NamedTuple):
    """How long a finished run took, and where.

    Attributes
    ----------
    seconds
        All stages together; of runs computed together, each one's share.
    """

    key: str
    benchmark: str
    method: str
    device: str
    seconds: float


class Store:
    """Results in one SQLite file. A finished run is found by its key and never computed again.

    Examples
    --------
    >>> from gmed.engine import RunSpec
    >>> with Store(":memory:") as store:
    ...     store.find(RunSpec.make("split-mnist", "er", seed=0)) is None
    True
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        with self.explained("cannot be used as a results store"):
            self.database = _connect(self.path)
            try:
                self._open()
            except BaseException:
                self.database.close()
                raise

    def _open(self) -> None:
        self.database.row_factory = sqlite3.Row
        self.database.execute("PRAGMA foreign_keys = ON")
        self.database.execute("PRAGMA synchronous = FULL")
        self._recognise()
        if _writable(self.path):
            self._migrate()
            _switch_to_wal(self.database)

    def _recognise(self) -> None:
        """Make sure that the file is a store, or empty, before anything is written to it."""
        found = self._schema()
        if found > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path}: written by a newer gmed (schema {found}, this one knows {SCHEMA_VERSION}). "
                "Upgrade gmed, or choose another --store."
            )
        holds_tables = self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        if holds_tables and self.database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{self.path}: an SQLite file of something else; choose another --store.")

    def _migrate(self) -> None:
        """Bring the tables to this version, all or none of the way."""
        if self._schema() == SCHEMA_VERSION:
            return
        with self.transaction():
            for migration in MIGRATIONS[self._schema() :]:  # nothing, if somebody was quicker
                for statement in migration.split(";"):
                    self.database.execute(statement)
            self.database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _schema(self) -> int:
        (found,) = self.database.execute("PRAGMA user_version").fetchone()
        return int(found)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Inside, what goes wrong is said with the file and what to do."""
        try:
            yield
        except (sqlite3.Error, ValueError, LookupError, TypeError, RecursionError) as error:
            if isinstance(error, GmedError):
                raise
            raise StoreError(
                f"{self.path}: {what} ({error}). Check the file, its folder and permissions, or choose another --store."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Inside, everything is written or nothing."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")

    def require_writable(self) -> None:
        """Refuse to begin what could not be kept in the end."""
        if not _writable(self.path):
            raise StoreError(f"{self.path}: cannot be written. Check its permissions, or choose another --store.")

    def find(self, spec: RunSpec) -> RunResult | None:
        """The finished run of this specification, if there is one."""
        with self.explained("cannot be read"):
            query = "SELECT * FROM runs WHERE key = ? AND status = 'finished'"
            row = self.database.execute(query, (spec.key,)).fetchone()
            return None if row is None else _result(row)

    def outcome(self, spec: RunSpec, since: float) -> RunResult | str | None:
        """The finished run of this specification, or the error of one that failed after that time."""
        with self.explained("cannot be read"):
            row = self.database.execute("SELECT * FROM runs WHERE key = ?", (spec.key,)).fetchone()
            if row is None or row["status"] == "finished":
                return None if row is None else _result(row)
            return str(row["error"]) if datetime.fromisoformat(row["recorded"]).timestamp() >= int(since) else None

    def add(self, spec: RunSpec, outcome: RunResult | str) -> None:
        """Keep a finished run, or the error of a failed one. A failure never replaces a finished run."""
        self.add_all([(spec, outcome)])

    def add_all(self, outcomes: Outcomes) -> None:
        """The same for many at once, written together: all of them or none. Nobody needs to claim them any more."""
        if not outcomes:
            return
        with self.explained("a result could not be written"), self.transaction():
            for spec, outcome in outcomes:
                row = _row(spec, outcome)
                names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
                if row["status"] == "failed":
                    self.database.execute("DELETE FROM runs WHERE key = :key AND status = 'failed'", row)
                    self.database.execute(f"INSERT OR IGNORE INTO runs ({names}) VALUES ({marks})", row)
                else:
                    row |= self._measured_before(row)
                    self.database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", row)
                self.database.execute("DELETE FROM claims WHERE key = :key", row)

    def _measured_before(self, row: dict[str, Any]) -> dict[str, Any]:
        """What is known of the same run with the same accuracies, and was not measured this time."""
        here = self.database.execute("SELECT * FROM runs WHERE key = :key AND accuracy = :accuracy", row).fetchone()
        return {name: here[name] for name in MEASURED if row[name] is None} if here else {}

    def runs(self, benchmark: str | None = None) -> list[RunResult]:
        """Every finished run whose parts still have the versions that computed it, oldest first."""
        with self.explained("cannot be read"):
            return [_result(row) for row in self._rows("finished", benchmark) if _current(row)]

    def benchmarks_named(self, name: str) -> list[str]:
        """The benchmark of this name, or all that are made of the file of this name.

        >>> with Store(":memory:") as store:
        ...     store.benchmarks_named("split-mnist")
        ['split-mnist']
        """
        if name in BENCHMARKS:
            return [name]
        query = "SELECT DISTINCT benchmark FROM runs WHERE substr(benchmark, 1, ?) = ? ORDER BY benchmark"
        start = f"{Path(name).name}["
        with self.explained("cannot be read"):
            found = [str(row["benchmark"]) for row in self.database.execute(query, (len(start), start))]
        return found or [get_benchmark(name).name]

    def timings(self) -> list[Timing]:
        """How long every finished run took, whatever the versions that computed it."""
        query = "SELECT key, benchmark, method, timings, environment FROM runs WHERE status = 'finished' ORDER BY rowid"
        with self.explained("cannot be read"):
            return [
                Timing(
                    row["key"],
                    row["benchmark"],
                    row["method"],
                    json.loads(row["environment"]).get("device", ""),
                    sum(json.loads(row["timings"]).values()),
                )
                for row in self.database.execute(query)
            ]

    def outdated(self, benchmark: str | None = None, methods: Sequence[str] = ()) -> int:
        """How many finished runs, of all methods or of these, were computed by other versions of their parts."""
        with self.explained("cannot be read"):
            rows = self._rows("finished", benchmark)
            return sum(not _current(row) for row in rows if not methods or row["method"] in methods)

    def extensions_lacking(self) -> list[str]:
        """The files that computed finished runs whose methods are not known here."""
        with self.explained("cannot be read"):
            lacking = [row for row in self._rows("finished", None) if _spec(row) is None]
            return sorted(
                {name for row in lacking for name, v in json.loads(row["versions"]).items() if type(v) is str}
            )

    def failures(self, benchmark: str | None = None) -> list[Failure]:
        with self.explained("cannot be read"):
            return [
                Failure(row["benchmark"], row["method"], row["seed"], str(row["error"]))
                for row in self._rows("failed", benchmark)
                if _current(row)
            ]

    def observed(self, spec: RunSpec, what: str) -> Any | None:
        """What was observed of a run that was watched, if it was.

        >>> with Store(":memory:") as store:
        ...     spec = RunSpec.make("split-mnist", "er+gmed", seed=0)
        ...     store.keep_observed(spec, "edits", {"changed": 3})
        ...     store.observed(spec, "edits")
        {'changed': 3}
        """
        if self._schema() < WITH_OBSERVED:  # it cannot be written, and has no such table
            return None
        with self.explained("cannot be read"):
            query = "SELECT content FROM observed WHERE key = ? AND what = ?"
            row = self.database.execute(query, (spec.key, what)).fetchone()
            return None if row is None else json.loads(row["content"])

    def keep_observed(self, spec: RunSpec, what: str, content: Any) -> None:
        """Keep what was observed of a run, whether its result is here or not."""
        with self.explained("could not be written"), self.transaction():
            row = (spec.key, what, json.dumps(content), _now(), spec.benchmark.name, spec.method.name)
            self.database.execute(f"INSERT OR REPLACE INTO observed ({OBSERVED}) VALUES (?, ?, ?, ?, ?, ?)", row)

    def keys(self, observed: str = "") -> set[str]:
        """The keys of all finished runs, or of the runs of which this was observed.

        >>> with Store(":memory:") as store:
        ...     store.keep_observed(RunSpec.make("split-mnist", "er+gmed", seed=0), "edits", {"changed": 3})
        ...     len(store.keys()), len(store.keys("edits")), len(store.keys("something else"))
        (0, 1, 0)
        """
        if observed and self._schema() < WITH_OBSERVED:  # it cannot be written, and has no such table
            return set()
        found = "observed WHERE what = ?" if observed else "runs WHERE status = 'finished'"
        with self.explained("cannot be read"):
            rows = self.database.execute(f"SELECT key FROM {found}", (observed,) if observed else ())
            return {str(row["key"]) for row in rows}

    def remove(self, benchmark: str, methods: Sequence[str] = (), *, failed: bool = False) -> int:
        """Remove the runs of a benchmark: all, or of these methods as they are stored, or the failed ones; how many.

        What was observed of them goes with them, but for that of runs that failed.
        """
        names = tuple(methods)
        which = "WHERE benchmark = ?" + (f" AND method IN ({', '.join('?' * len(names))})" if names else "")
        with self.explained("could not be changed"), self.transaction():
            if failed:
                which += " AND status = 'failed'"
            else:
                self.database.execute(f"DELETE FROM observed {which}", (benchmark, *names))
            return self.database.execute(f"DELETE FROM runs {which}", (benchmark, *names)).rowcount

    def merge(self, other: Store) -> Merged:
        """Take in the runs of another store. One that is here with another result stays as it is."""
        with other.explained("cannot be read"):
            rows = [dict(row) for row in other.database.execute("SELECT * FROM runs ORDER BY rowid")]
            observed = other._everything_observed()
        added, known, conflicts = 0, 0, []
        with self.explained("could not be changed"), self.transaction():
            for row in rows:
                here = self.database.execute("SELECT * FROM runs WHERE key = :key", row).fetchone()
                if here is None or (here["status"] == "failed" and row["status"] == "finished"):
                    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
                    self.database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", row)
                    added += 1
                elif row["status"] == "failed" or json.loads(here["accuracy"]) == json.loads(row["accuracy"]):
                    known += 1
                    if row["status"] == "finished":  # the same run, of which the other may know more
                        found = {name: row.get(name) for name in ("key", *MEASURED)}
                        filled = ", ".join(f"{name} = coalesce({name}, :{name})" for name in MEASURED)
                        self.database.execute(f"UPDATE runs SET {filled} WHERE key = :key", found)
                else:
                    conflicts.append(f"{row['benchmark']} {row['method']} seed {row['seed']}")
            before = self.database.total_changes
            self.database.executemany(
                f"INSERT OR IGNORE INTO observed ({OBSERVED}) VALUES (?, ?, ?, ?, ?, ?)", observed
            )
            return Merged(added, known, conflicts, self.database.total_changes - before)

    def _everything_observed(self) -> list[sqlite3.Row]:
        if self._schema() < WITH_OBSERVED:
            return []
        found = "observed" if self._schema() == SCHEMA_VERSION else "observed JOIN runs USING (key)"
        columns = OBSERVED.replace("recorded", "observed.recorded")
        return self.database.execute(f"SELECT {columns} FROM {found}").fetchall()

    def _rows(self, status: str, benchmark: str | None) -> list[sqlite3.Row]:
        query = "SELECT * FROM runs WHERE status = ? AND benchmark = coalesce(?, benchmark) ORDER BY rowid"
        with self.explained("cannot be read"):
            return self.database.execute(query, (status, benchmark)).fetchall()

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _writable(path: str) -> bool:
    """Whether a store can be written there: the file, and beside it SQLite's own files."""
    if path == ":memory:":
        return True
    file = Path(path)
    return os.access(file.parent, os.W_OK) and (not file.exists() or os.access(file, os.W_OK))


def _connect(path: str) -> sqlite3.Connection:
    if _writable(path) or not Path(path).exists():
        return sqlite3.connect(path, timeout=30, isolation_level=None)
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"  # a store on a read-only disk can be read
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _switch_to_wal(db: sqlite3.Connection) -> None:
    """The switch does not wait for other processes by itself."""
    for attempt in range(100):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if attempt == 99:
                raise
            time.sleep(0.05)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _row(spec: RunSpec, outcome: RunResult | str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": spec.key,
        "benchmark": spec.benchmark.name,
        "method": spec.method.name,
        "seed": spec.seed,
        "config": json.dumps(spec.config()),
        "versions": json.dumps(spec.versions()),
        "recorded": _now(),
    }
    if isinstance(outcome, str):
        return row | {"status": "failed", "error": outcome}
    return row | {
        "status": "finished",
        "steps": outcome.steps,
        "final_accuracy": outcome.final_accuracy,
        "pooled_accuracy": outcome.pooled_accuracy,
        "accuracy": json.dumps(outcome.accuracy),
        "timings": json.dumps(outcome.timings),
        "environment": json.dumps(outcome.environment),
        "untrained": None if outcome.untrained is None else json.dumps(outcome.untrained),
        "passes": None if outcome.passes is None else json.dumps(outcome.passes),
        "prequential": outcome.prequential,
        "memory": None if outcome.memory is None else json.dumps(outcome.memory),
        "overhead": None if outcome.overhead is None else json.dumps(outcome.overhead),
    }


def _result(row: sqlite3.Row) -> RunResult:
    measured = {name: row[name] for name in MEASURED if name in row.keys()}  # noqa: SIM118
    result = RunResult(
        benchmark=row["benchmark"],
        method=row["method"],
        seed=row["seed"],
        accuracy=json.loads(row["accuracy"]),
        final_accuracy=row["final_accuracy"],
        pooled_accuracy=row["pooled_accuracy"],
        steps=row["steps"],
        timings=json.loads(row["timings"]),
        environment=json.loads(row["environment"]),
        untrained=json.loads(measured.get("untrained") or "null"),
        passes=json.loads(measured.get("passes") or "null"),
        prequential=measured.get("prequential"),
        memory=json.loads(measured.get("memory") or "null"),
        overhead=json.loads(measured.get("overhead") or "null"),
    )
    check_sound(result)
    return result


def check_sound(run: RunResult) -> None:
    """Refuse what no run can have found, whatever file it was read from.

    >>> check_sound(RunResult("split-mnist", "er", 0, [[1.5]], 1.5, 1.5, 500, {}, {}))
    Traceback (most recent call last):
    ValueError: the accuracies of split-mnist er seed 0 are not in 0 .. 1
    """
    name = f"{run.benchmark} {run.method} seed {run.seed}"
    shares = [run.final_accuracy, run.pooled_accuracy, *(share for points in run.accuracy for share in points)]
    shares += [] if run.prequential is None else [run.prequential]
    shares += [] if run.untrained is None else run.untrained
    if not all(type(share) in (int, float) and 0 <= share <= 1 for share in shares):
        raise ValueError(f"the accuracies of {name} are not in 0 .. 1")
    if len({len(points) for points in run.accuracy}) != 1:
        raise ValueError(f"{name} has another number of tasks at another point of evaluation, or no such point")
    if not isinstance(run.steps, int) or not all(isinstance(d, dict) for d in (run.timings, run.environment)):
        raise ValueError(f"the row of {name} is damaged")
    if not all(isinstance(told, str) for told in run.environment.values()):
        raise ValueError(f"the environment of {name} is not told in words")
    if run.untrained is not None and len(run.untrained) != len(run.accuracy[-1]):
        raise ValueError(f"{name} has another number of tasks untrained")
    amounts = {
        "timings": run.timings.values(),
        "passes": () if run.passes is None else (run.passes["forward"], run.passes["backward"]),
        "memory": () if run.memory is None else [count for point in run.memory for count in point],
        "overhead": () if run.overhead is None else (run.overhead["examples"], run.overhead["bytes"]),
    }
    for what, found in amounts.items():
        if not all(type(amount) in (int, float) and amount >= 0 for amount in found):
            raise ValueError(f"the {what} of {name} are not numbers from 0 on")


def spec_today(benchmark: str, method: str, seed: int) -> RunSpec | None:
    """The run of these names; nothing where there is no such benchmark or method, or no longer.

    >>> str(spec_today("split-mnist", "er(lr=0.05)", 0)), spec_today("split-mnist", "of-another-time", 0)
    ('split-mnist er seed 0', None)
    """
    try:
        return RunSpec.named(benchmark, method, seed)
    except GmedError:
        return None


def _spec(row: sqlite3.Row) -> RunSpec | None:
    return spec_today(row["benchmark"], row["method"], row["seed"])


def _current(row: sqlite3.Row) -> bool:
    spec = _spec(row)
    return spec is not None and spec.key == str(row["key"])
