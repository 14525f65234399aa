"""Execute runs on this machine, in worker processes with one torch thread each, fed over pipes.

A worker is a plain subprocess rather than a member of a process pool: it does not import the caller's script
(so no ``if __name__ == "__main__"`` is needed), and if one dies, only its own run is lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from gmed.engine.batched import Group, group_runs
from gmed.engine.config import DEFAULT_CONFIG, ExecutionConfig, resolve_device
from gmed.engine.custom_model import ModelRef
from gmed.engine.executors import protocol
from gmed.engine.executors.protocol import Job
from gmed.engine.result import RunResult
from gmed.engine.runner import Outcome, format_error, run_group
from gmed.engine.spec import RunSpec
from gmed.errors import GmedWarning, UsageError
from gmed.io.records import encode
from gmed.kernels.threads import limit_threads


@dataclass(frozen=True)
class Progress:
    """A run has made progress."""

    spec: RunSpec
    seen: int
    total: int


@dataclass(frozen=True)
class Evaluated(Progress):
    """A run has reached a point of evaluation, with its accuracies so far, by point and task."""

    accuracy: list[list[float]]


@dataclass(frozen=True)
class Finished:
    """A run has finished."""

    spec: RunSpec
    result: RunResult


@dataclass(frozen=True)
class Failed:
    """A run has failed; the others continue."""

    spec: RunSpec
    error: str


Event = Progress | Finished | Failed
"""What happens to a run: progress, success or failure."""


Events = Generator[list[Event], None, None]
"""Batches of new events; closing the generator stops the runs."""

Executor = Callable[[Sequence[RunSpec], ExecutionConfig], Events]
"""A function that executes runs and yields events."""

SHUTDOWN_SECONDS = 60.0
"""Seconds that workers have to write checkpoints when they are stopped, unless they are stopped a second time."""


def default_workers(on_gpu: bool) -> int:
    """Return the default number of workers: one per usable core, at most eight for a GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 8) if on_gpu else cores


def execute(
    specs: Sequence[RunSpec], config: ExecutionConfig = DEFAULT_CONFIG, *, workers: int | None = None
) -> Events:
    """Execute runs, in any order, and yield events as they happen.

    Closing the iterator (or an exception such as Ctrl-C in its consumer) stops the workers, which are given time to
    write checkpoints.

    Parameters
    ----------
    workers
        Number of worker processes; by default one per usable core, at most eight for a GPU. 0 means this process.
    """
    on_gpu = resolve_device(config.device).type == "cuda"
    groups = group_runs(specs) if on_gpu else [(spec,) for spec in specs]
    reason = why_not_portable(specs)
    if reason and workers:
        raise UsageError(f"{reason}; or use workers=0")
    workers = 0 if reason else default_workers(on_gpu) if workers is None else workers
    if workers == 0:
        yield from _run_inline(groups, config)
        return
    waiting: SimpleQueue[Group] = SimpleQueue()
    for group in groups:
        waiting.put(group)
    events: SimpleQueue[Event | protocol.Warned] = SimpleQueue()
    warned: set[str] = set()
    pool = [_Worker(waiting, events, config) for _ in range(min(workers, len(groups)))]
    try:
        remaining = len(specs)
        while remaining:
            batch = _split_warnings([events.get(), *_drain(events)], warned)
            remaining -= sum(not isinstance(event, Progress) for event in batch)
            if batch:
                yield batch
    finally:
        for worker in pool:
            worker.stop()
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        try:
            for worker in pool:
                worker.join_until(deadline)
        finally:  # stopped again while waiting
            for worker in pool:
                worker.join_until(0.0)
            for worker in pool:
                worker.join(1.0)  # it forwards the last warnings of its process
            _split_warnings(_drain(events), warned)


def _drain(events: SimpleQueue[Event | protocol.Warned]) -> list[Event | protocol.Warned]:
    """Remove and return all events in the queue."""
    drained = []
    while not events.empty():
        drained.append(events.get())
    return drained


def _split_warnings(events: Sequence[Event | protocol.Warned], warned: set[str]) -> list[Event]:
    """Issue the warnings among the events, each once even if many workers send it, and return the other events."""
    for text in dict.fromkeys(event.text for event in events if isinstance(event, protocol.Warned)):
        if text not in warned:
            warned.add(text)
            warnings.warn(text, GmedWarning, stacklevel=3)
    return [event for event in events if not isinstance(event, protocol.Warned)]


