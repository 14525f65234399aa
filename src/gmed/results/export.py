"""Files of runs: export as CSV, JSON (compressed or not) or Parquet, and the JSON documents read back."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from gmed.engine import RunResult
from gmed.errors import StoreError, UsageError, alternatives
from gmed.io.files import atomic_write, check_output_path, write_csv
from gmed.io.records import RecordError, decode, encode
from gmed.results.metrics import Metrics
from gmed.results.results import SCHEMA, Results
from gmed.results.store import Store, current_spec
from gmed.results.stored_runs import run_name

METRICS = [field.name for field in fields(Metrics) if field.name not in ("final", "pooled")]
COLUMNS = (
    *("benchmark", "method", "seed", "status", "final_accuracy", "pooled_accuracy", "steps"),
    *METRICS,
    *("accuracy", "untrained", "error"),
)

MAX_EXPANDED = 2**30
"""Maximum size in bytes of a decompressed document; otherwise a small file could fill the memory."""


def export(results: Results, path: Path) -> int:
    """Write one row per run, finished or failed, and return their number.

    The suffix of the file selects the format: .csv, .json, .json.xz or .parquet. The file is written atomically. The
    JSON is the documented document of ``gmed run --json``; .json.xz is the same, compressed to about an eighth.
    """
    check_exportable(path)
    with atomic_write(path) as file:
        WRITERS[_format(path)](results, file)
    return len(results.runs) + len(results.failures)


def check_exportable(path: Path) -> None:
    """Raise an error for a file of an unknown format, before results are read."""
    if _format(path) not in WRITERS:
        raise UsageError(f"{path}: the name must end in {alternatives([*WRITERS])}")
    check_output_path(path)


def is_document(path: Path) -> bool:
    """Return whether a file is a results document by its name.

    >>> [is_document(Path(name)) for name in ("runs.json", "runs.json.xz", "runs.db")]
    [True, True, False]
    """
    return _format(path) in (".json", ".json.xz")


def _format(path: Path) -> str:
    """Return the suffix that selects the format."""
    return "".join(path.suffixes[-2:]) if path.suffix == ".xz" else path.suffix


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


def _write_compressed_json(results: Results, file: BinaryIO) -> None:
    file.write(lzma.compress((json.dumps(results.to_dict()) + "\n").encode()))


def _write_parquet(results: Results, file: BinaryIO) -> None:
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise UsageError("writing Parquet needs pyarrow (pip install 'gmed[parquet]'), or use .csv") from None
    parquet.write_table(Table.from_pylist(rows(results)), file)


WRITERS: dict[str, Callable[[Results, BinaryIO], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".json.xz": _write_compressed_json,
    ".parquet": _write_parquet,
}


@dataclass(frozen=True)
class Document:
    """The finished runs of a results document.

    Attributes
    ----------
    keys
        The store key of each run, from the code that ran it; ``None`` in documents of older versions.

    Examples
    --------
    >>> import gmed, tempfile
    >>> results = gmed.run("split-mnist", ["finetune"], seeds=2, store=None, workers=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = export(results, Path(folder) / "results.json")
    ...     document = Document.read(Path(folder) / "results.json")
    >>> document.runs == results.runs
    True
    >>> with document.load_results() as store:
    ...     store.runs() == results.runs
    True
    """

    file: Path
    runs: list[RunResult]
    keys: list[str] | None

    @classmethod
    def read(cls, file: Path) -> Document:
        """Read a file, or raise an error that explains what is wrong with it."""
        if file.exists() and not file.is_file():
            raise StoreError(f"{file}: cannot be read (not a file)")
        try:
            content = json.loads(_read_text(file), parse_constant=_refuse_constant)
        except OSError as error:
            raise StoreError(f"{file}: cannot be read ({error.strerror})") from None
        except (lzma.LZMAError, EOFError) as error:
            raise StoreError(f"{file}: not a valid .xz file ({error}); it may be truncated") from None
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{file}: not valid JSON ({error}); it may be truncated") from None
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise StoreError(f"{file}: not a results document ({SCHEMA}) of gmed run --json or gmed export")
        if not isinstance(content.get("runs"), list):
            raise StoreError(f"{file}: has no list 'runs'")
        runs = []
        for index, run in enumerate(content["runs"]):
            try:
                runs.append(_decode_run(run))
            except RecordError as error:
                raise StoreError(f"{file}: runs[{index}]{_describe(run)} is invalid: {error}") from None
        keys = content.get("keys")
        if keys is not None and not _are_distinct_strings(keys, len(runs)):
            raise StoreError(f"{file}: 'keys' is not a list of {len(runs)} different keys, one for each run")
        return cls(file, runs, keys)

    def load_results(self) -> Store:
        """Return the runs that the current code would reproduce, in a store held in memory."""
        if self.keys is None:
            raise StoreError(
                f"{self.file}: has no list 'keys', so the versions behind its runs are unknown. "
                f"Export it again from the original store: gmed export {self.file.name}"
            )
        specs = [current_spec(run.benchmark, run.method, run.seed) for run in self.runs]
        candidates = zip(specs, self.runs, self.keys, strict=True)
        store = Store(":memory:")
        store.add_all([(spec, run) for spec, run, key in candidates if spec is not None and spec.key == key])
        return store


def _read_text(file: Path) -> str:
    """Return the text of a document; a compressed one may not expand beyond reason."""
    if file.suffix != ".xz":
        return file.read_text(encoding="utf-8")
    with lzma.open(file) as compressed:
        text = compressed.read(MAX_EXPANDED + 1)
    if len(text) > MAX_EXPANDED:
        raise StoreError(
            f"{file}: expands to more than {MAX_EXPANDED // 2**20} MiB; if you trust it, decompress it first"
        )
    return text.decode("utf-8")


def _are_distinct_strings(keys: object, count: int) -> bool:
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        return False
    return len(set(keys)) == len(keys) == count


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a valid number")


def _describe(content: object) -> str:
    names = [content.get(name) for name in ("benchmark", "method", "seed")] if isinstance(content, dict) else [None]
    return "" if None in names else f" ({run_name(*names)})"


def _decode_run(content: object) -> RunResult:
    """Decode a run of a document; its metrics are recomputed, not read."""
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if name != "metrics"}
    return decode(RunResult, content)
