"""Helpers that several test modules share: results, batches and states made by hand, and calls of the command line."""

import os
import subprocess
import sys

import torch
from hypothesis import HealthCheck, settings
from typer.testing import CliRunner

from gmed.cli.app import app
from gmed.engine import RunResult

FUZZ_EXAMPLES = os.environ.get("GMED_FUZZ")
"""How many examples each random test tries, other ones every time; by default few, and always the same."""


def fuzzed(examples, *suppressed):
    """Settings of a random test with so many examples by default."""
    return settings(
        max_examples=int(FUZZ_EXAMPLES or examples),
        derandomize=FUZZ_EXAMPLES is None,
        suppress_health_check=[HealthCheck.too_slow, *(suppressed or [HealthCheck.data_too_large])],
    )


def make_result(method="er", seed=0, accuracy=0.5, benchmark="split-mnist", **fields):
    """A finished run with the same accuracy on each of five tasks, at every point of evaluation."""
    values = {
        "accuracy": [[accuracy] * 5] * 5,
        "final_accuracy": accuracy,
        "pooled_accuracy": accuracy,
        "steps": 500,
        "timings": {"train": 1.0},
        "environment": {"device": "cpu"},
    }
    return RunResult(benchmark, method, seed, **(values | fields))


def random_batch(count, shape, classes, seed, dtype=None):
    """Uniform examples of a shape and uniform labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *shape, generator=generator, dtype=dtype)
    return x, torch.randint(classes, (count,), generator=generator)


def states_equal(left, right):
    """Whether two state dicts have the same names and bitwise equal tensors."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def invoke(*words, environment=None, **options):
    """Run the command line in this process, 80 columns wide."""
    return CliRunner().invoke(
        app, [str(word) for word in words], env={"COLUMNS": "80", **(environment or {})}, **options
    )


def run_command(*words, folder=None, environment=None, **options):
    """Run the command line in a process of its own, 80 columns wide."""
    return subprocess.run(
        [sys.executable, "-m", "gmed.cli", *map(str, words)], cwd=folder, capture_output=True, text=True, timeout=300,
        env={**os.environ, "COLUMNS": "80", **(environment or {})}, **options,
    )  # fmt: skip