def why_not_portable(specs: Sequence[RunSpec]) -> str | None:
    """Return why another process cannot execute these runs, or ``None`` if it can."""
    for spec in specs:
        if isinstance(spec.benchmark.model, ModelRef) and spec.benchmark.model.is_instance:
            return (
                "the model is an object, which other processes do not have; "
                "pass a function at the top level of a file, or a reference such as 'net.py:small'"
            )
        for source in spec.sources():
            if not source.portable:
                return (
                    f"{spec.method.name} on {spec.benchmark.name} is partly defined in the running script "
                    f"({source.file}), which other processes cannot import; "
                    "move that code to a separate file and load it"
                )
    return None


def _run_inline(groups: Sequence[Group], config: ExecutionConfig) -> Events:
    with limit_threads(1):  # as in a worker: the number of threads changes the order of sums
        for group in groups:
            evaluated: list[Event] = []
            outcomes: Sequence[Outcome] = run_group(
                group, config, on_evaluated=lambda *values, events=evaluated: events.append(Evaluated(*values))
            )
            yield [
                *evaluated,
                *(
                    Finished(spec, outcome) if isinstance(outcome, RunResult) else Failed(spec, format_error(outcome))
                    for spec, outcome in zip(group, outcomes, strict=True)
                ),
            ]


class _Worker(Thread):
    """A thread that manages one worker process."""

    def __init__(
        self, waiting: SimpleQueue[Group], events: SimpleQueue[Event | protocol.Warned], config: ExecutionConfig
    ) -> None:
        super().__init__(daemon=True)
        self.waiting, self.events, self.config = waiting, events, config
        self.process: subprocess.Popen[str] | None = None
        self.lock = Lock()  # held while a process is launched or stopped
        self.stopped = False
        self.start()

    def run(self) -> None:
        while not self.stopped:
            try:
                group = list(self.waiting.get_nowait())
            except Empty:
                break
            try:
                self._compute(group)
            except Exception as error:  # whatever happened, every run gets its event
                reason = self._describe_death(error)
                for spec in group:
                    self.events.put(Failed(spec, reason))
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()

    def _describe_death(self, error: Exception) -> str:
        if self.process is None:
            return f"no worker process could be started: {error}"
        self.process.kill()
        code = self.process.wait()
        self.process = None
        self.stderr_log.seek(0)
        stderr_tail = self.stderr_log.read().decode(errors="replace").strip()[-2000:]
        reason = "" if isinstance(error, (EOFError, OSError)) else f": {format_error(error).splitlines()[0]}"
        return f"the worker process died (exit code {code}){reason}\n{stderr_tail}".strip()

    def _launch(self) -> subprocess.Popen[str]:
        """Start an interpreter that finds this package and imports nothing from the current folder."""
        self.stderr_log = tempfile.TemporaryFile()  # noqa: SIM115
        package = str(Path(__file__).parents[2])
        start = f"import sys; sys.path.append({package!r}); from gmed.engine.executors.worker import main; main()"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr_log,
            encoding="utf-8",
            bufsize=1,
            start_new_session=True,  # this process handles Ctrl-C
            creationflags=getattr(
                subprocess, "CREATE_NEW_PROCESS_GROUP", 0
            ),  # the same on Windows; other systems lack this flag
        )

    def _compute(self, group: list[RunSpec]) -> None:
        """Execute a group in the worker process; remove runs from the list as they end."""
        with self.lock:
            if self.stopped:
                return
            if self.process is None or self.process.poll() is not None:
                self.process = self._launch()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(encode(Job.of(group, self.config))) + "\n")
        self.process.stdin.flush()
        while group:
            line = self.process.stdout.readline()
            if not line:
                raise EOFError
            match protocol.read_message(line):
                case protocol.Progress(seen, total):
                    for spec in group:
                        self.events.put(Progress(spec, seen, total))
                case protocol.Evaluated(key, seen, total, accuracy):
                    (spec,) = (spec for spec in group if spec.key == key)
                    self.events.put(Evaluated(spec, seen, total, accuracy))
                case protocol.Warned() as warned:
                    self.events.put(warned)
                case protocol.Finished(result):
                    self.events.put(Finished(group.pop(0), result))
                case protocol.Failed(error):
                    self.events.put(Failed(group.pop(0), error))

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            if self.process is not None and self.process.poll() is None:
                self.process.terminate()

    def join_until(self, deadline: float) -> None:
        process = self.process
        if process is not None:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
