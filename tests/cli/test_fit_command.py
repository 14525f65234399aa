"""gmed fit and gmed predict: large tables, resuming, checkpoints and errors."""

import csv
import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.data.tabular import TableFile
from gmed.errors import DataError, GmedError, GmedWarning, UsageError
from gmed.online import ClassifierConfig, OnlineClassifier
from gmed.online.table_fit import TableFit, fit_table

HEADER = ["id", "a", "b", "c", "kind"]
KINDS = np.array(["oak", "elm", "fir"])


def write_rows(path, count=237, seed=0, bad=None):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=count)
    x = np.outer(y, [1, 0, 3000]) + rng.normal(size=(count, 3)) * [0.3, 1, 500]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for number in range(count):
            cells = [f"r{number}", *(f"{v:.5g}" for v in x[number]), KINDS[y[number]]]
            writer.writerow(["x" if bad == number and c == cells[2] else c for c in cells])
    return path


def to_parquet(path, rows_in_group=50):
    pytest.importorskip("pyarrow")
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    parquet.write_table(arrow_csv.read_csv(path), path.with_suffix(".parquet"), row_group_size=rows_in_group)
    return path.with_suffix(".parquet")


@pytest.fixture
def table(tmp_path):
    return write_rows(tmp_path / "trees.csv")


def call(*arguments, given=None):
    found = CliRunner().invoke(app, list(map(str, arguments)), input=given)
    if isinstance(found.exception, GmedError):
        raise found.exception
    return found


def state(path):
    classifier, texts = OnlineClassifier.load(path)
    tensors, own = classifier.state()
    return {name: t.tolist() for name, t in tensors.items()}, own, texts["feature_names"]


def test_fit_then_predict(table, tmp_path):
    model = tmp_path / "trees.gmed"
    found = call("fit", table, "--label", "kind", "--drop", "id", "-o", model)
    assert found.exit_code == 0 and "237 rows, 3 classes" in found.stderr
    found = call("predict", model, table, "--out", tmp_path / "found.csv", "--proba")
    assert found.exit_code == 0 and "accuracy on the 237 labeled rows" in found.stderr
    with (tmp_path / "found.csv").open() as file:
        rows = list(csv.DictReader(file))
    with table.open() as file:
        truth = [row["kind"] for row in csv.DictReader(file)]
    assert list(rows[0]) == ["prediction", "p(elm)", "p(fir)", "p(oak)"]
    assert np.mean([row["prediction"] == kind for row, kind in zip(rows, truth, strict=True)]) > 0.9
    for row in rows:
        shares = {name: float(row[f"p({name})"]) for name in ("elm", "fir", "oak")}
        assert abs(sum(shares.values()) - 1) < 1e-4 and max(shares, key=shares.get) == row["prediction"]


def test_equal_fits_write_identical_files(table, tmp_path):
    for name in "abcd":
        call("fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / name)
    assert len({(tmp_path / name).read_bytes() for name in "abcd"}) == 1


def test_predict_names_the_file_that_is_wrong(table, tmp_path):
    with pytest.raises(DataError, match=r"no\.gmed: no such file"):
        call("predict", "no.gmed", "no.csv")
    model = tmp_path / "trees.gmed"
    call("fit", table, "--label", "kind", "--drop", "id", "-o", model)
    with pytest.raises(
        UsageError, match=r"trees\.csv: this is a table, not a model; .*: gmed predict .*trees\.gmed .*trees\.csv"
    ):
        call("predict", table, model)
    with pytest.raises(DataError, match=r"no\.csv: no such file"):
        call("predict", model, "no.csv")


def test_fit_equals_online_classifier_on_the_same_rows(table, tmp_path):
    """Against rows read by the csv module and learned from ten at a time, and scikit-learn's shell around the file."""
    from gmed.sklearn import GMEDClassifier

    model = tmp_path / "trees.gmed"
    call("fit", table, "--label", "kind", "--drop", "id", "-o", model, "--memory", 50, "--seed", 3)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    x = np.array([[float(row[name]) for name in "abc"] for row in rows])
    y = np.array([row["kind"] for row in rows])
    expected = OnlineClassifier(ClassifierConfig(memory=50), inputs=3, seed=3)
    for start in range(0, len(y), 10):
        expected.learn(x[start : start + 10], y[start : start + 10])
    tensors, texts = expected.state()
    assert state(model)[:2] == ({name: t.tolist() for name, t in tensors.items()}, texts)
    estimator = GMEDClassifier.load(model)
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
    assert call("predict", model, table).stdout.split()[1:] == expected.predict(x).tolist()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "compressed"])
