"""Damaged or impossible runs in stores and results files are named and skipped; all others are shown."""

import json
import sqlite3
import time
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmed.cli.doctor import OK, PROBLEM, run_checks
from gmed.engine import RunResult, RunSpec
from gmed.errors import StoreError
from gmed.experiment import stored_results
from gmed.report.charts.chart import inline_json
from gmed.report.data import collect
from gmed.report.html import html
from gmed.report.tables import csv_table, latex_table, markdown_tables
from gmed.results import Store, SweepClaims
from gmed.results.claims import STALE_SECONDS, is_alive
from gmed.results.export import Document, export
from gmed.results.store import DamagedRunWarning
from helpers import fuzzed

FILES = Path(__file__).parents[1] / "files"
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SPEC, OTHER = RunSpec.make("split-mnist", "er+gmed", 3), RunSpec.make("split-mnist", "er", 3)


def result(spec=SPEC, accuracy=0.5):
    return RunResult(
        "split-mnist", spec.method.name, spec.seed, [[accuracy, 0.1], [accuracy, accuracy]], accuracy, accuracy, 7,
        {"train": 1.5}, {"device": "cpu", "torch": "2"}, [0.1, 0.1], {"forward": 2.0, "backward": 1.5}, 0.5,
        [[3, 0], [2, 1]], {"examples": 500.0, "bytes": 1580008},
    )  # fmt: skip


def fill(path):
    with Store(path) as store:
        store.add_all([(SPEC, result()), (OTHER, result(OTHER, 0.4))])
    return path


