"""gmed doctor: check an installation and a store; nothing is changed."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from gmed._version import __version__
from gmed.cli.console import DONE, EXIT_USAGE, make_console, render_table
from gmed.cli.options import StoreFile
from gmed.data.registry import DATASETS
from gmed.editing import edit_examples
from gmed.engine.executors.local import default_workers
from gmed.errors import DataError, StoreError
from gmed.experiment import default_store, unfinished_runs
from gmed.results.connection import StoreConnection
from gmed.results.store import APPLICATION_ID, EVERY_RUN, SCHEMA_VERSION, decode_text
from gmed.results.stored_runs import row_name, row_problem
from gmed.results.tables import Cell, Table, texts

SOUND, NOTE, PROBLEM = "ok", "note", "problem"

NAMED = 20
"""How many damaged runs are named."""

MIN_FREE_BYTES = 2**30
"""Bytes on a disk below which a sweep's checkpoints may not fit."""


@dataclass(frozen=True)
class Sign:
    """Something found.

    Attributes
    ----------
    about
        What it concerns.
    state
        ``ok``, ``note`` (something is missing that may be wanted) or ``problem``.
    text
        What was found, and what to do where something should be done.
    """

    about: str
    state: str
    text: str


def run_checks(store: str | Path) -> list[Sign]:
    """Look at versions, arithmetic, the device, threads, extras, data sets and a store.

    >>> [sign.state for sign in run_checks("there-is-none.db") if sign.about == "store"]
    ['note']
    """
    return [*_versions(), _check_edit(), _device(), *_threads(), *_extras(), *_data(), *_store(Path(store))]


def _versions() -> Iterator[Sign]:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Sign("gmed", SOUND, f"{__version__}; {system}")
    yield Sign("packages", SOUND, f"torch {torch.__version__}, numpy {np.__version__}")


def _check_edit() -> Sign:
    """Compare an edit of a linear model with what the formula gives by hand."""
    model, x, y = torch.nn.Linear(3, 2).double(), torch.eye(3).double(), torch.tensor([0, 1, 0])
    edited = edit_examples(model, x, y, x, y, lr=0.5, alpha=1.0, beta=0.1)
    weight, bias = model.weight.detach(), model.bias.detach()
    target = torch.nn.functional.one_hot(y, 2)

    def slope_of_output(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ weight.T + bias, 1) - target) / len(y)

    before = slope_of_output(weight, bias)
    weight_ahead, bias_ahead = weight - 0.5 * before.T @ x, bias - 0.5 * before.sum(0)
    expected = x + slope_of_output(weight_ahead, bias_ahead) @ weight_ahead - 1.1 * before @ weight
    if torch.allclose(edited, expected, rtol=1e-9, atol=1e-12):
        return Sign("arithmetic", SOUND, "an edit comes out as by hand")
    return Sign("arithmetic", PROBLEM, "an edit of a linear model comes out wrong: reinstall torch, or try another one")


