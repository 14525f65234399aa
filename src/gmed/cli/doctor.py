"""The doctor command: read-only checks of the installation and a store."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
import typer

from gmed._version import __version__
from gmed.cli.console import make_console, print_json, render_table
from gmed.cli.exit import EXIT_OK, EXIT_USAGE
from gmed.cli.options import Json, StoreFile
from gmed.data.registry import DATASETS
from gmed.editing import edit_examples
from gmed.engine.executors.local import default_workers
from gmed.errors import DataError, StoreError
from gmed.experiment import default_store, unfinished_runs
from gmed.results.connection import StoreConnection
from gmed.results.store import APPLICATION_ID, EVERY_RUN, SCHEMA_VERSION, decode_text
from gmed.results.stored_runs import row_name, row_problem
from gmed.results.tables import Cell, Table, texts

OK, NOTE, PROBLEM = "ok", "note", "problem"

MAX_NAMED = 20
"""Maximum number of damaged runs to list."""

MIN_FREE_BYTES = 2**30
"""Free bytes on a disk below which the checkpoints of a sweep may not fit."""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes
    ----------
    about
        The subject of the check.
    state
        ``ok``, ``note`` (something optional is missing) or ``problem``.
    text
        The result, and what to do about a problem.
    """

    about: str
    state: str
    text: str


Result = tuple[str, str]
"""The state and the text of a finding."""


def run_checks(store: str | Path) -> list[Finding]:
    """Check versions, arithmetic, the device, threads, extras, data sets and a store.

    >>> [finding.state for finding in run_checks("there-is-none.db") if finding.about == "store"]
    ['note']
    """
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    checks: dict[str, Iterable[Result]] = {
        "gmed": [(OK, f"{__version__}; {system}")],
        "packages": [(OK, f"torch {torch.__version__}, numpy {np.__version__}")],
        "arithmetic": [_check_edit()],
        "device": [_check_device()],
        "threads": _check_threads(),
        "extras": _check_extras(),
        "data": _check_data(),
        "store": _check_store(Path(store)),
    }
    return [Finding(about, state, text) for about, results in checks.items() for state, text in results]


def _check_edit() -> Result:
    """Compare an edit of a linear model with the closed-form result."""
    model, x, y = torch.nn.Linear(3, 2).double(), torch.eye(3).double(), torch.tensor([0, 1, 0])
    edited = edit_examples(model, x, y, x, y, lr=0.5, alpha=1.0, beta=0.1)
    weight, bias = model.weight.detach(), model.bias.detach()
    target = torch.nn.functional.one_hot(y, 2)

    def output_grad(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ weight.T + bias, 1) - target) / len(y)

    grad = output_grad(weight, bias)
    next_weight, next_bias = weight - 0.5 * grad.T @ x, bias - 0.5 * grad.sum(0)
    expected = x + output_grad(next_weight, next_bias) @ next_weight - 1.1 * grad @ weight
    if torch.allclose(edited, expected, rtol=1e-9, atol=1e-12):
        return OK, "self-test passed: an edit matches the closed-form result"
    return PROBLEM, "self-test failed: an edit is wrong; reinstall torch or try another version"


def _check_device() -> Result:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return OK, f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    if torch.version.cuda is not None:
        return NOTE, f"CPU: torch is built for CUDA {torch.version.cuda}, but found no device or driver"
    return OK, "CPU: this torch is built without CUDA"


def _check_threads() -> Iterator[Result]:
    cores = default_workers(on_gpu=False)
    yield OK, f"{cores} usable cores: gmed run starts {cores} workers with one torch thread each"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        yield NOTE, f"the machine is busy (load {load:.1f} on {cores} cores): timings will be unreliable"