def change(path, what, *, unsealed=True):
    """Change a row as somebody with an editor would; without its checksum, as if it had been written so."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE runs SET {what} WHERE method = 'er+gmed'")
        if unsealed:
            database.execute("UPDATE runs SET checksum = NULL")


@pytest.fixture
def gmed(tmp_path, monkeypatch, call_gmed):
    """The command in a folder of its own: what it printed, its complaints and its exit code."""
    monkeypatch.chdir(tmp_path)
    return call_gmed


def of_store(path):
    return [(sign.state, sign.text) for sign in run_checks(path) if sign.about == "store"]


# ---------------------------------------------------------------------- damaged rows

DAMAGE = {
    "accuracy = NULL": "accuracy is None, not a list",
    "accuracy = '" + "[" * 100_000 + "'": "nested too deeply",
    "accuracy = '[0.5]'": "accuracy[0] is 0.5, not a list",
    "accuracy = '[[2.5]]'": "accuracy[0][0] is 2.5, not a number in 0 .. 1",
    "accuracy = '[[0.5, NaN]]'": "accuracy[0][1] is nan, not a number in 0 .. 1",
    "accuracy = '[[\"high\"]]'": "accuracy[0][0] is 'high', not a number in 0 .. 1",
    "accuracy = '[[]]'": "must have the same number of tasks",
    "accuracy = '[[0.5, 0.1], [0.5]]'": "must have the same number of tasks",
    "accuracy = '{}', timings = '[]'": "accuracy is {}, not a list",
    "accuracy = '[[0.5, 0.1], [0.5, 0.9]]'": "not the mean of the last row of accuracy",
    "final_accuracy = 0.9": "not the mean of the last row of accuracy",
    "final_accuracy = NULL": "final_accuracy is None, not a number in 0 .. 1",
    "pooled_accuracy = 0.9": "outside the range of the last row of accuracy",
    "pooled_accuracy = 1e300": "pooled_accuracy is 1e+300, not a number in 0 .. 1",
    "steps = NULL": "steps is None, not an integer",
    "steps = -5": "steps is -5, not an integer in 1 .. ",
    "environment = '7'": "environment is 7, not an object",
    'environment = \'{"device": "\\ud800"}\'': "not Unicode",
    "environment = cast(X'7b22ff223a2231227d' AS TEXT)": "not Unicode",
    "timings = '{\"train\": 1e999}'": "timings['train'] is inf, not a number",
    "timings = '{\"train\": Infinity}'": "timings",
    "untrained = '7'": "untrained is 7, not a list",
    "untrained = '[0.5]'": "must have one accuracy for each task",
    "untrained = '[1.5, 0.1]'": "untrained[0] is 1.5, not a number in 0 .. 1",
    "passes = '{}'": "passes has no 'backward', 'forward'",
    "passes = '[1, 1]'": "passes is [1, 1], not an object",
    'passes = \'{"forward": 1.0, "backward": -1.0}\'': "passes",
    "memory = '[[1, 2], [3]]'": "memory",
    "memory = '[[1, 2]]'": "memory",
    f"memory = '[[1, 2], [3, {10**40}]]'": "memory",
    "prequential = 1.5": "prequential is 1.5, not a number in 0 .. 1",
    "seed = -1": "seed is -1, not an integer",
    "config = '7'": "config",
    "versions = '{\"engine\": [1]}'": "versions['engine'] is [1], not an integer or text",
    "recorded = 'yesterday'": "yesterday",
    "status = 'failed'": "it has failed, but has accuracy",
    "error = 'no'": "it has finished, but has an error",
}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "why"), DAMAGE.items(), ids=range(len(DAMAGE)))
def test_damaged_run_is_named_and_skipped(tmp_path, gmed, damage, why):
    change(fill("gmed.db"), damage)
    told = of_store("gmed.db")
    assert told[0][0] == PROBLEM and "holds 1 damaged run;" in told[0][1]
    assert told[1][1].startswith("split-mnist er+gmed seed ") and why in told[1][1]
    for words in (["table"], ["runs"], ["export", "a.csv"], ["table", "--metrics"], ["report", "--format", "markdown"]):
        _, complaint, code = gmed(*words)
        assert code == 0, (words, complaint)
        if not damage.startswith("seed"):  # it is no run of today's then, as any that others computed
            assert complaint.count("damaged run") == 1 and "gmed.db: 1 damaged run is skipped" in complaint
            assert "split-mnist er+gmed seed 3 (" in complaint and "gmed doctor --store gmed.db" in complaint
            assert why in complaint
    assert (
        "er+gmed" not in (tmp_path / "a.csv").read_text()
        and "split-mnist,er,3,finished" in (tmp_path / "a.csv").read_text()
    )
    assert gmed("doctor")[2] == 2


def test_damaged_run_is_recomputed(tmp_path):
    change(fill(tmp_path / "a.db"), "passes = '[[['")
    with Store(tmp_path / "a.db") as store:
        with pytest.warns(DamagedRunWarning, match=r"split-mnist er\+gmed seed 3"):
            assert store.find(SPEC) is None
        assert store.keys() == {OTHER.key}
        plain = replace(result(), passes=None, memory=None)
        store.add(SPEC, plain)
        assert store.find(SPEC) == plain  # nothing of the damaged row
    assert of_store(tmp_path / "a.db")[0][0] == OK


def test_failure_replaces_only_a_damaged_run(tmp_path):
    change(fill(tmp_path / "a.db"), "steps = 0")
    with Store(tmp_path / "a.db") as store:
        store.add_all([(SPEC, "DivergedError: no"), (OTHER, "DivergedError: no")])
        assert [failure.method for failure in store.failures()] == ["er+gmed"]
        assert [run.method for run in store.runs()] == ["er"]


def test_changed_numbers_are_detected(tmp_path):
    """Also those that could have been found."""
    for changed in ("timings = '{\"train\": 9.0}'", "untrained = '[0.2, 0.2]'", "seed = 4", "steps = 8"):
        path = tmp_path / "a.db"
        path.unlink(missing_ok=True)
        change(fill(path), changed, unsealed=False)
        (_, _), (state, text) = of_store(path)
        assert state == PROBLEM and "changed after it was written" in text


def test_values_added_by_merge_are_not_damage(tmp_path):
    fill(tmp_path / "b.db")
    with Store(tmp_path / "a.db") as store, Store(tmp_path / "b.db") as other:
        store.add(SPEC, replace(result(), passes=None))
        assert store.merge(other) == (1, 1, [], 0, [])
        assert store.find(SPEC) == result()
    assert of_store(tmp_path / "a.db")[0][0] == OK


def test_run_under_another_key_is_damaged(tmp_path):
    change(fill(tmp_path / "a.db"), f"key = '{RunSpec.make('split-mnist', 'mir', 0).key}'")
    with Store(tmp_path / "a.db") as store:
        assert store.find(RunSpec.make("split-mnist", "mir", 0)) is None
        assert [run.method for run in store.runs()] == ["er"]


@pytest.mark.parametrize("schema", range(1, 7))
def test_older_schemas_have_no_damaged_runs(tmp_path, schema):
    path = tmp_path / "old.db"
    path.write_bytes((FILES / f"store-schema-{schema}.db").read_bytes())
    before = path.read_bytes()
    state, text = of_store(path)[0]
    assert state == OK and f"; schema {schema}" in text and path.read_bytes() == before
    with Store(path) as store:
        runs = store.runs()
        assert len(runs) == 2 if schema > 1 else runs is not None
    assert of_store(path)[0][0] == OK


@pytest.mark.skipif(not RESULTS.exists(), reason="needs a checkout: benchmarks")
def test_published_results_have_no_damaged_runs():
    assert sum(len(Document.read(file).runs) for file in RESULTS.glob("*.json.xz")) > 9000


# ---------------------------------------------------------------------- merging


@pytest.mark.parametrize(("damage", "why"), DAMAGE.items(), ids=range(len(DAMAGE)))
def test_merge_skips_impossible_results(tmp_path, gmed, damage, why):
    change(fill("other.db"), damage)
    said, _, code = gmed("merge", "other.db")
    assert code == 1 and said.startswith(
        "1 added, 0 already in the store\n1 damaged, skipped: split-mnist er+gmed seed "
    )
    assert why in said
    assert of_store("gmed.db")[0][0] == OK


def test_merge_replaces_a_damaged_run(tmp_path):
    change(fill(tmp_path / "a.db"), "accuracy = '[['")
    fill(tmp_path / "b.db")
    with Store(tmp_path / "a.db") as store, Store(tmp_path / "b.db") as other:
        assert store.merge(other) == (1, 1, [], 0, [])
        assert store.find(SPEC) == result()


@pytest.mark.parametrize("content", ["", "[" * 100_000, '{"total": NaN}', '"\ud800"'], ids=range(4))
def test_merge_skips_impossible_observations(tmp_path, content):
    fill(tmp_path / "b.db")
    with Store(tmp_path / "a.db") as store, Store(tmp_path / "b.db") as other:
        other.put_probe(SPEC, "edits-1", {})
        raw = content.encode("utf-8", "surrogatepass")
        other.database.execute("UPDATE observed SET content = CAST(? AS TEXT)", (raw,))
        with pytest.warns(DamagedRunWarning, match=r"edits-1 of split-mnist er\+gmed seed 3"):
            assert other.get_probe(SPEC, "edits-1") is None
        merged = store.merge(other)
        assert merged.added == 2 and merged.observed == 0 and "edits-1" in merged.damaged[0]
        assert store.get_probe(SPEC, "edits-1") is None


def test_unknown_schema_is_refused(tmp_path):
    """Columns of other names are not taken over, and no view or trigger is run."""
    path = fill(tmp_path / "more.db")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute('ALTER TABLE runs ADD COLUMN "x) VALUES (1); --" TEXT')
    with Store(tmp_path / "a.db") as store, Store(path) as other:
        assert store.merge(other).added == 2
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    for made in (f"CREATE VIEW more AS {endless}", "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM runs; END"):
        path = fill(tmp_path / f"{len(made)}.db")
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(made)
        with pytest.raises(StoreError, match="views or triggers"):
            Store(path)


@pytest.mark.slow
def test_error_text_may_hold_any_characters(tmp_path, gmed):
    with Store("gmed.db") as store:
        store.add_all([(SPEC, ""), (OTHER, "a file called \udcff\n|there|")])
        store.add(RunSpec.make("split-mnist", "mir", 3), "\n\n  \x1b[31mred\n")
    said, _, code = gmed("runs", "--failed")
    assert code == 0 and "  no reason was given\n" in said and "a file called \\udcff" in said and "\x1b" not in said
    for words in (["table"], ["report"], ["export", "a.csv"], ["export", "a.parquet"]):
        assert gmed(*words)[2] == 0


# ---------------------------------------------------------------------- claims


def test_sweep_with_a_damaged_run_can_be_watched(tmp_path, gmed):
    with Store("gmed.db") as store, SweepClaims(store) as sweep:
        sweep.claim([SPEC, OTHER])
        store.add(SPEC, result())
        change("gmed.db", "final_accuracy = NULL, timings = '[['")
        said, complaint, code = gmed("watch", "--once")
    assert code == 0 and "1 of 2 runs" in said, complaint


def test_claim_from_the_future_expires(tmp_path):
    now = time.time()
    assert is_alive("elsewhere", "1 ", now + STALE_SECONDS / 2)
    assert not is_alive("elsewhere", "1 ", now + 2 * STALE_SECONDS)
    assert not is_alive("elsewhere", "1 ", 1e300)
    with Store(tmp_path / "a.db") as store, SweepClaims(store) as sweep, SweepClaims(store) as other:
        other.claim([SPEC])
        store.database.execute(
            "UPDATE sweeps SET host = 'elsewhere', seen = ? WHERE process = ?", (now + 1e6, other.process)
        )
        assert sweep.claim([SPEC]) == [SPEC]


# ---------------------------------------------------------------------- whatever is in a document or a store

NAMES = ["er", "er+gmed", "er(lr=0.05)", "er+", "", "split-mnist", "er+gmed(alpha=nan)", "a|b", "=1+1", "\ud800"]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2**63, 10**400, 1e308, float("nan"), float("inf"), -0.0, 1e-320, 0.5]),
    st.sampled_from([*NAMES, "\x00", "\x1b[31m", "</script>", "x" * 100_000]),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
DEEP = st.integers(1, 200_000).map(lambda depth: "[" * depth + "]" * depth)


def places(value, here=()):
    """The way to everything in a document."""
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*here, name))


def changed(value, place, how, new):
    """A document with one thing replaced, removed, doubled or nested."""
    if not place:
        return new
    first, *rest = place
    if rest or how == "replace":
        inside = changed(value[first], rest, how, new)
        return value | {first: inside} if isinstance(value, dict) else [*value[:first], inside, *value[first + 1 :]]
    if how == "remove":
        return (
            {name: each for name, each in value.items() if name != first}
            if isinstance(value, dict)
            else [*value[:first], *value[first + 1 :]]
        )
    if how == "double":
        return value | {f"{first}2": value[first]} if isinstance(value, dict) else [*value, value[first]]
    return changed(value, [*place], "replace", [value[first]])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A sound document, as text."""
    folder = tmp_path_factory.mktemp("written")
    results, _ = stored_results(fill(folder / "a.db"))
    export(results, folder / "a.json")
    return (folder / "a.json").read_text()


