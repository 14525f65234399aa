"""Many runs on many machines: a Dask cluster that is already there.

A run is a chain of tasks. Each goes on from a checkpoint for a while and returns the next one, or the result; the
client keeps what comes back and sends it out again. So a worker that is lost costs no more than the task it was at,
which Dask gives to another, and a client that is lost goes on from the checkpoints it had kept.
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
from gmed.engine.benchmarks import PRELOADED
from gmed.engine.checkpoint import CheckpointsInMemory
from gmed.engine.config import ExecutionConfig
from gmed.engine.executors.local import Event, Events, Failed, Finished, Progress, why_not_portable
from gmed.engine.executors.protocol import Job
from gmed.engine.result import RunResult
from gmed.engine.runner import Interrupted, collect_environment, format_error, run_group
from gmed.engine.spec import RunSpec
from gmed.engine.stream_cache import clear_stream_cache
from gmed.errors import UsageError
from gmed.io.records import Amount, decode, encode

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

if TYPE_CHECKING:
    from distributed import Client, Future, as_completed

SLICE_SECONDS = 60.0
"""Seconds that a task goes on for, where no checkpoints are kept that would say how often."""

POLL_SECONDS = 2.0
"""Seconds between two looks at which workers there are, while nothing comes back."""

MAX_RETRIES = 3
"""How often a run is sent out again after the cluster lost what it was computed from."""

_run_lock = Lock()


class DaskExecutor:
    """Computes runs on the workers of a Dask cluster: ``gmed.run(..., executor=DaskExecutor("tcp://10.0.0.1:8786"))``.

    Workers need this package, one thread each, and where they have a GPU the resource ``GPU=1``: then runs of one
    method advance together there. Data sets travel from here, once to each worker.

    Parameters
    ----------
    where
        The address of the scheduler, or a ``distributed.Client``.
    patience
        Seconds to wait for the scheduler and for a first worker.
    """

    def __init__(self, where: str | Client, *, patience: float = 30.0) -> None:
        self.where, self.patience = where, patience

    def __call__(self, specs: Sequence[RunSpec], config: ExecutionConfig) -> Events:
        if not specs:
            return
        if tied := why_not_portable(specs):
            raise UsageError(tied)
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
            raise UsageError("computing on a cluster needs Dask: pip install 'gmed[cluster]'") from None
        if not isinstance(self.where, str):
            yield self.where
            return
        try:
            client = Client(self.where, timeout=self.patience, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"no Dask scheduler answers at {self.where} ({error}); is it running?") from None
        with client:
            yield client

    def _device(self, client: Client, wanted: str, pool: _WorkerPool) -> str:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        gpus = any("GPU" in worker["resources"] for name, worker in workers.items() if name in pool.compatible)
        if wanted == "cuda" and not gpus:
            raise UsageError(
                "device cuda: no worker of the cluster has a GPU; start those that do with --resources GPU=1"
            )
        return "cuda" if gpus and wanted != "cpu" else "cpu"


class _WorkerPool:
    """The workers of a cluster: those that have the gmed that is here, and those that have another and get no run.

    Workers come and go; :meth:`refresh` finds out how things stand.

    Attributes
    ----------
    compatible
        The addresses of those that have the same gmed.
    incompatible
        What the others have, by their addresses.
    """

    def __init__(self, client: Client, patience: float) -> None:
        self.client, self.patience = client, patience
        self.compatible: set[str] = set()
        self.incompatible: dict[str, str] = {}

    def refresh(self, *, ask_all: bool = False) -> None:
        """Ask workers that are new, or all, what they have; forget those that are gone."""
        if ask_all:
            self.compatible, self.incompatible = set(), {}
        there = set(self.client.scheduler_info(n_workers=-1)["workers"])
        self.compatible &= there
        self.incompatible = {worker: what for worker, what in self.incompatible.items() if worker in there}
        new = there - self.compatible - self.incompatible.keys()
        if not new:
            return
        found = self.client.run(versions, workers=sorted(new), on_error="return")
        for worker, theirs in found.items():
            if isinstance(theirs, OSError):
                continue  # it is gone again, or does not answer now
            if other := version_problem(theirs):
                self.incompatible[worker] = other
                warnings.warn(
                    f"the worker {worker} {other}; it gets no runs. Install the same gmed there, and start it again.",
                    stacklevel=2,
                )
            else:
                self.compatible.add(worker)
                warn_of_differences(worker, theirs)

    def wait(self) -> None:
        """Wait for a worker with the same gmed, as long as there is patience."""
        deadline = time.monotonic() + self.patience
        self.refresh()
        while not self.compatible:
            if time.monotonic() > deadline:
                raise UsageError(self._no_worker_message())
            time.sleep(min(0.1, self.patience))
            self.refresh()

    def _no_worker_message(self) -> str:
        kept = "What is finished is kept; start workers{}, and the same command goes on from there."
        if not self.incompatible:
            return f"the cluster has had no worker for {self.patience:g} s. " + kept.format("")
        worker, what = next(iter(self.incompatible.items()))
        return (
            f"no worker of the cluster has the gmed that is here ({__version__}, source {source_digest()}): "
            f"{worker} {what}. " + kept.format(" with the same gmed")
        )

    def allowed(self) -> list[str] | None:
        """Who may compute: anybody, also those still to come, or where some have another gmed the others."""
        return sorted(self.compatible) if self.incompatible else None


class _CheckpointChains:
    """Runs under way on a cluster."""

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
                found = future.result()
            except Exception as error:  # of the cluster, not of a run: those are part of what was found
                if (again := self._resend(group, allowed, error)) is not None:
                    pending[again] = group
                    finished.add(again)
                else:
                    yield [Failed(spec, f"the cluster lost it: {format_error(error)}") for spec in group]
                continue
            future.release()
            self.retries.pop(group, None)
            yield list(self._to_events(group, found))
            if rest := tuple(spec for spec in group if spec.key not in found["ended"]):
                following = self._send(rest, found["checkpoints"])
                pending[following] = rest
                finished.add(following)

    def _wait_for_one(self, finished: as_completed) -> None:
        """Wait until something comes back; what was sent to workers that are all gone comes back cancelled."""
        look = time.monotonic() + POLL_SECONDS
        while not finished.has_ready():
            time.sleep(0.01)
            if time.monotonic() > look:
                self.pool.refresh()
                for future, allowed in self.sent_to.items():
                    if allowed is not None and not self.pool.compatible.intersection(allowed):
                        future.cancel()
                look = time.monotonic() + POLL_SECONDS

    def _send(self, group: Group, kept: Mapping[str, bytes]) -> Future:
        checkpoints = self.config.checkpoints
        job = {
            **encode(Job.of(group, replace(self.config, device=self.device, data_dir=None, checkpoints=None))),
            "gmed": __version__,
            "source": source_digest(),
            "seconds": checkpoints.every if checkpoints else SLICE_SECONDS,
        }
        resources = {"GPU": 1} if self.device == "cuda" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a checkpoint is
            allowed = self.pool.allowed()
            data = self._data(group[0], allowed)
            future = self.client.submit(run_slice, job, data, kept, pure=False, resources=resources, workers=allowed)
        self.sent_to[future] = allowed
        return future

    def _resend(self, group: Group, allowed: list[str] | None, error: Exception) -> Future | None:
        """Once more from what is kept here, with the data too: workers that had them may be gone.

        What may have come to a worker with another gmed is moved to others, and does not count.
        """
        other = isinstance(error, VersionMismatchError)
        self.pool.refresh(ask_all=other)
        if not other and (allowed is not None or not self.pool.incompatible):
            self.retries[group] = self.retries.get(group, 0) + 1
            if self.retries[group] > MAX_RETRIES or isinstance(error, UsageError):
                return None
        self.pool.wait()
        self.data.pop(group[0].benchmark.data, None)
        return self._send(group, self._read_checkpoints(group))

    def _data(self, spec: RunSpec, allowed: list[str] | None) -> Future:
        """The data set on the cluster, by its content: there once, however often it is asked for."""
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

    def _to_events(self, group: Group, found: Mapping[str, Any]) -> Iterator[Event]:
        kept = self.config.checkpoints
        for spec in group:
            if outcome := found["ended"].get(spec.key):
                if "result" in outcome:
                    yield Finished(spec, decode(RunResult, outcome["result"]))
                else:
                    if kept is not None:
                        kept.discard(spec)  # it may be what the run failed at
                    yield Failed(spec, outcome["error"])
                continue
            if kept is not None and spec.key in found["checkpoints"]:
                kept.write_file(spec, found["checkpoints"][spec.key])
            yield Progress(spec, found["seen"], found["total"])


@dataclass(frozen=True)
class _Task(Job):
    """What a task goes on with, for how many seconds, and the gmed that asks for it."""

    gmed: str
    source: str
    seconds: Amount


def run_slice(job: Mapping[str, Any], dataset: Dataset, kept: Mapping[str, bytes]) -> dict[str, Any]:
    """On a worker: compute runs from their checkpoints on, for a while. What became of those that ended, and
    checkpoints of the others.
    """
    if (job["gmed"], job["source"]) != (__version__, source_digest()):
        raise VersionMismatchError(f"this worker has gmed {__version__}, the client {job['gmed']}; install the same")
    with _run_lock:
        torch.set_num_threads(1)
        checkpoints = CheckpointsInMemory(kept)
        asked = decode(_Task, job)
        specs = asked.specs()
        _install_dataset(specs[0].benchmark.data, dataset)
        config = replace(asked.config, checkpoints=checkpoints)
        enough = time.monotonic() + asked.seconds
        reached = [0, 0]

        def on_progress(seen: int, total: int) -> None:
            reached[:] = seen, total

        try:
            outcomes = run_group(specs, config, on_progress, lambda: time.monotonic() > enough)
            ended = {spec.key: outcome for spec, outcome in zip(specs, outcomes, strict=True)}
        except Interrupted as stopped:
            ended = stopped.outcomes_so_far
        files = {spec.key: checkpoints.read_file(spec) for spec in specs if spec.key not in ended}
    return {
        "ended": {
            key: {"result": outcome.to_dict()} if isinstance(outcome, RunResult) else {"error": format_error(outcome)}
            for key, outcome in ended.items()
        },
        "checkpoints": {key: content for key, content in files.items() if content},
        "seen": reached[0],
        "total": reached[1],
    }


def _install_dataset(name: str, dataset: Dataset) -> None:
    if PRELOADED.get(name) is not dataset:
        PRELOADED.clear()  # a worker may live long
        PRELOADED[name] = dataset
        clear_stream_cache()


class VersionMismatchError(UsageError):
    """A task has come to a worker with another gmed than the client's."""


