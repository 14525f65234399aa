"""Output errors: closed pipes, full devices and disks, missing folders."""

import csv
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.engine import RunResult, RunSpec
from gmed.errors import StoreError, UsageError
from gmed.experiment import Experiment, stored_results
from gmed.report.tables import csv_table, latex_table, markdown_tables
from gmed.results import Store
from gmed.results.export import export
from helpers import make_result

CLOSED = 141


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("output")
    with Store(path / "gmed.db") as store:
        store.add_all([(RunSpec.make("split-mnist", "er", seed), make_result("er", seed, 0.8)) for seed in range(3)])
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


ON_STANDARD_ERROR = {"run split-mnist er --seeds 3 --json": "3 runs already in the store, 0 to run\n"}

EACH = """
import json, os, sys
from gmed.cli.app import main
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


@pytest.mark.slow
def test_reader_closes_the_pipe(folder):
    """As ``| true`` and ``| head`` do: no traceback, neither at once nor when the interpreter ends."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        found = ended(folder, writing)
    finally:
        os.close(writing)
    assert found == {name: [CLOSED, ON_STANDARD_ERROR.get(name, "")] for name in found}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_is_full(folder):
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        found = ended(folder, full)
    finally:
        os.close(full)
    said = "gmed: standard output cannot be written (No space left on device)\n"
    assert found == {name: [2, ON_STANDARD_ERROR.get(name, "") + said] for name in found}


@pytest.mark.slow
def test_standard_error_is_closed_or_full(folder):
    reading, writing = os.pipe()
    os.close(reading)
    ended = gmed_(folder, "runs", "--store", "nowhere.db", stderr=writing)
    os.close(writing)
    assert ended.returncode == CLOSED
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert gmed_(folder, "runs", "--store", "nowhere.db", stderr=full).returncode == 2


@pytest.mark.slow
def test_standard_output_was_closed_before(folder):
    words = f"{sys.executable} -m gmed.cli predict m.gmed rows.csv >&-"
    ended = subprocess.run(["bash", "-c", words], cwd=folder, capture_output=True, text=True, timeout=60)
    said = "gmed: standard output is closed; give the name of a file with --out\n"
    assert (ended.returncode, ended.stderr) == (2, said)


@pytest.mark.slow
def test_reader_stops_early(folder):
    words = f"{sys.executable} -m gmed.cli list | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", words], cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["Benchmarks", str(CLOSED)] and not ended.stderr


# ---------------------------------------------------------------------- full disks


@pytest.mark.slow
def test_full_disk_is_reported_and_finished_runs_are_kept(tmp_path):
    specs = [RunSpec.make("split-mnist", "er", seed) for seed in range(200)]
    with Store(tmp_path / "a.db") as store:
        store.add(specs[0], make_result("er", 0, 0.8))
        (pages,) = store.database.execute("PRAGMA page_count").fetchone()
        store.database.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreError, match=r"could not be written: the disk is full .* Free some space") as caught:
            store.add_all([(spec, make_result("er", spec.seed, 0.8)) for spec in specs])
        assert "database or disk is full" in str(caught.value.__cause__)
        store.database.execute("PRAGMA max_page_count = 100000")
        store.add(specs[1], make_result("er", 1, 0.8))  # the transaction was ended
        assert [run.seed for run in store.runs()] == [0, 1]


LIMITED = """
import resource, signal, sys
from gmed.engine import RunSpec
from gmed.errors import StoreError, UsageError
from gmed.experiment import Experiment, stored_results
from gmed.report.tables import csv_table, latex_table, markdown_tables
from gmed.results import Store
from gmed.results.export import export
sys.path.insert(0, sys.argv[2])
from helpers import make_result
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with Store(sys.argv[1]) as store:
    store.add(RunSpec.make("split-mnist", "er", 0), make_result("er", 0, 0.8))
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, -1))
    try:
        for seed in range(1, 200):
            store.add(RunSpec.make("split-mnist", "er", seed), make_result("er", seed, 0.8))
    except StoreError as error:
        print(seed, error, error.__cause__)
"""


@pytest.mark.slow
def test_full_disk_reported_by_sqlite_as_io_error(tmp_path):
    words = [sys.executable, "-c", LIMITED, str(tmp_path / "a.db"), str(Path(__file__).parents[1])]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120)
    kept, *_ = said.stdout.split()
    assert "the disk is full" in said.stdout and "disk I/O error" in said.stdout, said
    with Store(tmp_path / "a.db") as store:
        assert [run.seed for run in store.runs()] == list(range(int(kept)))


