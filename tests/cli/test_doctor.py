"""gmed doctor finds problems and modifies nothing."""

import json
import sqlite3
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gmed.cli.doctor
from gmed.cli.app import app
from gmed.cli.doctor import NOTE, OK, PROBLEM, run_checks
from gmed.engine import RunSpec
from gmed.results.store import SCHEMA_VERSION, Store


def states(signs, about):
    return [sign.state for sign in signs if sign.about == about]


def of_store(path):
    (sign,) = [sign for sign in run_checks(path) if sign.about == "store"]
    return sign


def test_intact_store_is_reported_and_not_modified(tmp_path):
    path = tmp_path / "a.db"
    with Store(path) as store:
        store.add(RunSpec.make("split-mnist", "er", 0), "it diverged")
    before = path.read_bytes()
    sign = of_store(path)
    assert sign.state == OK and "1 failed runs, 0 unfinished" in sign.text
    assert path.read_bytes() == before


def test_unusable_stores_are_reported(tmp_path):
    nothing, text, other, newer = (tmp_path / name for name in ("nothing.db", "text.db", "other.db", "newer.db"))
    text.write_text("these are not results\n" * 100)
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE stamps (price)")
    Store(newer).close()
    with sqlite3.connect(newer) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert of_store(nothing).state == NOTE and not nothing.exists()
    for path, reason in ((text, "cannot be read"), (other, "of another program"), (newer, "a newer gmed")):
        sign = of_store(path)
        assert sign.state == PROBLEM and reason in sign.text and "another --store" in sign.text


def test_older_store_is_not_migrated(tmp_path):
    path = tmp_path / "old.db"
    path.write_bytes((Path(__file__).parents[1] / "files" / "store-schema-2.db").read_bytes())
    before = path.read_bytes()
    sign = of_store(path)
    assert sign.state == OK and f"upgraded to {SCHEMA_VERSION}" in sign.text and path.read_bytes() == before


def test_wrong_arithmetic_is_detected(monkeypatch):
    assert states(run_checks("none.db"), "arithmetic") == [OK]
    monkeypatch.setattr(gmed.cli.doctor, "edit_examples", lambda model, x, *others, **settings: x + 1e-6)
    assert states(run_checks("none.db"), "arithmetic") == [PROBLEM]


def test_torch_for_cuda_without_a_device(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert states(run_checks("none.db"), "device") == [NOTE]


def test_the_command(tmp_path):
    runner = CliRunner()
    told = runner.invoke(app, ["doctor", "--store", str(tmp_path / "a.db"), "--json"])
    assert told.exit_code == 0 and {"gmed", "store", "data"} <= {sign["about"] for sign in json.loads(told.stdout)}
    (tmp_path / "bad.db").write_text("no")
    shown = runner.invoke(app, ["doctor", "--store", str(tmp_path / "bad.db")], env={"COLUMNS": "80"})
    assert shown.exit_code == 2 and "1 problem\n" in shown.stdout
    assert all(len(line.rstrip()) <= 80 for line in shown.stdout.splitlines())
