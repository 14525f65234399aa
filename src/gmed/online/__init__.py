"""One classifier of rows: a learner, the units of its features and the names of its classes."""

from gmed.online.classifier import OnlineClassifier
from gmed.online.config import ClassifierConfig
from gmed.online.labels import LabelEncoder
from gmed.online.scaling import IdentityScaler, RunningScaler

__all__ = ["ClassifierConfig", "IdentityScaler", "LabelEncoder", "OnlineClassifier", "RunningScaler"]
