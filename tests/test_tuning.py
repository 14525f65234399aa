"""Tuning uses held-out examples of the first three tasks only."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import gmed
from gmed.cli.app import app
from gmed.data import Dataset
from gmed.engine import benchmarks, get_benchmark
from gmed.engine.benchmarks import clear_stream_cache
from gmed.engine.grammar import Component
from gmed.errors import UsageError
from gmed.experiment import stored_results
from gmed.report import collect
from gmed.results import Store
from gmed.results.stats import paired_gain
from gmed.results.tuning import GRIDS, best_candidate, candidates, read_grid, record_grid, recorded_grid, scores
from gmed.tuning import TuningResult, TuningWarning, tune
from helpers import invoke

pytestmark = pytest.mark.filterwarnings("ignore::gmed.tuning.TuningWarning")

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
        assert scores(store, "split-mnist", "er+gmed") == (found.scores, 2, ("alpha", "beta"))
        assert best_candidate(store, "split-mnist", "er+gmed") == found.chosen
        for run in store.runs("split-mnist-tuning"):
            assert len(run.accuracy) == 3  # three tasks
    results = gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=path, device="cpu", workers=0)
    assert [run.method for run in results.runs] == [found.chosen]
    assert len(results.runs[0].accuracy) == 5


def test_mir_and_gem_use_values_tuned_for_er_unless_tuned(tiny_mnist, tmp_path):
    path = tmp_path / "r.db"
    with (
        Store(path) as store,
        pytest.raises(UsageError, match=r"would use the values chosen for er\+gmed; .*gmed tune"),
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


@pytest.mark.slow
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


def test_untunable_parameters_are_refused(tmp_path):
    for method in ("er", "er+gmed(alpha=1.0,beta=0.1)"):
        with pytest.raises(UsageError, match=r"default grid|nothing to tune"):
            candidates("split-mnist", method)
    with (
        Store(tmp_path / "r.db") as store,
        pytest.raises(UsageError, match=r"^mir: only methods with an edit"),
    ):
        best_candidate(store, "split-mnist", "mir")
    with pytest.raises(UsageError, match=r"gmed tune split-mnist er\+gmed$"):
        gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=tmp_path / "r.db")
    with pytest.raises(UsageError, match="gmed tune"):
        gmed.run("split-mnist", "er+gmed(tuned)", seeds=1, store=None)


def test_tuning_reports_usable_names(tmp_path):
    for benchmark, method, said in (
        ("split-mnist", "er+gmed(tuned)", r"omit \(tuned\) when tuning: er\+gmed$"),
        (
            "split-mnist-tuning",
            "er+gmed",
            r"is the tuning variant of a benchmark; tune the benchmark itself: gmed tune split-mnist er\+gmed$",
        ),
        ("nosuch", "er+gmed", r"^unknown benchmark 'nosuch'; valid: (?!.*-tuning)"),
        ("split-mnist-tunin", "er+gmed", r"did you mean (?!.*-tuning')"),
    ):
        with pytest.raises(UsageError, match=said):
            tune(benchmark, method, store=tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()


def test_given_parameters_are_not_tuned():
    assert len(candidates("split-mnist", "er+gmed(alpha=1.0)")) == 5
    assert candidates("split-mnist", "mir+gmed(steps=3)")[0.01, 1.0] == "mir+gmed(alpha=0.01,beta=1.0,steps=3)"


def test_from_the_command_line(tiny_mnist, tmp_path):
    words = ["tune", "split-mnist", "er+gmed", "--seeds", "1", "--workers", "0", "--device", "cpu"]
    words += ["--store", str(tmp_path / "r.db")]
    shown = invoke(*words)
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


@pytest.mark.slow
def test_only_diverged_runs_count_as_zero(tiny_mnist, tmp_path):
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


def test_custom_model_warns_that_nothing_is_tuned():
    with pytest.raises(UsageError, match="tuning does not support custom models"):
        candidates("split-mnist[model=net.py:small,0123456789ab]", "er+gmed")


def result_of(scores, parameters=("alpha", "beta"), gain=(1.0, 2.0, 1.5), benchmark="split-mnist"):
    method = "er+gmed"
    best = max(scores, key=scores.get)
    chosen = candidates("split-mnist", method, {n: (v,) for n, v in zip(parameters, best, strict=True)})[best]
    gains = paired_gain(gain, [0.0] * len(gain)) if gain else None
    return TuningResult(benchmark, method, parameters, scores, chosen, len(gain), [], {"er": 80.0}, gains)


def test_value_at_the_edge_of_the_grid_is_reported():
    for scores_, said in (
        ({(5.0, 0.1): 80.0, (10.0, 0.1): 81.0}, "alpha = 10 is the largest of the grid"),
        ({(5.0, 0.1): 80.0, (10.0, 0.1): 81.0, (5.0, 0.2): 80.0, (10.0, 0.2): 81.0}, "alpha = 10 is the largest of"),
        ({(0.1, 0.0): 81.0, (1.0, 0.0): 80.0}, "alpha = 0.1 is the smallest of the grid"),
    ):
        (note,) = [note for note in result_of(scores_).notes if "of the grid" in note]
        assert note.startswith(said)
    assert "try --grid alpha=0.001,0.01,0.1 --grid beta=0.0." in note
    inside = {(0.1, 0.0): 80.0, (1.0, 0.0): 82.0, (10.0, 0.0): 80.0, (1.0, 0.1): 81.0}
    tied = {(0.1, 0.0): 80.0, (1.0, 0.0): 80.0}
    for scores_ in (inside, tied):  # nothing is below 0
        assert not any("of the grid" in note for note in result_of(scores_).notes)


def test_gain_within_noise_is_not_recommended():
    scores_ = {(1.0, 0.1): 81.0}
    better = result_of(scores_)
    assert better.recommended == better.chosen == "er+gmed(alpha=1.0,beta=0.1)"
    assert not any("beyond noise" in note for note in better.notes)
    noise = result_of(scores_, gain=(1.0, -2.0, 1.5))
    assert noise.recommended == noise.baseline == "er"
    assert any(note.startswith("Not significantly better than er: +0.17 points, 95%") for note in noise.notes)
    alone = result_of(scores_, gain=())
    assert alone.recommended == "er" and any("One seed is not enough" in note for note in alone.notes)


def test_longer_stream_gives_a_warning():
    table = "wine.csv[label=kind,by-class,{} tasks,4->9,0123456789ab]"
    for benchmark, warned in (("split-mnist", True), (table.format(4), True), (table.format(3), False)):
        notes = result_of({(1.0, 0.1): 81.0}, benchmark=benchmark).notes
        assert any("whole stream" in note for note in notes) is warned
    assert "gmed run split-mnist er 'er+gmed(tuned)'" in result_of({(1.0, 0.1): 81.0}).notes[-1]


def test_grid_values_are_lists_or_ranges():
    method = "er+gmed(beta=0.1)"
    assert read_grid(method, {"alpha": "0.01:1:3", "gmed.steps": "1:9:3", "write_back": "true,false"}) == {
        "alpha": (0.01, 0.1, 1.0),
        "gmed.steps": (1, 3, 9),
        "write_back": (True, False),
    }
    assert read_grid("er", {"lr": "0:0.2:3", "memory": [50, 50]}) == {"lr": (0.0, 0.1, 0.2), "memory": (50,)}
    assert list(candidates("split-mnist", method, {"er.lr": (0.1,), "gamma": (0.9,)}).values()) == [
        "er(lr=0.1)+gmed(beta=0.1,gamma=0.9)"
    ]
    for grid, said in (
        ({"alhpa": [1.0]}, "unknown parameter of er.gmed: 'alhpa'; did you mean 'alpha'"),
        ({"beta": [1.0]}, r"beta is already set"),
        ({"alpha": "0.1:1"}, r"cannot read alpha=0.1:1; .*alpha=0.1:10:3"),
        ({"alpha": "1:0.1:3"}, "cannot read"),
        ({"alpha": "0.1:nan:3"}, "cannot read"),
        ({"alpha": []}, "no values"),
        ({"alpha": 1.0}, "no values"),
        ({"alpha": [{}]}, "values must be numbers"),
        (["alpha"], "a dictionary"),
        ({}, "nothing"),
        ({"alpha": "0.1:1:200", "lr": "0.1:1:200"}, "at most 10,000 candidates, not "),
    ):
        with pytest.raises(UsageError, match=said):
            read_grid(method, grid)


@pytest.mark.slow
def test_custom_grid_defines_tuned_values(tiny_mnist, tmp_path):
    options = {"seeds": 2, "store": tmp_path / "r.db", "device": "cpu", "workers": 0}
    with pytest.warns(TuningWarning, match="whole stream"):
        found = tune("split-mnist", "er+gmed", grid={"lr": [0.001, 0.1], "alpha": "0.1:1:2"}, **options)
    assert found.parameters == ("lr", "alpha")
    assert list(found.scores) == [(0.001, 0.1), (0.001, 1.0), (0.1, 0.1), (0.1, 1.0)]
    assert list(found.baselines) == ["er(lr=0.001)", "er(lr=0.1)"] and found.baseline == "er(lr=0.1)"
    with Store(tmp_path / "r.db") as store:
        assert best_candidate(store, "split-mnist", "er + gmed") == found.chosen
        assert best_candidate(store, "split-mnist", "mir+gmed") == found.chosen.replace("er", "mir", 1)
    plain = tune("split-mnist", "er", grid={"lr": [0.001, 0.1]}, **options)
    assert (plain.chosen, list(plain.baselines)) == ("er(lr=0.1)", ["er"])
    results = gmed.run("split-mnist", "er(tuned)", **options)
    assert {run.method for run in results.runs} == {"er(lr=0.1)"}
    small = tune("split-mnist", "er+gmed", grid={"alpha": [0.2], "beta": [0.3]}, memory=20, **options)
    assert (small.method, small.baseline) == ("er(memory=20)+gmed", "er(memory=20)")
    assert small.chosen == "er(memory=20)+gmed(alpha=0.2,beta=0.3)"
    results = gmed.run("split-mnist", "er+gmed(tuned)", memory=20, **options)
    assert {run.method for run in results.runs} == {small.chosen}
    commands = collect(*stored_results(tmp_path / "r.db"), tmp_path / "r.db").commands
    own = "--seeds 2 --grid alpha=0.2 --grid beta=0.3 --store r.db"
    assert f"gmed tune split-mnist 'er(memory=20)+gmed' {own}" in commands
    again = tune("split-mnist", "er+gmed", **options)
    with Store(tmp_path / "r.db") as store:
        assert best_candidate(store, "split-mnist", "er+gmed") == again.chosen
        record_grid(store, "split-mnist", "er+gmed", {"nosuch": (1.0,)})
        assert recorded_grid(store, "split-mnist", "er+gmed") == GRIDS["gmed"]


@pytest.mark.slow
def test_a_grid_at_the_command_line(tiny_mnist, tmp_path):
    words = ["--seeds", "2", "--workers", "0", "--device", "cpu", "--store", str(tmp_path / "r.db")]
    grid = ["--grid", "alpha=0.1,1", "--grid", "lr=0.001:0.1:2"]
    shown = invoke("tune", "split-mnist", "er+gmed", *grid, *words)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    rows = [line.split()[:2] for line in shown.stdout.splitlines() if line.lstrip().startswith("er(lr=")]
    assert rows == [["er(lr=0.001)", "-"], ["er(lr=0.1)", "-"]]
    assert "Not significantly better than er(lr=0.1)" in shown.stdout and "Use it as" not in shown.stdout
    shown = invoke("tune", "split-mnist", "er+gmed", *words)
    assert any(line.split()[0] == "er" for line in shown.stdout.splitlines() if line.strip())
    document = json.loads(CliRunner().invoke(app, ["tune", "split-mnist", "er", *grid[2:], "--json", *words]).stdout)
    assert [candidate["lr"] for candidate in document["tried"]] == [0.001, 0.1]
    assert [baseline["method"] for baseline in document["baselines"]] == ["er"] and document["notes"]
    for wrong in (["--grid", "alpha"], ["--grid", "alpha=1", "--grid", "alpha=2"]):
        shown = CliRunner().invoke(app, ["tune", "split-mnist", "er+gmed", *wrong, *words])
        assert isinstance(shown.exception, UsageError)
