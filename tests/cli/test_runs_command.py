"""gmed runs, rm, export and merge."""

import csv
import json
import lzma
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from pyarrow import parquet

from gmed.engine import RunSpec, extensions
from gmed.engine.checkpoint import Checkpoint, Checkpoints
from gmed.experiment import checkpoint_dir
from gmed.paper.artifacts import get_artifact
from gmed.paper.published import published
from gmed.report.tables import result_table
from gmed.results import Results, Store, markdown
from gmed.results.export import Document
from helpers import make_result

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def fill(path, *runs):
    with Store(path) as store:
        for method, seed, outcome in runs:
            kept = outcome if isinstance(outcome, str) else make_result(method, seed, outcome)
            store.add(RunSpec.make("split-mnist", method, seed), kept)


@pytest.fixture
def gmed(tmp_path, monkeypatch, call_gmed):
    """The command in a folder of its own: what it printed, and its exit code."""
    monkeypatch.chdir(tmp_path)
    fill("gmed.db", ("er", 0, 0.8), ("er", 1, 0.7), ("er+gmed", 0, 0.9), ("er+gmed", 1, "DivergedError: too large"))

    def command(*words):
        output, errors, code = call_gmed(*words)
        return output + errors, code

    return command


def counts(text):
    return {line.split()[1]: line.split()[2:] for line in text.splitlines() if line.startswith("split-mnist")}


def test_runs_counts_finished_failed_and_half_finished(gmed):
    spec = RunSpec.make("split-mnist", "er", 2)
    Checkpoints(checkpoint_dir("gmed.db"), every=1).save(spec, Checkpoint(10, [], {}, [], {}))
    said, code = gmed("runs")
    assert code == 0
    assert counts(said) == {"er": ["2", "-", "1"], "er+gmed": ["1", "1", "-"]}
    assert all(len(line) <= 80 for line in said.splitlines())
    said, _ = gmed("runs", "--failed")
    assert "er+gmed seed 1" in said
    assert "DivergedError: too large" in said
    assert "1 failed" in said


def test_rm_removes_only_the_selected_runs(gmed):
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
    assert ".csv, .json, .json.xz or .parquet" in said
    said, code = gmed("export", "nowhere/runs.csv")
    assert code == 2
    assert "cannot be written" in said


