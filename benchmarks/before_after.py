"""Training speed of every method in two versions of the package, interleaved.

    python benchmarks/before_after.py OTHER_CHECKOUT/src [--methods er er+gmed ...] [--rounds 7]

Each round trains every method once on Split MNIST with either version, in a process of its own with one thread. What
counts is the process time of training: steps per second, median over the rounds, and the ratio of the two versions in
the same round. Writes results/before-after.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
METHODS = (
    *("finetune", "er", "er+gmed", "er+random-edit", "er+adv-edit", "mir", "mir+gmed", "er-aug", "er-aug+gmed"),
    *("er-t", "er-t+gmed", "gss", "gss+gmed", "agem", "bgd", "gem", "gem+gmed", "hal", "er-expanded"),
    *("prog-nn", "comp-cl", "cn-dpm(generator_steps=100,classifier_steps=50)", "iid-online", "iid-offline"),
)
TRAIN = """
import sys, time
time.perf_counter = time.process_time  # what the runs time their stages with
import torch, gmed
torch.set_num_threads(1)
for method in sys.argv[1:]:
    (run,) = gmed.run("split-mnist", [method], seeds=[0], device="cpu", store=None, workers=0).runs
    print(method, run.steps / run.timings["train"], flush=True)
"""


def steps_per_second(source: Path, methods: list[str]) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN, *methods]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True)
    return {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("other", type=Path, help="src folder of the version to compare with")
    options.add_argument("--methods", nargs="+", default=list(METHODS))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--out", type=Path, default=HERE / "results" / "before-after.json")
    chosen = options.parse_args()
    ours = HERE.parent / "src"

    ratios: dict[str, list[float]] = {method: [] for method in chosen.methods}
    speeds: dict[str, list[tuple[float, float]]] = {method: [] for method in chosen.methods}
    for number in range(chosen.rounds):
        for method in chosen.methods:
            order = (chosen.other, ours) if number % 2 else (ours, chosen.other)
            found = {source: steps_per_second(source, [method])[method] for source in order}
            speeds[method].append((found[chosen.other], found[ours]))
            ratios[method].append(found[ours] / found[chosen.other])
        print(f"round {number + 1}", {m: round(statistics.median(r), 3) for m, r in ratios.items()}, flush=True)
    content = {
        method: {
            "before, steps/s": round(statistics.median(before for before, _ in speeds[method]), 1),
            "after, steps/s": round(statistics.median(after for _, after in speeds[method]), 1),
            "ratio": round(statistics.median(ratios[method]), 3),
        }
        for method in chosen.methods
    }
    chosen.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for method, found in content.items():
        print(f"{method:48}", *(f"{value:10.3f}" for value in found.values()))


if __name__ == "__main__":
    main()
