"""The store: results of runs in one SQLite file."""

from __future__ import annotations

import gc
import json
import shlex
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from reprlib import repr as short
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from gmed.data.custom import CustomDataRef
from gmed.engine import BENCHMARKS, BenchmarkId, RunResult, RunSpec, get_benchmark
from gmed.errors import GmedError, GmedWarning, StoreError
from gmed.io.records import GREATEST, RecordError
from gmed.results.connection import StoreConnection, is_full
from gmed.results.results import Failure
from gmed.results.stored_runs import MEASURED, Fields, checksum, decode_row, encode_result, row_name, row_problem

APPLICATION_ID = 0x474D4544  # "GMED": distinguishes a store from other SQLite files

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
_CHECKSUMS = """
ALTER TABLE runs ADD COLUMN checksum TEXT;     -- of the rest of the row, empty in older ones
"""
MIGRATIONS = [_RUNS, _CLAIMS, _MEASURED, _OBSERVED, _OVERHEAD, _OBSERVED_ALONE, _CHECKSUMS]
"""Statements that migrate each version of the schema to the next; an empty file has version 0."""

SCHEMA_VERSION = len(MIGRATIONS)

PROBE_SCHEMA = 4
"""The first version of the schema with the table ``observed``."""

OBSERVED = "key, what, content, recorded, benchmark, method"

EVERY_RUN = "SELECT * FROM runs ORDER BY rowid"

MAX_NAMED = 3
"""Maximum number of damaged runs that a warning names."""

Outcomes = Sequence[tuple[RunSpec, RunResult | str]]
"""Runs, each with its result or its error."""


class MergeSummary(NamedTuple):
    """The outcome of merging another store.

    Attributes
    ----------
    added, known
        Number of runs that were added, and that this store had already.
    conflicts
        Runs that this store has with another result, which it keeps.
    observed
        Number of observations of runs that were added.
    damaged
        Rows that were skipped because they are not valid, each with the reason.
    """

    added: int
    known: int
    conflicts: list[str]
    observed: int = 0
    damaged: Sequence[str] = ()


class DamagedRunWarning(GmedWarning):
    """Rows of a store were skipped because they are not valid."""


class StoredRuns(NamedTuple):
    """Runs that were read from a store.

    Attributes
    ----------
    runs, failures
        Those that the current code would reproduce.
    outdated
        The method of every finished run from other versions of the code.
    """

    runs: list[RunResult]
    failures: list[Failure]
    outdated: list[str]


class Timing(NamedTuple):
    """The time that a finished run took, and its device.

    Attributes
    ----------
    seconds
        All stages together; for runs trained together, the share of each run.
    """

    key: str
    benchmark: str
    method: str
    device: str
    seconds: float


