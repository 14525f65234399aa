"""The store: round trips, older schemas, merging, observations and failures."""

import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gmed.engine import RunSpec
from gmed.errors import StoreError
from gmed.results import Store
from gmed.results.store import DamagedRunWarning
from helpers import make_result

SPEC = RunSpec.make("split-mnist", "er+gmed", seed=3)
FILES = Path(__file__).parents[1] / "files"


def result(accuracy=0.8, method="er+gmed", seed=3):
    return replace(make_result(method, seed, accuracy), accuracy=[[0.5, 0.1], [accuracy, accuracy]])


def test_stored_result_round_trips(tmp_path):
    with Store(tmp_path / "r.db") as store:
        assert store.find(SPEC) is None
        store.add(SPEC, result())
    with Store(tmp_path / "r.db") as store:
        assert store.find(SPEC) == result()
        assert store.runs() == [result()]
        assert store.runs("rotated-mnist") == []
        assert store.database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        row = store.database.execute("SELECT * FROM runs").fetchone()
    assert '"alpha": 5.0' in row["config"]
    assert '"GMED": 1' in row["versions"]


def test_optional_measurements_are_kept_and_filled_in(tmp_path):
    full = replace(
        result(), untrained=[0.1, 0.2], passes={"forward": 1.998, "backward": 1.5}, prequential=0.7,
        memory=[[3, 0], [2, 1]], overhead={"examples": 500.0, "bytes": 1580008},
    )  # fmt: skip
    with Store(tmp_path / "r.db") as store, Store(tmp_path / "other.db") as other:
        store.add(SPEC, result())
        other.add(SPEC, full)
        assert other.find(SPEC) == full
        assert store.merge(other).known == 1
        assert store.find(SPEC) == full
        other.add(SPEC, result())
        assert store.merge(other).known == 1
        assert store.find(SPEC) == full


def test_read_only_store_of_an_older_schema_is_read(monkeypatch):
    monkeypatch.setattr("gmed.results.connection.is_writable", lambda path: False)
    with Store(FILES / "store-schema-2.db") as store:
        assert [run.seed for run in store.runs()] == [0, 1]
        assert all(run.untrained is run.passes is run.prequential is None for run in store.runs())
    with Store(FILES / "store-schema-3.db") as store:
        assert [run.passes["forward"] for run in store.runs()] == [3.994, 3.994]
        assert all(run.memory is None for run in store.runs())
        assert store.get_probe(SPEC, "edits") is None
    with Store(FILES / "store-schema-4.db") as store:
        assert [run.overhead for run in store.runs()] == [None, None]
    with Store(FILES / "store-schema-5.db") as store:
        assert len(store.runs()) == len(store.keys()) == 2
        assert len(store.keys("edits")) == 1


def test_method_overhead_is_migrated_out_of_the_environment(tmp_path):
    shutil.copy(FILES / "store-schema-4.db", tmp_path / "r.db")
    with Store(tmp_path / "r.db") as store:
        plain, replaying = store.runs()
        assert plain.overhead == {"examples": 0.0, "bytes": 0}
        assert replaying.overhead == {"examples": 100.0, "bytes": 316008}
        assert replaying.environment.keys() == {"gmed", "python", "torch", "numpy", "device", "machine"}


def test_read_only_older_store_can_be_merged(monkeypatch):
    with Store(":memory:") as here:
        monkeypatch.setattr("gmed.results.connection.is_writable", lambda path: False)
        with Store(FILES / "store-schema-3.db") as older:
            assert here.merge(older).added == 3
        with Store(FILES / "store-schema-5.db") as older:
            assert (here.merge(older).observed, here.keys("edits")) == (1, older.keys("edits"))
        assert here.remove("split-mnist", ["er(memory=100)+gmed"]) == 1 and not here.keys("edits")


def test_observations_are_removed_with_the_run():
    with Store(":memory:") as store, Store(":memory:") as other:
        store.add(SPEC, result())
        store.put_probe(SPEC, "edits", [1, 2])
        other.merge(store)
        assert other.get_probe(SPEC, "edits") == [1, 2]
        assert other.get_probe(SPEC, "something else") is None
        other.remove("split-mnist")
        assert other.get_probe(SPEC, "edits") is None


