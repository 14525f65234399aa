"""Execute runs on a running Dask cluster.

A run is a chain of tasks. Each resumes from a checkpoint, trains for a while and returns the next checkpoint or the
result; the client saves checkpoints and submits the next task. If a worker is lost, Dask repeats only its current task
on another worker. A client that was stopped resumes from the checkpoints that it has saved.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from gmed._version import __version__
from gmed.data import Dataset
from gmed.deprecated import old_names
from gmed.engine.batched import Group, group_runs
from gmed.engine.benchmarks import PRELOADED, clear_stream_cache
from gmed.engine.checkpoint import CheckpointsInMemory
from gmed.engine.config import ExecutionConfig
from gmed.engine.executors.local import Event, Events, Failed, Finished, Progress, why_not_portable
from gmed.engine.executors.protocol import Job
from gmed.engine.result import RunResult
from gmed.engine.runner import Interrupted, collect_environment, format_error, run_group
from gmed.engine.spec import RunSpec
from gmed.errors import UsageError
from gmed.io.records import Amount, decode, encode

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

if TYPE_CHECKING:
    from distributed import Client, Future, as_completed

SLICE_SECONDS = 60.0
"""Duration of a task in seconds, unless the interval between checkpoints is set."""

POLL_SECONDS = 2.0
"""Seconds between two checks for available workers while no task finishes."""

MAX_RETRIES = 3
"""Number of times a run is resubmitted after the cluster lost its inputs."""

_run_lock = Lock()


class DaskExecutor:
    """Executes runs on the workers of a Dask cluster: ``gmed.run(..., executor=DaskExecutor("tcp://10.0.0.1:8786"))``.

    Workers need this package, one thread each, and if they have a GPU the resource ``GPU=1``: runs of one method are
    then trained together there. Data sets are sent from the client, once to each worker.

    Parameters
    ----------
    where
        The address of the scheduler, or a ``distributed.Client``.
    patience
        Seconds to wait for the scheduler and for the first worker.
    """

    def __init__(self, where: str | Client, *, patience: float = 30.0) -> None:
        self.where, self.patience = where, patience

    def __call__(self, specs: Sequence[RunSpec], config: ExecutionConfig) -> Events:
        if not specs:
            return
        if reason := why_not_portable(specs):
            raise UsageError(reason)
        with self._client() as client:
            pool = _WorkerPool(client, self.patience)
            pool.wait()
            device = self._device(client, config.device, pool)
            yield from _CheckpointChains(client, specs, config, device, pool).events()

    @contextmanager
    def _client(self) -> Iterator[Client]:
        try:
            from distributed import Client
        except ImportError:
            raise UsageError("runs on a cluster need Dask: pip install 'gmed[cluster]'") from None
        if not isinstance(self.where, str):
            yield self.where
            return
        try:
            client = Client(self.where, timeout=self.patience, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"no Dask scheduler answers at {self.where} ({error}); is it running?") from None
        with client:
            yield client

    def _device(self, client: Client, requested: str, pool: _WorkerPool) -> str:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        gpus = any("GPU" in worker["resources"] for name, worker in workers.items() if name in pool.compatible)
        if requested == "cuda" and not gpus:
            raise UsageError(
                "device cuda: no worker of the cluster has a GPU; start GPU workers with --resources GPU=1"
            )
        return "cuda" if gpus and requested != "cpu" else "cpu"


class _WorkerPool:
    """The workers of a cluster: those with the same gmed as the client, and others, which get no runs.

    Workers come and go; :meth:`refresh` updates both groups.

    Attributes
    ----------
    compatible
        The addresses of workers with the same gmed.
    incompatible
        How the others differ, by address.
    """

    def __init__(self, client: Client, patience: float) -> None:
        self.client, self.patience = client, patience
        self.compatible: set[str] = set()
        self.incompatible: dict[str, str] = {}

    def refresh(self, *, ask_all: bool = False) -> None:
        """Query the versions of new workers, or of all workers; drop workers that are gone."""
        if ask_all:
            self.compatible, self.incompatible = set(), {}
        connected = set(self.client.scheduler_info(n_workers=-1)["workers"])
        self.compatible &= connected
        self.incompatible = {worker: problem for worker, problem in self.incompatible.items() if worker in connected}
        new = connected - self.compatible - self.incompatible.keys()
        if not new:
            return
        replies = self.client.run(versions, workers=sorted(new), on_error="return")
        for worker, reply in replies.items():
            if isinstance(reply, OSError):
                continue  # it has disconnected, or is not responding
            if problem := version_problem(reply):
                self.incompatible[worker] = problem
                warnings.warn(
                    f"the worker {worker} {problem}, so it gets no runs. "
                    "Install the same gmed there and restart the worker.",
                    stacklevel=2,
                )
            else:
                self.compatible.add(worker)
                warn_of_differences(worker, reply)

    def wait(self) -> None:
        """Wait for a worker with the same gmed, at most ``patience`` seconds."""
        deadline = time.monotonic() + self.patience
        self.refresh()
        while not self.compatible:
            if time.monotonic() > deadline:
                raise UsageError(self._no_worker_message())
            time.sleep(min(0.1, self.patience))
            self.refresh()

    def _no_worker_message(self) -> str:
        advice = "Finished runs are stored; start workers{} and run the same command again to resume."
        if not self.incompatible:
            return f"the cluster had no workers for {self.patience:g} s. " + advice.format("")
        worker, problem = next(iter(self.incompatible.items()))
        return (
            f"no worker of the cluster has the same gmed as the client ({__version__}, source {source_digest()}): "
            f"{worker} {problem}. " + advice.format(" with the same gmed")
        )

    def allowed(self) -> list[str] | None:
        """Return the workers that may run tasks; ``None`` for all workers, also later ones, if none is incompatible."""
        return sorted(self.compatible) if self.incompatible else None


class _CheckpointChains:
    """The unfinished runs on a cluster."""

    def __init__(
        self,
        client: Client,
        specs: Sequence[RunSpec],
        config: ExecutionConfig,
        device: str,
        pool: _WorkerPool,
    ) -> None:
        self.client, self.config, self.device, self.pool = client, config, device, pool
        self.groups = group_runs(specs) if device == "cuda" else [(spec,) for spec in specs]
        self.data: dict[str, Future] = {}
        self.retries: dict[Group, int] = {}
        self.sent_to: dict[Future, list[str] | None] = {}

    def events(self) -> Events:
        from distributed import as_completed

        pending = {self._send(group, self._read_checkpoints(group)): group for group in self.groups}
        finished = as_completed(pending, loop=self.client.loop)
        while pending:
            self._wait_for_one(finished)
            future = next(finished)
            group, allowed = pending.pop(future), self.sent_to.pop(future)
            try:
                output = future.result()
            except Exception as error:  # of the cluster; errors of runs are in the output
                if (retry := self._resend(group, allowed, error)) is not None:
                    pending[retry] = group
                    finished.add(retry)
                else:
                    yield [Failed(spec, f"the cluster lost it: {format_error(error)}") for spec in group]
                continue
            future.release()
            self.retries.pop(group, None)
            yield list(self._to_events(group, output))
            if unfinished := tuple(spec for spec in group if spec.key not in output["ended"]):
                next_task = self._send(unfinished, output["checkpoints"])
                pending[next_task] = unfinished
                finished.add(next_task)

    def _wait_for_one(self, finished: as_completed) -> None:
        """Wait until a task ends, cancelling tasks that were sent to workers that are all gone."""
        next_check = time.monotonic() + POLL_SECONDS
        while not finished.has_ready():
            time.sleep(0.01)
            if time.monotonic() > next_check:
                self.pool.refresh()
                for future, allowed in self.sent_to.items():
                    if allowed is not None and not self.pool.compatible.intersection(allowed):
                        future.cancel()
                next_check = time.monotonic() + POLL_SECONDS

    def _send(self, group: Group, files: Mapping[str, bytes]) -> Future:
        checkpoints = self.config.checkpoints
        job = {
            **encode(Job.of(group, replace(self.config, device=self.device, data_dir=None, checkpoints=None))),
            "gmed": __version__,
            "source": source_digest(),
            "seconds": checkpoints.every if checkpoints else SLICE_SECONDS,
        }
        resources = {"GPU": 1} if self.device == "cuda" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # checkpoints are large
            allowed = self.pool.allowed()
            data = self._data(group[0], allowed)
            future = self.client.submit(run_slice, job, data, files, pure=False, resources=resources, workers=allowed)
        self.sent_to[future] = allowed
        return future

    def _resend(self, group: Group, allowed: list[str] | None, error: Exception) -> Future | None:
        """Submit a group again from its saved checkpoints, together with the data: workers that had them may be gone.

        Moving a group that may have reached a worker with another gmed does not count as a retry.
        """
        mismatch = isinstance(error, VersionMismatchError)
        self.pool.refresh(ask_all=mismatch)
        if not mismatch and (allowed is not None or not self.pool.incompatible):
            self.retries[group] = self.retries.get(group, 0) + 1
            if self.retries[group] > MAX_RETRIES or isinstance(error, UsageError):
                return None
        self.pool.wait()
        self.data.pop(group[0].benchmark.data, None)
        return self._send(group, self._read_checkpoints(group))

    def _data(self, spec: RunSpec, allowed: list[str] | None) -> Future:
        """Return the data set on the cluster, which stores equal content once, however often it is sent."""
        name = spec.benchmark.data
        if name not in self.data:
            dataset = spec.benchmark.dataset(self.config.data_dir)
            self.data[name] = self.client.scatter(dataset, workers=allowed, broadcast=True, hash=True)
        return self.data[name]

    def _read_checkpoints(self, group: Group) -> dict[str, bytes]:
        if self.config.checkpoints is None:
            return {}
        files = {spec.key: self.config.checkpoints.read_file(spec) for spec in group}
        return {key: content for key, content in files.items() if content is not None}

    def _to_events(self, group: Group, output: Mapping[str, Any]) -> Iterator[Event]:
        checkpoints = self.config.checkpoints
        for spec in group:
            if outcome := output["ended"].get(spec.key):
                if "result" in outcome:
                    yield Finished(spec, decode(RunResult, outcome["result"]))
                else:
                    if checkpoints is not None:
                        checkpoints.discard(spec)  # it may be the reason that the run failed
                    yield Failed(spec, outcome["error"])
                continue
            if checkpoints is not None and spec.key in output["checkpoints"]:
                checkpoints.write_file(spec, output["checkpoints"][spec.key])
            yield Progress(spec, output["seen"], output["total"])


@dataclass(frozen=True)
class _Task(Job):
    """The job of a task, its time limit in seconds, and the version of the client."""

    gmed: str
    source: str
    seconds: Amount


def run_slice(job: Mapping[str, Any], dataset: Dataset, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Resume runs on a worker and train for a while; return the outcomes of those that ended, and checkpoints of the
    others.
    """
    if (job["gmed"], job["source"]) != (__version__, source_digest()):
        raise VersionMismatchError(
            f"this worker has gmed {__version__}, the client {job['gmed']}; install the same version on both"
        )
    with _run_lock:
        torch.set_num_threads(1)
        checkpoints = CheckpointsInMemory(files)
        task = decode(_Task, job)
        specs = task.specs()
        _install_dataset(specs[0].benchmark.data, dataset)
        config = replace(task.config, checkpoints=checkpoints)
        deadline = time.monotonic() + task.seconds
        progress = [0, 0]

        def on_progress(seen: int, total: int) -> None:
            progress[:] = seen, total

        try:
            outcomes = run_group(specs, config, on_progress, lambda: time.monotonic() > deadline)
            ended = {spec.key: outcome for spec, outcome in zip(specs, outcomes, strict=True)}
        except Interrupted as stopped:
            ended = stopped.outcomes_so_far
        saved = {spec.key: checkpoints.read_file(spec) for spec in specs if spec.key not in ended}
    return {
        "ended": {
            key: {"result": outcome.to_dict()} if isinstance(outcome, RunResult) else {"error": format_error(outcome)}
            for key, outcome in ended.items()
        },
        "checkpoints": {key: content for key, content in saved.items() if content},
        "seen": progress[0],
        "total": progress[1],
    }


