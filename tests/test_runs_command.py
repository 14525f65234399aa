"""gmed runs, rm, export and merge."""

import csv
import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest
from pyarrow import parquet

from gmed.cli import main
from gmed.engine import RunResult, RunSpec
from gmed.engine.checkpoint import Checkpoint, Checkpoints
from gmed.experiment import unfinished_folder
from gmed.results import Store


def result(method, seed, accuracy=0.5):
    matrix = [[accuracy] * 5] * 5
    return RunResult("split-mnist", method, seed, matrix, accuracy, accuracy, 500, {"train": 1.0}, {"device": "cpu"})


def fill(path, *runs):
    with Store(path) as store:
        for method, seed, outcome in runs:
            kept = outcome if isinstance(outcome, str) else result(method, seed, outcome)
            store.add(RunSpec.make("split-mnist", method, seed), kept)


@pytest.fixture
def gmed(tmp_path, monkeypatch, capsys):
    """The command in a folder of its own: what it printed, and its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    fill("gmed.db", ("er", 0, 0.8), ("er", 1, 0.7), ("er+gmed", 0, 0.9), ("er+gmed", 1, "DivergedError: too large"))

    def command(*words):
        monkeypatch.setattr("sys.argv", ["gmed", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return captured.out + captured.err, ended.value.code or 0

    return command


def counts(text):
    return {line.split()[1]: line.split()[2:] for line in text.splitlines() if line.startswith("split-mnist")}


def test_runs_counts_finished_failed_and_half_finished(gmed):
    spec = RunSpec.make("split-mnist", "er", 2)
    Checkpoints(unfinished_folder("gmed.db"), every=1).save(spec, Checkpoint(10, [], {}, [], {}))
    said, code = gmed("runs")
    assert code == 0
    assert counts(said) == {"er": ["2", "-", "1"], "er+gmed": ["1", "1", "-"]}
    assert all(len(line) <= 80 for line in said.splitlines())
    said, _ = gmed("runs", "--failed")
    assert "er+gmed seed 1" in said
    assert "DivergedError: too large" in said
    assert "1 failed" in said


def test_rm_removes_what_it_is_told_and_nothing_else(gmed):
    assert gmed("rm", "split-mnist", "--failed") == ("removed 1 run\n", 0)
    assert counts(gmed("runs")[0]) == {"er": ["2", "-", "-"], "er+gmed": ["1", "-", "-"]}
    assert gmed("rm", "split-mnist", "er(lr=0.05)") == ("removed 2 runs\n", 0)
    assert counts(gmed("runs")[0]) == {"er+gmed": ["1", "-", "-"]}
    assert gmed("rm", "permuted-mnist") == ("removed 0 runs\n", 0)
    said, code = gmed("rm", "split-mnits")
    assert code == 2
    assert "did you mean 'split-mnist'" in said


def test_export_in_three_formats(gmed, tmp_path):
    for name in ("runs.csv", "runs.json", "runs.parquet"):
        said, code = gmed("export", name)
        assert code == 0
        assert "4 runs" in said
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [(row["method"], row["status"]) for row in rows] == [
        ("er", "finished"), ("er", "finished"), ("er+gmed", "finished"), ("er+gmed", "failed"),
    ]  # fmt: skip
    assert float(rows[0]["final_accuracy"]) == 0.8
    assert json.loads(rows[0]["accuracy"]) == [[0.8] * 5] * 5
    document = json.loads((tmp_path / "runs.json").read_text())
    jsonschema.validate(document, json.loads((files("gmed.results") / "results.schema.json").read_text()))
    table = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [row["error"] for row in table] == [None, None, None, "DivergedError: too large"]
    assert float(rows[0]["forgetting"]) == table[0]["forgetting"] == document["runs"][0]["metrics"]["forgetting"] == 0.0
    assert rows[0]["forward_transfer"] == "" and table[0]["forward_transfer"] is None  # not measured then
    said, code = gmed("export", "runs.xlsx")
    assert code == 2
    assert ".csv, .json, .parquet" in said
    said, code = gmed("export", "nowhere/runs.csv")
    assert code == 2
    assert "cannot be written" in said


def test_metrics_fit_in_80_columns_and_say_what_was_not_measured(gmed):
    said, code = gmed("table", "--metrics")
    assert code == 0
    assert all(len(line.rstrip()) <= 80 for line in said.splitlines())
    assert "not known of the older ones (3 runs)" in said
    assert "gmed run --prequential" in said
    measured = replace(
        result("er", 0, 0.8), untrained=[0.1] * 5, passes={"forward": 1.998, "backward": 1.5}, prequential=0.625
    )
    with Store("gmed.db") as store:
        store.remove("split-mnist")
        store.add(RunSpec.make("split-mnist", "er", 0), measured)
    said, code = gmed("table", "--metrics")
    lines = [line.split() for line in said.splitlines() if line.startswith("er ")]
    assert lines == [
        ["er", "1", "80.00", "80.00", "0.00", "0.00", "70.00", "80.00", "80.00"],
        ["er", "1", "62.50", "2.00", "1.50", "1.00", "-", "-"],
    ]
    assert "not known" not in said and "--prequential" not in said
    said, code = gmed("table", "--metrics", "--json")
    document = json.loads(said)
    jsonschema.validate(document, json.loads((files("gmed.results") / "results.schema.json").read_text()))
    assert document["runs"][0]["metrics"]["forward_transfer"] == pytest.approx(0.7)
    assert document["runs"][0]["untrained"] == [0.1] * 5


def test_merge_brings_results_home_and_overwrites_nothing(gmed, tmp_path):
    runs = ("er", 0, 0.8), ("er", 1, 0.6), ("er", 5, 0.4), ("er+gmed", 1, 0.9), ("mir", 0, "Error: x")
    fill(tmp_path / "server.db", *runs)
    said, code = gmed("merge", "server.db")
    assert code == 1  # there is a conflict
    assert "3 added, 1 already here" in said
    assert "another result is here and was kept: split-mnist er seed 1" in said
    with Store(tmp_path / "gmed.db") as store:
        found = {(r.method, r.seed): r.final_accuracy for r in store.runs()}
        assert found == {("er", 0): 0.8, ("er", 1): 0.7, ("er", 5): 0.4, ("er+gmed", 0): 0.9, ("er+gmed", 1): 0.9}
    said, code = gmed("merge", "server.db")
    assert "0 added, 4 already here" in said
    said, code = gmed("merge", "nothing.db")
    assert code == 2
    assert "no such file" in said
    (tmp_path / "junk.db").write_text("not a database")
    said, code = gmed("merge", "junk.db")
    assert code == 2
    assert "junk.db" in said