def _device() -> Sign:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        return Sign("device", SOUND, f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free")
    if torch.version.cuda is not None:
        return Sign("device", NOTE, f"CPU: torch is built for CUDA {torch.version.cuda}, but sees no device or driver")
    return Sign("device", SOUND, "CPU: this torch is built without CUDA")


def _threads() -> Iterator[Sign]:
    cores = default_workers(on_gpu=False)
    yield Sign("threads", SOUND, f"{cores} usable cores: gmed run starts as many workers, of one torch thread each")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cores:
        yield Sign("threads", NOTE, f"the machine is busy (load {load:.1f} on {cores} cores): timings will be poor")


def _extras() -> Iterator[Sign]:
    try:
        required = metadata.requires("gmed") or []
    except metadata.PackageNotFoundError:
        yield Sign("extras", NOTE, "gmed runs from a folder and is not installed, so its extras are not known")
        return
    lacking: dict[str, list[str]] = {}
    for line in required:
        wanted, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if wanted and extra and extra[1] not in ("dev", "docs"):
            missing = [] if _installed(wanted[0]) else [wanted[0]]
            lacking[extra[1]] = lacking.get(extra[1], []) + missing
    if there := [name for name, missing in lacking.items() if not missing]:
        yield Sign("extras", SOUND, f"installed: {', '.join(there)}")
    for name, missing in lacking.items():
        if missing:
            yield Sign("extras", NOTE, f"{name}: without {', '.join(missing)}; pip install 'gmed[{name}]'")


def _installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _data() -> Iterator[Sign]:
    for entry in DATASETS.values():
        try:
            yield Sign("data", SOUND, f"{entry.name} is in {entry.find(None)}")
        except DataError:
            yield Sign("data", NOTE, f"{entry.name} is not here; gmed data says how to get it")


def _store(path: Path) -> Iterator[Sign]:
    if not path.exists():
        yield Sign("store", NOTE, f"{path} does not exist yet; gmed run makes it")
    else:
        yield from _opened(path)
    folder = next(place for place in path.resolve().parents if place.exists())
    if not os.access(folder, os.W_OK):
        yield Sign("store", PROBLEM, f"{folder} cannot be written to; choose another --store")
    elif (free := shutil.disk_usage(folder).free) < MIN_FREE_BYTES:
        yield Sign("store", NOTE, f"only {free / 2**20:.0f} MiB are free in {folder}")


def _opened(path: Path) -> Iterator[Sign]:
    try:
        opened = StoreConnection(str(path), to_write=False)
        try:
            yield from _looked_at(path, opened.database)
            opened.check_unchanged()
        finally:
            opened.close()
    except sqlite3.Error as error:
        yield Sign("store", PROBLEM, f"{path} cannot be read ({error}); choose another --store")
    except StoreError as error:
        yield Sign("store", PROBLEM, str(error))


def _looked_at(path: Path, database: sqlite3.Connection) -> Iterator[Sign]:
    database.row_factory, database.text_factory = sqlite3.Row, decode_text
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    if verdict != "ok":
        yield Sign("store", PROBLEM, f"{path} is damaged ({verdict}); gmed merge takes what can be read into a new one")
    elif application != APPLICATION_ID:
        yield Sign("store", PROBLEM, f"{path} is an SQLite file of something else; choose another --store")
    elif schema > SCHEMA_VERSION:
        yield Sign("store", PROBLEM, f"{path} was written by a newer gmed; upgrade, or choose another --store")
    elif damaged := [f"{row_name(row)}: {why}" for row in database.execute(EVERY_RUN) if (why := row_problem(row))]:
        yield Sign(
            "store",
            PROBLEM,
            f"{path} holds {len(damaged)} damaged run{'s' * (len(damaged) > 1)}; gmed run computes a run again and "
            "replaces it, gmed rm removes it, and gmed merge takes all others into a new store",
        )
        for text in damaged[:NAMED]:
            yield Sign("store", PROBLEM, text)
        if len(damaged) > NAMED:
            yield Sign("store", NOTE, f"and {len(damaged) - NAMED} more")
    else:
        counts = database.execute("SELECT status, count(*) FROM runs GROUP BY status ORDER BY status").fetchall()
        runs = ", ".join(f"{count} {status}" for status, count in counts) or "no"
        older = "" if schema == SCHEMA_VERSION else f"; of schema {schema}, brought to {SCHEMA_VERSION} when next used"
        yield Sign("store", SOUND, f"{path} is sound: {runs} runs, {len(unfinished_runs(path))} unfinished{older}")


COLORS = {SOUND: "green", NOTE: "yellow", PROBLEM: "bold red"}


def register_doctor(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command("doctor")(_doctor)


def _doctor(
    store: StoreFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else")] = False,
) -> None:
    """Look at versions, device, threads, extras, data sets and the store; change nothing."""
    signs = run_checks(store or default_store())
    problems = sum(sign.state == PROBLEM for sign in signs)
    if as_json:
        print(json.dumps([asdict(sign) for sign in signs], indent=2))
    else:
        shown = Table(texts("", "", ""))
        said = ""
        for sign in signs:
            about, said = (sign.about if sign.about != said else ""), sign.about
            shown.add(about, Cell(sign.state, color=COLORS[sign.state]), sign.text)
        console = make_console()
        console.print(render_table(shown))
        console.print(f"\n{problems} problem{'s' * (problems != 1)}" if problems else "\nNo problems.")
    raise typer.Exit(EXIT_USAGE if problems else DONE)
