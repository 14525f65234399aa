"""An online classifier of table rows: a learner, a feature scaler and a label encoder."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.online.classifier import OnlineClassifier
from gmed.online.config import ClassifierConfig
from gmed.online.labels import LabelEncoder
from gmed.online.scaling import IdentityScaler, RunningScaler

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

__all__ = ["ClassifierConfig", "IdentityScaler", "LabelEncoder", "OnlineClassifier", "RunningScaler"]
