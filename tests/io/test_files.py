"""Atomic file writes, with any number of concurrent writers."""

import os
import stat
import subprocess
import sys
import threading
import time
from io import BytesIO
from pathlib import Path

import pytest
import torch

from gmed.errors import UsageError
from gmed.io.files import STALE_SECONDS, atomic_write, check_output_path, remove_stale_files, write_bytes, write_csv
from gmed.io.state import read_state, write_state

WRITER = """
import sys, time
from pathlib import Path
from gmed.io.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_failed_write_keeps_the_old_file_only(tmp_path):
    path = tmp_path / "model.gmed"
    write_bytes(path, b"old")
    with pytest.raises(TypeError), atomic_write(path) as file:
        file.write("new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_concurrent_writes_of_threads_do_not_interleave(tmp_path):
    path = tmp_path / "predictions.csv"
    contents = [bytes([65 + number]) * 1_000_000 for number in range(8)]
    threads = [threading.Thread(target=write_bytes, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_planted_at_a_temporary_name_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in (f".model.gmed.{os.getpid()}.tmp", ".model.gmed.tmp"):
        (tmp_path / name).symlink_to(victim)
    write_bytes(tmp_path / "model.gmed", b"new")
    assert victim.read_bytes() == b"precious"


def test_leftovers_of_killed_writers_are_removed_and_live_ones_kept(tmp_path):
    path = tmp_path / "model.gmed"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    write_bytes(path, b"beside it")
    assert len(list(tmp_path.iterdir())) == 2  # the other writer's is locked
    assert remove_stale_files(tmp_path) == 0
    process.kill()
    process.wait()
    write_bytes(path, b"after it")
    assert list(tmp_path.iterdir()) == [path]


def test_old_temporary_files_of_earlier_versions_are_removed(tmp_path):
    old = tmp_path / ".model.gmed.4711.tmp"
    old.write_bytes(b"half")
    write_bytes(tmp_path / "model.gmed", b"new")
    assert old.exists()
    os.utime(old, (time.time() - STALE_SECONDS - 1,) * 2)
    write_bytes(tmp_path / "model.gmed", b"newer")
    assert not old.exists()


def test_only_temporary_files_are_removed(tmp_path):
    others = [tmp_path / name for name in (".notes.tmp", "model.tmp", ".model.0123456789abcdef.tmp.bak")]
    for other in others:
        other.write_bytes(b"mine")
        os.utime(other, (0, 0))
    assert remove_stale_files(tmp_path) == 0
    assert all(other.exists() for other in others)


def test_written_file_has_default_permissions(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_bytes(tmp_path / "ours", b"")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "ours")}
    assert len(modes) == 1


def test_longest_possible_file_name(tmp_path):
    path = tmp_path / ("ü" * 127)
    write_bytes(path, b"long")
    assert path.read_bytes() == b"long"


def test_an_output_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    with pytest.raises(UsageError, match="does not exist; create it first"):
        check_output_path(tmp_path / "no" / "model.gmed")
    with pytest.raises(UsageError, match="it is a folder"):
        check_output_path(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_reported_and_devices_are_not_replaced():
    with pytest.raises(UsageError, match=r"No space left on device.*Free disk space"):
        write_bytes(Path("/dev/full"), b"x" * 100_000)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_csv_formulas_are_escaped():
    file = BytesIO()
    write_csv(file, ["method", "x"], [{"method": "=cmd|' /C calc'!A0", "x": -1.5}, {"method": "er+gmed", "x": "-2"}])
    assert file.getvalue().decode() == "method,x\n'=cmd|' /C calc'!A0,-1.5\ner+gmed,-2\n"


def test_removed_file_stays_locked_until_deleted(tmp_path, monkeypatch):
    """Else a writer that has just created it gets the lock in between, and loses its file."""
    fcntl = pytest.importorskip("fcntl", reason="temporary files are not locked on Windows")
    left = tmp_path / ".out.csv.0123456789abcdef.tmp"
    left.touch()
    unlink, locked = Path.unlink, []

    def watched(path, *args, **kwargs):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                locked.append(path)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", watched)
    assert remove_stale_files(tmp_path, "out.csv") == 1
    assert locked == [left] and not left.exists()


def test_state_is_read_from_one_file_while_replaced(tmp_path, monkeypatch):
    path = tmp_path / "state"
    write_state(path, {"x": torch.zeros(1000)}, {"learner": "old"})
    opened = []
    monkeypatch.setattr("torch.UntypedStorage.from_file", lambda *args, **kwargs: opened.append("again"))
    monkeypatch.setattr("gmed.io.state.safe_open", lambda *args, **kwargs: opened.append("twice"), raising=False)
    state, labels = read_state(path, {"learner": "old"})
    assert torch.equal(state["x"], torch.zeros(1000)) and labels["learner"] == "old" and not opened