def _install_dataset(name: str, dataset: Dataset) -> None:
    if PRELOADED.get(name) is not dataset:
        PRELOADED.clear()  # a long-lived worker keeps only the last one
        PRELOADED[name] = dataset
        clear_stream_cache()


class VersionMismatchError(UsageError):
    """A task that reached a worker with another gmed than the client's."""


def versions() -> dict[str, str]:
    """Return the versions that results may depend on."""
    return {**collect_environment(torch.device("cpu")), "source": source_digest()}


@cache
def source_digest() -> str:
    """Return a digest of the source of this package: two checkouts with the same version may differ."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n{path.read_text(encoding='utf-8')}".encode())
    return digest.hexdigest()[:12]


def version_problem(remote: Mapping[str, str] | BaseException) -> str:
    """Return how the gmed of a worker differs from the client's; empty if it does not."""
    if isinstance(remote, BaseException):
        return f"does not report which gmed it has ({type(remote).__name__}: {remote})"
    local = versions()
    if remote["gmed"] != local["gmed"]:
        return f"has gmed {remote['gmed']}, not {local['gmed']}"
    if remote.get("source") != local["source"]:
        return f"has gmed {local['gmed']} with another source ({remote.get('source')}, here {local['source']})"
    return ""


def warn_of_differences(worker: str, remote: Mapping[str, str]) -> None:
    """Warn of other differences that can change the last bits of results."""
    local = versions()
    differing = [name for name in local if remote.get(name) != local[name]]
    if differing:
        differences = ", ".join(f"{name} {remote.get(name)} (here {local[name]})" for name in differing)
        warnings.warn(f"worker {worker} has {differences}: results may differ in the last bits", stacklevel=3)
