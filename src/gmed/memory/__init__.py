"""Memories of examples: which examples are stored, and which they replace."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.memory.base import Memory, where_finite
from gmed.memory.gss import GSSGreedy
from gmed.memory.loss_aware import LossAwareReservoir
from gmed.memory.reservoir import Reservoir
from gmed.memory.task_ring import TaskRing

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

__all__ = ["GSSGreedy", "LossAwareReservoir", "Memory", "Reservoir", "TaskRing", "where_finite"]
