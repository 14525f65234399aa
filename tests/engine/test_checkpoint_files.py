"""Checkpoint files: full disks, concurrent writers, leftovers of killed processes, damaged content."""

import errno
import json
import os
import resource
import struct
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gmed
from gmed.engine import RunSpec
from gmed.engine.checkpoint import Checkpoint, Checkpoints, CheckpointsInMemory
from gmed.experiment import Experiment, checkpoint_dir
from gmed.io import files

MANY = int(os.environ.get("GMED_FUZZ", "100"))
SPEC = RunSpec.make("split-mnist", "finetune", 0)
WRITER = """
import sys, time
from pathlib import Path
from gmed.io.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"half a checkpoint, with examples")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def a_checkpoint(seen=10):
    state = {"steps": torch.tensor(seen), "model.weight": torch.full((300, 100), float(seen))}
    return Checkpoint(seen, [[0.5]], {"train": 1.5}, [], state, [0.1], {"forward": 5, "backward": 5}, 3, [[1, 2]])


def killed_while_writing(path):
    """Leave what a process leaves that is killed in the middle of writing a file."""
    path.parent.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    process.kill()
    process.wait()
    assert list(path.parent.glob(f".{path.name}.*.tmp"))


def accuracies(results):
    assert not results.failures, results.failures[0].error
    return {(run.method, run.seed): run.accuracy for run in results.runs}


@pytest.mark.slow
def test_full_disk_loses_checkpoints_but_not_the_run(tmp_path, monkeypatch):
    expected = accuracies(gmed.run("split-mnist", "finetune", seeds=2, device="cpu", store=None, workers=0))
    experiment = Experiment("split-mnist", ["finetune"], 2, store=tmp_path / "r.db", workers=0, checkpoint_every=1e-9)
    monkeypatch.setattr("gmed.engine.checkpoint.MIN_INTERVAL_RATIO", 0.0)
    attempts = []

    def full(handle):
        attempts.append(handle)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.warns(match="cannot be written") as warned:
        assert accuracies(experiment.run()) == expected
    assert len(attempts) > 2  # later ones are tried again
    (text,) = {str(warning.message) for warning in warned}
    assert len(warned) == 1
    assert str(checkpoint_dir(tmp_path / "r.db")) in text
    assert "No space left on device" in text
    assert [path.name for path in tmp_path.iterdir()] == ["r.db"]


@pytest.mark.slow
def test_unwritable_checkpoints_of_workers_are_reported_once(tmp_path):
    words = ["run", "split-mnist", "finetune", "er", "--seeds", "2", "--device", "cpu", "--workers", "2"]
    words += ["--store", str(tmp_path / "r.db"), "--checkpoint-every", "0.05"]
    done = subprocess.run(
        [sys.executable, "-m", "gmed.cli", *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("checkpoints cannot be written") == 1
    assert "r.db.unfinished" in done.stderr.replace("\n", "")
    assert "File too large" in done.stderr
    assert len(gmed.run("split-mnist", ["finetune", "er"], seeds=2, device="cpu", store=tmp_path / "r.db").runs) == 4


@pytest.mark.slow
def test_uncreatable_checkpoint_folder_is_reported(tmp_path):
    (tmp_path / "r.db.unfinished").write_text("a file of somebody's")
    experiment = Experiment("split-mnist", ["finetune"], 1, store=tmp_path / "r.db", checkpoint_every=1e-3, workers=1)
    with pytest.warns(UserWarning, match=r"r\.db\.unfinished: checkpoints cannot be written \(File exists\)"):
        assert len(accuracies(experiment.run())) == 1
    assert (tmp_path / "r.db.unfinished").read_text() == "a file of somebody's"


@pytest.mark.slow
def test_leftovers_of_killed_writers_are_removed_at_start(tmp_path):
    store = tmp_path / "r.db"
    folder = checkpoint_dir(store)
    another = RunSpec.make("split-mnist", "er", 7)
    for spec in (SPEC, another):
        killed_while_writing(Checkpoints(folder, 1)._path(spec))
    gmed.run("split-mnist", "finetune", seeds=1, device="cpu", store=store)
    assert not folder.exists()


def test_checkpoints_of_finished_runs_are_removed(tmp_path):
    """A process may be killed after a result is stored and before its checkpoint is removed."""
    store = tmp_path / "r.db"
    folder = checkpoint_dir(store)
    gmed.run("split-mnist", "finetune", seeds=1, device="cpu", store=store, workers=0)
    Checkpoints(folder, 1).save(SPEC, a_checkpoint())
    killed_while_writing(Checkpoints(folder, 1)._path(SPEC))
    gmed.run("split-mnist", "finetune", seeds=1, device="cpu", store=store)
    assert not folder.exists()


def test_discard_keeps_files_being_written(tmp_path):
    checkpoints = Checkpoints(tmp_path / "unfinished", 1)
    path = checkpoints._path(SPEC)
    path.parent.mkdir()
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    try:
        checkpoints.discard(SPEC)
        assert len(list(path.parent.iterdir())) == 1
    finally:
        process.kill()
        process.wait()
    checkpoints.discard(SPEC)
    assert not path.parent.exists()


def test_a_reader_beside_a_writer_gets_one_whole_checkpoint(tmp_path):
    checkpoints, done = Checkpoints(tmp_path / "unfinished", 1), threading.Event()
    checkpoints.save(SPEC, a_checkpoint(1))

    def write():
        for number in range(200):
            checkpoints.save(SPEC, a_checkpoint(1 + number % 2))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = set()
    while not done.is_set():
        loaded = checkpoints.load(SPEC)
        assert loaded is not None
        assert loaded.state["steps"] == loaded.seen
        assert (loaded.state["model.weight"] == loaded.seen).all()
        found.add(loaded.seen)
    writer.join()
    assert found == {1, 2}


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling link"])
def test_special_file_counts_as_no_checkpoint(tmp_path, kind):
    checkpoints = Checkpoints(tmp_path, 1)
    path = checkpoints._path(SPEC)
    {"pipe": os.mkfifo, "folder": os.mkdir, "dangling link": lambda p: p.symlink_to(tmp_path / "nothing")}[kind](path)
    assert checkpoints.load(SPEC) is None
    assert checkpoints.read_file(SPEC) is None


def test_checkpoints_in_memory_equal_those_on_disk(tmp_path):
    on_disk = Checkpoints(tmp_path, 1)
    on_disk.save(SPEC, a_checkpoint())
    carried = CheckpointsInMemory({SPEC.key: on_disk.read_file(SPEC)})
    for kept in (on_disk, carried):
        loaded = kept.load(SPEC)
        assert loaded.state.keys() == a_checkpoint().state.keys()
        assert all(torch.equal(loaded.state[name], tensor) for name, tensor in a_checkpoint().state.items())
        assert {**vars(loaded), "state": None} == {**vars(a_checkpoint()), "state": None}
    carried.save(SPEC, a_checkpoint(20))
    assert carried.load(SPEC).seen == 20
    carried.discard(SPEC)
    assert carried.load(SPEC) is None


def relabeled(content, change):
    """The same bytes with other labels."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header["__metadata__"])
    told = json.dumps(header).encode()
    return struct.pack("<Q", len(told)) + told + content[8 + length :]


