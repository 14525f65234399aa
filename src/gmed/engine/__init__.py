"""Define and execute runs: benchmarks, methods, single runs, and executors for many."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.engine.benchmarks import BENCHMARKS, Benchmark, BenchmarkId, get_benchmark
from gmed.engine.config import ExecutionConfig
from gmed.engine.executors.local import Evaluated, Event, Failed, Finished, Progress, execute
from gmed.engine.extensions import load_extension
from gmed.engine.methods import Method, resolve
from gmed.engine.result import RunResult
from gmed.engine.runner import run_one
from gmed.engine.spec import RunSpec
from gmed.registry import EDITS, METHODS, register

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


__all__ = [
    "BENCHMARKS",
    "EDITS",
    "METHODS",
    "Benchmark",
    "BenchmarkId",
    "Evaluated",
    "Event",
    "ExecutionConfig",
    "Failed",
    "Finished",
    "Method",
    "Progress",
    "RunResult",
    "RunSpec",
    "execute",
    "get_benchmark",
    "load_extension",
    "register",
    "resolve",
    "run_one",
]
