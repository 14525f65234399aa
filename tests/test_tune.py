"""Hyper-parameters are chosen on held-out examples of the first three tasks, and on nothing else."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import gmed
from gmed.cli.app import app
from gmed.data import Dataset
from gmed.engine import benchmarks, get_benchmark
from gmed.engine.grammar import Component
from gmed.engine.stream_cache import clear_stream_cache
from gmed.errors import UsageError
from gmed.results import Store
from gmed.results.tuning import GRIDS, best_candidate, candidates, scores
from gmed.tuning import tune

SPLIT_ALL = Component("split", {"per_task": None})


@pytest.fixture
def tiny_mnist(monkeypatch):
    """Images that say their class, a few dozen of each."""
    rng = np.random.default_rng(0)

    def images(labels):
        x = rng.integers(0, 60, (len(labels), 1, 28, 28), dtype=np.uint8)
        x[np.arange(len(labels)), 0, labels] = 255
        return x

    y_train, y_test = np.repeat(np.arange(10), 40), np.repeat(np.arange(10), 5)
    data = Dataset("mnist", images(y_train), y_train, images(y_test), y_test, 10)
    monkeypatch.setattr(benchmarks, "PRELOADED", {"mnist": data})
    monkeypatch.setitem(benchmarks.BENCHMARKS, "split-mnist", replace(get_benchmark("split-mnist"), stream=SPLIT_ALL))
    monkeypatch.setitem(
        benchmarks.BENCHMARKS, "split-mnist-tuning", replace(get_benchmark("split-mnist-tuning"), stream=SPLIT_ALL)
    )
    monkeypatch.setitem(GRIDS, "gmed", {"alpha": (0.0, 1.0), "beta": (0.0, 0.1)})
    clear_stream_cache()
    yield data
    clear_stream_cache()


def test_the_best_of_the_grid_is_chosen_and_used_by_name(tiny_mnist, tmp_path):
    path = tmp_path / "r.db"
    found = tune("split-mnist", "er+gmed", seeds=2, store=path, device="cpu", workers=0)
    assert list(found.scores) == [(0.0, 0.0), (0.0, 0.1), (1.0, 0.0), (1.0, 0.1)]
    best = max(found.scores, key=found.scores.get)
    assert found.chosen == candidates("split-mnist", "er+gmed")[best]
    with Store(path) as store:
        assert scores(store, "split-mnist", "er+gmed") == (found.scores, 2)
        assert best_candidate(store, "split-mnist", "er+gmed") == found.chosen
        for run in store.runs("split-mnist-tuning"):
            assert len(run.accuracy) == 3  # three tasks
    results = gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=path, device="cpu", workers=0)
    assert [run.method for run in results.runs] == [found.chosen]
    assert len(results.runs[0].accuracy) == 5


def test_mir_and_gem_share_what_was_chosen_for_er_unless_tuned_themselves(tiny_mnist, tmp_path):
    path = tmp_path / "r.db"
    with (
        Store(path) as store,
        pytest.raises(UsageError, match=r"uses the choice for er\+gmed; .*gmed tune"),
    ):
        best_candidate(store, "split-mnist", "mir+gmed")
    found = tune("split-mnist", "er+gmed", seeds=1, store=path, device="cpu", workers=0)
    best = max(found.scores, key=found.scores.get)
    with Store(path) as store:
        for method in ("mir+gmed", "gem+gmed"):
            assert best_candidate(store, "split-mnist", method) == candidates("split-mnist", method)[best]
        with pytest.raises(UsageError, match=r"er-aug\+gmed has not been tuned"):
            best_candidate(store, "split-mnist", "er-aug+gmed")
    own = tune("split-mnist", "mir+gmed", seeds=1, store=path, device="cpu", workers=0)
    with Store(path) as store:
        assert best_candidate(store, "split-mnist", "mir+gmed") == own.chosen


def test_neither_test_examples_nor_later_tasks_can_be_seen(tiny_mnist, tmp_path, monkeypatch):
    first = tune("split-mnist", "er+gmed", seeds=1, store=tmp_path / "a.db", device="cpu", workers=0)
    x_train = tiny_mnist.x_train.copy()
    x_train[tiny_mnist.y_train >= 6] = 7
    other = replace(tiny_mnist, x_train=x_train, x_test=np.zeros_like(tiny_mnist.x_test))
    monkeypatch.setattr(benchmarks, "PRELOADED", {"mnist": other})
    clear_stream_cache()
    second = tune("split-mnist", "er+gmed", seeds=1, store=tmp_path / "b.db", device="cpu", workers=0)
    assert first.scores == second.scores


def test_held_out_examples_are_not_trained_on(tiny_mnist):
    stream = get_benchmark("split-mnist-tuning").make_stream(None, 3)
    seen = {x.numpy().tobytes() for x in stream.x}
    held = [x.numpy().tobytes() for test in stream.tests for x in test.x]
    assert len(held) == 3 * round(0.05 * 80)
    assert not seen & set(held)
    assert int(stream.y.max()) == 5


def test_what_cannot_be_tuned_is_refused(tmp_path):
    for method in ("er", "er+gmed(alpha=1.0,beta=0.1)"):
        with pytest.raises(UsageError, match="tuned"):
            candidates("split-mnist", method)
    with (
        Store(tmp_path / "r.db") as store,
        pytest.raises(UsageError, match=r"^mir: only methods with an edit can be tuned"),
    ):
        best_candidate(store, "split-mnist", "mir")
    with pytest.raises(UsageError, match=r"gmed tune split-mnist er\+gmed$"):
        gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=tmp_path / "r.db")
    with pytest.raises(UsageError, match="gmed tune"):
        gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=None)


def test_what_is_tuned_and_on_what_is_said_by_names_that_work(tmp_path):
    for benchmark, method, said in (
        ("split-mnist", "er+gmed(tuned)", r"tune it by its name without \(tuned\), er\+gmed$"),
        (
            "split-mnist-tuning",
            "er+gmed",
            r"another benchmark is tuned on; tune that one: gmed tune split-mnist er\+gmed$",
        ),
        ("nosuch", "er+gmed", r"^unknown benchmark 'nosuch'; valid: (?!.*-tuning)"),
        ("split-mnist-tunin", "er+gmed", r"did you mean (?!.*-tuning')"),
    ):
        with pytest.raises(UsageError, match=said):
            tune(benchmark, method, store=tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()


def test_what_is_given_is_not_tuned():
    assert len(candidates("split-mnist", "er+gmed(alpha=1.0)")) == 5
    assert candidates("split-mnist", "mir+gmed(steps=3)")[0.01, 1.0] == "mir+gmed(alpha=0.01,beta=1.0,steps=3)"


def test_from_the_command_line(tiny_mnist, tmp_path):
    words = ["tune", "split-mnist", "er+gmed", "--seeds", "1", "--workers", "0", "--device", "cpu"]
    words += ["--store", str(tmp_path / "r.db")]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert "* best; the first of these 4 is chosen: alpha = 0, beta = 0." in shown.stdout
    assert "All candidates have the same score" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [(candidate["alpha"], candidate["beta"]) for candidate in document["tried"]] == [
        (0, 0),
        (0, 0.1),
        (1, 0),
        (1, 0.1),
    ]


def test_only_a_run_that_diverged_counts_as_nothing(tiny_mnist, tmp_path):
    tune("split-mnist", "er+gmed", seeds=2, store=tmp_path / "r.db", device="cpu", workers=0)
    name = candidates("split-mnist", "er+gmed")[1.0, 0.1]
    spec = gmed.engine.RunSpec.make("split-mnist-tuning", name, 1)
    with Store(tmp_path / "r.db") as store:
        for error, seeds in (("the worker process died", 1), ("DivergedError: the loss is not finite", 2)):
            store.database.execute("DELETE FROM runs WHERE key = ?", (spec.key,))
            store.add(spec, error)
            found = scores(store, "split-mnist", "er+gmed")
            assert found.seeds == seeds
        assert found.means[1.0, 0.1] <= 50


def test_with_a_model_of_ones_own_it_is_said_that_nothing_is_tuned():
    with pytest.raises(UsageError, match="tuning does not support custom models"):
        candidates("split-mnist[model=net.py:small,0123456789ab]", "er+gmed")
