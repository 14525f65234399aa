"""Many runs on many machines: a Dask cluster that is already there.

A run is a chain of tasks. Each goes on from a checkpoint for a while and returns the next one, or the result; the
client keeps what comes back and sends it out again. So a worker that is lost costs no more than the task it was at,
which Dask gives to another, and a client that is lost goes on from the checkpoints it had kept.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from gmed.data import Dataset
from gmed.engine.benchmarks import AT_HAND
from gmed.engine.checkpoint import Checkpoints
from gmed.engine.executor import Event, Events, Failed, Finished, Progress, tied_to_this_process
from gmed.engine.group import Group, computed_together, heard, told
from gmed.engine.kept_streams import forget_streams
from gmed.engine.run import Interrupted, RunResult, environment, explain, run_together
from gmed.engine.spec import RunSpec
from gmed.engine.terms import Terms
from gmed.errors import UsageError
from gmed.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

A_WHILE = 60.0
"""Seconds that a task goes on for, where no checkpoints are kept that would say how often."""

SETS_OUT_AGAIN = 3
"""How often a run is sent out again after the cluster lost what it was computed from."""

_one_at_a_time = Lock()


class Cluster:
    """Computes runs on the workers of a Dask cluster: ``gmed.run(..., executor=Cluster("tcp://10.0.0.1:8786"))``.

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

    def __call__(self, specs: Sequence[RunSpec], terms: Terms) -> Events:
        if not specs:
            return
        if tied := tied_to_this_process(specs):
            raise UsageError(tied)
        with self._client() as client:
            self._wait_for_workers(client)
            self._compare_versions(client)
            device = self._device(client, terms.device)
            chains = _Chains(client, specs, terms, device, lambda: self._wait_for_workers(client))
            yield from chains.events()

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

    def _wait_for_workers(self, client: Client) -> None:
        try:
            client.wait_for_workers(1, timeout=self.patience)
        except (TimeoutError, OSError) as error:
            raise UsageError(
                f"the cluster has had no worker for {self.patience:g} s ({type(error).__name__}). "
                "What is finished is kept; start workers, and the same command goes on from there."
            ) from None

    def _compare_versions(self, client: Client) -> None:
        try:
            found = client.run(versions)
        except Exception as error:
            raise UsageError(f"a worker cannot import gmed ({error}); install the same gmed on every worker") from None
        compare_versions(found)

    def _device(self, client: Client, wanted: str) -> str:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        gpus = any("GPU" in worker["resources"] for worker in workers)
        if wanted == "cuda" and not gpus:
            raise UsageError(
                "device cuda: no worker of the cluster has a GPU; start those that do with --resources GPU=1"
            )
        return "cuda" if gpus and wanted != "cpu" else "cpu"


