"""The gmed command in a process of its own: run, table, list, JSON output, interrupts and start-up."""

import inspect
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import typer

import gmed as package
from gmed.cli import answer
from gmed.cli.app import app, main
from gmed.experiment import Experiment
from helpers import run_command

SCHEMA = json.loads((files("gmed.results") / "results.schema.json").read_text())


@pytest.fixture
def gmed(tmp_path):
    """The command, run in a folder of its own at 80 columns."""

    return partial(run_command, folder=tmp_path)


def test_run_options_match_function_and_experiment_file():
    at_command_line = {p.name for p in typer.main.get_command(app).commands["run"].params}
    in_python, in_files = set(inspect.signature(package.run).parameters), {f.name for f in fields(Experiment)}
    assert at_command_line - {"rerun", "tensorboard", "seed", "as_json"} == in_files
    assert in_python - {"rerun", "executor"} == in_files


@pytest.mark.slow
def test_run_then_table(gmed, tmp_path):
    done = gmed("run", "split-mnist", "finetune", "er", "er+gmed", "--seeds", "2", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "er+gmed over er: " in done.stdout
    assert "95% interval" in done.stdout
    assert "81.07 ± 2.5" in done.stdout  # the published number
    assert str(tmp_path / "gmed.db") in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "stored in" not in line)

    again = gmed("run", "split-mnist", "finetune", "er", "er+gmed", "--seeds", "2", "--device", "cpu")
    assert "6 runs already in the store, 0 to run" in again.stderr
    assert again.stdout == done.stdout

    shown = gmed("table")
    assert shown.returncode == 0
    assert shown.stdout == done.stdout
    some = gmed("table", "split-mnist", "er(lr=0.05)", "--json")
    document = json.loads(some.stdout)
    assert {run["method"] for run in document["runs"]} == {"er"}


@pytest.mark.slow
def test_fuzzy_run_is_stored_as_its_own_benchmark(gmed):
    done = gmed("run", "split-mnist", "finetune", "er", "--fuzzy", "--seeds", "1", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "split-mnist-fuzzy" in done.stdout
    shown = gmed("table", "split-mnist-fuzzy", "--json")
    assert {run["benchmark"] for run in json.loads(shown.stdout)["runs"]} == {"split-mnist-fuzzy"}
    assert gmed("table", "split-mnist", "--json").stdout != shown.stdout


@pytest.mark.slow
def test_other_json_output_has_exactly_the_documented_keys(gmed):
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    for words in (["bench", "split-mnist", "finetune", "--steps", "5", "--replicas", "1, 2"], ["doctor"]):
        document = json.loads(gmed(*words, "--json").stdout)
        told = re.search(rf"^`gmed {words[0]} --json` (.*?)\n\n", page, flags=re.M | re.S)[1]
        speeds = document["speeds"] if words[0] == "bench" else document
        keys = {key for each in speeds for key in each} | ({*document} if isinstance(document, dict) else set())
        values = {value for each in speeds for value in each.values() if isinstance(value, str)}
        assert keys <= (named := set(re.findall(r"`(\w+)`", told)))
        assert named - keys - values <= {"note", "problem"}


@pytest.mark.slow
def test_json_output_matches_schema_and_stdout_holds_nothing_else(gmed):
    done = gmed("run", "split-mnist", "finetune", "finetune(lr=1e30)", "--seeds", "3,7", "--json", "--device", "cpu")
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert [run["seed"] for run in document["runs"]] == [3, 7]
    assert len(document["runs"][0]["accuracy"]) == 5
    assert [f["seed"] for f in document["failures"]] == [3, 7]
    assert done.returncode == 1  # a run failed


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["toml", "yaml"])
def test_experiment_files(gmed, tmp_path, suffix):
    text = {
        "toml": 'benchmark = "split-mnist"\nmethods = ["finetune"]\nseeds = [4]\nstore = "x.db"\n',
        "yaml": "benchmark: split-mnist\nmethods: [finetune]\nseeds: [4]\nstore: x.db\n",
    }[suffix]
    (tmp_path / f"experiment.{suffix}").write_text(text)
    done = gmed("run", f"experiment.{suffix}", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert [run["seed"] for run in json.loads(done.stdout)["runs"]] == [4]
    assert (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "spilt-mnist", "er"], "did you mean 'split-mnist'"),
        (["run", "split-mnist", "er+gmde"], "did you mean 'gmed'"),
        (["run", "split-mnist", "er+gmed(alfa=1)"], "did you mean 'alpha'"),
        (["run", "split-mnist"], "no method given"),
        (["run", "split-mnist", "er", "--seeds", "many"], "seeds must be"),
        (["run", "split-mnist", "er", "--memory", "0"], "capacity"),
        (["run", "split-mnist", "er", "--device", "gpu"], "unknown device"),
        (["run", "nowhere.toml"], "no such file"),
        (["run", "bad.toml"], "cannot be read"),
        (["run", "odd.toml"], "did you mean 'seeds'"),
        (["run", "list.yaml"], "must contain keys"),
        (["run", "bad.yaml"], "not valid YAML"),
        (["run", "types.toml"], "workers must be an integer"),
        (["run", "split-mnist", "er", "--store", ""], "store must be a file"),
        (["run", "split-mnist", "er", "--seeds", "99999999999"], "at most"),
        (["table", "spilt-mnist"], "did you mean 'split-mnist'"),
        (["run", "split-mnist", "er", "--data-dir", "empty"], "train-images-idx3-ubyte.gz: no such file"),
        (["run", "experiment.tml"], "end in .toml or .yaml"),
        (["table"], "no results yet"),
        (["frobnicate"], "no such command"),
    ],
)
def test_bad_usage_prints_one_line_and_exits_with_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["gmed", *words])
    (tmp_path / "bad.toml").write_text("benchmark = ")
    (tmp_path / "odd.toml").write_text('benchmark = "split-mnist"\nmethods = ["er"]\nseedz = 3\n')
    (tmp_path / "types.toml").write_text('benchmark = "split-mnist"\nmethods = ["er"]\nworkers = "two"\n')
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 2
    assert message in said.err
    assert said.out == ""
    assert not (tmp_path / "gmed.db").exists()