def versions() -> dict[str, str]:
    """What results may depend on here."""
    return {**collect_environment(torch.device("cpu")), "source": source_digest()}


@cache
def source_digest() -> str:
    """A digest of the text of this package: two checkouts may have one version and differ."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n{path.read_text(encoding='utf-8')}".encode())
    return digest.hexdigest()[:12]


def version_problem(theirs: Mapping[str, str] | BaseException) -> str:
    """What a worker has instead of the gmed that is here; nothing if it has the same."""
    if isinstance(theirs, BaseException):
        return f"cannot be asked which gmed it has ({type(theirs).__name__}: {theirs})"
    ours = versions()
    if theirs["gmed"] != ours["gmed"]:
        return f"has gmed {theirs['gmed']}, not {ours['gmed']}"
    if theirs.get("source") != ours["source"]:
        return f"has gmed {ours['gmed']} with another source ({theirs.get('source')}, here {ours['source']})"
    return ""


def warn_of_differences(worker: str, theirs: Mapping[str, str]) -> None:
    """Warn of what else differs there and can change the last bits of results."""
    ours = versions()
    apart = [f"{name} {theirs.get(name)} (here {ours[name]})" for name in ours if theirs.get(name) != ours[name]]
    if apart:
        warnings.warn(f"worker {worker} has {', '.join(apart)}: results may differ in the last bits", stacklevel=3)
