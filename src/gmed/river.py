"""The classifier for River (:mod:`gmed.integrations.river`)."""

from gmed.integrations.river import GMEDClassifier

__all__ = ["GMEDClassifier"]
