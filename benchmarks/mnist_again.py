"""Plain methods on MNIST computed again with today's torch, for pairs with variants that were computed with it.

    python benchmarks/mnist_again.py [--seeds 20] [--workers N]

What mnist.py has of them at the first 20 seeds is of an older torch, which rounds differently. Writes
mnist_again.json.xz and mnist_again.md to benchmarks/results; evidence.py takes a pair of one version where there is
one.
"""

from __future__ import annotations

from kept import main

PLAN = {
    "again": {
        "split-mnist": ["er", "er+gmed", "mir+gmed"],
        "permuted-mnist": ["er", "er+gmed"],
        "rotated-mnist": ["er+gmed", "mir", "mir+gmed"],
    }
}

if __name__ == "__main__":
    main("mnist_again", __doc__, PLAN, device="cpu")
