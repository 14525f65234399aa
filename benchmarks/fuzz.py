"""Tries bad input at random for as long as there is time: the ``test_whatever...`` of the tests.

    python benchmarks/fuzz.py [--minutes 10] [--examples 500] [--only observed]

Rounds of many examples each, others every time, until the time is up: tables, archives, pickles, images, models,
checkpoints, documents, stores, names, and threads beside one that learns. Each round ends with as many interrupts at
random moments (interrupts.py), unless ``--only`` is given. Stops at the first failure, which the tests print in its
smallest form, and exits with 1 then.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--examples", type=int, default=500, help="of each test in a round")
    options.add_argument("--only", default="", help="tests with this in their name")
    chosen = options.parse_args()

    wanted = f"test_whatever and {chosen.only}" if chosen.only else "test_whatever"
    words = [sys.executable, "-m", "pytest", "tests", "-q", "-x", "-k", wanted]
    environment = {**os.environ, "GMED_FUZZ": str(chosen.examples)}
    end, rounds = time.monotonic() + 60 * chosen.minutes, 0
    while time.monotonic() < end:
        rounds += 1
        if subprocess.run(words, cwd=ROOT, env=environment).returncode:
            sys.exit(1)
        seed = str(random.randrange(2**32))
        interrupts = [sys.executable, "benchmarks/interrupts.py", "--interrupts", str(chosen.examples), "--seed", seed]
        if not chosen.only:
            print(*interrupts, flush=True)
            if subprocess.run(interrupts, cwd=ROOT).returncode:
                sys.exit(1)
    print(f"{rounds} round(s) of {chosen.examples} examples a test, nothing found")


if __name__ == "__main__":
    main()