class _Chains:
    """Runs under way on a cluster."""

    def __init__(
        self,
        client: Client,
        specs: Sequence[RunSpec],
        terms: Terms,
        device: str,
        wait_for_workers: Callable[[], None],
    ) -> None:
        self.client, self.terms, self.device, self.wait_for_workers = client, terms, device, wait_for_workers
        self.groups = computed_together(specs) if device == "cuda" else [(spec,) for spec in specs]
        self.data: dict[str, Future] = {}
        self.sent_out: dict[Group, int] = {}

    def events(self) -> Events:
        from distributed import as_completed

        under_way = {self._send(group, self._kept(group)): group for group in self.groups}
        finished = as_completed(under_way, loop=self.client.loop)
        for future in finished:
            group = under_way.pop(future)
            try:
                found = future.result()
            except Exception as error:  # of the cluster, not of a run: those are part of what was found
                if (again := self._send_again(group, error)) is not None:
                    under_way[again] = group
                    finished.add(again)
                else:
                    yield [Failed(spec, f"the cluster lost it: {explain(error)}") for spec in group]
                continue
            future.release()
            self.sent_out.pop(group, None)
            yield list(self._news(group, found))
            if rest := tuple(spec for spec in group if spec.key not in found["ended"]):
                following = self._send(rest, found["checkpoints"])
                under_way[following] = rest
                finished.add(following)

    def _send(self, group: Group, kept: Mapping[str, bytes]) -> Future:
        checkpoints = self.terms.checkpoints
        job = {
            **told(group),
            "gmed": __version__,
            "device": self.device,
            "deterministic": self.terms.deterministic,
            "prequential": self.terms.prequential,
            "seconds": checkpoints.every if checkpoints else A_WHILE,
        }
        resources = {"GPU": 1} if self.device == "cuda" else None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # a checkpoint is
            return self.client.submit(go_on, job, self._data(group[0]), kept, pure=False, resources=resources)

    def _send_again(self, group: Group, error: Exception) -> Future | None:
        """Once more from what is kept here, with the data too: workers that had them may be gone."""
        self.sent_out[group] = self.sent_out.get(group, 0) + 1
        if self.sent_out[group] > SETS_OUT_AGAIN or isinstance(error, UsageError):
            return None
        self.data.pop(group[0].benchmark.data, None)
        self.wait_for_workers()
        return self._send(group, self._kept(group))

    def _data(self, spec: RunSpec) -> Future:
        """The data set on the cluster, by its content: there once, however often it is asked for."""
        name = spec.benchmark.data
        if name not in self.data:
            dataset = spec.benchmark.dataset(self.terms.data_dir)
            self.data[name] = self.client.scatter(dataset, broadcast=True, hash=True)
        return self.data[name]

    def _kept(self, group: Group) -> dict[str, bytes]:
        if self.terms.checkpoints is None:
            return {}
        files = {spec.key: self.terms.checkpoints.file(spec) for spec in group}
        return {key: content for key, content in files.items() if content is not None}

    def _news(self, group: Group, found: Mapping[str, Any]) -> Iterator[Event]:
        kept = self.terms.checkpoints
        for spec in group:
            if outcome := found["ended"].get(spec.key):
                if "result" in outcome:
                    yield Finished(spec, RunResult(**outcome["result"]))
                else:
                    if kept is not None:
                        kept.discard(spec)  # it may be what the run failed at
                    yield Failed(spec, outcome["error"])
                continue
            if kept is not None and spec.key in found["checkpoints"]:
                try:
                    kept.keep_file(spec, found["checkpoints"][spec.key])
                except UsageError as error:  # the run goes on without
                    warnings.warn(str(error), stacklevel=2)
            yield Progress(spec, found["seen"], found["total"])


def go_on(job: Mapping[str, Any], dataset: Dataset, kept: Mapping[str, bytes]) -> dict[str, Any]:
    """On a worker: compute runs from their checkpoints on, for a while. What became of those that ended, and
    checkpoints of the others.
    """
    if job["gmed"] != __version__:
        raise UsageError(f"this worker has gmed {__version__}, the client {job['gmed']}; install the same")
    with _one_at_a_time, TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        checkpoints = Checkpoints(Path(folder), every=float("inf"))
        specs = heard(job)
        _have(specs[0].benchmark.data, dataset)
        for spec in specs:
            if spec.key in kept:
                checkpoints.keep_file(spec, kept[spec.key])
        terms = Terms(
            job["device"],
            checkpoints=checkpoints,
            deterministic=job["deterministic"],
            prequential=job["prequential"],
        )
        enough = time.monotonic() + job["seconds"]
        reached = [0, 0]

        def on_progress(seen: int, total: int) -> None:
            reached[:] = seen, total

        try:
            outcomes = run_together(specs, terms, on_progress, lambda: time.monotonic() > enough)
            ended = {spec.key: outcome for spec, outcome in zip(specs, outcomes, strict=True)}
        except Interrupted as stopped:
            ended = stopped.ended
        files = {spec.key: checkpoints.file(spec) for spec in specs if spec.key not in ended}
    return {
        "ended": {
            key: {"result": outcome.to_dict()} if isinstance(outcome, RunResult) else {"error": explain(outcome)}
            for key, outcome in ended.items()
        },
        "checkpoints": {key: content for key, content in files.items() if content},
        "seen": reached[0],
        "total": reached[1],
    }


def _have(name: str, dataset: Dataset) -> None:
    if AT_HAND.get(name) is not dataset:
        AT_HAND.clear()  # a worker may live long
        AT_HAND[name] = dataset
        forget_streams()


def versions() -> dict[str, str]:
    """What results may depend on here."""
    return environment(torch.device("cpu"))


def compare_versions(found: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse workers with another gmed; warn of other differences, which can change the last bits of results."""
    ours = versions()
    for worker, theirs in found.items():
        apart = [f"{name} {theirs[name]} (here {ours[name]})" for name in ours if theirs[name] != ours[name]]
        if theirs["gmed"] != ours["gmed"]:
            raise UsageError(f"worker {worker} has {', '.join(apart)}; install the same gmed everywhere")
        if apart:
            warnings.warn(f"worker {worker} has {', '.join(apart)}: results may differ in the last bits", stacklevel=3)