def check_that_it_can_be_read(path):
    """By every command that reads a store."""
    results, outdated = stored_results(path)
    export(results, path.with_suffix(".csv"))
    export(results, path.with_suffix(".json"))
    assert outdated >= 0 and json.dumps(results.to_dict())
    for write in (markdown_tables, latex_table, csv_table):
        write(results).encode()
    with Store(path) as store:
        store.keys(), store.timings(), store.missing_extensions()
        store.find(SPEC), store.outcome(SPEC, 0)
    if results.runs:
        for section in collect(results, outdated, path).sections:
            inline_json([chart.to_dict() for chart in section.charts])


@pytest.mark.slow
@fuzzed(60)
@given(data=st.data())
def test_whatever_is_in_a_document(tmp_path_factory, written, data):
    document = json.loads(written)
    for _ in range(data.draw(st.integers(1, 3))):
        there = list(places(document))
        place = data.draw(st.sampled_from([place for place in there if place[:1] in (("runs",), ("keys",), ())]))
        how = data.draw(st.sampled_from(["replace", "replace", "replace", "remove", "double", "nest"]))
        document = changed(document, place, how, data.draw(VALUES))
        if not isinstance(document, dict):
            break
    text = json.dumps(document)
    if data.draw(st.integers(0, 9)) == 0:
        text = text.replace("0.5", data.draw(DEEP), 1)
    folder = tmp_path_factory.mktemp("document")
    (folder / "a.json").write_text(text)
    began = time.monotonic()
    try:
        found = Document.read(folder / "a.json")
        with found.load_results() as source, Store(folder / "a.db") as store:
            merged = store.merge(source)
    except StoreError as error:
        assert str(error).startswith(f"{folder / 'a.json'}: ") and len(str(error)) < 2000
    else:
        assert not merged.damaged
        check_that_it_can_be_read(folder / "a.db")
    assert time.monotonic() - began < 20


