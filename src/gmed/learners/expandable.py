"""Learners whose model grows while they learn."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from gmed.errors import UsageError
from gmed.learners._rollback import Rollback
from gmed.learners._state import restore
from gmed.learners.base import Learner


class ExpandableLearner(Learner):
    """A learner whose model grows while it learns.

    Its model is made of parts, all alike or nearly so. A part's first weights follow from the learner's seed and the
    part's number.
    """

    @property
    @abstractmethod
    def num_modules(self) -> int:
        """How many there are."""

    @abstractmethod
    def resize(self, num_modules: int) -> None:
        """Have so many: new ones at their first weights, or only the first ones."""

    @abstractmethod
    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        """How many there are in a state."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        before, model, parts = self.state_dict(), self.model, self.num_modules
        try:
            wanted = self.num_modules_in(state)
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError("this state has no parts of such a model: it is another kind of learner's") from error
        self.resize(wanted)
        try:
            super().load_state_dict(state)
        except UsageError:
            self.model = model
            self.resize(parts)
            restore(self, before)
            raise

    def _rollback(self, x: Tensor, y: Tensor) -> Rollback:
        return _RollbackOfParts(self, x, y)


class _RollbackOfParts(Rollback):
    """The same for a model that may have grown."""

    learner: ExpandableLearner

    def __init__(self, learner: ExpandableLearner, x: Tensor, y: Tensor) -> None:
        super().__init__(learner, x, y)
        self.num_modules = learner.num_modules

    def restore(self) -> None:
        super().restore()
        self.learner.resize(self.num_modules)


def num_parameters(module: nn.Module) -> int:
    """How many parameters a module has.

    >>> num_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters())