def test_metrics_fit_in_80_columns_and_mark_unmeasured_values(gmed):
    said, code = gmed("table", "--metrics")
    assert code == 0
    assert all(len(line.rstrip()) <= 80 for line in said.splitlines())
    assert "older runs do not record forward transfer and passes (3 runs)" in said
    assert "gmed run --prequential" in said
    measured = replace(
        make_result("er", 0, 0.8), untrained=[0.1] * 5, passes={"forward": 1.998, "backward": 1.5}, prequential=0.625
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


def test_merge_adds_results_and_overwrites_nothing(gmed, tmp_path):
    runs = ("er", 0, 0.8), ("er", 1, 0.6), ("er", 5, 0.4), ("er+gmed", 1, 0.9), ("mir", 0, "Error: x")
    fill(tmp_path / "server.db", *runs)
    said, code = gmed("merge", "server.db")
    assert code == 1  # there is a conflict
    assert "3 added, 1 already in the store" in said
    assert "conflict, kept the local result: split-mnist er seed 1" in said
    with Store(tmp_path / "gmed.db") as store:
        found = {(r.method, r.seed): r.final_accuracy for r in store.runs()}
        assert found == {("er", 0): 0.8, ("er", 1): 0.7, ("er", 5): 0.4, ("er+gmed", 0): 0.9, ("er+gmed", 1): 0.9}
    said, code = gmed("merge", "server.db")
    assert "0 added, 4 already in the store" in said
    said, code = gmed("merge", "nothing.db")
    assert code == 2
    assert "no such file" in said
    (tmp_path / "junk.db").write_text("not a database")
    said, code = gmed("merge", "junk.db")
    assert code == 2
    assert "junk.db" in said


@pytest.mark.parametrize("command", [["table"], ["table", "--json"], ["report", "--format", "csv"]])
def test_missing_results_name_what_the_store_has(gmed, command):
    said, code = gmed(*command, "rotated-mnist")
    assert (said, code) == ("gmed: gmed.db: no results for rotated-mnist; it has results for split-mnist\n", 2)
    said, code = gmed(*command, "split-mnist", "mir")
    assert code == 2 and said.endswith("no results for split-mnist with mir; it has results with er, er+gmed\n")


def test_table_says_when_no_pair_has_a_baseline(gmed):
    said, code = gmed("table", "--baseline", "mir")
    assert code == 2 and "same seeds as the baseline mir; methods shown: er, er+gmed" in said
    for option in ("--baseline", "--over"):
        said, code = gmed("table", option, "er")
        assert code == 0 and "er+gmed over er: +10.00 points" in said
        assert ("--over is now --baseline" in said) == (option == "--over")


def test_tables_omit_grid_search_runs_by_default(gmed):
    with Store("gmed.db") as store:
        for name, seed in (("er+gmed(alpha=0.5,beta=0.1)", 0), ("er+gmed(alpha=0.5,beta=0.1)", 1)):
            made = replace(make_result(name, seed), benchmark="split-mnist-tuning")
            store.add(RunSpec.make("split-mnist-tuning", name, seed), made)
        store.add(RunSpec.make("split-mnist-tuning", "er+gmed(alpha=10.0,beta=0.1)", 0), "DivergedError: too large")
    note = "tuning runs are not shown (3); to see them: gmed table split-mnist-tuning\n"
    for words in (["table"], ["table", "--metrics"]):
        said, code = gmed(*words)
        assert code == 0
        assert said.count("tuning") == note.count("tuning") and note in said
        said, _ = gmed(*words, "split-mnist")
        assert "tuning" not in said
        said, _ = gmed(*words, "split-mnist-tuning")
        assert "beta=0.1" in said and note not in said
    said, _ = gmed("table", "split-mnist-tuning")
    assert "alpha=10.0" in said  # the failed one
    said, _ = gmed("export", "all.json")
    assert "7 runs in" in said


def test_long_names_wrap_between_their_parts(gmed):
    """At 80 columns no line begins with the bracket that ends a name, and no word is cut."""
    names = "er(memory=20)+gmed(alpha=10.0,beta=0.001)", "er(memory=2000)+random-edit(stride=0.0003)"
    fill("gmed.db", *((name, seed, 0.5) for name in names for seed in range(2)))
    for words in (["table"], ["runs"]):
        said, _ = gmed(*words)
        parts = [cell.strip() for line in said.splitlines() for cell in line.split("│")]
        assert not any(part.startswith(")") for part in parts)
        for word in ("er(memory=20)", "alpha=10.0,", "beta=0.001)", "stride=0.0003)"):
            assert word in said


def test_mark_of_a_missed_number_is_explained_with_its_seeds(gmed):
    fill("gmed.db", *(("mir", seed, 0.3 + 0.001 * seed) for seed in range(4)))
    (row,) = Results(store_runs("mir"), published=published).rows()
    assert row.difference.within is False
    assert "outside 2 s.e." not in markdown(Results(store_runs("mir"), published=published))
    fill("gmed.db", ("mir", 4, 0.305))
    said, _ = gmed("table")
    assert "! more than two standard errors from the published mean (marked from 5 seeds on)" in said
    assert "outside 2 s.e." in markdown(Results(store_runs("mir"), published=published))
    table = result_table(Results(store_runs("mir"), published=published).rows(), [], {}, "place")
    assert any(column.note.endswith("(marked from 5 seeds on)") for column in table.columns)


def store_runs(method):
    with Store("gmed.db") as store:
        return [run for run in store.runs() if run.method == method]


def finished(path):
    with Store(path) as store:
        return {(run.method, run.seed): run.final_accuracy for run in store.runs()}


def test_merge_reads_a_results_document(gmed, tmp_path):
    gmed("export", "results.json")
    assert gmed("merge", "results.json", "--store", "new.db") == ("3 added, 0 already in the store\n", 0)
    assert finished("new.db") == finished("gmed.db")
    (tmp_path / "printed.json").write_text(gmed("table", "--json")[0])
    assert gmed("merge", "printed.json", "--store", "new.db") == ("0 added, 3 already in the store\n", 0)
    fill("other.db", ("er", 1, 0.6), ("er", 5, 0.4))
    said, code = gmed("merge", "results.json", "--store", "other.db")
    assert (said, code) == (
        "2 added, 0 already in the store\nconflict, kept the local result: split-mnist er seed 1\n", 1
    )  # fmt: skip
    assert finished("other.db")["er", 1] == 0.6


def test_merge_skips_outdated_runs(gmed, tmp_path):
    gmed("export", "results.json")
    document = json.loads((tmp_path / "results.json").read_text())
    document["keys"][0] = "of another version"
    document["runs"][1]["method"] = "a method of another time"
    (tmp_path / "results.json").write_text(json.dumps(document))
    said, code = gmed("merge", "results.json", "--store", "new.db")
    assert code == 0
    assert "1 added, 0 already in the store\n2 skipped: " in said
    assert all(len(line) <= 80 for line in said.splitlines())
    assert finished("new.db") == {("er+gmed", 0): 0.9}


@contextmanager
def registered_only_here():
    with suppress(KeyError), extensions._all_or_nothing():
        yield
        raise KeyError  # whatever was registered is taken back


def test_merge_loads_the_extensions_of_the_runs(gmed, tmp_path):
    (tmp_path / "shift.py").write_text(
        "from dataclasses import dataclass\nimport gmed\nfrom gmed.editing.base import Edit\n"
        "@gmed.register('shift')\n@dataclass(frozen=True)\nclass Shift(Edit):\n"
        "    stride: float = 0.1\n    def edit(self, x_m, y_m, count, context):\n        return x_m + self.stride\n"
    )
    with registered_only_here():
        gmed("runs", "--extension", "shift.py")
        fill("own.db", ("er+shift", 0, 0.6))
        gmed("export", "own.json", "--store", "own.db")
    assert "1 skipped" in gmed("merge", "own.json", "--store", "new.db")[0]
    with registered_only_here():
        assert gmed("merge", "own.json", "--extension", "shift.py", "--store", "new.db")[0].startswith("1 added")


def broken(document, change):
    """The document with one thing of its first run another."""
    first = document["runs"][0] | change
    return document | {"runs": [first, *document["runs"][1:]]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: json.dumps(d)[:-10], "not valid JSON"),
        (lambda d: json.dumps(d).replace("0.8", "NaN"), "NaN is not a valid number"),
        (lambda d: "[" * 100_000, "not valid JSON"),
        (lambda d: json.dumps([]), "not a results document (gmed-results/1)"),
        (lambda d: json.dumps(d | {"schema": "gmed-reproduction/1"}), "not a results document (gmed-results/1)"),
        (lambda d: json.dumps(d | {"runs": {}}), "has no list 'runs'"),
        (lambda d: json.dumps(d | {"runs": [1]}), "runs[0] is invalid: it is 1, not an object"),
        (
            lambda d: json.dumps(broken(d, {"steps": "many"})),
            "(split-mnist er seed 0) is invalid: steps is 'many', not an integer",
        ),
        (lambda d: json.dumps(broken(d, {"steps": 10**30})), "is invalid: steps is 1000"),
        (lambda d: json.dumps(broken(d, {"seed": -1})), "is invalid: seed is -1, not an integer"),
        (
            lambda d: json.dumps(broken(d, {"speed": 1})),
            "is invalid: it has 'speed', which this version does not know; was it written by a newer gmed?",
        ),
        (
            lambda d: json.dumps(broken(d, {"final_accuracy": 80})),
            "er seed 0) is invalid: final_accuracy is 80, not a number in 0 .. 1",
        ),
        (lambda d: json.dumps(broken(d, {"accuracy": [0.5]})), "is invalid: accuracy[0] is 0.5, not a list"),
        (lambda d: json.dumps(broken(d, {"accuracy": [[0.5], []]})), "the same number of tasks"),
        (lambda d: json.dumps(broken(d, {"accuracy": []})), "the same number of tasks"),
        (lambda d: json.dumps(broken(d, {"timings": {"train": "1"}})), "timings['train'] is '1', not a number"),
        (lambda d: json.dumps(broken(d, {"environment": {"torch": 2}})), "environment['torch'] is 2, not text"),
        (lambda d: json.dumps(broken(d, {"passes": {"forward": 1}})), "is invalid: passes has no 'backward'"),
        (lambda d: json.dumps(d | {"runs": [{"seed": 0}, *d["runs"][1:]]}), "runs[0] is invalid: it has no 'accuracy'"),
        (lambda d: json.dumps(d | {"keys": d["keys"][1:]}), "'keys' is not a list of 3 different keys"),
        (lambda d: json.dumps(d | {"keys": d["keys"][:1] * 3}), "'keys' is not a list of 3 different keys"),
        (lambda d: json.dumps(d | {"keys": None}), "has no list 'keys'"),
    ],
)
def test_broken_document_adds_nothing(gmed, tmp_path, damage, said):
    gmed("export", "results.json")
    document = json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text(damage(document))
    told, code = gmed("merge", "results.json", "--store", "new.db")
    assert code == 2
    assert told.startswith("gmed: results.json: ")
    assert said in told
    assert not (tmp_path / "new.db").exists()


