"""The scikit-learn classifier (:mod:`gmed.integrations.sklearn`)."""

from gmed.integrations.sklearn import GMEDClassifier

__all__ = ["GMEDClassifier"]
