"""What is drawn from memory."""

from gmed.retrieval.uniform import uniform

__all__ = ["uniform"]