def test_unreadable_document_is_named(gmed, tmp_path):
    (tmp_path / "folder.json").mkdir()
    said, code = gmed("merge", "folder.json")
    assert (code, said.startswith("gmed: folder.json: cannot be read")) == (2, True)
    (tmp_path / "latin.json").write_bytes(b'{"schema": "\xe9"}')
    said, code = gmed("merge", "latin.json")
    assert (code, said.startswith("gmed: latin.json: not valid JSON")) == (2, True)


def test_a_compressed_document_holds_the_same_runs(gmed, tmp_path):
    gmed("export", "runs.json")
    said, code = gmed("export", "runs.json.xz")
    assert (code, " runs in " in said) == (0, True), said
    plain = json.loads((tmp_path / "runs.json").read_text())
    assert json.loads(lzma.decompress((tmp_path / "runs.json.xz").read_bytes())) == plain
    assert (tmp_path / "runs.json.xz").stat().st_size < (tmp_path / "runs.json").stat().st_size
    assert gmed("merge", "runs.json.xz", "--store", "new.db") == ("3 added, 0 already in the store\n", 0)


def test_a_damaged_compressed_document_is_named(gmed, tmp_path, monkeypatch):
    whole = lzma.compress(b'{"schema": "gmed-results/1", "runs": []}' * 50)
    for content in (b"", b"{}", whole[:40], whole[:40] + b"x" * 40):
        (tmp_path / "runs.json.xz").write_bytes(content)
        said, code = gmed("merge", "runs.json.xz")
        assert (code, said.startswith("gmed: runs.json.xz: not a valid .xz file")) == (2, True), said
    (tmp_path / "runs.json.xz").write_bytes(whole)
    monkeypatch.setattr("gmed.results.export.MAX_EXPANDED", 1000)
    said, code = gmed("merge", "runs.json.xz")
    assert code == 2 and "expands to more than" in said


@pytest.mark.slow
@pytest.mark.skipif(not RESULTS.exists(), reason="needs a checkout: benchmarks")
def test_the_results_of_this_repository_fill_a_table_of_the_paper():
    file = RESULTS / "mnist.json.xz"
    with Document.read(file).load_results() as store:
        kept = store.keys()
    plan = [planned for planned in get_artifact("main").plan() if planned.benchmark == "split-mnist"]
    needed = {spec.key for planned in plan for spec in planned.specs()}
    assert needed and needed <= kept
