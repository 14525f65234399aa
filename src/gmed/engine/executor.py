"""Many runs on this machine: worker processes, one torch thread each, fed over pipes.

A worker is a plain subprocess rather than a member of a process pool: it does not import the caller's script
(so no ``if __name__ == "__main__"`` is needed), and one that dies takes down its own run alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import torch

from gmed.engine.run import RunResult, explain, run_one
from gmed.engine.spec import RunSpec


@dataclass(frozen=True)
class Progress:
    """A run is under way."""

    spec: RunSpec
    seen: int
    total: int


@dataclass(frozen=True)
class Finished:
    """A run ended well."""

    spec: RunSpec
    result: RunResult


@dataclass(frozen=True)
class Failed:
    """A run ended in an error; the others go on."""

    spec: RunSpec
    error: str


Event = Progress | Finished | Failed


def execute(
    specs: Sequence[RunSpec],
    *,
    workers: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
) -> Iterator[Event]:
    """Compute runs, in any order, and tell what happens as it happens.

    Closing the iterator (or an exception such as Ctrl-C in its consumer) stops the workers at once.

    Parameters
    ----------
    workers
        Worker processes; by default one per usable core. 0 computes in this process.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers == 0:
        yield from _here(specs, device, data_dir)
        return
    waiting: SimpleQueue[RunSpec] = SimpleQueue()
    for spec in specs:
        waiting.put(spec)
    events: SimpleQueue[Event] = SimpleQueue()
    crew = [_Worker(waiting, events, device, data_dir) for _ in range(min(workers, len(specs)))]
    try:
        left = len(specs)
        while left:
            event = events.get()
            left -= not isinstance(event, Progress)
            yield event
    finally:
        for worker in crew:
            worker.stop()


def _here(specs: Sequence[RunSpec], device: str, data_dir: Path | None) -> Iterator[Event]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: the number of threads changes the order of sums
    try:
        for spec in specs:
            try:
                yield Finished(spec, run_one(spec, device=device, data_dir=data_dir))
            except Exception as error:
                yield Failed(spec, explain(error))
    finally:
        torch.set_num_threads(threads)


class _Worker(Thread):
    """A thread that keeps one worker process busy."""

    def __init__(
        self, waiting: SimpleQueue[RunSpec], events: SimpleQueue[Event], device: str, data_dir: Path | None
    ) -> None:
        super().__init__(daemon=True)
        self.waiting, self.events = waiting, events
        self.device, self.data_dir = device, data_dir
        self.process: subprocess.Popen[str] | None = None
        self.lock = Lock()  # a process is launched and stopped under it
        self.stopped = False
        self.start()

    def run(self) -> None:
        while not self.stopped:
            try:
                spec = self.waiting.get_nowait()
            except Empty:
                break
            try:
                self._compute(spec)
            except Exception as error:  # whatever happened, the run is accounted for
                self.events.put(Failed(spec, self._post_mortem(error)))
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()

    def _post_mortem(self, error: Exception) -> str:
        if self.process is None:
            return f"no worker process could be started: {error}"
        self.process.kill()
        code = self.process.wait()
        self.process = None
        self.complaints.seek(0)
        last_words = self.complaints.read().decode(errors="replace").strip()[-2000:]
        reason = "" if isinstance(error, (EOFError, OSError)) else f": {explain(error).splitlines()[0]}"
        return f"the worker process died (exit code {code}){reason}\n{last_words}".strip()

    def _launch(self) -> subprocess.Popen[str]:
        """A fresh interpreter that finds this package and imports nothing from the current folder."""
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115
        package = str(Path(__file__).parents[2])
        start = f"import sys; sys.path.append({package!r}); from gmed.engine.worker import main; main()"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is ours to handle
        )

    def _compute(self, spec: RunSpec) -> None:
        with self.lock:
            if self.stopped:
                return
            if self.process is None:
                self.process = self._launch()
        assert self.process.stdin is not None and self.process.stdout is not None
        job = {
            "benchmark": spec.benchmark.name,
            "method": spec.method.name,
            "seed": spec.seed,
            "device": self.device,
            "data_dir": str(self.data_dir) if self.data_dir else None,
        }
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            report = json.loads(line)
            if report["kind"] == "progress":
                self.events.put(Progress(spec, report["seen"], report["total"]))
            elif report["kind"] == "finished":
                return self.events.put(Finished(spec, RunResult(**report["result"])))
            else:
                return self.events.put(Failed(spec, report["error"]))
        raise EOFError

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