def test_observations_without_a_run_are_kept_until_removed():
    elsewhere = RunSpec.make("rotated-mnist", "er", seed=0)
    with Store(":memory:") as store, Store(":memory:") as other:
        store.put_probe(SPEC, "edits", [1, 2])
        store.add(elsewhere, "boom")
        assert store.remove("rotated-mnist") == 1
        assert store.remove("split-mnist", ["er"]) == store.remove("split-mnist", failed=True) == 0
        other.merge(store)
        assert other.get_probe(SPEC, "edits") == store.get_probe(SPEC, "edits") == [1, 2]
        assert other.keys("edits") == {SPEC.key} and not other.keys()
        other.remove("split-mnist", ["er+gmed"])
        assert not other.keys("edits")


def test_observations_of_older_stores_are_found_by_method(tmp_path):
    shutil.copy(FILES / "store-schema-5.db", tmp_path / "r.db")
    watched = RunSpec.make("split-mnist", "er(memory=100)+gmed", seed=0)
    with Store(tmp_path / "r.db") as store:
        assert store.get_probe(watched, "edits") == {"changed": 3}
        store.remove("split-mnist", ["er(memory=100)"])
        assert store.keys("edits") == {watched.key} == store.keys()
        store.remove("split-mnist", [watched.method.name])
        assert not store.keys("edits")


def test_failures_are_kept_until_the_run_succeeds():
    with Store(":memory:") as store:
        store.add(SPEC, "boom")
        store.add(SPEC, "bang")
        assert store.find(SPEC) is None
        assert [f.error for f in store.failures()] == ["bang"]
        store.add(SPEC, result())
        assert store.failures() == []
        store.add(SPEC, "too late")
        assert store.find(SPEC) == result()
        store.add(SPEC, result(0.9))
        assert store.find(SPEC).final_accuracy == 0.9


def test_a_changed_part_makes_results_outdated(monkeypatch):
    with Store(":memory:") as store:
        store.add(SPEC, result())
        monkeypatch.setattr("gmed.editing.GMED.version", 2)
        changed = RunSpec.make("split-mnist", "er+gmed", seed=3)
        assert store.find(changed) is None
        assert store.runs() == []
        assert store.count_outdated() == 1


def test_other_files_are_refused_and_not_modified(tmp_path):
    text = tmp_path / "notes.db"
    text.write_text("these are notes, not a database, and they must stay as they are")
    with pytest.raises(StoreError, match=r"notes\.db"):
        Store(text)
    assert text.read_text().startswith("these are notes")

    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE diary (day TEXT)")
    with pytest.raises(StoreError, match="another program"):
        Store(other)
    with sqlite3.connect(other) as db:
        assert [r[0] for r in db.execute("SELECT name FROM sqlite_master")] == ["diary"]

    newer = tmp_path / "newer.db"
    Store(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer gmed"):
        Store(newer)

    posing = tmp_path / "posing.db"
    with sqlite3.connect(posing) as db:
        db.execute("CREATE TABLE diary (day TEXT)")
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(StoreError, match="another program"):
        Store(posing)

    with pytest.raises(StoreError, match="nowhere"):
        Store(tmp_path / "nowhere" / "r.db")


def test_a_damaged_store_is_reported_not_a_traceback(tmp_path):
    path = tmp_path / "r.db"
    with Store(path) as store:
        store.add(SPEC, result())
        store.database.execute("UPDATE runs SET accuracy = '[[0.5'")
        with pytest.warns(DamagedRunWarning, match="split-mnist er\\+gmed seed 3"):
            assert store.find(SPEC) is None
        store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    path.write_bytes(raw)
    with pytest.raises(StoreError), Store(path) as store:
        store.runs()


OPEN = """
import sys, pathlib
from gmed.results import Store
while not pathlib.Path(sys.argv[2]).exists(): pass
Store(sys.argv[1]).close()
"""


@pytest.mark.slow
def test_concurrent_creation_of_one_store(tmp_path):
    for attempt in range(2):
        go = tmp_path / f"go{attempt}"
        words = [sys.executable, "-c", OPEN, str(tmp_path / f"{attempt}.db"), str(go)]
        crowd = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        time.sleep(5)  # all of them imported and waiting
        go.touch()
        for process in crowd:
            _, complaint = process.communicate(timeout=60)
            assert process.returncode == 0, complaint