# ---------------------------------------------------------------------- places that nothing can be written to


@pytest.mark.parametrize("place", ["nowhere/{}", "a-folder-{}"])
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["export", "OUT"], "all.csv"),
        (["export", "OUT"], "all.parquet"),
        (["fit", "rows.csv", "--label", "kind", "-o", "OUT"], "m.gmed"),
        (["predict", "m.gmed", "rows.csv", "-o", "OUT"], "found.csv"),
    ],
)
def test_bad_output_path_is_reported_before_any_work(folder, monkeypatch, words, name, place):
    def work(*arguments, **how):
        pytest.fail("began")

    monkeypatch.chdir(folder)
    (folder / f"a-folder-{name}").mkdir(exist_ok=True)
    for worker in ("cli.fit.fit_table", "cli.fit.predict_table", "cli.results.stored_results"):
        monkeypatch.setattr(f"gmed.{worker}", work)
    words = [place.format(name) if word == "OUT" else word for word in words]
    with pytest.raises(UsageError, match=r"cannot be written: (it is a folder|the folder nowhere does not exist)"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_unwritable_report_is_refused_before_it_is_built(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "file").touch()
    (folder / "out" / "report.html").mkdir(parents=True)
    monkeypatch.setattr("gmed.cli.report.watch_edits", lambda *arguments, **how: pytest.fail("began"))
    monkeypatch.setattr("gmed.cli.report.collect", lambda *arguments, **how: pytest.fail("began"))
    for out in ("out", "file"):
        with pytest.raises(UsageError, match="cannot be written"):
            CliRunner().invoke(app, ["report", "--gallery", "-o", out], catch_exceptions=False)


def test_unwritable_curves_are_refused_before_any_run(folder, monkeypatch):
    pytest.importorskip("torch.utils.tensorboard")
    monkeypatch.chdir(folder)
    (folder / "no-folder").touch()
    monkeypatch.setattr("gmed.experiment.execute", lambda *arguments: pytest.fail("began"))
    words = ["run", "split-mnist", "mir", "--seeds", "1", "--tensorboard", "no-folder", "--workers", "0"]
    with pytest.raises(UsageError, match="no-folder: cannot be written"):
        CliRunner().invoke(app, words, catch_exceptions=False)


# ---------------------------------------------------------------------- text that means something elsewhere


@pytest.fixture
def curious(tmp_path):
    """A store with the most curious names and errors that are possible."""
    (tmp_path / "=a|b_c*.csv").write_text("=x,kind|of\n" + "".join(f"{i},{'pq'[i % 2]}\n" for i in range(40)))
    name = str(Experiment(str(tmp_path / "=a|b_c*.csv"), ["er"], label="kind|of").benchmark_id)
    with Store(tmp_path / "gmed.db") as store:
        for method, share in (("er", 0.5), ("er+gmed", 0.75)):
            for seed in range(3):
                spec = RunSpec.make(name, method, seed)
                share += 0.005 * len(method) * (seed + 1)
                store.add(spec, RunResult(name, spec.method.name, seed, [[share]], share, share, 5, {}, {}))
        store.add(RunSpec.make(name, "mir", 0), "=HYPERLINK(A1)|x\n<b>")
    return tmp_path / "gmed.db"


def test_text_is_escaped_in_every_format(curious, tmp_path):
    results, _ = stored_results(curious)
    export(results, tmp_path / "all.csv")
    for text in ((tmp_path / "all.csv").read_text(), csv_table(results)):
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) >= 2 and all(row["benchmark"].startswith("'=a|b_c*.csv[") for row in rows)
        assert not any(cell.startswith("=") for row in rows for cell in row.values())
    assert "'=HYPERLINK(A1)|x" in (tmp_path / "all.csv").read_text()
    shown = MarkdownIt("commonmark").enable("table").render(markdown_tables(results))
    shown = html.unescape(shown)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    assert len(cells) == 2 * 7 + 8 and cells[0] == results.runs[0].benchmark
    assert "<em>" not in shown
    assert f"<li>{results.runs[0].benchmark}: er+gmed over er:" in shown
    assert "method & =a|b\\_c*.csv \\\\" in latex_table(results)
