"""Online, task-free continual learning with an editable replay memory.

The package has three levels: :func:`edit_examples` for your own replay loop, learners with ``observe`` and ``predict``
(:mod:`gmed.learners`), and complete experiments (:func:`run`). :func:`register` adds custom components. To train a
classifier on a stream of rows, see :mod:`gmed.sklearn`, :mod:`gmed.river` and :func:`gmed.evaluate.prequential`; for
strategies of Avalanche, :mod:`gmed.avalanche`.

Submodules are imported when they are first used, so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gmed._version import __version__
from gmed.deprecated import find_old_modules

if TYPE_CHECKING:
    from gmed import data, editing, errors, evaluate, learners, memory, models, online, retrieval, streams
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

_DEFINED_IN = {
    "edit_examples": "gmed.editing",
    "load_extension": "gmed.engine",
    "register": "gmed.engine",
    "Experiment": "gmed.experiment",
    "run": "gmed.experiment",
}

find_old_modules()


def _load(name: str) -> Any:
    """Import and return a submodule, or a function in one."""
    if name in _DEFINED_IN:
        value = getattr(import_module(_DEFINED_IN[name]), name)
    else:
        try:
            value = import_module(f"gmed.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"gmed.{name}":
                raise
            raise AttributeError(f"module 'gmed' has no attribute {name!r}") from None
    globals()[name] = value
    return value


if not TYPE_CHECKING:
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
