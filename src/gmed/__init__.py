"""Online, task-free continual learning with an editable replay memory.

Three depths: :func:`edit_examples` in a replay loop of your own, a learner with ``observe`` and ``predict``
(:mod:`gmed.learners`), and whole experiments (:func:`run`). Parts of one's own join in by :func:`register`. For one
classifier of rows on a stream of one's own: :mod:`gmed.sklearn`, :mod:`gmed.river`, :func:`gmed.evaluate.prequential`.
For the strategies of Avalanche: :mod:`gmed.avalanche`.
"""

from gmed import data, editing, errors, evaluate, learners, memory, models, online, retrieval, streams
from gmed._version import __version__
from gmed.editing import edit_examples
from gmed.engine import load_extension, register
from gmed.experiment import Experiment, run

__all__ = [
    "Experiment",
    "__version__",
    "data",
    "edit_examples",
    "editing",
    "errors",
    "evaluate",
    "learners",
    "load_extension",
    "memory",
    "models",
    "online",
    "register",
    "retrieval",
    "run",
    "streams",
]
