"""Raw data sets as arrays."""

from gmed.data.dataset import Dataset
from gmed.data.mnist import load_mnist

__all__ = ["Dataset", "load_mnist"]
