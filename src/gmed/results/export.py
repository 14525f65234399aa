"""Export of runs as a table: CSV, JSON or Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from gmed.errors import UsageError
from gmed.io.files import atomic_write, check_output_path, write_csv
from gmed.io.records import encode
from gmed.results.metrics import Metrics
from gmed.results.results import Results

METRICS = [field.name for field in fields(Metrics) if field.name not in ("final", "pooled")]
COLUMNS = (
    *("benchmark", "method", "seed", "status", "final_accuracy", "pooled_accuracy", "steps"),
    *METRICS,
    *("accuracy", "untrained", "error"),
)


def export(results: Results, path: Path) -> int:
    """Write one row per run, finished or failed, and return their number.

    The suffix of the file selects the format: .csv, .json or .parquet. The file is written atomically. The JSON is the
    documented document of ``gmed run --json``.
    """
    check_exportable(path)
    with atomic_write(path) as file:
        WRITERS[path.suffix](results, file)
    return len(results.runs) + len(results.failures)


def check_exportable(path: Path) -> None:
    """Refuse a file that cannot be written in a known format, before results are read for it."""
    if path.suffix not in WRITERS:
        raise UsageError(f"{path}: the name must end in {', '.join(WRITERS)}")
    check_output_path(path)


def rows(results: Results) -> list[dict[str, Any]]:
    """Return the runs as plain rows; accuracies in 0 .. 1, the matrix as JSON, undefined values empty."""
    finished = [
        {
            **run.to_dict(),
            **encode(Metrics.of(run)),
            "status": "finished",
            "accuracy": json.dumps(run.accuracy),
            "untrained": None if run.untrained is None else json.dumps(run.untrained),
        }
        for run in results.runs
    ]
    failed = [{**vars(failure), "status": "failed"} for failure in results.failures]
    return [{name: row.get(name) for name in COLUMNS} for row in (*finished, *failed)]


def _write_csv(results: Results, file: BinaryIO) -> None:
    write_csv(file, COLUMNS, rows(results))


def _write_json(results: Results, file: BinaryIO) -> None:
    file.write((json.dumps(results.to_dict(), indent=2) + "\n").encode())


def _write_parquet(results: Results, file: BinaryIO) -> None:
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise UsageError("writing Parquet needs pyarrow (pip install 'gmed[parquet]'), or use .csv") from None
    parquet.write_table(Table.from_pylist(rows(results)), file)


WRITERS: dict[str, Callable[[Results, BinaryIO], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}
