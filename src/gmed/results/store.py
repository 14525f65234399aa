from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from gmed.engine import RunResult, RunSpec
from gmed.errors import GmedError, StoreError
from gmed.results.results import Failure

SCHEMA_VERSION = 1

_SCHEMA = """
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
        try:
            self._db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found > SCHEMA_VERSION:
                raise StoreError(
                    f"{self.path}: written by a newer gmed (schema {found}, this one knows {SCHEMA_VERSION}). "
                    "Upgrade gmed, or choose another --store."
                )
            if found == 0:
                self._create()
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path}: cannot be used as a results store ({error}). Check the folder and its permissions, "
                "or choose another --store."
            ) from error

    def _create(self) -> None:
        with self._transaction():
            tables = self._db.execute("SELECT name FROM sqlite_master").fetchall()
            if tables and self._db.execute("PRAGMA user_version").fetchone()[0] == 0:
                raise StoreError(f"{self.path}: an SQLite file of something else; choose another --store.")
            if not tables:  # another process may have been quicker
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._db.execute("PRAGMA journal_mode = WAL")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def find(self, spec: RunSpec) -> RunResult | None:
        """The finished run of this specification, if there is one."""
        row = self._db.execute("SELECT * FROM runs WHERE key = ? AND status = 'finished'", (spec.key,)).fetchone()
        return None if row is None else _result(row)

    def add(self, spec: RunSpec, outcome: RunResult | str) -> None:
        """Keep a finished run, or the error of a failed one. A failure never replaces a finished run."""
        row = {
            "key": spec.key,
            "benchmark": spec.benchmark.name,
            "method": spec.method.name,
            "seed": spec.seed,
            "config": json.dumps(spec.config()),
            "versions": json.dumps(spec.versions()),
            "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        if isinstance(outcome, str):
            row |= {"status": "failed", "error": outcome}
        else:
            row |= {
                "status": "finished",
                "steps": outcome.steps,
                "final_accuracy": outcome.final_accuracy,
                "pooled_accuracy": outcome.pooled_accuracy,
                "accuracy": json.dumps(outcome.accuracy),
                "timings": json.dumps(outcome.timings),
                "environment": json.dumps(outcome.environment),
            }
        names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
        try:
            with self._transaction():
                if row["status"] == "failed":
                    self._db.execute("DELETE FROM runs WHERE key = :key AND status = 'failed'", row)
                    self._db.execute(f"INSERT OR IGNORE INTO runs ({names}) VALUES ({marks})", row)
                else:
                    self._db.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", row)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: a result could not be written ({error})") from error

    def runs(self, benchmark: str | None = None) -> list[RunResult]:
        """Every finished run whose parts still have the versions that computed it, oldest first."""
        return [_result(row) for row in self._rows("finished", benchmark) if _current(row)]

    def outdated(self, benchmark: str | None = None) -> int:
        """How many finished runs were computed by other versions of their parts."""
        return sum(not _current(row) for row in self._rows("finished", benchmark))

    def failures(self, benchmark: str | None = None) -> list[Failure]:
        return [
            Failure(row["benchmark"], row["method"], row["seed"], row["error"])
            for row in self._rows("failed", benchmark)
            if _current(row)
        ]

    def _rows(self, status: str, benchmark: str | None) -> list[sqlite3.Row]:
        query = "SELECT * FROM runs WHERE status = ? AND benchmark = coalesce(?, benchmark) ORDER BY rowid"
        return self._db.execute(query, (status, benchmark)).fetchall()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _result(row: sqlite3.Row) -> RunResult:
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
    )


def _current(row: sqlite3.Row) -> bool:
    try:
        return bool(RunSpec.make(row["benchmark"], row["method"], row["seed"]).key == row["key"])
    except GmedError:  # a benchmark or method that no longer exists
        return False
