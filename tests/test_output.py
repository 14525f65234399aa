"""Output that cannot be written: closed pipes, full devices and disks, folders that are not there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gmed.engine import RunResult, RunSpec
from gmed.results import Store

CLOSED = 141


def result(seed, accuracy=0.8):
    matrix = [[accuracy] * 5] * 5
    return RunResult("split-mnist", "er", seed, matrix, accuracy, accuracy, 500, {"train": 1.0}, {"device": "cpu"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("output")
    with Store(path / "gmed.db") as store:
        store.add_all([(RunSpec.make("split-mnist", "er", seed), result(seed)) for seed in range(3)])
    (path / "rows.csv").write_text("a,b,kind\n" + "".join(f"{i},{i % 7},{'xy'[i % 2]}\n" for i in range(200)))
    gmed_(path, "fit", "rows.csv", "--label", "kind", "-o", "m.gmed")
    return path


def gmed_(folder, *words, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    return subprocess.run([sys.executable, "-m", "gmed.cli", *words], cwd=folder, text=True, timeout=120, **how)


EVERY = [
    ["--help"],
    ["--version"],
    ["list"],
    ["runs"],
    ["table"],
    ["table", "--json"],
    ["table", "--metrics"],
    ["run", "split-mnist", "er", "--seeds", "3", "--json"],
    ["rm", "permuted-mnist"],
    ["export", "all.csv"],
    ["merge", "gmed.db", "--store", "other.db"],
    ["watch", "--once"],
    ["report", "--format", "csv"],
    ["reproduce", "--list", "--no-estimate"],
    ["reproduce", "--list", "--no-estimate", "--json"],
    ["doctor"],
    ["doctor", "--json"],
    ["data"],
    ["completion", "bash"],
    ["predict", "m.gmed", "rows.csv"],
]


ON_STANDARD_ERROR = {"run split-mnist er --seeds 3 --json": "3 runs already in the store, 0 to compute\n"}

EACH = """
import json, os, sys
from gmed.cli import main
into, found = int(sys.argv[1]), []
for words in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        os.dup2(into, 1)
        sys.stderr = os.fdopen(os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w")
        os.dup2(sys.stderr.fileno(), 2)
        sys.argv = ["gmed", *words]
        main()
        os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found.append([code, open("said").read()])
print(json.dumps(found))
"""
"""Every command in a process of its own, up to the end of the interpreter, after one import."""


def ended(folder, into):
    words = [sys.executable, "-c", EACH, str(into), json.dumps(EVERY)]
    told = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, pass_fds=[into], check=True)
    return {" ".join(words): found for words, found in zip(EVERY, json.loads(told.stdout), strict=True)}


def test_whoever_reads_closes_the_pipe(folder):
    """As ``| true`` and ``| head`` do: no traceback, neither at once nor when the interpreter ends."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        found = ended(folder, writing)
    finally:
        os.close(writing)
    assert found == {name: [CLOSED, ON_STANDARD_ERROR.get(name, "")] for name in found}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_is_full(folder):
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        found = ended(folder, full)
    finally:
        os.close(full)
    said = "gmed: standard output cannot be written (No space left on device)\n"
    assert found == {name: [2, ON_STANDARD_ERROR.get(name, "") + said] for name in found}


def test_standard_error_is_closed_or_full(folder):
    reading, writing = os.pipe()
    os.close(reading)
    ended = gmed_(folder, "runs", "--store", "nowhere.db", stderr=writing)
    os.close(writing)
    assert ended.returncode == CLOSED
    with Path("/dev/full").open("w") as full:
        assert gmed_(folder, "runs", "--store", "nowhere.db", stderr=full).returncode == 2


def test_a_reader_that_has_read_enough(folder):
    words = f"{sys.executable} -m gmed.cli list | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["Benchmarks", str(CLOSED)] and not ended.stderr
