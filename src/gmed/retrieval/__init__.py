"""What is drawn from memory."""

from gmed.retrieval.mir import interference, most_interfered
from gmed.retrieval.retrieval import Retrieval
from gmed.retrieval.uniform import uniform

__all__ = ["Retrieval", "interference", "most_interfered", "uniform"]
