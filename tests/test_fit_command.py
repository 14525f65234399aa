"""gmed fit and gmed predict: tables larger than memory, fits that are cut, what goes wrong."""

import csv
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from gmed.cli import app
from gmed.data.table import TableFile
from gmed.errors import DataError, GmedError, UsageError
from gmed.online import OnlineClassifier, Settings
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


def call(*arguments):
    found = CliRunner().invoke(app, list(map(str, arguments)))
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
    assert found.exit_code == 0 and "rows are as the table says" in found.stderr
    with (tmp_path / "found.csv").open() as file:
        rows = list(csv.DictReader(file))
    with table.open() as file:
        truth = [row["kind"] for row in csv.DictReader(file)]
    assert list(rows[0]) == ["prediction", "p(elm)", "p(fir)", "p(oak)"]
    assert np.mean([row["prediction"] == kind for row, kind in zip(rows, truth, strict=True)]) > 0.9
    for row in rows:
        shares = {name: float(row[f"p({name})"]) for name in ("elm", "fir", "oak")}
        assert abs(sum(shares.values()) - 1) < 1e-4 and max(shares, key=shares.get) == row["prediction"]


def test_it_is_the_classifier_of_the_same_rows(table, tmp_path):
    """Against rows read by the csv module and learned from ten at a time, and scikit-learn's shell around the file."""
    from gmed.sklearn import GMEDClassifier

    model = tmp_path / "trees.gmed"
    call("fit", table, "--label", "kind", "--drop", "id", "-o", model, "--memory", 50, "--seed", 3)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    x = np.array([[float(row[name]) for name in "abc"] for row in rows])
    y = np.array([row["kind"] for row in rows])
    expected = OnlineClassifier(Settings(memory=50), inputs=3, seed=3)
    for start in range(0, len(y), 10):
        expected.learn(x[start : start + 10], y[start : start + 10])
    tensors, texts = expected.state()
    assert state(model)[:2] == ({name: t.tolist() for name, t in tensors.items()}, texts)
    estimator = GMEDClassifier.load(model)
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
    assert call("predict", model, table).stdout.split()[1:] == expected.predict(x).tolist()


def test_parquet_is_the_same_table(table, tmp_path):
    other = to_parquet(table)
    for path in (table, other):
        call("fit", path, "--label", "kind", "--drop", "id", "-o", tmp_path / f"{path.suffix}.gmed")
    assert state(tmp_path / ".csv.gmed") == state(tmp_path / ".parquet.gmed")
    assert (
        call("predict", tmp_path / ".csv.gmed", other).stdout == call("predict", tmp_path / ".csv.gmed", table).stdout
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("cuts", [[1], [3, 4, 20], list(range(1, 24))])
def test_a_fit_that_is_cut_ends_as_one_that_is_not(table, tmp_path, kind, cuts):
    table = table if kind == "csv" else to_parquet(table)
    whole = TableFit(table, "kind", tmp_path / "whole", ("id",), Settings(memory=40, hidden=8))
    parts = TableFit(table, "kind", tmp_path / "parts", ("id",), Settings(memory=40, hidden=8))
    expected, done = fit_table(whole), 0
    for cut in cuts:
        steps = iter(range(done + 1, 1000))
        found = fit_table(parts, stop=lambda cut=cut, steps=steps: next(steps) == cut)
        assert not found.finished and found.rows == 10 * cut and found.resumed == 10 * done
        assert parts.checkpoint.exists() and not parts.model.exists()
        done = cut
    found = fit_table(parts)
    assert found.finished and (found.rows, found.right) == (expected.rows, expected.right) == (237, expected.right)
    assert state(parts.model) == state(whole.model) and not parts.checkpoint.exists()


def test_a_fit_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
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
    assert finished.returncode == 0 and "went on after row" in finished.stderr
    subprocess.run([*command, tmp_path / "whole", *settings], check=True, capture_output=True)
    assert state(model) == state(tmp_path / "whole")


def test_a_table_is_read_no_further_than_it_must_be(tmp_path):
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


def test_a_model_learns_on_from_another(table, tmp_path):
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
    with pytest.raises(UsageError, match="--memory cannot be given with --from"):
        call("fit", monday, "--label", "kind", "-o", tmp_path / "m4", "--from", tmp_path / "m1", "--memory", 9)
    with pytest.raises(UsageError, match="not those that"):
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


def test_what_goes_wrong_is_said(table, tmp_path):
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
        r"a table is a .csv or a .parquet file": ["fit", tmp_path / "x.txt", "--label", "kind", "-o", model],
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
    with pytest.raises(DataError, match=r"fewer\.csv has no column 'c', which .* learned from"):
        call("predict", model, fewer)
    empty = tmp_path / "empty.csv"
    empty.write_text("a,b,c\n")
    with pytest.raises(DataError, match="no rows"):
        call("predict", model, empty, "-o", tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(UsageError, match="not a sound state file"):
        call("predict", model, table)


def test_a_checkpoint_of_another_fit_is_left_alone(table, tmp_path):
    first = TableFit(table, "kind", tmp_path / "m", ("id",))
    fit_table(first, stop=lambda: True)
    with pytest.raises(UsageError, match=r"m\.unfinished: what is kept there is of another fit"):
        fit_table(TableFit(table, "kind", tmp_path / "m", ("id",), seed=1))
    write_rows(table, seed=5)
    with pytest.raises(UsageError, match="of another fit"):
        fit_table(first)
    first.checkpoint.unlink()
    assert fit_table(first).finished
