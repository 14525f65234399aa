"""A worker process: runs to compute together come in on standard input, one JSON object a line; what happens goes out
likewise.

It ends when its input does, so it never outlives the process that started it by more than one progress report.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gmed.engine.run import RunResult, explain, run_together
from gmed.engine.spec import RunSpec

REPORT_EVERY = 0.2  # seconds


def main() -> None:
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a model prints must not mix with the reports

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
            data_dir = Path(job["data_dir"]) if job["data_dir"] else None
            outcomes = run_together(specs, device=job["device"], data_dir=data_dir, on_progress=on_progress)
            for outcome in outcomes:
                if isinstance(outcome, RunResult):
                    report("finished", result=outcome.to_dict())
                else:
                    report("failed", error=explain(outcome))
        except BrokenPipeError:
            return
        except Exception as error:
            for _ in job["seeds"]:
                report("failed", error=explain(error))
