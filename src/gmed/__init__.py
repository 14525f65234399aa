"""Online, task-free continual learning with an editable replay memory.

Three depths: :func:`edit_examples` in a replay loop of your own, a learner with ``observe`` and ``predict``
(:mod:`gmed.learners`), and whole experiments (:func:`run`).
"""

from importlib.metadata import PackageNotFoundError, version

from gmed import data, editing, errors, learners, memory, models, retrieval, streams
from gmed.editing import edit_examples
from gmed.experiment import Experiment, run

try:
    __version__ = version("gmed")
except PackageNotFoundError:  # used from a source tree without being installed
    __version__ = "0+source"

__all__ = [
    "Experiment",
    "__version__",
    "data",
    "edit_examples",
    "editing",
    "errors",
    "learners",
    "memory",
    "models",
    "retrieval",
    "run",
    "streams",
]
