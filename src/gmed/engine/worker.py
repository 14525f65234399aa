"""A worker process: runs to compute together come in on standard input, one JSON object a line; what happens goes out
likewise.

It ends when its input does, so it never outlives the process that started it by more than one progress report. Told to
terminate, it writes checkpoints of what it is computing first.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from threading import Event
from typing import Any

import torch

from gmed.engine.run import Interrupted, RunResult, Terms, explain, run_together
from gmed.engine.spec import RunSpec

REPORT_EVERY = 0.2  # seconds


def main() -> None:
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a model prints must not mix with the reports
    told_to_stop = Event()
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.set())

    def report(kind: str, **content: Any) -> None:
        out.write(json.dumps({"kind": kind, **content}) + "\n")

    for line in sys.stdin:
        job = json.loads(line)
        last = 0.0

        def on_progress(seen: int, total: int) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_EVERY:
                last = time.monotonic()
                report("progress", seen=seen, total=total)

        try:
            specs = [RunSpec.make(job["benchmark"], job["method"], seed) for seed in job["seeds"]]
            terms = Terms.from_dict(job["terms"])
            for outcome in run_together(specs, terms, on_progress, told_to_stop.is_set):
                if isinstance(outcome, RunResult):
                    report("finished", result=outcome.to_dict())
                else:
                    report("failed", error=explain(outcome))
        except (BrokenPipeError, Interrupted):
            return
        except Exception as error:
            for _ in job["seeds"]:
                report("failed", error=explain(error))
        if told_to_stop.is_set():
            return
