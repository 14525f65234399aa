"""What is stored, and who enters or leaves."""

from gmed.memory.base import Memory, where_finite
from gmed.memory.gss import GSSGreedy
from gmed.memory.loss_aware import LossAwareReservoir
from gmed.memory.reservoir import Reservoir
from gmed.memory.task_ring import TaskRing

__all__ = ["GSSGreedy", "LossAwareReservoir", "Memory", "Reservoir", "TaskRing", "where_finite"]