class Store:
    """Results in one SQLite file. A finished run is found by its key and never recomputed.

    Examples
    --------
    >>> from gmed.engine import RunSpec
    >>> with Store(":memory:") as store:
    ...     store.find(RunSpec.make("split-mnist", "er", seed=0)) is None
    True
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._connection: StoreConnection | None = None
        with self.wrap_errors("cannot be used as a results store"):
            self._connection = StoreConnection(self.path)
            self.database = self._connection.database
            try:
                self._open(migrate=self._connection.writable)
            except BaseException:
                self._connection.close()
                raise

    def _open(self, *, migrate: bool) -> None:
        self.database.row_factory = sqlite3.Row
        self.database.text_factory = decode_text
        self.database.execute("PRAGMA foreign_keys = ON")
        self.database.execute("PRAGMA synchronous = FULL")
        self._check_schema()
        if migrate:
            self._migrate()
            _switch_to_wal(self.database)

    def _check_schema(self) -> None:
        """Check that the file is a store, or empty, before anything is written to it."""
        version = self._schema_version()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{self.path}: written by a newer gmed (schema {version}, this one knows {SCHEMA_VERSION}). "
                "Upgrade gmed, or choose another --store."
            )
        holds_tables = self.database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        if holds_tables and self.database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{self.path}: an SQLite file of another program; choose another --store.")
        if self.database.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()[0]:
            raise StoreError(f"{self.path}: contains views or triggers, so it is not a store; choose another --store.")

    def _migrate(self) -> None:
        """Migrate the tables to the current version, in one transaction."""
        if self._schema_version() == SCHEMA_VERSION:
            return
        with self.transaction():
            for migration in MIGRATIONS[self._schema_version() :]:  # none, if another process was faster
                for statement in migration.split(";"):
                    self.database.execute(statement)
            self.database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _schema_version(self) -> int:
        (version,) = self.database.execute("PRAGMA user_version").fetchone()
        return int(version)

    @contextmanager
    def wrap_errors(self, what: str) -> Iterator[None]:
        """Re-raise errors of the block as :class:`StoreError` that names the file and what to do."""
        try:
            yield
            if self._connection is not None:
                self._connection.check_unchanged()
        except (sqlite3.Error, ValueError, LookupError, TypeError, RecursionError, OverflowError) as error:
            if isinstance(error, GmedError):
                raise
            if self._connection is not None:
                self._connection.check_unchanged()
            if isinstance(error, sqlite3.Error) and is_full(error, self.path):
                raise StoreError(
                    f"{self.path}: {what}: the disk is full ({error}). Free some space and run the same command again; "
                    "finished runs are stored."
                ) from error
            raise StoreError(
                f"{self.path}: {what} ({error}). Check the file, its folder and permissions, or choose another --store."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything that the block writes, or nothing."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.database.execute("COMMIT")
        except BaseException:
            if self.database.in_transaction:  # a full disk may have rolled it back already
                self.database.execute("ROLLBACK")
            raise

    def require_writable(self) -> None:
        """Raise an error if results could not be stored, before any run starts."""
        if self._connection is None or not self._connection.writable:
            raise StoreError(f"{self.path}: cannot be written. Check its permissions, or choose another --store.")

    def find(self, spec: RunSpec) -> RunResult | None:
        """Return the finished run of this specification, if there is one.

        A damaged row does not count: the run is repeated and replaces it.
        """
        with self.wrap_errors("cannot be read"):
            stored = self._lookup(spec)
            return None if stored is None or isinstance(stored[0], Failure) else stored[0]

    def outcome(self, spec: RunSpec, since: float) -> RunResult | str | None:
        """Return the finished run of this specification, or the error of one that failed after that time."""
        with self.wrap_errors("cannot be read"):
            stored = self._lookup(spec)
            if stored is None:
                return None
            outcome, recorded = stored
            if isinstance(outcome, RunResult):
                return outcome
            return outcome.error if datetime.fromisoformat(recorded).timestamp() >= int(since) else None

    def _lookup(self, spec: RunSpec) -> tuple[RunResult | Failure, str] | None:
        """Return the outcome of a run and its time, or ``None``; a damaged row is skipped with a warning."""
        row = self._find_row(spec.key)
        if row is None or not _names_spec(row, spec):
            return None
        outcomes = self._decode_rows([(row, spec)])
        return (outcomes[0], row["recorded"]) if outcomes else None

    def _decode_rows(self, rows: Iterable[tuple[sqlite3.Row, RunSpec]]) -> list[RunResult | Failure]:
        """Return the outcomes of rows, named as their runs are now; damaged ones are skipped with a warning."""
        outcomes, damaged = [], []
        for row, spec in rows:
            try:
                outcome = decode_row(row)
                names = spec.benchmark.name, spec.method.name
                if (outcome.benchmark, outcome.method) != names:
                    outcome = replace(outcome, benchmark=names[0], method=names[1])
                outcomes.append(outcome)
            except RecordError as error:
                damaged.append(f"{row_name(row)} ({error})")
        self._warn_damaged(damaged)
        return outcomes

    def read(self, benchmark: str | None = None, status: str | None = None) -> StoredRuns:
        """Return the runs that the current code would reproduce, oldest first, of one benchmark or status or of all."""
        specs, outdated = _CurrentSpecs(), list[str]()

        def current_rows() -> Iterator[tuple[sqlite3.Row, RunSpec]]:
            for row in self._rows(status, benchmark):
                if (spec := specs.computed_by(row)) is not None:
                    yield row, spec
                elif row["status"] == "finished":
                    outdated.append(row["method"])

        with self.wrap_errors("cannot be read"), paused_garbage_collection():
            outcomes = self._decode_rows(current_rows())
        runs = [outcome for outcome in outcomes if isinstance(outcome, RunResult)]
        return StoredRuns(runs, [outcome for outcome in outcomes if isinstance(outcome, Failure)], outdated)

    def _warn_damaged(self, damaged: Sequence[str]) -> None:
        if damaged:
            more = f" and {len(damaged) - MAX_NAMED} more" if len(damaged) > MAX_NAMED else ""
            subject = f"{len(damaged)} damaged run{'s are' if len(damaged) > 1 else ' is'}"
            warnings.warn(
                f"{self.path}: {subject} skipped: {'; '.join(damaged[:MAX_NAMED])}{more}. To list all: "
                f"gmed doctor --store {shlex.quote(self.path)}. gmed run recomputes and replaces a run; "
                "gmed rm removes it.",
                DamagedRunWarning,
                stacklevel=4,
            )

    def add(self, spec: RunSpec, outcome: RunResult | str) -> None:
        """Store a finished run, or the error of a failed one. A failure never replaces a finished run."""
        self.add_all([(spec, outcome)])

    def add_all(self, outcomes: Outcomes) -> None:
        """Store several outcomes in one transaction and release the claims on their runs."""
        if not outcomes:
            return
        with self.wrap_errors("a result could not be written"), self.transaction():
            for spec, outcome in outcomes:
                row = _row(spec, outcome)
                if row["status"] == "finished":
                    self._write(row | self._carry_over(row))
                elif self._is_replaceable(row):
                    self._write(row)
                self.database.execute("DELETE FROM claims WHERE key = :key", row)

    def _is_replaceable(self, row: Fields) -> bool:
        """Return whether the store has no valid finished run in place of this row."""
        existing = self._valid_row(row["key"])
        return existing is None or existing["status"] != "finished"

    def _write(self, row: Fields) -> None:
        """Write a row with its checksum, in place of an existing row of the same run."""
        names, parameters = ", ".join(row), ", ".join(f":{name}" for name in row)
        self.database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({parameters})", row)
        self._update_checksum(row["key"])

    def _update_checksum(self, key: str) -> None:
        """Set the checksum of a row from its content."""
        row = self._find_row(key)
        self.database.execute("UPDATE runs SET checksum = ? WHERE key = ?", (checksum(row), key))

    def _carry_over(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return optional measurements of an existing row with the same accuracies that the new row lacks."""
        existing = self._valid_row(row["key"])
        if existing is None or existing["accuracy"] != row["accuracy"]:
            return {}
        return {name: existing[name] for name in MEASURED if row[name] is None}

    def runs(self, benchmark: str | None = None) -> list[RunResult]:
        """Return every finished run that the current code would reproduce, oldest first."""
        return self.read(benchmark, "finished").runs

    def matching_benchmarks(self, name: str) -> list[str]:
        """Return the benchmark of this name, or all that are built from the data or the file of this name.

        >>> with Store(":memory:") as store:
        ...     store.matching_benchmarks("split-mnist")
        ['split-mnist']
        """
        if name in BENCHMARKS:
            return [name]
        file = Path(name).name
        names = [benchmark for benchmark, ref in self._references() if file == ref.file or name == ref.title]
        return names or [get_benchmark(name).name]

    def title_of(self, data: CustomDataRef) -> str | None:
        """Return the name that users gave to data, if runs on them were stored with one."""
        titles = (ref.title for _, ref in self._references() if ref.untitled == data.untitled)
        return next(filter(None, titles), None)

    def set_title(self, data: CustomDataRef) -> None:
        """Rename the data of all stored runs on them to the name given by users; damaged runs are not changed."""
        renamed = {
            name: str(replace(BenchmarkId.parse(name), base=data))
            for name, ref in self._references()
            if ref.untitled == data.untitled and ref != data
        }
        if not renamed:
            return
        with self.wrap_errors("could not be changed"), self.transaction():
            for name, new in renamed.items():
                for row in self.database.execute("SELECT * FROM runs WHERE benchmark = ?", (name,)).fetchall():
                    if row_problem(row) is None:
                        self.database.execute("UPDATE runs SET benchmark = ? WHERE key = ?", (new, row["key"]))
                        if row["checksum"] is not None:
                            self._update_checksum(row["key"])
                if self._schema_version() == SCHEMA_VERSION:
                    self.database.execute("UPDATE observed SET benchmark = ? WHERE benchmark = ?", (new, name))

    def _references(self) -> Iterator[tuple[str, CustomDataRef]]:
        """Yield the names of stored benchmarks on custom data, with the reference to the data."""
        with self.wrap_errors("cannot be read"):
            rows = self.database.execute("SELECT DISTINCT benchmark FROM runs ORDER BY benchmark").fetchall()
        for row in rows:
            with suppress(GmedError):
                if (ref := BenchmarkId.parse(str(row["benchmark"])).custom_data) is not None:
                    yield str(row["benchmark"]), ref

    def timings(self) -> list[Timing]:
        """Return the time that every finished run took, of any version of the code."""
        query = "SELECT key, benchmark, method, timings, environment FROM runs WHERE status = 'finished' ORDER BY rowid"
        with self.wrap_errors("cannot be read"):
            return [timing for row in self.database.execute(query) if (timing := _timing(row)) is not None]

    def count_outdated(self, benchmark: str | None = None) -> int:
        """Return the number of finished runs from other versions of the code."""
        return len(self.read(benchmark, "finished").outdated)

    def missing_extensions(self) -> list[str]:
        """Return the files that define the methods of finished runs and are not loaded."""
        with self.wrap_errors("cannot be read"):
            current, rows = _CurrentSpecs(), self._rows("finished", None)
            unknown = [row for row in rows if current.spec(row) is None and row_problem(row) is None]
            return sorted(
                {
                    name
                    for row in unknown
                    for name, version in json.loads(row["versions"]).items()
                    if type(version) is str
                }
            )

    def failures(self, benchmark: str | None = None) -> list[Failure]:
        """Return every failed run that the current code would repeat, oldest first."""
        return self.read(benchmark, "failed").failures

    def get_probe(self, spec: RunSpec, what: str) -> Any | None:
        """Return the observations of a run, if there are any.

        >>> with Store(":memory:") as store:
        ...     spec = RunSpec.make("split-mnist", "er+gmed", seed=0)
        ...     store.put_probe(spec, "edits", {"changed": 3})
        ...     store.get_probe(spec, "edits")
        {'changed': 3}
        """
        if self._schema_version() < PROBE_SCHEMA:  # a read-only store without the table
            return None
        with self.wrap_errors("cannot be read"):
            query = "SELECT content FROM observed WHERE key = ? AND what = ?"
            row = self.database.execute(query, (spec.key, what)).fetchone()
            if row is not None and (problem := _observed_problem(row)) is not None:
                self._warn_damaged([f"{what} of {spec} ({problem})"])
                return None
            return None if row is None else json.loads(row["content"])

    def put_probe(self, spec: RunSpec, what: str, content: Any) -> None:
        """Store the observations of a run, whether its result is stored or not."""
        with self.wrap_errors("could not be written"), self.transaction():
            row = (spec.key, what, json.dumps(content), _now(), spec.benchmark.name, spec.method.name)
            self.database.execute(f"INSERT OR REPLACE INTO observed ({OBSERVED}) VALUES (?, ?, ?, ?, ?, ?)", row)

    def keys(self, observed: str = "") -> set[str]:
        """Return the keys of all finished runs, or of the runs with this observation.

        >>> with Store(":memory:") as store:
        ...     store.put_probe(RunSpec.make("split-mnist", "er+gmed", seed=0), "edits", {"changed": 3})
        ...     len(store.keys()), len(store.keys("edits")), len(store.keys("something else"))
        (0, 1, 0)
        """
        if observed and self._schema_version() < PROBE_SCHEMA:  # a read-only store without the table
            return set()
        with self.wrap_errors("cannot be read"):
            if observed:
                rows = self.database.execute("SELECT key, content FROM observed WHERE what = ?", (observed,))
                return {str(row["key"]) for row in rows if _observed_problem(row) is None}
            return {str(row["key"]) for row in self._rows("finished", None) if row_problem(row) is None}

    def remove(self, benchmark: str, methods: Sequence[str] = (), *, failed: bool = False) -> int:
        """Remove the runs of a benchmark and return their number: all, those of these methods, or the failed ones.

        Observations of removed runs are removed too, except those of failed runs. Methods are named as they are stored.
        """
        names = tuple(methods)
        condition = "WHERE benchmark = ?" + (f" AND method IN ({', '.join('?' * len(names))})" if names else "")
        with self.wrap_errors("could not be changed"), self.transaction():
            if failed:
                condition += " AND status = 'failed'"
            else:
                self.database.execute(f"DELETE FROM observed {condition}", (benchmark, *names))
            return self.database.execute(f"DELETE FROM runs {condition}", (benchmark, *names)).rowcount

    def merge(self, other: Store) -> MergeSummary:
        """Add the runs of another store. On conflict, this store keeps its own result.

        Rows that are not valid are skipped.
        """
        with other.wrap_errors("cannot be read"):
            rows = other.database.execute(EVERY_RUN).fetchall()
            observed = other._all_observed()
        valid, damaged = list[dict[str, Any]](), list[str]()
        for row in rows:
            if (problem := row_problem(row)) is None:
                valid.append(dict(row))
            else:
                damaged.append(f"{row_name(row)} ({problem})")
        damaged += [
            f"{short(row['what'])} of {short(row['benchmark'])} {short(row['method'])} ({problem})"
            for row in observed
            if (problem := _observed_problem(row)) is not None
        ]
        added, known, conflicts = 0, 0, []
        with self.wrap_errors("could not be changed"), self.transaction():
            columns = [column["name"] for column in self.database.execute("PRAGMA table_info(runs)")]
            for row in valid:
                existing = self._valid_row(row["key"])
                if existing is None or (existing["status"] == "failed" and row["status"] == "finished"):
                    self._write({name: row.get(name) for name in columns})
                    added += 1
                elif row["status"] == "failed" or json.loads(existing["accuracy"]) == json.loads(row["accuracy"]):
                    known += 1
                    if row["status"] == "finished":  # the same run; the other one may have more measurements
                        values = {name: row.get(name) for name in ("key", *MEASURED)}
                        assignments = ", ".join(f"{name} = coalesce({name}, :{name})" for name in MEASURED)
                        self.database.execute(f"UPDATE runs SET {assignments} WHERE key = :key", values)
                        if existing["checksum"] is not None:
                            self._update_checksum(row["key"])
                else:
                    conflicts.append(row_name(row))
            before = self.database.total_changes
            self.database.executemany(
                f"INSERT OR IGNORE INTO observed ({OBSERVED}) VALUES (?, ?, ?, ?, ?, ?)",
                [tuple(row) for row in observed if _observed_problem(row) is None],
            )
            return MergeSummary(added, known, conflicts, self.database.total_changes - before, damaged)

    def _all_observed(self) -> list[sqlite3.Row]:
        if self._schema_version() < PROBE_SCHEMA:
            return []
        source = "observed" if self._schema_version() == SCHEMA_VERSION else "observed JOIN runs USING (key)"
        columns = OBSERVED.replace("recorded", "observed.recorded")
        return self.database.execute(f"SELECT {columns} FROM {source}").fetchall()

    def _rows(self, status: str | None, benchmark: str | None) -> sqlite3.Cursor:
        query = """
            SELECT * FROM runs WHERE status = coalesce(?, status) AND benchmark = coalesce(?, benchmark) ORDER BY rowid
        """
        return self.database.execute(query, (status, benchmark))

    def _find_row(self, key: str) -> Any:
        """Return the row of a run, or ``None``."""
        return self.database.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()

    def _valid_row(self, key: str) -> sqlite3.Row | None:
        """Return the row of a run; ``None`` if there is none, or one that is damaged and to be replaced."""
        row = self._find_row(key)
        return None if row is None or row_problem(row) is not None else row

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which would traverse thousands of runs again and again while they are read."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _switch_to_wal(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, retrying while other processes hold locks."""
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
        return row | {"status": "failed", "error": outcome.encode("utf-8", "backslashreplace").decode()}
    return row | {"status": "finished"} | encode_result(outcome)


