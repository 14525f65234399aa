"""Runs on a Dask cluster equal local runs, also when workers are lost."""

import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

import pytest

import gmed
from gmed.engine import ExecutionConfig, RunSpec
from gmed.engine.executors import dask
from gmed.engine.executors.dask import (
    DaskExecutor,
    VersionMismatchError,
    run_slice,
    version_problem,
    versions,
    warn_of_differences,
)
from gmed.engine.executors.local import Failed, Progress
from gmed.engine.executors.protocol import Job
from gmed.errors import UsageError
from gmed.io.records import encode

pytestmark = pytest.mark.slow

distributed = pytest.importorskip("distributed")

METHODS = ["er+gmed", "mir"]


def start(folder, program, *words, **variables):
    """A part of a cluster, in a process of its own."""
    local = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(folder / "scheduler.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", f"distributed.cli.{program}", *local, *words]
    return subprocess.Popen(command, env=environment, cwd=folder, stderr=subprocess.DEVNULL)


def start_worker(folder, *words, **variables):
    return start(folder, "dask_worker", "--nthreads", "1", "--no-nanny", *words, **variables)


def start_worker_with_another_gmed(folder):
    preload = folder / "another.py"
    preload.write_text(
        "import gmed.engine.executors.dask, gmed.engine.runner\n"
        "gmed.engine.executors.dask.__version__ = gmed.engine.runner.__version__ = '0.0.1'\n"
    )
    return start_worker(folder, "--preload", str(preload))


@contextmanager
def dask_cluster(folder, workers=2):
    """A scheduler and workers in processes of their own; nothing restarts a worker that dies."""
    processes = [start(folder, "dask_scheduler", "--port", "0")]
    try:
        while not (folder / "scheduler.json").exists():
            time.sleep(0.05)
        processes += [start_worker(folder) for _ in range(workers)]
        with distributed.Client(scheduler_file=str(folder / "scheduler.json"), set_as_default=False) as client:
            if workers:
                client.wait_for_workers(workers, timeout=60)
            yield client, processes[1:]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@pytest.fixture(scope="module")
def here():
    return gmed.run("split-mnist", METHODS, seeds=2, device="cpu", store=None)


def accuracies(results):
    return {(run.method, run.seed): run.accuracy for run in results.runs}


def test_sweep_survives_a_killed_worker(tmp_path, here):
    with dask_cluster(tmp_path) as (client, workers):
        executor = Killing(client, workers[0])
        experiment = gmed.experiment.Experiment(
            "split-mnist", METHODS, 2, store=tmp_path / "r.db", checkpoint_every=0.3
        )
        results = experiment.run(executor=executor)
        assert executor.killed
        assert workers[0].poll() is not None
        assert accuracies(results) == accuracies(here)
        resumed = [at for run in results.runs for at in run.environment["resumed at example"].split(", ")]
        assert all(int(at) > 0 for at in resumed)
        assert len(resumed) >= 8
        assert not (tmp_path / "r.db.unfinished").exists()

        again = gmed.run("split-mnist", METHODS, seeds=2, store=tmp_path / "r.db", executor=no_executor)
        assert accuracies(again) == accuracies(here)

        data = gmed.engine.get_benchmark("split-mnist").dataset()
        keys = {client.scatter(data, hash=True).key for _ in range(2)}
        assert len(keys) == 1  # by content: nothing travels twice


class Killing(DaskExecutor):
    """Kills a worker once every run has a checkpoint here."""

    def __init__(self, client, worker):
        super().__init__(client)
        self.worker, self.killed, self.pending, self.enough = worker, False, set(), 2

    def __call__(self, specs, config):
        for news in super().__call__(specs, config):
            self.pending |= {event.spec for event in news if isinstance(event, Progress)}
            if not self.killed and len(self.pending) == self.enough:
                self.worker.kill()
                self.killed = True
            yield news


def no_executor(specs, config):
    assert not specs
    yield from ()


def test_missing_cluster_is_reported():
    with pytest.raises(UsageError, match="no Dask scheduler answers at tcp://127"):
        list(
            DaskExecutor("tcp://127.0.0.1:9", patience=0.5)(
                [RunSpec.make("split-mnist", "er", 0)], ExecutionConfig("cpu")
            )
        )
    assert list(DaskExecutor("tcp://127.0.0.1:9")([], ExecutionConfig("cpu"))) == []