def _check_extras() -> Iterator[Result]:
    try:
        required = metadata.requires("gmed") or []
    except metadata.PackageNotFoundError:
        yield NOTE, "gmed runs from a source folder and is not installed, so its extras are unknown"
        return
    missing_by_extra: dict[str, list[str]] = {}
    for line in required:
        requirement, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if requirement and extra and extra[1] not in ("dev", "docs"):
            missing = [] if _is_installed(requirement[0]) else [requirement[0]]
            missing_by_extra[extra[1]] = missing_by_extra.get(extra[1], []) + missing
    if installed := [name for name, missing in missing_by_extra.items() if not missing]:
        yield OK, f"installed: {', '.join(installed)}"
    for name, missing in missing_by_extra.items():
        if missing:
            yield NOTE, f"{name}: {', '.join(missing)} missing; pip install 'gmed[{name}]'"


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _check_data() -> Iterator[Result]:
    for entry in DATASETS.values():
        try:
            yield OK, f"{entry.name} is in {entry.find(None)}"
        except DataError:
            yield NOTE, f"{entry.name} is missing; run gmed data to see how to get it"


def _check_store(path: Path) -> Iterator[Result]:
    if not path.exists():
        yield NOTE, f"{path} does not exist yet; gmed run creates it"
    else:
        yield from _check_file(path)
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not os.access(folder, os.W_OK):
        yield PROBLEM, f"{folder} cannot be written to; choose another --store"
    elif (free := shutil.disk_usage(folder).free) < MIN_FREE_BYTES:
        yield NOTE, f"only {free / 2**20:.0f} MiB are free in {folder}"


def _check_file(path: Path) -> Iterator[Result]:
    try:
        connection = StoreConnection(str(path), to_write=False)
        try:
            yield from _check_database(path, connection.database)
            connection.check_unchanged()
        finally:
            connection.close()
    except sqlite3.Error as error:
        yield PROBLEM, f"{path} cannot be read ({error}); choose another --store"
    except StoreError as error:
        yield PROBLEM, str(error)


def _check_database(path: Path, database: sqlite3.Connection) -> Iterator[Result]:
    database.row_factory, database.text_factory = sqlite3.Row, decode_text
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    if verdict != "ok":
        yield PROBLEM, f"{path} is damaged ({verdict}); gmed merge copies what can be read to a new store"
    elif application != APPLICATION_ID:
        yield PROBLEM, f"{path} is an SQLite file of another program; choose another --store"
    elif schema > SCHEMA_VERSION:
        yield PROBLEM, f"{path} was written by a newer gmed; upgrade, or choose another --store"
    elif damaged := [
        f"{row_name(row)}: {problem}" for row in database.execute(EVERY_RUN) if (problem := row_problem(row))
    ]:
        yield (
            PROBLEM,
            f"{path} holds {len(damaged)} damaged run{'s' * (len(damaged) > 1)}; gmed run recomputes and "
            "replaces a run, gmed rm removes it, and gmed merge copies all others to a new store",
        )
        for text in damaged[:MAX_NAMED]:
            yield PROBLEM, text
        if len(damaged) > MAX_NAMED:
            yield NOTE, f"and {len(damaged) - MAX_NAMED} more"
    else:
        counts = database.execute("SELECT status, count(*) FROM runs GROUP BY status ORDER BY status").fetchall()
        runs = ", ".join(f"{count} {status}" for status, count in counts) or "no"
        older = "" if schema == SCHEMA_VERSION else f"; schema {schema}, upgraded to {SCHEMA_VERSION} on next use"
        yield OK, f"{path} is valid: {runs} runs, {len(unfinished_runs(path))} unfinished{older}"


COLORS = {OK: "green", NOTE: "yellow", PROBLEM: "bold red"}


def doctor(
    store: StoreFile = None,
    as_json: Json = False,
) -> None:
    """Check the installation, data sets and store. Nothing is changed."""
    findings = run_checks(store or default_store())
    problems = sum(finding.state == PROBLEM for finding in findings)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(texts("", "", ""))
        previous = ""
        for finding in findings:
            about, previous = (finding.about if finding.about != previous else ""), finding.about
            table.add(about, Cell(finding.state, color=COLORS[finding.state]), finding.text)
        console = make_console()
        console.print(render_table(table))
        console.print(f"\n{problems} problem{'s' * (problems != 1)}" if problems else "\nNo problems.")
    raise typer.Exit(EXIT_USAGE if problems else EXIT_OK)
