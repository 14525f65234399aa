"""gmed watch, and training curves for TensorBoard."""

import os
import subprocess
import sys
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.engine import RunSpec
from gmed.errors import UsageError
from gmed.results import Store, SweepClaims
from gmed.results.claims import RunStatus, SweepStatus, active_sweeps, count_ended, estimate_remaining
from helpers import invoke, make_result

SPECS = [RunSpec.make("split-mnist", method, seed) for method in ("er", "finetune") for seed in range(2)]


def finished(spec, accuracy):
    return make_result(spec.method.name, spec.seed, accuracy)


def watch(*words):
    shown = invoke("watch", *words)
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_watch_shows_progress_of_every_run(tmp_path):
    path = tmp_path / "a.db"
    with Store(path) as store, Store(path) as other, SweepClaims(store) as sweep:
        sweep.claim(SPECS)
        sweep.report_progress(SPECS[0], 250, 1000)
        store.add_all([(SPECS[1], finished(SPECS[1], 0.75)), (SPECS[2], "DivergedError: it diverged\nthere")])
        deadline = time.monotonic() + 10
        while not active_sweeps(other)[0].runs[0].done:
            assert time.monotonic() < deadline
        (found,) = active_sweeps(other)
        assert found.runs == [
            RunStatus("split-mnist", "er", 0, 0.25),
            RunStatus("split-mnist", "er", 1, 1.0, accuracy=0.75),
            RunStatus("split-mnist", "finetune", 0, 1.0, error="DivergedError: it diverged\nthere"),
            RunStatus("split-mnist", "finetune", 1, 0.0),
        ]
        said = watch("--once", "--store", path)
        assert "2 of 4 runs" in said
        assert "left, ends" in said
        assert "er seed 0" in said
        assert "25%" in said
        assert "75.00" in said
        assert "failed: split-mnist finetune seed 0: DivergedError: it diverged" in said
    assert "no sweep is running" in watch("--once", "--store", path)


def test_earlier_result_does_not_count_as_done(tmp_path):
    """A run that is computed anew has not ended before its claim has."""
    with Store(tmp_path / "a.db") as store, SweepClaims(store) as sweep:
        store.add(SPECS[0], finished(SPECS[0], 0.5))
        sweep.claim(SPECS[:1])
        (found,) = active_sweeps(store)
        assert found.runs == [RunStatus("split-mnist", "er", 0, 0.0)]


def test_time_left_needs_some_progress():
    runs = [RunStatus("b", "er", 0, 0.0), RunStatus("b", "er", 1, 0.0)]
    assert estimate_remaining(SweepStatus("here", 0.0, runs), [], now=10.0) is None
    half = [RunStatus("b", "er", 0, 0.5), RunStatus("b", "er", 1, 0.0)]
    assert estimate_remaining(SweepStatus("here", 0.0, half), [], now=10.0) == 30.0


@pytest.mark.slow
def test_a_sweep_of_another_process(tmp_path):
    path = tmp_path / "a.db"
    words = ["run", "split-mnist", "er+gmed", "--seeds", "2", "--device", "cpu", "--workers", "1", "--store", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "gmed.cli", *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as run:
        furthest = 0.0
        while run.poll() is None:
            if path.exists():
                with Store(path) as store:
                    dones = [one.done for sweep in active_sweeps(store) for one in sweep.runs if not one.ended]
                furthest = max([furthest, *dones])
            time.sleep(0.2)
        assert run.returncode == 0
    assert 0 < furthest <= 1
    with Store(path) as store:
        assert active_sweeps(store) == []
        assert store.database.execute("SELECT count(*) FROM planned").fetchone()[0] == 0


def test_watch_without_store_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no results yet"):
        CliRunner().invoke(app, ["watch", "--store", str(tmp_path / "none.db")], catch_exceptions=False)


@pytest.mark.slow
def test_curves_for_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ["run", "split-mnist", "finetune", "--seeds", "3,", "--device", "cpu", "--workers", "1"]
    where = ["--store", str(tmp_path / "a.db"), "--tensorboard", str(tmp_path / "curves")]
    done = CliRunner().invoke(app, [*words, *where], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with Store(tmp_path / "a.db") as store:
        (run,) = store.runs()
    curves = accumulator.EventAccumulator(os.fspath(tmp_path / "curves" / "split-mnist" / "finetune" / "seed 3"))
    curves.Reload()
    on_second = curves.Scalars("accuracy on each task/2")
    assert [event.step for event in on_second] == [1000, 2000, 3000, 4000, 5000]
    assert [event.value for event in on_second] == pytest.approx([row[1] for row in run.accuracy])
    met = [sum(row[: point + 1]) / (point + 1) for point, row in enumerate(run.accuracy)]
    assert [event.value for event in curves.Scalars("accuracy on tasks met so far")] == pytest.approx(met)
    assert [event.value for event in curves.Scalars("final accuracy")] == pytest.approx([run.final_accuracy])


def test_without_tensorboard_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    words = ["run", "split-mnist", "finetune", "--seeds", "1", "--store", str(tmp_path / "a.db")]
    with pytest.raises(UsageError, match=r"pip install 'gmed\[tensorboard\]'"):
        CliRunner().invoke(app, [*words, "--tensorboard", str(tmp_path)], catch_exceptions=False)


def test_stopped_sweep_is_not_reported_as_done(tmp_path, monkeypatch):
    """What counts is what the sweep has stored since it began, not that it is gone, nor what was stored before."""
    with Store(tmp_path / "a.db") as store:
        store.add(SPECS[3], finished(SPECS[3], 0.5))
        store.database.execute("UPDATE runs SET recorded = '2020-01-01T00:00:00+00:00'")
        with SweepClaims(store) as sweep:
            sweep.claim(SPECS)
            (seen,) = active_sweeps(store)
            store.add_all([(SPECS[0], finished(SPECS[0], 0.75)), (SPECS[1], "DivergedError: it diverged")])
        assert active_sweeps(store) == [] and count_ended(store, seen) == 2
        polls = iter([[seen], [seen], []])
        monkeypatch.setattr("gmed.cli.watch.active_sweeps", lambda store: next(polls))
        monkeypatch.setattr("gmed.cli.watch.POLL_SECONDS", 0.0)
        monkeypatch.setattr(
            "gmed.cli.watch.make_console", lambda: Console(force_terminal=True, width=80, highlight=False)
        )
        said = watch("--store", tmp_path / "a.db")
    assert "stopped after 2 of 4 runs" in said and "done" not in said
