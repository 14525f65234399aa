"""One classifier of rows: a learner, the units of its features and the names of its classes."""

from gmed.online.classifier import OnlineClassifier
from gmed.online.config import Settings
from gmed.online.labels import Labels
from gmed.online.scaling import IdentityScaler, RunningScaler

__all__ = ["IdentityScaler", "Labels", "OnlineClassifier", "RunningScaler", "Settings"]