def test_rows_from_standard_input(table, tmp_path, pack):
    """As from a file, also in what is said of them and in what the same rows once more do."""
    words = ["--label", "kind", "--drop", "id", "-o"]
    call("fit", table, *words, tmp_path / "from-file")
    rows = pack(table.read_bytes())
    found = call("fit", "-", *words, tmp_path / "m", given=rows)
    assert found.exit_code == 0 and "237 rows, 3 classes" in found.stderr
    assert state(tmp_path / "m") == state(tmp_path / "from-file")
    assert "nothing to do" in call("fit", "-", *words, tmp_path / "m", given=rows).stderr
    assert call("predict", tmp_path / "m", "-", given=rows).stdout == call("predict", tmp_path / "m", table).stdout
    with pytest.raises(DataError, match=r"^standard input, line 2, column 'id': 'r0' is not a finite number"):
        call("fit", "-", "--label", "kind", "-o", tmp_path / "m2", given=rows)
    with pytest.raises(DataError, match=r"^standard input: the first line must give every column"):
        call("fit", "-", *words, tmp_path / "m2", given=b"")


def test_a_fit_from_standard_input_resumes(table, tmp_path):
    words = ["fit", "-", "--label", "kind", "--drop", "id", "-o", tmp_path / "m"]
    fit_table(TableFit(table, "kind", tmp_path / "m", ("id",)), stop=lambda: True)
    assert "resumed after row 10" in call(*words, given=table.read_bytes()).stderr


