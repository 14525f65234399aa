"""Whether a model fits a benchmark, found out before anything runs."""

from __future__ import annotations

import torch

from gmed.data import Dataset
from gmed.engine.benchmarks import Benchmark
from gmed.errors import GmedError, UsageError
from gmed.learners import FineTune
from gmed.rng import seeded_torch
from gmed.streams import to_float


def check_fits(benchmark: Benchmark, data: Dataset) -> None:
    """Make a model and one step with it on two examples of the data, or say what it is that does not fit.

    >>> from gmed.engine.benchmarks import get_benchmark
    >>> mnist = get_benchmark("split-mnist")
    >>> check_fits(mnist, mnist.dataset())
    """
    with seeded_torch(0, "weights"):
        model = benchmark.make_model()
    x, y = to_float(torch.from_numpy(data.x_train[[0, 1]])), torch.from_numpy(data.y_train[[0, 1]])
    try:
        learner = FineTune(model, lr=1e-6)
        logits = learner.logits(x)
        if logits.shape[1] != data.num_classes:
            raise UsageError(
                f"it returns {logits.shape[1]} logits for each input; there are {data.num_classes} classes"
            )
        if not torch.isfinite(logits).all():
            raise UsageError("its output is not finite before it has learned anything; look at its weights")
        learner.observe(x, y)
    except GmedError as error:
        raise UsageError(f"the model does not fit {benchmark.name}: {error}") from error