def current_spec(benchmark: str, method: str, seed: int) -> RunSpec | None:
    """Return the run with these names, or ``None`` if the benchmark or method does not exist (any more).

    >>> str(current_spec("split-mnist", "er(lr=0.05)", 0)), current_spec("split-mnist", "of-another-time", 0)
    ('split-mnist er seed 0', None)
    """
    try:
        return RunSpec.parse(benchmark, method, seed)
    except GmedError:
        return None


class _CurrentSpecs:
    """The runs as the current code defines them, cached by benchmark and method."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, str], RunSpec | None] = {}

    def spec(self, row: sqlite3.Row) -> RunSpec | None:
        """Return the run that a row names, if its benchmark and method are known."""
        names, seed = (row["benchmark"], row["method"]), row["seed"]
        if [type(name) for name in (*names, seed)] != [str, str, int] or seed < 0:
            return None
        if names not in self._specs:
            self._specs[names] = current_spec(*names, 0)
        spec = self._specs[names]
        return None if spec is None else spec.at_seed(seed)

    def computed_by(self, row: sqlite3.Row) -> RunSpec | None:
        """Return the run of a row if the current code would reproduce it."""
        spec = self.spec(row)
        return spec if spec is not None and spec.key == row["key"] else None


def _names_spec(row: sqlite3.Row, spec: RunSpec) -> bool:
    """Return whether a row names the run of a specification; its method may have former names of parameters."""
    if (row["benchmark"], row["method"], row["seed"]) == (spec.benchmark.name, spec.method.name, spec.seed):
        return True
    named = _CurrentSpecs().spec(row)
    return named is not None and named.key == spec.key


def _timing(row: sqlite3.Row) -> Timing | None:
    """Return the time that the run of a row took, or ``None`` if it cannot be read."""
    try:
        device, seconds = json.loads(row["environment"]).get("device", ""), json.loads(row["timings"]).values()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not all(type(value) in (int, float) and 0 <= value <= GREATEST for value in seconds):
        return None
    return Timing(row["key"], row["benchmark"], row["method"], str(device), float(sum(seconds)))


def _observed_problem(row: Fields) -> str | None:
    """Return why the observations of a run cannot be read, or ``None`` if they can."""
    try:
        for text in dict(row).values():
            text.encode()
        json.loads(row["content"], parse_constant=_refuse_constant)
    except RecursionError:
        return "its lists are nested too deeply"
    except (ValueError, TypeError, AttributeError) as error:
        return str(error)
    return None


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a valid number")


decode_text = partial(str, encoding="utf-8", errors="surrogateescape")
"""Decodes stored text; bytes that are not UTF-8 become lone surrogates, which no valid row has."""
