"""A callback that writes accuracy curves for TensorBoard during runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING

from gmed.callbacks import Callback
from gmed.deprecated import old_names
from gmed.engine import Evaluated, Event, Finished, RunResult, RunSpec
from gmed.errors import UsageError

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardCallback(Callback):
    """Writes the accuracies of every run as they are measured, to one folder per run: benchmark/method/seed.

    Forwards all calls to another callback.

    Parameters
    ----------
    folder
        The folder for ``tensorboard --logdir``.
    other
        The callback to forward to.
    """

    def __init__(self, folder: Path, other: Callback) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("--tensorboard needs TensorBoard: pip install 'gmed[tensorboard]'") from None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written ({error.strerror}); choose another --tensorboard") from None
        self.folder, self.other, self.make_writer = folder, other, SummaryWriter
        self.writers: dict[str, SummaryWriter] = {}
        self.points: dict[str, int] = {}

    def on_data_progress(self, done: int, total: int | None) -> None:
        self.other.on_data_progress(done, total)

    def on_start(self, todo: Sequence[RunSpec], kept: int) -> None:
        self.other.on_start(todo, kept)

    def on_wait(self, runs: int) -> None:
        self.other.on_wait(runs)

    def on_event(self, event: Event) -> None:
        if isinstance(event, Evaluated):
            self._write(event.spec, event.seen, event.accuracy)
        elif isinstance(event, Finished):
            self._finish(event.spec, event.result)
        self.other.on_event(event)

    def _finish(self, spec: RunSpec, result: RunResult) -> None:
        """Write the points that were not reported during the run, as on a cluster, and the final accuracy."""
        examples = result.steps * spec.benchmark.batch_size
        self._write(spec, examples, result.accuracy)
        writer = self._writer(spec)
        writer.add_scalar("final accuracy", result.final_accuracy, examples)
        writer.close()
        del self.writers[spec.key]

    def _write(self, spec: RunSpec, seen: int, accuracy: Sequence[Sequence[float]]) -> None:
        """Write the points that are new; points that were not reported one by one are placed at equal distances."""
        writer, points = self._writer(spec), len(accuracy)
        for point in range(self.points.get(spec.key, 0), points):
            position, learned = seen * (point + 1) // points, accuracy[point][: point + 1]
            writer.add_scalar("accuracy on tasks met so far", sum(learned) / len(learned), position)
            for task, task_accuracy in enumerate(accuracy[point]):
                writer.add_scalar(f"accuracy on each task/{task + 1}", task_accuracy, position)
        self.points[spec.key] = points
        writer.flush()

    def _writer(self, spec: RunSpec) -> SummaryWriter:
        if spec.key not in self.writers:
            parts = (spec.benchmark.name, spec.method.name, f"seed {spec.seed}")
            self.writers[spec.key] = self.make_writer(str(self.folder.joinpath(*map(safe_dirname, parts))))
        return self.writers[spec.key]

    def __enter__(self) -> TensorBoardCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self.writers.values():
            writer.close()


def safe_dirname(name: str) -> str:
    """Return a name that is a valid folder name on every platform.

    >>> safe_dirname("er+gmed(alpha=1.0)"), safe_dirname("a/b:c")
    ('er+gmed(alpha=1.0)', 'a_b_c')
    """
    return re.sub(r'[/\\:*?"<>|]', "_", name)
