"""A worker process: runs to compute together come in on standard input, one JSON object a line; what happens goes out
likewise.

It ends when its input does, and soon after nobody reads its reports. Then, and when it is told to terminate, it writes
checkpoints of what it is computing first.
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
    os.dup2(2, 1)  # whatever a model prints must not mix with the reports
    told_to_stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())

    def report(message: Message) -> None:
        try:
            out.write(write_message(message))
        except BrokenPipeError:  # nobody is waiting for it any more
            told_to_stop.set()

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
            outcomes = run_group(specs, job.config, on_progress, told_to_stop.is_set, on_evaluated)
        except Interrupted:
            return
        except UsageError as error:  # what was to be computed could not be understood here
            outcomes = [error] * len(job.runs)
        for outcome in outcomes:
            report(Finished(outcome) if isinstance(outcome, RunResult) else Failed(format_error(outcome)))
        unexpected = any(isinstance(o, Exception) and not isinstance(o, GmedError) for o in outcomes)
        if told_to_stop.is_set() or (unexpected and torch.cuda.is_available()):
            return  # after an error on a GPU nothing there can be relied on
