"""The engine: workers, evaluation, timings, failures and baselines."""

import os
from collections import Counter
from itertools import chain
from queue import SimpleQueue
from time import perf_counter, sleep

import pytest
import torch

import gmed
from gmed.engine import Evaluated, ExecutionConfig, Failed, Finished, Progress, RunResult, RunSpec, execute, run_one
from gmed.engine.bench import StageProfiler
from gmed.engine.config import resolve_device
from gmed.engine.executors import local
from gmed.engine.runner import evaluate_tasks, make_learner, make_stream
from gmed.errors import UsageError
from gmed.results import Results

CPU = ExecutionConfig(device="cpu")
METHODS = ["finetune", "er+gmed"]


def accuracies(results):
    return {(r.method, r.seed): r.accuracy for r in results.runs}


@pytest.fixture(scope="module")
def in_process():
    return accuracies(gmed.run("split-mnist", METHODS, seeds=[0, 5], store=None, workers=0, device="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_results_do_not_depend_on_workers_or_order(in_process, workers):
    results = gmed.run("split-mnist", METHODS[::-1], seeds=[5, 0], store=None, workers=workers, device="cpu")
    assert accuracies(results) == in_process


@pytest.mark.slow
def test_worker_groups_grid_points():
    """Two methods at two seeds in one job: each result and each evaluation reaches the run it is of."""
    methods = "er+gmed(alpha=0.0)", "er+gmed(alpha=10.0)"
    specs = [RunSpec.make("split-mnist-tuning", method, seed) for method in methods for seed in (1, 2)]
    waiting, events = SimpleQueue(), SimpleQueue()
    waiting.put(tuple(specs))
    local._Worker(waiting, events, CPU).join()
    heard = [events.get() for _ in range(events.qsize())]
    finished = {event.spec: event.result for event in heard if isinstance(event, Finished)}
    assert list(finished) == specs and len({str(result.accuracy) for result in finished.values()}) == 4
    for spec, result in finished.items():
        assert (result.method, result.seed) == (spec.method.name, spec.seed)
        assert result.accuracy == run_one(spec, CPU).accuracy
        evaluated = [event for event in heard if isinstance(event, Evaluated) and event.spec == spec]
        assert [event.accuracy for event in evaluated] == [
            result.accuracy[: n + 1] for n in range(len(result.accuracy))
        ]


def test_step_timings_add_up():
    """Every stage of a slowed learner is found, once, however they call each other."""

    class Slow(gmed.learners.ER):
        def sample_memory(self, *given):
            sleep(0.01)
            return super().sample_memory(*given)

        def sgd_step(self, *given):
            sleep(0.03)
            super().sgd_step(*given)

        def step(self, x, y):
            sleep(0.02)
            super().step(x, y)

    learner = Slow(gmed.models.MLP(4, 3, classes=2), lr=0.1, memory=gmed.memory.Reservoir(9))
    stages, start = StageProfiler(learner), perf_counter()
    for _ in range(3):
        learner.update(torch.rand(3, 4), torch.tensor([0, 1, 1]))
    assert list(stages.seconds) == ["draw", "edit", "update", "memory", "rest"]
    least = {"draw": 0.03, "update": 0.09, "rest": 0.06}
    assert all(stages.seconds[stage] >= seconds for stage, seconds in least.items())
    assert sum(stages.seconds.values()) <= perf_counter() - start


@pytest.mark.slow
def test_the_accuracy_matrix(in_process):
    matrix = in_process["er+gmed", 0]
    assert [len(row) for row in matrix] == [5] * 5
    assert matrix[0][0] > 0.9  # after the first task it knows the first task
    assert max(matrix[0][1:]) < 0.1  # and nothing of the others
    assert min(matrix[4]) > 0.4


def test_final_accuracy_is_the_mean_over_tasks_and_pooled_the_mean_over_examples():
    result = run_one(RunSpec.make("split-mnist", "finetune", seed=1), CPU)
    assert result.final_accuracy == pytest.approx(sum(result.accuracy[-1]) / 5)
    sizes = [2115, 2042, 1874, 1986, 1983]
    pooled = sum(a * n for a, n in zip(result.accuracy[-1], sizes, strict=True)) / 10000
    assert result.pooled_accuracy == pytest.approx(pooled)
    assert result.environment["device"] == "cpu"
    assert result.timings.keys() == {"data", "train", "evaluate"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["er+gmed", "gem(memory=50)"])
def test_memory_counts_do_not_change_results(method):
    """Against a plain loop that counts by hand, and evaluates without looking into memory."""
    spec = RunSpec.make("split-mnist", method, 0)
    learner, stream = make_learner(spec, torch.device("cpu")), make_stream(spec, torch.device("cpu"))
    accuracy, memory = [], []
    for task, batches in enumerate(stream.task_batches(10)):
        for x, y in batches:
            learner.observe(x, y, *([task] if learner.task_aware else []))
        accuracy.append(evaluate_tasks(learner, stream.tests))
        held = Counter(int(stream.y[stream_index]) for stream_index in learner.memory.stream_index if stream_index >= 0)
        memory.append([held[label] for label in range(10)])
    found = run_one(spec, CPU)
    assert found.accuracy == accuracy
    assert found.memory == memory
    assert run_one(RunSpec.make("split-mnist", "finetune", 0), CPU).memory is None


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_every_evaluation_is_reported(workers):
    spec = RunSpec.make("split-mnist", "finetune", 0)
    *told, finished = (
        event
        for event in chain.from_iterable(execute([spec], CPU, workers=workers))
        if isinstance(event, (Evaluated, Finished))
    )
    assert [event.seen for event in told] == [1000, 2000, 3000, 4000, 5000]
    assert [len(event.accuracy) for event in told] == [1, 2, 3, 4, 5]
    assert told[-1].accuracy == finished.result.accuracy


@pytest.mark.slow
def test_dying_worker_loses_only_its_own_run(monkeypatch):
    launched = []
    original = local._Worker._launch
    monkeypatch.setattr(local._Worker, "_launch", lambda self: launched.append(original(self)) or launched[-1])
    specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in range(2)]
    outcomes = {}
    for event in chain.from_iterable(execute(specs, CPU, workers=1)):
        if isinstance(event, Progress) and len(launched) == 1:
            launched[0].kill()
        if not isinstance(event, Progress):
            outcomes[event.spec.seed] = event
    assert isinstance(outcomes[0], Failed)
    assert "died" in outcomes[0].error
    assert isinstance(outcomes[1], Finished)
    assert len(launched) == 2


@pytest.mark.slow
def test_stopping_early_stops_the_workers(monkeypatch):
    launched = []
    original = local._Worker._launch
    monkeypatch.setattr(local._Worker, "_launch", lambda self: launched.append(original(self)) or launched[-1])
    events = execute([RunSpec.make("split-mnist", "er", seed) for seed in range(4)], CPU, workers=1)
    next(events)
    events.close()
    assert launched[0].wait(timeout=10) != 0


def test_workers_that_cannot_start_fail_their_runs(monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    specs = [RunSpec.make("split-mnist", "finetune", seed) for seed in range(3)]
    outcomes = [*chain.from_iterable(execute(specs, CPU, workers=2))]
    assert len(outcomes) == 3
    assert all("no worker process could be started" in o.error for o in outcomes)


def test_workers_ignore_ctrl_c_on_windows(monkeypatch):
    asked = {}

    def launch(*_, **how):
        asked.update(how)
        raise OSError("seen enough")

    monkeypatch.setattr(local.subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(local.subprocess, "Popen", launch)
    ((event,),) = execute([RunSpec.make("split-mnist", "finetune", 0)], CPU, workers=1)
    assert isinstance(event, Failed) and "seen enough" in event.error
    assert asked["creationflags"] == 0x200 and asked["start_new_session"]


@pytest.mark.slow
def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("random.py", "queue.py", "gmed.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    events = chain.from_iterable(execute([RunSpec.make("split-mnist", "finetune", 0)], CPU, workers=1))
    (outcome,) = (event for event in events if not isinstance(event, Progress))
    assert isinstance(outcome, Finished), outcome


def test_in_process_runs_ignore_changed_torch_defaults(in_process):
    torch.set_default_dtype(torch.float64)
    try:
        results = gmed.run("split-mnist", "finetune", seeds=[5], store=None, workers=0, device="cpu")
    finally:
        torch.set_default_dtype(torch.float32)
    assert accuracies(results)["finetune", 5] == in_process["finetune", 5]


@pytest.mark.slow
def test_failing_run_is_reported_and_the_others_continue(tmp_path):
    """Far too large a learning rate: that run fails with its reason, the other is there."""
    results = gmed.run(
        "split-mnist", ["finetune", "er(lr=1e30)"], seeds=1, store=tmp_path / "r.db", workers=1, device="cpu"
    )
    assert [r.method for r in results.runs] == ["finetune"]
    (failure,) = results.failures
    assert failure.method == "er(lr=1e+30)"
    assert "DivergedError: at step" in failure.error


@pytest.mark.slow
def test_finished_runs_are_not_computed_again(tmp_path, monkeypatch):
    store = tmp_path / "r.db"
    first = gmed.run("split-mnist", "finetune", seeds=1, store=store, workers=0, device="cpu")
    again = gmed.run("split-mnist", ["finetune"], seeds=1, store=store, workers=0, device="cpu")
    assert again.runs == first.runs  # timings too: it is the stored one
    anew = gmed.run("split-mnist", ["finetune"], seeds=1, store=store, workers=0, device="cpu", rerun=True)
    assert anew.runs[0].timings != first.runs[0].timings
    assert accuracies(anew) == accuracies(first)
    monkeypatch.setattr("gmed.learners.FineTune.version", 2)
    changed = gmed.run("split-mnist", ["finetune"], seeds=1, store=store, workers=0, device="cpu")
    assert changed.runs[0].timings not in (first.runs[0].timings, anew.runs[0].timings)


def test_cuda_environment_is_set_before_first_use(monkeypatch):
    found = []
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    asked = lambda: found.append(os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")) or False  # noqa: E731
    monkeypatch.setattr(torch.cuda, "is_available", asked)
    resolve_device("auto")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    assert found and None not in found


def test_bad_arguments():
    for seeds in (0, -1, [], [1, 1], [-3], "x", "1,,2", 1.5):
        with pytest.raises(UsageError, match="seeds"):
            gmed.run("split-mnist", "er", seeds=seeds, store=None)
    with pytest.raises(UsageError, match="no method"):
        gmed.run("split-mnist", [], store=None)
    with pytest.raises(UsageError, match="unknown device"):
        gmed.run("split-mnist", "er", device="gpu", store=None)
    with pytest.raises(UsageError, match="workers"):
        gmed.run("split-mnist", "er", workers=-1, store=None)


def test_gain_baseline_is_the_base_method_or_a_named_one():
    def found(*methods, **how):
        runs = [
            RunResult("split-mnist", method, seed, [[0.5]], 0.5 + 0.01 * place, 0.5, 1, {}, {})
            for place, method in enumerate(methods)
            for seed in range(3)
        ]
        return {row.method: row.gain_over for row in Results(runs, **how).rows()}

    assert found("er", "er+gmed", "mir") == {"er": None, "er+gmed": "er", "mir": None}
    assert found("er+gmed", "mir") == {"er+gmed": None, "mir": None}
    assert found("er", "er+gmed", "mir", baseline="er(lr=0.05)") == {"er": None, "er+gmed": "er", "mir": "er"}
    with pytest.raises(UsageError, match="erx"):
        found("er", baseline="erx")


@pytest.mark.parametrize(
    ("methods", "gains"),
    [
        (["er(memory=200)", "er(memory=200)+gmed"], {"er(memory=200)+gmed": "er(memory=200)"}),
        (["er(memory=200)", "mir(memory=200)", "er"], {"er(memory=200)": "er", "mir(memory=200)": "er(memory=200)"}),
        (["er", "mir(memory=200)"], {"mir(memory=200)": "er"}),
        (["er(memory=200)", "mir"], {}),
        (["er(memory=200)", "finetune"], {"finetune": "er(memory=200)"}),
        (["er(memory=200)", "er(memory=50)", "finetune"], {}),
    ],
)
def test_baseline_has_the_same_memory_size(methods, gains):
    runs = [RunResult("split-mnist", method, 0, [[0.5]], 0.5, 0.5, 1, {}, {}) for method in methods]
    found = {row.method: row.gain_over for row in Results(runs, baseline="er").rows() if row.gain_over}
    assert found == gains


@pytest.mark.slow
def test_run_baseline_is_resolved_like_its_methods(tmp_path):
    options = {"memory": 20, "seeds": 1, "store": tmp_path / "r.db", "workers": 0}
    results = gmed.run("split-mnist", ["er", "finetune", "er(memory=30)"], baseline="er", **options)
    assert [row.gain_over for row in results.rows()] == [None, "er(memory=20)", "er(memory=20)"]
    with pytest.raises(UsageError, match=r"baseline er\(memory=20\) is not one of the methods \(mir\(memory=20\)\)"):
        gmed.run("split-mnist", "mir", baseline="er", **options)