def test_without_workers_and_without_gpus(tmp_path):
    spec = RunSpec.make("split-mnist", "finetune", 0)
    for name in ("empty", "one"):
        (tmp_path / name).mkdir()
    with dask_cluster(tmp_path / "empty", workers=0) as (client, _), pytest.raises(UsageError, match="no worker"):
        list(DaskExecutor(client, patience=0.2)([spec], ExecutionConfig("cpu")))
    with dask_cluster(tmp_path / "one", workers=1) as (client, _), pytest.raises(UsageError, match="GPU=1"):
        list(DaskExecutor(client)([spec], ExecutionConfig("cuda")))


def test_versions_are_compared():
    ours = versions()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert version_problem(ours) == ""
        warn_of_differences("tcp://a", ours)
    with pytest.warns(UserWarning, match="tcp://a has torch 0.1"):
        warn_of_differences("tcp://a", {**ours, "torch": "0.1"})
    assert "has gmed 99, not" in version_problem({**ours, "gmed": "99"})
    assert "with another source (0123, here" in version_problem({**ours, "source": "0123"})
    earlier = {name: value for name, value in ours.items() if name != "source"}
    assert "with another source (None, here" in version_problem(earlier)
    assert "No module named 'gmed'" in version_problem(ModuleNotFoundError("No module named 'gmed'"))
    for other in ({"gmed": "99", "source": ours["source"]}, {"gmed": ours["gmed"], "source": "0123"}):
        with pytest.raises(VersionMismatchError, match="install the same"):
            run_slice(other, None, {})


class Joined(DaskExecutor):
    """Another worker joins once a run is under way, and is there before anything else happens."""

    def __init__(self, client, join):
        super().__init__(client)
        self.client, self.join, self.joined, self.events = client, join, None, []

    def __call__(self, specs, config):
        for news in super().__call__(specs, config):
            self.events += news
            if self.joined is None:
                there = len(self.client.scheduler_info()["workers"])
                self.joined = self.join()
                self.client.wait_for_workers(there + 1, timeout=60)
            yield news


def test_late_worker_with_another_version_gets_no_runs(tmp_path):
    joined = []
    with dask_cluster(tmp_path, workers=1) as (client, _):
        executor = Joined(client, lambda: joined.append(start_worker_with_another_gmed(tmp_path)) or True)
        try:
            with pytest.warns(UserWarning, match=r"has gmed 0\.0\.1, not .*, so it gets no runs"):
                found = gmed.run("split-mnist", "finetune", seeds=12, device="cpu", store=None, executor=executor)
        finally:
            for worker in joined:
                worker.kill()
                worker.wait()
    assert not found.failures
    assert len(found.runs) == 12


def test_only_workers_with_another_version_is_an_error(tmp_path):
    spec = RunSpec.make("split-mnist", "finetune", 0)
    with dask_cluster(tmp_path, workers=0) as (client, _):
        worker = start_worker_with_another_gmed(tmp_path)
        try:
            client.wait_for_workers(1, timeout=60)
            with (
                pytest.warns(match="gets no runs"),
                pytest.raises(UsageError, match="start workers with the same gmed"),
            ):
                list(DaskExecutor(client, patience=0.5)([spec], ExecutionConfig("cpu")))
        finally:
            worker.kill()
            worker.wait()


def test_last_matching_worker_is_replaced(tmp_path):
    """Runs that only the lost worker could have had go to one that came later."""
    others = []

    class Replaced(Joined):
        def __call__(self, specs, config):
            for number, news in enumerate(super().__call__(specs, config)):
                if number == 2:
                    workers[0].kill()
                    others.append(start_worker(tmp_path))
                yield news

    with dask_cluster(tmp_path, workers=1) as (client, workers):
        executor = Replaced(client, lambda: others.append(start_worker_with_another_gmed(tmp_path)) or True)
        try:
            with pytest.warns(UserWarning, match="so it gets no runs"):
                found = gmed.run("split-mnist", "finetune", seeds=8, device="cpu", store=None, executor=executor)
        finally:
            for worker in others:
                worker.kill()
                worker.wait()
    assert not found.failures, found.failures[0].error
    assert len(found.runs) == 8


