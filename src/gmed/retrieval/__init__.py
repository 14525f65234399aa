"""What is drawn from memory."""

from gmed.retrieval.mir import interference, most_interfered
from gmed.retrieval.uniform import uniform

__all__ = ["interference", "most_interfered", "uniform"]
