"""An online classifier of table rows: a learner, a feature scaler and a label encoder."""

from gmed.online.classifier import OnlineClassifier
from gmed.online.config import ClassifierConfig
from gmed.online.labels import LabelEncoder
from gmed.online.scaling import IdentityScaler, RunningScaler

__all__ = ["ClassifierConfig", "IdentityScaler", "LabelEncoder", "OnlineClassifier", "RunningScaler"]