def test_a_worker_needs_no_disk(tmp_path, here):
    """A task keeps what it brings back in memory: a full or missing TMPDIR costs nothing."""
    with dask_cluster(tmp_path, workers=0) as (client, _):
        preload = tmp_path / "full.py"
        preload.write_text(
            "import tempfile\ndef full(*_, **__): raise OSError(28, 'No space left on device')\n"
            "tempfile.TemporaryDirectory.__init__ = full\n"
        )
        worker = start_worker(tmp_path, "--preload", str(preload))
        try:
            client.wait_for_workers(1, timeout=60)
            experiment = gmed.experiment.Experiment(
                "split-mnist", METHODS, 1, store=tmp_path / "r.db", checkpoint_every=0.3
            )
            found = experiment.run(executor=DaskExecutor(client))
        finally:
            worker.kill()
            worker.wait()
    assert not found.failures, found.failures[0].error
    assert all("resumed at example" in run.environment for run in found.runs)
    assert accuracies(found).items() <= accuracies(here).items()


def test_run_slice_continues_until_its_time_is_up(monkeypatch):
    """The chain of tasks of one run, without a cluster."""
    monkeypatch.setattr(dask, "PRELOADED", {})
    spec = RunSpec.make("split-mnist", "er", 0)
    data = spec.benchmark.dataset()
    job = encode(Job.of([spec], ExecutionConfig("cpu", prequential=True)))
    job |= {"gmed": gmed.__version__, "source": versions()["source"], "seconds": 0.0}
    kept, seen = {}, []
    for _ in range(3):
        found = run_slice(job, data, kept)
        kept = found["checkpoints"]
        seen.append(found["seen"])
    assert 0 < seen[0] < seen[1] < seen[2] < found["total"]
    ended = run_slice({**job, "seconds": 1e9}, data, kept)
    alone = gmed.engine.run_one(spec, ExecutionConfig("cpu", prequential=True)).to_dict()
    for figure in ("accuracy", "untrained", "passes", "prequential"):
        assert ended["ended"][spec.key]["result"][figure] == alone[figure]


def test_finished_runs_are_kept_when_the_last_worker_is_lost(tmp_path):
    with dask_cluster(tmp_path, workers=1) as (client, workers):
        executor = Killing(client, workers[0])
        executor.patience, executor.enough = 1.0, 1
        with pytest.raises(UsageError, match="run the same command again"):
            gmed.experiment.Experiment(
                "split-mnist", ["er+gmed"], 1, store=tmp_path / "r.db", checkpoint_every=0.3
            ).run(executor=executor)
    assert list((tmp_path / "r.db.unfinished").iterdir())


def test_unfinishable_run_fails_and_the_others_continue(tmp_path):
    with dask_cluster(tmp_path, workers=1) as (client, _):
        specs = [RunSpec.make("split-mnist", f"finetune(lr={lr})", 0) for lr in ("1e20", "0.01")]
        events = [
            e
            for news in DaskExecutor(client)(specs, ExecutionConfig("cpu"))
            for e in news
            if not isinstance(e, Progress)
        ]
        assert len(events) == 2
        failed = next(e for e in events if isinstance(e, Failed))
        assert failed.spec == specs[0]
        assert "DivergedError" in failed.error


def test_extensions_and_models_are_sent_to_workers(tmp_path):
    """Workers have neither file; the same names mean another text the second time."""
    text = (
        "import gmed\nfrom torch import nn\n\n"
        "@gmed.register('fade-away')\nclass Fade(gmed.editing.Edit):\n"
        "    def edit(self, x_m, y_m, edit_count, context):\n        return x_m * 0.9\n\n"
        "def small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    path = tmp_path / "mine.py"
    with dask_cluster(tmp_path, workers=1) as (client, _):
        for said in (text, text.replace("0.9", "0.5")):
            path.write_text(said)
            gmed.load_extension(path)
            asked = {"seeds": 1, "device": "cpu", "store": None, "model": f"{path}:small"}
            there = gmed.run("split-mnist", "er+fade-away", **asked, executor=DaskExecutor(client))
            assert not there.failures, there.failures[0].error
            assert accuracies(there) == accuracies(gmed.run("split-mnist", "er+fade-away", **asked, workers=0))
