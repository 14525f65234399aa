"""A worker process: it reads jobs from standard input and reports on standard output, one JSON object per line.

It ends when its input ends, and soon after its output is closed. In the latter case, and on SIGTERM, it first writes
checkpoints of the runs in progress.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from threading import Event

import torch

from gmed.engine.executors.protocol import Evaluated, Failed, Finished, Job, Message, Progress, Warned, write_message
from gmed.engine.result import RunResult
from gmed.engine.runner import Interrupted, Outcome, format_error, run_group
from gmed.engine.spec import RunSpec
from gmed.errors import GmedError, UsageError
from gmed.io.records import decode

REPORT_EVERY = 0.2  # seconds


def main() -> None:
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # output of user code must not mix with the reports
    stop_requested = Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())

    def report(message: Message) -> None:
        try:
            out.write(write_message(message))
        except BrokenPipeError:  # no process reads the reports any more
            stop_requested.set()

    for line in sys.stdin:
        job = decode(Job, json.loads(line))
        outcomes: list[Outcome]
        last = 0.0

        def on_progress(seen: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_EVERY:
                last = time.monotonic()
                report(Progress(seen, total))

        def on_evaluated(spec: RunSpec, seen: int, total: int, accuracy: list[list[float]]) -> None:
            report(Evaluated(spec.key, seen, total, accuracy))

        try:
            specs = job.specs()
            if job.config.checkpoints is not None:
                job.config.checkpoints.warn = lambda text: report(Warned(text))
            outcomes = run_group(specs, job.config, on_progress, stop_requested.is_set, on_evaluated)
        except Interrupted:
            return
        except UsageError as error:  # the job cannot be loaded in this process
            outcomes = [error] * len(job.runs)
        for outcome in outcomes:
            report(Finished(outcome) if isinstance(outcome, RunResult) else Failed(format_error(outcome)))
        unexpected = any(isinstance(o, Exception) and not isinstance(o, GmedError) for o in outcomes)
        if stop_requested.is_set() or (unexpected and torch.cuda.is_available()):
            return  # after an unexpected error the state of the GPU is undefined