def test_checksum_is_required_except_in_the_first_versions():
    kept = CheckpointsInMemory({})
    kept.save(SPEC, a_checkpoint())
    content = kept.read_file(SPEC)

    def misspelt(labels):
        labels["checksun"] = labels.pop("checksum")

    def first(labels):
        del labels["checksum"]
        labels["format"] = "gmed-state/1"

    for change, loads in ((lambda labels: None, True), (misspelt, False), (first, True)):
        assert (CheckpointsInMemory({SPEC.key: relabeled(content, change)}).load(SPEC) is not None) == loads


@settings(max_examples=MANY)
@given(st.data())
def test_whatever_a_checkpoint_holds(data):
    """Bytes that were cut, changed or put in: the checkpoint that was written, or none."""
    kept = CheckpointsInMemory({})
    kept.save(SPEC, Checkpoint(10, [[0.5]], {"train": 1.5}, [], {"steps": torch.tensor(10), "w": torch.ones(7)}))
    content = bytearray(kept.read_file(SPEC))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        inserted = data.draw(
            st.binary(max_size=9) | st.sampled_from([b"[" * 100_000, b"\xff" * 8, b"9" * 5000, b"NaN"])
        )
        content[place : place + data.draw(st.integers(0, 9))] = inserted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = CheckpointsInMemory({SPEC.key: bytes(content)}).load(SPEC)
    if loaded is not None:
        assert (loaded.seen, loaded.accuracy, loaded.seconds, loaded.resumed_at) == (10, [[0.5]], {"train": 1.5}, [])
        assert {name: tensor.tolist() for name, tensor in loaded.state.items()} == {"steps": 10, "w": [1.0] * 7}


def test_checkpoint_file_format_is_unchanged(tmp_path):
    """What is written is what the reader of state files, by path, reads too."""
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(SPEC, a_checkpoint())
    state, labels = gmed.io.state.read_state(Path(checkpoints._path(SPEC)), {"run": SPEC.key})
    assert state.keys() == a_checkpoint().state.keys()
    assert (labels["benchmark"], labels["method"]) == ("split-mnist", "finetune")
