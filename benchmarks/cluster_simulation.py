"""On paper: what breaks first when ten thousand runs go to a hundred workers or a thousand?

    python benchmarks/cluster_simulation.py

Every task passes the client and the scheduler, which are simulated as one server that takes a fixed time for each task
and a time for each byte, both as measured by ``durability.py`` on two cores. Workers compute slices of runs and wait
for the server in between. Nothing else is simulated: no failures, no slow links, no disks.
"""

from __future__ import annotations

import heapq
import random

RUNS = 10_000
SECONDS_A_TASK, BYTES_A_SECOND = 3.7e-3, 320e6
WORKLOADS = {  # seconds of a run, bytes of its checkpoint
    "Split MNIST, CPU": (5, 3.5e6),
    "Rotated MNIST, CPU": (60, 3.5e6),
    "Split CIFAR-10, CPU": (1200, 10.6e6),
    "mini-ImageNet, GPU, 20 seeds": (3600, 20 * 852e6),
}


def simulate(workers: int, run: float, size: float, slice_seconds: float) -> tuple[float, float]:
    """Return the time that all runs take, in times what it would be without a server, and how busy the server is."""
    chance = random.Random(0)
    lengths = [run * chance.lognormvariate(0.0, 0.2) for _ in range(RUNS)]
    waiting = [(length, False) for length in lengths]  # computing left, and whether a checkpoint travels along
    ready = [(0.0, worker) for worker in range(workers)]
    free_at = busy = end = 0.0
    heapq.heapify(ready)
    while waiting:
        now, worker = heapq.heappop(ready)
        left, resumed = waiting.pop()
        some = min(left, slice_seconds)
        out, back = size if resumed else 0.0, size if left > some else 0.0
        service = SECONDS_A_TASK + (out + back) / BYTES_A_SECOND
        free_at = max(free_at, now) + service
        busy += service
        end = free_at + some
        heapq.heappush(ready, (end, worker))
        if left > some:
            waiting.append((left - some, True))
    total = max(when for when, _ in ready)
    return total / (sum(lengths) / workers), busy / total


def main() -> None:
    print("| runs | workers | slice | time / ideal | server busy | bytes/s |\n|---|---:|---:|---:|---:|---:|")
    for name, (run, size) in WORKLOADS.items():
        for workers in (100, 1000):
            for slice_seconds in (60.0, 600.0):
                if slice_seconds > 60 >= run:
                    continue
                ratio, busy = simulate(workers, run, size, slice_seconds)
                slices = max(0.0, run / slice_seconds - 1)
                flow = 2 * size * slices * workers / (run * ratio) / 1e6
                print(
                    f"| {name} | {workers} | {slice_seconds:.0f} s | {ratio:.2f} | {100 * busy:.0f} % | {flow:.0f} MB |"
                )


if __name__ == "__main__":
    main()
