"""How fast learners step, alone and many together, with the hardware and the versions.

    python benchmarks/engine.py [--device cuda] [--quick]

Random images in the shape of each benchmark's are learned from. For each method: a plain loop over ``observe`` with
one learner, the same with a clock at every stage, then several learners together in one process. Writes
results/engine-<device>.json and .md.

    python benchmarks/engine.py --peers [--models MLP ...] [--methods er ...] [--rounds 7]

compares learners with eager loops of torch instead (eager.py), on a CPU: median steps/s of rounds of process time in
which the loops take turns. Writes results/peers.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from gmed.engine.bench import OTHER, STAGES, Speed, bench, environment_of
from gmed.engine.config import resolve_device
from peers import CASES, compare

MODELS = {"split-mnist": "MLP", "split-cifar10": "ResNet-18, 32 x 32", "split-mini-imagenet": "ResNet-18, 84 x 84"}
PLAN = {
    "cuda": {
        "split-cifar10": (["er", "er+gmed", "mir", "mir+gmed", "er-aug", "er-aug+gmed"], (1, 2, 5, 10, 20, 40)),
        "split-mini-imagenet": (["er", "er+gmed"], (1, 20)),
        "split-mnist": (["er", "er+gmed", "mir+gmed"], (1, 20)),
    },
    "cpu": {
        "split-mnist": (
            ["finetune", "er", "er+gmed", "mir", "mir+gmed", "er-aug", "er-aug+gmed"],
            (1, 2, 5, 10, 20, 40),
        ),
    },
}
QUICK = (20,)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default=resolve_device("auto").type, choices=list(PLAN))
    options.add_argument("--benchmarks", nargs="+", choices=list(MODELS))
    options.add_argument("--methods", nargs="+")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--quick", action="store_true", help="only 20 together")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options.add_argument("--peers", action="store_true", help="compare with eager loops of torch, on a CPU")
    options.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES), help="of --peers")
    options.add_argument("--rounds", type=int, default=7, help="of --peers")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.peers:
        compare(chosen.models, chosen.methods, chosen.rounds, chosen.out)
        return

    speeds: list[Speed] = []
    for benchmark, (methods, replicas) in PLAN[chosen.device].items():
        for method in methods if chosen.benchmarks is None or benchmark in chosen.benchmarks else []:
            if chosen.methods is None or method in chosen.methods:
                counts = QUICK if chosen.quick else replicas
                found = bench(benchmark, method, replicas=counts, steps=chosen.steps, device=chosen.device)
                print(*map(line, found), sep="\n", flush=True)
                speeds += found
    environment = environment_of(chosen.device)
    chosen.out.mkdir(parents=True, exist_ok=True)
    content = {"environment": environment, "speeds": [speed.to_dict() for speed in speeds]}
    (chosen.out / f"engine-{chosen.device}.json").write_text(json.dumps(content, indent=1) + "\n")
    head = "| model | method | together | ms per seed-step | seed-steps/s | times the plain loop | peak MB |"
    text = [f"{', '.join(f'{k} {v}' for k, v in environment.items())}; {chosen.steps} steps", "", head]
    text += ["|---" * 7 + "|", *map(line, speeds), "", "Milliseconds by stage of a step, in the plain loop:", ""]
    text += [f"| model | method | {' | '.join(STAGES)} | {OTHER} |", "|---" * (len(STAGES) + 3) + "|"]
    text += [by_stage(speed) for speed in speeds if speed.stages]
    (chosen.out / f"engine-{chosen.device}.md").write_text("\n".join([*text, ""]))


def line(speed: Speed) -> str:
    """Return a row of the table."""
    together = str(speed.replicas) if speed.replicas else "plain loop"
    peak = f"{speed.peak_bytes / 2**20:.0f}" if speed.peak_bytes else "-"
    return (
        f"| {MODELS[speed.benchmark]} | {speed.method} | {together} | {speed.milliseconds:.3f} "
        f"| {1000 / speed.milliseconds:.0f} | {speed.ratio:.1f} | {peak} |"
    )


def by_stage(speed: Speed) -> str:
    """Return a row of the other table."""
    found = speed.stages or {}
    shares = (f"{found[stage]:.3f}" if stage in found else "-" for stage in (*STAGES, OTHER))
    return f"| {MODELS[speed.benchmark]} | {speed.method} | {' | '.join(shares)} |"


if __name__ == "__main__":
    main()
