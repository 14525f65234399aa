"""The base class of learners whose model grows while they learn."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from gmed.errors import UsageError
from gmed.learners._rollback import Rollback
from gmed.learners.base import Learner
from gmed.learners.stateful import restore


class ExpandableLearner(Learner):
    """A learner whose model grows while it learns.

    The model consists of modules of the same kind. The initial weights of a module are determined by the learner's seed
    and the module's number.
    """

    @property
    @abstractmethod
    def num_modules(self) -> int:
        """Number of modules of the model."""

    @abstractmethod
    def resize(self, num_modules: int) -> None:
        """Set the number of modules: add new ones with their initial weights, or drop the last ones."""

    @abstractmethod
    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        """Return the number of modules in a state."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        before, model, num_modules = self.state_dict(), self.model, self.num_modules
        try:
            saved = self.num_modules_in(state)
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError("this state has no modules; it was saved by another kind of learner") from error
        self.resize(saved)
        try:
            super().load_state_dict(state)
        except UsageError:
            self.model = model
            self.resize(num_modules)
            restore(self, before)
            raise

    def _rollback(self, x: Tensor, y: Tensor) -> Rollback:
        return _ExpandableRollback(self, x, y)


class _ExpandableRollback(Rollback):
    """A rollback for a model that may have grown in the step."""

    learner: ExpandableLearner

    def __init__(self, learner: ExpandableLearner, x: Tensor, y: Tensor) -> None:
        super().__init__(learner, x, y)
        self.num_modules = learner.num_modules

    def restore(self) -> None:
        super().restore()
        self.learner.resize(self.num_modules)


def num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module.

    >>> num_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters())
