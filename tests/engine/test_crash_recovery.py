"""A sweep that is killed repeatedly ends with the results of an uninterrupted one."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import gmed

pytestmark = pytest.mark.slow

METHODS = ["er+gmed", "mir+gmed", "gem+gmed", "hal"]
KILLS = int(os.environ.get("GMED_KILLS", "5"))
SEEDS = max(2, KILLS // 10)


def start(store):
    words = ["run", "split-mnist", *METHODS, "--seeds", str(SEEDS), "--device", "cpu", "--workers", "2", "--json"]
    words += ["--store", str(store), "--checkpoint-every", "0.1"]
    return subprocess.Popen(
        [sys.executable, "-m", "gmed.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def kill_with_its_workers(process):
    process.send_signal(signal.SIGSTOP)  # it starts no more of them
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")  # each knows those that it started itself
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    process.kill()
    for child in children:
        os.kill(child, signal.SIGKILL)
    process.wait()
    return len(children)


def has_kept_something(process, folder):
    """Wait until a checkpoint is written; whether one was before the process ended."""
    known = set(written(folder))
    while process.poll() is None:
        if set(written(folder)) - known:
            return True
        time.sleep(0.01)
    return False


def written(folder):
    for path in folder.glob("*.safetensors"):
        with suppress(FileNotFoundError):
            yield path, path.stat().st_mtime_ns


def stored(store):
    """How many results are in the store."""
    with suppress(sqlite3.OperationalError), sqlite3.connect(store) as db:  # it may not have been made yet
        return db.execute("SELECT count(*) FROM runs").fetchone()[0]
    return 0


def test_repeatedly_killed_sweep_ends_with_the_same_results(tmp_path, capsys):
    store = tmp_path / "killed.db"
    chance = random.Random(0)
    unfinished = Path(f"{store}.unfinished")
    kills = with_checkpoint = without_workers = in_a_write = most = 0
    began = time.monotonic()
    while kills < KILLS:
        process = start(store)
        if kills % 4:
            with_checkpoint += has_kept_something(process, unfinished)
            time.sleep(chance.uniform(0.0, 0.8))
        else:
            time.sleep(chance.uniform(0.0, 8.0))  # at any moment, the first ones included
        if process.poll() is not None:
            break  # it finished before it could be killed
        kills += 1
        without_workers += not kill_with_its_workers(process)
        in_a_write += any(unfinished.glob(".*.tmp"))
        assert stored(store) >= most  # nothing that was stored is lost
        most = stored(store)

    last = start(store)
    document = json.loads(last.communicate(timeout=30 * KILLS)[0])
    assert last.returncode == 0
    reference = gmed.run("split-mnist", METHODS, seeds=SEEDS, device="cpu", store=None, workers=2)
    expected = {(run.method, run.seed): run.accuracy for run in reference.runs}
    assert {(run["method"], run["seed"]): run["accuracy"] for run in document["runs"]} == expected
    with sqlite3.connect(store) as db:
        assert db.execute("SELECT count(*), count(DISTINCT key) FROM runs").fetchone() == (4 * SEEDS, 4 * SEEDS)

    resumed = [int(at) for run in document["runs"] for at in _resumed(run)]
    assert kills == KILLS
    assert with_checkpoint >= KILLS // 2
    assert min(resumed) > 0
    assert len(resumed) >= KILLS // 2
    assert not unfinished.exists()
    with capsys.disabled():
        print(
            f"\n{kills} kills in {time.monotonic() - began:,.0f} s: {without_workers} before workers were there, "
            f"{in_a_write} within a write of a checkpoint, {with_checkpoint} after a new checkpoint; {len(resumed)} "
            f"resumptions, {len(expected)} of {4 * SEEDS} results as without kills, nothing left behind"
        )


def _resumed(run):
    return run["environment"].get("resumed at example", "").replace(",", " ").split()
