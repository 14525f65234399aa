"""Read-only access to a store shows every committed result, or says why not."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.cli.doctor import PROBLEM, run_checks
from gmed.engine import RunSpec
from gmed.errors import StoreError
from gmed.results import Store, SweepClaims
from helpers import make_result

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs another user's process")
NOBODY = 65534
SPECS = [RunSpec.make("split-mnist", "er", seed) for seed in range(3)]


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported(tmp_path_factory):
    """Another user may not be able to read the folder that Python is in."""
    path = tmp_path_factory.mktemp("warm") / "gmed.db"
    with Store(path) as store:
        store.add_all([(spec, make_result("er", spec.seed, 0.8)) for spec in SPECS])
    for words in (["runs"], ["table", "split-mnist"], ["export", path.with_suffix(".csv")], ["watch", "--once"]):
        code, said = command(*words, "--store", path)
        assert code == 0, said


@pytest.fixture
def shared():
    """A folder that everybody can read and, as everybody else can, nobody can write to."""
    folder = Path(mkdtemp(prefix="gmed-readers-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def own():
    """A folder of the reader's own."""
    folder = Path(mkdtemp(prefix="gmed-reader-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def lock(folder, *, folder_too=True):
    """Leave the files readable alone, and the folder if it is meant too."""
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555 if folder_too else 0o777)


def as_reader(look):
    """What a function returns in a process of a user who may read, or the error that it ends in."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            found = look()
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"
        os.write(into, json.dumps(found).encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        found = json.loads(pipe.read())
    os.waitpid(child, 0)
    return found


def command(*words):
    ended = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80", "HOME": "/nowhere"})
    return [ended.exit_code, ended.output + (str(ended.exception) if ended.exception else "")]


def seeds(path):
    def look():
        with Store(path) as store:
            return [run.seed for run in store.runs()]

    return as_reader(look)


def check_that_everything_is_seen(path, own, runs):
    assert seeds(path) == list(range(runs))
    before = sorted(file.name for file in path.parent.iterdir())
    code, said = as_reader(lambda: command("runs", "--store", path))
    assert code == 0, said
    assert ["split-mnist", "er", str(runs), "-", "-"] in [line.split() for line in said.splitlines()]
    code, said = as_reader(lambda: command("export", own / "runs.csv", "--store", path))
    assert code == 0 and f"{runs} runs in" in said, said
    code, said = as_reader(lambda: command("table", "split-mnist", "--store", path))
    assert code == 0 and "80.00" in said, said
    (own / "own.db").unlink(missing_ok=True)
    code, said = as_reader(lambda: command("merge", path, "--store", own / "own.db"))
    assert code == 0 and said.startswith(f"{runs} added"), said
    assert sorted(file.name for file in path.parent.iterdir()) == before


def test_read_only_store_during_a_sweep(shared, own):
    path = shared / "gmed.db"
    with Store(path) as store, SweepClaims(store) as sweep:
        sweep.claim(SPECS)
        store.add(SPECS[0], make_result("er", 0, 0.8))
        lock(shared)
        check_that_everything_is_seen(path, own, 1)
        store.add(SPECS[1], make_result("er", 1, 0.8))
        check_that_everything_is_seen(path, own, 2)
        code, said = as_reader(lambda: command("watch", "--once", "--store", path))
        assert code == 0 and "2 of 3 runs" in said
        shared.chmod(0o755)


@pytest.mark.parametrize("folder_too", [True, False])
@pytest.mark.parametrize("shared_memory", [True, False], ids=["", "without shared memory"])
def test_read_only_store_after_a_kill(shared, own, shared_memory, folder_too):
    path = shared / "killed" / "gmed.db"
    with Store(shared / "gmed.db") as store:
        for spec in SPECS:
            store.add(spec, make_result("er", spec.seed, 0.8))
        assert (shared / "gmed.db-wal").stat().st_size
        path.parent.mkdir()
        for file in shared.glob("gmed.db*"):
            shutil.copy(file, path.parent)
    if not shared_memory:
        (path.parent / "gmed.db-shm").unlink()
    lock(path.parent, folder_too=folder_too)
    check_that_everything_is_seen(path, own, 3)
    path.parent.chmod(0o755)


def test_uncommitted_changes_of_a_killed_writer_are_not_seen(shared):
    """In the journal mode of file systems without shared memory: the file alone holds half of a transaction."""
    path = shared / "gmed.db"
    with Store(path) as store:
        store.add(SPECS[0], make_result("er", 0, 0.8))
        store.database.execute("PRAGMA journal_mode = DELETE")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA cache_spill = 1")
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN")
    for number in range(200):
        database.execute("UPDATE runs SET benchmark = ?, config = ?", (f"b{number}", "x" * 20_000))
        database.execute("INSERT INTO sweeps (host, process, seen) VALUES ('', ?, 0)", ("x" * 5000,))
    (shared / "killed").mkdir()
    for file in shared.glob("gmed.db*"):
        shutil.copy(file, shared / "killed")
    database.execute("ROLLBACK")
    database.close()
    assert (shared / "killed" / "gmed.db-journal").stat().st_size
    lock(shared / "killed")
    assert seeds(shared / "killed" / "gmed.db") == [0]
    (shared / "killed").chmod(0o755)


def test_reading_an_idle_store_creates_no_files(shared, own):
    with Store(shared / "gmed.db") as store:
        store.add_all([(spec, make_result("er", spec.seed, 0.8)) for spec in SPECS])
    lock(shared)
    check_that_everything_is_seen(shared / "gmed.db", own, 3)
    assert [file.name for file in shared.iterdir()] == ["gmed.db"]


def test_unreachable_results_are_reported(shared):
    path = shared / "killed" / "gmed.db"
    with Store(shared / "gmed.db") as store:
        store.add(SPECS[0], make_result("er", 0, 0.8))
        path.parent.mkdir()
        for file in (shared / "gmed.db", shared / "gmed.db-wal"):
            shutil.copy(file, path.parent)
    lock(path.parent)
    (path.parent / "gmed.db-wal").chmod(0o000)
    said = seeds(path)
    assert (
        said.startswith("StoreError: ") and "the neighboring file gmed.db-wal" in said and "Make both readable" in said
    )
    path.parent.chmod(0o755)


def test_sweep_started_while_reading_is_noticed(shared):
    path = shared / "gmed.db"
    with Store(path) as store:
        store.add(SPECS[0], make_result("er", 0, 0.8))

    def look():
        with Store(path) as reader:
            assert len(reader.runs()) == 1
            os.write(asked, b"go")
            os.read(begun, 1)
            try:
                return [run.seed for run in reader.runs()]
            except StoreError as error:
                return str(error)

    asking, asked = os.pipe()
    begun, begin = os.pipe()
    lock(shared)
    writer = os.fork()
    if writer == 0:  # it may write, whatever the modes say, or opened the file before
        os.read(asking, 2)
        shared.chmod(0o755)
        path.chmod(0o644)
        with Store(path) as store:
            store.add(SPECS[1], make_result("er", 1, 0.8))
            os.write(begin, b"1")
        os._exit(0)
    said = as_reader(look)
    os.waitpid(writer, 0)
    assert "the file changed while it was being read. Try again." in said
    lock(shared)
    assert seeds(path) == [0, 1]


def test_doctor_checks_a_read_only_store(shared):
    path = shared / "gmed.db"
    with Store(path) as store:
        store.add(SPECS[0], make_result("er", 0, 0.8))
        lock(shared)
        found = as_reader(lambda: [[sign.state, sign.text] for sign in run_checks(path) if sign.about == "store"])
        shared.chmod(0o755)
    assert "is valid: 1 finished" in found[0][1]
    assert found[1][0] == PROBLEM and "cannot be written to" in found[1][1]


def test_read_only_store_is_refused_for_writing(shared):
    path = shared / "gmed.db"
    Store(path).close()
    lock(shared)

    def look():
        with Store(path) as store:
            store.require_writable()

    assert "cannot be written" in as_reader(look)


def test_unwritable_folder_is_reported_at_once(shared, own):
    with Store(shared / "gmed.db") as store:
        store.add(SPECS[0], make_result("er", 0, 0.8))
    lock(shared)
    found = as_reader(lambda: command("export", shared / "all.csv", "--store", shared / "gmed.db"))
    assert "all.csv: cannot be written: no permission" in found[1] and "Fix the permissions" in found[1]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["runs"], ["doctor"], ["table"], ["run", "split-mnist", "finetune", "--seeds", "1"]])
def test_pipe_is_refused_as_store(tmp_path, words):
    os.mkfifo(tmp_path / "pipe.db")
    done = subprocess.run(
        [sys.executable, "-m", "gmed.cli", *words, "--store", str(tmp_path / "pipe.db")],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert done.returncode == 2
    assert "a folder, pipe or device, not a file" in " ".join((done.stdout + done.stderr).split())
