"""Learners: ``observe(x, y)`` one batch at a time, ``predict(x)`` at any time."""

from gmed.learners.er import ER
from gmed.learners.finetune import FineTune
from gmed.learners.learner import Learner

__all__ = ["ER", "FineTune", "Learner"]