@pytest.mark.slow
def test_store_variable_applies_to_experiment_files(gmed, tmp_path, monkeypatch):
    monkeypatch.setenv("GMED_STORE", "[odd] name.db")
    (tmp_path / "e.toml").write_text('benchmark = "split-mnist"\nmethods = ["finetune"]\nseeds = 1\n')
    done = gmed("run", "e.toml", "--device", "cpu")
    assert (tmp_path / "[odd] name.db").exists()
    assert "[odd] name.db" in done.stdout  # brackets are not markup
    assert "more than two standard errors" not in done.stdout  # one seed says nothing about that


@pytest.mark.slow
def test_list_shows_all_registered_names(gmed):
    shown = gmed("list").stdout
    for word in ("split-mnist-full", "rotated-mnist", "present", "iid-offline", "...+gmed", "alpha"):
        assert word in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "missing" in gmed("list", "--data-dir", "nowhere").stdout


@pytest.mark.slow
def test_ctrl_c_keeps_finished_runs(tmp_path):
    store = tmp_path / "gmed.db"
    words = ["run", "split-mnist", "finetune", "--seeds", "50", "--workers", "1", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gmed.cli", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a background shell ignores it
    )
    deadline = time.monotonic() + 120
    while finished(store) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Finished runs and checkpoints are stored in gmed.db" in said
    assert b"Traceback" not in said
    assert 2 <= finished(store) < 50


def finished(store):
    if not store.exists():
        return 0
    with sqlite3.connect(store) as db:
        try:
            return db.execute("SELECT count(*) FROM runs WHERE status = 'finished'").fetchone()[0]
        except sqlite3.OperationalError:  # not laid out yet
            return 0


@pytest.mark.slow
def test_import_needs_only_four_libraries():
    blocked = [
        "rich",
        "typer",
        "PIL",
        "click",
        "yaml",
        "jsonschema",
        "hypothesis",
        "torchvision",
        "pandas",
        "matplotlib",
    ]
    code = f"import sys; sys.modules.update({{name: None for name in {blocked}}}); import gmed; gmed.learners.ER"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_scripts_need_no_main_guard(tmp_path):
    """Workers do not import the caller's script."""
    script = "import gmed\nprint(gmed.run('split-mnist', 'finetune', seeds=1, workers=1, device='cpu').runs[0].steps)"
    (tmp_path / "mine.py").write_text(script)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "500\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_without_torch_equals_full_help(tmp_path, words):
    start = "import sys; from gmed.cli{} import main; sys.argv[0] = 'gmed'; main()"
    found = [
        subprocess.run(
            [sys.executable, "-c", start.format(module), *words],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            env={**os.environ, "COLUMNS": "80"},
        ).stdout
        for module in ("", ".app")
    ]
    assert found[0] == found[1], "run: python tools/static.py"


def test_help_is_reformatted_for_width_and_program_name(monkeypatch):
    monkeypatch.setattr("sys.argv", ["gmed"])
    monkeypatch.setenv("COLUMNS", "60")
    assert not answer(["--help"])
    monkeypatch.setenv("COLUMNS", "80")
    assert answer(["--help"])
    monkeypatch.setattr("sys.argv", ["/somewhere/__main__.py"])
    assert not answer(["--help"])
