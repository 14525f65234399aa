"""Concurrent sweeps on one store compute nothing twice and lose nothing."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gmed
from gmed import experiment
from gmed.engine import RunSpec
from gmed.errors import StoreError
from gmed.results import Store, SweepClaims
from gmed.results.claims import STALE_SECONDS, active_sweeps, is_alive, process_start_time, this_host, this_process
from gmed.results.store import SCHEMA_VERSION

SPECS = [RunSpec.make("split-mnist", "finetune", seed) for seed in range(4)]
FILES = Path(__file__).parents[1] / "files"


def test_claims_are_exclusive_and_released(tmp_path):
    with Store(tmp_path / "a.db") as one, Store(tmp_path / "a.db") as two:
        with SweepClaims(one) as first:
            assert first.claim(SPECS[:3]) == SPECS[:3]
            with SweepClaims(two) as second:
                assert second.claim(SPECS) == SPECS[3:]
                assert first.claim(SPECS) == SPECS[:3]
        with SweepClaims(two) as third:
            assert third.claim(SPECS) == SPECS


def test_stored_result_ends_its_claim(tmp_path):
    with Store(tmp_path / "a.db") as store, SweepClaims(store) as sweep:
        sweep.claim(SPECS)
        store.add_all([(SPECS[0], "boom"), (SPECS[1], "bang")])
        assert [key for (key,) in store.database.execute("SELECT key FROM claims ORDER BY rowid")] == [
            SPECS[2].key,
            SPECS[3].key,
        ]


def test_sweep_presumed_dead_continues_with_the_rest(tmp_path):
    with Store(tmp_path / "a.db") as one, Store(tmp_path / "a.db") as two, SweepClaims(one) as first:
        first.claim(SPECS[:2])
        two.database.execute("DELETE FROM sweeps")
        with SweepClaims(two) as second:
            assert second.number == first.number  # SQLite gives the number again
            assert second.claim(SPECS[:2]) == SPECS[:2]
            assert first.claim(SPECS) == SPECS[2:]
            assert second.claim(SPECS) == SPECS[:2]


def test_dead_sweep_loses_its_claims(tmp_path):
    claiming = (
        "import sys, time; from gmed.engine import RunSpec; from gmed.results import Store, SweepClaims\n"
        "with Store(sys.argv[1]) as store, SweepClaims(store) as sweep:\n"
        "    sweep.claim([RunSpec.make('split-mnist', 'finetune', 0)]); print('ready', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", claiming, str(tmp_path / "a.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with Store(tmp_path / "a.db") as store, SweepClaims(store) as sweep:
            assert sweep.claim(SPECS) == SPECS[1:]
            process.kill()
            deadline = time.monotonic() + 10
            while sweep.claim(SPECS) != SPECS:  # it may still be dying
                assert time.monotonic() < deadline


def test_liveness_of_a_sweep():
    here, now = this_host(), time.time()
    assert is_alive(here, this_process(), 0.0) or not sys.platform.startswith("linux")
    assert not is_alive(here, f"{os.getpid()} 1", now)  # another process that had this number
    assert is_alive(f"{here} in a container", f"{os.getpid()} 1", now)
    assert is_alive("elsewhere", "1 1", now)
    assert not is_alive("elsewhere", "1 1", now - STALE_SECONDS - 1)
    assert process_start_time(2**22 + 1) == ""


@pytest.mark.parametrize("process", ["", "nonsense", "x 1 y", f"{'9' * 5000} 1 y"])
def test_damaged_sweep_record_does_not_block_others(tmp_path, process):
    with Store(tmp_path / "r.db") as store, SweepClaims(store) as sweep:
        assert sweep.claim(SPECS) == SPECS
        store.database.execute("UPDATE sweeps SET host = ?, process = ?", (this_host(), process))
        assert active_sweeps(store) == []
        with SweepClaims(store) as other:
            assert other.claim(SPECS) == SPECS


def start(store, *words):
    command = [sys.executable, "-m", "gmed.cli", "run", "split-mnist", *words, "--device", "cpu", "--workers", "1"]
    return subprocess.Popen(
        [*command, "--json", "--store", str(store)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_concurrent_sweeps_compute_each_run_once(tmp_path):
    """They overlap; each ends with all that it was asked for, and every run was computed by one of them."""
    store = tmp_path / "shared.db"
    sweeps = [start(store, "er", "er+gmed", "--seeds", "3"), start(store, "er+gmed", "finetune", "--seeds", "4")]
    documents = []
    for sweep in sweeps:
        out, err = sweep.communicate(timeout=300)
        assert sweep.returncode == 0, err
        documents.append(json.loads(out))
    assert [len(document["runs"]) for document in documents] == [6, 8]
    shared = [
        {(r["method"], r["seed"]): r["timings"] for r in d["runs"] if r["method"] == "er+gmed" and r["seed"] < 3}
        for d in documents
    ]
    assert len(shared[0]) == 3
    assert shared[0] == shared[1]  # the same computation, to the microsecond: none was made twice
    with sqlite3.connect(store) as db:
        assert db.execute("SELECT count(*), count(DISTINCT key) FROM runs").fetchone() == (11, 11)
        assert db.execute("SELECT count(*) FROM claims").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM sweeps").fetchone() == (0,)


@pytest.mark.slow
def test_killed_sweep_is_finished_by_the_other(tmp_path):
    store = tmp_path / "shared.db"
    first = start(store, "er+gmed", "--seeds", "3")
    while not claims(store):
        assert first.poll() is None
    second = start(store, "er+gmed", "--seeds", "3")
    time.sleep(2.0)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text(encoding="utf-8").split()
    first.kill()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    first.communicate()
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0, err
    assert len(json.loads(out)["runs"]) == 3


def claims(store):
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db:
            return db.execute("SELECT count(*) FROM claims").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.slow
def test_failure_in_another_sweep_counts_here(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "POLL_SECONDS", 0.01)
    with Store(tmp_path / "a.db") as store, SweepClaims(store) as other:
        other.claim(SPECS[:1])
        monkeypatch.setattr(time, "sleep", lambda seconds: store.add(SPECS[0], "it diverged there"))
        results = gmed.run("split-mnist", "finetune", seeds=1, device="cpu", workers=0, store=tmp_path / "a.db")
    assert [failure.error for failure in results.failures] == ["it diverged there"]
    again = gmed.run("split-mnist", "finetune", seeds=1, device="cpu", workers=0, store=tmp_path / "a.db")
    assert len(again.runs) == 1 and not again.failures  # but it is tried again when asked for again


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_older_schema_is_migrated(tmp_path, schema):
    old = tmp_path / "old.db"
    shutil.copy(FILES / f"store-schema-{schema}.db", old)
    with Store(old) as store:
        assert store.database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        rows = store.database.execute("SELECT method, seed, status FROM runs ORDER BY method, seed").fetchall()
        assert [tuple(row) for row in rows] == [
            ("er", 0, "failed"),
            ("er+gmed", 0, "finished"),
            ("er+gmed", 1, "finished"),
        ]
        with SweepClaims(store) as sweep:
            assert sweep.claim(SPECS) == SPECS


def test_failed_migration_leaves_the_store_unchanged(tmp_path, monkeypatch):
    old = tmp_path / "old.db"
    shutil.copy(FILES / "store-schema-1.db", old)
    before = old.read_bytes()
    monkeypatch.setattr("gmed.results.store.MIGRATIONS", ["", "CREATE TABLE sweeps (id INTEGER); NONSENSE"])
    with pytest.raises(StoreError, match=r"old\.db"):
        Store(old)
    assert old.read_bytes() == before
