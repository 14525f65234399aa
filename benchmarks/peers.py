"""The speed of learners beside eager loops of torch (``engine.py --peers``): interleaved, process time, one thread."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import gmed
from eager import EagerLoop
from gmed.engine.bench import environment_of
from gmed.engine.config import tune_malloc
from gmed.engine.training import Counts, train
from gmed.learners import Learner
from gmed.models import PassCounter, to_channels_last
from gmed.rng import seeded_torch
from gmed.streams import Stream, to_float

BATCH, CAPACITY = 10, 500
EDIT = {"alpha": 1.0, "beta": 0.01}
METHODS = ("er", "er+gmed", "mir", "mir+gmed")
LOOPS = ("eager", "run", "observe")
"""An eager loop; the loop of ``gmed run``; and ``observe``."""


class Case(NamedTuple):
    """A model, the shape of its inputs, the steps of a round, and the methods."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    steps: int
    methods: tuple[str, ...] = METHODS


CASES = {
    "MLP": Case(gmed.models.MLP, (1, 28, 28), 200),
    "linear head": Case(lambda: nn.Linear(1280, 10), (1280,), 400, ("er", "er+gmed")),
    "small MLP head": Case(
        lambda: nn.Sequential(nn.Linear(1280, 64), nn.ReLU(), nn.Linear(64, 10)), (1280,), 400, ("er", "er+gmed")
    ),
    "ResNet-18": Case(gmed.models.ResNet18, (3, 32, 32), 6),
}


def compare(cases: list[str], methods: list[str] | None, rounds: int, out: Path) -> None:
    """Measure every loop, print a table and write it to a folder."""
    torch.set_num_threads(1)
    tune_malloc()
    speeds: dict[str, dict[str, float]] = {}
    for case in cases:
        for method in CASES[case].methods:
            if methods is None or method in methods:
                found = steps_per_second(CASES[case], method, rounds)
                speeds[f"{case}, {method}"] = found
                print(line(f"{case}, {method}", found), flush=True)
    speeds["prediction, MLP"] = predictions_per_second(rounds)
    print(speeds["prediction, MLP"])
    environment = environment_of("cpu")
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps({"environment": environment, "speeds": speeds}, indent=1) + "\n")


def line(name: str, found: dict[str, float]) -> str:
    """Return a row of the table."""
    speeds = " | ".join(f"{found[loop]:.1f}" for loop in LOOPS)
    return f"| {name} | {speeds} | {found['run'] / found['eager']:.2f} | {found['observe'] / found['run']:.2f} |"


def steps_per_second(case: Case, method: str, rounds: int) -> dict[str, float]:
    """Return the speed of each loop, the median over rounds in which they take turns."""
    stream = random_stream(case.shape, (rounds + 1) * case.steps + CAPACITY // BATCH)
    loops = {name: make_loop(name, case, method, stream) for name in LOOPS}
    for loop in loops.values():
        loop(CAPACITY // BATCH + case.steps)  # memory fills, libraries initialize
    seconds: dict[str, list[float]] = {name: [] for name in LOOPS}
    for number in range(rounds):
        for name in LOOPS[number % len(LOOPS) :] + LOOPS[: number % len(LOOPS)]:
            start = time.process_time()
            loops[name](case.steps)
            seconds[name].append(time.process_time() - start)
    return {name: case.steps / statistics.median(times) for name, times in seconds.items()}


def make_loop(name: str, case: Case, method: str, stream: Stream) -> Callable[[int], None]:
    """Return a function that makes a number of steps."""
    with seeded_torch(0, "weights"):
        model = case.make()
    mir, edits = method.startswith("mir"), method.endswith("+gmed")
    if name == "eager":
        edit = EDIT if edits else {}
        eager = EagerLoop(to_channels_last(model), lr=0.01, capacity=CAPACITY, candidates=50 if mir else 0, **edit)
        batches = stream.batches(BATCH)

        def steps(count: int) -> None:
            for _ in range(count):
                eager.step(*next(batches))

        return steps
    editing = gmed.editing.GMED(**EDIT) if edits else None
    memory = gmed.memory.Reservoir(CAPACITY)
    make = gmed.learners.MIR if mir else gmed.learners.ER
    learner: Learner = make(model, lr=0.01, memory=memory, editing=editing)
    if name == "run":
        training = train(learner, stream, BATCH, counts=Counts(PassCounter()))

        def run(count: int) -> None:
            for _ in range(count):
                next(training)

        return run
    pairs = stream.batches(BATCH)

    def observe(count: int) -> None:
        for _ in range(count):
            learner.observe(*next(pairs))

    return observe


def random_stream(shape: tuple[int, ...], steps: int) -> Stream:
    """Return a stream of random examples, bytes for images."""
    generator, count = torch.Generator().manual_seed(0), steps * BATCH
    x: Tensor
    if len(shape) == 3:
        x = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    else:
        x = torch.randn((count, *shape), generator=generator)
    return Stream(x, torch.randint(10, (count,), generator=generator), (), (count,), 10)


def predictions_per_second(rounds: int) -> dict[str, float]:
    """Return the examples classified per second: by the model itself, in evaluation mode, and by ``predict``."""
    with seeded_torch(0, "weights"):
        model = gmed.models.MLP()
    learner = gmed.learners.FineTune(model, lr=0.01)
    x = to_float(random_stream((1, 28, 28), 100).x)
    seconds: dict[str, list[float]] = {"eager": [], "predict": []}
    for _ in range(rounds + 1):
        start = time.process_time()
        for _ in range(10):
            with torch.no_grad():
                model(x).argmax(1)
        middle = time.process_time()
        for _ in range(10):
            learner.predict(x)
        seconds["eager"].append(middle - start)
        seconds["predict"].append(time.process_time() - middle)
    return {name: 10 * len(x) / statistics.median(times[1:]) for name, times in seconds.items()}