COLUMNS = [
    "key", "benchmark", "method", "seed", "status", "config", "versions", "recorded", "steps", "final_accuracy",
    "pooled_accuracy", "accuracy", "timings", "environment", "error", "untrained", "passes", "prequential", "memory",
    "overhead", "checksum",
]  # fmt: skip
CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=20),
    st.sampled_from(["finished", "failed", "er", "er+gmed", "split-mnist", "2026-01-01", "1-1-1T0:0:0+00:00"]),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    VALUES.map(json.dumps),
    DEEP,
)


@pytest.mark.slow
@fuzzed(60)
@given(cells=st.lists(st.tuples(st.sampled_from(COLUMNS), CELLS, st.booleans()), min_size=1, max_size=3))
def test_whatever_is_in_a_row(tmp_path_factory, cells):
    """Of a store that others made, where columns need not hold what they should."""
    folder = tmp_path_factory.mktemp("row")
    fill(folder / "b.db")
    with closing(sqlite3.connect(folder / "b.db")) as database, database:
        database.execute("CREATE TABLE loose AS SELECT * FROM runs")
        database.execute("DROP TABLE runs")
        database.execute("ALTER TABLE loose RENAME TO runs")
        for name, cell, as_text in cells:
            value = "CAST(? AS TEXT)" if as_text and isinstance(cell, bytes) else "?"
            database.execute(f"UPDATE runs SET {name} = {value} WHERE rowid = 1", (cell,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRunWarning)
        check_that_it_can_be_read(folder / "b.db")
    (state, *_), *_ = of_store(folder / "b.db")
    with Store(folder / "a.db") as store, Store(folder / "b.db") as other:
        merged = store.merge(other)
        assert merged.added + len(merged.damaged) == 2 and bool(merged.damaged) == (state == PROBLEM)
    check_that_it_can_be_read(folder / "a.db")
    assert of_store(folder / "a.db")[0][0] == OK


# ---------------------------------------------------------------------- what was observed, in a report

PLAIN_SCRIPTS = 3
SEEN = {
    "total": 100,
    "histogram": {"edges": [0.0, 1.0, 2.0], "before": [[1, 2]], "after": [[3, 0]],
                  "mean_before": 0.5, "mean_after": 0.7},
    "gallery": {
        "slots": 10, "seen": [10, 20], "label": [3], "since": [5], "edits": [[0, 2]], "size": [28, 28],
        "largest_change": 0.5, "pictures": "data:image/png;base64,AAAA", "changes": "data:image/png;base64,AAAA",
    },
}  # fmt: skip


def report_of(path, seen):
    with Store(path) as store:
        store.put_probe(SPEC, "edits-1", seen)
    results, outdated = stored_results(path)
    return html(collect(results, outdated, path))


def test_valid_gallery_is_shown(tmp_path):
    page = report_of(fill(tmp_path / "a.db"), SEEN)
    assert "Edited examples over time" in page and "Effect of edits on losses" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "new"),
    [
        ((), 7),
        ((), {}),
        (("histogram",), None),
        (("histogram", "edges"), [0.0]),
        (("histogram", "before"), [["many", 2]]),
        (("histogram", "mean_after"), None),
        (("histogram", "edges"), [0.0, 1.0, float("inf")]),
        (("gallery", "label"), ["</script><b>"]),
        (("gallery", "seen"), []),
        (("gallery", "seen"), ["</script><script>alert(1)</script>", 2]),
        (("gallery", "edits"), [[0]]),
        (("gallery", "pictures"), "https://example.org/spy.png"),
        (("gallery", "pictures"), "data:image/png;base64,AA); background: url(x"),
        (("gallery", "largest_change"), "wide"),
    ],
    ids=range(14),
)
def test_damaged_or_forged_gallery_is_skipped(tmp_path, place, new):
    path = fill(tmp_path / "a.db")
    with pytest.warns(DamagedRunWarning, match=r"of split-mnist er\+gmed seed 3"):
        page = report_of(path, changed(SEEN, place, "replace", new))
    assert "Edited examples over time" not in page and "split-mnist" in page and "example.org" not in page


@pytest.mark.slow
@fuzzed(15)
@given(data=st.data())
def test_whatever_was_observed(tmp_path_factory, data):
    place = data.draw(st.sampled_from(list(places(SEEN))))
    how = data.draw(st.sampled_from(["replace", "remove", "double", "nest"])) if place else "replace"
    seen = changed(SEEN, place, how, data.draw(VALUES))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRunWarning)
        page = report_of(fill(tmp_path_factory.mktemp("seen") / "a.db"), seen)
    assert page.count("</script>") == PLAIN_SCRIPTS + page.count('class="seen"')
