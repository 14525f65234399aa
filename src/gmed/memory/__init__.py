"""What is stored, and who enters or leaves."""

from gmed.memory.memory import Memory, keep_finite
from gmed.memory.reservoir import Reservoir

__all__ = ["Memory", "Reservoir", "keep_finite"]