@pytest.mark.slow
def test_closed_standard_input_is_reported(tmp_path):
    words = [sys.executable, "-m", "gmed.cli", "fit", "-", "--label", "kind", "-o", str(tmp_path / "m")]
    done = subprocess.run(["sh", "-c", f"{shlex.join(words)} <&-"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "gmed: standard input is closed; give the name of a table\n"


def test_compressed_table_gives_the_same_model(table, tmp_path):
    packed = table.with_name("packed.csv.gz")
    packed.write_bytes(gzip.compress(table.read_bytes()))
    for number, path in enumerate((table, packed)):
        call("fit", path, "--label", "kind", "--drop", "id", "-o", tmp_path / f"m{number}")
    assert state(tmp_path / "m0") == state(tmp_path / "m1")
    assert call("predict", tmp_path / "m0", packed).stdout == call("predict", tmp_path / "m0", table).stdout
    packed.write_bytes(packed.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"packed\.csv\.gz: cannot be read as a table"):
        call("predict", tmp_path / "m0", packed)


def test_parquet_table_gives_the_same_model(table, tmp_path):
    other = to_parquet(table)
    for path in (table, other):
        call("fit", path, "--label", "kind", "--drop", "id", "-o", tmp_path / f"{path.suffix}.gmed")
    assert state(tmp_path / ".csv.gmed") == state(tmp_path / ".parquet.gmed")
    assert (
        call("predict", tmp_path / ".csv.gmed", other).stdout == call("predict", tmp_path / ".csv.gmed", table).stdout
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("cuts", [[1], [3, 4, 20], list(range(1, 24))])
def test_interrupted_fit_ends_with_the_uninterrupted_model(table, tmp_path, kind, cuts):
    table = table if kind == "csv" else to_parquet(table)
    whole = TableFit(table, "kind", tmp_path / "whole", ("id",), ClassifierConfig(memory=40, hidden=8))
    parts = TableFit(table, "kind", tmp_path / "parts", ("id",), ClassifierConfig(memory=40, hidden=8))
    expected, done = fit_table(whole), 0
    for cut in cuts:
        steps = iter(range(done + 1, 1000))
        found = fit_table(parts, stop=lambda cut=cut, steps=steps: next(steps) == cut)
        assert not found.finished and found.rows == 10 * cut and found.resumed == 10 * done
        assert parts.checkpoint.exists() and not parts.model.exists()
        done = cut
    found = fit_table(parts)
    assert found.finished and (found.rows, found.num_correct) == (expected.rows, expected.num_correct) == (
        237,
        expected.num_correct,
    )
    assert state(parts.model) == state(whole.model) and not parts.checkpoint.exists()


@pytest.mark.slow
def test_killed_fit_resumes_from_its_checkpoint(tmp_path):
    table = write_rows(tmp_path / "trees.csv", 30_000)
    command = [sys.executable, "-m", "gmed.cli", "fit", table, "--label", "kind", "--drop", "id", "-o"]
    settings = ["--checkpoint-every", "0.2", "--batch-size", "100", "--updates-per-batch", "1"]
    model, checkpoint = tmp_path / "killed", tmp_path / "killed.unfinished"
    for how in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen([*command, model, *settings], stderr=subprocess.PIPE, text=True)
        kept = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        deadline = time.monotonic() + 120
        while not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > kept) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=120)
        assert process.returncode == (-9 if how == signal.SIGKILL else 130), said
        assert checkpoint.exists() and not model.exists()
    assert "Stopped after row" in said
    finished = subprocess.run([*command, model, *settings], capture_output=True, text=True)
    assert finished.returncode == 0 and "resumed after row" in finished.stderr
    subprocess.run([*command, tmp_path / "whole", *settings], check=True, capture_output=True)
    assert state(model) == state(tmp_path / "whole")


def test_table_is_read_only_as_far_as_needed(tmp_path):
    """The last row is not one of numbers, and the batches before it are handed out all the same."""
    table = TableFile(write_rows(tmp_path / "t.csv", 20_000, bad=19_999))
    batches = table.batches(["a", "b", "c"], "kind", size=1000)
    assert len(next(batches).labels) == 1000 and table.position < table.size / 2
    assert [len(next(batches).labels) for _ in range(18)] == [1000] * 18
    with pytest.raises(DataError, match=r"line 20001, column 'b': 'x' is not a finite number"):
        next(batches)


@pytest.mark.parametrize("skip", [0, 1, 49, 50, 51, 120, 237, 500])
def test_rows_that_are_skipped(table, skip):
    for path in (table, to_parquet(table)):
        every = [row for part in TableFile(path).batches(["a"], "kind") for row in part.features[:, 0].tolist()]
        rest = [
            row for part in TableFile(path).batches(["a"], "kind", size=7, skip=skip) for row in part.features[:, 0]
        ]
        assert rest == every[skip:] and len(every) == 237


def test_fit_continues_from_another_model(table, tmp_path):
    """Monday's rows and then Tuesday's, with classes that Monday had not: one classifier, as if without a break."""
    monday = write_rows(tmp_path / "monday.csv", 100, seed=1)
    tuesday = tmp_path / "tuesday.csv"
    tuesday.write_text(write_rows(tmp_path / "t.csv", 100, seed=2).read_text().replace("oak", "yew"))
    call("fit", monday, "--label", "kind", "--drop", "id", "-o", tmp_path / "m1", "--memory", 30)
    found = call("fit", tuesday, "--label", "kind", "--drop", "id", "-o", tmp_path / "m2", "--from", tmp_path / "m1")
    assert "100 rows, 4 classes" in found.stderr
    both = tmp_path / "both.csv"
    both.write_text(monday.read_text() + "".join(tuesday.read_text().splitlines(keepends=True)[1:]))
    call("fit", both, "--label", "kind", "--drop", "id", "-o", tmp_path / "m3", "--memory", 30)
    assert state(tmp_path / "m2") == state(tmp_path / "m3")
    with pytest.raises(UsageError, match="--memory cannot be combined with --from"):
        call("fit", monday, "--label", "kind", "-o", tmp_path / "m4", "--from", tmp_path / "m1", "--memory", 9)
    with pytest.raises(UsageError, match="its columns differ from those that"):
        call(
            "fit",
            monday,
            "--label",
            "kind",
            "--drop",
            "a",
            "--drop",
            "id",
            "-o",
            tmp_path / "m4",
            "--from",
            tmp_path / "m1",
        )


def test_errors_are_reported(table, tmp_path):
    model = tmp_path / "m"
    cases = {
        r"unknown column of .*: 'sort'": ["fit", table, "--label", "sort", "-o", model],
        r"unknown column of .*: 'idd'; did you mean 'id'": [
            "fit",
            table,
            "--label",
            "kind",
            "--drop",
            "idd",
            "-o",
            model,
        ],
        r"line 2, column 'id': 'r0' is not a finite number": ["fit", table, "--label", "kind", "-o", model],
        r"no such file": ["fit", tmp_path / "none.csv", "--label", "kind", "-o", model],
        r"a table must be a \.csv, \.csv\.gz or .parquet file, or -": [
            "fit",
            tmp_path / "x.txt",
            "--label",
            "kind",
            "-o",
            model,
        ],
        r"memory must be": ["fit", table, "--label", "kind", "--drop", "id", "-o", model, "--memory", -3],
        r"cannot be written": ["fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / "no" / "m"],
        r"none: no such file": ["predict", tmp_path / "none", table],
    }
    for message, arguments in cases.items():
        with pytest.raises(GmedError, match=message):
            call(*arguments)
    assert not model.exists()
    call("fit", table, "--label", "kind", "--drop", "id", "-o", model)
    fewer = tmp_path / "fewer.csv"
    fewer.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"fewer\.csv has no column 'c', which .* was trained on"):
        call("predict", model, fewer)
    empty = tmp_path / "empty.csv"
    empty.write_text("a,b,c\n")
    with pytest.raises(DataError, match="no rows"):
        call("predict", model, empty, "-o", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(UsageError, match="not a valid state file"):
        call("predict", model, table)


def test_checkpoint_of_another_fit_is_not_touched(table, tmp_path):
    first = TableFit(table, "kind", tmp_path / "m", ("id",))
    fit_table(first, stop=lambda: True)
    with pytest.raises(UsageError, match=r"m\.unfinished: this checkpoint belongs to another fit"):
        fit_table(TableFit(table, "kind", tmp_path / "m", ("id",), seed=1))
    write_rows(table, seed=5)
    with pytest.raises(UsageError, match="belongs to another fit"):
        fit_table(first)
    first.checkpoint.unlink()
    assert fit_table(first).finished


class Killed(BaseException):
    """The process ends here; nothing that it would have done after is done."""


class killed_at:  # noqa: N801
    """Inside, the n-th time that something is changed on the disk, the process is killed before it or after it."""

    def __init__(self, monkeypatch, number, before):
        self.left, self.before, self.dead = number, before, False
        for owner, name in ((os, "open"), (os, "fsync"), (Path, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self.dying(getattr(owner, name)))

    def dying(self, real):
        def call(*arguments, **named):
            if self.dead:
                raise Killed
            self.left -= 1
            self.dead = self.left == 0
            if self.dead and self.before:
                raise Killed
            found = real(*arguments, **named)
            if self.dead:
                raise Killed
            return found

        return call


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("place", ["another place", "the place of the old model"])
def test_fit_killed_anywhere_learns_no_row_twice(tmp_path, place, before):
    """Also between the moment the model is there and that in which the checkpoint is gone."""
    table = write_rows(tmp_path / "t.csv", 40)
    fit_table(TableFit(table, "kind", tmp_path / "start", ("id",), ClassifierConfig(memory=20, hidden=4)))
    more = write_rows(tmp_path / "more.csv", 40, seed=1)
    whole = TableFit(more, "kind", tmp_path / "whole", ("id",), start=tmp_path / "start")
    expected = fit_table(whole)
    folder = tmp_path / "killed"
    number, ends = 0, 0
    while True:
        number += 1
        folder.mkdir()
        start = folder / "model" if place == "the place of the old model" else tmp_path / "start"
        shutil.copy(tmp_path / "start", start) if start.parent == folder else None
        fit = TableFit(more, "kind", folder / "model", ("id",), start=start)
        with pytest.MonkeyPatch.context() as patch:
            kill = killed_at(patch, number, before)
            try:
                fit_table(fit, checkpoint_every=1e-9)
                killed = False
            except Killed:
                killed = True
        if not killed:
            break
        assert kill.dead
        ends += place == "the place of the old model" and start.read_bytes() != (tmp_path / "start").read_bytes()
        for _ in range(2):
            found = fit_table(fit)
            assert found.finished and (found.rows, found.num_correct) == (expected.rows, expected.num_correct)
            assert state(fit.model) == state(whole.model), f"killed at {number}"
            assert not fit.checkpoint.exists()
        assert found.repeated
        shutil.rmtree(folder)
    assert number > 20
    assert ends > 0 or place == "another place"


def test_repeated_fit_has_nothing_to_do(table, tmp_path):
    model = tmp_path / "m"
    words = ["fit", table, "--label", "kind", "--drop", "id", "-o", model]
    first = call(*words)
    before = model.read_bytes()
    found = call(*words)
    assert "already contains the result of this fit" in found.stderr and first.stderr.strip() in found.stderr
    assert model.read_bytes() == before
    assert "the result of this fit" not in call(*words, "--memory", 50).stderr
    write_rows(table, seed=9)
    assert "the result of this fit" not in call(*words).stderr


def test_table_changed_in_the_middle_is_a_different_table(tmp_path):
    """Same size, same beginning, same end, and longer than what is compared at once."""
    table = write_rows(tmp_path / "t.csv", 120_000)
    fit = TableFit(table, "kind", tmp_path / "m", ("id",), ClassifierConfig(memory=20, hidden=4, batch_size=1000))
    assert table.stat().st_size > 3 * 2**20
    steps = iter(range(5))
    fit_table(fit, stop=lambda: next(steps) == 2)
    text = bytearray(table.read_bytes())
    place = text.index(b",", len(text) // 2) - 1
    text[place] = ord("1") if text[place] != ord("1") else ord("2")
    table.write_bytes(text)
    with pytest.raises(UsageError, match="belongs to another fit"):
        fit_table(fit)


def test_table_changed_during_fit_is_detected(table, tmp_path):
    fit = TableFit(table, "kind", tmp_path / "m", ("id",), ClassifierConfig(memory=20, hidden=4))
    steps = iter(range(100))

    def append():
        if next(steps) == 3:
            with table.open("a") as file:
                file.write("r,1,2,3,oak\n")
        return False

    with pytest.raises(DataError, match="the file changed while it was being read"):
        fit_table(fit, stop=append)
    assert not fit.model.exists()


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5"])
def test_checkpoints_are_written_at_intervals(table, tmp_path, seconds):
    with pytest.raises(UsageError, match="checkpoint_every must be a finite number"):
        call("fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / "m", "--checkpoint-every", seconds)


def test_missing_output_folder_is_reported_before_learning(tmp_path, table, monkeypatch):
    monkeypatch.setattr(OnlineClassifier, "learn", lambda *given: pytest.fail("learned"))
    with pytest.raises(UsageError, match="does not exist; create it first"):
        call("fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / "none" / "m")


def test_leftovers_of_a_killed_checkpoint_are_removed(tmp_path, table):
    left = tmp_path / ".m.unfinished.0123456789abcdef.tmp"
    for _ in range(2):  # a fit, and the same one again, which learns nothing
        left.touch()
        call("fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / "m")
        assert not left.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipe_is_refused_as_initial_model(tmp_path, table):
    os.mkfifo(tmp_path / "pipe.gmed")
    with pytest.raises(DataError, match="not a regular file"):
        call("fit", table, "--label", "kind", "--drop", "id", "--from", tmp_path / "pipe.gmed", "-o", tmp_path / "m")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipe_is_refused_as_table(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="not a regular file"):
        call("fit", tmp_path / "pipe.csv", "--label", "kind", "-o", tmp_path / "m")


@pytest.mark.slow
def test_concurrent_predictions_into_one_file_do_not_interleave(tmp_path, table):
    """The second begins while the first has written a part; whoever ends last is what is there."""
    model, out = tmp_path / "m", tmp_path / "same.csv"
    call("fit", table, "--label", "kind", "--drop", "id", "-o", model)
    alone = [call("predict", model, table, *more).stdout for more in ([], ["--proba"])]
    big = write_rows(tmp_path / "big.csv", 5000)
    words = [sys.executable, "-m", "gmed.cli", "predict", model, big, "-o", out]
    expected = [call("predict", model, big, *more).stdout for more in ([], ["--proba"])]
    for _ in range(2):
        processes = [subprocess.Popen([*words, *more], stderr=subprocess.DEVNULL) for more in ([], ["--proba"])]
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
        assert out.read_text() in expected
    assert alone[0] != alone[1]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_bad_rows_are_reported_with_column_names(tmp_path, table):
    text = table.read_text().splitlines(keepends=True)
    text[201] = "r200,999999,999999,999999,oak\n"
    table.write_text("".join(text))
    with pytest.warns(GmedWarning, match="values far from all others.* 999999 in column 'a'") as found:
        call("fit", table, "--label", "kind", "--drop", "id", "-o", tmp_path / "m")
    (warning,) = found
    assert "Columns: a, b, c. Rows, from 0: 200." in str(warning.message)
